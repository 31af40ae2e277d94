"""What a person reads when there is no isolation: what is wrong, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.sandbox.probe import judge
from openai4s_provisioner.sandbox.remedies import remedy


@pytest.mark.parametrize(
    ("setting", "value", "command"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ],
)
def test_the_setting_that_is_off_is_named(tmp_path: Path, setting: str, value: str, command: str) -> None:
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(value)
    assert command in remedy("bwrap: setting up uid map: Permission denied", str(tmp_path))


def test_a_container_without_its_own_proc_is_recognised() -> None:
    assert "systempaths" in remedy("bwrap: Can't mount proc on /newroot/proc: Operation not permitted")


def test_an_unknown_complaint_is_quoted() -> None:
    assert "(bwrap: strange)" in remedy("bwrap: strange")


def test_an_attack_that_gets_through_is_named() -> None:
    result = judge({"read_memory": True}, {"read_memory": True})
    assert not result.verified
    assert "read memory" in result.sentence
    assert result.attacks == {"read_memory": (True, False)}


def test_a_probe_that_does_not_bite_proves_nothing() -> None:
    result = judge({"read_memory": False, "list_process": True}, {"read_memory": False, "list_process": False})
    assert not result.verified
    assert "fail even without a sandbox: read memory" in result.sentence


@pytest.mark.parametrize("inside", [{}, {"list_process": True}])
def test_an_attack_without_a_result_was_not_stopped(inside: dict[str, bool]) -> None:
    assert not judge({"list_process": True}, inside).verified


def test_no_attack_at_all_proves_nothing() -> None:
    assert not judge({}, {}).verified


def test_a_network_that_cannot_be_made_is_told_from_namespaces_that_are_off() -> None:
    said = remedy("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted")
    assert "can only do TCP" in said
    assert "kernel that can do ipc" in said
