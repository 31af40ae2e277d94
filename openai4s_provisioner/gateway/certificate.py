"""The server's certificate: self-signed, made once, kept in the state, known to workers by its digest.

Nobody is asked to vouch for it: a worker is told the digest in its private file and compares. So it names nobody and
does not expire. Two processes that start together agree on one. A damaged file is never replaced by itself.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ..orchestration.errors import StateError
from ..orchestration.private_folder import prepare_folder, publish_once, read_private

_LARGEST_BYTES = 64 * 1024
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "session gateway")])
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_FOR_EVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280: no expiry


@dataclass(frozen=True)
class Certificate:
    """`path` holds key and certificate in PEM; `sha256` is the digest of the certificate's DER form, in hex."""

    path: str
    sha256: str


def load_certificate(state_dir: Path) -> Certificate:
    """The installation's certificate, made on first use. Raises StateError."""
    path = state_dir / "gateway.pem"
    try:
        prepare_folder(state_dir)
        if not path.exists():
            publish_once(path, _make())
        content = read_private(path, _LARGEST_BYTES)
        certificate = x509.load_pem_x509_certificate(content)
        key = serialization.load_pem_private_key(content, password=None)
    except OSError as error:
        raise StateError(f"{path}: the certificate cannot be read or made ({error.strerror}).") from error
    except ValueError:
        raise _damaged(path) from None
    if key.public_key() != certificate.public_key():
        raise _damaged(path)
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    return Certificate(str(path), digest)


def _damaged(path: Path) -> StateError:
    return StateError(f"{path}: the certificate is damaged. Stop all sessions, delete this file, and start again.")


def _make() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_FOR_EVER)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    ) + certificate.public_bytes(serialization.Encoding.PEM)
