"""How long something that waits for its turn is left alone between two looks. Pure; it knows no workload and no clock.

Used by the control loop, and by whatever of a backend waits for a job of its own.
"""

from __future__ import annotations

_OF_THE_WAIT = 10.0  # who has waited so many times as long does not mind one pause more
_OF_WHAT_IS_LEFT = 20.0
_WHATEVER_IS_EXPECTED = 40.0  # an estimate that is always near, and always wrong, must not cost more than this


def waiting_pause_s(waited_s: float, starts_in_s: float | None, quick_s: float, slow_s: float) -> float:
    """Between two looks at something that waits for its turn: at least `quick_s`, at most `slow_s`.

    A look serves only the person who reads why it waits: that it runs is told by its worker, which dials. So a fresh
    one is looked at quickly (free machines take it at once, and what can never run is refused then), and later ones
    wait a tenth of what they have waited already. A start that is expected far ahead spares looks from the beginning;
    one that is near is looked at when it should have come.
    """
    pause = waited_s / _OF_THE_WAIT
    if starts_in_s is not None and starts_in_s > 0:
        pause = max(pause, starts_in_s / _OF_WHAT_IS_LEFT)
        pause = min(pause, max(starts_in_s, waited_s / _WHATEVER_IS_EXPECTED))
    return max(quick_s, min(pause, slow_s))
