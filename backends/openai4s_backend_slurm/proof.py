"""The proof of isolation as a job: a profile's sandbox, attacked on a machine that the profile leads to.

The job asks for one processor for a few minutes, where the profile's sessions would go, and for none of what others
queue for: devices, licenses, whole machines. A place that refuses such a job is asked as the profile asks, from then
on. It writes only into a folder of its own. It outlives whoever asked for it, and is taken up by the next who does;
nothing is left once it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

from openai4s_provisioner.orchestration.bundle import worker_digest, write_worker_zipapp
from openai4s_provisioner.orchestration.errors import CouldNotAsk, StateError
from openai4s_provisioner.orchestration.models import ExternalHandle, ResourceProfile
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    AllocationRequest,
    Created,
    Existing,
    IsolationVerdict,
    Observation,
    Observed,
    Rejected,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.orchestration.waiting import waiting_pause_s
from openai4s_provisioner.sandbox.errors import SandboxError
from openai4s_provisioner.sandbox.home import prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.spec import NETWORK_PRIVATE, NETWORK_SHARED, SandboxSpec
from openai4s_provisioner.worker.proof import REQUEST, VERDICT

from .isolation import Ending, ProofResult, Waiting
from .lookup import NAME
from .masks import attacks, masks
from .profiles import SlurmOptions, read_profile
from .proof_tickets import FOLDER, ProofTickets, Ticket, remove_folder
from .scarce import RefusingPlaces, place_of, without_scarce

_log = logging.getLogger(__name__)
_MEMORY_MB, _WALLTIME_S = 512, 300
_LOOK_AGAIN_S, _LONGEST_PAUSE_S = 0.5, 30.0
_FATE_SHOWS_S = 40.0
_VERDICT_SHOWS_S = 60.0  # network file systems show a fresh file late
_WORKSPACE = "/tmp/openai4s-proof"  # noqa: S108 - only a name: the node makes one of its own
_OVER = (Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED, Observed.GONE)
_LARGEST_BYTES = 1 << 20
_NOT_ARRIVED = "The job that checks it may not have arrived: the cluster did not answer. Try again in a few minutes."
_MAY_BE_FOR_WHAT_IS_MISSING = frozenset(Reason) - {Reason.BACKEND_UNAVAILABLE}
_FATE_IS_SETTLED_S = 120.0  # afterwards an empty look-up means that the submission never landed
_TICKET_HOLDS_S = 7 * 86400.0
_FORGOTTEN_AFTER_S = 14 * 86400.0


class JobProver:
    """`backend`: where the job is sent to, and asked after; `forget`: takes away what it keeps of a token."""

    def __init__(
        self,
        backend: AllocationBackend,
        forget: Callable[[str], None],
        state_dir: Path,
        exchange_dir: Path,
        options: SlurmOptions,
    ) -> None:
        self._backend = backend
        self._forget = forget
        self._tickets = ProofTickets(state_dir / NAME, exchange_dir)
        self._state_dir = state_dir
        self._exchange_dir = exchange_dir
        self._options = options
        self._refusing = RefusingPlaces(state_dir / NAME / "refuse-small-proofs")

    def configuration(self, profile: ResourceProfile, private_network: bool) -> str:
        """The sandbox, the machines that the profile can lead to, the attacks, and who asks."""
        site = asdict(read_profile(profile))
        parts = [
            [profile.share, profile.share_read_only, profile.gpus > 0, private_network, site],
            [str(self._state_dir), str(self._exchange_dir), *_jupyter_folders(), asdict(self._options)],
            [sys.executable, str(Path.home()), os.getuid(), os.getgroups(), worker_digest()],
            [masks(self._options), attacks(self._has_conf)],
        ]
        return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()

    async def prove(
        self, digest: str, profile: ResourceProfile, private_network: bool, waiting: Waiting
    ) -> ProofResult:
        """Which devices a session has is no part of it: they are bound, and attacked from, in the session's own job.

        Whoever gives up leaves the job as it is: the next one who asks goes on with it, in whatever process.
        """
        small, place = without_scarce(profile), place_of(profile)
        if small == profile or await asyncio.to_thread(self._refusing.know, place):
            return await self._try(digest, profile, private_network, waiting)
        result = await self._try(digest, small, private_network, waiting)
        if result.refused in _MAY_BE_FOR_WHAT_IS_MISSING:
            await self.end(digest)
            result = await self._try(digest, profile, private_network, waiting)
            if result.verdict.verified:
                await asyncio.to_thread(self._refusing.learn, place)
        return result

    async def _try(self, digest: str, profile: ResourceProfile, private_network: bool, waiting: Waiting) -> ProofResult:
        try:
            await self._end_forgotten()
            ticket, request = await asyncio.to_thread(self._taken_up, digest, profile, private_network)
        except (SandboxError, StateError) as error:
            return _undecided(str(error))
        except OSError as error:
            why = f"{error.filename or self._exchange_dir}: {error.strerror or error}"  # a full disk has no file's name
            return _undecided(f"The isolation of sessions could not be probed: {why}. Make that path usable.")
        answer = None if request is None else await self._backend.submit(request)
        if isinstance(answer, Rejected):
            _log.warning("the check of isolation was refused: %s", answer.backend_detail)
            return _undecided(f"The job that checks it was refused. {answer.sentence}", refused=answer.reason)
        if isinstance(answer, Unknown) and not answer.was_sent:
            told = f"The job that checks it was not sent: {answer.backend_detail}."
            return _undecided(f"{told} Try again in a few minutes, or tell your administrator.")
        if isinstance(answer, Created | Existing):
            handle: ExternalHandle | None = answer.handle
        elif ticket.handle:
            handle = ExternalHandle(NAME, ticket.handle)
        else:
            handle, is_settled = await self._found(ticket)
        if handle is None:
            if isinstance(answer, Unknown):
                _log.warning("whether the check of isolation was sent is not known: %s", answer.backend_detail)
            return _undecided(_NOT_ARRIVED, Ending.NO_VERDICT if is_settled else Ending.OPEN)
        if not ticket.handle:
            with contextlib.suppress(OSError):  # then the next one has to look for it
                ticket = await asyncio.to_thread(self._tickets.landed, digest, ticket, handle.value)
        return await self._followed(digest, ticket, handle, waiting)

    async def end(self, digest: str) -> None:
        """Nothing is left of the proof: what came of it is written down."""
        ticket = await asyncio.to_thread(self._tickets.of, digest)
        if ticket is not None:
            await asyncio.to_thread(self._leave_nothing, digest, ticket)

    def _leave_nothing(self, digest: str, ticket: Ticket) -> None:
        self._tickets.end(digest, ticket)
        self._forget(ticket.token)

    async def _end_forgotten(self) -> None:
        """Those that nobody has come back for, such as of a profile that is no more."""
        await asyncio.to_thread(self._tickets.sweep_folders, _FORGOTTEN_AFTER_S)
        for digest, ticket in await asyncio.to_thread(self._tickets.older_than, _TICKET_HOLDS_S):
            with contextlib.suppress(CouldNotAsk):
                handle = ExternalHandle(NAME, ticket.handle) if ticket.handle else None
                handle = handle or await self._backend.find_by_token(ticket.token)
                if handle is not None:
                    await self._backend.cancel(handle)
                await asyncio.to_thread(self._leave_nothing, digest, ticket)

    def _taken_up(
        self, digest: str, profile: ResourceProfile, private_network: bool
    ) -> tuple[Ticket, AllocationRequest | None]:
        """What is under way, or what is to be sent now, with its ticket. Raises OSError, SandboxError, StateError."""
        known = self._tickets.of(digest)
        if known is not None:
            return known, None
        parent = self._exchange_dir
        made = tuple(str(folder) for folder in (parent, *parent.parents) if not folder.exists())
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = parent / f"{FOLDER}{secrets.token_hex(6)}"
        ticket = Ticket(secrets.token_hex(24), str(folder), time.time(), made)
        try:
            folder.mkdir(mode=0o700)
            request = self._request(ticket.token, profile, private_network, folder)
            kept = self._tickets.keep(digest, ticket)
        except BaseException:
            remove_folder(ticket)
            raise
        if kept.token != ticket.token:  # another process was first
            remove_folder(ticket)
            return kept, None
        return ticket, request

    @property
    def _has_conf(self) -> bool:
        return bool(self._options.slurm_conf or os.environ.get("SLURM_CONF"))

    def _request(self, token: str, profile: ResourceProfile, private_network: bool, folder: Path) -> AllocationRequest:
        content = {
            "sandbox": self._spec(profile, folder, private_network).to_json(),
            "attacks": attacks(self._has_conf),
        }
        (folder / REQUEST).write_text(json.dumps(content), encoding="utf-8")
        small = replace(
            profile,
            cpus=1,
            memory_mb=min(profile.memory_mb, _MEMORY_MB),
            nodes=1,
            walltime_s=min(profile.walltime_s or _WALLTIME_S, _WALLTIME_S),
        )
        program = (str(write_worker_zipapp(folder)), "proof", str(folder))
        return AllocationRequest(token, f"proof-{token}", "proof", small, program, folder)

    def _spec(self, profile: ResourceProfile, folder: Path, private_network: bool) -> SandboxSpec:
        home_source = folder / "home"
        prepare_session_home(str(home_source))
        return session_spec(
            workspace=_WORKSPACE,
            home=str(Path.home()),
            home_source=str(home_source),
            state_paths=[str(self._state_dir), str(self._exchange_dir)],
            jupyter_paths=_jupyter_folders(),
            prefixes=interpreter_prefixes(),
            share=profile.share,
            share_read_only=profile.share_read_only,
            masked=masks(self._options),
            network=NETWORK_PRIVATE if private_network else NETWORK_SHARED,
        )

    async def _found(self, ticket: Ticket) -> tuple[ExternalHandle | None, bool]:
        """Its fate is open. Without a handle: whether it is certain by now that there is none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FATE_SHOWS_S
        while loop.time() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with contextlib.suppress(CouldNotAsk):
                asked_at = time.time()
                handle = await self._backend.find_by_token(ticket.token)
                if handle is not None or asked_at - ticket.began > _FATE_IS_SETTLED_S:
                    return handle, True
        return None, False

    async def _followed(self, digest: str, ticket: Ticket, handle: ExternalHandle, waiting: Waiting) -> ProofResult:
        verdict = Path(ticket.folder, VERDICT)
        began = asyncio.get_running_loop().time()
        while True:
            seen = (await self._backend.observe([handle]))[handle]
            waiting(seen.waiting)
            if seen.state in _OVER or await asyncio.to_thread(verdict.exists):
                break
            if not await asyncio.to_thread(self._tickets.holds, digest, ticket):
                return _ENDED_ELSEWHERE
            waited_s = asyncio.get_running_loop().time() - began
            starts_in_s = None if seen.estimated_start is None else seen.estimated_start - time.time()
            await asyncio.sleep(waiting_pause_s(waited_s, starts_in_s, _LOOK_AGAIN_S, _LONGEST_PAUSE_S))
        if seen.state is Observed.GONE:  # which may be an error of whoever was asked: nothing is to be left there
            with contextlib.suppress(CouldNotAsk):
                await self._backend.cancel(handle)
        deadline = asyncio.get_running_loop().time() + (_VERDICT_SHOWS_S if seen.state is Observed.COMPLETED else 0.0)
        while (found := await asyncio.to_thread(_read, verdict)) is None:
            if not await asyncio.to_thread(self._tickets.holds, digest, ticket):
                return _ENDED_ELSEWHERE
            if asyncio.get_running_loop().time() >= deadline:
                return await self._without_verdict(handle, seen)
            await asyncio.sleep(_LOOK_AGAIN_S)
        return _decided(found, ticket)

    async def _without_verdict(self, handle: ExternalHandle, seen: Observation) -> ProofResult:
        """The reasons' own sentences are about sessions: here a machine, or the profile, is what does not fit."""
        tail = (await self._backend.diagnostics(handle)).log_tail.strip()
        why = f"Its log ends: {tail[-500:]}" if tail else "It left no log."
        _log.warning("the check of isolation ended without a result: %s", seen.backend_detail)
        ended = "The job that checks it ended without a result."
        told = " ".join(part for part in (ended, seen.explanation, why) if part)
        refused = seen.reason if seen.reason is Reason.UNSCHEDULABLE else None
        return _undecided(f"{told}\nTell your administrator, or choose another profile.", refused=refused)


def _undecided(sentence: str, ending: Ending = Ending.NO_VERDICT, refused: Reason | None = None) -> ProofResult:
    return ProofResult(ending, IsolationVerdict(False, sentence), refused=refused)


_ENDED_ELSEWHERE = _undecided("Another process has ended the check.", Ending.ELSEWHERE)


def _decided(found: _Found, ticket: Ticket) -> ProofResult:
    told = found.content
    sentence = f"On {told['host']}: {told['sentence']}" if told["sentence"] else ""
    stopped = {name: bool(both[1]) for name, both in told["attacks"].items()}
    verdict = IsolationVerdict(told["verified"] is True, sentence, stopped)
    # By the clock of whoever wrote it, which may be wrong.
    return ProofResult(Ending.VERDICT, verdict, min(max(found.written_at, ticket.began), time.time()))


@dataclass(frozen=True)
class _Found:
    content: Mapping[str, Any]
    written_at: float


def _read(path: Path) -> _Found | None:
    try:
        with open(path, encoding="utf-8") as file:
            written_at = os.fstat(file.fileno()).st_mtime
            content: Any = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError):
        return None
    return _Found(content, written_at) if isinstance(content, dict) and content.get("version") == 1 else None


def _jupyter_folders() -> list[str]:
    return [jupyter_config_dir(), jupyter_data_dir(), jupyter_runtime_dir()]
