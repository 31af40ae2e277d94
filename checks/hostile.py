"""The gateway's port under attack: nobody gets in, all are refused alike, and a session in progress goes on.

A real session over TLS runs in this process, as in a Jupyter server; the crowd is a process of its own. Then damaged
handshakes and frames by the million, and a coverage-guided run, against the tables that stand behind the port.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from openai4s_provisioner.app import ControlPlane
from openai4s_provisioner.gateway.reception import Census, Refusal
from openai4s_provisioner.gateway.worker_gateway import WorkerGateway
from openai4s_provisioner.orchestration.bootstrap import Claims, CredentialIssuer, fresh_nonce, load_secret
from openai4s_provisioner.wire.handshake import Hello, Resume, WorkerHandshake

from .parts.crowd import Orders
from .parts.fuzzing import Findings, FrameFuzz, HandshakeFuzz
from .parts.place import REPOSITORY, SESSION_KERNEL, Place, install_session_kernel, private_place
from .parts.report import Report, run

CLUSTER = '[profiles.default]\nbackend = "local"\ntransport = "tcp"\n'
KEY = bytes(range(32))
MEGABYTE = 1 << 20
LONGEST_HANDSHAKE_S = 40  # with a margin: the gateway gives a peer 30
MOST_MEMORY_GROWTH_MB = 64
MOST_THREADS_MORE = 4  # a pool's thread may be made meanwhile
CHALLENGED = "nonce received"  # what a resume request is answered with, known or not


@dataclass(frozen=True)
class Lengths:
    peers: int
    seconds: float
    dribble_s: float
    fuzz: int
    coverage: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=100, help="of the attack; peers have 30 to prove themselves")
    parser.add_argument("--dribble", type=float, default=20, help="seconds between two bytes")
    parser.add_argument("--fuzz", type=int, default=1_000_000, help="handshakes, and as many frames")
    parser.add_argument("--coverage", type=int, default=300_000, help="inputs of the coverage-guided run")
    given = parser.parse_args()
    lengths = Lengths(given.peers, given.seconds, given.dribble, given.fuzz, given.coverage)

    def body(report: Report) -> None:
        with private_place() as place:
            _attack(report, place, lengths)
        _fuzz(report, "handshakes", HandshakeFuzz, lengths.fuzz)
        _fuzz(report, "frames", FrameFuzz, lengths.fuzz)
        _coverage(report, lengths.coverage)

    return run("hostile", body)


# -- the attack --------------------------------------------------------------------------------------------------------


def _attack(report: Report, place: Place, lengths: Lengths) -> None:
    cluster = place.root / "cluster.toml"
    cluster.write_text(CLUSTER)
    os.environ["OPENAI4S_CLUSTER_TOML"] = str(cluster)
    os.environ["OPENAI4S_WORKER_LISTEN"] = "127.0.0.1:22000-22999"
    report.say(f"installed {install_session_kernel(place)}")
    try:
        with _issued_credentials() as issued:
            with _session(place):
                report.say("a first session has come and gone; its allocation is over")
            with _session(place) as client:
                _besiege(report, client, issued, lengths)
    finally:
        for control in list(ControlPlane._shared.values()):
            control.stop()


def _besiege(report: Report, client: BlockingKernelClient, issued: list[tuple[Claims, str]], lengths: Lengths) -> None:
    gateway, issuer = _running_gateway()
    (stopped, _), (live, genuine) = issued
    lines = dict(_openings(issuer, stopped, live, genuine))
    port = int(gateway.network_addresses[0].rpartition(":")[2])
    orders = Orders("127.0.0.1", port, lengths.peers, lengths.seconds, lengths.dribble_s, lines)

    report.section("before")
    quiet = _latencies(client, min(15.0, lengths.seconds))
    _print_latencies(report, quiet)
    before = gateway.census()
    report.section(f"{lengths.peers} peers at once, for {lengths.seconds:g} s")
    with _Watched(gateway) as watched:
        crowd = _start_crowd(orders)
        attacked = _latencies(client, lengths.seconds + 2)
        told, _ = crowd.communicate(timeout=lengths.seconds + 120)
    _print_latencies(report, attacked)
    report.section("what each kind of peer met with (connections, in which it could act, longest, answer)")
    heard = json.loads(told)
    _judge_heard(report, heard, lengths)
    _judge_census(report, before, gateway.census(), lengths)
    watched.judge(report)
    report.section("the session in progress")
    _judge_latencies(report, quiet, attacked)


def _openings(issuer: CredentialIssuer, stopped: Claims, live: Claims, genuine: str) -> Iterator[tuple[str, str]]:
    """First lines that a peer may say behind TLS, by what is wrong with them."""
    body, _, signature = genuine.partition(".")
    fresh = replace(live, nonce=fresh_nonce())
    other = CredentialIssuer(os.urandom(32))
    credentials = {
        "replayed": genuine,
        "of a stopped session": issuer.issue(replace(stopped, nonce=fresh_nonce())),
        "of an old epoch": issuer.issue(replace(fresh, epoch=live.epoch - 1)),
        "of a later epoch": issuer.issue(replace(fresh, epoch=live.epoch + 1)),
        "of a rank that is not": issuer.issue(replace(fresh, rank=7)),
        "of a rank that is there": issuer.issue(fresh),
        "expired": issuer.issue(replace(fresh, expires_at=time.time() - 1)),
        "signed by another": other.issue(fresh),
        "without signature": f"{body}.",
        "signature damaged": f"{body}.{signature[:-4]}AAAA",
        "empty": ".",
    }
    for name, claims in (
        ("workload_id", replace(live, workload_id=stopped.workload_id)),
        ("allocation_id", replace(live, allocation_id=stopped.allocation_id)),
        ("epoch", replace(live, epoch=live.epoch + 1)),
        ("rank", replace(live, rank=1)),
        ("expires_at", replace(live, expires_at=live.expires_at + 1)),
        ("nonce", fresh),
    ):
        credentials[f"forged {name}"] = f"{other.issue(claims).partition('.')[0]}.{signature}"
    for kind, credential in credentials.items():
        yield f"credential {kind}", WorkerHandshake(Hello(credential, KEY, "node", 1, "3.9.18")).opening.decode()
    for kind, allocation_id in (("of the live session", live.allocation_id), ("of nobody", "f" * 32)):
        yield f"resume {kind}", WorkerHandshake(Resume(allocation_id, 0, 0, KEY)).opening.decode()


def _start_crowd(orders: Orders) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "checks.parts.crowd"]
    crowd = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert crowd.stdin is not None
    crowd.stdin.write(orders.write())
    crowd.stdin.close()
    crowd.stdin = None
    return crowd


def _judge_heard(report: Report, heard: dict[str, dict[str, object]], lengths: Lengths) -> None:
    answers: dict[str, set[str]] = {}
    for kind, met in sorted(heard.items()):
        said = met["said"]
        assert isinstance(said, dict)
        shown = ", ".join(f"{text or 'nothing'} ({count})" for text, count in said.items()) or "no turn"
        report.figure(kind, f"{met['turns']}, {met['reached']}, {met['longest_s']:.1f} s, {shown}")
        answers[kind] = set(said)
    resuming = {kind for kind in heard if kind.startswith("resume")}
    others = set().union(*(said for kind, said in answers.items() if kind not in resuming))
    report.expect(others <= {""}, "no peer heard a byte before it was closed")
    resumed = set().union(*(answers[kind] for kind in resuming))
    report.expect(resumed <= {"", CHALLENGED}, "a resume is challenged alike whether the session is ours or nobody's")
    idle = sorted(kind for kind, met in heard.items() if not met["reached"])
    if lengths.seconds < LONGEST_HANDSHAKE_S:  # these are not closed yet
        idle = [kind for kind in idle if not kind.endswith(("silent", "dribbling"))]
    report.expect(not idle, f"every kind of peer had its turn {idle or ''}".strip())


def _judge_census(report: Report, before: Census, after: Census, lengths: Lengths) -> None:
    report.section("what the gateway counted")
    report.figure("closed over the limit", after.over_limit - before.over_limit)
    for kind in Refusal:
        report.figure(f"refused: {kind.value}", after.refused.get(kind, 0) - before.refused.get(kind, 0))
    report.expect(after.welcomed == before.welcomed, "nobody was let in")
    expected = {Refusal.NO_TLS, Refusal.MALFORMED, Refusal.TOO_LONG, Refusal.CREDENTIAL, Refusal.PROOF}
    if lengths.seconds > LONGEST_HANDSHAKE_S:
        expected.add(Refusal.TOO_LATE)
    missing = sorted(kind.value for kind in expected if after.refused.get(kind, 0) == before.refused.get(kind, 0))
    report.expect(not missing, f"every kind of refusal took place {missing or ''}".strip())


class _Watched:
    """Memory, threads, descriptors and the number in the hall, looked at twice a second."""

    def __init__(self, gateway: WorkerGateway) -> None:
        self._gateway = gateway
        self._process = psutil.Process()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watched:
        self._before = self._now()
        self._peak = self._before
        self._waiting = 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def judge(self, report: Report) -> None:
        report.section("what the server's process needed (before, at most)")
        names = ("resident memory, MB", "threads", "descriptors")
        for name, before, peak in zip(names, self._before, self._peak, strict=True):
            report.figure(name, f"{before:.0f}, {peak:.0f}")
        report.figure("unproven at once, at most", self._waiting)
        grown = self._peak[0] - self._before[0]
        report.expect(grown <= MOST_MEMORY_GROWTH_MB, f"{grown:.0f} MB more (at most {MOST_MEMORY_GROWTH_MB})")
        more = self._peak[1] - self._before[1]
        report.expect(more <= MOST_THREADS_MORE, f"{more:.0f} threads more (at most {MOST_THREADS_MORE})")
        report.expect(self._waiting <= 64, "at most 64 were unproven at once")

    def _look(self) -> None:
        while not self._over.wait(0.5):
            now = self._now()
            self._peak = tuple(max(pair) for pair in zip(self._peak, now, strict=True))
            self._waiting = max(self._waiting, self._gateway.census().waiting)

    def _now(self) -> tuple[float, ...]:
        own = threading.active_count() - self._thread.is_alive()
        return self._process.memory_info().rss / MEGABYTE, own, self._process.num_fds()


# -- the session -------------------------------------------------------------------------------------------------------


@contextmanager
def _session(place: Place) -> Iterator[BlockingKernelClient]:
    manager = KernelManager(kernel_name=SESSION_KERNEL)
    manager.start_kernel(cwd=str(place.work))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def _issued_credentials() -> Iterator[list[tuple[Claims, str]]]:
    """What this process's control plane gives its workers, overheard."""
    issued: list[tuple[Claims, str]] = []
    real = CredentialIssuer.issue

    def issue(self: CredentialIssuer, claims: Claims) -> str:
        token = real(self, claims)
        issued.append((claims, token))
        return token

    CredentialIssuer.issue = issue  # type: ignore[method-assign]
    try:
        yield issued
    finally:
        CredentialIssuer.issue = real  # type: ignore[method-assign]


def _running_gateway() -> tuple[WorkerGateway, CredentialIssuer]:
    """The gateway of the one control plane here, and an issuer with its secret."""
    (control,) = ControlPlane._shared.values()
    assert control._running is not None
    return control._running.gateway, CredentialIssuer(load_secret(control._settings.state_dir))


@dataclass
class Latencies:
    milliseconds: list[float] = field(default_factory=list)
    failed: int = 0

    def at(self, share: float) -> float:
        return sorted(self.milliseconds)[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


def _latencies(client: BlockingKernelClient, seconds: float) -> Latencies:
    """Of small executions, one after the other with a pause, as a person's would be."""
    found = Latencies()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        reply = client.execute_interactive("1 + 1", timeout=60, output_hook=lambda message: None)
        found.milliseconds.append((time.perf_counter() - started) * 1000)
        found.failed += reply["content"]["status"] != "ok"
        time.sleep(0.02)
    return found


def _print_latencies(report: Report, found: Latencies) -> None:
    numbers = ", ".join(f"{found.at(share):.1f}" for share in (0.5, 0.95, 0.99, 1))
    report.figure("executions", len(found.milliseconds))
    report.figure("execution, ms at p50, p95, p99, longest", numbers)


def _judge_latencies(report: Report, quiet: Latencies, attacked: Latencies) -> None:
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        report.figure(
            f"execution, ms at {name}: quiet, under attack", f"{quiet.at(share):.1f}, {attacked.at(share):.1f}"
        )
    report.expect(not quiet.failed + attacked.failed, "every execution succeeded")
    report.expect(
        attacked.at(0.5) <= 3 * quiet.at(0.5) + 20, "half of the executions took at most 3 times as long + 20 ms"
    )
    report.expect(attacked.at(1) <= 2000, "no execution took longer than 2 s")


# -- fuzzing -----------------------------------------------------------------------------------------------------------


class _Fuzz(Protocol):
    def run(self, count: int) -> Findings: ...


def _fuzz(report: Report, what: str, make: Callable[[int], _Fuzz], count: int) -> None:
    """`make` takes a seed."""
    report.section(f"{count:,} damaged {what}")
    make(0).run(min(count, 20_000))  # warm: what is allocated once does not count
    process = psutil.Process()
    before = process.memory_info().rss / MEGABYTE
    started = time.monotonic()
    findings = make(1).run(count)
    grown = process.memory_info().rss / MEGABYTE - before
    report.figure("a second", f"{count / (time.monotonic() - started):,.0f}")
    for outcome, number in findings.outcomes.most_common():
        report.figure(outcome, f"{number:,}")
    for wrong in findings.wrong:
        report.figure("wrong", wrong)
    report.expect(not findings.wrong, f"none was accepted, and nothing but ProtocolError came out ({what})")
    report.expect(grown < 8, f"memory is flat: {grown:+.1f} MB ({what})")


def _coverage(report: Report, count: int) -> None:
    report.section(f"coverage-guided, {count:,} inputs")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "checks.parts.coverage_fuzz", f"-runs={count}", "-max_len=4096", "-seed=1"]
        command += ["-rss_limit_mb=1024", f"-artifact_prefix={folder}/"]
        ran = subprocess.run(
            command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        for line in ran.stdout.splitlines()[-3:]:
            report.figure("atheris", line[:160])
        report.expect(ran.returncode == 0, "the run ended without a finding")


if __name__ == "__main__":
    sys.exit(main())
