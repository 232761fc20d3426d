"""The story of a job, told with stages that only write a file: what is reused, made again, and how an end is told."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError, DiskFull, StageError, Stopped
from pipelines.core.events import read_events
from pipelines.core.load import load
from pipelines.runs.run import complete_stages, run, working_folder
from pipelines.runs.workspace import StageStore
from pipelines.trainers.pretrain import Pretrain
from tests.end_to_end.forked import command, fork

RECIPE = """\
name: story
model: {architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64}}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - {stage: pretrain, id: one, datasets: [{path: text.txt}], max_train_samples: 5}
  - {stage: pretrain, id: two, datasets: [{path: text.txt}], max_train_samples: 5}
"""


class Story:
    """A folder with the recipe, in which the stages only write their weights down."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[str] = []
        self.act: Callable[[Any], None] = lambda context: None
        (root / "text.txt").write_text("a river and a harbour\n" * 20)
        (root / "recipe.yaml").write_text(RECIPE)

    def stage(self, context: Any) -> None:
        self.made.append(context.stage_id)
        (context.folder / "model").mkdir(exist_ok=True)
        (context.folder / "model" / "weights").write_text(f"of {context.stage_id} with seed {context.seed}")
        self.act(context)

    def run(self, *overrides: str) -> Path:
        self.made.clear()
        return run(
            load(self.root / "recipe.yaml", overrides),
            self.root / "runs" / "story",
            StageStore(self.root / "home"),
        )

    def events(self) -> list[dict[str, Any]]:
        return list(read_events(self.root / "runs" / "story" / "events.jsonl"))


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    found = Story(tmp_path)
    monkeypatch.setattr(Pretrain, "run", lambda self, context: found.stage(context))
    return found


def test_a_second_run_makes_nothing_and_a_third_with_another_seed_everything(story: Story) -> None:
    story.run()
    assert story.made == ["one", "two"]
    story.run()
    assert story.made == []
    story.run("seed=7")
    assert story.made == ["one", "two"]


@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("stages.two.block_size=64", ["two"]),
        ("stages.two.seed=3", ["two"]),
        ("stages.one.block_size=64", ["one", "two"]),
        ("stages.one.arguments.learning_rate=1e-4", ["one", "two"]),
        ("stages.one.id=first", []),
        ("tokenizer.vocab_size=301", ["one", "two"]),
        ("model.architecture.hidden_size=64", ["one", "two"]),
        ("name=another", []),
        ("launch.mixed_precision=no", None),
    ],
)
def test_what_changed_and_what_follows_it_is_made_again(override: str, made: list[str] | None, story: Story) -> None:
    story.run("launch.mixed_precision=bf16")
    story.run(*(["launch.mixed_precision=bf16"] if made is not None else []), override)
    assert story.made == (["one", "two"] if made is None else made)


def test_what_finery_decides_of_an_accelerate_configuration_is_a_warning(story: Story) -> None:
    (story.root / "mine.yaml").write_text("distributed_type: 'NO'\nuse_cpu: true\nmixed_precision: 'no'\n")
    story.run("launch={config: mine.yaml}")
    warnings = [event["message"] for event in story.events() if event["event"] == "warning"]
    assert any("mine.yaml:2  use_cpu is true, which Finery decides itself: GPUs are used" in text for text in warnings)


def test_changed_data_is_seen(story: Story) -> None:
    story.run()
    (story.root / "text.txt").write_text("another river and another harbour\n" * 20)
    story.run()
    assert story.made == ["one", "two"]


def test_a_stage_that_lost_a_file_is_made_again_and_the_next_is_kept(story: Story) -> None:
    run_folder = story.run()
    weights = run_folder / "stages" / "01-one" / "model" / "weights"
    weights.unlink()
    story.run()
    assert story.made == ["one"]
    assert weights.read_text() == "of one with seed 42"
    warning = next(event for event in story.events() if event["event"] == "warning")
    assert warning["stage"] == "one"
    assert "model/weights" in warning["message"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_stage_whose_record_is_broken_is_made_again(content: str, story: Story) -> None:
    run_folder = story.run()
    (run_folder / "stages" / "02-two" / "stage.json").write_text(content)
    story.run()
    assert story.made == ["two"]


def test_checkpoints_of_a_complete_stage_may_be_removed(story: Story) -> None:
    def leave_a_checkpoint(context: Any) -> None:
        folder = context.folder / "checkpoints" / "checkpoint-3"
        folder.mkdir(parents=True)
        (folder / "complete.json").write_text("{}")

    story.act = leave_a_checkpoint
    run_folder = story.run()
    (run_folder / "stages/01-one/checkpoints/checkpoint-3/complete.json").unlink()
    story.run()
    assert story.made == []


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (DataError("there is no column 'x'"), DataError, "data_error"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DiskFull, "disk_full"),
        (KeyError("weights"), StageError, "internal"),
        (Stopped("stopped by SIGTERM"), Stopped, "stopped"),
    ],
)
def test_an_end_is_told_and_leaves_nothing_half_made(
    error: Exception, kind: type[Exception], reason: str, story: Story
) -> None:
    def fail(context: Any) -> None:
        if context.stage_id == "two":
            raise error

    story.act = fail
    with pytest.raises(kind):
        story.run()
    last = story.events()[-1]
    assert (last["event"], last["stage"], last["reason"]) == ("stopped" if kind is Stopped else "failed", "two", reason)
    if kind is not Stopped:
        assert last["message"].startswith("stage 'two': ")
    assert [path for path in (story.root / "home" / "stages").glob("*.partial") if path.is_dir()] == []
    assert [path.name for path in (story.root / "runs" / "story" / "stages").iterdir()] == ["01-one"]
    story.act = lambda context: None
    story.run()
    assert story.made == ["two"]


@pytest.mark.parametrize("error", [DataError("bad"), Stopped("stopped")])
def test_whole_checkpoints_outlive_an_end_and_nothing_else_does(error: Exception, story: Story) -> None:
    def fail(context: Any) -> None:
        for step, whole in ((3, True), (6, False)):
            folder = context.folder / "checkpoints" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "weights").write_text("x")
            if whole:
                (folder / "complete.json").write_text("{}")
        (context.folder / "model.tmp").mkdir()
        raise error

    story.act = fail
    with pytest.raises(type(error)):
        story.run()
    link = story.root / "runs" / "story" / "stages" / "01-one"
    assert sorted(str(path.relative_to(link)) for path in link.rglob("*") if path.is_file()) == [
        "checkpoints/checkpoint-3/complete.json",
        "checkpoints/checkpoint-3/weights",
    ]


def test_a_run_that_cannot_write_its_last_words_fails_with_a_sentence(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.runs.workspace import RunFolder

    saved = RunFolder.save_manifest

    def full(place: RunFolder) -> None:
        if "finished" in place.manifest:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved(place)

    monkeypatch.setattr(RunFolder, "save_manifest", full)
    with pytest.raises(DiskFull, match="free some space"):
        story.run()
    assert story.events()[-1]["event"] == "failed"


def test_the_manifest_lists_every_stage_and_where_it_was_started(story: Story) -> None:
    run_folder = story.run()
    manifest = json.loads((run_folder / "manifest.json").read_text())
    assert [stage["id"] for stage in manifest["stages"]] == ["tokenizer", "one", "two"]
    record = json.loads((run_folder / "stages/01-one/stage.json").read_text())
    assert record["hardware"] == manifest["hardware"] | {"hosts": 1}  # a card says what it took, wherever it is reused
    assert manifest["stages"][1]["data"]
    assert working_folder(run_folder) == Path.cwd()


def test_a_working_folder_that_is_gone_is_replaced_by_the_current_one(tmp_path: Path) -> None:
    assert working_folder(tmp_path) == Path.cwd()
    (tmp_path / "manifest.json").write_text(json.dumps({"working_folder": str(tmp_path / "gone")}))
    assert working_folder(tmp_path) == Path.cwd()


def test_the_vocabulary_is_the_tokenizers_unless_the_recipe_says(story: Story) -> None:
    assert "vocab_size" not in load(story.root / "recipe.yaml").model.shape()
    assert load(story.root / "recipe.yaml", ["model.architecture.vocab_size=512"]).model.shape()["vocab_size"] == 512


def test_the_stages_tokens_and_the_models_segments_are_part_of_the_tokenizer(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.models.tokenizer import open_tokenizer

    folder = story.run() / "stages" / "tokenizer" / "model"
    folder = folder if folder.is_dir() else story.root / "runs" / "story" / "tokenizer" / "model"
    plain = open_tokenizer(str(folder))
    assert "token_type_ids" in plain.model_input_names
    monkeypatch.setattr(Pretrain, "special_tokens", lambda self: ("<extra_id_0>", "<extra_id_1>"))
    story.run()
    assert story.made == ["one", "two"]
    longer = open_tokenizer(str(folder))
    assert longer.convert_tokens_to_ids("<extra_id_1>") == len(longer) - 1
    assert len(longer) <= 300
    story.run("model.architecture.type_vocab_size=0")
    assert story.made == ["one", "two"]
    assert "token_type_ids" not in open_tokenizer(str(folder)).model_input_names


def test_an_adapter_whose_base_the_hub_refuses_is_refused_before_a_stage_begins(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, revision: str | None = None) -> str | None:
        raise DataError(f"'{source}' at {revision} was not found, or may not be read")

    monkeypatch.setattr("pipelines.runs.run.commit_of", refuse)
    (story.root / "adapter").mkdir()
    settings = {"base_model_name_or_path": "someone/gated", "revision": "v1"}
    (story.root / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    recipe = story.root / "recipe.yaml"
    recipe.write_text(RECIPE.replace(RECIPE.splitlines()[1], "model: {checkpoint: adapter}"))
    with pytest.raises(DataError, match=r"'someone/gated' at v1 was not found"):
        story.run()
    assert story.made == []


def test_complete_stages_are_found_by_id_and_attempts_are_not(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    for name in ("aaa", "bbb.partial", "ccc"):
        (store / name).mkdir(parents=True)
    (run / "stages").mkdir(parents=True)
    (run / "stages" / "01-pretrain").symlink_to(store / "aaa")
    (run / "stages" / "02-fine-tune-2").symlink_to(store / "ccc")
    (run / "stages" / "03-evaluate").symlink_to(store / "bbb.partial")
    (run / "stages" / "04-gone").symlink_to(store / "ddd")
    (run / "tokenizer").symlink_to(store / "ccc")
    assert complete_stages(run) == {"pretrain": store / "aaa", "fine-tune-2": store / "ccc", "tokenizer": store / "ccc"}


def test_a_rank_that_cannot_work_exits_1_and_leaves_the_reason(tmp_path: Path) -> None:
    (tmp_path / "attempt.partial").mkdir()
    stage = "{stage: supervised, id: mine, task: builtin/python-docs}"
    (tmp_path / "recipe.yaml").write_text(
        f"name: a\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages: [{stage}]\n"
    )
    words = [
        "stage",
        str(tmp_path),
        "mine",
        str(tmp_path / "attempt.partial"),
        "ddp",
        "2",
    ]  # two are wanted, this is alone
    assert fork(command, words, str(tmp_path), str(tmp_path / "said")) == 1
    left = json.loads((tmp_path / "attempt.partial" / "failure.json").read_text())
    assert left == {"type": "StageError", "message": "2 processes were asked for, but 1 joined"}
