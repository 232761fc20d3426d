"""The databases that chaos strikes: a SQLite file, or a PostgreSQL server of its own that can be stopped in the middle."""

import os
import shutil
import socket
import subprocess
import tempfile
import weakref
from pathlib import Path

BINARIES = next(
    (str(path.parent) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), ""
)


class Sqlite:
    """Nothing to restart: the database is in the server's own process."""

    restarts = False
    url = ""

    def start(self):
        """Nothing."""

    def stop(self):
        """Nothing."""


class Postgresql:
    """A server in a temporary folder, run as the user `postgres` when this process is root, which initdb refuses.

    The folder is none of pytest's: another pytest of the same user takes its right to enter those from everybody else.
    """

    restarts = True

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = Path(tempfile.mkdtemp(prefix="finery-postgresql-", dir="/tmp"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.data = self.folder / "data"
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self._as:
            shutil.chown(self.folder, "postgres")
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 60\n"
            )

    @staticmethod
    def missing():
        """Why it cannot be had; None when it can."""
        if not BINARIES:
            return "no PostgreSQL server is installed below /usr/lib/postgresql"
        if os.getuid() == 0 and shutil.which("runuser") is None:
            return "initdb refuses root, and there is no runuser to become another user"
        return None

    def start(self):
        """Start it and wait until it answers."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.folder / "log"), "start")

    def stop(self):
        """Stop it as a crash would: connections break, nothing is written that was not."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop", check=False)

    def commits(self):
        """Transactions so far: two looks tell whether it is at work."""
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5) as connection:
            return connection.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchone()[0]

    def _run(self, program, *words, check=True):
        subprocess.run(
            [*self._as, f"{BINARIES}/{program}", *words],
            check=check,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
