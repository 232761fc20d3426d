"""Nobody plants a stage: the server alone writes a project's store, from what it looked through and hashed itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.runs import fingerprints, workspace
from pipelines.runs.workspace import StageStore
from service.attempts import stage_store
from service.attempts.environment import shared_stages
from service.attempts.folders import folders_of
from service.attempts.stage_store import free_stages, model_in, take_over
from service.jobs.job import Host, HostShare, Job, JobRequest
from service.jobs.states import State
from service.settings import Settings
from tests.service.attempts.conftest import Server

RECIPE = """\
name: tiny
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 4}}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def job_of(name: str, project: str = "acme", recipe: str = RECIPE) -> Job:
    return Job(f"job-{name}", JobRequest(recipe, project, name="tiny"), State.RUNNING, 0.0, 0.0)


def record_of(**fields: Any) -> dict[str, Any]:
    """What a run writes of a stage, with the fingerprint that belongs to it."""
    said: dict[str, Any] = {
        "id": "pretrain",
        "identity": {"seed": 1},
        "inputs": [],
        "data": {"train": "00"},
        "versions": {"torch": "2"},
        "code": "c0de",
    }
    said |= fields
    mark = fingerprints.digest([said["identity"], said["inputs"], said["data"], said["versions"], said["code"]])
    return {"fingerprint": mark, **said}


def leave(
    settings: Settings,
    job: Job,
    record: dict[str, Any] | None = None,
    name: str | None = None,
    weights: bytes = b"weights",
) -> Path:
    """A finished stage in the home of a job, as the store of pipelines leaves it."""
    record = record or record_of()
    folder = folders_of(settings.jobs, job).cache / "stages" / (name or record["fingerprint"])
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(weights)
    (folder / "stage.json").write_text(
        json.dumps({**record, "files": {"model/config.json": 2, "model/model.safetensors": len(weights)}})
    )
    return folder


def reader(settings: Settings, job: Job, monkeypatch: pytest.MonkeyPatch) -> StageStore:
    """The store as an attempt of the job sees it."""
    monkeypatch.setenv("FINERY_SHARED_STAGES", str(shared_stages(settings, job.project)))
    return StageStore(folders_of(settings.jobs, job).cache)


def test_the_server_and_the_run_agree_on_the_record() -> None:
    parts = [{"a": (1, 2.5)}, ["x"], {"ü": "y"}, {}, "c"]
    assert stage_store.digest(parts) == fingerprints.digest(parts)
    assert (stage_store.RECORD, stage_store.HASHES) == (workspace.RECORD, workspace.HASHES)


def test_a_finished_stage_is_hashed_moved_and_served_to_the_project(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, stranger = job_of("one"), job_of("two"), job_of("three", "others")
    own = leave(settings, one)
    mark = own.name
    assert take_over(settings, one) == [mark]
    assert take_over(settings, one) == []
    store = shared_stages(settings, "acme")
    assert own.is_symlink()
    assert own.resolve() == (store / mark).resolve()
    said = json.loads((store / mark / "server.json").read_text())
    assert said["job"] == one.id
    assert said["files"]["model/model.safetensors"][0] == 7
    assert (store / mark).stat().st_mode & 0o222 == 0
    assert (store / mark / "model" / "model.safetensors").stat().st_mode & 0o222 == 0
    for job in (one, two):
        assert reader(settings, job, monkeypatch).complete(mark) is not None
    assert reader(settings, stranger, monkeypatch).complete(mark) is None
    run = folders_of(settings.jobs, one).run / "stages"
    run.mkdir(parents=True)
    (run / "01-pretrain").symlink_to(own)
    assert model_in(settings, one, run / "01-pretrain") == (store / mark / "model").resolve()


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "f" * 32},
        {"id": "elsewhere"},
        {"id": None},
        {"identity": {"seed": 2}},
        {"data": {}},
        {"code": "other"},
        {"inputs": ["x"]},
        {"id": ["pretrain"]},
    ],
    ids=str,
)
def test_a_stage_that_is_not_what_it_says_is_not_taken(settings: Settings, change: dict[str, Any]) -> None:
    """Planted under the fingerprint of another recipe: the hash of what the record says is another."""
    job = job_of("one")
    honest = record_of()
    folder = leave(settings, job, {**honest, **change}, name=honest["fingerprint"])
    assert take_over(settings, job) == []
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert list(shared_stages(settings, "acme").glob("*")) == []


def a_link(folder: Path) -> None:
    (folder / "model" / "vocab.txt").symlink_to("/etc/passwd")


def a_link_to_a_folder(folder: Path) -> None:
    (folder / "deeper").symlink_to("/etc")


def a_second_name(folder: Path) -> None:
    os.link(folder / "model" / "config.json", folder.parents[2] / "kept.json")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "model" / "pipe")


def a_record_that_is_a_link(folder: Path) -> None:
    (folder / "stage.json").rename(folder.parents[1] / "stage.json")
    (folder / "stage.json").symlink_to(folder.parents[1] / "stage.json")


def a_record_without_an_end(folder: Path) -> None:
    (folder / "stage.json").write_text("[" * 100_000)


def a_huge_record(folder: Path) -> None:
    with open(folder / "stage.json", "ab") as file:
        file.truncate(1 << 40)


def a_long_name(folder: Path) -> None:
    deep = folder
    for _ in range(8):
        deep = deep / ("n" * 200)
    deep.mkdir(parents=True)
    (deep / "x").touch()


def a_name_with_control_characters(folder: Path) -> None:
    (folder / "a\x1b[2Jb").touch()


@pytest.mark.parametrize(
    "odd",
    [
        a_link,
        a_link_to_a_folder,
        a_second_name,
        a_pipe,
        a_record_that_is_a_link,
        a_record_without_an_end,
        a_huge_record,
        a_long_name,
        a_name_with_control_characters,
    ],
)
def test_a_stage_with_anything_but_plain_files_stays_the_job_s_own(
    settings: Settings, odd: Callable[[Path], None]
) -> None:
    job = job_of("one")
    folder = leave(settings, job)
    (folders_of(settings.jobs, job).job / "runs").mkdir()
    odd(folder)
    assert take_over(settings, job) == []
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert [each for each in settings.home.glob("cache/**/*") if each.is_file()] == []


def test_an_own_record_of_hashes_is_written_anew(settings: Settings) -> None:
    job = job_of("one")
    folder = leave(settings, job)
    (folder / "server.json").write_text('{"planted": true}')
    [mark] = take_over(settings, job)
    assert "planted" not in (shared_stages(settings, "acme") / mark / "server.json").read_text()


@pytest.mark.parametrize("place", ["cache", "cache/stages"])
def test_a_home_that_is_a_link_is_not_followed(settings: Settings, tmp_path: Path, place: str) -> None:
    """Else a job could have the server move what belongs to another."""
    victim, thief = job_of("victim"), job_of("thief")
    theirs = leave(settings, victim)
    mine = folders_of(settings.jobs, thief).job / place
    mine.parent.mkdir(parents=True)
    mine.symlink_to(folders_of(settings.jobs, victim).job / place)
    assert take_over(settings, thief) == []
    assert theirs.is_dir()


def test_the_first_one_stays_whatever_comes_later(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = job_of("one"), job_of("two")
    mark = leave(settings, one, weights=b"honest").name
    own = leave(settings, two, weights=b"planted")
    assert take_over(settings, one) == [mark]
    assert take_over(settings, two) == []
    assert (shared_stages(settings, "acme") / mark / "model" / "model.safetensors").read_bytes() == b"honest"
    assert (own / "model" / "model.safetensors").read_bytes() == b"planted", "its own run keeps what it made"


def test_what_changes_after_it_was_taken_over_is_not_used(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that outlived its attempt, a bad disk: whoever reuses a stage holds every byte against the record."""
    job = job_of("one")
    leave(settings, job)
    [mark] = take_over(settings, job)
    weights = shared_stages(settings, "acme") / mark / "model" / "model.safetensors"
    os.chmod(weights, 0o644)
    weights.write_bytes(b"WEIGHTS")  # as long as before
    assert reader(settings, job_of("two"), monkeypatch).complete(mark) is None
    weights.write_bytes(b"weights")
    assert reader(settings, job_of("two"), monkeypatch).complete(mark) is not None
    os.chmod(weights.parent, 0o755)
    (weights.parent / "more.py").touch()
    assert reader(settings, job_of("two"), monkeypatch).complete(mark) is None


class Killed(BaseException):
    """The server is killed."""


@pytest.mark.parametrize("step", ["rename-1", "rename-2", "rename-3", "symlink-1", "chmod-1", "chmod-3", "fchmod-1"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_server_that_is_killed_anywhere_does_it_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    job = job_of("one")
    own = leave(settings, job)
    name, _, number = step.partition("-")
    real, left = getattr(os, name), [int(number)]

    def dying(*given: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        found = real(*given, **keywords)
        if left[0] == 0:
            raise Killed
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, name, dying)
        with pytest.raises(Killed):
            take_over(settings, job)
    take_over(settings, job)
    assert own.is_symlink()
    found = reader(settings, job, monkeypatch).complete(own.name)
    assert found is not None
    assert (found / "model" / "model.safetensors").read_bytes() == b"weights"
    assert not list(settings.home.glob("cache/acme/incoming/*/*"))


def test_what_was_set_aside_is_deleted_when_another_job_s_came_first(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what a killed server had set aside would lie there for ever."""

    def dies(*_: Any) -> None:
        raise Killed

    one, two = job_of("one"), job_of("two")
    own = leave(settings, one, weights=b"slow")
    with monkeypatch.context() as patched:
        patched.setattr(stage_store, "_take", dies)
        with pytest.raises(Killed):
            take_over(settings, one)
    leave(settings, two, weights=b"fast")
    [mark] = take_over(settings, two)
    assert take_over(settings, one) == []
    assert not list(settings.home.glob("cache/acme/incoming/*"))
    assert os.readlink(own) == str(shared_stages(settings, "acme") / mark)
    assert (own / "model" / "model.safetensors").read_bytes() == b"fast"


def test_another_file_system_gets_a_copy_that_is_looked_through_likewise(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def refuse(source: Any, target: Any, **keywords: Any) -> None:
        if "src_dir_fd" in keywords:
            raise OSError(18, "Invalid cross-device link")
        real(source, target, **keywords)

    monkeypatch.setattr(os, "rename", refuse)
    job, other = job_of("one"), job_of("two")
    own = leave(settings, job)
    assert take_over(settings, job) == [own.name]
    assert own.is_symlink()
    odd = leave(settings, other, record_of(identity={"seed": 2}))
    a_link(odd)
    assert take_over(settings, other) == []
    assert odd.is_dir()


def test_a_stage_that_no_job_leads_to_is_freed_when_it_is_old(settings: Settings) -> None:
    one, two = job_of("one"), job_of("two")
    [mark] = take_over(settings, one) if leave(settings, one) else []
    store = shared_stages(settings, "acme")
    later = (store / mark).stat().st_mtime + settings.stage_seconds + 1
    assert free_stages(settings, clock=lambda: later) == 0, "its own job leads to it"
    run = folders_of(settings.jobs, two).run / "stages"
    run.mkdir(parents=True)
    (run / "01-pretrain").symlink_to(store / mark)
    shutil.rmtree(folders_of(settings.jobs, one).job)
    assert free_stages(settings, clock=lambda: later) == 0, "another job's run uses it"
    shutil.rmtree(folders_of(settings.jobs, two).job)
    assert free_stages(settings) == 0, "it is young"
    assert free_stages(settings, clock=lambda: later) == 1
    assert list(store.iterdir()) == []


def test_a_run_makes_a_stage_again_where_its_link_leads_nowhere(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("one")
    own = leave(settings, job)
    [mark] = take_over(settings, job)
    gone = shared_stages(settings, "acme") / mark
    for place, _, _ in os.walk(gone):
        os.chmod(place, 0o755)
    shutil.rmtree(gone)
    store = reader(settings, job, monkeypatch)
    assert store.complete(mark) is None
    with store.attempt(mark) as folder:
        (folder / "new").touch()
        assert (store.finish(mark, {"id": "pretrain"}) / "new").is_file()
    assert not own.is_symlink()


def test_a_reference_to_a_job_never_leads_out_of_it(settings: Settings, tmp_path: Path) -> None:
    job, other = job_of("one"), job_of("two", "others")
    theirs = leave(settings, other)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "model").mkdir(parents=True)
    (elsewhere / "model" / "config.json").write_text("{}")
    run = folders_of(settings.jobs, job).run / "stages"
    run.mkdir(parents=True)
    for place, target in enumerate((theirs, elsewhere, Path("/"), settings.home, run), start=1):
        (run / f"{place:02d}-x").symlink_to(target)
        assert model_in(settings, job, run / f"{place:02d}-x") is None
    own = leave(settings, job)
    (run / "09-pretrain").symlink_to(own)
    assert model_in(settings, job, run / "09-pretrain") == own.resolve() / "model"
    (own / "model" / "more").symlink_to("/etc/passwd")
    assert model_in(settings, job, run / "09-pretrain") is None


PLANTER = """
import json, os, pathlib, sys
home = pathlib.Path(os.environ["FINERY_HOME"]) / "stages"
shared = pathlib.Path(os.environ["FINERY_SHARED_STAGES"])
folder = home / "{mark}"
(folder / "model").mkdir(parents=True)
(folder / "model" / "config.json").write_text("{{}}")
(folder / "stage.json").write_text(json.dumps({record}))
planted = home / ("e" * 32)
planted.mkdir()
(planted / "stage.json").write_text(json.dumps({{**{record}, "fingerprint": "e" * 32}}))
(home / ("d" * 32)).symlink_to("/etc")
(home / "../../runs").mkdir()
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 1, 75])
def test_an_attempt_that_plants_stages_leaves_its_own_alone_however_it_ends(tmp_path: Path, code: int) -> None:
    """The whole way: a process, its proven end, and what the server took over."""
    record = record_of()
    script = tmp_path / "plant.py"
    script.write_text(PLANTER.format(mark=record["fingerprint"], record=repr(record), code=code))
    server = Server(Settings(home=tmp_path / "home", cpus=1, max_retries=0))
    server.watcher.stop()
    from service.attempts.watching import Watcher

    server.watcher = Watcher(server.store, server.settings, server.executor, "me", (sys.executable, "-S", str(script)))
    server.store.report_host(Host("here", cpus=2, memory=8 << 30))
    job = server.submit(recipe=RECIPE)
    server.store.start(job, (HostShare("here"),), executor="local", holder="me", lease_seconds=60)
    server.until(job, lambda found: not server.store.live_attempts("me"))
    taken = sorted(each.name for each in shared_stages(server.settings, "default").iterdir())
    assert taken == [record["fingerprint"]]
    server.watcher.stop()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A Hub on this machine with a private repository, and the real client."""
    from tests import hub_stand_in
    from tests.pipelines.publishing.conftest import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "files")
    (tmp_path / "files" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with hub_stand_in.serving() as serving:
        hub_stand_in.connect(serving, monkeypatch)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # kept with the address of the first test's Hub
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", serving.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            serving.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
        serving.repositories["acme/secret"] = hub_stand_in.Repository(private=True, files=files)
        yield serving


def tokenizer_of(settings: Settings, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str) -> Any:
    """The first stage of a run of this job, as its attempt does it: which folder it came to, and its events."""
    from pipelines.core.load import loads
    from pipelines.core.signals import StopSignal
    from pipelines.runs.run import RecipeRun as Run
    from pipelines.runs.workspace import RunFolder

    monkeypatch.setenv("FINERY_SHARED_STAGES", str(shared_stages(settings, project)))
    recipe = loads(PRIVATE)
    store = StageStore(folders_of(settings.jobs, job).cache)
    run = Run(recipe, RunFolder(tmp_path / "runs" / job.id, store), StopSignal())
    with run.place.open(recipe.to_yaml()):
        run.begin()
        run.make_tokenizer()
    return run


PRIVATE = """\
name: tiny
model: {checkpoint: acme/secret}
stages:
  - {stage: supervised, task: builtin/python-docs, max_length: 32, arguments: {max_steps: 4}}
"""


def test_access_to_a_private_repository_is_asked_again_for_every_job(
    settings: Settings, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another project, nor a job of the same one without the token, is served what was made of it."""
    from pipelines.core.errors import DataError

    first, again, without, stranger = (
        job_of(name, project, PRIVATE)
        for name, project in (("1", "acme"), ("2", "acme"), ("3", "acme"), ("4", "others"))
    )
    made = tokenizer_of(settings, first, tmp_path, monkeypatch, "acme")
    mark = made.fingerprints["tokenizer"]
    commit = hub.repositories["acme/secret"].sha
    said = json.loads((made.folders["tokenizer"] / "stage.json").read_text())
    assert said["identity"]["content"] == f"acme/secret@{commit}"
    assert take_over(settings, first) == [mark]

    assert (
        tokenizer_of(settings, again, tmp_path, monkeypatch, "acme").folders["tokenizer"]
        == shared_stages(settings, "acme") / mark
    )
    opened: list[object] = []
    monkeypatch.setattr(StageStore, "complete", lambda *given: opened.append(given))
    monkeypatch.setenv("HF_TOKEN", "hf_" + "somebodyelse" * 3)
    for job, project in ((without, "acme"), (stranger, "others")):
        with pytest.raises(DataError, match=r"'acme/secret' was not found, or may not be read \(401 from the Hub\)"):
            tokenizer_of(settings, job, tmp_path, monkeypatch, project)
    assert opened == [], "it is refused before any cache is looked into"


def test_a_new_commit_is_another_stage(
    settings: Settings, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.models import checkpoint_content

    before = tokenizer_of(settings, job_of("1"), tmp_path, monkeypatch, "acme").fingerprints["tokenizer"]
    hub.repositories["acme/secret"].commits.append(["config.json"])
    checkpoint_content._commit_of.cache_clear()
    assert tokenizer_of(settings, job_of("2"), tmp_path, monkeypatch, "acme").fingerprints["tokenizer"] != before


def test_without_the_hub_the_commit_in_the_cache_stands(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.models.checkpoint_content import checkpoint_content

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert checkpoint_content("acme/other") == "acme/other@main"
    refs = tmp_path / "hub" / "models--acme--other" / "refs"
    refs.mkdir(parents=True)
    (refs / "v1").write_text("a" * 40)
    assert checkpoint_content("acme/other", "v1") == f"acme/other@{'a' * 40}"


def test_a_gated_repository_is_asked_whether_its_files_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its description is public, and names the commit."""
    import httpx
    from huggingface_hub.errors import GatedRepoError

    from pipelines.core.errors import DataError
    from pipelines.models.checkpoint_content import commit_of

    class Described:
        sha, gated = "b" * 40, "manual"

    def refuse(self: Any, name: str, **_: Any) -> None:
        raise GatedRepoError("no", response=httpx.Response(403, request=httpx.Request("GET", "http://hub")))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: Described())
    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", refuse)
    with pytest.raises(DataError, match="403 from the Hub"):
        commit_of("acme/gated")
    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", lambda *_, **__: None)
    assert commit_of("acme/gated") == "b" * 40
