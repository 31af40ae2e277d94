"""The one thread that touches `state.db`, so that no loop ever waits for a disk.

Opened on first use and not before: a process without a session of ours makes no file. A write that was handed over
happens even when the caller stops waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from .sqlite import FILE_NAME
from .store import Store

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """Runs methods of `Store` in order, one at a time. Usable from any thread and any loop."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="openai4s-store")
        self._store: Store | None = None

    @property
    def exists(self) -> bool:
        """Whether there is any state yet. Asking makes none."""
        return self._store is not None or (self.state_dir / FILE_NAME).exists()

    def submit(self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue ``method(store, ...)``; a plain future, for threads without an asyncio loop. Raises nothing itself."""

        def call() -> T:
            return method(self._opened(), *args, **kwargs)

        return self._executor.submit(call)

    async def run(self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, awaited. It goes on when nobody waits for it any more; how it ends is then nobody's."""
        answer = asyncio.wrap_future(self.submit(method, *args, **kwargs))
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # not "never retrieved"
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Finish what is queued, close the file, end the thread. Idempotent."""
        try:
            self._executor.submit(self._close_store)
        except RuntimeError:  # shut down before
            return
        self._executor.shutdown(wait=True)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self.state_dir)
        return self._store

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
