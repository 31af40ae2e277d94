"""The exact command line of a sandbox, on a machine that exists only here."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from openai4s_provisioner.sandbox.bubblewrap import Bubblewrap, find_bubblewrap
from openai4s_provisioner.sandbox.errors import MaskUncovered, SandboxUnavailable
from openai4s_provisioner.sandbox.host import Host
from openai4s_provisioner.sandbox.spec import SandboxSpec

PERSON = "/home/ada"


class PaperMachine(Host):
    """A file system that is a table: folder, file, or "-> target" for a symlink."""

    def __init__(self, **more: str) -> None:
        super().__init__()
        system = dict.fromkeys(("/usr", "/etc", "/sys", "/home", PERSON), "folder") | {"/bin": "-> usr/bin"}
        self.table = (
            system | {"/etc/resolv.conf": "file"} | {path.replace("__", "/"): kind for path, kind in more.items()}
        )

    def add(self, *paths: str, kind: str = "folder") -> PaperMachine:
        self.table |= dict.fromkeys(paths, kind)
        return self

    def link_target(self, path: str) -> str:
        said = self.table.get(path, "")
        return said[3:] if said.startswith("-> ") else ""

    def real(self, path: str) -> str:
        link = self.first_link(path)
        if not link:
            return path
        target = os.path.normpath(os.path.join(os.path.dirname(link), self.link_target(link)))
        return self.real(target + path[len(link) :])

    def kind(self, path: str) -> str:
        return self.table.get(self.real(path), "")

    def names(self, real: str) -> list[str]:
        return [real]


COMMAND_LINE = """
/bin/sh --unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --cap-drop ALL --die-with-parent
--new-session
--proc /proc --dev /dev --perms 1777 --tmpfs /run --bind /tmp/private /tmp
--ro-bind /usr /usr --symlink usr/bin /bin --ro-bind /etc /etc --ro-bind /sys /sys
--ro-bind /proc/sys /proc/sys --perms 1777 --tmpfs /dev/shm --symlink /run /var/run --symlink /tmp /var/tmp
--dev-bind-try /dev/nvidia0 /dev/nvidia0
--ro-bind /opt/env /opt/env --bind /srv/home /home/ada
--bind /tmp/launch /run/openai4s --ro-bind /srv/worker.pyz /run/openai4s-program
--bind /home/ada/work /home/ada/work
--ro-bind /srv/home/.profile /home/ada/.profile
--perms 0700 --tmpfs /home/ada/work/secret
--remount-ro /home/ada/work/secret --remount-ro /
--setenv MARK 1 -- python kernel
"""


def options(spec: SandboxSpec, host: Host) -> list[tuple[str, ...]]:
    """The command line's options, one tuple each, without the program and what runs inside."""
    words = Bubblewrap("/bin/sh", host).wrap(spec, ["kernel"])
    words = words[1 : words.index("--")]
    starts = [index for index, word in enumerate(words) if word.startswith("--")] + [len(words)]
    return [tuple(words[start:end]) for start, end in pairwise(starts)]


def order(found: list[tuple[str, ...]], *wanted: tuple[str, ...]) -> None:
    """Each of `wanted` is an option, in this order."""
    places = [found.index(option) for option in wanted]
    assert places == sorted(places)


def test_the_whole_command_line() -> None:
    host = PaperMachine().add(f"{PERSON}/work", "/opt/env", "/srv/home", f"{PERSON}/work/secret", "/srv/home/.profile")
    spec = SandboxSpec(
        workspace=f"{PERSON}/work",
        home=PERSON,
        home_source="/srv/home",
        read_only=("/opt/env",),
        masked=(f"{PERSON}/work/secret", f"{PERSON}/.ssh"),
        protected=("/srv/home/.profile",),
        devices=("/dev/nvidia0",),
        shared="/tmp/launch",
        private_tmp="/tmp/private",
        program="/srv/worker.pyz",
        env_marker="MARK=1",
    )
    assert " ".join(Bubblewrap("/bin/sh", host).wrap(spec, ["python", "kernel"])) == " ".join(COMMAND_LINE.split())


def test_a_private_network_is_one_option_more() -> None:
    host = PaperMachine().add(f"{PERSON}/work")
    spec = SandboxSpec(workspace=f"{PERSON}/work")
    assert ("--unshare-net",) not in options(spec, host)
    assert ("--unshare-net",) in options(replace(spec, network="private"), host)


def test_a_mask_covers_every_place_where_a_bound_folder_would_show_it() -> None:
    host = PaperMachine().add("/data", "/data/ada", "/data/ada/state", f"{PERSON}/work").add("/alias", kind="-> /data")
    spec = SandboxSpec(workspace=f"{PERSON}/work", read_only=("/alias",), masked=("/alias/ada/state",))
    found = options(spec, host)
    assert ("--tmpfs", "/data/ada/state") in found
    assert ("--tmpfs", "/alias/ada/state") in found


def test_a_masked_file_is_emptied_and_a_missing_one_is_left_out() -> None:
    host = PaperMachine().add(f"{PERSON}/work").add(f"{PERSON}/work/.netrc", kind="file")
    spec = SandboxSpec(workspace=f"{PERSON}/work", masked=(f"{PERSON}/work/.netrc", f"{PERSON}/work/.aws"))
    found = options(spec, host)
    assert ("--ro-bind", "/dev/null", f"{PERSON}/work/.netrc") in found
    assert not [option for option in found if f"{PERSON}/work/.aws" in option]


def test_what_is_deeper_is_mounted_later() -> None:
    host = PaperMachine().add("/data", "/data/a", "/data/a/b", "/data/a/b/c")
    spec = SandboxSpec(workspace="/data/a/b/c", read_write=("/data",), read_only=("/data/a",), masked=("/data/a/b",))
    with pytest.raises(MaskUncovered, match="/data/a/b/c"):
        options(spec, host)
    found = options(replace(spec, masked=()), host)
    order(found, ("--bind", "/data", "/data"), ("--ro-bind", "/data/a", "/data/a"), ("--bind", *["/data/a/b/c"] * 2))


def test_a_folder_above_something_protected_cannot_be_renamed() -> None:
    host = PaperMachine().add("/data", "/data/a", "/data/a/b").add("/data/a/b/startup", kind="file")
    found = options(SandboxSpec(workspace="/data", protected=("/data/a/b/startup",)), host)
    order(
        found,
        ("--bind", "/data/a", "/data/a"),
        ("--bind", "/data/a/b", "/data/a/b"),
        ("--ro-bind", *["/data/a/b/startup"] * 2),
    )


def test_a_resource_may_lie_in_a_masked_folder_and_a_share_may_not() -> None:
    host = PaperMachine().add(f"{PERSON}/work", "/data", "/data/jupyter", "/data/jupyter/kernels")
    spec = SandboxSpec(workspace=f"{PERSON}/work", read_only=("/data",), masked=("/data/jupyter",))
    found = options(replace(spec, resources=("/data/jupyter/kernels",)), host)
    order(found, ("--tmpfs", "/data/jupyter"), ("--ro-bind", *["/data/jupyter/kernels"] * 2))
    with pytest.raises(MaskUncovered) as refused:
        options(replace(spec, read_write=("/data/jupyter/kernels",)), host)
    assert refused.value.path == "/data/jupyter/kernels"


def test_a_workspace_reached_through_a_symlink_appears_at_both_names() -> None:
    host = PaperMachine().add("/gpfs", "/gpfs/ada", "/gpfs/ada/work").add("/home/lovelace", kind="-> /gpfs/ada")
    found = options(SandboxSpec(workspace="/home/lovelace/work"), host)
    assert ("--bind", "/gpfs/ada/work", "/gpfs/ada/work") in found
    assert ("--bind", "/gpfs/ada/work", "/home/lovelace/work") in found


def test_a_symlink_that_shows_inside_is_not_mounted_over() -> None:
    host = PaperMachine().add("/opt", "/data", "/data/env", f"{PERSON}/work").add("/opt/env", kind="-> /data/env")
    found = options(SandboxSpec(workspace=f"{PERSON}/work", read_only=("/opt/env",)), host)
    assert ("--ro-bind", "/data/env", "/data/env") in found
    assert ("--ro-bind", "/data/env", "/opt/env") not in found


def test_a_share_that_this_machine_does_not_have_is_left_out() -> None:
    host = PaperMachine().add(f"{PERSON}/work")
    found = options(SandboxSpec(workspace=f"{PERSON}/work", read_write=("/scratch",)), host)
    assert not [option for option in found if "/scratch" in option]


def test_the_name_servers_file_is_followed() -> None:
    host = PaperMachine().add(f"{PERSON}/work").add("/etc/resolv.conf", kind="-> /run/systemd/resolve/stub-resolv.conf")
    host.add("/run/systemd/resolve/stub-resolv.conf", kind="file")
    path = "/run/systemd/resolve/stub-resolv.conf"
    assert ("--ro-bind", path, path) in options(SandboxSpec(workspace=f"{PERSON}/work"), host)


@pytest.mark.parametrize("path", ["", "no-such-program", "/no/such/bwrap"])
def test_without_the_program_the_remedy_is_named(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
        find_bubblewrap(path or None)


def test_a_folder_mounted_twice_has_two_names(tmp_path: Path) -> None:
    (tmp_path / "real" / "state").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "real")  # stands for a second mount: the same folder under two names
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 8:2 /export {tmp_path}/real rw - nfs server:/ rw\n"
        f"3 1 8:2 /export {tmp_path}/alias rw - nfs server:/ rw\n"
    )
    host = Host()
    host.mountinfo = str(table)
    assert host.names(f"{tmp_path}/real/state") == [f"{tmp_path}/real/state", f"{tmp_path}/alias/state"]


def test_nothing_is_shown_again_below_a_mask() -> None:
    host = PaperMachine().add("/data", "/data/jupyter", "/data/jupyter/kernels", "/data/jupyter/kernels/r")
    host.add("/data/jupyter/startup", kind="file")
    spec = SandboxSpec(
        workspace="/data",
        masked=("/data/jupyter", "/data/jupyter/kernels"),
        resources=("/data/jupyter/kernels/r",),
        protected=("/data/jupyter/startup",),
    )
    shown = [option for option in options(spec, host) if option[-1].startswith("/data/jupyter/")]
    assert shown == [("--ro-bind", "/data/jupyter/kernels/r", "/data/jupyter/kernels/r")]
