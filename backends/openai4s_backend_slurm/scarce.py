"""What a proof of isolation does not ask for, because others queue for it; and which places do not take such a job.

Some sites refuse a job without devices in a partition of theirs, by a rule of their own. That is known by the type of
the refusal, and remembered for the place: whatever of a profile says where its jobs go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from openai4s_provisioner.orchestration.models import ResourceProfile
from openai4s_provisioner.orchestration.private_folder import prepare_folder, read_private, replace_private

from .profiles import read_profile

_SCARCE = frozenset({"gpu_type", "gres", "licenses", "exclusive"})
_PLACE = ("partition", "qos", "account", "constraint", "reservation", "nodelist", "exclude", "sbatch_options")
_LARGEST_BYTES = 1 << 16
_KEPT = 64


def without_scarce(profile: ResourceProfile) -> ResourceProfile:
    options = {key: value for key, value in profile.backend_options.items() if key not in _SCARCE}
    return replace(profile, gpus=0, backend_options=options)


def place_of(profile: ResourceProfile) -> str:
    """Where jobs of the profile go, as one digest."""
    site = asdict(read_profile(profile))
    return hashlib.sha256(json.dumps([site[name] for name in _PLACE]).encode()).hexdigest()


class RefusingPlaces:
    """Kept in the state folder. What cannot be read is not known. Blocks."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def know(self, place: str) -> bool:
        return place in self._places()

    def learn(self, place: str) -> None:
        newest = [place, *(each for each in self._places() if each != place)][:_KEPT]
        prepare_folder(self._record.parent.parent)
        prepare_folder(self._record.parent)
        replace_private(self._record, json.dumps({"version": 1, "places": newest}).encode())

    def _places(self) -> Sequence[str]:
        try:
            content: Any = json.loads(read_private(self._record, _LARGEST_BYTES))
            return [str(place) for place in content["places"]]
        except Exception:
            return []
