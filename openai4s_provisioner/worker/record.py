"""Small records that must survive whoever writes them: whole or not at all, and durable before anybody is told."""

from __future__ import annotations

import json
import os
from typing import Any


def write_record(path: str, record: dict[str, Any]) -> None:
    """Whole or not at all, and durable when it returns. Raises OSError."""
    draft = f"{path}.part"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
