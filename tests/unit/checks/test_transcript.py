"""The comparison that the acceptance checks rest on: what it must see, and what it must not mind."""

from __future__ import annotations

from typing import Any

import pytest

from checks.parts.report import Report
from checks.parts.transcript import Transcript, differences


def display(text: str, kind: str = "display_data", **content: Any) -> dict[str, Any]:
    return {"msg_type": kind, "content": {"data": {"text/plain": text}, "metadata": {}, **content}, "buffers": []}


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"msg_type": "stream", "content": {"name": name, "text": text}, "buffers": []}


def transcript(*messages: dict[str, Any]) -> Transcript:
    made = Transcript()
    for message in messages:
        made.add(3, message)
    return made


MANY = [display(str(number)) for number in range(1000)]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        pytest.param(MANY, MANY[:500] + MANY[501:], id="one message of many is missing"),
        pytest.param(MANY, [*MANY[:500], MANY[501], MANY[500], *MANY[502:]], id="two messages changed places"),
        pytest.param(MANY, [*MANY, MANY[0]], id="one message came twice"),
        pytest.param([stream("a"), stream("b")], [stream("a")], id="the end of a stream is missing"),
        pytest.param([stream("a")], [stream("a", "stderr")], id="another stream"),
        pytest.param([display("x", buffers=[b"1"])], [display("x", buffers=[])], id="a buffer is missing"),
        pytest.param([display("x")], [display("x", "update_display_data")], id="another kind of message"),
        pytest.param([display("x")], [], id="the cell did not run"),
    ],
)
def test_a_difference_is_seen(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> None:
    for messages in (expected, actual):
        for message in messages:
            message["buffers"] = message["content"].pop("buffers", message["buffers"])
    assert list(differences(transcript(*expected), transcript(*actual)))


def test_how_a_kernel_cuts_up_a_stream_does_not_matter() -> None:
    assert not list(differences(transcript(stream("ab"), stream("c")), transcript(stream("a"), stream("bc"))))


def test_addresses_and_temporary_names_do_not_matter() -> None:
    one = transcript(display("<object at 0x7f11223344>"), stream("/tmp/ipykernel_1/x.py"))
    two = transcript(display("<object at 0x7fffeeddcc>"), stream("/tmp/ipykernel_22/x.py"))
    assert not list(differences(one, two))


def test_a_check_that_expected_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert Report("empty").verdict() == 1
    assert capsys.readouterr().out.startswith("FAIL empty")


def test_one_unmet_expectation_fails_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("mixed")
    report.expect(True, "this holds")
    report.expect(False, "this does not")
    assert report.verdict() == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAIL mixed: 1 of 2 not met")
