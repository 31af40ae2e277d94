"""The picture of the phases in docs/architecture.md, drawn from the table that the program uses.

``python -m checks.parts.phase_diagram`` writes it into the page; a test fails when the page is stale.
"""

from __future__ import annotations

from itertools import groupby

from openai4s_provisioner.orchestration.models import Phase
from openai4s_provisioner.orchestration.phases import TABLE, PhaseEvent

from .place import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"
_BEGIN = "<!-- phases: drawn from orchestration/phases.py by python -m checks.parts.phase_diagram -->\n"
_END = "<!-- phases: end -->\n"
_SAID = {
    PhaseEvent.HANDLE_KNOWN: "the backend named it",
    PhaseEvent.GRANTED: "it runs",
    PhaseEvent.READY: "the four conditions hold",
    PhaseEvent.RELEASE: "a stop was wished, or it is to be replaced",
}


def drawn() -> str:
    """The whole marked part of the page."""
    lines = [f"    [*] --> {Phase.SUBMITTING}"]
    rows = [(before, event, after) for (before, event), after in TABLE.items()]
    for before, event, after in rows:
        if not after.is_terminal:
            lines.append(f"    {before} --> {after}: {_SAID[event]}")
    endings = [(before, after) for before, _, after in rows if after.is_terminal]
    for before, group in groupby(endings, key=lambda each: each[0]):
        lines.append(f"    {before} --> [*]: {', '.join(after for _, after in group)}")
    return _BEGIN + "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n" + _END


def found() -> str:
    """What the page has there now; "" when it has nothing."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)] if _BEGIN in text and _END in text else ""


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if not found():
        raise SystemExit(f"{PAGE} has lost its marks: {_BEGIN.strip()} and {_END.strip()}")
    PAGE.write_text(text.replace(found(), drawn()), encoding="utf-8")


if __name__ == "__main__":
    main()
