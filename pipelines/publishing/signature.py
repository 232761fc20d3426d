"""Signatures of publications, as minisign writes and reads them: who published, where checksums say only what.

`SHA256SUMS.minisig` signs `SHA256SUMS`, and with it every published file but the marker. The secret key is a file that
FINERY_SIGNING_KEY names, and never a part of a recipe; one with a password reads it from FINERY_SIGNING_PASSWORD. Keys
are made by `minisign -G`, or by py-minisign, which does the work here (`pip install 'finery[sign]'`). Anybody checks
with `minisign -Vm SHA256SUMS -p KEY.pub` and `sha256sum -c SHA256SUMS`, or with `finery verify --public-key`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.errors import CommandError, PublishError
from pipelines.publishing.destinations.destination import SUMS, sha256_of, sums_text

if TYPE_CHECKING:
    from minisign import PublicKey, SecretKey

KEY, PASSWORD = "FINERY_SIGNING_KEY", "FINERY_SIGNING_PASSWORD"
SIGNATURE = f"{SUMS}.minisig"
LACKING = "signatures need py-minisign, which is not installed: pip install 'finery[sign]'"


def wanted() -> bool:
    """Whether publications are to be signed."""
    return bool(os.environ.get(KEY))


def sign(sums: Path) -> dict[str, str]:
    """Sign the list of checksums where a key is named; returns the checksum of the signature's file, by its name.
    Raises PublishError."""
    if not wanted():
        return {}
    path = sums.with_name(SIGNATURE)
    path.write_bytes(_signature(sums.read_bytes()))
    return {SIGNATURE: sha256_of(path)}


def is_current(checksums: Mapping[str, str]) -> bool:
    """Whether a publication of these checksums is signed as it would be signed now: by the key that is named, if one
    is. An Ed25519 signature of the same bytes by the same key is the same. Raises PublishError."""
    if not wanted():
        return True
    signed = sums_text({name: digest for name, digest in checksums.items() if name not in (SUMS, SIGNATURE)})
    return checksums.get(SIGNATURE) == hashlib.sha256(_signature(signed.encode())).hexdigest()


def _signature(content: bytes) -> bytes:
    try:
        with _secret_key(Path(os.environ[KEY]).expanduser()) as key:
            return bytes(key.sign(content, trusted_comment=f"{SUMS} of a Finery publication"))
    except ImportError:
        raise PublishError(f"{KEY} names a key, but {LACKING}; nothing was published") from None


def _secret_key(file: Path) -> SecretKey:
    from minisign import Error, SecretKey

    try:
        key = SecretKey.from_file(file)
    except (OSError, Error, ValueError):
        raise PublishError(
            f"{KEY} names '{file}', which is no readable secret key of minisign; make one with: minisign -G"
        ) from None
    if key.is_encrypted():
        password = os.environ.get(PASSWORD)
        if not password:
            raise PublishError(f"the key '{file}' has a password; give it in {PASSWORD}, or take a key without")
        try:
            key.decrypt(password)
        except (Error, ValueError):
            raise PublishError(f"{PASSWORD} does not open the key '{file}'") from None
    return key


def public_key(given: str) -> PublicKey:
    """The key that `--public-key` names: a file such as minisign.pub, or its second line. Raises CommandError."""
    try:
        from minisign import Error, PublicKey
    except ImportError:
        raise CommandError(LACKING) from None
    try:
        file = Path(given).expanduser()
        return PublicKey.from_file(file) if file.is_file() else PublicKey.from_base64(given)
    except (OSError, Error, ValueError):
        raise CommandError(
            f"--public-key '{given}' is neither a file with a public key of minisign nor such a key, RW…"
        ) from None


def mistake(folder: Path, key: PublicKey) -> str | None:
    """What is wrong with the signature of a publication; None when this key's owner signed its checksums."""
    from minisign import Error, Signature

    path = folder / SIGNATURE
    if not path.is_file():
        return f"it is not signed: there is no {SIGNATURE}"
    try:
        key.verify((folder / SUMS).read_bytes(), Signature.from_file(path))
    except (OSError, Error, ValueError):
        return f"{SIGNATURE} is no signature of {SUMS} by this key"
    return None
