"""Credentials and the secret: what is accepted, what is not, and that nothing of them is ever said."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.bootstrap import BadCredential, Claims, CredentialIssuer, load_secret
from openai4s_provisioner.orchestration.errors import StateError

CLAIMS = Claims("w", "a", 1, 0, 1000.0, "n" * 32)
ISSUER = CredentialIssuer(b"k" * 32)


def test_a_credential_proves_its_claims_until_it_expires() -> None:
    token = ISSUER.issue(CLAIMS)
    assert ISSUER.verify(token, 999.9) == CLAIMS
    with pytest.raises(BadCredential):
        ISSUER.verify(token, 1000.0)
    assert "\n" not in token
    json.dumps(token)


def test_a_credential_of_another_installation_is_refused() -> None:
    with pytest.raises(BadCredential):
        CredentialIssuer(b"x" * 32).verify(ISSUER.issue(CLAIMS), 0.0)


@pytest.mark.parametrize(
    "change",
    [{"workload_id": "v"}, {"allocation_id": "b"}, {"epoch": 2}, {"rank": 1}, {"expires_at": 9e9}, {"nonce": "m" * 32}],
)
def test_a_credential_forged_in_one_field_is_refused(change: dict[str, object]) -> None:
    _, _, signature = ISSUER.issue(CLAIMS).partition(".")
    forged = replace(CLAIMS, **change)  # type: ignore[arg-type]
    body = base64.urlsafe_b64encode(json.dumps(asdict(forged), separators=(",", ":"), sort_keys=True).encode())
    with pytest.raises(BadCredential):
        ISSUER.verify(f"{body.decode().rstrip('=')}.{signature}", 0.0)


def test_no_single_changed_character_is_accepted() -> None:
    token = ISSUER.issue(CLAIMS)
    for position, character in enumerate(token):
        other = "A" if character != "A" else "B"
        with pytest.raises(BadCredential):
            ISSUER.verify(token[:position] + other + token[position + 1 :], 0.0)


@pytest.mark.parametrize("token", ["", ".", "a", "a.b", "é.é", "=.=", "x" * 5000, "a.b.c", " ", "\0", None, 3])
def test_garbage_is_refused_and_never_quoted(token: object) -> None:
    with pytest.raises(BadCredential) as caught:
        ISSUER.verify(token, 0.0)  # type: ignore[arg-type]
    assert len(str(token)) < 2 or str(token) not in str(caught.value) or token in ("a", ".")


def test_the_workspace_nonce_differs_per_attempt_and_is_no_credential() -> None:
    assert ISSUER.workspace_nonce("a") != ISSUER.workspace_nonce("b")
    assert ISSUER.workspace_nonce("a") == CredentialIssuer(b"k" * 32).workspace_nonce("a")


# -- the secret --------------------------------------------------------------------------------------------------------


def test_the_secret_is_made_once_privately_and_nothing_else_is_left(tmp_path: Path) -> None:
    state = tmp_path / "state"
    secret = load_secret(state)
    assert len(secret) == 32
    assert load_secret(state) == secret
    assert [path.name for path in state.iterdir()] == ["secret"]
    assert stat.S_IMODE((state / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_processes_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openai4s_provisioner.orchestration.bootstrap import load_secret\n"
        "sys.stdin.readline(); print(load_secret(Path(sys.argv[1])).hex())"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")], **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 33])
def test_a_damaged_secret_is_refused_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(StateError, match=str(path)):
        load_secret(tmp_path)
    assert path.read_bytes() == damage


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_secret(tmp_path)
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        load_secret(tmp_path)


def test_a_secret_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x" * 32)
    os.symlink(tmp_path / "real", tmp_path / "secret")
    with pytest.raises(StateError):
        load_secret(tmp_path)
