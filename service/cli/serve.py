"""`finery serve`: the whole service in one process, API, scheduler and supervisor of attempts."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from pipelines.core.errors import EXIT_DONE, CommandError
from service import logs
from service.api.app import create_app
from service.api.connections import listen, raise_file_limit, server_of
from service.checking import checker_of
from service.disk import drop_ballast, keep_ballast
from service.executors.isolation import REMEDY, Isolation
from service.executors.protocol import ExecutorError
from service.openai.eval_runner import EvalRunner
from service.settings import Settings, read_settings
from service.store.projects import digest, new_token, parts
from service.store.store import Store, open_store
from service.supervisor import Supervisor

LOCK = "serve.lock"
ADMIN_TOKEN = "admin.token"
PROJECT = "default"
PRIVATE = ("finery.db", "finery.db-wal", "finery.db-shm", "finery.db.migrating")


def serve(
    host: str | None,
    port: int | None,
    home: Path | None,
    database_url: str | None,
    executor: str | None,
    as_json: bool,
    allow_remote_code: Sequence[str] = (),
    **more: Any,
) -> int:
    """Serve until a signal. `more` are further settings by name. Raises CommandError when it cannot start."""
    settings = read_settings(
        host=host,
        port=port,
        home=home,
        database_url=database_url,
        executor=executor,
        allow_remote_code=tuple(allow_remote_code) or None,
        **more,
    )
    _make_home(settings.home)
    with _only_server(settings.home), _listening(settings) as listener:
        store = _opened(settings)
        try:
            fresh = first_token(store, settings.home)
            keep_ballast(settings.home, settings.disk_reserve)
            _run(settings, store, listener, as_json, fresh)
        finally:
            store.close()
    return EXIT_DONE


def _make_home(home: Path) -> None:
    """The folder, for this user alone: the database and the keys lie in it. Raises CommandError."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
            raise CommandError(
                f"--home {home} cannot be used: it may not be written; name a folder that you can write to"
            )
        _keep_private(home, 0o700)
        for name in (ADMIN_TOKEN, "web.key", LOCK, *PRIVATE):
            _keep_private(home / name, 0o600)
    except OSError as error:
        raise CommandError(
            f"--home {home} cannot be used: {error.strerror}; name a folder that you can write to"
        ) from None


def _keep_private(path: Path, mode: int) -> None:
    """Take everybody else's rights from a path that is there. Raises CommandError where it belongs to somebody else."""
    if path.is_symlink() or not path.exists() or not stat.S_IMODE(path.stat().st_mode) & 0o077:
        return
    try:
        path.chmod(mode)
    except PermissionError:
        raise CommandError(
            f"others can read {path}, which is not yours to change; have its owner run chmod {mode:o}, or name "
            "another --home"
        ) from None


def _opened(settings: Settings) -> Store:
    """The store, migrated. Raises CommandError, or FineryError, with one sentence."""
    drop_ballast(settings.home)
    place = settings.url.removeprefix("sqlite:///") if settings.url.startswith("sqlite:///") else ""
    try:
        if place:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(place, os.O_RDWR | os.O_CREAT, 0o600))
            for each in (place, f"{place}-wal", f"{place}-shm"):
                _keep_private(Path(each), 0o600)
        return open_store(settings)
    except OSError as error:
        raise CommandError(
            f"the database {place} cannot be used: {error.strerror}; look at the folder's rights and room, or name "
            "another --database-url"
        ) from None
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CommandError(
            f"the database cannot be opened: {reason}; name another --database-url, or restore the file from a backup"
        ) from None


@contextmanager
def _only_server(home: Path) -> Iterator[None]:
    """Hold the home for this process; the lock goes with the process, however it ends."""
    with open(home / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            held = f" by process {pid}" if (pid := file.read().strip()).isdigit() else ""
            raise CommandError(
                f"{home} is in use{held}: stop that server first, or serve from another --home"
            ) from None
        with suppress(OSError):  # on a full disk: the lock holds all the same
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket; bound before anything else begins, so that a taken port changes nothing."""
    listener = listen(settings.host, settings.port)
    try:
        yield listener
    finally:
        listener.close()


def first_token(store: Store, home: Path) -> Path | None:
    """Make sure that an admin can come in; returns the file with a new token when one was made.

    The file is written before the store learns of the token: a crash between the two is mended by the next start.
    """
    import time

    path = home / ADMIN_TOKEN
    token_parts = parts(path.read_text(encoding="utf-8").strip()) if path.is_file() else None
    if token_parts is not None and store.token_by_prefix(token_parts[0]) is None:
        store.add_token(token_parts[0], digest(token_parts[1]), project=PROJECT, role="admin", name="first start")
        return path
    if any(token.role == "admin" and token.valid(time.time()) for token in store.tokens()):
        return None
    made = new_token()
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{made.text}\n")
        file.flush()
        os.fsync(file.fileno())
    store.add_token(made.prefix, made.sha256, project=PROJECT, role="admin", name="first start")
    return path


def _run(settings: Settings, store: Store, listener: socket.socket, as_json: bool, fresh: Path | None) -> None:
    logs.configure(settings.log_format, settings.log_level)
    try:
        supervisor = Supervisor(settings, store)
        supervisor.executor.capacity()
    except ExecutorError as error:
        raise CommandError(str(error)) from None
    checker = checker_of(settings)
    app = create_app(settings, store, supervisor.wake, checker)
    runner = EvalRunner(app.state.service)
    app.state.service.stopped = lambda: [*supervisor.stopped(), *runner.stopped()]
    force = supervisor.executor.isolation
    app.state.service.isolated = force.kept or settings.isolation == "none"
    server = server_of(app, settings, raise_file_limit())

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn sends itself the signal again when it has ended gracefully; without a handler that would kill the process
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    checker.start()
    supervisor.start()
    runner.start()
    try:
        _announce(settings, listener, as_json, fresh, force)
        server.run(sockets=[listener])
    finally:
        runner.stop()
        app.state.service.served.close()
        supervisor.stop()
        checker.close()


def _announce(settings: Settings, listener: socket.socket, as_json: bool, fresh: Path | None, force: Isolation) -> None:
    """Say where it is. The socket is bound, so clients that connect from now on are served."""
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    token = settings.home / ADMIN_TOKEN
    if as_json:
        start = {
            "url": url,
            "home": str(settings.home),
            "admin_token": str(token) if token.is_file() else None,
            "pid": os.getpid(),
        }
        print(json.dumps(start | {"isolation": force.document()}), flush=True)
        _warn(settings, force)
        return
    print(f"Finery serves {url} from {settings.home}", flush=True)
    if fresh is not None:
        print(f"The admin's token is in {fresh}", flush=True)
    elif token.is_file():
        print(f"Token: {token}", flush=True)
    print(f"Isolation of jobs: {force.sentence()}", flush=True)
    _warn(settings, force)
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        print(
            "Others can reach this address: put a proxy with TLS before it, because tokens travel as they are.",
            file=sys.stderr,
            flush=True,
        )


def _warn(settings: Settings, force: Isolation) -> None:
    if force.kept:
        return
    if settings.isolation == "none":
        text = (
            "--isolation none: every job runs with all rights of this server and can read its tokens, secrets and "
            "database; give tokens only to those who may."
        )
    else:
        text = f"Jobs cannot be isolated here ({force.why}), so only admins may submit. To let others in, {REMEDY}."
    print(text, file=sys.stderr, flush=True)


__all__ = ["first_token", "serve"]
