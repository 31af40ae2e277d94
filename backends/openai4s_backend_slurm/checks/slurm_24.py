"""The same tests with Slurm 24.11, inside a Debian 13 tree: made once under `.debian13`, needs root and the network.
Names of tests (``session``, ``gangs``) run these alone.

The tree gets a copy of this checkout and sets itself up there as a contributor's machine does. Nothing of this machine
is shared with it but control groups and the network: packages change what they find, device files too. Whatever is
written into the tree is written from inside it, where no link leads out.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.parts.place import REPOSITORY
from checks.parts.report import Report, run

from .slurm_faults import FAULTS

TREE = REPOSITORY / ".debian13" / "tree"
SUITE = "trixie"
PACKAGES = "python3 python3-venv git ca-certificates bubblewrap procps util-linux iproute2 nftables"
SLURM = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server slurm-wlm slurm-wlm-mysql-plugin"
TESTS = (
    *("test_contract", "test_session", *FAULTS, "test_lab", "test_wrappers"),
    *("test_gpu_session", "test_gangs", "test_cgroups", "test_memory", "test_extending", "test_waiting"),
    *("test_notebooks", "test_firewall", "test_isolation"),
)
INSIDE = Path("/src")
# How this machine reaches package registries is copied into the tree; nothing of the machine is mounted there.
_CONFIGURATION = ("/etc/pip.conf", "/etc/resolv.conf")
_TRUST = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_TRUSTED = "/etc/trusted-by-the-host.crt"
_NEEDED = "-e . ipykernel nbclient pytest pytest-timeout pytest-jupyter[server] hypothesis numpy matplotlib comm"
_SET_UP = f"([ -x .venv/bin/pytest ] || {{ python3 -m venv .venv && .venv/bin/pip install -q {_NEEDED}; }})"


def main() -> int:
    return run("slurm-24", lambda report: _body(report, sys.argv[1:] or TESTS))


def _body(report: Report, names: Sequence[str]) -> None:
    if not report.expect(
        os.geteuid() == 0 and shutil.which("debootstrap") is not None, "root and debootstrap are here"
    ):
        return
    if not (TREE / "usr/sbin/slurmctld").exists() and not _make(report):
        return
    _copy_configuration()
    _copy_checkout()
    version = (_inside("slurmctld -V").stdout or b"").decode().strip()
    report.figure("version", version)
    report.expect(" 24." in version, "the tree has Slurm 24")
    files = " ".join(f"backends/openai4s_backend_slurm/tests/{name}.py" for name in names)
    done = _inside(
        f"cd {INSIDE} && {_SET_UP} && .venv/bin/python -m pytest -q {files} --junit-xml=/tmp/tests.xml{_keep_record()}",
        is_shown=True,
    )
    _tell(report, done.returncode)


def _make(report: Report) -> bool:
    report.section("making the tree")
    if not (TREE / "usr/bin/apt-get").exists():
        mirror = _mirror()
        if not report.expect(bool(mirror), "apt of this machine names a mirror of Debian; if not, add one and update"):
            return False
        TREE.parent.mkdir(exist_ok=True)
        own_mounts = ["unshare", "--mount", "--propagation", "private"]  # what it mounts there goes with it
        command = ["debootstrap", "--variant=minbase", SUITE, str(TREE), mirror]
        subprocess.run([*own_mounts, *command], check=True, stdout=subprocess.DEVNULL)
    _copy_configuration()
    # Nothing is started by its installation.
    quiet = "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d"
    install = "env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends"
    done = _inside(f"{quiet} && apt-get -qq update && {install} {PACKAGES} {SLURM}")
    why = (done.stderr or b"").decode(errors="replace")[-300:] if done.returncode else ""
    return report.expect(done.returncode == 0, f"packages are installed {why}".strip())


def _mirror() -> str:
    """Where this machine itself gets Debian's packages from; "" when its apt does not say."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian"]
    sites = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    return next((site for site in sites if site.startswith(("http://", "https://", "file:"))), "")


def _copy_configuration() -> None:
    trusted = next((os.environ[name] for name in _TRUST if os.path.exists(os.environ.get(name, ""))), "")
    wanted = {**{path: path for path in _CONFIGURATION}, trusted: _TRUSTED}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for here, there in wanted.items():
            if os.path.exists(here):
                archive.add(here, there.lstrip("/"))
    _unpack(packed.getvalue(), "/")


def _copy_checkout() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE
    )
    packed = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=REPOSITORY, input=listed.stdout, check=True, stdout=subprocess.PIPE
    )
    gone = f"mkdir -p {INSIDE} && find {INSIDE} -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {{}} +"
    _inside(gone).check_returncode()  # what this checkout no longer has
    _unpack(packed.stdout, str(INSIDE))


def _unpack(packed: bytes, folder: str) -> None:
    """What is there already is replaced, never written through."""
    command = f"mkdir -p {folder} && tar -x --unlink-first --no-same-owner -C {folder}"
    _inside(command, content=packed).check_returncode()


def _inside(
    command: str, *, content: bytes | None = None, is_shown: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """In mounts and processes of its own: whatever is left over ends with it. `content`: what it reads."""
    tree = shlex.quote(str(TREE))
    trust = {name: _TRUSTED for name in _TRUST if name in os.environ}
    mounts = [
        f"mount --bind {tree} {tree}",
        *_own_devices(f"{tree}/dev"),
        f"mount --rbind /sys {tree}/sys",  # control groups are mounted below
        f"mount -o remount,bind,ro {tree}/sys",
        f"mount -t proc proc {tree}/proc",
        f"mount -t tmpfs tmpfs {tree}/tmp",
        f"mount -t tmpfs tmpfs {tree}/run",
    ]
    # Not chroot: behind one, nobody may make user namespaces, which sandboxes are made of.
    enter = f"mkdir -p {tree}/.old && cd {tree} && pivot_root . .old && umount -l /.old"
    script = f"{' && '.join(mounts)} && {enter} && exec /bin/bash -c {shlex.quote(command)}"
    own = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private"]
    environment = {
        "SKIP_JUPYTER_BUILDER": "1",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        **trust,
    }
    shown = None if is_shown else subprocess.PIPE
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if content is None else {"input": content}
    argv = [*own, "/bin/bash", "-c", script]
    return subprocess.run(argv, env=environment, stdout=shown, stderr=shown, check=False, **given)


def _own_devices(folder: str) -> list[str]:
    """Commands that make a /dev: what every program expects, and the two terminals that may pass for GPUs."""
    wanted = ("null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "tty", "tty0", "tty1")
    return [
        f"mount -t tmpfs -o mode=755 tmpfs {folder}",
        f"cp -a {' '.join(f'/dev/{name}' for name in wanted)} {folder}",
        f"mkdir {folder}/pts {folder}/shm",
        f"mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts {folder}/pts",
        f"ln -s pts/ptmx {folder}/ptmx",
        f"mount -t tmpfs -o mode=1777 tmpfs {folder}/shm",
    ]


def _keep_record() -> str:
    """/tmp goes with the mounts; the record of the tests stays in the tree."""
    return f"; status=$?; cp /tmp/tests.xml {INSIDE}/.tests.xml 2>/dev/null; exit $status"


def _tell(report: Report, status: int) -> None:
    record = TREE / INSIDE.relative_to("/") / ".tests.xml"
    cases = list(ElementTree.parse(record).getroot().iter("testcase")) if record.exists() else []
    record.unlink(missing_ok=True)
    bad = [case for case in cases if any(child.tag in {"failure", "error", "skipped"} for child in case)]
    report.figure("tests", len(cases))
    for case in bad:
        report.figure("not passed", case.get("name"))
    report.expect(status == 0 and bool(cases) and not bad, "every test passes with Slurm 24 too, none is skipped")


if __name__ == "__main__":
    sys.exit(main())
