"""What this backend makes of a recorded command: the recording's own format read field by field, then our tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from openai4s_backend_slurm import parse, states, wording

FOLDER = Path(__file__).with_name("recordings")
VERSIONS = ("22.05.8", "24.11.5")


def recordings() -> dict[str, dict[str, Any]]:
    """By "version/name", as they were recorded on a real cluster: argv, rc, stdout, stderr."""
    return {
        f"{version}/{name}": recording
        for version in VERSIONS
        for name, recording in json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8")).items()
    }


def verdict(recording: dict[str, Any]) -> str:
    """One line: what a failure means, which job was submitted, or what each job that shows is taken for."""
    argv = [word for word in recording["argv"] if "=" not in word or word.startswith("-")]
    command = next(word for word in argv if word not in ("env", "-u", "SLURM_CONF", "timeout", "40"))
    if recording["rc"]:
        return f"failed: {wording.complaint_of(recording['stderr'] + recording['stdout']).name}"
    if command == "sbatch":
        name = parse.submitted(recording["stdout"])
        return f"submitted: {name.number if name else None}"
    return "; ".join(_word(state, reason) for state, reason in _shown(command, argv, recording["stdout"]))


def _word(state: str, reason: str) -> str:
    end = states.end_state(state)
    if end is not None:
        by = states.canceller(state)
        return f"{end[0]}{f' {end[1]}' if end[1] else ''}{f' by {by}' if by is not None else ''}"
    live = states.live_state(state)
    why = states.waiting(reason) if reason and live == "PENDING" else None
    return f"{live}{' never' if why and why.never_clears else ''}" + (f" ({why.words})" if why else "")


def _shown(command: str, argv: list[str], output: str) -> list[tuple[str, str]]:
    """(state, reason) of every job that the output shows, in whatever format it was asked for."""
    if output.startswith("{"):
        jobs = json.loads(output).get("jobs", [])
        return [(_first(job.get("job_state", job.get("state", {}))), str(job.get("state_reason", ""))) for job in jobs]
    if command == "scontrol":
        return re.findall(r"JobState=(\S+) Reason=(\S+)", output)
    if command == "squeue" and ("-o" in argv):
        return _by_format(argv[argv.index("-o") + 1], output)
    if command == "sacct":
        return _by_columns(argv, output)
    return []


def _first(state: Any) -> str:
    state = state.get("current", "") if isinstance(state, dict) else state
    return str(state[0] if isinstance(state, list) else state)


def _by_format(format_: str, output: str) -> list[tuple[str, str]]:
    letters = re.findall(r"%(\w)", format_)
    if "T" not in letters:
        return []
    separator = re.findall(r"%\w(.)?", format_)[0] or " "
    rows = [line.split(separator, len(letters) - 1) for line in output.splitlines()]
    at, why = letters.index("T"), letters.index("r") if "r" in letters else None
    return [(row[at], row[why] if why is not None else "") for row in rows]


def _by_columns(argv: list[str], output: str) -> list[tuple[str, str]]:
    lines = output.splitlines()
    asked = next((word.partition("=")[2] for word in argv if word.startswith("--format=")), "")
    columns = asked.split(",") if "-n" in argv else lines.pop(0).split("|")
    if "State" not in columns:
        return []
    at, why = columns.index("State"), columns.index("Reason") if "Reason" in columns else None
    rows = [line.split("|") for line in lines]
    return [(row[at], row[why] if why is not None else "") for row in rows if "." not in row[0]]
