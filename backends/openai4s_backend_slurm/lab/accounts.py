"""Which account a daemon or a client runs as, and how to run something as it. Makes and removes no accounts."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def named(cls, name: str) -> Account:
        entry = pwd.getpwnam(name)
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)

    @classmethod
    def current(cls) -> Account:
        return cls.named(pwd.getpwuid(os.geteuid()).pw_name)

    def popen_options(self) -> dict[str, Any]:
        """For subprocess: become this account, unless we are it already."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}
