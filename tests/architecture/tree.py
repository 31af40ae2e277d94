"""Where the parts of the repository lie, for the tests that read it."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CORE = REPOSITORY / "openai4s_provisioner"
BACKENDS = REPOSITORY / "backends"


def modules_below(folder: Path) -> list[str]:
    """The dotted names of all modules of a package of the core, packages included."""
    names = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(REPOSITORY).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def product_files() -> list[Path]:
    """Every Python file that is shipped: the core and the backends, without tests."""
    return [
        file
        for folder in (CORE, BACKENDS)
        for file in sorted(folder.rglob("*.py"))
        if "tests" not in file.relative_to(folder).parts
    ]


def supporting_files() -> list[Path]:
    """Every other Python file: tests, acceptance checks, benchmarks, and what builds the part for JupyterLab."""
    folders = (REPOSITORY / name for name in ("tests", "checks", "benches", "labextension", "docs"))
    found = [file for folder in (*folders, BACKENDS) for file in sorted(folder.rglob("*.py"))]
    shipped = set(product_files())
    return [file for file in found if file not in shipped and "node_modules" not in file.parts]
