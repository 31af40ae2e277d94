"""The control plane's side of the gateway's door: who may register, who may resume, who is expected.

Called in the gateway's thread; answers are plain futures from the store's thread. Every refusal is the same None.
A store that cannot answer fails the future, which burns nothing (INV-7).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from .bootstrap import BadCredential, CredentialIssuer
from .models import Registration
from .steady_clock import steady_time
from .store import Store, StoreThread

_MIN_RESUME_KEY_BYTES = 32


class StoreFrontDesk:
    def __init__(self, store: StoreThread, issuer: CredentialIssuer, clock: Callable[[], float] = steady_time) -> None:
        self._store = store
        self._issuer = issuer
        self._clock = clock

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        """Verify, check the live epoch, burn, and keep the resume key, in one transaction. None: refuse."""
        now = self._clock()
        try:
            claims = self._issuer.verify(credential, now)
        except BadCredential:
            return _answer(None)
        if len(resume_key) < _MIN_RESUME_KEY_BYTES:
            return _answer(None)
        who = Registration(claims.workload_id, claims.allocation_id, claims.epoch, claims.rank)

        def burn(store: Store) -> Registration | None:
            return who if store.register_worker(who, claims.nonce, resume_key, host, now) else None

        return self._store.submit(burn)

    def resume_key(self, allocation_id: str, rank: int) -> Future[bytes | None]:
        """The key that a worker of a live allocation registered with."""
        return self._store.submit(Store.resume_key, allocation_id, rank)

    def is_expected(self, allocation_id: str, epoch: int) -> Future[bool]:
        """Whether this attempt is its workload's live one, and wanted."""
        return self._store.submit(Store.is_expected, allocation_id, epoch)


def _answer(value: Registration | None) -> Future[Registration | None]:
    future: Future[Registration | None] = Future()
    future.set_result(value)
    return future
