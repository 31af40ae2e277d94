"""The listings in docs/backends.md are the files of docs/example_backend, which the tests run.

    python -m checks.parts.example_listing        writes them into the page

Between two markers it replaces everything, and it touches nothing else.
"""

from __future__ import annotations

import re

from .place import REPOSITORY

PAGE = REPOSITORY / "docs" / "backends.md"
EXAMPLE = REPOSITORY / "docs" / "example_backend"
_LISTING = re.compile(r"<!-- example: (?P<file>\S+\.\S+) -->\n.*?<!-- example: end -->", re.DOTALL)
_LANGUAGES = {"py": "python", "toml": "toml", "txt": "text"}


def listed(page: str) -> list[str]:
    """The files that the page shows."""
    return [match["file"] for match in _LISTING.finditer(page)]


def written(page: str) -> str:
    """The page with every listing as its file is now."""
    return _LISTING.sub(lambda match: _listing(match["file"]), page)


def _listing(file: str) -> str:
    language = _LANGUAGES[file.rpartition(".")[2]]
    content = (EXAMPLE / file).read_text(encoding="utf-8")
    return f"<!-- example: {file} -->\n`{file}`:\n\n```{language}\n{content}```\n<!-- example: end -->"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
