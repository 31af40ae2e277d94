"""What a worker that does not come wrote down: read as far as it can be, and never an obstacle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.way_record import failed_ways


def write(folder: Path, content: str) -> None:
    (folder / "way-1.json").write_text(content, encoding="utf-8")


def test_every_address_is_named_with_its_cause(tmp_path: Path) -> None:
    failed = [
        {"address": "tls:login:21000", "cause": "Connection refused"},
        {"address": "unix:/run/gw", "cause": "No such file"},
    ]
    write(tmp_path, json.dumps({"failed": failed}))
    assert failed_ways(tmp_path, 1) == "login:21000: Connection refused; unix:/run/gw: No such file"
    assert failed_ways(tmp_path, 0) == "", "another rank has not said anything"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"failed": 3}', '{"failed": [{}]}', '{"failed": [1]}', "\0"])
def test_what_cannot_be_read_is_no_reason(tmp_path: Path, content: str) -> None:
    write(tmp_path, content)
    assert failed_ways(tmp_path, 1) == ""


def test_a_link_is_not_followed_and_length_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"failed": [{"address": "a", "cause": "b"}]}', encoding="utf-8")
    (tmp_path / "way-0.json").symlink_to(tmp_path / "elsewhere")
    assert failed_ways(tmp_path, 0) == ""
    write(tmp_path, json.dumps({"failed": [{"address": "a" * 999, "cause": "b" * 999}] * 9}))
    assert len(failed_ways(tmp_path, 1)) < 3000
