"""Finds jobs: by token in the queue, then in accounting, then in what the job itself wrote down.

"Nowhere" is answered only when the queue was really asked. A number alone is never believed: the name must be ours,
because numbers are used again. It remembers for a while that a cluster has no accounting.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence

from openai4s_provisioner.orchestration.errors import CouldNotAsk
from openai4s_provisioner.orchestration.models import ExternalHandle

from . import parse, states, wording
from .broker import Absent, Broker, BrokerError, Failed, Refused
from .parse import AccountingRow, JobName, QueueRow
from .places import Places
from .script import is_token, job_name

NAME = "slurm"
_HANDLE = re.compile(r"(\d{1,10})(?:@([A-Za-z0-9][A-Za-z0-9_.-]*))?/([A-Za-z0-9._-]{1,128})")
_NO_ACCOUNTING_FOR_S = 600.0
_ACCOUNTING_SINCE = "now-30days"
_ACCOUNTING_BATCH = 200
_GRANTED_HOLDS_S = 60.0


def handle_of(name: JobName, token: str) -> ExternalHandle:
    """Number, cluster and token: each is needed to ask for the job and to know it again."""
    place = f"@{name.cluster}" if name.cluster else ""
    return ExternalHandle(NAME, f"{name.number}{place}/{token}")


def read_handle(handle: ExternalHandle) -> tuple[JobName, str] | None:
    """(job, token); None for what is no handle of ours."""
    found = _HANDLE.fullmatch(handle.value) if handle.backend == NAME else None
    return (JobName(int(found[1]), found[2] or ""), found[3]) if found else None


def on(cluster: str) -> list[str]:
    """A cluster is named only where it is known: to ask "all" fails wherever there is no accounting."""
    return [f"--clusters={cluster}"] if cluster else []


class Lookup:
    def __init__(self, broker: Broker, places: Places, cluster: str) -> None:
        self._broker = broker
        self._places = places
        self._cluster = cluster
        self._no_accounting_until = 0.0
        self._granted: dict[tuple[str, str], tuple[float, int | None]] = {}
        self._guard = threading.Lock()

    def find(self, token: str) -> ExternalHandle | None:
        """A job under this token, over or not; None is a promise. Raises CouldNotAsk."""
        if not is_token(token):
            return None
        rows = self._queue_of(token)
        rows.sort(key=lambda row: (states.end_state(row.state) is not None, row.number))
        if rows:
            return handle_of(JobName(rows[0].number, self._cluster), token)
        number = self._in_accounting(token) or self._places.started_as(token)
        return handle_of(JobName(number, self._cluster), token) if number else None

    def alive(self, token: str) -> list[ExternalHandle]:
        """Every job under this token that is not over. Raises CouldNotAsk."""
        rows = [row for row in self._queue_of(token) if states.end_state(row.state) is None]
        return [handle_of(JobName(row.number, self._cluster), token) for row in sorted(rows, key=lambda r: r.number)]

    def state_of(self, token: str, number: int) -> str:
        """Of one job, asked now; "" when the queue does not have it. Raises CouldNotAsk."""
        return next((row.state for row in self._queue_of(token) if row.number == number), "")

    def queue(self, cluster: str) -> list[QueueRow]:
        """All jobs of this account that the controller still has, also those that are over. Raises BrokerError."""
        return self._ask_queue(cluster)

    def accounting(self, jobs: Mapping[int, str], cluster: str) -> dict[int, AccountingRow] | None:
        """What accounting has of these (number -> token). None: there is no accounting, or it does not answer."""
        if not self.has_accounting:
            return None
        found: dict[int, AccountingRow] = {}
        numbers = sorted(jobs)
        for start in range(0, len(numbers), _ACCOUNTING_BATCH):
            wanted = ",".join(map(str, numbers[start : start + _ACCOUNTING_BATCH]))
            rows = self._ask_accounting([f"--jobs={wanted}", *on(cluster)])
            if rows is None:
                return None
            for row in rows:
                if row.number in jobs and row.name == job_name(jobs[row.number]):
                    found[row.number] = row
        return found

    @property
    def has_accounting(self) -> bool:
        return time.monotonic() >= self._no_accounting_until

    def exit_code(self, name: JobName) -> states.Exit | None:
        """As the controller still has it."""
        try:
            answer = self._broker.run(["scontrol", "--oneliner", *on(name.cluster), "show", "job", str(name.number)])
        except BrokerError:
            return None
        return parse.exit_in_details(answer.stdout, name.number)

    def nodes_granted(self, partition: str, cluster: str) -> int | None:
        """The most machines that one job may have there, up or down; None when that is not known. From memory soon."""
        with self._guard:
            asked_at, most = self._granted.get((partition, cluster), (-_GRANTED_HOLDS_S, None))
        if time.monotonic() - asked_at >= _GRANTED_HOLDS_S:
            argv = ["scontrol", "--all", "--oneliner", *on(cluster), "show", "partition", partition]
            try:
                most = parse.nodes_granted(self._broker.run(argv).stdout)
            except BrokerError:
                most = None
            with self._guard:
                self._granted[partition, cluster] = (time.monotonic(), most)
        return most

    def _queue_of(self, token: str) -> list[QueueRow]:
        name = job_name(token)
        try:
            rows = self._ask_queue(self._cluster, f"--name={name}")
        except BrokerError as error:
            raise CouldNotAsk(f"the cluster's queue could not be asked: {error}") from error
        return [row for row in rows if row.name == name]

    def _ask_queue(self, cluster: str, *which: str) -> list[QueueRow]:
        """With its heading: without it, an empty queue looks like a site's command that has swallowed the answer.

        Without --all a job in a partition that the site hides is as good as gone, even for its owner.
        """
        argv = ["squeue", "--all", "--states=all", f"--format={parse.QUEUE_FORMAT}", *on(cluster)]
        answer = self._broker.run([*argv, f"--user={os.getuid()}", *which])
        if not parse.is_queue(answer.stdout):
            said = wording.last_line(answer.stderr) or wording.last_line(answer.stdout) or "nothing"
            raise Failed(f"squeue printed no list of jobs, but: {said[:200]}", answer.stdout, answer.stderr, 0)
        return parse.queue_rows(answer.stdout)

    def _in_accounting(self, token: str) -> int | None:
        """It lags, and it may be away: what it does not have says nothing."""
        if not self.has_accounting:
            return None
        name = job_name(token)
        rows = self._ask_accounting([f"--name={name}", f"--starttime={_ACCOUNTING_SINCE}", *on(self._cluster)])
        return next((row.number for row in rows or () if row.name == name), None)

    def _ask_accounting(self, which: Sequence[str]) -> list[AccountingRow] | None:
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", f"--user={os.getuid()}"]
        try:
            answer = self._broker.run([*argv, f"--format={parse.ACCOUNTING_FORMAT}", *which])
        except (Refused, Absent):  # there is none here
            with self._guard:
                self._no_accounting_until = time.monotonic() + _NO_ACCOUNTING_FOR_S
            return None
        except BrokerError:
            return None
        return parse.accounting_rows(answer.stdout)
