"""The worker's own log: a private file in the attempt's folder. Nothing secret is ever written to it."""

from __future__ import annotations

import logging
import os


def log_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    handler = logging.StreamHandler(os.fdopen(descriptor, "w", encoding="utf-8"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
