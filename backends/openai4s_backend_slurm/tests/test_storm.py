"""Many submissions while the controller hangs at random moments: each lands exactly once, none twice, none is lost."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.lab import Cluster

from .homes import Home

FULL = "OPENAI4S_FULL" in os.environ
COUNT = 200 if FULL else 20
PROFILE = 'partition = "all"\ncpus = 2'
CLOCKS: dict[str, Any] = {"settle_s": 20.0, "deadline_s": 3, "call_deadline_s": 6}
LONGEST_HANG_S, LONGEST_BREATH_S = 8.0, 3.0


class Storm:
    """Hangs and wakes the controller by dice, until it is over."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow)
        self.hangs = 0

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _blow(self) -> None:
        while not self._over.wait(self._chance.uniform(0.0, LONGEST_BREATH_S)):
            with self._cluster.controller.hung():
                self.hangs += 1
                self._over.wait(self._chance.uniform(0.0, LONGEST_HANG_S))


@pytest.mark.timeout(3000)
def test_every_submission_lands_exactly_once(
    either_cluster: Cluster, ordinary_user: Any, figure: Callable[[str, object], None]
) -> None:
    cluster, seed = either_cluster, random.SystemRandom().randrange(10**6)
    figure("seed", seed)
    with Home(ordinary_user, cluster, PROFILE, limits=f"max_batches = {COUNT}", **CLOCKS) as home:
        process = home.python(Path(__file__).with_name("storm_program.py"), str(home.work), str(COUNT))
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", home.log()  # isolation is proven by now
            with Storm(cluster, seed) as storm:
                out, _ = process.communicate(timeout=2800)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        bad = "\n".join(line for line in out.splitlines() if line.split()[1:2] != ["COMPLETED"])
        told = f"seed {seed}, {storm.hangs} hangs\n{bad}\n{home.log()[-1500:]}"
        assert process.returncode == 0, told
        ran = Counter((home.work / "ran").read_text().split())
    figure("hangs of the controller", storm.hangs)
    assert set(ran.values()) == {1}, f"ran more than once: {ran.most_common(5)}; {told}"
    assert len(ran) == COUNT, told
    jobs = [job for job in cluster.admin.jobs(are_over=True) if int(job["id"]) > cluster.swept_up_to]
    names = Counter(job["name"] for job in jobs)
    figure("jobs seen", len(jobs))
    assert set(names.values()) == {1}, f"under one token: {names.most_common(5)}; {told}"
    assert len(jobs) - COUNT in (0, 1), f"{len(jobs)} jobs, of which one may be the proof of isolation; {told}"
    assert {job["state"] for job in jobs} == {"COMPLETED"}, told
