"""The proof of isolation as a job: a profile's sandbox, attacked on a machine that the profile leads to.

The job asks for one processor for a few minutes, where the profile's sessions would go. It writes only into a folder of
its own, and leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

from openai4s_provisioner.orchestration.bundle import worker_digest, write_worker_zipapp
from openai4s_provisioner.orchestration.errors import CouldNotAsk
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
from openai4s_provisioner.sandbox.errors import SandboxError
from openai4s_provisioner.sandbox.home import prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.spec import NETWORK_PRIVATE, NETWORK_SHARED, SandboxSpec
from openai4s_provisioner.worker.proof import REQUEST, VERDICT

from .isolation import Waiting
from .masks import attacks, masks
from .profiles import SlurmOptions, read_profile

_MEMORY_MB, _WALLTIME_S = 512, 300
_LOOK_AGAIN_S, _LONGEST_PAUSE_S = 0.5, 30.0
_FATE_SHOWS_S = 40.0
_VERDICT_SHOWS_S = 60.0  # network file systems show a fresh file late
_WORKSPACE = "/tmp/openai4s-proof"  # noqa: S108 - only a name: the node makes one of its own
_OVER = (Observed.COMPLETED, Observed.FAILED, Observed.CANCELLED, Observed.GONE)
_LARGEST_BYTES = 1 << 20
_FOLDER = "proof-"
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
        self._state_dir = state_dir
        self._exchange_dir = exchange_dir
        self._options = options

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

    async def prove(self, profile: ResourceProfile, private_network: bool, waiting: Waiting) -> IsolationVerdict:
        try:
            with _own_folder(self._exchange_dir) as folder:
                request = await asyncio.to_thread(self._request, profile, private_network, folder)
                try:
                    return await self._run(request, waiting)
                finally:
                    self._forget(request.token)
        except SandboxError as error:
            return IsolationVerdict(False, str(error))
        except OSError as error:
            why = f"{error.filename or self._exchange_dir}: {error.strerror or error}"  # a full disk has no file's name
            return IsolationVerdict(
                False, f"The isolation of sessions could not be probed: {why}. Make that path usable."
            )

    @property
    def _has_conf(self) -> bool:
        return bool(self._options.slurm_conf or os.environ.get("SLURM_CONF"))

    def _request(self, profile: ResourceProfile, private_network: bool, folder: Path) -> AllocationRequest:
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
        token = secrets.token_hex(24)
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

    async def _run(self, request: AllocationRequest, waiting: Waiting) -> IsolationVerdict:
        answer = await self._backend.submit(request)
        if isinstance(answer, Rejected):
            return IsolationVerdict(False, f"The job that checks it was refused. {answer.sentence}")
        if isinstance(answer, Unknown) and not answer.was_sent:
            told = f"The job that checks it was not sent: {answer.backend_detail}."
            return IsolationVerdict(False, f"{told} Try again in a few minutes, or tell your administrator.")
        handle = answer.handle if isinstance(answer, Created | Existing) else await self._found(request.token)
        if handle is None:
            why = answer.backend_detail if isinstance(answer, Unknown) else ""
            told = (
                "The job that checks it may not have arrived: the cluster did not answer. Try again in a few minutes."
            )
            return IsolationVerdict(False, f"{told} {why}".strip())
        try:
            seen = await self._ended(handle, request, waiting)
        except BaseException:  # nobody waits for it any more
            with contextlib.suppress(Exception):
                await asyncio.shield(self._backend.cancel(handle))
            raise
        return await self._verdict(handle, request, seen)

    async def _found(self, token: str) -> ExternalHandle | None:
        """Its fate is open. One that shows only later finds its folder gone, and ends at once."""
        deadline = asyncio.get_running_loop().time() + _FATE_SHOWS_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with contextlib.suppress(CouldNotAsk):
                handle = await self._backend.find_by_token(token)
                if handle is not None:
                    return handle
        return None

    async def _ended(self, handle: ExternalHandle, request: AllocationRequest, waiting: Waiting) -> Observation:
        began = asyncio.get_running_loop().time()
        while True:
            seen = (await self._backend.observe([handle]))[handle]
            waiting(seen.waiting)
            if seen.state in _OVER or (request.attempt_dir / VERDICT).exists():
                return seen
            waited_s = asyncio.get_running_loop().time() - began
            await asyncio.sleep(min(max(_LOOK_AGAIN_S, waited_s / 10), _LONGEST_PAUSE_S))

    async def _verdict(self, handle: ExternalHandle, request: AllocationRequest, seen: Observation) -> IsolationVerdict:
        deadline = asyncio.get_running_loop().time() + (_VERDICT_SHOWS_S if seen.state is Observed.COMPLETED else 0.0)
        while (found := _read(request.attempt_dir / VERDICT)) is None:
            if asyncio.get_running_loop().time() >= deadline:
                return await self._without_verdict(handle, seen)
            await asyncio.sleep(_LOOK_AGAIN_S)
        sentence = f"On {found['host']}: {found['sentence']}" if found["sentence"] else ""
        stopped = {name: bool(both[1]) for name, both in found["attacks"].items()}
        return IsolationVerdict(found["verified"] is True, sentence, stopped)

    async def _without_verdict(self, handle: ExternalHandle, seen: Observation) -> IsolationVerdict:
        """The reasons' own sentences are about sessions: here a machine, or the profile, is what does not fit."""
        tail = (await self._backend.diagnostics(handle)).log_tail.strip()
        why = f"Its log ends: {tail[-500:]}" if tail else "It left no log."
        told = f"The job that checks it ended without a result ({seen.backend_detail}). {why}"
        return IsolationVerdict(False, f"{told}\nTell your administrator, or choose another profile.")


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found: Any = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("version") == 1 else None


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent`; afterwards it is gone, and so is every folder above it that was made for it."""
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(parent)
    folder = parent / f"{_FOLDER}{secrets.token_hex(6)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else uses it by now
            for made in missing:
                made.rmdir()


def _sweep(parent: Path) -> None:
    """What a server left that was killed meanwhile. A proof that is still under way is younger."""
    for folder in parent.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _FORGOTTEN_AFTER_S:
                shutil.rmtree(folder)


def _jupyter_folders() -> list[str]:
    return [jupyter_config_dir(), jupyter_data_dir(), jupyter_runtime_dir()]
