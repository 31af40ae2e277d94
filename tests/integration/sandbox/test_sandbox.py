"""The real sandbox: what is visible inside, what can be written, and what no trick uncovers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.sandbox.bubblewrap import Bubblewrap
from openai4s_provisioner.sandbox.home import prepare_real_home, prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import session_spec
from openai4s_provisioner.sandbox.spec import SandboxSpec


@dataclass
class Inside:
    """A person's folders, and a shell inside the sandbox of a session with the given workspace."""

    root: Path
    spec: SandboxSpec

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        spec = self.spec.with_launch(
            shared=str(self.root / "launch"), private_tmp=str(self.root / "private"), program=""
        )
        argv = Bubblewrap().wrap(spec, ["/bin/bash", "-c", script])
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.spec.home}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def says(self, script: str) -> str:
        """What it prints; it must succeed."""
        done = self.run(script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def fails(self, script: str) -> str:
        """What it complains about; it must not succeed."""
        done = self.run(script)
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture
def session(place: Any) -> Callable[..., Inside]:
    root: Path = place.root
    for name in ("home/project", "home/.ssh", "home/state/attempts", "session-home", "launch", "private"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "home/.ssh/id_ed25519").write_text("a private key")
    (root / "home/state/attempts/credential").write_text("a credential")
    (root / "home/.bashrc").write_text("# mine\n")
    (root / "home/.netrc").write_text("machine x password y")
    prepare_session_home(str(root / "session-home"))

    def make(workspace: str = "home/project", **more: Any) -> Inside:
        jupyter = [str(root / "home/.jupyter"), str(root / "home/.local/share/jupyter")]
        if workspace in ("home", "."):
            prepare_real_home(str(root / "home"), "/bin/bash", jupyter)
        given: dict[str, Any] = {
            "workspace": os.path.normpath(root / workspace),
            "home": str(root / "home"),
            "home_source": str(root / "session-home"),
            "state_paths": [str(root / "home/state")],
            "jupyter_paths": jupyter,
            "prefixes": interpreter_prefixes(),
        }
        return Inside(root, session_spec(**{**given, **more}))

    return make


def test_the_workspace_is_written_at_its_own_place(session: Callable[..., Inside], place: Any) -> None:
    session().says(f"echo result > {place.root}/home/project/out.csv")
    assert (place.root / "home/project/out.csv").read_text() == "result\n"


def test_only_the_workspace_and_the_session_home_are_there(session: Callable[..., Inside], place: Any) -> None:
    inside = session()
    assert inside.says(f"ls {place.root}") == "home"
    assert "state" not in inside.says("ls -a ~").split()
    assert ".ssh" not in inside.says("ls -a ~").split()
    assert inside.says("ls /home /root 2>/dev/null | grep -v : || true") == ""


def test_the_session_home_persists_and_is_not_the_real_one(session: Callable[..., Inside], place: Any) -> None:
    session().says("mkdir -p ~/.local/lib && echo kept > ~/.local/lib/module && echo x > ~/.config/setting")
    assert session().says("cat ~/.local/lib/module") == "kept"
    assert not (place.root / "home/.config/setting").exists()


def test_a_file_where_it_would_be_lost_is_refused(session: Callable[..., Inside], place: Any) -> None:
    for path in ("/lost", "/srv/lost", "/usr/lost", "/etc/lost", f"{place.root}/home/.ssh/lost"):
        error = session("home").fails(f"mkdir -p {os.path.dirname(path)} && echo x > {path}")
        assert "Read-only" in error, path


PLANTS = {
    "a line in an existing file": "echo evil >> ~/.bashrc",
    "a missing login file": "echo evil > ~/.bash_profile",
    "a file replaced": "echo evil > ~/x && mv ~/x ~/.bashrc",
    "a file removed": "rm -f ~/.bashrc && ! test -e ~/.bashrc",
    "an ssh key": "mkdir -p ~/.ssh && echo evil > ~/.ssh/authorized_keys",
    "the ssh folder moved away": "mv ~/.ssh ~/moved",
    "a jupyter configuration": "mkdir -p ~/.jupyter && echo evil > ~/.jupyter/jupyter_server_config.py",
    "the jupyter folder moved away": "mv ~/.jupyter ~/moved",
    "an ipython start-up file": "echo evil > ~/.ipython/profile_default/startup/evil.py",
    "an ipython configuration": "echo evil > ~/.ipython/profile_default/ipython_config.py",
    "an ipython profile moved away": "mv ~/.ipython/profile_default ~/.ipython/moved",
    "ipython moved away": "mv ~/.ipython ~/moved",
    "a folder above it moved away": "mv ~/.julia ~/moved",
    "a hard link to write through": "ln ~/.bashrc ~/link",
    "a remount": "mount -o remount,rw ~/.bashrc",
    "a namespace to remount in": "unshare -Urm mount -o remount,bind,rw ~/.bashrc",
}


@pytest.mark.parametrize("workspace", ["home/project", "home", "."])
@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_that_runs_later_can_be_planted(
    session: Callable[..., Inside], place: Any, workspace: str, plant: str
) -> None:
    inside = session(workspace)
    watched = [place.root / "home/.bashrc", place.root / "home/.bash_profile", place.root / "home/.ssh/authorized_keys"]
    before = [path.exists() and path.read_text() for path in watched]
    if workspace != "home/project" or not any(word in plant for word in ("ssh", "jupyter ")):
        if workspace == "home/project" and "jupyter" in plant:
            return  # its home has no such folder, and no server reads the session home
        inside.fails(PLANTS[plant])
    assert [path.exists() and path.read_text() for path in watched] == before
    for home in ("home", "session-home"):
        assert not list((place.root / home).rglob("evil.py"))
        assert "evil" not in "".join(p.read_text() for p in (place.root / home).glob(".ipython/profile_default/*.py"))


SECRETS = ("home/.ssh/id_ed25519", "home/state/attempts/credential", "home/.netrc")


@pytest.mark.parametrize("workspace", ["home", "."])
@pytest.mark.parametrize(
    "trick",
    [
        "cat {}",
        "cat ~/project/../../{}",
        "cat /proc/self/root{}",
        "unshare -Urm sh -c 'umount -l {0}; umount -l $(dirname {0}); cat {0}'",
    ],
)
def test_no_trick_uncovers_a_secret(session: Callable[..., Inside], place: Any, workspace: str, trick: str) -> None:
    inside = session(workspace)
    for secret in SECRETS:
        done = inside.run(trick.format(place.root / secret))
        assert (place.root / secret).read_text() not in done.stdout + done.stderr


def test_the_real_home_stays_usable(session: Callable[..., Inside], place: Any) -> None:
    inside = session("home")
    inside.says("echo data > ~/out.csv; mkdir -p ~/new/folder; echo more > ~/project/x; bash -lc true")
    assert (place.root / "home/out.csv").read_text() == "data\n"
    assert (place.root / "home/new/folder").is_dir()


def test_a_virtual_environment_runs_and_cannot_be_changed(session: Callable[..., Inside]) -> None:
    inside = session()
    assert inside.says(f"{sys.executable} -c 'import ipykernel, sys; print(sys.prefix)'") == sys.prefix
    error = inside.fails(f'{sys.executable} -c \'open(__import__("ipykernel").__file__, "a")\'')
    assert "Read-only" in error or "Permission denied" in error


def test_a_python_whose_links_lead_through_the_home(session: Callable[..., Inside], place: Any) -> None:
    real = place.root / "scratch/envs"
    real.mkdir(parents=True)
    (place.root / "home/envs").symlink_to(real)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place.root / "home/envs/mine")], check=True)
    python = place.root / "home/envs/mine/bin/python"
    inside = session(prefixes=interpreter_prefixes(str(python)))
    assert inside.says(f"{python} -c 'import sys; print(sys.prefix)'") == str(python.parent.parent)


def test_shares_are_there_as_configured(session: Callable[..., Inside], place: Any) -> None:
    for name in ("shared", "scratch"):
        (place.root / name).mkdir()
        (place.root / name / "file").write_text(name)
    inside = session(
        share=[str(place.root / "scratch")], share_read_only=[str(place.root / "shared"), "/no/such/share"]
    )
    assert inside.says(f"cat {place.root}/shared/file; echo more > {place.root}/scratch/file") == "shared"
    assert "Read-only" in inside.fails(f"echo x > {place.root}/shared/file")


def test_temporary_files_are_private_and_on_disk(session: Callable[..., Inside], place: Any) -> None:
    session().says("echo mine > /tmp/file; test -w /dev/shm; test /var/tmp/file -ef /tmp/file")
    assert (place.root / "private/file").read_text() == "mine\n"


def test_the_processes_outside_are_not_there(session: Callable[..., Inside]) -> None:
    assert int(session().says("ls -d /proc/[0-9]* | wc -l")) <= 6


def test_names_and_certificates_can_be_looked_up(session: Callable[..., Inside]) -> None:
    inside = session()
    assert inside.says("getent hosts localhost")
    assert inside.says("test -r /etc/resolv.conf && id -u") == str(os.getuid())


def test_a_private_network_has_only_its_loopback(session: Callable[..., Inside]) -> None:
    assert session(network="private").says("ls /sys/class/net; grep -c : /proc/net/dev").split()[-1] == "1"


def test_the_machines_settings_and_secrets_are_out_of_reach_even_for_root(session: Callable[..., Inside]) -> None:
    inside = session()
    inside.fails("echo /tmp/evil > /proc/sys/kernel/core_pattern")
    inside.fails("echo b > /proc/sysrq-trigger")
    inside.fails("mknod /tmp/disk b 254 0")
    inside.fails("grep -q . /etc/shadow")


@pytest.mark.skipif(os.getuid() != 0, reason="this is that run")
def test_all_of_this_as_an_ordinary_user(ordinary_user: Any) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={ordinary_user.home}/t"]
    command.append(str(Path(__file__).parent))
    done = ordinary_user.run(command, timeout=110, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
