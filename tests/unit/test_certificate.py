"""The certificate is made once, private, agreed on by all processes, and never replaced in silence."""

from __future__ import annotations

import os
import ssl
import stat
import threading
from pathlib import Path

import pytest

from openai4s_provisioner.gateway.certificate import Certificate, load_certificate
from openai4s_provisioner.orchestration.errors import StateError
from openai4s_provisioner.transport.tls import server_context


def test_it_is_made_once_and_private(tmp_path: Path) -> None:
    first = load_certificate(tmp_path / "state")
    assert load_certificate(tmp_path / "state") == first
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o600
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["gateway.pem"]
    assert server_context(first.path, first.path).minimum_version is ssl.TLSVersion.TLSv1_3


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    made: list[Certificate] = []
    threads = [threading.Thread(target=lambda: made.append(load_certificate(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", b"half"])
def test_a_damaged_one_is_refused_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    path = Path(load_certificate(tmp_path).path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == b"half" else damage)
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"gateway\.pem: the certificate is damaged"):
        load_certificate(tmp_path)
    assert path.read_bytes() == before


def test_a_key_that_belongs_to_another_certificate_is_damage(tmp_path: Path) -> None:
    one, two = (Path(load_certificate(tmp_path / name).path) for name in ("one", "two"))
    end_of_key = b"-----END PRIVATE KEY-----\n"
    key, certificate = one.read_bytes().split(end_of_key)[0], two.read_bytes().split(end_of_key)[1]
    one.write_bytes(key + end_of_key + certificate)
    with pytest.raises(StateError, match="damaged"):
        load_certificate(tmp_path / "one")


def test_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = Path(load_certificate(tmp_path).path)
    path.chmod(0o644)
    with pytest.raises(StateError, match="can be read by others"):
        load_certificate(tmp_path)
