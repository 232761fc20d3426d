"""A project's files never come to more than it is allowed, however many uploads run at once and through however many servers."""

import asyncio
import threading
from contextlib import suppress
from io import BytesIO

import pytest

from service import uploads
from service.settings import read_settings
from service.store.errors import TooLarge
from service.store.store import Store
from service.uploads import append, begin, discard, finish, from_url, receive

MOST = 1_000_000
SERVERS, THREADS = 3, 10


@pytest.fixture
def servers(store, store_url, tmp_path):
    """Several servers on one database and one home."""
    settings = read_settings(
        {}, home=tmp_path / "home", max_project_bytes=MOST, max_file_bytes=MOST, database_url=store_url
    )
    stores = [Store(settings.url) for _ in range(SERVERS)]
    yield settings, stores
    for each in stores:
        each.close()


def kept(settings):
    return sum(path.stat().st_size for path in (settings.files / "p").glob("*") if path.is_file())


def at_once(works):
    """Run all of these in threads of their own, begun together; what they refused."""
    gate, refused, failures = threading.Barrier(len(works)), [], []

    def run(work):
        gate.wait()
        try:
            work()
        except TooLarge as error:
            refused.append(error)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return refused


async def pieces(size, piece=50_000):
    while size > 0:
        yield b"x" * min(piece, size)
        size -= piece


def test_whole_bodies_sent_at_once_are_kept_up_to_the_limit_and_no_further(servers):
    settings, stores = servers
    works = [
        lambda store=stores[at % SERVERS]: receive(store, settings, "p", "a.txt", "data", BytesIO(b"x" * 300_000))
        for at in range(THREADS)
    ]
    refused = at_once(works)
    assert len(refused) >= THREADS - 3
    assert kept(settings) == stores[0].disk_usage("p").files <= MOST


def test_unannounced_chunks_of_many_files_sent_at_once_are_kept_up_to_the_limit(servers, monkeypatch):
    monkeypatch.setattr(uploads, "AHEAD", 100_000)
    settings, stores = servers
    files = [begin(stores[0], settings, "p", "a.txt", "data") for _ in range(THREADS)]
    works = [
        lambda store=stores[at % SERVERS], file=file: asyncio.run(append(store, settings, file, 0, pieces(900_000)))
        for at, file in enumerate(files)
    ]
    refused = at_once(works)
    assert refused
    assert kept(settings) == stores[0].disk_usage("p").files <= MOST


def test_announcements_at_once_are_granted_up_to_the_limit_before_a_byte_is_sent(servers):
    settings, stores = servers
    refused = at_once(
        [
            lambda store=stores[at % SERVERS]: begin(store, settings, "p", "a.txt", "data", size=300_000)
            for at in range(THREADS)
        ]
    )
    assert len(refused) == THREADS - 3
    assert stores[0].disk_usage("p").files == 900_000
    assert not (settings.files / "p").exists()


def test_a_file_is_not_written_past_what_was_announced(servers):
    settings, (store, *_) = servers
    file = begin(store, settings, "p", "a.txt", "data", size=10)
    with pytest.raises(TooLarge, match="at most 10 bytes, as announced"):
        asyncio.run(append(store, settings, file, 0, pieces(11)))
    assert kept(settings) == 0


def test_a_fetched_file_has_no_more_room_than_the_project(servers):
    settings, (store, *_) = servers
    written = []

    def endless(url, into, limit):
        while True:
            into.write(b"x" * 64_000)
            written.append(64_000)

    with pytest.raises(TooLarge):
        from_url(store, settings, "p", "https://example.org/a.txt", None, "data", get=endless)
    assert sum(written) <= MOST
    assert kept(settings) == store.disk_usage("p").files == 0


def test_what_was_reserved_and_not_used_is_free_again(servers):
    settings, (store, *_) = servers
    file = begin(store, settings, "p", "a.txt", "data")
    size = asyncio.run(append(store, settings, file, 0, pieces(10)))
    assert store.disk_usage("p").files == size == 10

    async def torn():
        yield b"y" * 5
        raise ConnectionError

    with suppress(ConnectionError):
        asyncio.run(append(store, settings, file, 10, torn()))
    assert store.disk_usage("p").files == kept(settings) == 15
    done = finish(store, settings, store.file(file.id))
    assert (done.bytes, done.reserved) == (15, 15)
    discard(store, settings, done)
    assert store.disk_usage("p").files == 0
