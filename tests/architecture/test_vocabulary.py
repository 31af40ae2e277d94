"""No word of any scheduler outside `backends/`: each backend lists its own words, and the tree is searched for them.

Words are whole and case does not count. `backends/`, `cluster.toml`, documentation and packaging may use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from .tree import BACKENDS, CORE, REPOSITORY

SEARCHED = (CORE, REPOSITORY / "tests", REPOSITORY / "checks", REPOSITORY / "demo", REPOSITORY / "labextension")
PYTHONS_OWN = re.compile(r"\.r?partition\(")  # a method of every text, and no word of anybody's
READ = {".py", ".pyi", ".sql", ".yaml", ".json", ".ipynb", ".ts", ".tsx", ".css", ".toml", ".txt"}
SKIPPED_FOLDERS = {"node_modules", "lib", "dist", ".yarn", "__pycache__"}
EXAMPLES = REPOSITORY / "docs" / "example_backend"
WORD_LISTS = sorted([*BACKENDS.glob("*/vocabulary.txt"), *EXAMPLES.glob("*/vocabulary.txt")])


def words_of(vocabulary: Path) -> list[str]:
    """One word or phrase a line; `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in vocabulary.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    """Whole words; a hyphen, underscore or space inside a phrase are one and the same, and may be missing."""
    phrases = ("[-_ ]?".join(re.escape(part) for part in re.split(r"[-_ ]", word)) for word in words)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(phrases)})(?![A-Za-z0-9])", re.IGNORECASE)


def searched_files() -> list[Path]:
    this_folder = Path(__file__).resolve().parent
    return [
        file
        for root in SEARCHED
        for file in sorted(root.rglob("*"))
        if file.suffix in READ and not SKIPPED_FOLDERS & set(file.parts) and file.parent != this_folder
    ]


def test_every_backend_lists_its_words() -> None:
    packages = {
        folder for root in (BACKENDS, EXAMPLES) for folder in root.iterdir() if (folder / "__init__.py").is_file()
    }
    assert packages
    assert {folder / "vocabulary.txt" for folder in packages} == set(WORD_LISTS)


@pytest.mark.parametrize("vocabulary", WORD_LISTS, ids=lambda path: path.parent.name)
def test_the_core_does_not_speak_a_backend_s_language(vocabulary: Path) -> None:
    words = words_of(vocabulary)
    if not words:
        return
    pattern = pattern_of(words)
    found = [
        f"{file.relative_to(REPOSITORY)}:{number}: {match.group()}"
        for file in searched_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if (match := pattern.search(PYTHONS_OWN.sub("", line)))
    ]
    assert not found, "\n".join(found)


WORDS = ["berth number", "berthctl", "tide"]


@pytest.mark.parametrize("line", ["berth_number = 1", "the BerthNumber", "a Berth-Number here", "BERTHCTL", "x.tide"])
def test_the_search_bites(line: str) -> None:
    assert pattern_of(WORDS).search(line)


@pytest.mark.parametrize("line", ["berth numbering", "berths", "tidewater", "betide"])
def test_the_search_takes_whole_words_only(line: str) -> None:
    assert not pattern_of(WORDS).search(line)
