"""Uploads that nobody finishes are deleted after their time; what arrives, or has arrived, stays."""

import io
import os
import shutil

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from service.disk import sweep
from service.settings import read_settings
from service.store.errors import NotFound
from service.store.store import Store
from service.uploads import file_path, opened_part, part_path, receive
from tests.covering import examples

AGE = 1000.0


@pytest.fixture
def place(migrated_sqlite, tmp_path):
    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    chosen = read_settings({}, home=tmp_path, upload_seconds=AGE)
    store = Store(chosen.url)
    store.ensure_project("p")
    yield store, chosen
    store.close()


def begun(place, content=b"half", project="p"):
    store, chosen = place
    file = store.create_file(project, "train.jsonl", "fine-tune", bytes=100)
    if content is not None:
        with opened_part(chosen, file, 0) as part:
            part.write(content)
    return file


def touched(place, file, when):
    os.utime(part_path(place[1], file), (when, when))


def there(store, file):
    try:
        store.file(file.id)
    except NotFound:
        return False
    return True


@examples(15, 60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["nothing came", "half", "ready"]), st.floats(0, 3 * AGE)), max_size=6),
    st.floats(0, 4 * AGE),
)
def test_what_is_deleted_is_unfinished_and_older_than_its_time(place, uploads, later):
    """Against a list of what should stay, for any uploads, each last added to at its own moment, at any time of looking."""
    store, chosen = place
    made = []
    for state, added in uploads:
        if state == "ready":
            file = receive(store, chosen, "p", "x.jsonl", "fine-tune", io.BytesIO(b"{}"))
        else:
            file = begun(place, b"half" if state == "half" else None)
        added_at = file.created + (added if state == "half" else 0)
        if state == "half":
            touched(place, file, added_at)
        made.append((file, state, added_at))
    now = max((file.created for file, _, _ in made), default=0.0) + later
    stays = {file.id: state == "ready" or now - AGE <= added_at for file, state, added_at in made}
    assert sweep(store, chosen, lambda: now) == list(stays.values()).count(False)
    for file, state, _ in made:
        assert there(store, file) == stays[file.id]
        assert part_path(chosen, file).exists() == (stays[file.id] and state == "half")
        if state == "ready":
            assert file_path(chosen, file).is_file()
    assert sweep(store, chosen, lambda: now) == 0
    sweep(store, chosen, lambda: now + 10 * AGE)  # the next example begins with none


def test_a_chunk_that_is_on_its_way_is_left_alone(place):
    store, chosen = place
    file = begun(place)
    with opened_part(chosen, file, 4) as part:
        touched(place, file, file.created)
        assert sweep(store, chosen, lambda: file.created + 5 * AGE) == 0
        part.write(b"more")
    touched(place, file, file.created)
    assert sweep(store, chosen, lambda: file.created + 5 * AGE) == 1


def test_bytes_whose_row_is_gone_are_deleted_too(place):
    store, chosen = place
    file = begun(place)
    store.delete_file(file.id)
    touched(place, file, file.created)
    assert sweep(store, chosen, lambda: file.created + AGE / 2) == 0
    assert sweep(store, chosen, lambda: file.created + 2 * AGE) == 1
    assert not part_path(chosen, file).exists()


def test_a_file_that_was_completed_while_it_was_looked_at_stays(place):
    store, _ = place
    file = begun(place, None)
    assert store.complete_file(file.id, "0" * 64, 100).state == "ready"
    assert store.delete_unfinished(file.id) is False
    assert there(store, file)


def test_what_is_deleted_no_longer_counts_against_the_project(place):
    store, chosen = place
    file = begun(place)
    assert store.disk_usage("p").files == 100
    touched(place, file, file.created)
    sweep(store, chosen, lambda: file.created + 2 * AGE)
    assert store.disk_usage("p").files == 0
