"""The control plane's side of the gateway's door: who may register, who may resume, who is expected.

Called in the gateway's thread; answers are plain futures from the store's thread. Every refusal is the same None to
whoever dials; our own side counts it, with its reason. A store that cannot answer fails the future, which burns
nothing (INV-7).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from .bootstrap import BadCredential, Claims, CredentialIssuer
from .models import Allocation, Desired, Registration
from .reasons import Reason
from .refusals import Refusal, Refusals
from .steady_clock import steady_time
from .store import Store, StoreThread

REFUSED = "worker_refused"  # the kind of event
_ACTOR = "front desk"
_MIN_RESUME_KEY_BYTES = 32


class StoreFrontDesk:
    def __init__(self, store: StoreThread, issuer: CredentialIssuer, clock: Callable[[], float] = steady_time) -> None:
        self._store = store
        self._issuer = issuer
        self._clock = clock
        self._refusals = Refusals()

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        """Verify, check the live epoch, burn, and keep the resume key, in one transaction. None: refuse."""
        now = self._clock()
        try:
            claims = self._issuer.verify(credential, now)
        except BadCredential as error:
            return self._turn_away(Reason.AUTHENTICATION_FAILED, str(error), error.claims, now)
        if len(resume_key) < _MIN_RESUME_KEY_BYTES:
            return self._turn_away(Reason.AUTHENTICATION_FAILED, "its resume key is too short", claims, now)
        who = Registration(claims.workload_id, claims.allocation_id, claims.epoch, claims.rank)

        def burn(store: Store) -> Registration | None:
            if store.register_worker(who, claims.nonce, resume_key, host, now):
                return who
            reason, why = _why_not(store, who)
            _write_down(store, self._refusals.note(reason, why, claims, now))
            return None

        return self._store.submit(burn)

    def resume_key(self, allocation_id: str, rank: int) -> Future[bytes | None]:
        """The key that a worker of a live allocation registered with."""
        return self._store.submit(Store.resume_key, allocation_id, rank)

    def is_expected(self, allocation_id: str, epoch: int) -> Future[bool]:
        """Whether this attempt is its workload's live one, and wanted."""
        return self._store.submit(Store.is_expected, allocation_id, epoch)

    def turned_away(self, allocation: Allocation) -> str:
        """A sentence about refusals that may be why this attempt's workers did not come; "" for none."""
        return self._refusals.told(allocation.allocation_id, allocation.granted_at or allocation.created_at)

    def _turn_away(self, reason: Reason, why: str, claims: Claims | None, now: float) -> Future[Registration | None]:
        refusal = self._refusals.note(reason, why, claims, now)
        if refusal.is_to_be_recorded:
            self._store.submit(_write_down, refusal)
        future: Future[Registration | None] = Future()
        future.set_result(None)
        return future


def _write_down(store: Store, refusal: Refusal) -> None:
    if refusal.is_to_be_recorded:
        workload_id = None if refusal.claims is None else refusal.claims.workload_id
        store.record(workload_id, REFUSED, _ACTOR, refusal.reason, refusal.sentence, refusal.last_at)


def _why_not(store: Store, who: Registration) -> tuple[Reason, str]:
    """Of a genuine credential that was not taken."""
    allocation, workload = store.allocation(who.allocation_id), store.workload(who.workload_id)
    if allocation is None or workload is None or allocation.workload_id != workload.workload_id:
        return Reason.AUTHENTICATION_FAILED, "this state knows no such attempt"
    if who.epoch != workload.epoch:
        return Reason.STALE_EPOCH, f"it belongs to an earlier attempt; the session is at attempt {workload.epoch}"
    if allocation.phase.is_terminal:
        return Reason.STALE_EPOCH, "its attempt is over"
    if workload.desired is Desired.STOPPED:
        return workload.reason or Reason.USER_CANCELLED, "its session is being stopped"
    return Reason.AUTHENTICATION_FAILED, "its credential was used before"
