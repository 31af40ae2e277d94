"""The time limit of an allocation ends it, and can be moved while it runs, within what the profile allows."""

from __future__ import annotations

import dataclasses
import time

import pytest

from openai4s_provisioner.orchestration.errors import Refused
from openai4s_provisioner.orchestration.ports import (
    AllocationBackend,
    Observed,
    WalltimeExtender,
)
from openai4s_provisioner.orchestration.reasons import Reason
from openai4s_provisioner.testing.backend_contract import with_backend
from openai4s_provisioner.testing.backend_lab import BackendLab


def test_the_time_limit_ends_the_tree_and_is_the_reason(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        request = backend_lab.request("family", dataclasses.replace(backend_lab.profile, walltime_s=1))
        handle = await backend_lab.submitted(backend, request, processes=2)
        over = await backend_lab.ended(backend, handle)
        assert (over.state, over.reason) == (Observed.FAILED, Reason.TIME_LIMIT_EXCEEDED)
        assert not backend_lab.alive(request)

    with_backend(backend_lab, scenario)


def test_an_extension_moves_the_end_and_only_within_the_profile(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        assert isinstance(backend, WalltimeExtender)
        profile = dataclasses.replace(backend_lab.profile, walltime_s=2, max_walltime_s=5)
        assert backend.can_extend(profile)
        request = backend_lab.request("family", profile)
        handle = await backend_lab.submitted(backend, request, processes=2)
        first = (await backend.observe([handle]))[handle].ends_at
        assert first is not None
        assert await backend.extend(handle, profile, 2) == first + 2
        assert (await backend.observe([handle]))[handle].ends_at == first + 2
        with pytest.raises(Refused, match="at most 5 s in all, so this one can be extended by 1 s") as refused:
            await backend.extend(handle, profile, 2)
        assert refused.value.reason is Reason.POLICY_REJECTED
        over = await backend_lab.ended(backend, handle)
        assert over.reason is Reason.TIME_LIMIT_EXCEEDED
        assert time.time() >= first + 2
        with pytest.raises(Refused, match="ended already"):
            await backend.extend(handle, profile, 1)

    with_backend(backend_lab, scenario)


def test_only_a_session_with_a_time_limit_can_be_extended(backend_lab: BackendLab) -> None:
    async def scenario(backend: AllocationBackend) -> None:
        assert isinstance(backend, WalltimeExtender)
        for limits in ((0, 0), (0, 10), (5, 0), (5, 5)):
            fixed = dataclasses.replace(backend_lab.profile, walltime_s=limits[0], max_walltime_s=limits[1])
            assert not backend.can_extend(fixed), limits
        handle = await backend_lab.submitted(backend, backend_lab.request())
        assert (await backend.observe([handle]))[handle].ends_at is None
        with pytest.raises(Refused, match="no time limit"):
            await backend.extend(handle, backend_lab.profile, 60)

    with_backend(backend_lab, scenario)
