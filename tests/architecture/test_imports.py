"""Who may import whom, and what may be loaded at all: layers, backends, and what runs on the node.

The layers themselves are written in pyproject.toml; here they are held, and shown to be able to fail.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.bundle import write_worker_zipapp

from .tree import CORE, REPOSITORY, modules_below

NODE_PACKAGES = ("wire", "transport", "sandbox", "worker")


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, cwd="/")


def test_imports_point_one_way(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("lint-imports"))
    command = [program, "--no-cache", "--config", str(REPOSITORY / "pyproject.toml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


BLOCK_BACKENDS = """
import sys
from importlib.metadata import entry_points
points = entry_points(group="openai4s_provisioner.backends")
blocked = {point.module.partition(".")[0] for point in points}
assert blocked, "no backend is registered"
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
"""


def test_the_core_can_be_imported_with_every_backend_blocked() -> None:
    names = [name for name in modules_below(CORE) if not name.endswith("__main__")]
    result = run_python(BLOCK_BACKENDS + f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert result.returncode == 0, result.stderr
    assert len(names) > 40


def test_the_blocker_of_the_test_above_bites() -> None:
    result = run_python(BLOCK_BACKENDS + "import openai4s_backend_local")
    assert "openai4s_backend_local is blocked" in result.stderr


def test_importing_orchestration_loads_no_backend_and_no_network_library() -> None:
    names = modules_below(CORE / "orchestration")
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    result = run_python(code + "print(*sorted({name.partition('.')[0] for name in sys.modules}))")
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    unwanted = {"tornado", "zmq", "jupyter_client", "jupyter_server", "jupyter_core", "jupyter_events", "traitlets"}
    assert not loaded & unwanted
    assert not {name for name in loaded if name.startswith("openai4s_backend")}


def imported_packages(file: Path) -> Iterator[str]:
    """The first part of every absolute import in a file, wherever in it the import stands."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("package", NODE_PACKAGES)
def test_what_runs_on_the_node_imports_the_standard_library_alone(package: str) -> None:
    files = list((CORE / package).rglob("*.py"))
    assert files
    for file in files:
        foreign = set(imported_packages(file)) - sys.stdlib_module_names
        assert not foreign, f"{file.relative_to(REPOSITORY)} imports {sorted(foreign)}"


def node_pythons() -> list[str]:
    """This Python, and every other one on the PATH that a node may have."""
    found = [sys.executable]
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"):
        for folder in os.environ["PATH"].split(os.pathsep):
            program = Path(folder) / f"python{version}"
            if program.is_file() and os.access(program, os.X_OK):
                if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
                    found.append(str(program))
                break
    return found


def test_the_worker_archive_runs_in_a_bare_interpreter(tmp_path: Path) -> None:
    """Isolated mode, no site-packages: every module of the archive can be imported, from the archive."""
    archive = write_worker_zipapp(tmp_path)
    names = [name for package in NODE_PACKAGES for name in modules_below(CORE / package)]
    names = [name for name in names if not name.endswith("__main__")]
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(archive)!r})\n"
        f"for name in {names!r}:\n"
        f"    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(archive)!r}), module.__file__\n"
    )
    for python in node_pythons():
        result = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, cwd="/")
        assert result.returncode == 0, f"{python}: {result.stderr}"
