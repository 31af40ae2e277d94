"""The one way in: every refusal with its reason and a sentence, in one order, and nothing written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.orchestration.admission import Admission, AdmissionRequest
from openai4s_provisioner.orchestration.config import parse_config
from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.models import KernelLaunch, KernelTransport, SessionSpec
from openai4s_provisioner.orchestration.own_thread import MOST_AT_ONCE
from openai4s_provisioner.orchestration.ports import IsolationVerdict
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.store import StoreThread
from openai4s_provisioner.sandbox.errors import MaskUncovered
from openai4s_provisioner.testing.faulty_backends import ManualClock, ObedientBackend

CLUSTER = """
[profiles.here]
backend = "fake"
[profiles.nowhere]
backend = "absent"
[profiles.odd]
backend = "fake"
colour = "red"
[profiles.bare]
backend = "bare"
[profiles.mine]
backend = "fake"
workspace = "private"
"""


class BackendWithoutIsolation:
    """Places allocations, and cannot prove that they are apart."""

    name = "bare"

    def check_profile(self, profile: object) -> None:
        pass


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "work"
        self.workspace.mkdir()
        self.backend = ObedientBackend(ManualClock())
        self.store = StoreThread(folder / "state")
        self.sandbox_error: Exception | None = None
        spec = SessionSpec(str(self.workspace), str(self.workspace), "python3")
        launch = KernelLaunch("l", ("python",), {}, str(self.workspace), "key")
        self.request = AdmissionRequest("me", "here", spec, launch)

    def admission(self, listens: bool = True) -> Admission:
        backends: dict[str, Any] = {"fake": self.backend, "bare": BackendWithoutIsolation()}
        config = parse_config(CLUSTER, Path("/site/cluster.toml"))
        return Admission(config, backends, self.store, self._sandbox_for, listens=listens)

    def admit(self, request: AdmissionRequest, listens: bool = True) -> Any:
        return asyncio.run(self.admission(listens).admit(request))

    def _sandbox_for(self, spec: object, profile: object) -> dict[str, Any]:
        if self.sandbox_error is not None:
            raise self.sandbox_error
        return {}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def with_spec(request: AdmissionRequest, **change: str) -> AdmissionRequest:
    return replace(request, spec=replace(request.spec, **change))  # type: ignore[arg-type]


def with_launch(request: AdmissionRequest, **change: Any) -> AdmissionRequest:
    return replace(request, launch=replace(request.launch, **change))


def test_a_good_request_is_admitted_and_nothing_is_written(bench: Bench) -> None:
    admitted = bench.admit(bench.request)
    assert (admitted.profile.name, admitted.backend) == ("here", bench.backend)
    assert bench.admit(replace(bench.request, profile="")).profile.name == "here"
    assert [path.name for path in bench.folder.iterdir()] == ["work"]


def test_a_private_workspace_need_not_exist_yet(bench: Bench) -> None:
    fresh = str(bench.folder / "fresh")
    request = with_launch(with_spec(replace(bench.request, profile="mine"), workspace=fresh, cwd=fresh), cwd=fresh)
    assert bench.admit(request).profile.name == "mine"
    with pytest.raises(Refused, match="does not exist"):
        bench.admit(replace(request, profile="here"))


@pytest.mark.parametrize(
    ("change", "reason", "told"),
    [
        (
            lambda r: replace(r, profile="big"),
            Reason.INVALID_SPEC,
            "no profile 'big' (/site/cluster.toml, line 2). Choose one of: bare, here, mine, nowhere, odd.",
        ),
        (
            lambda r: replace(r, profile="nowhere"),
            Reason.BACKEND_UNAVAILABLE,
            "'absent' (/site/cluster.toml, line 5), which is not installed",
        ),
        (lambda r: replace(r, profile="odd"), Reason.INVALID_SPEC, "(/site/cluster.toml, line 8): colour is not a key"),
        (lambda r: replace(r, profile="bare"), Reason.ISOLATION_UNVERIFIED, "no way to prove it"),
        (
            lambda r: with_spec(r, workspace="/nowhere/at/all"),
            Reason.INVALID_SPEC,
            "workspace folder '/nowhere/at/all' does not exist. Create it",
        ),
        (lambda r: with_spec(r, workspace="work"), Reason.INVALID_SPEC, "not an absolute path"),
        (lambda r: with_spec(r, cwd="/nowhere"), Reason.INVALID_SPEC, "working folder '/nowhere' does not exist"),
        (lambda r: with_spec(r, cwd="/usr"), Reason.INVALID_SPEC, "lies outside the workspace"),
        (lambda r: with_spec(r, workspace="/etc/passwd"), Reason.INVALID_SPEC, "does not exist"),
        (lambda r: with_launch(r, cwd="/usr"), Reason.INVALID_SPEC, "lies outside the workspace"),
        (
            lambda r: with_launch(r, argv=()),
            Reason.INVALID_SPEC,
            "kernelspec 'python3' has no command to run. Add a non-empty argv",
        ),
        (lambda r: with_launch(r, argv=("",)), Reason.INVALID_SPEC, "no command to run"),
        (lambda r: with_launch(r, env={"A": "a\0b"}), Reason.INVALID_SPEC, "NUL"),
        (
            lambda r: replace(r, socket_path="/" + "é" * 54),
            Reason.INVALID_SPEC,
            "has 109 bytes, and the system allows 107. Set XDG_RUNTIME_DIR",
        ),
    ],
)
def test_each_refusal_says_what_is_wrong_and_what_to_do(
    bench: Bench, change: Callable[[AdmissionRequest], AdmissionRequest], reason: Reason, told: str
) -> None:
    with pytest.raises(Refused) as caught:
        bench.admit(change(bench.request))
    assert caught.value.reason is reason
    assert told in str(caught.value)
    assert str(caught.value).endswith(".")
    assert [path.name for path in bench.folder.iterdir()] == ["work"]


def test_the_socket_path_may_have_exactly_as_many_bytes_as_the_system_allows(bench: Bench) -> None:
    assert bench.admit(replace(bench.request, socket_path="/" + "x" * 106))


def test_a_path_that_would_uncover_something_masked_is_refused_by_name(bench: Bench) -> None:
    bench.sandbox_error = MaskUncovered("/home/me/.ssh", "The shared folder /home/me would uncover /home/me/.ssh.")
    with pytest.raises(Refused, match=r"would uncover /home/me/\.ssh") as caught:
        bench.admit(bench.request)
    assert caught.value.reason is Reason.POLICY_REJECTED


def test_a_folder_that_hangs_refuses_its_own_session_and_holds_up_nobody_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system does whose server is gone."""
    monkeypatch.setattr("openai4s_provisioner.orchestration.admission._FOLDERS_DEADLINE_S", 0.2)
    is_dir, answers = Path.is_dir, threading.Event()

    def hangs(path: Path) -> bool:
        if path.name == "hung":
            answers.wait(30.0)
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", hangs)

    async def scenario() -> int:
        refused = [asyncio.ensure_future(bench.admission().admit(hung)) for _ in range(MOST_AT_ONCE + 1)]
        beats = 0
        while not all(each.done() for each in refused):
            await asyncio.sleep(0.01)  # the loop's other work goes on
            beats += 1
        for each in refused:
            with pytest.raises(Refused, match=r"/hung', or another folder .* does not answer") as caught:
                each.result()
            assert caught.value.reason is Reason.WORKSPACE_UNREACHABLE
        await asyncio.to_thread(is_dir, bench.workspace)  # nor is the pool of threads taken up
        return beats

    hung = with_spec(bench.request, workspace="/nowhere/hung")
    try:
        assert asyncio.run(scenario()) > 1
    finally:
        answers.set()


def test_isolation_that_is_not_verified_refuses_with_the_remedy(bench: Bench) -> None:
    bench.backend.verdict = IsolationVerdict(False, "Run: apt install bubblewrap.")
    with pytest.raises(Refused, match="apt install bubblewrap") as caught:
        bench.admit(bench.request)
    assert caught.value.reason is Reason.ISOLATION_UNVERIFIED


def test_a_server_without_a_port_says_so_before_the_proof_has_to_queue(bench: Bench) -> None:
    bench.backend.verdict = IsolationVerdict(False, "It was asked all the same.")
    with pytest.raises(Refused, match="listens on no port"):
        bench.admit(bench.request, listens=False)


def test_a_kernel_that_can_only_do_tcp_needs_the_proof_for_a_network_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def only_shared(profile: object, private_network: bool) -> IsolationVerdict:
        return IsolationVerdict(not private_network, "Network namespaces are off.")

    monkeypatch.setattr(bench.backend, "isolates_session_credentials", only_shared)
    bench.admit(bench.request)
    with pytest.raises(Refused, match="Network namespaces are off") as caught:
        bench.admit(replace(bench.request, launch=replace(bench.request.launch, transport=KernelTransport.TCP)))
    assert caught.value.reason is Reason.ISOLATION_UNVERIFIED


def test_a_probe_that_breaks_has_proven_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(profile: object, private_network: bool) -> IsolationVerdict:
        raise OSError("no such file")

    monkeypatch.setattr(bench.backend, "isolates_session_credentials", breaks)
    with pytest.raises(Refused, match="no such file") as caught:
        bench.admit(bench.request)
    assert caught.value.reason is Reason.ISOLATION_UNVERIFIED
