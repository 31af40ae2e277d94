"""Keeps what a sandbox hides or protects covered for as long as it runs.

A hint from the file system comes within a millisecond; a look every second finds what no hint told of, such as a
change by another machine of a shared folder. What cannot be covered again is told, so that the session can be ended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Callable

from ..sandbox.covers import CoveredPlace, ReplacementNotice, cover_again, uncovered
from ..transport.loop import Loop, Timer
from .process_tree import descendants_of

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_TRIES = 5  # a program that replaces files, such as useradd, often does so several times within milliseconds


class CoverWatch:
    """`init`: the sandbox's first process; `sandbox`: the one that all in it descend from. `laid_bare` gets a place
    that stays uncovered."""

    def __init__(
        self,
        loop: Loop,
        places: Sequence[CoveredPlace],
        init: int,
        sandbox: int,
        laid_bare: Callable[[CoveredPlace], None],
    ) -> None:
        self._loop = loop
        self._places = places
        self._init = init
        self._sandbox = sandbox
        self._laid_bare = laid_bare
        self._timer: Timer | None = None
        self._notice: ReplacementNotice | None = None

    def start(self) -> None:
        if not self._places:
            return
        self._notice = ReplacementNotice(os.path.dirname(each.source) for each in self._places)
        if self._notice.fd >= 0:
            self._loop.watch(self._notice.fd, readable=self._hinted)
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._notice is not None:
            if self._notice.fd >= 0:
                self._loop.unwatch(self._notice.fd)
            self._notice.close()
            self._notice = None

    def _hinted(self) -> None:
        if self._notice is not None:
            self._notice.drain()
        self._cover()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)
        self._cover()

    def _cover(self) -> None:
        bare = uncovered(self._init, self._places)
        for _ in range(_TRIES):
            if not bare:
                return
            _log.info("covering again what was replaced outside: %s", ", ".join(each.place for each in bare))
            inside = (each.pid for each in descendants_of(self._sandbox))  # may have made namespaces of their own
            cover_again([self._init, *inside], bare)
            bare = uncovered(self._init, bare)
        if bare:
            self._laid_bare(bare[0])
