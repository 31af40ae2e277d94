"""How moments and numbers of times are put for a person, and which numbers are worth a line. Pure."""

from __future__ import annotations

import time


def clock_time(at: float) -> str:
    """Of the day, here. `at`: seconds since the Unix epoch."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def is_round(count: int) -> bool:
    """1, 10, 100, ...: of what happens again and again, these are said and the others only counted."""
    return str(count).rstrip("0") == "1"
