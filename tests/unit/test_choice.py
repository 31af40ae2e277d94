"""What may be chosen for one session: never more than the profile allows, and always what it gives by itself."""

from __future__ import annotations

import pytest

from openai4s_provisioner.orchestration.choice import ResourceChoice, ResourceLimits, refusal

OPEN = {"walltime_s": 0, "gpus": 0, "memory_mb": 0, "cpus": 1}
BOUNDED = {"walltime_s": 3600, "gpus": 1, "memory_mb": 4096, "cpus": 2}


@pytest.mark.parametrize("own", [OPEN, BOUNDED])
def test_what_the_profile_gives_by_itself_can_always_be_chosen(own: dict[str, int]) -> None:
    assert refusal(ResourceChoice(**own), own, ResourceLimits(walltime_s=60, memory_mb=1, cpus=1, gpus=0), "p") is None


@pytest.mark.parametrize(
    ("chosen", "own", "limits", "expected"),
    [
        (ResourceChoice(walltime_s=59), OPEN, ResourceLimits(), "walltime_s = 59 is too little: ask for at least 60"),
        (ResourceChoice(walltime_s=0), BOUNDED, ResourceLimits(), "walltime_s = 0 is too little"),
        (ResourceChoice(memory_mb=9), OPEN, ResourceLimits(), None),
        (ResourceChoice(memory_mb=9), OPEN, ResourceLimits(memory_mb=8), "ask for at most 8 MB"),
        (ResourceChoice(gpus=1), OPEN, ResourceLimits(), "gpus = 1 is more than profile 'p' allows: ask for at most 0"),
        (ResourceChoice(cpus=3), BOUNDED, ResourceLimits(cpus=4), None),
    ],
)
def test_the_rest_is_judged_by_field_value_and_limit(
    chosen: ResourceChoice, own: dict[str, int], limits: ResourceLimits, expected: str | None
) -> None:
    told = refusal(chosen, own, limits, "p")
    assert told is None if expected is None else told is not None and expected in told
