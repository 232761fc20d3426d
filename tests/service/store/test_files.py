import hashlib

import pytest

from service.store.errors import Conflict, NotFound

SHA = hashlib.sha256(b"hello").hexdigest()


def test_an_upload_goes_from_announced_to_ready(store):
    file = store.create_file("p", "train.jsonl", "fine-tune", bytes=5, sha256=SHA, created_by="token-1")
    assert (file.state, file.offset) == ("uploading", 0)
    assert store.advance_file(file.id, 3, "p").offset == 3
    assert store.find_file("p", SHA) is None
    ready = store.complete_file(file.id, SHA, 5, "p")
    assert (ready.state, ready.offset, ready.bytes) == ("ready", 5, 5)
    assert ready.completed is not None
    assert store.file(file.id, "p") == ready == store.find_file("p", SHA) == store.complete_file(file.id, SHA, 5)
    with pytest.raises(Conflict, match="is complete"):
        store.advance_file(file.id, 4)


@pytest.mark.parametrize(("sha256", "size"), [(hashlib.sha256(b"other").hexdigest(), 5), (SHA, 6)])
def test_what_arrived_must_be_what_was_announced(store, sha256, size):
    file = store.create_file("p", "train.jsonl", "fine-tune", bytes=5, sha256=SHA)
    with pytest.raises(Conflict, match="announced were 5 and"):
        store.complete_file(file.id, sha256, size)
    assert store.file(file.id).state == "uploading"


def test_files_of_another_project_are_not_found(store):
    file = store.create_file("p", "a", "fine-tune")
    for call in (
        lambda: store.file(file.id, "q"),
        lambda: store.advance_file(file.id, 1, "q"),
        lambda: store.complete_file(file.id, SHA, 5, "q"),
        lambda: store.delete_file(file.id, "q"),
        lambda: store.update_file_openai(file.id, {}, "q"),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.files("q") == []


def test_lists_are_filtered_and_paged(store):
    made = [store.create_file("p", f"{number}.jsonl", "fine-tune" if number % 2 else "data") for number in range(5)]
    store.complete_file(made[1].id, SHA, 5)
    assert [file.id for file in store.files("p", purpose="fine-tune")] == [made[3].id, made[1].id]
    assert [file.id for file in store.files("p", state="ready")] == [made[1].id]
    page = store.files("p", limit=3, newest_first=False)
    rest = store.files("p", after=page[-1].id, newest_first=False)
    assert [file.id for file in [*page, *rest]] == [file.id for file in made]


def test_the_bytes_of_a_project_count_uploads_on_their_way(store):
    announced = store.create_file("p", "a", "data", bytes=3_000_000_000)
    store.advance_file(store.create_file("p", "b", "data").id, 7)
    store.create_file("q", "c", "data", bytes=100)
    assert store.disk_usage("p").files == 3_000_000_007
    store.delete_file(announced.id, "p")
    assert store.disk_usage("p").files == 7
    assert store.disk_usage("nobody").files == 0


def test_what_openai_keeps_is_merged(store):
    file = store.create_file("p", "a", "fine-tune")
    store.update_file_openai(file.id, {"a": 1})
    assert store.update_file_openai(file.id, {"b": 2}).openai == {"a": 1, "b": 2}
