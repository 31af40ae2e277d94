"""Asks a running server whatever its rest-api.yml allows, and much that it does not, and judges every answer.

Schemathesis makes the questions; ids that exist are put into the description, so that they get behind the first check.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .place import REPOSITORY

DESCRIPTION = REPOSITORY / "openai4s_provisioner" / "jupyter" / "rest-api.yml"
# A well-formed request may still be about nothing that exists, or come at the wrong moment: that is no wrong answer.
PROGRAM = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
FOLLOW = {"$ref": "#/components/parameters/follow"}
NOT_ASKED = "positive_data_acceptance,missing_required_header,ensure_resource_availability"


def with_ids(ids: Mapping[str, str]) -> dict[str, Any]:
    """The description, with an example id for the operations below each of these path prefixes."""
    description: dict[str, Any] = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    for path, operations in description["paths"].items():
        found = max((prefix for prefix in ids if path.startswith(prefix)), key=len, default=None)
        for operation in operations.values():
            if "parameters" in operation:  # what follows a session that goes on has no end to wait for
                operation["parameters"] = [each for each in operation["parameters"] if each != FOLLOW]
            for number, parameter in enumerate(operation.get("parameters", [])):
                name = parameter.get("$ref", "").rpartition("/")[2]
                resolved = copy.deepcopy(description["components"]["parameters"].get(name, parameter))
                if resolved["in"] == "path" and found is not None:
                    resolved["examples"] = {"existing": {"value": ids[found]}}
                    operation["parameters"][number] = resolved
    return description


def fuzz(url: str, token: str, ids: Mapping[str, str], folder: Path, examples: int, seed: int) -> tuple[bool, str]:
    """Whether every answer was right, and what the tool said. Takes `examples` questions for each operation."""
    file = folder / "rest-api.yml"
    file.write_text(yaml.safe_dump(with_ids(ids)), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, "run", str(file), "--url", url.rstrip("/")]
    command += ["--header", f"Authorization: token {token}", "--checks", "all", "--exclude-checks", NOT_ASKED]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--phases", "examples,coverage,fuzzing"]
    command += ["--suppress-health-check", "all", "--continue-on-failure", "--warnings", "off", "--no-color"]
    command += ["--request-timeout", "60", "--generation-database", "none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, stdin=subprocess.DEVNULL)
    return done.returncode == 0, done.stdout + done.stderr
