"""Bootstrap credentials: what a worker shows once to prove which rank of which attempt it is.

HMAC-SHA256 over every field, as text that is safe in JSON and on one line; compared in constant time. It proves
origin only. Whether the attempt is still the live one, and whether the credential was used before, is asked of the
store (INV-7) by `frontdesk`. Nothing here reads a clock, and no token or secret ever enters an error text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import ProvisionerError, StateError
from .private_folder import prepare_folder, publish_once, read_private

CREDENTIAL_LIFE_S = 14 * 24 * 3600.0  # a queue is long; the live-epoch check is the real fence
SECRET_BYTES = 32
_MAX_TOKEN_CHARS = 4096
_CLAIMS_CONTEXT = b"o4s-credential-1|"
_NONCE_CONTEXT = b"o4s-workspace-1|"


class BadCredential(ProvisionerError):
    """A credential that is malformed, forged or expired. The peer is told nothing; the text is for our own side.

    `claims`: what it states, when that may be believed.
    """

    def __init__(self, text: str, claims: Claims | None = None) -> None:
        super().__init__(text)
        self.claims = claims


@dataclass(frozen=True)
class Claims:
    """What a credential states. Times in seconds since the Unix epoch."""

    workload_id: str
    allocation_id: str
    epoch: int
    rank: int
    expires_at: float
    nonce: str


def fresh_nonce() -> str:
    return secrets.token_hex(16)


class CredentialIssuer:
    """Makes and checks credentials with one secret. Holds no other state, so any thread may use it."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes")
        self._secret = secret

    def issue(self, claims: Claims) -> str:
        body = json.dumps(asdict(claims), separators=(",", ":"), sort_keys=True).encode()
        return f"{_encode(body)}.{_encode(self._sign(_CLAIMS_CONTEXT, body))}"

    def verify(self, token: str, now: float) -> Claims:
        """The claims of a genuine, unexpired credential. Raises BadCredential for everything else."""
        if not isinstance(token, str) or len(token) > _MAX_TOKEN_CHARS:
            raise BadCredential("the credential is not text of a reasonable length")
        head, _, tail = token.partition(".")
        body, signature = _decode(head), _decode(tail)
        if not hmac.compare_digest(signature, self._sign(_CLAIMS_CONTEXT, body)):
            raise BadCredential("the credential's signature does not match")
        claims = Claims(**json.loads(body))
        if now >= claims.expires_at:
            raise BadCredential("the credential has expired", claims)
        return claims

    def workspace_nonce(self, allocation_id: str) -> str:
        """What the nonce file of an attempt holds. Derived, so that nothing about it needs to be stored."""
        return self._sign(_NONCE_CONTEXT, allocation_id.encode()).hex()

    def _sign(self, context: bytes, body: bytes) -> bytes:
        return hmac.new(self._secret, context + body, hashlib.sha256).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Strict: one byte string has one spelling, so that a token cannot be varied and still match."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadCredential("the credential is not well formed") from None
    if _encode(raw) != text:
        raise BadCredential("the credential is not well formed")
    return raw


def load_secret(state_dir: Path) -> bytes:
    """The installation's secret, made on first use.

    Published with `os.link`, so that two processes that start together agree on one. Raises StateError when the file
    is not exactly what we would have written: a damaged secret is never silently replaced.
    """
    path = state_dir / "secret"
    try:
        prepare_folder(state_dir)
        if not path.exists():
            publish_once(path, secrets.token_bytes(SECRET_BYTES))
        raw = read_private(path, SECRET_BYTES)
    except OSError as error:
        raise StateError(
            f"{path}: the secret cannot be read or made ({error.strerror}). Make the folder writable for you."
        ) from error
    if len(raw) != SECRET_BYTES:
        raise StateError(f"{path}: the secret is damaged. Stop all sessions, delete this file, and start again.")
    return raw
