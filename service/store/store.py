"""The store: every query and every short transaction of the service, on one database."""

from __future__ import annotations

from service.settings import Settings
from service.store.attempts import Attempts
from service.store.audit import Audit
from service.store.counting import Counting
from service.store.events import Events
from service.store.files import Files
from service.store.hosts import Hosts
from service.store.jobs import Jobs
from service.store.leases import Leases
from service.store.migrating import upgrade
from service.store.projects import Projects
from service.store.results import Results
from service.store.tokens import Tokens
from service.store.waiting import Queue


class Store(Jobs, Attempts, Events, Leases, Results, Hosts, Files, Tokens, Projects, Queue, Audit, Counting):
    """Jobs and all that belongs to them. Thread-safe; each call is one transaction.

    Every look-up takes a `project`: what belongs to another one is not found. None is an admin, who sees all.
    """


def open_store(settings: Settings) -> Store:
    """Bring the database's schema up to date, then open it."""
    store = Store(settings.url)
    upgrade(store)
    return store
