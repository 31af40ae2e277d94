"""Sends one job at most once for each token (INV-8), from a thread that may wait.

The submission holds the token's lock, which the command inherits, so that nobody takes one under way for one that never
was. A refusal counts only when no job is found under the token; whatever is not certain is Unknown.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle
from openai4s_provisioner.orchestration.ports import (
    AllocationRequest,
    Created,
    Existing,
    Rejected,
    SubmitResult,
    Unknown,
)
from openai4s_provisioner.orchestration.reasons import Reason

from . import parse, script, wording
from .broker import Absent, Answer, Broker, BrokerError, Denied, NotStarted, Refused
from .lookup import Lookup, handle_of
from .places import Places
from .profiles import SlurmProfile, read_profile

_STEWARD = Path(__file__).with_name("steward.py")
_LOOK_AGAIN_S = 0.05
_LOCK_WAIT_S = 20.0


class Submitter:
    def __init__(self, broker: Broker, lookup: Lookup, places: Places, cluster: str) -> None:
        self._broker = broker
        self._lookup = lookup
        self._places = places
        self._cluster = cluster

    def submit(self, request: AllocationRequest) -> SubmitResult:
        if not script.is_token(request.token):
            return Rejected(Reason.INVALID_SPEC, f"The submission token {request.token!r} cannot name a job.")
        site = read_profile(request.profile)
        deadline = time.monotonic() + _LOCK_WAIT_S
        try:
            while True:
                with self._places.submitting(request.token) as lock:
                    if lock is not None:
                        return self._once(request, site, lock)
                if time.monotonic() >= deadline:
                    return Unknown(request.token, "another process has been submitting it for too long")
                time.sleep(_LOOK_AGAIN_S)
        except CouldNotAsk as error:
            return Unknown(request.token, str(error))
        except OSError as error:  # before anything was sent
            sentence = f"The job's files cannot be written ({error.filename}: {error.strerror}). Make that usable."
            return Rejected(Reason.BACKEND_UNAVAILABLE, sentence, str(error))

    def _once(self, request: AllocationRequest, site: SlurmProfile, lock: int) -> SubmitResult:
        try:
            found = self._lookup.find(request.token)
        except CouldNotAsk as error:
            return Unknown(request.token, str(error), was_sent=False)
        if found is not None:
            return Existing(found)
        job = self._write(request, site)
        try:
            answer = self._send(job, lock)
        except (Refused, Denied) as error:
            return self._refused(request.token, error)
        except Absent as error:
            sentence = f"The cluster's commands cannot be used here: {error}. Ask your administrator about them."
            return Rejected(Reason.BACKEND_UNAVAILABLE, sentence, f"{error}\n{error.stderr}".strip())
        except NotStarted as error:
            return Unknown(request.token, str(error), was_sent=False)
        except BrokerError as error:
            return Unknown(request.token, f"{error}\n{error.stderr}".strip())
        return self._landed(request.token, answer)

    def _send(self, job: script.Job, lock: int) -> Answer:
        """A site's command may not know the short form; then the plain one is sent, once, if nothing has landed."""
        try:
            return self._broker.run(self._argv(job), keep_fds=(lock,))
        except Refused as error:
            if wording.unknown_option(error.stderr) != "--parsable" or self._lookup.alive(job.token):
                raise
        return self._broker.run(self._argv(job, parsable=False), keep_fds=(lock,))

    def _argv(self, job: script.Job, parsable: bool = True) -> list[str]:
        argv = script.submission(job, parsable)
        return [argv[0], *([f"--clusters={self._cluster}"] if self._cluster else []), *argv[1:]]

    def _landed(self, token: str, answer: Answer) -> SubmitResult:
        name = parse.submitted(answer.stdout)
        if name is not None:
            if self._cluster and not name.cluster:
                name = replace(name, cluster=self._cluster)
            return Created(handle_of(name, token))
        printed = wording.last_line(answer.stdout) or "nothing"
        found = self._found(token)
        return Created(found) if found else Unknown(token, f"the submission printed no number of a job: {printed}")

    def _refused(self, token: str, error: BrokerError) -> SubmitResult:
        """Some commands complain although the job has landed: what is found counts."""
        try:
            alive = self._lookup.alive(token)
        except CouldNotAsk as unsure:
            return Unknown(token, f"{error}; {unsure}")
        if alive:
            return Created(alive[0])
        reason, sentence = wording.refusal_of(error.stderr or error.stdout)
        said = (error.stderr or error.stdout).strip()
        return Rejected(reason, f"{sentence}. {wording.remedy_of(error.stderr)}.", said)

    def _found(self, token: str) -> ExternalHandle | None:
        try:
            return self._lookup.find(token)
        except CouldNotAsk:
            return None

    def _write(self, request: AllocationRequest, site: SlurmProfile) -> script.Job:
        """The script and what it needs, beside the attempt. Raises OSError."""
        self._places.sweep()
        self._places.remember(request.token, request.attempt_dir)
        bundle, *arguments = request.program
        job = script.Job(
            token=request.token,
            profile=request.profile,
            site=site,
            folder=site.on_node(str(request.attempt_dir)),
            python=site.python or sys.executable,
            program=(site.on_node(bundle), *map(site.on_node, arguments)),
            script=str(request.attempt_dir / script.SCRIPT),
        )
        shutil.copyfile(_STEWARD, request.attempt_dir / script.STEWARD)
        for stale in (script.RECORD, script.STARTED):
            (request.attempt_dir / stale).unlink(missing_ok=True)
        path = request.attempt_dir / script.SCRIPT
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(script.script(job)))  # a path need not be text
        return job
