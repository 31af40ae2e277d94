"""What is replaced several times in a row is covered in the end; what stays bare is told."""

from __future__ import annotations

import pytest

from openai4s_provisioner.sandbox.covers import Cover, CoveredPlace
from openai4s_provisioner.transport.loop import Loop
from openai4s_provisioner.worker import cover_watch
from openai4s_provisioner.worker.cover_watch import CoverWatch

SHADOW = CoveredPlace("/etc/shadow", "/etc/shadow", next(iter(Cover)))


@pytest.mark.parametrize(("replaced", "told"), [(1, []), (4, []), (1000, [SHADOW])])
def test_replaced_again_while_it_is_covered(monkeypatch: pytest.MonkeyPatch, replaced: int, told: list[object]) -> None:
    left = [replaced]

    def cover(pids: object, places: object) -> bool:
        left[0] -= 1
        return True

    monkeypatch.setattr(cover_watch, "uncovered", lambda init, places: [SHADOW] if left[0] > 0 else [])
    monkeypatch.setattr(cover_watch, "cover_again", cover)
    bare: list[object] = []
    loop = Loop()
    watch = CoverWatch(loop, [SHADOW], 1, 1, bare.append)
    watch._cover()
    assert bare == told
    loop.close()
