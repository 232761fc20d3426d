"""`finery serve`: the whole service in one process, API, scheduler and supervisor of attempts."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import EXIT_DONE, CommandError

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.store import Store

LOCK = "serve.lock"
ADMIN_TOKEN = "admin.token"
PROJECT = "default"


def serve(
    host: str | None, port: int | None, home: Path | None, database_url: str | None, executor: str | None, as_json: bool,
    allow_remote_code: Sequence[str] = (),
) -> int:  # fmt: skip
    """Serve until a signal. Raises CommandError when it cannot start."""
    from service.settings import read_settings

    settings = read_settings(
        host=host, port=port, home=home, database_url=database_url, executor=executor, allow_remote_code=tuple(allow_remote_code) or None
    )
    _make_home(settings.home)
    with _only_server(settings.home), _listening(settings) as listener:
        from service.store.store import open_store

        store = open_store(settings)
        try:
            fresh = first_token(store, settings.home)
            _run(settings, store, listener, as_json, fresh)
        finally:
            store.close()
    return EXIT_DONE


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CommandError(f"--home {home} cannot be used: {error.strerror}; name a folder that you can write to") from None


@contextmanager
def _only_server(home: Path) -> Iterator[None]:
    """Hold the home for this process; the lock goes with the process, however it ends."""
    with open(home / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            held = f" by process {pid}" if (pid := file.read().strip()).isdigit() else ""
            raise CommandError(f"{home} is in use{held}: stop that server first, or serve from another --home") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket; bound before anything else begins, so that a taken port changes nothing."""
    from service.api.connections import listen

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

    from service.tokens import digest, new_token, parts

    path = home / ADMIN_TOKEN
    found = parts(path.read_text(encoding="utf-8").strip()) if path.is_file() else None
    if found is not None and store.token_by_prefix(found[0]) is None:
        store.add_token(found[0], digest(found[1]), project=PROJECT, role="admin", name="first start")
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
    from service import logs
    from service.api.app import create_app
    from service.api.connections import raise_file_limit, server_of
    from service.checking import checker_of
    from service.serving import Supervisor

    logs.configure(settings.log_format, settings.log_level)
    supervisor = Supervisor(settings, store)
    checker = checker_of(settings)
    app = create_app(settings, store, supervisor.wake, checker)
    server = server_of(app, settings, raise_file_limit())

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn sends itself the signal again when it has ended gracefully; without a handler that would kill the process
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    checker.start()
    supervisor.start()
    try:
        _announce(settings, listener, as_json, fresh)
        server.run(sockets=[listener])
    finally:
        supervisor.stop()
        checker.close()


def _announce(settings: Settings, listener: socket.socket, as_json: bool, fresh: Path | None) -> None:
    """Say where it is. The socket is bound, so clients that connect from now on are served."""
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    token = settings.home / ADMIN_TOKEN
    if as_json:
        print(json.dumps({"url": url, "home": str(settings.home), "admin_token": str(token) if token.is_file() else None, "pid": os.getpid()}), flush=True)
        return
    print(f"Finery serves {url} from {settings.home}", flush=True)
    if fresh is not None:
        print(f"The admin's token is in {fresh}", flush=True)
    elif token.is_file():
        print(f"Token: {token}", flush=True)
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        print("Others can reach this address: put a proxy with TLS before it, because tokens travel as they are.", file=sys.stderr, flush=True)


__all__ = ["first_token", "serve"]
