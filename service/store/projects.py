"""Projects, their limits, and the access tokens that speak for them.

A token is `fin_<prefix>_<secret>`, with 256 random bits of secret. The store keeps the prefix, to look the token up,
and a SHA-256 of the secret, never the token itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, delete, insert, select, update

from service.jobs.job import new_id
from service.store import tables
from service.store.audit import note
from service.store.changes import ACCESS, QUEUE
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.tables import now


@dataclass(frozen=True)
class Project:
    """Who shares a queue, files and models."""

    name: str
    weight: float = 1.0
    """Share of the hosts beside other projects that wait."""
    max_gpus: int | None = None
    """GPUs that its jobs may hold at once."""
    max_running: int | None = None
    """Jobs that may hold resources at once."""
    max_queued: int | None = None
    """Jobs that may wait at once."""
    max_bytes: int | None = None
    """What it may keep on the disk in all: files, run folders, models, evals, finished stages, downloads."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the API keeps for it, such as allow-listed remote code."""
    created: float = 0.0


def project_of(row: RowMapping) -> Project:
    return Project(**row)


def known_project(transaction: Transaction, name: str, lock: bool = False) -> Project:
    """The project, made when it is not there. Locked, it lets one submission with a key through at a time."""
    query = select(tables.projects).where(tables.projects.c.name == name)
    if lock and transaction.postgresql:
        query = query.with_for_update(key_share=True)
    row = transaction.execute(query).mappings().first()
    if row is None:
        values = {"name": name, "weight": 1.0, "settings": {}, "created": now()}
        made = insert(tables.projects).values(**values)
        if transaction.postgresql:
            from sqlalchemy.dialects.postgresql import insert as insert_unless

            made = insert_unless(tables.projects).values(**values).on_conflict_do_nothing()
        transaction.execute(made)
        row = transaction.execute(query).mappings().one()
    return project_of(row)


class ProjectQueries(Database):
    """The part of the store that holds projects."""

    def ensure_project(self, name: str) -> Project:
        """The project, made with weight 1 and no limits when it is not there."""
        return self.write(lambda transaction: known_project(transaction, name))

    def project(self, name: str) -> Project:
        """One project. Raises NotFound."""
        query = select(tables.projects).where(tables.projects.c.name == name)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        if row is None:
            raise NotFound("project", name)
        return project_of(row)

    def projects(self) -> list[Project]:
        """All of them, by name."""
        query = select(tables.projects).order_by(tables.projects.c.name)
        return self.read(lambda transaction: [project_of(row) for row in transaction.execute(query).mappings()])

    def set_project(self, name: str, **changes: Any) -> Project:
        """Change `weight`, `max_gpus`, `max_running`, `max_queued`, `max_bytes` or `settings` of a project, made when
        it is not there."""
        unknown = set(changes) - {"weight", "max_gpus", "max_running", "max_queued", "max_bytes", "settings"}
        if unknown:
            raise TypeError(f"a project has no {', '.join(sorted(unknown))}")
        if changes.get("weight", 1) <= 0:
            raise ValueError(f"weight is {changes['weight']}, must be above 0")

        def work(transaction: Transaction) -> Project:
            known_project(transaction, name)
            if changes:
                transaction.execute(update(tables.projects).where(tables.projects.c.name == name).values(**changes))
            note(
                transaction,
                "project.set",
                "project",
                name,
                name,
                changed=[f"{key}={value}" for key, value in sorted(changes.items())],
            )
            transaction.topics.add(QUEUE)
            return known_project(transaction, name)

        return self.write(work)


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
    match = PATTERN.fullmatch(text)
    return (match.group(1), match.group(2)) if match else None


def matches(secret: str, sha256: str | None) -> bool:
    """Whether a secret is the one behind a hash, in constant time; None stands for an unknown prefix and never
    matches."""
    return hmac.compare_digest(digest(secret), sha256 or "0" * 64) and sha256 is not None


def may(role: str, needed: str) -> bool:
    """Whether a role includes what another may do."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


tokens = tables.tokens
ended = tables.ended_sessions
TOUCH_SECONDS = 60.0
"""`last_used` is exact to this, so that a busy client does not write at every request."""


@dataclass(frozen=True)
class Token:
    """Who may do what in which project."""

    id: str
    prefix: str
    sha256: str
    project: str
    role: str
    name: str = ""
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    def valid(self, moment: float) -> bool:
        """Whether it opens anything at this time."""
        return self.revoked is None and (self.expires is None or moment < self.expires)


def token_of(row: RowMapping) -> Token:
    return Token(**row)


class TokenQueries(Database):
    """The part of the store that holds tokens."""

    def add_token(
        self, prefix: str, sha256: str, *, project: str, role: str, name: str = "", expires: float | None = None
    ) -> Token:
        """Keep a new token; the project is made when it is not there."""
        if role not in ROLES:
            raise ValueError(f"role is '{role}', must be one of {', '.join(ROLES)}")
        made = Token(new_id("token"), prefix, sha256, project, role, name, now(), expires)

        def work(transaction: Transaction) -> Token:
            known_project(transaction, project)
            if transaction.execute(select(tokens.c.id).where(tokens.c.id == made.id)).first() is None:
                transaction.execute(insert(tokens).values(**vars(made)))
                note(
                    transaction,
                    "token.create",
                    "token",
                    made.id,
                    project,
                    role=role,
                    name=name or None,
                    expires=expires,
                )
            return made

        return self.write(work)

    def token_by_prefix(self, prefix: str) -> Token | None:
        """The token with this prefix, revoked ones included; the caller compares the hash and asks `valid`."""
        query = select(tokens).where(tokens.c.prefix == prefix)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        return None if row is None else token_of(row)

    def token_by_id(self, token_id: str) -> Token | None:
        """The token of this id, revoked ones included."""
        query = select(tokens).where(tokens.c.id == token_id)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        return None if row is None else token_of(row)

    def tokens(self, project: str | None = None) -> list[Token]:
        """All tokens, oldest first."""
        query = select(tokens).order_by(tokens.c.id)
        if project is not None:
            query = query.where(tokens.c.project == project)
        return self.read(lambda transaction: [token_of(row) for row in transaction.execute(query).mappings()])

    def revoke_token(self, token_id: str, project: str | None = None) -> Token:
        """End a token for good. Raises NotFound."""

        def work(transaction: Transaction) -> Token:
            query = select(tokens).where(tokens.c.id == token_id)
            if project is not None:
                query = query.where(tokens.c.project == project)
            row = transaction.execute(query).mappings().first()
            if row is None:
                raise NotFound("token", token_id)
            if row["revoked"] is None:
                transaction.execute(update(tokens).where(tokens.c.id == token_id).values(revoked=now()))
                note(
                    transaction,
                    "token.revoke",
                    "token",
                    token_id,
                    row["project"],
                    role=row["role"],
                    name=row["name"] or None,
                )
            transaction.topics.add(ACCESS)
            return token_of(transaction.execute(query).mappings().one())

        return self.write(work)

    def end_session(self, session: str, expires: float) -> None:
        """A session is worth nothing any more, wherever its cookie was copied to; kept until it expires by itself."""

        def work(transaction: Transaction) -> None:
            transaction.execute(delete(ended).where(ended.c.expires < now()))
            if transaction.execute(select(ended.c.id).where(ended.c.id == session)).first() is None:
                transaction.execute(insert(ended).values(id=session, expires=expires))
            transaction.topics.add(ACCESS)

        self.write(work)

    def session_ended(self, session: str) -> bool:
        """Whether its owner signed out."""
        query = select(ended.c.id).where(ended.c.id == session)
        return self.read(lambda transaction: transaction.execute(query).first()) is not None

    def touch_token(self, token: Token) -> None:
        """Note that it was used; writes at most once a minute."""
        moment = now()
        if token.last_used is not None and moment - token.last_used < TOUCH_SECONDS:
            return
        query = update(tokens).where(tokens.c.id == token.id).values(last_used=moment)
        self.write(lambda transaction: transaction.execute(query) and None)
