"""The kernel's own answers to what a ruleset grants and denies; each case in a child, because it cannot be undone."""

import os
import socket

import pytest

from service.executors import landlock

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")


def confined(act, **places):
    """What `act` answers in a child that is confined: a word, or the name of the error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            landlock.restrict(**({"read": [], "write": []} | places))
            answer = act() or "done"
        except BaseException as error:
            answer = type(error).__name__
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return file.read()


def test_each_abi_adds_its_rights():
    names = [landlock.rights(version).bit_count() for version in range(1, 8)]
    assert names == [13, 14, 15, 15, 16, 16, 16]


def test_what_no_rule_names_is_denied(tmp_path):
    (tmp_path / "a").write_text("x")
    assert confined(lambda: (tmp_path / "a").read_text()) == "PermissionError"
    assert confined(lambda: os.listdir(tmp_path)[0]) == "PermissionError"
    assert confined(lambda: open(tmp_path / "b", "w").close()) == "PermissionError"


def test_what_may_be_read_may_not_be_changed(tmp_path):
    (tmp_path / "a").write_text("x")
    assert confined(lambda: (tmp_path / "a").read_text(), read=[str(tmp_path)]) == "x"
    for act in (
        lambda: open(tmp_path / "a", "a").close(),
        lambda: os.truncate(tmp_path / "a", 0),
        lambda: os.unlink(tmp_path / "a"),
        lambda: os.mkdir(tmp_path / "d"),
        lambda: os.symlink("a", tmp_path / "l"),
        lambda: os.mkfifo(tmp_path / "f"),
        lambda: os.rename(tmp_path / "a", tmp_path / "b"),
        lambda: os.link(tmp_path / "a", tmp_path / "b"),
    ):
        assert confined(act, read=[str(tmp_path)]) in ("PermissionError", "OSError")
    assert (tmp_path / "a").read_text() == "x"


def test_what_may_be_changed_may_not_take_in_what_lies_elsewhere(tmp_path):
    """A file that is linked or moved into a writable folder would gain its rights."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a").write_text("x")
    places = {"read": [str(tmp_path / "theirs")], "write": [str(tmp_path / "mine")]}
    assert confined(lambda: open(tmp_path / "mine" / "b", "w").close(), **places) == "done"
    assert confined(lambda: os.link(tmp_path / "theirs" / "a", tmp_path / "mine" / "a"), **places) in (
        "PermissionError",
        "OSError",
    )
    assert confined(lambda: os.symlink(tmp_path / "theirs" / "a", tmp_path / "mine" / "l"), **places) == "done"
    assert confined(lambda: open(tmp_path / "mine" / "l", "a").close(), **places) == "PermissionError", (
        "a link gives no right to where it points"
    )


def test_of_what_is_listed_only_the_names_are_seen(tmp_path):
    (tmp_path / "a").write_text("x")
    assert confined(lambda: os.listdir(tmp_path)[0], listed=[str(tmp_path)]) == "a"
    assert confined(lambda: (tmp_path / "a").read_text(), listed=[str(tmp_path)]) == "PermissionError"


@pytest.mark.skipif(landlock.abi() < 4, reason="this kernel's Landlock knows no ports")
def test_only_the_ports_that_are_named_are_connected_to():
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        first, second = (each.getsockname()[1] for each in (allowed, other))
        assert confined(lambda: socket.create_connection(("127.0.0.1", first), 5).close(), ports=[first]) == "done"
        assert (
            confined(lambda: socket.create_connection(("127.0.0.1", second), 5).close(), ports=[first])
            == "PermissionError"
        )


@pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock knows no scopes")
def test_signals_and_abstract_sockets_stay_inside():
    parent = os.getpid()
    assert confined(lambda: os.kill(parent, 0)) == "PermissionError"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"\0finery-landlock-{parent}")
        made.listen()
        name = made.getsockname()

        def connect():
            with socket.socket(socket.AF_UNIX) as inner:
                inner.connect(name)

        assert confined(connect) == "PermissionError"
