"""The same tests with Slurm 24.11, inside a Debian 13 tree: made once under `.debian13`, needs root and the network.

The tree gets a copy of this checkout and sets itself up there as a contributor's machine does. Nothing of this machine
is shared with it but its devices, /proc, and the network.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from checks.parts.place import REPOSITORY
from checks.parts.report import Report, run

from .slurm_faults import FAULTS

TREE = REPOSITORY / ".debian13" / "tree"
MIRROR = "http://deb.debian.org/debian"
SUITE = "trixie"
PACKAGES = "python3 python3-venv git ca-certificates bubblewrap procps util-linux iproute2 nftables"
SLURM = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server slurm-wlm slurm-wlm-mysql-plugin"
TESTS = ("test_contract", "test_session", *FAULTS, "test_lab", "test_wrappers")
INSIDE = Path("/src")
# How this machine reaches package registries is copied into the tree; nothing of the machine is mounted there.
_CONFIGURATION = {"/etc/pip.conf": "etc/pip.conf", "/etc/resolv.conf": "etc/resolv.conf"}
_TRUST = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_TRUSTED = "etc/trusted-by-the-host.crt"
_NEEDED = "-e . ipykernel nbclient pytest pytest-timeout pytest-jupyter[server] hypothesis numpy matplotlib comm"
_SET_UP = f"([ -x .venv/bin/pytest ] || {{ python3 -m venv .venv && .venv/bin/pip install -q {_NEEDED}; }})"


def main() -> int:
    return run("slurm-24", _body)


def _body(report: Report) -> None:
    if not report.expect(
        os.geteuid() == 0 and shutil.which("debootstrap") is not None, "root and debootstrap are here"
    ):
        return
    if not (TREE / "usr/sbin/slurmctld").exists():
        _make(report)
    _copy_configuration()
    _copy_checkout()
    version = _inside("slurmctld -V").stdout.strip()
    report.figure("version", version)
    report.expect(" 24." in version, "the tree has Slurm 24")
    files = " ".join(f"backends/openai4s_backend_slurm/tests/{name}.py" for name in TESTS)
    done = _inside(
        f"cd {INSIDE} && {_SET_UP} && .venv/bin/python -m pytest -q {files} --junit-xml=/tmp/tests.xml", is_shown=True
    )
    _tell(report, done.returncode)


def _make(report: Report) -> None:
    report.section("making the tree")
    if not (TREE / "usr/bin/apt-get").exists():
        TREE.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, str(TREE), MIRROR], check=True, stdout=subprocess.DEVNULL
        )
    policy = TREE / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")  # nothing is started by its installation
    policy.chmod(0o755)
    _copy_configuration()
    install = "env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends"
    done = _inside(f"apt-get -qq update && {install} {PACKAGES} {SLURM}")
    report.expect(
        done.returncode == 0, f"packages are installed {done.stderr[-300:] if done.returncode else ''}".strip()
    )


def _copy_configuration() -> None:
    trusted = next((os.environ[name] for name in _TRUST if os.path.exists(os.environ.get(name, ""))), "")
    for here, there in {**_CONFIGURATION, trusted: _TRUSTED}.items():
        if os.path.exists(here):
            (TREE / there).unlink(missing_ok=True)  # a link in the tree could lead out of it
            shutil.copyfile(here, TREE / there)


def _copy_checkout() -> None:
    target = TREE / INSIDE.relative_to("/")
    target.mkdir(exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=REPOSITORY, check=True, stdout=-1
    )
    packed = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=REPOSITORY, input=listed.stdout, check=True, stdout=-1
    )
    subprocess.run(["tar", "-x", "-C", str(target)], input=packed.stdout, check=True)


def _inside(command: str, *, is_shown: bool = False) -> subprocess.CompletedProcess[str]:
    """In mounts and processes of its own: whatever is left over ends with it."""
    tree = shlex.quote(str(TREE))
    trust = {name: f"/{_TRUSTED}" for name in _TRUST if name in os.environ}
    mounts = [
        f"mount --bind {tree} {tree}",
        f"mount --rbind /dev {tree}/dev",
        f"mount --rbind /sys {tree}/sys",
        f"mount -t proc proc {tree}/proc",
        f"mount -t tmpfs tmpfs {tree}/tmp",
        f"mount -t tmpfs tmpfs {tree}/run",
    ]
    # Not chroot: behind one, nobody may make user namespaces, which sandboxes are made of.
    enter = f"mkdir -p {tree}/.old && cd {tree} && pivot_root . .old && umount -l /.old"
    script = f"{' && '.join(mounts)} && {enter} && exec /bin/bash -c {shlex.quote(command + _keep_record())}"
    argv = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
        "/bin/bash",
        "-c",
        script,
    ]
    environment = {
        "SKIP_JUPYTER_BUILDER": "1",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        **trust,
    }
    shown = None if is_shown else subprocess.PIPE
    return subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, text=True, check=False
    )


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
