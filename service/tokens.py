"""Access tokens: `fin_<prefix>_<secret>`, 256 random bits of secret, of which the store keeps a SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

PATTERN = re.compile(r"fin_([0-9a-z]{12})_([A-Za-z0-9_-]{43})")
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
ROLES = ("viewer", "submitter", "admin")
"""Each may do what those before it may."""
PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class NewToken:
    """A token at the only moment when it is known."""

    text: str
    prefix: str
    sha256: str


def new_token() -> NewToken:
    """A fresh token."""
    prefix = "".join(secrets.choice(ALPHABET) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    return NewToken(f"fin_{prefix}_{secret}", prefix, digest(secret))


def digest(secret: str) -> str:
    """What the store keeps of a secret. A plain hash: nobody guesses 256 random bits, so it need not be slow."""
    return hashlib.sha256(secret.encode()).hexdigest()


def parts(text: str) -> tuple[str, str] | None:
    """Prefix and secret of what a client sent, or None when it is no token."""
    found = PATTERN.fullmatch(text)
    return (found.group(1), found.group(2)) if found else None


def matches(secret: str, sha256: str | None) -> bool:
    """Whether a secret is the one behind a hash, in constant time; None stands for an unknown prefix and never matches."""
    return hmac.compare_digest(digest(secret), sha256 or "0" * 64) and sha256 is not None


def may(role: str, needed: str) -> bool:
    """Whether a role includes what another may do."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)
