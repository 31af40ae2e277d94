"""Which file system a folder lies on, from the kernel's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.store.filesystem import file_system_of, is_local_folder

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/me/scratch rw - xfs /dev/sdb rw
32 22 0:42 / /mnt/with\040space rw - lustre mgs:/l rw
33 22 0:43 / /data rw - ext4 /dev/sdc rw
34 22 0:44 / /data rw - fuse.sshfs far: rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/me/scratch/x", "xfs"),
        ("/mnt/with space/x", "lustre"),
        ("/data/x", "fuse.sshfs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(path: str, kind: str) -> None:
    assert file_system_of(path, TABLE) == kind


def test_an_empty_table_knows_nothing() -> None:
    assert file_system_of("/", "") == ""


def test_a_temporary_folder_of_this_machine_is_local(tmp_path: Path) -> None:
    assert is_local_folder(tmp_path)


def test_without_a_table_nothing_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai4s_provisioner.orchestration.store.filesystem._MOUNT_TABLE", tmp_path / "none")
    assert not is_local_folder(tmp_path)
