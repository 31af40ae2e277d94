"""The bundled notebook in a session that is a job with a GPU says exactly what it says in an ordinary kernel.

What `./dev demo --slurm --check` runs: nbclient, a cluster without accounting, and nothing left afterwards.
"""

from __future__ import annotations

import os
import sys
import time

from checks.parts.place import install_session_kernel, private_place
from checks.parts.report import Report, run
from checks.session import nothing_left, with_nbclient
from openai4s_backend_slurm.lab.demo import KERNEL, demo_cluster, site_environment

_ENDED_S = 20.0


def main() -> int:
    return run("slurm-demo", _body)


def _body(report: Report) -> None:
    started = time.monotonic()
    with demo_cluster() as cluster, private_place() as place:
        report.figure("cluster up after", f"{time.monotonic() - started:.1f} s")
        os.environ.update(site_environment(cluster, place.root))
        report.say(f"installed {install_session_kernel(place, 'gpu')}")
        with_nbclient(report, place, KERNEL)
        deadline = time.monotonic() + _ENDED_S
        while (jobs := cluster.admin.jobs()) and time.monotonic() < deadline:
            time.sleep(0.1)
        report.expect(not jobs, f"no job is left in the queue {jobs or ''}".strip())
        ended = cluster.admin.jobs(are_over=True)
        report.expect({job["state"] for job in ended} == {"COMPLETED"}, f"its jobs ended as COMPLETED: {ended}")
        nothing_left(report, place)


if __name__ == "__main__":
    sys.exit(main())
