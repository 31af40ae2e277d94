"""The text of a cluster's configuration files, from its shape. Pure: writes nothing and asks the machine nothing."""

from __future__ import annotations

from collections.abc import Mapping

from .shape import GPUS_EACH, Layout, Ports, Shape

CLUSTER = "lab"
DATABASE, DATABASE_USER, DATABASE_PASSWORD = "slurm_acct", "slurm", "throw-away"
CPUS, MEMORY_MB = 8, 4000  # pretended: several times what the machine may have


def slurm_conf(shape: Shape, layout: Layout, ports: Ports, host: str, owners: tuple[str, str], address: str) -> str:
    """`owners`: the accounts of the controller and of the nodes. `address`: where the controller listens."""
    lines = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{host}({address})",
        "SlurmctldPort": str(ports.controller),
        "SlurmUser": owners[0],
        "SlurmdUser": owners[1],
        "AuthType": "auth/munge",
        # A requeued job waits for one second more than a credential lives.
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        "CredType": "cred/munge",
        **_places(layout),
        **_scheduling(),
        **_clocks(),
        "ProctrackType": "proctrack/cgroup" if shape.cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if shape.cgroups else "task/none",
        **_accounting(shape, layout, ports),
        **shape.settings,
    }
    settings = "".join(f"{name}={value}\n" for name, value in lines.items() if value != "")
    return settings + _nodes_and_partitions(layout, ports, host, _addresses(shape))


def _places(layout: Layout) -> dict[str, str]:
    return {
        "StateSaveLocation": str(layout.part("controller")),
        "SlurmdSpoolDir": f"{layout.part('spool')}/%n",
        "SlurmctldPidFile": f"{layout.part('pid')}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.part('pid')}/slurmd-%n.pid",
        "SlurmctldLogFile": str(layout.log / "slurmctld.log"),
        "SlurmdLogFile": str(layout.log / "slurmd-%n.log"),
    }


def _scheduling() -> dict[str, str]:
    return {
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "DefMemPerCPU": "100",
        "SchedulerType": "sched/backfill",
        # By default a job waits up to three seconds for company before anybody looks at it.
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1",
        "PriorityType": "priority/multifactor",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "MaxJobCount": "20000",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",  # more CPUs than the machine has
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "ReturnToService": "2",
    }


def _clocks() -> dict[str, str]:
    return {
        "KillWait": "2",
        "MinJobAge": "300",
        "SlurmctldTimeout": "10",
        "SlurmdTimeout": "10",
        "MessageTimeout": "10",
        "TCPTimeout": "2",
    }


def _accounting(shape: Shape, layout: Layout, ports: Ports) -> dict[str, str]:
    if not shape.accounting:
        return {"JobAcctGatherType": "jobacct_gather/none", "AccountingStorageType": "accounting_storage/none"}
    return {
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "5",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(ports.accounting),
        "AccountingStoragePass": str(layout.munge_socket),  # sacct takes the socket from here, not from AuthInfo
        "AccountingStorageEnforce": "associations,limits,qos",
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
    }


NETWORK = "10.99.0."
LOGIN_ADDRESS = NETWORK + "1"
NODE_ADDRESSES = tuple(f"{NETWORK}{number}" for number in (11, 12, 13, 14))


def _addresses(shape: Shape) -> tuple[str, ...]:
    return NODE_ADDRESSES if shape.network else ("127.0.0.1",) * 4


def _nodes_and_partitions(layout: Layout, ports: Ports, host: str, addresses: tuple[str, ...]) -> str:
    lines = []
    for node, port, address in zip(layout.nodes, ports.nodes, addresses, strict=True):
        gpus = f" Gres=gpu:a100:{GPUS_EACH}" if _has_gpus(node, layout) else ""
        lines.append(
            f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} "
            f"CPUs={CPUS} RealMemory={MEMORY_MB}{gpus}"
        )
    with_gpus = ",".join(node for node in layout.nodes if _has_gpus(node, layout))
    without = ",".join(node for node in layout.nodes if not _has_gpus(node, layout))
    times = "MaxTime=1-0 DefaultTime=10 State=UP"
    lines += [
        f"PartitionName=cpu Nodes={without} Default=YES {times} PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=gpu Nodes={with_gpus} {times} PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=all Nodes={','.join(layout.nodes)} {times} PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=scavenge Nodes={','.join(layout.nodes)} {times} PriorityTier=1 PreemptMode=REQUEUE",
        f"PartitionName=hidden Nodes={','.join(layout.nodes)} {times} PriorityTier=10 PreemptMode=OFF Hidden=YES",
    ]
    return "\n".join(lines) + "\n"


def _has_gpus(node: str, layout: Layout) -> bool:
    return node.removeprefix(layout.prefix).startswith("g")


def gres_conf(layout: Layout, devices: str) -> str:
    """`devices`: a range of character devices, such as ``/dev/tty[0-1]``. Regular files give a job no visible GPU."""
    return "".join(
        f"NodeName={node} Name=gpu Type=a100 File={devices}\n" for node in layout.nodes if _has_gpus(node, layout)
    )


def cgroup_conf(shape: Shape, is_unified: bool) -> str:
    """`is_unified`: the machine has control groups of version 2."""
    if not shape.cgroups:
        return ""
    kind = (
        "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
        if is_unified
        else "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=yes\n"
    )
    return f"{kind}ConstrainRAMSpace=yes\nConstrainDevices=yes\n"


def slurmdbd_conf(layout: Layout, ports: Ports, owner: str) -> str:
    lines: Mapping[str, str] = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "DbdHost": "localhost",  # an address here is fatal
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(ports.accounting),
        "SlurmUser": owner,
        "LogFile": str(layout.log / "slurmdbd.log"),
        "PidFile": f"{layout.part('pid')}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(ports.database),
        "StorageUser": DATABASE_USER,
        "StoragePass": DATABASE_PASSWORD,
        "StorageLoc": DATABASE,
        "CommitDelay": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())
