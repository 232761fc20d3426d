"""Uploads in chunks and at once, and what happens to them."""

import hashlib

import pytest

from service.safety.fetching import Fetched
from service.uploads import file_path
from tests.service.served import RECIPE
from tests.words import words_of

CONTENT = b"text,label\n" + b"a,x\nb,y\n" * 100
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def upload(served, content=CONTENT, name="train.csv", **query):
    return served.submitter.post("/api/v1/files/upload", params={"filename": name, **query}, content=content)


def begun(served, **body):
    answer = served.submitter.post("/api/v1/files", json={"filename": "train.csv", **body})
    assert answer.status_code == 201, answer.text
    return f"/api/v1/files/{answer.json()['id']}"


def sent(served, path, content, offset):
    return served.submitter.patch(path, content=content, headers={"Upload-Offset": str(offset)})


def test_a_file_sent_at_once_comes_back_byte_for_byte(served):
    file = upload(served, sha256=SHA256).json()
    assert (file["state"], file["bytes"], file["sha256"]) == ("ready", len(CONTENT), SHA256)
    answer = served.viewer.get(f"/api/v1/files/{file['id']}/content")
    assert answer.content == CONTENT
    assert answer.headers["x-content-type-options"] == "nosniff"
    part = served.viewer.get(f"/api/v1/files/{file['id']}/content", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, CONTENT[5:10])


def test_an_upload_goes_on_where_it_broke_off(served):
    path = begun(served, bytes=len(CONTENT), sha256=SHA256)
    assert sent(served, path, CONTENT[:300], 0).headers["upload-offset"] == "300"
    lost = sent(served, path, CONTENT[300:], 200)
    assert (lost.status_code, lost.headers["upload-offset"]) == (409, "300")
    asked = served.submitter.get(path)
    assert (asked.json()["offset"], asked.json()["state"], asked.headers["upload-offset"]) == (300, "uploading", "300")
    early = served.submitter.post(f"{path}/complete", json={})
    assert early.status_code == 409
    assert "300 of the 811 bytes" in early.json()["detail"]
    assert sent(served, path, CONTENT[300:], 300).status_code == 204
    done = served.submitter.post(f"{path}/complete", json={"sha256": SHA256})
    assert done.json()["state"] == "ready"
    assert served.submitter.post(f"{path}/complete", json={"sha256": SHA256}).json() == done.json(), (
        "asking again changes nothing"
    )
    assert served.viewer.get(f"{path}/content").content == CONTENT


def test_other_bytes_than_announced_never_become_a_file(served):
    path = begun(served, sha256="0" * 64)
    sent(served, path, CONTENT, 0)
    assert served.submitter.post(f"{path}/complete", json={}).status_code == 409
    assert served.submitter.post(f"{path}/complete", json={"sha256": "1" * 64}).status_code == 409
    assert served.viewer.get(f"{path}/content").status_code == 409
    assert upload(served, sha256="0" * 64).status_code == 409


def test_a_complete_file_is_never_written_again(served):
    file = upload(served).json()["id"]
    assert sent(served, f"/api/v1/files/{file}", b"x", len(CONTENT)).status_code == 409
    assert served.viewer.get(f"/api/v1/files/{file}/content").content == CONTENT


def test_what_the_project_has_is_not_sent_twice(served):
    first = upload(served).json()
    again = served.submitter.post("/api/v1/files", json={"filename": "other.csv", "sha256": SHA256})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    assert (
        served.submitter.post("/api/v1/files", json={"filename": "other.tsv", "sha256": SHA256}).status_code == 201
    ), "another format is another file"
    assert served.stranger.post("/api/v1/files", json={"filename": "other.csv", "sha256": SHA256}).status_code == 201, (
        "another project's file is not told of"
    )


def test_limits_of_a_file_and_of_a_project(served):
    assert upload(served, b"x" * 10_001).status_code == 413
    assert served.submitter.post("/api/v1/files", json={"filename": "a", "bytes": 10_001}).status_code == 413
    path = begun(served)
    assert sent(served, path, b"x" * 10_001, 0).status_code == 413
    for _ in range(2):
        assert upload(served, b"x" * 9_000).status_code == 201
    full = upload(served, b"x" * 9_000)
    assert full.status_code == 413
    assert "delete some first" in full.json()["detail"]
    assert sent(served, begun(served, bytes=10), b"x" * 11, 0).status_code == 413


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.csv", "y.csv"),
        ("/", "file"),
        ("a\nb.csv", "ab.csv"),
        ("..", "file"),
        ("é.JSONL", "é.JSONL"),
    ],
)
def test_a_name_is_a_name_and_no_path(served, name, kept):
    file = served.store.file(upload(served, name=name).json()["id"])
    assert file.filename == kept
    path = file_path(served.settings, file)
    assert path.parent == served.settings.files / "acme"
    assert path.read_bytes() == CONTENT


def test_a_file_that_a_job_needs_stays_until_the_job_has_ended(served):
    file = upload(served).json()["id"]
    job = served.job(
        RECIPE.replace(
            "task: builtin/python-docs",
            f"task: {{kind: classification, columns: [text], label: label, train: 'file:{file}'}}",
        )
    )
    refused = served.submitter.delete(f"/api/v1/files/{file}")
    assert (refused.status_code, job in refused.json()["detail"]) == (409, True)
    served.submitter.post(f"/api/v1/jobs/{job}/cancel")
    path = file_path(served.settings, served.store.file(file))
    assert served.submitter.delete(f"/api/v1/files/{file}").status_code == 204
    assert not path.exists()
    assert served.viewer.get(f"/api/v1/files/{file}").status_code == 404


def test_a_recipe_cannot_name_a_file_that_is_still_on_its_way_or_not_its_projects(served):
    path = begun(served)
    name = path.rpartition("/")[2]
    recipe = RECIPE.replace(
        "task: builtin/python-docs",
        f"task: {{kind: classification, columns: [text], label: label, train: 'file:{name}'}}",
    )
    answer = served.submitter.post("/api/v1/validate", json={"recipe": recipe})
    assert "no complete file of this project" in answer.json()["errors"][0]["message"]
    sent(served, path, CONTENT, 0)
    served.submitter.post(f"{path}/complete", json={})
    assert served.submitter.post("/api/v1/validate", json={"recipe": recipe}).status_code == 200
    assert served.stranger.post("/api/v1/validate", json={"recipe": recipe}).status_code == 422


def test_a_url_is_fetched_and_a_private_one_refused(served, monkeypatch):
    for url in words_of(
        "http://127.0.0.1/x.csv http://169.254.169.254/latest/meta-data http://localhost:22/ "
        "file:///etc/passwd http://[::1]/x"
    ):
        answer = served.submitter.post("/api/v1/files", json={"url": url})
        assert answer.status_code == 422, url
    assert served.submitter.get("/api/v1/files").json()["data"] == [], "a refused one leaves nothing behind"
    from service.api import files
    from service.uploads import from_url

    def get(url, into, limit):
        into.write(CONTENT)
        return Fetched(url, len(CONTENT), "text/csv")

    monkeypatch.setattr(files, "from_url", lambda *given, **named: from_url(*given, **named, get=get))
    file = served.submitter.post("/api/v1/files", json={"url": "https://example.org/data%2Ftrain.csv?k=1"}).json()
    assert (file["filename"], file["sha256"]) == ("train.csv", SHA256)
    assert (
        served.submitter.post("/api/v1/files", json={"url": "https://example.org/x", "sha256": "0" * 64}).status_code
        == 409
    )


def test_pages_and_purposes(served):
    ids = [upload(served, purpose=purpose).json()["id"] for purpose in ("data", "other", "data")]
    assert [each["id"] for each in served.viewer.get("/api/v1/files", params={"purpose": "data"}).json()["data"]] == [
        ids[2],
        ids[0],
    ]
    page = served.viewer.get("/api/v1/files", params={"limit": 2}).json()
    assert page["next"] == ids[1]
    assert served.submitter.post("/api/v1/files", json={}).status_code == 422
