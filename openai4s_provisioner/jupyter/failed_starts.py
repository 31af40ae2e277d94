"""A start that fails is forgotten by Jupyter's kernel managers, so that their server can still be stopped.

jupyter_client (seen in 8.10) keeps a kernel that could not be started among its pending ones for ever. At its end
a server shuts those down too, finds that they do not exist, and then never ends, whatever else still runs in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

_Step = TypeVar("_Step", bound=Callable[..., Coroutine[Any, Any, Any]])


def forgotten_if_it_fails(step: _Step) -> _Step:
    """For the steps of a provisioner's start."""

    @functools.wraps(step)
    async def taken(provisioner: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await step(provisioner, *args, **kwargs)
        except BaseException:
            kernels = getattr(provisioner.parent, "parent", None)
            getattr(kernels, "_pending_kernels", {}).pop(provisioner.kernel_id, None)
            raise

    return cast(_Step, taken)
