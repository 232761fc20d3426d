"""What a project keeps on the disk is counted whole, and a project that is full gets nothing more until it deletes
something: no file, no job, no attempt, no growth of a running one."""

import io
import json
import os
import threading
import time

import pytest

from pipelines.core.errors import CommandError
from service import quotas
from service.api.models import remove
from service.attempts import watching
from service.cli.administration import bytes_of, list_projects, set_project, show_project
from service.disk import forget_job, sweep_models
from service.executors.records import delete_folder
from service.jobs.job import JobRequest
from service.jobs.states import Move, Reason, State
from service.quotas import DiskMeter, sizes
from service.settings import read_settings
from service.store.errors import DiskQuotaExceeded
from service.store.store import Store
from service.uploads import begin, discard, receive
from tests.service.api.conftest import served  # noqa: F401
from tests.service.attempts.conftest import server  # noqa: F401
from tests.service.served import RECIPE, YAML, listening, published

MEGABYTE = 1_000_000
BLOCKS = 64 * 1024
"""What a file system may add to the bytes of a few small files."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(watching, "LIMITS_SECONDS", 0.05)


def filled(folder, size, name="model.bin"):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    return folder


def test_a_folder_counts_whole_however_deep_once_for_each_hard_link_and_nothing_behind_a_link(tmp_path):
    elsewhere = filled(tmp_path / "elsewhere", 4 * MEGABYTE)
    folder = filled(tmp_path / "job", MEGABYTE)
    os.link(folder / "model.bin", folder / "again.bin")
    (folder / "outside").symlink_to(elsewhere)
    at = os.open(folder, os.O_RDONLY)
    for _ in range(1500):  # deeper than any path may be long
        os.mkdir("deep-enough", dir_fd=at)
        inner = os.open("deep-enough", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    bottom = os.open("hidden.bin", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(bottom, os.urandom(MEGABYTE))
    os.fsync(bottom)
    os.close(bottom)
    os.close(at)
    missing = tmp_path / "missing"
    directories = 1501 * os.stat(folder).st_blocks * 512
    measured = sizes([folder, missing])
    assert 2 * MEGABYTE <= measured[folder] <= 2 * MEGABYTE + directories + BLOCKS
    assert measured[missing] == 0
    delete_folder(folder)
    assert not folder.exists(), "a job that nests its folders can be deleted"
    assert (elsewhere / "model.bin").stat().st_size == 4 * MEGABYTE
    delete_folder(missing)


def test_a_running_job_that_crosses_the_limit_ends_with_its_checkpoint_and_goes_on_when_there_is_room(server):  # noqa: F811
    store, meter = server.store, DiskMeter(server.store, server.settings, "me")
    store.set_project("default", max_bytes=4 * MEGABYTE)
    grows, modest, waits = server.submit(steps=100_000), server.submit(steps=100_000), server.submit(steps=4)
    first, second = server.place(grows), server.place(modest)
    server.until(grows, lambda found: found.progress.get("step", 0) >= 3)
    server.until(modest, lambda found: found.progress.get("step", 0) >= 3)
    meter.measure()
    server.watcher.step()
    assert 0 < store.disk_usage("default").jobs < MEGABYTE
    filled(server.folders(grows).run / "stages", 6 * MEGABYTE)
    meter.measure()
    found = server.until(grows, lambda found: found.over)
    assert (found.state, found.reason) == (State.FAILED, Reason.DISK_QUOTA)
    for words in ("project 'default' keeps 6", "(jobs 6", "may keep 4 MB", "finery delete JOB", "checkpoint is kept"):
        assert words in found.message
    assert (store.attempt(first.id).exit_code, store.attempt(first.id).reason) == (75, Reason.DISK_QUOTA)
    done = server.steps(grows)[-1][1]
    assert json.loads((server.folders(grows).run / "checkpoint.json").read_text()) == {"step": done}

    # the one that only wrote its log goes on; nothing new is taken or begun
    meter.measure()
    at = server.steps(modest)[-1][1]
    server.until(modest, lambda found: server.steps(modest)[-1][1] > at)
    assert store.attempt(second.id).reason is None
    with pytest.raises(DiskQuotaExceeded, match=r"keeps 6.* MB on the disk \(jobs 6.* MB\), and may keep 4 MB"):
        store.submit(JobRequest("name: x\n", "default"))
    with pytest.raises(DiskQuotaExceeded):
        receive(store, server.settings, "default", "a.csv", "data", io.BytesIO(b"x"))
    assert list(server.settings.files.glob("*/*")) == []
    server.place(waits)
    refused = server.until(waits, lambda found: found.over)
    assert (refused.state, refused.reason) == (State.FAILED, Reason.DISK_QUOTA)
    assert not server.folders(waits).run.exists()

    # a job that ends well while its project is full publishes nothing, and a retry does when there is room
    (server.folders(grows).run / "stages" / "model.bin").unlink()
    store.move(grows, Move.RETRY)
    meter.measure()
    again = server.place(grows)
    server.until(grows, lambda found: server.steps(grows)[-1][1] > done)
    assert server.steps(grows)[-1][2] == done, "it goes on from its checkpoint"
    assert store.attempt(again.id).reason is None


def test_a_full_project_publishes_when_there_is_room(server):  # noqa: F811
    store = server.store
    job = server.submit(steps=6)
    server.place(job)
    server.until(job, lambda found: found.progress.get("step", 0) >= 2)
    store.set_disk_usage({("default", "downloads", ""): 5 * MEGABYTE})
    store.set_project("default", max_bytes=4 * MEGABYTE)
    found = server.until(job, lambda found: found.over)
    assert (found.state, found.reason) == (State.FAILED, Reason.DISK_QUOTA)
    assert "Nothing was published" in found.message
    assert store.models("default") == []
    store.set_project("default", max_bytes=None)
    store.move(job, Move.RETRY)
    assert server.run(job)[0].state is State.SUCCEEDED
    assert [model.job for model in store.models("default")] == [job]


def test_what_was_deleted_counts_no_longer_when_its_files_are_gone(served):  # noqa: F811
    store, settings = served.store, served.settings
    attempt = served.started(served.job())
    folder = published(served, attempt)
    filled(folder, 2 * MEGABYTE, "weights.bin")
    filled(settings.jobs / attempt.job, 3 * MEGABYTE)
    file = receive(store, settings, "acme", "a.csv", "data", io.BytesIO(b"x" * 5000))
    meter = DiskMeter(store, settings, "me")
    meter.measure()
    kept = store.disk_usage("acme")
    assert kept.files == 5000
    assert 2 * MEGABYTE <= kept.models <= 2 * MEGABYTE + BLOCKS
    assert 3 * MEGABYTE <= kept.jobs <= 3 * MEGABYTE + BLOCKS
    assert kept.total == kept.files + kept.models + kept.jobs + kept.stages + kept.downloads
    assert [(each.kind, each.name) for each in store.largest("acme")] == [
        ("jobs", "demo"),
        ("models", "demo-model"),
        ("files", "a.csv"),
    ]
    assert store.largest("others") == []

    served.succeeded(attempt)
    discard(store, settings, file)
    remove(served.service, store.models("acme")[0])
    forget_job(store, settings, attempt.job)
    assert store.disk_usage("acme").models == kept.models, "it can be restored"
    assert sweep_models(store, settings, lambda: time.time() + 8 * 86400) == 1
    assert (left := store.disk_usage("acme")).total == left.stages + left.downloads
    store.set_disk_usage({("acme", "jobs", attempt.job): 1 << 40})  # measured while it was being deleted
    assert store.disk_usage("acme").jobs == 0


def test_a_job_is_measured_again_only_after_a_change(served, monkeypatch):  # noqa: F811
    attempt = served.started(served.job())
    served.job()  # it has no folder yet
    looked = []
    monkeypatch.setattr(quotas, "sizes", lambda folders: looked.extend(folders) or dict.fromkeys(folders, 7))
    meter = DiskMeter(served.store, served.settings, "me")
    mine = served.settings.jobs / attempt.job
    for _ in range(2):
        meter.measure()
    assert looked.count(mine) == 2, "it runs"
    served.succeeded(attempt)
    for _ in range(3):
        meter.measure()
    assert looked.count(mine) == 3
    assert served.store.job_bytes(attempt.job) == 7


def test_what_can_be_made_again_goes_first(served):  # noqa: F811
    store, settings = served.store, served.settings
    store.set_project("acme", max_bytes=3 * MEGABYTE)
    store.ensure_project("others")
    meter = DiskMeter(store, settings, "me")
    cache = quotas.shared_stages(settings, "acme").parent
    for name in ("acme", "others"):
        filled(quotas.shared_stages(settings, name) / ("a" * 32), 2 * MEGABYTE)
        filled(quotas.hub_folder(settings, name) / "hub", 2 * MEGABYTE)
    used = quotas.shared_stages(settings, "acme") / ("b" * 32)
    filled(used, 100_000)
    link = settings.jobs / "job-x" / "cache" / "stages" / ("b" * 32)
    link.parent.mkdir(parents=True)
    link.symlink_to(used)
    attempt = served.started(served.job())
    meter.measure()
    assert [path.name for path in (cache / "stages").iterdir()] == ["b" * 32], "what a job's folder leads to stays"
    assert quotas.hub_folder(settings, "acme").is_dir(), "a job of the project runs"
    served.succeeded(attempt)
    meter._freeing.clear()
    store.set_project("acme", max_bytes=MEGABYTE)
    meter.measure()
    assert not quotas.hub_folder(settings, "acme").exists()
    assert quotas.hub_folder(settings, "others").is_dir()
    assert (quotas.shared_stages(settings, "others") / ("a" * 32)).is_dir()
    assert store.disk_usage("acme").total < MEGABYTE
    assert served.job()


def test_uploads_at_once_never_come_to_more_than_the_project_may_keep(store, store_url, tmp_path):
    """Through several servers, announced and not, beside what is measured."""
    most, others = 3 * MEGABYTE, 2 * MEGABYTE
    settings = read_settings({}, home=tmp_path / "home", database_url=store_url)
    store.set_project("p", max_bytes=most)
    store.set_disk_usage({("p", "stages", ""): others})
    servers = [Store(settings.url) for _ in range(3)]
    gate, refused, failed = threading.Barrier(9), [], []

    def send(number):
        gate.wait()
        try:
            if number % 3:
                receive(servers[number % 3], settings, "p", f"{number}.csv", "data", io.BytesIO(b"x" * 300_000))
            else:
                begin(servers[number % 3], settings, "p", f"{number}.csv", "data", size=300_000)
        except DiskQuotaExceeded as error:
            refused.append(str(error))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in servers:
        each.close()
    assert failed == []
    assert 6 <= len(refused) < 9  # three of 300 kB fit into what is left, fewer while one has reserved ahead
    assert all("may keep 3 MB" in each for each in refused), refused
    assert store.disk_usage("p").files == 300_000 * (9 - len(refused))
    assert sum(path.stat().st_size for path in settings.files.glob("p/*")) <= 900_000


def test_the_api_says_what_is_used_what_is_allowed_and_what_to_delete(served):  # noqa: F811
    store = served.store
    store.set_disk_usage({("acme", "stages", ""): 2 * MEGABYTE})
    answer = served.admin.put("/api/v1/projects/acme", json={"max_bytes": 2 * MEGABYTE}).json()
    assert (answer["max_bytes"], answer["usage"]["stages"], answer["usage"]["total"]) == (2 * MEGABYTE,) * 3
    for refused in (
        served.submitter.post("/api/v1/jobs", content=RECIPE, headers=YAML),
        served.submitter.post("/api/v1/files/upload?filename=a.csv", content=b"x"),
        served.submitter.post("/api/v1/files", json={"filename": "a.csv"}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (507, "disk_quota")
        for words in ("keeps 2 MB on the disk (stages 2 MB), and may keep 2 MB", "finery delete JOB"):
            assert words in refused.json()["detail"]
    openai = served.submitter.post("/v1/files", files={"file": ("t.jsonl", b"{}\n")}, data={"purpose": "batch"})
    assert openai.status_code in (400, 507)
    assert store.jobs("acme") == store.files("acme") == []
    assert served.stranger.post("/api/v1/files", json={"filename": "a.csv"}).status_code == 201

    usage = served.viewer.get("/api/v1/projects/acme/usage").json()
    assert (usage["project"], usage["limit"], usage["stages"], usage["largest"]) == (
        "acme",
        2 * MEGABYTE,
        2 * MEGABYTE,
        [],
    )
    assert served.stranger.get("/api/v1/projects/acme/usage").status_code == 404
    assert served.admin.get("/api/v1/projects/acme/usage").json() == usage
    assert served.admin.get("/api/v1/projects/nobody/usage").status_code == 404
    for wrong in (-1, 2**63, "much"):
        assert served.admin.put("/api/v1/projects/acme", json={"max_bytes": wrong}).status_code == 422
    metrics = served.nobody.get("/metrics").text
    assert 'finery_kept_bytes{kind="stages"} 2e+06' in metrics
    assert 'finery_disk_quota_projects{fill="full"} 1.0' in metrics
    assert "acme" not in metrics
    served.admin.put("/api/v1/projects/acme", json={"max_bytes": None})
    assert served.job()


def test_evals_are_told_beside_the_other_kinds(served, tmp_path, capsys):  # noqa: F811
    of = served.store.add_eval("acme", "capitals", {}, [], {})
    served.store.add_run(of, "r", {}, {}, "", [({"text": "x" * 5000}, {})], "submitter")
    usage = served.viewer.get("/api/v1/projects/acme/usage").json()
    assert usage["evals"] == usage["total"] > 5000
    assert usage["largest"] == [{"kind": "evals", "id": of.id, "name": "capitals", "bytes": usage["evals"]}]
    assert f'finery_kept_bytes{{kind="evals"}} {float(usage["evals"])}' in served.nobody.get("/metrics").text
    (token := tmp_path / "token").write_text(served.token("viewer"))
    token.chmod(0o600)
    with listening(served) as url:
        assert show_project(None, url, token, False) == 0
    shown = capsys.readouterr().out
    assert of.id in shown
    assert "capitals" in shown


def test_the_command_sets_limits_and_shows_what_is_kept(served, tmp_path, capsys):  # noqa: F811
    tokens = {}
    for role in ("admin", "viewer"):
        tokens[role] = tmp_path / role
        tokens[role].write_text(served.token(role))
        tokens[role].chmod(0o600)
    served.store.set_disk_usage({("acme", "downloads", ""): 1_500_000})
    receive(served.store, served.settings, "acme", "rows.csv", "data", io.BytesIO(b"x" * 5000))
    counts = {"max_gpus": "2", "max_running": "none", "max_queued": None}
    with listening(served) as url:
        assert set_project("acme", counts, 2.0, "1.5 GB", url, tokens["admin"], True) == 0
        project = json.loads(capsys.readouterr().out)
        assert (project["max_bytes"], project["max_gpus"], project["weight"]) == (1_500_000_000, 2, 2.0)
        assert show_project(None, url, tokens["viewer"], False) == 0
        shown = capsys.readouterr().out
        assert "Project acme keeps 1.5 MB on the disk, of 1.5 GB that it may keep." in shown
        assert "rows.csv" in shown
        assert list_projects(url, tokens["admin"], False) == 0
        assert "1.5 GB" in capsys.readouterr().out
        with pytest.raises(CommandError, match="--max-gpus is 'many', must be a whole number, or `none`"):
            set_project("acme", {"max_gpus": "many"}, None, None, url, tokens["admin"], True)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("512MiB", 512 << 20), ("50GB", 50 * 10**9), ("1.5 T", 1_500_000_000_000), ("none", None), (" 7 ", 7)],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "5 gb", "٣GB", "nan", "1" * 40])
def test_what_is_no_size_is_a_sentence(text):
    with pytest.raises(CommandError, match="is no size: write bytes, or a number with kB"):
        bytes_of(text)
