"""rest-api.yml is the reference: every route is in it with its methods, and every one in it is a route."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai4s_provisioner.jupyter import announcer, routes
from openai4s_provisioner.jupyter.rest_base import NotThere, verbs_of

DESCRIPTION = Path(routes.__file__).with_name("rest-api.yml")
VERBS = ("get", "post", "put", "patch", "delete", "head")


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    return found


def test_every_route_is_described_and_every_description_is_a_route(description: dict[str, Any]) -> None:
    served = {
        (re.sub(re.escape(routes._ID), "{}", pattern), verb)
        for pattern, handler in routes.ROUTES
        if handler is not NotThere
        for verb in verbs_of(handler)
    }
    described = {
        (re.sub(r"\{\w+\}", "{}", path), verb)
        for path, operations in description["paths"].items()
        for verb in operations
        if verb in VERBS
    }
    assert served == described


def test_every_operation_says_what_an_unknown_person_gets(description: dict[str, Any]) -> None:
    for path, operations in description["paths"].items():
        for verb, operation in operations.items():
            assert {"401", "403"} <= set(operation["responses"]), (verb, path)
            assert operation["summary"].endswith("."), (verb, path)


def test_the_objects_that_are_shown_have_no_other_keys_than_the_described_ones(description: dict[str, Any]) -> None:
    for name, schema in description["components"]["schemas"].items():
        if "properties" in schema:
            assert schema["additionalProperties"] is False, name


@pytest.mark.parametrize("path", announcer.SCHEMA_PATHS, ids=lambda path: path.stem)
def test_every_event_has_a_schema_with_its_version_in_its_name(path: Path) -> None:
    schema = yaml.safe_load(path.read_text(encoding="utf-8"))
    name, _, version = path.stem.rpartition("-v")
    assert schema["$id"] == f"https://events.openai4s.dev/{name}/v{version}"
    assert schema["version"] == version
