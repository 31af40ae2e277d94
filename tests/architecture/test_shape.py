"""The shape of the code: sizes, docstrings, names, and the one copy of the phase sets."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.models import Phase

from .tree import CORE, REPOSITORY, product_files, supporting_files

MODULE_LINES = 400
FUNCTION_LINES = 60
MEDIAN_FUNCTION_LINES = 12
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def name_of(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


shipped = pytest.mark.parametrize("file", product_files(), ids=name_of)


def functions_of(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def lines_of(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


@shipped
def test_a_module_fits_on_a_few_screens(file: Path) -> None:
    assert lines_of(file) <= MODULE_LINES


def test_so_do_tests_checks_and_benchmarks() -> None:
    """A longer one is also the longest that runs in one piece."""
    lengths = {name_of(file): lines_of(file) for file in supporting_files()}
    assert {name.partition("/")[0] for name in lengths} == {
        "tests",
        "checks",
        "benches",
        "labextension",
        "docs",
        "backends",
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}


@shipped
def test_a_function_fits_on_one_screen(file: Path) -> None:
    lengths = {function.name: length_of(function) for function in functions_of(file)}
    assert not {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}


@shipped
def test_a_module_says_what_it_is_for(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if text.strip():
        docstring = ast.get_docstring(ast.parse(text))
        assert docstring, "no module docstring"
        assert len(docstring.splitlines()) <= 12, "long reasons go to docs/"


@shipped
def test_a_module_is_named_for_what_it_does(file: Path) -> None:
    assert file.stem not in EMPTY_NAMES


def test_functions_are_short_as_a_rule() -> None:
    lengths = [length_of(function) for file in product_files() for function in functions_of(file)]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES


def test_every_package_says_what_it_is_for() -> None:
    silent = [
        str(file.relative_to(REPOSITORY))
        for file in product_files()
        if file.name == "__init__.py" and not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_the_schema_s_index_holds_exactly_the_active_phases() -> None:
    schema = (CORE / "orchestration" / "store" / "schema.sql").read_text(encoding="utf-8")
    found = re.search(
        r"CREATE UNIQUE INDEX one_active_allocation ON allocation \(workload_id\)\s+WHERE phase IN \(([^)]*)\)", schema
    )
    assert found, "the partial unique index is gone from the schema"
    assert set(re.findall(r"'(\w+)'", found.group(1))) == {phase.value for phase in Phase if phase.is_active_allocation}


def test_every_phase_is_either_terminal_or_active() -> None:
    assert all(phase.is_terminal != phase.is_active_allocation for phase in Phase)
    assert {phase for phase in Phase if phase.is_terminal} == {
        Phase.COMPLETED,
        Phase.FAILED,
        Phase.CANCELLED,
        Phase.LOST,
    }


def test_the_sets_of_phases_are_written_once_in_python() -> None:
    """A second copy shows as a module that names all four terminal phases, or all five others, in one display."""
    groups = [{p.name for p in Phase if p.is_terminal}, {p.name for p in Phase if p.is_active_allocation}]
    copies = []
    for file in product_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Set | ast.List | ast.Tuple):
                names = {part.attr for part in node.elts if isinstance(part, ast.Attribute)}
                names |= {str(part.value) for part in node.elts if isinstance(part, ast.Constant)}
                if names in groups:
                    copies.append(f"{file.relative_to(REPOSITORY)}:{node.lineno}")
    assert len(copies) == 1, copies
    assert copies[0].startswith("openai4s_provisioner/orchestration/models.py")
