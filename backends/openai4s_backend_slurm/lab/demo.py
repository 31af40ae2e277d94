"""`./dev demo --slurm`: JupyterLab with the kernel "GPU (cluster)", whose sessions are jobs of a throw-away cluster.

The cluster lives as long as JupyterLab does. Everything else lies below `.demo`, which `./dev` made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .accounts import Account
from .cluster import Cluster
from .shape import Shape

SITE = """\
# A site whose sessions are jobs of a Slurm cluster: two GPU nodes, one GPU for each session.
default_profile = "gpu"

[profiles.gpu]
backend = "slurm"
display_name = "GPU (cluster)"
partition = "gpu"
cpus = 1
memory_mb = 2000
gpus = 1
walltime_s = 3600
"""
KERNEL = "python3-gpu-session"
LISTEN = "127.0.0.1:21000-21999"  # nodes and server are one machine here


def demo_cluster() -> Cluster:
    """Of several accounts where that can be had, else all of it as this one."""
    folder = Path(tempfile.mkdtemp(prefix="o4s-lab-", dir="/tmp"))
    return Cluster(folder, Shape(one_user=None if os.geteuid() == 0 else Account.current()))


def site_environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """What Jupyter needs to know of the site; `cluster.toml` is written into `folder`."""
    site = folder / "cluster.toml"
    site.write_text(SITE)
    return {
        **cluster.client_environment(),
        "OPENAI4S_CLUSTER_TOML": str(site),
        "OPENAI4S_WORKER_LISTEN": LISTEN,
    }


def main() -> int:
    """`folder command...`: run the command, as a rule JupyterLab, beside a cluster."""
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    with demo_cluster() as cluster:
        environment = os.environ | site_environment(cluster, folder)
        install = ["-m", "openai4s_provisioner.jupyter.cli", "kernels", "install", "--profile", "gpu"]
        subprocess.run([sys.executable, *install, "--prefix", folder], env=environment, check=True)
        print(f"the cluster's queue: SLURM_CONF={cluster.layout.conf} squeue", flush=True)
        process = subprocess.Popen(command, env=environment)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # JupyterLab asks, and decides; the cluster outlives it
        signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
