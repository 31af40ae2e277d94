"""How long things may take: at full length (OPENAI4S_FULL) with the product's own clocks, otherwise with short ones.

The daemons are real all the same.
"""

from __future__ import annotations

import os
from typing import Any

FULL = "OPENAI4S_FULL" in os.environ
CLOCKS: dict[str, Any] = {"period_s": 5.0, "settle_s": 60.0, "call_deadline_s": 30, "deadline_s": 20} if FULL else {}
ONE_POLL_S = 10.0 + (5.0 if FULL else 0.5)  # the period, and what a busy machine may need for one look
DEBOUNCE_S = 60.0 if FULL else 3.0  # before what is found nowhere counts as lost
A_WHILE_S = 120.0 if FULL else 40.0
