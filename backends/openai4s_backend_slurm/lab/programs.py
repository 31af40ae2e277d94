"""Which programs a cluster needs, and which Debian packages bring them. Installs nothing: `./dev` does."""

from __future__ import annotations

import os
import shutil

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ALWAYS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "sacct": "slurm-client"}
_CLOCKS = {"faketime": "faketime"}
_NETWORK = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
_MYSQL_PLUGIN = "slurm-wlm/accounting_storage_mysql.so"  # in a package of its own


def program(name: str) -> str:
    """The path of a daemon; those lie in folders that an ordinary user's PATH often lacks."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; ./dev slurm up names the package")
    return found


def missing_packages(*, accounting: bool = False, network: bool = False, clocks: bool = False) -> list[str]:
    wanted = dict(_ALWAYS)
    if accounting:
        wanted |= _ACCOUNTING
    if network:
        wanted |= _NETWORK
    if clocks:
        wanted |= _CLOCKS
    missing = {package for name, package in wanted.items() if shutil.which(name, path=PATH) is None}
    if accounting and not any(os.path.exists(f"{folder}/{_MYSQL_PLUGIN}") for folder in _library_folders()):
        missing.add("slurm-wlm")
    return sorted(missing)


def _library_folders() -> list[str]:
    folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"]
    return folders + [entry.path for entry in os.scandir("/usr/lib") if entry.is_dir() and "-linux-" in entry.name]
