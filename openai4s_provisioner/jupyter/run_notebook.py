"""Runs one notebook with a kernel of its own, from inside a sandbox: ``python run_notebook.py IN OUT --kernel NAME``.

A file of its own, run by path: it may import nothing of ours, because the sandbox shows only this file. The kernel
listens on Unix sockets in the sandbox's private folder, so nothing of it can be reached from the machine. What was
computed is saved after every cell, whatever happens to the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--kernel-dir", action="append", default=[])
    arguments = parser.parse_args()
    notebook = nbformat.read(arguments.source, as_version=4)
    try:
        asyncio.run(_run(notebook, arguments))
    except (CellExecutionError, DeadKernelError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        _save(notebook, arguments.target)
    return 0


async def _run(notebook: nbformat.NotebookNode, arguments: argparse.Namespace) -> None:
    specs = KernelSpecManager(kernel_dirs=arguments.kernel_dir) if arguments.kernel_dir else KernelSpecManager()
    sockets = os.path.join(tempfile.mkdtemp(), "k")
    manager = AsyncKernelManager(kernel_name=arguments.kernel, kernel_spec_manager=specs, transport="ipc", ip=sockets)
    done = 0

    def executed(**_: object) -> None:
        nonlocal done
        done += 1
        print(f"{done} cells done", flush=True)
        _save(notebook, arguments.target)

    resources = {"metadata": {"path": os.path.dirname(arguments.source) or "."}}
    client = NotebookClient(notebook, km=manager, timeout=None, resources=resources, on_cell_executed=executed)
    try:
        await client.async_execute()
    finally:
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)


def _save(notebook: nbformat.NotebookNode, target: str) -> None:
    draft = f"{target}.part"
    nbformat.write(notebook, draft)
    os.replace(draft, target)


if __name__ == "__main__":
    sys.exit(main())
