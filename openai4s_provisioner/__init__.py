"""A Jupyter kernel provisioner: a kernel picked in JupyterLab becomes an isolated session on a backend."""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Asked by a Jupyter server, by the name under which the extension is enabled. Loads nothing before that."""
    from .jupyter.extension import SessionsExtension

    return [{"module": "openai4s_provisioner.jupyter.extension", "app": SessionsExtension}]
