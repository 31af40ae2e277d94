"""With no session of ours there is nothing of ours: no file, no socket, no port, no thread, no process.

Real processes: the package is loaded, kernelspecs are listed, and an ordinary kernel is started and used, each
compared with the same program where this package is not installed at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.parts.place import REPOSITORY, Place, install_session_kernel, make_place

# Prints what a process holds: its threads, its open files and sockets by kind, its children, our loaded modules.
LOOK = """
def look():
    import json, os, threading
    def kind(fd):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            return None
        return target.partition(":[")[0]
    fds = sorted(filter(None, map(kind, os.listdir("/proc/self/fd"))))
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    ours = sorted(name for name in sys.modules if name.startswith(("openai4s", "_openai4s")))
    return {"threads": len(os.listdir("/proc/self/task")), "fds": fds, "children": len(children), "modules": ours}
"""

# Hides the package: neither its modules nor its entry points can be found.
ABSENT = f"""
import sys
sys.path = [entry for entry in sys.path if not entry.startswith({str(REPOSITORY)!r}) or "site-packages" in entry]
import importlib.metadata
everything = importlib.metadata.entry_points
def others(**params):
    return importlib.metadata.EntryPoints(point for point in everything(**params) if "openai4s" not in point.value)
importlib.metadata.entry_points = others
"""

ORDINARY_KERNEL = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
reply = client.execute_interactive("1 + 1", timeout=30, output_hook=lambda message: None)
assert reply["content"]["status"] == "ok"
found = look()
found["provisioner"] = type(manager.provisioner).__name__
client.stop_channels()
manager.shutdown_kernel()
"""

LIST_THEN_ORDINARY_KERNEL = (
    """
from jupyter_client.kernelspec import KernelSpecManager
assert "python3" in KernelSpecManager().get_all_specs()
"""
    + ORDINARY_KERNEL
)


def run_and_look(place: Place, code: str, *, absent: bool = False) -> dict[str, Any]:
    """What a fresh process that ran `code` holds at its end, and the files it left in `place`."""
    program = (ABSENT if absent else "") + "import sys\n" + LOOK + code + "\nimport json; print(json.dumps(found))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **place.env},
        cwd=place.work,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture
def places(place: Place) -> tuple[Place, Place]:
    """One in which our kernelspec is installed, and one in which nothing is."""
    ours, plain = make_place(place.root / "ours"), make_place(place.root / "plain")
    install_session_kernel(ours)
    return ours, plain


@pytest.mark.parametrize("code", [ORDINARY_KERNEL, LIST_THEN_ORDINARY_KERNEL], ids=["started", "listed, then started"])
def test_an_ordinary_kernel_is_started_exactly_as_without_us(places: tuple[Place, Place], code: str) -> None:
    before = [place.everything() for place in places]
    with_us, without_us = run_and_look(places[0], code), run_and_look(places[1], code, absent=True)
    assert with_us["provisioner"] == "LocalProvisioner"
    assert with_us["modules"] == []
    assert with_us == without_us, "threads, sockets and children are the same"
    new = [place.everything() - old for place, old in zip(places, before, strict=True)]
    assert new[0] == new[1], "so are the files that it left"


def test_loading_the_package_opens_and_starts_nothing(place: Place) -> None:
    modules = [
        ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        for file in sorted((REPOSITORY / "openai4s_provisioner").rglob("*.py"))
        if file.stem not in {"__init__", "__main__"} and "testing" not in file.parts
    ]
    before = place.everything()
    dependencies = "import jupyter_client, jupyter_server.serverapp, cryptography.x509, jupyter_events, sqlite3\n"
    everything = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    plain = run_and_look(place, dependencies + "found = look()")
    loaded = run_and_look(place, dependencies + everything + "found = look()")
    assert plain.pop("modules") == []
    assert len(loaded.pop("modules")) > len(modules)
    assert loaded == plain
    assert place.everything() == before


def test_listing_kernelspecs_leaves_nothing(places: tuple[Place, Place]) -> None:
    program = Path(sys.executable).with_name("jupyter")
    new = []
    for place in places:
        before = place.everything()
        listed = subprocess.run(
            [program, "kernelspec", "list", "--json"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **place.env},
            timeout=60,
        )
        names = json.loads(listed.stdout)["kernelspecs"].keys()
        assert place is not places[0] or "python3-default-session" in names
        new.append(place.everything() - before)
    assert new[0] == new[1]
