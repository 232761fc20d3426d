"""An attempt that attacks the server it runs on, in every mode that this machine has: real launcher, real kernel, the attempt is Python.

In the mode `none` the same attacks succeed, which shows that they are attacks.
"""

import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pipelines.core.errors import CommandError
from service.attempts.watching import Watcher
from service.cli.serve import first_token
from service.executors import isolation as isolation_module
from service.executors import local
from service.executors.isolation import NONE, Isolation, isolation_of, plan_of, tried
from service.executors.landlock import abi
from service.executors.local import LocalExecutor, marked
from service.executors.protocol import AttemptSpec, ExecutorError, Exited, HostCapacity, Placement, Sandbox
from service.jobs.job import HostShare, JobRequest
from service.jobs.states import Reason, State
from service.settings import read_settings
from service.store.store import open_store
from service.supervisor import Supervisor
from tests.conftest import REPOSITORY
from tests.service.executors.worlds import PROGRAM, ended, printed, until
from tests.service.served import RECIPE, YAML, Served
from tests.words import words_of

HOST = "here"
MODES = {
    "bubblewrap": lambda: tried("bubblewrap"),
    "landlock": lambda: tried("landlock"),
    "landlock-without-namespaces": lambda: Isolation("landlock", (), abi()) if abi() else "this kernel has no Landlock",
    "none": lambda: NONE,
}
ATTACKS = """
import ctypes, json, os, signal, socket, sys
told = json.loads(sys.argv[1])
found = {}

def attack(name, act):
    try:
        found[name] = act() or "done"
    except BaseException as error:
        found[name] = type(error).__name__

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.settimeout(3)
        made.connect(address)

def trace(pid):
    if ctypes.CDLL(None, use_errno=True).ptrace(16, pid, 0, 0) != 0:
        raise PermissionError(ctypes.get_errno())

for path in told["read"]:
    attack("read " + path, lambda: open(path, "rb").read(8) and None)
for path in told["list"]:
    attack("list " + path, lambda: None if os.listdir(path) else "empty")
for path in told["write"]:
    attack("write " + path, lambda: open(path, "ab").close())
    attack("unlink " + path, lambda: os.unlink(path))
for path in told["chmod"]:
    attack("chmod " + path, lambda: os.chmod(path, 0o777))
for name, pid in told["processes"].items():
    attack("environ of " + name, lambda: open(f"/proc/{pid}/environ", "rb").read() and None)
    attack("memory of " + name, lambda: open(f"/proc/{pid}/mem", "rb").close())
    attack("root of " + name, lambda: os.listdir(f"/proc/{pid}/root/") and None)
    attack("trace " + name, lambda: trace(pid))
    attack("signal " + name, lambda: os.kill(pid, 0))
for name, (host, port) in told["tcp"].items():
    attack("tcp " + name, lambda: connect(socket.AF_INET, (host, port)))
for path in told["unix"]:
    attack("unix " + path.replace("\\0", "@"), lambda: connect(socket.AF_UNIX, path))
if "FINERY_EGRESS" in os.environ:
    for name, target in told["through"].items():
        def ask():
            proxy = os.environ["FINERY_EGRESS"].rpartition(":")[2]
            with socket.create_connection(("127.0.0.1", int(proxy)), 10) as made:
                made.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
                status = made.recv(4096).split()[1].decode()
            if status != "200":
                raise PermissionError(status)
        attack("through " + name, ask)
with open("/proc/self/status") as file:
    found["capabilities"] = next(line.split()[1] for line in file if line.startswith("CapEff"))
attack("a user namespace", lambda: None if ctypes.CDLL(None).unshare(0x10000000) == 0 else (_ for _ in ()).throw(PermissionError()))
attack("mount", lambda: None if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else (_ for _ in ()).throw(PermissionError()))
print(json.dumps(found))
"""


AT_ITS_KEEPERS = """
import ctypes, json, os, signal
found = {}
for name, pid in (("parent", os.getppid()), ("first", 1)):
    for what in ("environ", "mem", "root/etc/passwd"):
        try:
            open(f"/proc/{pid}/{what}", "rb").read(1)
            found[f"{name} {what}"] = "done"
        except OSError as error:
            found[f"{name} {what}"] = type(error).__name__
    ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0 and found.__setitem__(f"{name} trace", "done")
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
print(json.dumps(found))
"""
IN_ITS_MEMORY = """
import re, sys
own = "a word that only " + "it has"
found = [False, False]
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        first, last, rights = re.match("([0-9a-f]+)-([0-9a-f]+) (....)", line).groups()
        if rights[0] == "r" and "[v" not in line:
            memory.seek(int(first, 16))
            try:
                content = memory.read(int(last, 16) - int(first, 16))
            except OSError:
                continue
            for number, word in enumerate(sys.argv[1:]):
                found[number] |= bytes(reversed(word.encode())) in content
            del content
print(*found)
"""


class Home:
    """A service's home with two projects, a job of each, and the job that attacks."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.files = {
            name: self.home / name
            for name in words_of(
                "admin.token web.key finery.db secrets/acme/HF_TOKEN files/others/file-1 "
                "models/others/theirs/0123/model.safetensors jobs/job-theirs/recipe.yaml "
                "jobs/job-theirs/runs/demo/events.jsonl cache/others/stages/ff00/weights "
                "jobs/job-mine/attempts/earlier/console/0.log hub/others/token serve.lock"
            )
        }
        self.shared = self.home / "cache/acme/stages/aa11/weights"
        self.model = self.home / "models/acme/ours/4567/model.safetensors"
        self.job = self.home / "jobs/job-mine"
        self.input = self.job / "inputs/file-9/rows.jsonl"
        for path in (*self.files.values(), self.shared, self.model, self.input, self.job / "recipe.yaml"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(b"content\n")
            path.chmod(0o600)
        self.count = 0

    def spec(self, command, environment=None, **places):
        self.count += 1
        attempt = f"attempt-{os.getpid()}-{time.time_ns()}"
        record = self.job / "attempts" / attempt
        shown = Sandbox(
            read=(
                str(self.job / "recipe.yaml"),
                str(self.job / "inputs"),
                str(record / "secrets"),
                str(self.model.parent),
                str(self.shared.parent.parent),
            ),
            write=(
                str(self.job / "runs"),
                str(self.job / "published"),
                str(self.job / "cache"),
                str(self.home / "hub/acme"),
            ),
            hidden=(str(self.home),),
            **places,
        )
        return AttemptSpec(
            attempt_id=attempt,
            job_id="job-mine",
            fencing_token=self.count,
            command=tuple(map(str, command)),
            folder=self.job,
            record=record,
            environment={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **(environment or {})},
            placements=(Placement(HOST),),
            sandbox=shown,
        )


ONE_MODE = pytest.mark.parametrize(
    "mode",
    [mode if at == 0 else pytest.param(mode, marks=pytest.mark.long) for at, mode in enumerate(MODES)],
    indirect=True,
)
"""For what takes seconds: the strongest in a usual run, the others with the long tests."""


@pytest.fixture(params=list(MODES))
def mode(request):
    isolation = MODES[request.param]()
    if isinstance(isolation, str):
        pytest.skip(f"this machine does not isolate so: {isolation}")
    return isolation


@pytest.fixture
def isolated(mode):
    if not mode.kept:
        pytest.skip("nothing is isolated")
    return mode


@pytest.fixture
def home():
    """Not below /tmp, where an attempt may make what it likes: that is its own."""
    with tempfile.TemporaryDirectory(prefix="finery-", dir="/var/tmp") as folder:
        yield Home(Path(folder))


@contextmanager
def attempt(isolation, spec, **options):
    executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), isolation=isolation, **options)
    handle = executor.start(spec)
    try:
        yield executor, handle
    finally:
        executor.kill(handle)


def run(isolation, spec, seconds=60.0, **options):
    """How an attempt ended and what it printed."""
    with attempt(isolation, spec, **options) as (executor, handle):
        end = ended(executor, handle, seconds)
        return end, printed(executor, handle).decode()


def python(code, *words):
    return (sys.executable, "-c", code, *words)


def attacked(isolation, home, **told):
    everything = {
        "read": [],
        "list": [],
        "write": [],
        "chmod": [],
        "processes": {},
        "tcp": {},
        "unix": [],
        "through": {},
    } | told
    end, text = run(isolation, home.spec(python(ATTACKS, json.dumps(everything))))
    assert end == Exited(0), text
    return json.loads(text.splitlines()[-1])


def strong(isolation):
    return isolation.mode == "bubblewrap" or "namespaces" in isolation.features


def test_nothing_of_the_home_but_the_job_s_own_parts_can_be_read_listed_or_changed(mode, home):
    theirs = [str(path) for path in home.files.values()]
    folders = [
        str(home.home / name)
        for name in words_of("secrets files models/others jobs/job-theirs cache/others jobs/job-mine/attempts/earlier")
    ]
    ours = [str(home.shared), str(home.model), str(home.input), str(home.job / "recipe.yaml")]
    code = [str(REPOSITORY / "service" / "settings.py"), "/etc/passwd", str(REPOSITORY / "planted.py")]
    found = attacked(mode, home, read=theirs, list=folders, write=[*theirs, *ours, *code] if mode.kept else theirs[:1])
    if not mode.kept:
        assert {found[f"read {path}"] for path in theirs} == {"done"}
        assert {found[f"list {path}"] for path in folders} == {"done"}
        assert found[f"write {theirs[0]}"] == "done"
        return
    allowed = {"PermissionError", "FileNotFoundError", "OSError"}
    wrong = {
        name: what
        for name, what in found.items()
        if name.partition(" ")[0] in ("read", "list", "write", "unlink") and what not in allowed
    }
    assert wrong == {}
    assert all(
        path.read_bytes() == b"content\n" for path in (*home.files.values(), home.shared, home.model, home.input)
    )
    assert found["capabilities"] == "0" * 16
    assert found["mount"] == "PermissionError"


def test_the_modes_of_files_outside_cannot_be_changed_where_there_are_namespaces(isolated, home):
    paths = [
        str(home.home),
        str(home.home / "admin.token"),
        str(home.job / "recipe.yaml"),
        str(REPOSITORY / "service" / "settings.py"),
    ]
    if not strong(isolated):
        assert "the modes of files may be changed" in isolated.left_open
        assert "shared memory of the server's user (/dev/shm) may be read and written" in isolated.left_open
        return
    found = attacked(isolated, home, chmod=paths)
    assert {found[f"chmod {path}"] for path in paths} <= {"OSError", "FileNotFoundError", "PermissionError"}
    assert (home.home / "admin.token").stat().st_mode & 0o777 == 0o600
    assert found["a user namespace"] == "PermissionError"


def test_passwords_and_keys_of_the_system_cannot_be_read(isolated, home):
    secret = [
        path
        for path in ("/etc/shadow", "/etc/ssh/sshd_config", "/root/.bashrc", "/etc/gshadow", "/var/log/dpkg.log")
        if Path(path).exists()
    ]
    kernel = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/sys/class/net/lo/mtu",
    ]
    found = attacked(
        isolated,
        home,
        read=secret,
        list=["/etc/ssl/private", "/var/log", "/home"],
        write=[path for path in kernel if Path(path).exists()],
    )
    wrong = {
        name: what
        for name, what in found.items()
        if name.startswith(("read", "list", "write"))
        and what not in ("PermissionError", "FileNotFoundError", "OSError")
    }
    assert wrong == {}


def test_processes_outside_cannot_be_looked_into_traced_or_signalled(mode, home):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={"SECRET": "x"}) as server:
        try:
            found = attacked(
                mode, home, processes={"server": server.pid, **({"this": os.getpid()} if mode.kept else {})}
            )
        finally:
            server.kill()
    checked = {name: what for name, what in found.items() if " of " in name or name.startswith(("trace", "signal"))}
    assert len(checked) == (10 if mode.kept else 5)
    if not mode.kept:
        assert set(checked.values()) == {"done"}
    elif strong(mode) or abi() >= 6:
        assert set(checked.values()) <= {"PermissionError", "FileNotFoundError", "ProcessLookupError"}, checked


def test_the_launcher_and_the_keeper_inside_cannot_be_looked_into_or_killed(isolated, home):
    end, text = run(isolated, home.spec(python(AT_ITS_KEEPERS)))
    assert end == Exited(0), text
    assert "done" not in json.loads(text).values()


def test_an_attempt_forked_from_a_warm_interpreter_is_kept_apart_as_one_in_a_new_one_is(home, monkeypatch):
    isolation = tried("landlock")
    if isinstance(isolation, str) or "namespaces" not in isolation.features:
        pytest.skip(f"this machine does not isolate so: {isolation}")
    monkeypatch.setenv("OF_THE_OPERATOR", secret := "a word that only " + "the service has")
    executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), isolation=isolation, warm=1)
    everything = {
        "read": ["/etc/shadow", *map(str, home.files.values())],
        "list": [str(home.home / "secrets"), "/var/log", "/home"],
        "write": [str(home.shared), str(REPOSITORY / "service" / "settings.py")],
        "chmod": [str(home.home)],
        "processes": {"service": os.getpid()},
        "tcp": {},
        "unix": [],
        "through": {},
    }

    def forked(code, *words):
        spec = home.spec((*PROGRAM, "-c", code, *words), {"PYTHONPATH": str(REPOSITORY)})
        spec = replace(spec, sandbox=replace(spec.sandbox, read=(*spec.sandbox.read, str(REPOSITORY / "tests"))))
        handle = executor.start(spec)
        end = ended(executor, handle)
        return end, printed(executor, handle).decode()

    try:
        assert forked("")[0] == Exited(0)
        kept = next(iter(executor._warm._kept.values()))
        until(kept.ready)
        end, text = forked(
            ATTACKS, json.dumps(everything | {"processes": {"service": os.getpid(), "warm": kept.process.pid}})
        )
        assert end == Exited(0), text
        done = {name for name, what in json.loads(text).items() if what == "done"}
        assert done == set()
        assert json.loads(text)["capabilities"] == "0" * 16
        end, text = forked(AT_ITS_KEEPERS)
        assert end == Exited(0), text
        assert "done" not in json.loads(text).values()
        end, text = forked(IN_ITS_MEMORY, secret[::-1], "a word that only it has"[::-1])
        assert (end, text.split()) == (Exited(0), ["False", "True"])
        assert list(executor._warm._kept.values()) == [kept]
    finally:
        executor.close()


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = b"of the server " + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Something that listens on this machine's loopback, as the service does."""
    made = http.server.ThreadingHTTPServer(("", 0), Quiet)
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


def test_neither_loopback_nor_the_database_nor_metadata_are_reached(mode, home, server):
    tcp = {
        "server": ("127.0.0.1", server),
        "database": ("127.0.0.1", 5432),
        "metadata": ("169.254.169.254", 80),
        "wildcard": ("0.0.0.0", server),
    }
    own = next((each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)), "127.0.0.1")
    tcp["own address"] = (own, server)
    through = {
        "server": f"127.0.0.1:{server}",
        "localhost": f"localhost:{server}",
        "database": "127.0.0.1:5432",
        "metadata": "169.254.169.254:80",
        "mapped": f"[::ffff:127.0.0.1]:{server}",
        "nat64": f"[64:ff9b::7f00:1]:{server}",
        "number": f"2130706433:{server}",
        "short": f"127.1:{server}",
        "zero": f"0.0.0.0:{server}",
        "azure": "168.63.129.16:80",
    }
    if not mode.kept:
        assert attacked(mode, home, tcp={"server": tcp["server"]})["tcp server"] == "done"
        return
    if not strong(mode):
        assert any("may be connected to" in each for each in mode.left_open)
        tcp = {"database": tcp["database"], "metadata": tcp["metadata"]} if abi() >= 4 else {}
    found = attacked(mode, home, tcp=tcp, through=through)
    reached = {name: what for name, what in found.items() if name.startswith(("tcp", "through")) and what == "done"}
    assert reached == {}
    assert len([name for name in found if name.startswith("through")]) == len(through)


def test_sockets_in_folders_and_abstract_ones_are_not_reached(mode, home, tmp_path):
    path, abstract = tmp_path / "s", f"\0finery-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as unnamed:
        named.bind(str(path))
        unnamed.bind(abstract)
        named.listen()
        unnamed.listen()
        found = attacked(
            mode, home, unix=[str(path), abstract, "/var/run/postgresql/.s.PGSQL.5432", "/var/run/docker.sock"]
        )
    if not mode.kept:
        assert found[f"unix {path}"] == found[f"unix @{abstract[1:]}"] == "done"
        return
    if strong(mode) or abi() >= 6:
        assert found[f"unix @{abstract[1:]}"] != "done"
    if strong(mode):
        assert "done" not in {what for name, what in found.items() if name.startswith("unix")}
    else:
        assert "sockets that lie in folders may be connected to" in mode.left_open


def test_a_port_is_refused_even_where_private_endpoints_are_allowed(isolated, home, server):
    code = "import os, sys, urllib.request as u\nfor port in sys.argv[1:]:\n try: print(u.build_opener(u.ProxyHandler({'http': os.environ['FINERY_EGRESS']})).open(f'http://127.0.0.2:{port}/x', timeout=10).read())\n except OSError as error: print(error)"
    with socketserver.TCPServer(("", 0), Quiet) as refused:
        spec = home.spec(
            python(code, server, refused.server_address[1]),
            private_endpoints=True,
            refused_ports=(refused.server_address[1],),
        )
        end, text = run(isolated, spec)
    assert end == Exited(0), text
    assert text.splitlines() == ["b'of the server /x'", "HTTP Error 403: Refused"]


WORK = """
import os, tempfile, multiprocessing, pathlib
import torch, torch.distributed as d
d.init_process_group("gloo")
x = torch.ones(1)
d.all_reduce(x)
os.write(1, f"sum {int(x)}\\n".encode())
if d.get_rank() == 0:
    import transformers, datasets, pipelines
    from huggingface_hub import hf_hub_download
    from torch.utils.data import DataLoader
    path = hf_hub_download("o/n", "rows.jsonl", repo_type="dataset")
    assert open(path).read().count("text") == len(datasets.load_dataset("json", data_files=path, split="train")) == 2
    for folder in ("runs/demo", "published/m", "cache/stages"):
        os.makedirs(folder, exist_ok=True)
        pathlib.Path(folder, "made").write_text("x")
    pathlib.Path("runs/link").symlink_to("demo")
    pathlib.Path(os.environ["TMPDIR"], "t").write_text("x")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    assert os.path.isdir(os.environ["HOME"])
    assert pathlib.Path("recipe.yaml").read_text() == pathlib.Path("inputs/file-9/rows.jsonl").read_text() == "content\\n"
    assert [int(batch.sum()) for batch in DataLoader(torch.arange(8), batch_size=4, num_workers=1)] == [6, 22]
    pathlib.Path("/dev/null").write_text("x")
    os.write(1, b"works\\n")
    assert len(open("/dev/urandom", "rb").read(4)) == 4 and os.cpu_count() and open("/proc/self/status").readline()
d.barrier()
d.destroy_process_group()
"""


class Hub(Quiet):
    """A stand-in for the Hub on this machine."""

    def do_GET(self):
        if self.path.startswith("/api/"):
            listed = {"id": "o/n", "sha": "a" * 40, "siblings": [{"rfilename": "rows.jsonl"}]}
            self._say(json.dumps(listed).encode(), "application/json")
        else:
            self._say(b'{"text": "one"}\n{"text": "two"}\n', "text/plain")

    def _say(self, content, kind):
        self.send_response(200)
        named = {"Content-Type": kind, "Content-Length": str(len(content)), "Accept-Ranges": "bytes"}
        for name, value in {**named, "ETag": '"0123"', "X-Repo-Commit": "a" * 40}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@ONE_MODE
def test_what_a_run_of_two_ranks_needs_works(isolated, home):
    """Its folders, ranks that meet on the loopback, workers, and the Hub through the egress proxy, which
    `private_endpoints` lets reach a stand-in on this machine, as it would an operator's mirror."""
    (home.job / "inputs" / "ranks.py").write_text(WORK)
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--rdzv_backend=c10d")
    ranks = 2 if strong(isolated) else 1  # else it is the host's own loopback
    command = (*torchrun, "--rdzv_endpoint=127.0.0.1:0") if ranks == 2 else ()
    command = (sys.executable, *command, str(home.job / "inputs" / "ranks.py"))
    made = http.server.ThreadingHTTPServer(("127.0.0.2", 0), Hub)
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.2:{made.server_address[1]}",
        "HF_HOME": str(home.home / "hub/acme"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **({} if ranks == 2 else {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}),
    }
    try:
        end, text = run(isolated, home.spec(command, environment, private_endpoints=True), 120)
    finally:
        made.shutdown()
        made.server_close()
    assert end == Exited(0), text
    assert (text.count(f"sum {ranks}"), text.count("works")) == (ranks, 1)
    assert list((home.home / "hub/acme").rglob("rows.jsonl"))
    assert sorted(path.name for path in (home.job / "runs").iterdir()) == ["demo", "link"]
    assert (home.job / "published/m/made").stat().st_mode & 0o077 == 0
    assert not list(home.job.glob("attempts/attempt-*/tmp")), "private temporary files go with the attempt"


def test_a_place_that_cannot_be_isolated_ends_before_the_command_runs(home, monkeypatch):
    """A plan that the kernel refuses is an end with a sentence, never a start without isolation."""
    spec = home.spec(("/bin/sh", "-c", "echo ran"))
    broken = Isolation("landlock", ("namespaces", "user"), abi())
    executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), isolation=broken)
    monkeypatch.setattr(local, "plan_of", lambda *arguments: {**plan_of(*arguments), "read": ["/no/such/place"]})
    handle = executor.start(spec)
    end = ended(executor, handle)
    text = printed(executor, handle).decode()
    assert end == Exited(126), text
    assert "could not be isolated" in text
    assert "ran" not in text.split()


def test_the_proxy_and_all_else_end_with_the_attempt_and_with_the_launcher(isolated, home):
    code = "import time, os\nprint(os.environ['FINERY_EGRESS'], flush=True)\ntime.sleep(100)"
    for lose in (False, True):
        spec = home.spec(python(code))
        with attempt(isolated, spec) as (executor, handle):
            until(lambda handle=handle, executor=executor: b"http://127.0.0.1:" in printed(executor, handle), 30)
            launcher = handle.record["launcher_pid"]
            below = children(launcher)
            assert len(below) >= 2
            if lose:
                os.kill(launcher, signal.SIGKILL)
            assert executor.kill(handle) is True
            until(lambda below=below: not [pid for pid in below if Path(f"/proc/{pid}").exists()], 10)
            assert marked(spec.attempt_id) == []
            assert not [path for path in handle.record["private"] if Path(path).exists()], (
                "whoever proves it dead removes its private files"
            )


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_system_s_places_never_open_the_home_within_them(tmp_path):
    from service.executors.sandbox import around

    for path in ("data/sets/a", "data/service/home/admin.token", "data/service/other"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "data" / "service")
    hidden = [str(tmp_path / "data" / "service" / "home")]
    assert around(str(tmp_path / "data"), hidden) == [str(tmp_path / "data/service/other"), str(tmp_path / "data/sets")]
    assert around(str(tmp_path / "link"), hidden) == [str(tmp_path / "link/other")]
    assert around(hidden[0], hidden) == around(f"{hidden[0]}/jobs", hidden) == around("/", hidden) == []


@pytest.fixture
def served(migrated_sqlite, tmp_path):
    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    settings = read_settings({}, home=tmp_path)
    store = open_store(settings)
    made = Served(settings, store)
    yield made
    made.service.isolated = True
    store.close()


@pytest.mark.parametrize("who", ["submitter", "admin"])
def test_a_job_that_another_server_took_is_not_started_without_isolation_unless_it_is_an_admins(served, who):
    answer = getattr(served, who).post("/api/v1/jobs", content=RECIPE, headers=YAML)
    attempt = served.store.start(
        answer.json()["id"], (HostShare("here"),), executor="local", holder="tests", lease_seconds=1e6
    )
    started = []

    class Bare(LocalExecutor):
        def start(self, spec):
            started.append(spec.attempt_id)
            raise ExecutorError("enough was seen")

    watcher = Watcher(served.store, served.settings, Bare(HostCapacity("here", 2, 8 << 30)), "tests")
    watcher.step()
    watcher.stop()
    job = served.store.job(attempt.job)
    if who == "admin":
        assert started == [attempt.id]
    else:
        assert started == []
        assert (job.state, job.reason) == (State.FAILED, Reason.NO_RESOURCES)
        assert "cannot isolate" in job.message


def test_without_isolation_only_admins_submit_on_every_surface(served):
    served.service.isolated = False
    rows = b"".join(
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' for _ in range(10)
    )
    file = served.submitter.post(
        "/v1/files", files={"file": ("chat.jsonl", rows)}, data={"purpose": "fine-tune"}
    ).json()["id"]
    body = {"model": "scratch/gpt-tiny", "training_file": file}
    refused = served.submitter.post("/api/v1/jobs", content=RECIPE, headers=YAML)
    assert (refused.status_code, refused.json()["code"]) == (403, "no_isolation")
    assert refused.json()["detail"].count(".") == 1
    of_openai = served.submitter.post("/v1/fine_tuning/jobs", json=body)
    assert (of_openai.status_code, of_openai.json()["error"]["code"]) == (403, "no_isolation")
    assert served.store.jobs() == []
    assert served.admin.post("/api/v1/jobs", content=RECIPE, headers=YAML).status_code == 201
    served.service.isolated = True
    assert served.submitter.post("/api/v1/jobs", content=RECIPE, headers=YAML).status_code == 201
    assert served.submitter.post("/v1/fine_tuning/jobs", json=body).status_code == 200


def test_a_machine_without_isolation_says_why_and_a_mode_that_is_named_must_work(monkeypatch):
    monkeypatch.setattr(isolation_module, "tried", lambda mode: "it is switched off")
    found = isolation_of("auto")
    assert (found.mode, found.kept, found.why) == (
        "none",
        False,
        "bubblewrap: it is switched off; landlock: it is switched off",
    )
    assert "tokens" in found.sentence()
    with pytest.raises(CommandError, match="--isolation landlock does not work on this machine: it is switched off"):
        isolation_of("landlock")
    assert isolation_of("none") == NONE


def test_a_kernel_that_gives_files_alone_is_not_taken_for_more():
    """What Landlock without namespaces leaves open is said, more of it the older the kernel."""
    counts = [len(Isolation("landlock", (), version).left_open) for version in (1, 4, 6)]
    assert counts == [5, 5, 4]
    assert Isolation("landlock", ("namespaces",), 1).left_open == Isolation("bubblewrap").left_open == ()
    assert "every address" in Isolation("landlock", (), 3).sentence()


STEALS = """
import json, os, sys
home, found = sys.argv[1], {}
for name in ("admin.token", "web.key", "finery.db", "secrets/default/HF_TOKEN", "jobs"):
    try:
        path = os.path.join(home, name)
        found[name] = "done" if (os.listdir(path) if name == "jobs" else open(path, "rb").read()) else "empty"
    except OSError as error:
        found[name] = type(error).__name__
os.makedirs("runs/tiny", exist_ok=True)
with open("runs/tiny/found.json", "w") as file:
    json.dump(found, file)
"""


def test_an_attempt_that_the_service_starts_cannot_read_its_token(migrated_sqlite, monkeypatch, mode):
    """The whole way: store, scheduler, watcher, preparing, executor, launcher, kernel."""
    with tempfile.TemporaryDirectory(prefix="finery-", dir="/var/tmp") as folder:
        home = Path(folder) / "home"
        (home / "secrets/default").mkdir(parents=True)
        (home / "secrets/default/HF_TOKEN").write_text("hf_x")
        (home / "web.key").write_text("x")
        shutil.copy(migrated_sqlite, home / "finery.db")
        monkeypatch.setenv("FINERY_HOME", str(Path(folder) / "cache"))
        settings = read_settings({}, home=home, cpus=2, isolation="auto" if mode.kept else "none")
        store = open_store(settings)
        first_token(store, home)
        executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), isolation=mode)
        supervisor = Supervisor(settings, store, executor, (sys.executable, "-c", STEALS, str(home)))
        supervisor.start()
        try:
            assert store.hosts()[0].info["isolation"]["mode"] == mode.mode
            job = store.submit(
                JobRequest(recipe=RECIPE.replace("name: demo", "name: tiny"), project="default", name="tiny")
            )[0].id
            until(lambda: store.job(job).over, 60)
            found = json.loads((home / "jobs" / job / "runs/tiny/found.json").read_text())
        finally:
            supervisor.stop()
            store.close()
    read = {name for name, what in found.items() if what == "done"}
    assert len(found) == 5
    assert read == set(found) if not mode.kept else read <= {"jobs"}, (
        "of the folder of jobs it may see its own place, by name"
    )


TINY = """
name: tiny
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: supervised, task: builtin/python-docs, max_length: 32, max_train_samples: 32, arguments: {max_steps: 4, global_batch_size: 8}}
  - {stage: evaluate, max_eval_samples: 40, baselines: [majority]}
  - {stage: publish, to: tiny}
"""


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["bubblewrap", "landlock", "none"])
def test_a_real_recipe_succeeds_on_a_real_server(wanted, monkeypatch):
    if wanted != "none" and isinstance(why := tried(wanted), str):
        pytest.skip(f"this machine does not isolate so: {why}")
    with tempfile.TemporaryDirectory(prefix="finery-", dir="/var/tmp") as folder:
        environment = os.environ | {"FINERY_HOME": f"{folder}/cache", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "service.cli",
            "serve",
            "--home",
            f"{folder}/home",
            "--port",
            "0",
            "--json",
            "--isolation",
            wanted,
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as server:
            try:
                told = json.loads(server.stdout.readline())
                assert told["isolation"]["mode"] == wanted
                client = httpx.Client(
                    base_url=f"{told['url']}/api/v1",
                    headers={"Authorization": f"Bearer {Path(told['admin_token']).read_text().strip()}"},
                )
                assert [host["isolation"] for host in client.get("/hosts").json()] == [wanted]
                job = client.post("/jobs", content=TINY, headers=YAML).json()["id"]
                limit = time.monotonic() + 400
                while (state := client.get(f"/jobs/{job}").json())["state"] not in (
                    "succeeded",
                    "failed",
                    "cancelled",
                ) and time.monotonic() < limit:
                    time.sleep(0.5)
                assert (state["state"], state["message"]) == ("succeeded", ""), client.get(f"/jobs/{job}/logs").text[
                    -3000:
                ]
                assert client.get("/models").json()["data"][0]["name"] == "tiny"
            finally:
                server.terminate()
                said = server.stderr.read()
        assert ("--isolation none" in said) == (wanted == "none"), said
