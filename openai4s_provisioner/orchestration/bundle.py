"""Write the worker as one zipapp into the exchange folder, from where every node can run it.

The same sources always give the same bytes and the same name, so several servers of one person share one file,
and an upgraded server puts its own beside the one that running workers still use. Only what runs on a node goes
in; it refuses to ship anything of the control plane. Members are stored, not compressed: the bytes then do not
depend on a zlib version.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_PACKAGE = "openai4s_provisioner"
_SHIPPED = ("sandbox", "transport", "wire", "worker")
_MAIN = f"""\
import sys

from {_PACKAGE}.worker.__main__ import main

sys.exit(main(sys.argv[1:]))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date a zip can hold


def write_worker_zipapp(exchange_dir: Path) -> Path:
    """Put ``worker-<digest>.pyz`` into `exchange_dir`, atomically, and return its path. An intact one is kept."""
    content = _render(_members())
    path = exchange_dir / f"worker-{_digest(content)}.pyz"
    if not _is_intact(path, content):
        _replace(path, content)
    return path


def worker_digest() -> str:
    """Tells one version of what runs on a node from every other."""
    return _digest(_render(_members()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _members() -> dict[str, bytes]:
    """Archive name -> bytes. The package's own ``__init__`` is left empty: the node needs nothing of it."""
    members = {"__main__.py": _MAIN.encode(), f"{_PACKAGE}/__init__.py": b""}
    root = files(_PACKAGE)
    for name in _SHIPPED:
        members.update(_modules_below(root / name, f"{_PACKAGE}/{name}"))
    return members


def _modules_below(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found.update(_modules_below(entry, f"{prefix}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{prefix}/{entry.name}"] = entry.read_bytes()
    return found


def _render(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3
            member.external_attr = 0o644 << 16
            archive.writestr(member, members[name])
    return buffer.getvalue()


def _is_intact(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".worker-", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
