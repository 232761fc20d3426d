"""Namespaces of Linux: a process with its own file tree, processes, network and no capability.

The launcher imports this: the standard library only, and of that what loads at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from collections.abc import Sequence

NEW_MOUNT, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
ALL_BUT_USER = NEW_MOUNT | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203}
_CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91, "ppc64le": 184}
_MOUNT_SETATTR = 442
_RDONLY, _NOSUID, _NODEV = 1, 2, 4
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_MNT_DETACH = 2
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_CAPBSET_DROP, _NO_NEW_PRIVS, _CAP_AMBIENT, _DUMPABLE = 24, 38, 47, 4
_libc = ctypes.CDLL(None, use_errno=True)


def clone(flags: int) -> int:
    """As os.fork, into new namespaces: the child is the first process of its PID namespace. Raises OSError."""
    # the interpreter's lock stays held: the child has one thread, this one
    library = ctypes.PyDLL(None, use_errno=True)
    none = ctypes.c_long(0)
    pid = int(
        library.syscall(ctypes.c_long(_number(_CLONE)), ctypes.c_ulong(flags | signal.SIGCHLD), none, none, none, none)
    )
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"new namespaces are refused: {os.strerror(code)}")
    return pid


def map_user(pid: int) -> None:
    """Give a process in a new user namespace the ids that it had, and no others. Raises OSError."""
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{os.geteuid()} {os.geteuid()} 1"),
        ("gid_map", f"{os.getegid()} {os.getegid()} 1"),
    ):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(content)


def enter_root(
    place: str,
    read: Sequence[str],
    write: Sequence[str],
    devices: Sequence[str],
    links: Sequence[tuple[str, str]],
    tmp: str,
    shared_memory: int,
) -> None:
    """Make a file tree of the given places only, under the paths that they have, and make it the root. Raises OSError.

    `place` is an empty folder; `tmp` becomes /tmp, and /dev/shm is a file system of its own in memory.
    """
    _mount("none", "/", "", _MS_REC | _MS_SLAVE)
    held = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (tmp, *read, *write, *devices)
    }  # before the new tree hides them
    sources = {path: f"/proc/self/fd/{descriptor}" for path, descriptor in held.items()}
    _mount("finery", place, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=4m")
    os.chdir(place)
    for folder in ("proc", "dev", "tmp"):
        os.mkdir(folder)
    _mount("finery", "dev", "tmpfs", _MS_NOSUID, "mode=0755,size=4m")
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(target, f"dev/{name}")
    os.mkdir("dev/shm")
    _mount("finery", "dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={shared_memory or '50%'}")
    _bind(sources[tmp], "tmp", _NOSUID | _NODEV)
    for path, target in links:
        os.symlink(target, path.lstrip("/"))
    writable = set(write)
    # what lies within comes after what it lies in
    for path in sorted((*read, *write), key=lambda each: each.count("/")):
        _bind(sources[path], path.lstrip("/"), _NOSUID | _NODEV | (0 if path in writable else _RDONLY))
    for path in devices:
        _bind(sources[path], path.lstrip("/"), _NOSUID)
    try:
        _mount("proc", "proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # inside a container that hides parts of its own: the same one, whose processes Landlock keeps apart
    except OSError:
        _mount("/proc", "proc", "", _MS_BIND | _MS_REC)
    for descriptor in held.values():
        os.close(descriptor)
    _attributes(".", _RDONLY | _NOSUID | _NODEV, recursive=False)
    _attributes("dev", _RDONLY | _NOSUID, recursive=False)
    _check(_libc.syscall(ctypes.c_long(_number(_PIVOT_ROOT)), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def forbid_user_namespaces() -> None:
    """No further user namespace below this one, where the kernel can be told: they open much of it to attacks."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    except OSError:
        return


def loopback_up() -> None:
    """Switch on the loopback of this network namespace. Raises OSError."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def drop_privileges() -> None:
    """Give up every capability, also those that a program could gain. Raises OSError when one is left."""
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _libc.prctl(_CAP_AMBIENT, 4, 0, 0, 0)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _check(_libc.syscall(ctypes.c_long(_number(_CAPSET)), header, nothing), "capset")
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def hide_memory() -> None:
    """Nobody of the same user may look into this process's memory or change it."""
    _check(_libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl")


def _bind(source: str, target: str, flags: int) -> None:
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
    _mount(source, target, "", _MS_BIND | _MS_REC)
    _attributes(target, flags, recursive=True)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _check(
        _libc.mount(
            source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
        ),
        f"mount {target}",
    )


def _attributes(path: str, flags: int, recursive: bool) -> None:
    wanted = struct.pack("=QQQQ", flags, 0, 0, 0)
    call = (
        ctypes.c_long(_MOUNT_SETATTR),
        _AT_FDCWD,
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        wanted,
        ctypes.c_size_t(32),
    )
    _check(_libc.syscall(*call), f"mount_setattr {path}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _number(numbers: dict[str, int]) -> int:
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(38, f"the system calls of {machine} are not known here")
    return numbers[machine]
