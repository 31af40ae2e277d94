"""A spec is a value: it travels as JSON and comes back equal, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai4s_provisioner.sandbox.environment import scrubbed, settled
from openai4s_provisioner.sandbox.spec import SandboxSpec


def test_a_spec_survives_the_journey() -> None:
    spec = SandboxSpec(workspace="/w", masked=("/a", "/b"), overlays=(("/s/.local", "/h/.local"),), network="private")
    assert SandboxSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "wrong",
    [
        {"workspace": "relative"},
        {"workspace": "/w/../etc"},
        {"workspace": "/w", "masked": ["not/absolute"]},
        {"workspace": "/w", "overlays": [["/a", "b"]]},
        {"workspace": "/w\0x"},
        {"workspace": "/w", "network": "none of these"},
        {"workspace": "/w", "mask": ["/a"]},
    ],
)
def test_a_spec_that_could_be_misunderstood_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sandbox"):
        SandboxSpec.from_json(wrong)


def test_no_door_is_left_in_the_environment() -> None:
    doors = dict.fromkeys(("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "SSH_AUTH_SOCK", "JPY_PARENT_PID"), "x")
    assert scrubbed({**doors, "PATH": "/bin", "EMPTY": ""}) == {"PATH": "/bin", "EMPTY": ""}


def test_a_place_that_is_not_there_is_not_named(tmp_path: Any) -> None:
    given = {"TMPDIR": "/no/such", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/elsewhere"}
    assert settled(given, "/home/ada") == {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/home/ada"}
