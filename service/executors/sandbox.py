"""What keeps an attempt away from the server and from other attempts: the places that it sees.

Three modes, see docs/decisions/0014-isolation.md. `bubblewrap` and `landlock` give the attempt a file tree of the
named places only, no other processes, a network with nothing but its own loopback, and no capability; `none` gives it
all that the server's user has. Where a kernel has Landlock but allows no namespaces, the files alone are kept.

In both, the first process inside is ours. It opens the socket of the egress proxy and hands it out, starts the
command confined, passes on the request to stop, and reports how the command ended. Its messages, over one socket to
the launcher: out `port N` with the listening socket, `failed WHY`, `ended STATUS`; in `go`, `stop`; when the socket
closes, all ends.

The launcher imports this when it is asked to isolate: the standard library only, and of that what loads at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys

from service.executors import landlock, namespaces
from service.executors.process_tree import execute

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from service.executors.process_tree import Become

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SYSTEM = (
    "/usr",
    "/opt/rocm",
    "/opt/nvidia",
    "/opt/cuda",
    "/nix/store",
    "/gnu/store",
    "/sys/devices",
    "/sys/bus",
    "/sys/class",
    "/sys/module",
)
"""Read-only, where they are. /bin, /lib and their like join them, as links or folders."""
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "group",
    "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime",
    "magic", "mime.types", "networks", "nsswitch.conf", "OpenCL", "os-release", "passwd", "pki/ca-trust/extracted",
    "pki/tls/certs", "protocols", "python3", "python3.11", "python3.12", "python3.13", "resolv.conf", "services",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
)  # fmt: skip
"""Of /etc, which holds passwords and keys beside these."""
NEVER = ("/", "/tmp", "/var", "/home", "/root", "/dev", "/proc", "/sys", "/run", "/etc")
"""Folders that no variable and no path of Python opens as a whole; the attempt has a /tmp of its own."""
CODE = ("pipelines", "service", "configs", "finery.egg-info")
"""Of the folder that the code lies in: a service's home may lie in it too."""
DEVICES = ("null", "zero", "full", "random", "urandom", "dri", "kfd", "infiniband")
"""Of /dev, beside all that begin with `nvidia`."""
PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "FINERY_DATA")
"""Variables of an attempt that name what it reads; the operator set them."""
_PDEATHSIG = 1
INSIDE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from service.executors.sandbox import inside; "
    "inside(int(sys.argv[2]), int(sys.argv[3]))"
)


def plan(
    mode: str,
    features: Sequence[str],
    read: Sequence[str],
    write: Sequence[str],
    hidden: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """What an attempt sees on this host, as the launcher takes it. `hidden` are places that no system path opens,
    such as the home."""
    given = [part for name in PATHS for part in environment.get(name, "").split(os.pathsep)]
    system = [
        *SYSTEM,
        *(f"/etc/{name}" for name in ETC),
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *sys.path,
        *given,
    ]
    links, readable = [], []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            links.append((f"/{name}", os.readlink(f"/{name}")))
        else:
            system.append(f"/{name}")
    for path in system:
        if path.startswith("/") and os.path.abspath(path) != ROOT:
            readable += around(os.path.abspath(path), hidden)
            if os.path.realpath(path) != os.path.abspath(path):
                readable += around(os.path.realpath(path), hidden)
    readable += [f"{ROOT}/{name}" for name in CODE]
    devices = [f"/dev/{name}" for name in (*DEVICES, *(name for name in _entries("/dev") if name.startswith("nvidia")))]
    linked = {path for path, _ in links}
    return {
        "mode": mode,
        "features": list(features),
        "write": _present(write),
        "links": links,
        "devices": _present(devices),
        "read": [
            path
            for path in _present([*readable, *read])
            if path not in linked and path.split("/")[1] not in ("proc", "dev")
        ],
    }


def around(path: str, hidden: Sequence[str]) -> list[str]:
    """`path`, or its parts when a hidden place lies within it; nothing when it lies within a hidden place itself."""
    real = os.path.realpath(path)
    if real in NEVER:
        return []
    secret = [os.path.realpath(each) for each in hidden]
    if any(f"{real}/".startswith(f"{each}/") for each in secret):
        return []
    if not any(f"{each}/".startswith(f"{real}/") for each in secret):
        return [path]
    return [part for name in _entries(real) for part in around(f"{path}/{name}", hidden)]


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _present(paths: Sequence[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


def own_places(tmp: str) -> dict[str, str]:
    """The variables that name what an attempt has for itself alone; `tmp` is /tmp where it has a file tree."""
    return {
        "TMPDIR": tmp,
        "HOME": f"{tmp}/home",
        "XDG_CACHE_HOME": f"{tmp}/home/.cache",
        "HF_MODULES_CACHE": f"{tmp}/home/modules",
    }


def start(request: dict[str, Any], output: int, gate: int, become: Become = execute) -> tuple[int, socket.socket]:
    """Start the first process inside, which waits at the gate. Returns its id and the socket to it. Raises OSError."""
    sandbox = request["sandbox"]
    outside, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bubblewrap = sandbox["mode"] == "bubblewrap"
    flags = (
        0 if bubblewrap or "namespaces" not in sandbox["features"] else namespaces.ALL_BUT_USER | namespaces.NEW_USER
    )
    if flags and "user" not in sandbox["features"]:
        flags &= ~namespaces.NEW_USER
    pid = namespaces.clone(flags) if flags else os.fork()
    if pid == 0:
        try:
            _close_all_but(0, 1, 2, output, gate, inner.fileno())
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.read(gate, 1) != b"g":  # the launcher died before it noted this process
                os._exit(137)
            os.setpgid(0, 0)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if bubblewrap:
                _become_bubblewrap(request, output, inner)
            first_process(request, output, inner, become)
        except BaseException as error:
            os.write(output, f"finery: the attempt could not be isolated: {error}\n".encode())
        os._exit(126)
    inner.close()
    if flags & namespaces.NEW_USER:
        try:
            namespaces.map_user(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
    return pid, outside


def _close_all_but(*descriptors: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in descriptors:
            try:
                os.close(int(name))
            except OSError:  # the one that listed them
                continue


def _become_bubblewrap(request: dict[str, Any], output: int, inner: socket.socket) -> None:
    """bwrap in the place of this process; it starts `inside`."""
    content = os.memfd_create("attempt", 0)
    os.write(content, json.dumps(request).encode())
    os.lseek(content, 0, os.SEEK_SET)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.set_inheritable(inner.fileno(), True)
    words = [
        *bubblewrap_words(request["sandbox"]),
        sys.executable,
        "-I",
        "-S",
        "-c",
        INSIDE,
        ROOT,
        str(inner.fileno()),
        str(content),
    ]
    os.execvpe("bwrap", words, {"PATH": os.environ.get("PATH", os.defpath)})


def bubblewrap_words(sandbox: Mapping[str, Any]) -> list[str]:
    """The command line of bwrap for a plan, without the command."""
    words = [
        "bwrap",
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    words += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
    if "no-user-namespaces" in sandbox["features"]:
        words.append("--disable-userns")
    if sandbox.get("shared_memory"):
        words += ["--size", str(sandbox["shared_memory"])]
    words += ["--tmpfs", "/dev/shm", "--bind", sandbox["tmp"], "/tmp"]
    for path, target in sandbox["links"]:
        words += ["--symlink", target, path]
    writable = set(sandbox["write"])
    for path in sorted((*sandbox["read"], *sandbox["write"]), key=lambda each: str(each).count("/")):
        words += ["--bind" if path in writable else "--ro-bind", path, path]
    for path in sandbox["devices"]:
        words += ["--dev-bind", path, path]
    return [*words, "--remount-ro", "/", "--chdir", "/", "--"]


def inside(control: int, content: int) -> None:
    """The first process under bwrap. Never returns."""
    request = json.loads(os.read(content, os.fstat(content).st_size))
    os.close(content)
    os.umask(request.get("umask", 0o077))
    namespaces.hide_memory()
    try:
        first_process(request, 1, socket.socket(fileno=control))
    except BaseException as error:
        os.write(1, f"finery: the attempt could not be isolated: {error}\n".encode())
    os._exit(126)


def first_process(request: dict[str, Any], output: int, control: socket.socket, become: Become = execute) -> None:
    """Make the world that the attempt sees, start it there, and stay its keeper inside. Never returns."""
    sandbox, environment = request["sandbox"], dict(request["environment"])
    control.set_inheritable(False)
    tree = sandbox["mode"] == "bubblewrap"
    if sandbox["mode"] == "landlock" and "namespaces" in sandbox["features"]:
        namespaces.loopback_up()
        namespaces.enter_root(
            sandbox["root"],
            sandbox["read"],
            sandbox["write"],
            sandbox["devices"],
            sandbox["links"],
            sandbox["tmp"],
            sandbox.get("shared_memory", 0),
        )
        namespaces.forbid_user_namespaces()
        tree = True
    tmp = "/tmp" if tree else sandbox["tmp"]
    os.makedirs(f"{tmp}/home", mode=0o700, exist_ok=True)
    environment |= own_places(tmp)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        socket.send_fds(control, [f"port {port}".encode()], [listener.fileno()])
    if control.recv(64) != b"go":
        os._exit(137)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "FINERY_EGRESS"):
        environment[name] = f"http://127.0.0.1:{port}"
    environment["NO_PROXY"] = environment["no_proxy"] = "localhost,127.0.0.1,::1"
    wakeup, alarm = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    command = os.fork()
    if command == 0:
        signal.set_wakeup_fd(-1)
        _become_command(request, environment, output, tmp, tree, become)
    os.close(output)
    poller = select.poll()
    poller.register(wakeup, select.POLLIN)
    poller.register(control.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == control.fileno():
                if control.recv(64) != b"stop":  # the launcher is gone
                    os._exit(137)
                os.kill(command, signal.SIGTERM)
            else:
                os.read(wakeup, 512)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == command:
                control.send(f"ended {os.waitstatus_to_exitcode(status)}".encode())
                os._exit(0)  # with it the kernel ends whatever is left


def _become_command(
    request: dict[str, Any], environment: dict[str, str], output: int, tmp: str, tree: bool, become: Become
) -> None:
    """Confine this process and become the command. Never returns."""
    sandbox = request["sandbox"]
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        limits()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.chdir(request["folder"])
        namespaces.drop_privileges()
        if landlock.abi():
            ports = None if tree else open_ports(sandbox.get("refused_ports", ()))
            listed = [ROOT, *((*(path for path, _ in sandbox["links"]), "/") if tree else ())]
            links = [path for path, _ in sandbox["links"]]
            landlock.restrict(
                [*sandbox["read"], *links, "/proc"],
                [*sandbox["write"], tmp, "/dev/shm"],
                sandbox["devices"],
                listed,
                ports,
            )
        elif sandbox["mode"] == "landlock":
            raise OSError("this kernel has no Landlock")
        become(request["command"], environment)
    except BaseException as error:
        os.write(2, f"finery: the command could not be started: {error}\n".encode())
    os._exit(127)


def probe(sandbox: dict[str, object]) -> str:
    """Start a command under a plan; why that failed, empty when it worked. Called in a process of its own."""
    request = {
        "sandbox": sandbox,
        "environment": {"PATH": os.defpath},
        "folder": "/",
        "command": ["/bin/sh", "-c", "exit 0"],
    }
    output_end, output = os.pipe()
    gate, opener = os.pipe()
    try:
        pid, control = start(request, output, gate)
    except OSError as error:
        return str(error)
    os.close(output)
    os.write(opener, b"g")
    control.settimeout(10.0)
    message = b""
    try:
        message = socket.recv_fds(control, 256, 1)[0]
        if message.startswith(b"port "):
            control.send(b"go")
            message = control.recv(256)
    except OSError as error:
        message = str(error).encode()
    control.close()
    os.kill(pid, signal.SIGKILL)  # not waited for yet, so that the id is its own
    os.waitpid(pid, 0)
    if message == b"ended 0":
        return ""
    return (
        os.read(output_end, 4096).decode(errors="replace").strip()
        or message.decode(errors="replace")
        or "it ended without a word"
    )


def limits() -> None:
    """As many open files as are allowed, and no core files, which hold what memory held."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def open_ports(refused: Sequence[int]) -> list[int]:
    """The ports that an attempt in the host's own network may connect to: those that the kernel hands out, for
    ranks among themselves."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first, last = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        first, last = 32768, 60999
    return [port for port in range(first, last + 1) if port not in set(refused)]
