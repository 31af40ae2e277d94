"""What a site's administrator does to nodes and jobs, by Slurm's own commands. Starts and stops no daemon."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import LabError

if TYPE_CHECKING:
    from .cluster import Cluster

_FORMAT = "%A|%T|%j|%u|%N"
_GRANTED = re.compile(r"^\s*Nodes=(\S+) .*GRES=\S*\(IDX:([0-9,-]+)\)", re.MULTILINE)


class Administration:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def command(self, *argv: str) -> str:
        """As the administrator; its output. Raises LabError with Slurm's words when it is refused."""
        done = self._cluster.run(argv)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def node_down(self, node: str, reason: str = "taken out") -> None:
        self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")

    def node_drain(self, node: str, reason: str = "maintenance") -> None:
        """No further job starts there."""
        self.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def node_resume(self, node: str) -> None:
        """Back into service. It may have come back by itself: its daemon registers again, and then this is refused."""
        try:
            self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        except LabError:
            if node in self._out_of_service():
                raise

    def end_time(self, job: str, in_s: float = 1.0) -> None:
        """Let a job's time run out: Slurm looks at that every 30 seconds."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + in_s))
        self.command("scontrol", "update", f"JobId={job}", f"EndTime={when}")

    def requeue(self, job: str) -> None:
        self.command("scontrol", "requeue", job)

    def cancel(self, *jobs: str) -> None:
        self.command("scancel", *jobs)

    def jobs(self, *, are_over: bool = False) -> list[dict[str, str]]:
        """Every job the controller knows of; those that are over only when asked for."""
        every = ["-t", "all"] if are_over else []
        names = ("id", "state", "name", "user", "nodes")
        found = self.command("squeue", "-h", "-r", *every, "-o", _FORMAT)
        return [dict(zip(names, line.split("|"), strict=True)) for line in found.splitlines()]

    def state(self, job: str) -> str:
        """As long as the controller remembers it."""
        return next((one["state"] for one in self.jobs(are_over=True) if one["id"] == job), "")

    def node_of(self, job: str) -> str:
        return next(one["nodes"] for one in self.jobs() if one["id"] == job)

    def hosts_of(self, job: str) -> list[str]:
        """In the order of ranks."""
        return self._expanded(self.node_of(job))

    def gpus_of(self, job: str) -> dict[str, str]:
        """Which ones of each node Slurm granted, in its own words: ``{"g1": "0"}``."""
        told = self.command("scontrol", "--details", "show", "job", job)
        return {node: index for nodes, index in _GRANTED.findall(told) for node in self._expanded(nodes)}

    def preempt(self, node: str) -> str:
        """A job of somebody more important takes the whole node, as soon as it can; its id."""
        partition = "gpu" if node.removeprefix(self._cluster.layout.prefix).startswith("g") else "cpu"
        command = ["sbatch", "--parsable", "-p", partition, "-w", node, "--exclusive", "--job-name=important"]
        return self.command(*command, "--output=/dev/null", "--wrap=sleep 3600").strip()

    def occupy(self, node: str) -> str:
        """The same on an idle node, and once it has begun: whoever comes now has to wait."""
        job = self.preempt(node)
        self._cluster.wait(lambda: self.state(job) == "RUNNING", f"{node} to be taken")
        return job

    def occupy_gpu(self, node: str) -> str:
        """A job of somebody else holds one GPU of the node; its id."""
        command = ["sbatch", "--parsable", "-p", "gpu", "-w", node, "--gres=gpu:1", "--mem=100"]
        job = self.command(*command, "--output=/dev/null", "--wrap=sleep 3600").strip()
        self._cluster.wait(lambda: self.state(job) == "RUNNING", "a GPU to be taken")
        return job

    def clear(self) -> None:
        """No job is left in the queue, and every node is in service."""
        if jobs := self.jobs():
            self.cancel(*(job["id"] for job in jobs))
            self._cluster.wait(lambda: not self.jobs(), "the queue to be empty")
        for node in self._out_of_service():
            self.node_resume(node)

    def admit(self, *users: str) -> None:
        """With accounting, only users with an account may submit."""
        self._cluster.wait(lambda: self._admitted(users), f"the accounting to know {users}")

    def _admitted(self, users: Sequence[str]) -> bool:
        rights = "account=research qos=normal,interactive defaultqos=normal"
        self._cluster.run(["sacctmgr", "-iQ"], text_in="".join(f"add user {user} {rights}\n" for user in users))
        known = self._cluster.run(["scontrol", "-o", "show", "assoc_mgr", "flags=users"]).stdout
        return all(f"UserName={user}(" in known for user in users)

    def _expanded(self, nodes: str) -> list[str]:
        return self.command("scontrol", "show", "hostnames", nodes).split()

    def _out_of_service(self) -> list[str]:
        states = (line.split() for line in self.command("sinfo", "-hN", "-p", "all", "-o", "%N %T").splitlines())
        return [node for node, state in states if state.startswith(("down", "drain", "fail"))]
