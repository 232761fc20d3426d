"""Who looks at a page: a signed cookie that stands for a token, and the CSRF token of its forms.

The cookie is `prefix.expires.nonce.signature`. It never holds the access token: the signature covers the hash that
the store keeps, so a cookie ends with its token, when that is revoked, expires or is replaced. Who signs out ends the
cookie itself, wherever it was copied to: the store keeps its nonce until it would have expired. A visitor without a
token has a cookie too, with an empty prefix, so that the sign-in form is protected like every other (login CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from service.api.context import Caller
from service.store.projects import Token
from service.store.store import Store

COOKIE = "finery_session"
VISIT_COOKIE = "finery_visit"
"""Of the sign-in form alone."""
LIFETIME = 12 * 3600.0
"""Seconds that a sign-in lasts."""
MAY_SUBMIT = ("submitter", "admin")


@dataclass(frozen=True)
class Visitor:
    """Who asks for a page."""

    nonce: str
    csrf: str
    """What every form of this visitor carries."""
    token: Token | None = None
    expires: float = 0.0

    @property
    def project(self) -> str | None:
        """What the store is asked for: the token's project; an admin sees all."""
        return None if self.token is None or self.token.role == "admin" else self.token.project

    @property
    def home(self) -> str:
        """The project that this visitor submits to."""
        return "" if self.token is None else self.token.project

    @property
    def may_submit(self) -> bool:
        return self.token is not None and self.token.role in MAY_SUBMIT

    @property
    def caller(self) -> Caller:
        """The same as the API knows it. Only for who is signed in."""
        assert self.token is not None
        return Caller(self.token.id, self.token.project, self.token.role, self.project)

    @property
    def is_admin(self) -> bool:
        return self.token is not None and self.token.role == "admin"


class Sessions:
    """Makes and reads the cookies of one service; every server on the same home has the same key."""

    def __init__(self, store: Store, home: Path) -> None:
        self.store = store
        self.key = _key(home / "web.key")

    def read(self, cookie: str | None) -> Visitor | None:
        """The visitor that a cookie stands for; None when it is missing, forged, expired, or its token is no
        longer valid."""
        try:
            prefix, expires, nonce, signature = (cookie or "").split(".")
            limit = float(expires)
        except ValueError:
            return None
        if time.time() > limit:
            return None
        token = self.store.token_by_prefix(prefix) if prefix else None
        if prefix and (token is None or not token.valid(time.time())):
            return None
        if not hmac.compare_digest(signature.encode(), self._sign(prefix, expires, nonce, token).encode()):
            return None
        if token is not None and self.store.session_ended(nonce):
            return None
        return Visitor(nonce, self._csrf(nonce), token, limit)

    def end(self, visitor: Visitor) -> None:
        """Sign out: neither this cookie nor a copy of it is worth anything from now on."""
        self.store.end_session(visitor.nonce, visitor.expires)

    def make(self, token: Token | None) -> tuple[str, Visitor]:
        """A new cookie, and the visitor it stands for. Signing in makes a new one, so that a planted cookie is
        worth nothing."""
        prefix, expires, nonce = (
            (token.prefix if token else ""),
            f"{time.time() + LIFETIME:.0f}",
            secrets.token_urlsafe(18),
        )
        return f"{prefix}.{expires}.{nonce}.{self._sign(prefix, expires, nonce, token)}", Visitor(
            nonce, self._csrf(nonce), token, float(expires)
        )

    def _sign(self, prefix: str, expires: str, nonce: str, token: Token | None) -> str:
        return self._mac("session", prefix, expires, nonce, token.sha256 if token else "")

    def _csrf(self, nonce: str) -> str:
        return self._mac("form", nonce)

    def _mac(self, *parts: str) -> str:
        return hmac.new(self.key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def _key(path: Path) -> bytes:
    """The signing key: 256 random bits in a file that only the service reads, made by whoever is first."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(mine, path)  # complete or not there; of two servers that start at once one wins
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return path.read_bytes()
