"""Front desks and an observer for tests of the gateway, each named after how it behaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from ..gateway.desk import LinkState
from ..orchestration.models import Registration

_T = TypeVar("_T")


def answered(value: _T) -> Future[_T]:
    future: Future[_T] = Future()
    future.set_result(value)
    return future


class DeskThatAdmitsOnce:
    """What a real one does: each credential is good once, and the key it came with is kept."""

    def __init__(self, **credentials: Registration) -> None:
        self.good = dict(credentials)
        self.keys: dict[tuple[str, int], bytes] = {}
        self.asked: list[str] = []
        self.expected = True

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        self.asked.append(credential)
        registration = self.good.pop(credential, None)
        if registration is not None:
            self.keys[registration.allocation_id, registration.rank] = resume_key
        return answered(registration)

    def resume_key(self, allocation_id: str, rank: int) -> Future[bytes | None]:
        return answered(self.keys.get((allocation_id, rank)))

    def is_expected(self, allocation_id: str, epoch: int) -> Future[bool]:
        return answered(self.expected)


class DeskThatAnswersLate(DeskThatAdmitsOnce):
    """Burns at once, but its answer comes when the test says so."""

    def __init__(self, **credentials: Registration) -> None:
        super().__init__(**credentials)
        self._late: list[tuple[Future[Registration | None], Registration | None]] = []

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        later: Future[Registration | None] = Future()
        self._late.append((later, super().register(credential, resume_key, host).result()))
        return later

    def answer_now(self) -> None:
        for later, verdict in self._late:
            later.set_result(verdict)
        self._late.clear()


class DeskThatCannotAsk(DeskThatAdmitsOnce):
    """Its store does not answer while `is_down`; nothing is burned."""

    is_down = True

    def register(self, credential: str, resume_key: bytes, host: str) -> Future[Registration | None]:
        return self._failed() if self.is_down else super().register(credential, resume_key, host)

    def is_expected(self, allocation_id: str, epoch: int) -> Future[bool]:
        return self._failed() if self.is_down else super().is_expected(allocation_id, epoch)

    def _failed(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(OSError("the store does not answer"))
        return future


class Told(NamedTuple):
    what: str
    allocation_id: str
    rank: int
    detail: Any


class ObserverThatRemembers:
    """Keeps everything it is told, and lets a test wait for something."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._news = threading.Condition()

    def worker_registered(self, registration: Registration, host: str, generation: str) -> None:
        self._note(Told("registered", registration.allocation_id, registration.rank, generation))

    def worker_message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None:
        self._note(Told("message", allocation_id, rank, message))

    def worker_link(self, allocation_id: str, rank: int, state: LinkState) -> None:
        self._note(Told("link", allocation_id, rank, state))

    def wait_for(self, is_it: Callable[[Told], bool], deadline_s: float = 10.0) -> Told:
        """The first that `is_it`, told already or soon. Raises AssertionError with all that was told instead."""
        with self._news:
            if not self._news.wait_for(lambda: any(map(is_it, self.told)), deadline_s):
                raise AssertionError(f"not told within {deadline_s:g} s; told: {self.told}")
            return next(told for told in self.told if is_it(told))

    def link_states(self) -> list[LinkState]:
        return [told.detail for told in self.told if told.what == "link"]

    def messages(self, kind: str) -> list[Mapping[str, Any]]:
        return [told.detail for told in self.told if told.what == "message" and told.detail.get("type") == kind]

    def _note(self, told: Told) -> None:
        with self._news:
            self.told.append(told)
            self._news.notify_all()
