"""Landlock, the kernel's own means for a process to give up rights: what may be read, written and connected to.

Linux 5.13 and later; what each later version (ABI) added is used where it is there. The launcher imports this: the
standard library only, and of that what loads at once.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on every architecture."""
RULE_PATH, RULE_PORT = 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
FIRST_RIGHTS = (1 << 13) - 1
"""What ABI 1 knows: execute, write, read, list, remove and make every kind of entry."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that make sense for what is no folder."""
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version of Landlock that this kernel speaks; 0 where it has none or it is switched off."""
    version = int(_libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    return max(0, version)


def rights(version: int) -> int:
    """Every right on files that a version knows: all of them are denied unless a rule grants them."""
    return (
        FIRST_RIGHTS
        | (REFER if version >= 2 else 0)
        | (TRUNCATE if version >= 3 else 0)
        | (IOCTL_DEV if version >= 5 else 0)
    )


def restrict(
    read: Iterable[str],
    write: Iterable[str],
    devices: Iterable[str] = (),
    listed: Iterable[str] = (),
    ports: Iterable[int] | None = None,
) -> int:
    """Confine this thread, and all that it starts, for ever. Returns the ABI. Raises OSError when the kernel cannot.

    `read` may be read and executed, `write` changed as well; of `listed` only the names are seen. `ports` are those
    that may be connected to over TCP; None leaves the network as it is.
    """
    version = abi()
    handled = rights(version)
    limit_ports = ports is not None and version >= 4
    attributes = struct.pack(
        "=QQQ",
        handled,
        CONNECT_TCP if limit_ports else 0,
        SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= 6 else 0,
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call(CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        reading = (EXECUTE | READ_FILE | READ_DIR) & handled
        changing = handled & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)
        using = (READ_FILE | WRITE_FILE | TRUNCATE | READ_DIR | IOCTL_DEV) & handled
        for paths, granted in ((read, reading), (write, changing), (devices, using), (listed, READ_DIR)):
            for path in paths:
                _grant(ruleset, path, granted)
        for port in ports or () if limit_ports else ():
            _call(
                ADD_RULE, ruleset, RULE_PORT, ctypes.c_char_p(struct.pack("=QQ", CONNECT_TCP, port)), ctypes.c_uint32(0)
            )
        if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
        _call(RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return version


def _grant(ruleset: int, path: str, granted: int) -> None:
    """A rule for a path and all below it; a path that is not there grants nothing."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            granted &= OF_FILES
        if granted:
            _call(
                ADD_RULE,
                ruleset,
                RULE_PATH,
                ctypes.c_char_p(struct.pack("=Qi", granted, descriptor)),
                ctypes.c_uint32(0),
            )
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
