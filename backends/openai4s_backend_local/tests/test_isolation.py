"""Whether sessions are isolated is asked once per exact configuration, off the loop, and never assumed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from openai4s_backend_local import create_backend
from openai4s_backend_local.isolation import NEEDS_LINUX, IsolationProof
from openai4s_backend_local.probe import SandboxProbe
from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.ports import IsolationVerdict, SessionIsolationProvider

PROFILE = ResourceProfile("one", "local")
OTHER = ResourceProfile("other", "local", share=("/srv",))


class CountingProbe:
    """Answers what it is told to, and remembers in which thread it was asked."""

    def __init__(self, *verdicts: bool) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.version = "1"
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def configuration(self, profile: ResourceProfile, private_network: bool = False) -> str:
        return f"{self.version} {profile.share} {private_network}"

    def prove(self, profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict:
        self.asked.append(f"{profile.name}, private network" if private_network else profile.name)
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.gate.wait(10)
        verified = self.verdicts.pop(0)
        return IsolationVerdict(verified, "" if verified else "install bubblewrap")


class ProbeThatBreaks(CountingProbe):
    def prove(self, profile: ResourceProfile, private_network: bool = False) -> IsolationVerdict:
        super().prove(profile, private_network)
        raise OSError("no more processes")


def test_a_proof_is_made_once_per_configuration_and_off_the_loop() -> None:
    probe = CountingProbe(True, True, True, True)
    proof = IsolationProof(probe)

    async def ask() -> None:
        for _ in range(3):
            assert (await proof.verdict(PROFILE)).verified
        assert (await proof.verdict(OTHER)).verified
        assert probe.asked == ["one", "other"]
        probe.version = "2"  # a new sandbox program, another kernel
        assert (await proof.verdict(PROFILE)).verified
        assert probe.asked == ["one", "other", "one"]
        for _ in range(2):
            assert (await proof.verdict(PROFILE, private_network=True)).verified
        assert probe.asked[3:] == ["one, private network"]
        assert threading.get_ident() not in probe.threads

    asyncio.run(ask())


def test_concurrent_askers_share_one_run_and_one_that_gives_up_does_not_end_it() -> None:
    probe = CountingProbe(True)
    probe.gate.clear()
    proof = IsolationProof(probe)

    async def ask() -> None:
        askers = [asyncio.create_task(proof.verdict(PROFILE)) for _ in range(5)]
        assert await asyncio.to_thread(probe.begun.wait, 10)
        askers[0].cancel()
        await asyncio.sleep(0)
        probe.gate.set()
        answers = await asyncio.gather(*askers, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert all(isinstance(answer, IsolationVerdict) and answer.verified for answer in answers[1:])
        assert probe.asked == ["one"]

    asyncio.run(ask())


def test_a_failure_is_asked_again_soon_and_a_success_is_not() -> None:
    now = 1000.0
    probe = CountingProbe(False, True)
    proof = IsolationProof(probe, clock=lambda: now)

    async def ask() -> None:
        nonlocal now
        for _ in range(2):
            verdict = await proof.verdict(PROFILE)
            assert not verdict.verified
            assert verdict.sentence == "install bubblewrap"
        assert len(probe.asked) == 1
        now += 6
        assert (await proof.verdict(PROFILE)).verified
        now += 1e6
        assert (await proof.verdict(PROFILE)).verified
        assert len(probe.asked) == 2

    asyncio.run(ask())


def test_a_probe_that_breaks_verifies_nothing_and_is_asked_again() -> None:
    probe = ProbeThatBreaks(True, True)
    proof = IsolationProof(probe)

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="no more processes"):
                await proof.verdict(PROFILE)
        assert len(probe.asked) == 2

    asyncio.run(ask())


def test_other_systems_are_refused_without_a_probe() -> None:
    probe = CountingProbe()
    verdict = asyncio.run(IsolationProof(probe, platform="darwin").verdict(PROFILE))
    assert (verdict.verified, verdict.sentence) == (False, NEEDS_LINUX)
    assert probe.asked == []


@pytest.mark.parametrize("private_network", [False, True])
def test_this_machine_is_proven_and_nothing_is_left_behind(tmp_path: Path, private_network: bool) -> None:
    state, exchange = tmp_path / "new" / "state", tmp_path / "new" / "exchange"
    backend = create_backend(state_dir=state, exchange_dir=exchange, options={})
    assert isinstance(backend, SessionIsolationProvider)
    verdict = asyncio.run(backend.isolates_session_credentials(PROFILE, private_network))
    assert verdict.verified, verdict.sentence
    assert len(verdict.attacks) > 10
    assert all(verdict.attacks.values())
    assert ("connect_abstract_socket" in verdict.attacks) is private_network
    assert os.listdir(tmp_path) == []


def test_without_the_sandbox_program_it_is_refused_with_the_remedy_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    probe = SandboxProbe(tmp_path / "state", tmp_path / "exchange")
    verdict = probe.prove(PROFILE)
    assert not verdict.verified
    assert "install bubblewrap" in verdict.sentence
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("openai4s_backend_local.probe.write_worker_zipapp", full)
    verdict = SandboxProbe(tmp_path / "state", tmp_path / "exchange").prove(PROFILE)
    assert verdict.sentence.endswith(f"{tmp_path}/exchange: No space left on device. Make that path usable.")
    assert os.listdir(tmp_path) == []


def test_a_sandbox_that_confines_nothing_is_not_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe must be able to fail: here the sandbox program only runs what it is given."""
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    verdict = SandboxProbe(tmp_path / "state", tmp_path / "exchange").prove(PROFILE)
    assert not verdict.verified
    assert verdict.sentence


def test_where_no_network_can_be_made_only_kernels_that_need_one_are_refused_and_it_is_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    refusing = f'case "$*" in *--unshare-net*) echo "{said}" >&2; exit 1 ;; esac'
    fake.write_text(f'#!/bin/sh\n{refusing}\nexec {shutil.which("bwrap")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    probe = SandboxProbe(tmp_path / "state", tmp_path / "exchange")
    verdict = probe.prove(PROFILE, private_network=True)
    assert not verdict.verified
    assert "a kernel that can only do TCP needs" in verdict.sentence
    assert said in verdict.sentence
    assert probe.prove(PROFILE).verified


def test_the_configuration_changes_with_what_a_proof_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = SandboxProbe(tmp_path / "state", tmp_path / "exchange")
    known = {probe.configuration(PROFILE), probe.configuration(OTHER)}
    known.add(SandboxProbe(tmp_path / "another", tmp_path / "exchange").configuration(PROFILE))
    assert len(known) == 3
    assert probe.configuration(PROFILE, private_network=True) not in known
    assert probe.configuration(ResourceProfile("renamed", "local")) in known
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe.configuration(PROFILE) not in known
