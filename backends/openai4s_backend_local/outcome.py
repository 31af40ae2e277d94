"""One table from what a receipt and the process table say to what the core understands. Pure.

Every word the shim can write has its line; a word it cannot write has a stated outcome too.
"""

from __future__ import annotations

import signal

from openai4s_provisioner.orchestration.ports import Observation, Observed
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.worker.exit_codes import ExitCode

from . import shim
from .process_tree import Life, Standing
from .receipts import Ended, Exit, Receipt

_EXIT_CODES: dict[int | None, tuple[Observed, Reason | None]] = {
    ExitCode.ENDED: (Observed.COMPLETED, None),
    ExitCode.BAD_USAGE: (Observed.FAILED, Reason.BOOTSTRAP_FAILED),
    ExitCode.BAD_ATTEMPT: (Observed.FAILED, Reason.BOOTSTRAP_FAILED),
    ExitCode.NEVER_REGISTERED: (Observed.FAILED, Reason.WORKER_REGISTRATION_TIMEOUT),
    ExitCode.SERVER_GONE: (Observed.FAILED, Reason.SERVER_GONE),
    ExitCode.UNRECORDED: (Observed.FAILED, Reason.WORKER_LOST),
}
_BY_ITSELF = (Observed.FAILED, Reason.WORKER_LOST)  # a signal, or any other exit code
_WORDS: dict[str, tuple[Observed, Reason | None]] = {
    shim.CANCELLED: (Observed.CANCELLED, None),  # by us; the core knows why it asked
    shim.TERMINATED: (Observed.CANCELLED, Reason.ADMIN_CANCELLED),  # SIGTERM that we did not send
    shim.TIME_LIMIT: (Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED),
    shim.NOT_STARTED: (Observed.FAILED, Reason.BOOTSTRAP_FAILED),
}


def launching() -> Observation:
    return Observation(Observed.PENDING, waiting="the worker's process is being started")


def gone(detail: str) -> Observation:
    return Observation(Observed.GONE, backend_detail=detail)


def unknown(detail: str) -> Observation:
    return Observation(Observed.UNKNOWN, backend_detail=detail)


def observation(receipt: Receipt, standing: Standing) -> Observation:
    """Of an allocation that was started. `ended` in the receipt is final, whatever else is seen."""
    if receipt.started is None:
        raise ValueError(f"{receipt.token} was never started")
    hosts = (receipt.started.host,)
    if receipt.ended is not None:
        return _ended(receipt.ended, hosts)
    if standing.life is Life.ANOTHER_HOST:
        return Observation(Observed.UNKNOWN, backend_detail=f"it runs on host {hosts[0]}; ask there", hosts=hosts)
    if standing.life is Life.EARLIER_BOOT:
        return Observation(Observed.GONE, backend_detail="this machine was restarted since", hosts=hosts)
    if standing.life is Life.NOTHING:
        return _ended_unseen(receipt, hosts)
    state = Observed.ENDING if receipt.cancel_asked else Observed.RUNNING
    detail = _of_the_living(receipt, standing)
    return Observation(state, backend_detail=detail, hosts=hosts, ends_at=receipt.ends_at)


def _ended(ended: Ended, hosts: tuple[str, ...]) -> Observation:
    state, reason = _of_exit(ended.exit) if ended.how == shim.EXITED else _WORDS.get(ended.how, _BY_ITSELF)
    detail = "; ".join(part for part in (ended.how, _exit_text(ended.exit), ended.detail) if part)
    return Observation(state, reason, backend_detail=detail, exit_code=ended.exit.exit_code, hosts=hosts)


def _ended_unseen(receipt: Receipt, hosts: tuple[str, ...]) -> Observation:
    """The shim was killed before it could write the end. What it had written of the worker still counts."""
    detail = "the allocation's leading process was killed"
    if receipt.cancel_asked:
        return Observation(Observed.CANCELLED, backend_detail=detail, hosts=hosts)
    if receipt.worker is None:
        return Observation(Observed.FAILED, Reason.WORKER_LOST, backend_detail=detail, hosts=hosts)
    state, reason = _of_exit(receipt.worker)
    detail = f"{_exit_text(receipt.worker)}; later {detail}"
    return Observation(state, reason, backend_detail=detail, exit_code=receipt.worker.exit_code, hosts=hosts)


def _of_exit(exit_: Exit) -> tuple[Observed, Reason | None]:
    return _BY_ITSELF if exit_.signal is not None else _EXIT_CODES.get(exit_.exit_code, _BY_ITSELF)


def _of_the_living(receipt: Receipt, standing: Standing) -> str:
    parts = []
    if standing.leader is not None:
        parts.append(f"process {standing.leader.pid}")
    if receipt.worker is not None:
        parts.append(f"the worker ended ({_exit_text(receipt.worker)}), descendants live on")
    if standing.life is Life.LEADERLESS:
        pids = ", ".join(str(process.pid) for process in standing.survivors[:10])
        parts.append(f"the leading process was killed, {len(standing.survivors)} of its processes live on: {pids}")
    return "; ".join(parts)


def _exit_text(exit_: Exit) -> str:
    if exit_.signal is not None:
        return f"signal {exit_.signal} ({signal.strsignal(exit_.signal)})"
    return "" if exit_.exit_code is None else f"exit code {exit_.exit_code}"
