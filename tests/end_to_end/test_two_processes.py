"""Two processes do what one does: the same losses at the same global batch, and every example scored once.

Each with a whole model (`ddp`), or with a half of its weights (`fsdp2`).
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from pipelines.core.events import read_events
from pipelines.data.ragged import SHARED
from tests.end_to_end import forked

RECIPE = """\
name: shared
launch: {mixed_precision: no}
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
tokenizer: {train: wordpiece, vocab_size: 400}
stages:
  - stage: pretrain
    datasets: [{path: builtin/python-docs}]
    block_size: 16
    max_train_samples: 20
    arguments: {max_steps: 6, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}
  - stage: supervised
    task: builtin/python-docs
    max_length: 24
    max_train_samples: 45
    arguments: {num_train_epochs: 2, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1, save_steps: 4}
  - {stage: evaluate, max_eval_samples: 37, per_device_eval_batch_size: 5}
"""
TWO = "launch.num_processes=2"
FSDP2 = "launch.profile=fsdp2"
RELATIVE = 1e-4
"""Floats are added in another order."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "shared.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run with one process; its home lies beside it."""
    folder = tmp_path_factory.mktemp("alone")
    assert forked.fork(forked.run_recipe, str(recipe), [], str(folder / "run"), str(folder / "home")) == 0
    return folder


def losses(run: Path) -> dict[tuple[str, int], float]:
    events = [
        event
        for event in read_events(run / "events.jsonl")
        if event["event"] == "metric" and "loss" in event["metrics"]
    ]
    return {(event["stage"], event["step"]): event["metrics"]["loss"] for event in events}


def assert_equal_losses(one: Path, two: Path, stages: tuple[str, ...]) -> None:
    expected = {key: value for key, value in losses(one).items() if key[0] in stages}
    assert len(expected) >= 6
    assert losses(two) == pytest.approx(expected, rel=RELATIVE)


def ranks_log(run: Path) -> str:
    return (run / "ranks.log").read_text(errors="replace") if (run / "ranks.log").exists() else "no output"


def test_the_losses_are_those_of_one_process(recipe: Path, alone: Path, tmp_path: Path) -> None:
    """45 rows in batches of 8: the last batch of an epoch has 5, for one process 4 and for the other 1."""
    code = forked.fork(forked.run_on_forked_ranks, str(recipe), [TWO], str(tmp_path / "run"), str(tmp_path / "home"))
    assert code == 0, ranks_log(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["launch"]["num_processes"] == 2
    assert_equal_losses(alone / "run", tmp_path / "run", ("pretrain", "supervised"))
    assert max(step for stage, step in losses(tmp_path / "run") if stage == "supervised") == 12
    one, two = (
        json.loads(next(run.glob("stages/*supervised/metrics.json")).read_text())
        for run in (alone / "run", tmp_path / "run")
    )
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=RELATIVE)
    assert two["all_parameters"] == one["all_parameters"]
    assert list((tmp_path / "run").glob(f"stages/*/{SHARED}")) == [], "the rows that both mapped are gone"


def test_processes_with_a_half_of_the_weights_each_leave_what_one_process_can_go_on_from(
    recipe: Path, alone: Path, tmp_path: Path
) -> None:
    """Both are killed at their eighth step, when the fourth is saved; one process does the rest."""
    place = (str(recipe), [TWO, FSDP2], str(tmp_path / "run"), str(tmp_path / "home"))
    assert forked.fork(forked.run_on_forked_ranks, *place, ("training step", 8)) == 1
    events = list(read_events(tmp_path / "run/events.jsonl"))
    assert (events[-1]["event"], events[-1]["stage"]) == ("failed", "supervised")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["launch"] == {
        "profile": "fsdp2",
        "num_processes": 2,
        "mixed_precision": "no",
    }
    held = [event for event in events if event["event"] == "distributed"]
    assert [(event["stage"], event["profile"]) for event in held] == [("pretrain", "fsdp2"), ("supervised", "fsdp2")]
    for event in held:
        assert [each["rank"] for each in event["ranks"]] == [0, 1]
        assert sum(each["local"] for each in event["ranks"]) == event["ranks"][0]["global"]
        assert all(0.45 < each["local"] / each["global"] < 0.55 for each in event["ranks"])
    assert (next((tmp_path / "home/stages").glob("*.partial/checkpoints/checkpoint-4")) / "complete.json").is_file()

    assert forked.fork(forked.run_recipe, str(recipe), [], *place[2:]) == 0
    later = list(read_events(tmp_path / "run/events.jsonl"))[len(events) :]
    assert [event["step"] for event in later if event.get("what") == "resumed"] == [4]
    assert_equal_losses(alone / "run", tmp_path / "run", ("pretrain", "supervised"))
    for stage in ("01-pretrain", "02-supervised"):
        one, both = (run / "stages" / stage / "model" for run in (alone / "run", tmp_path / "run"))
        assert {path.name for path in both.iterdir()} == {path.name for path in one.iterdir()}
        assert (both / "config.json").read_text() == (one / "config.json").read_text()
        weights, expected = (load_file(str(folder / "model.safetensors")) for folder in (both, one))
        assert weights.keys() == expected.keys()
        for name, weight in weights.items():
            assert weight == pytest.approx(expected[name], abs=1e-4), name


@pytest.mark.long
def test_text_is_tokenised_by_one_process_and_mapped_by_both(tmp_path: Path) -> None:
    (tmp_path / "text.yaml").write_text(RECIPE.partition("  - stage: supervised")[0])
    place = (str(tmp_path / "text.yaml"), [TWO], str(tmp_path / "run"), str(tmp_path / "home"))
    code = forked.fork(forked.run_with_tokenising_noted, *place, str(tmp_path / "notes"))
    assert code == 0, ranks_log(tmp_path / "run")
    notes = (tmp_path / "notes").read_text().splitlines()
    assert [note for note in notes if note.endswith("tokenises")] == ["0 tokenises"]
    (file,) = (tmp_path / "home/data").glob("packed-*.npy")
    assert {note for note in notes if "maps" in note} == {f"{rank} maps {file}" for rank in (0, 1)}


@pytest.mark.long
def test_a_stream_and_a_mixture_are_shared_without_loss(recipe: Path, tmp_path: Path) -> None:
    """Both processes take their rows of the same batches: nothing twice, nothing left out, at any number of them."""
    streams = (
        "stages.pretrain.datasets=[{path: builtin/python-docs, streaming: true, weight: 2}, "
        "{path: builtin/python-docs, split: validation, weight: 1}]"
    )
    words = [streams, "stages.pretrain.buffer_size=5", "stages.pretrain.arguments.max_steps=12"]
    words += ["tokenizer.max_train_samples=20"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert forked.fork(forked.run_recipe, str(recipe), words, str(one), str(tmp_path / "home-one")) == 0
    code = forked.fork(forked.run_on_forked_ranks, str(recipe), [TWO, *words], str(two), str(tmp_path / "home-two"))
    assert code == 0, ranks_log(two)
    assert_equal_losses(one, two, ("pretrain", "supervised"))
    drawn = [json.loads(next(run.glob("stages/*pretrain/metrics.json")).read_text())["datasets"] for run in (one, two)]
    assert drawn[0] == drawn[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["launch.num_processes=1"], ["launch.num_processes=4", FSDP2]),
        ([TWO], [TWO, FSDP2]),
        (["launch.num_processes=4", FSDP2], [TWO]),
        ([TWO, FSDP2], ["launch.num_processes=4", FSDP2]),
    ],
    ids=["1 to fsdp2 of 4", "ddp of 2 to fsdp2 of 2", "fsdp2 of 4 to ddp of 2", "fsdp2 of 2 to fsdp2 of 4"],
)
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd"])
def test_a_killed_run_goes_on_under_any_profile(
    optim: str, first: list[str], second: list[str], recipe: Path, alone: Path, tmp_path: Path
) -> None:
    """The last batch of an epoch, of 5 rows, is shared by 4 processes too; the optimizer's state goes along."""
    words = [f"stages.{stage}.arguments.optim={optim}" for stage in ("pretrain", "supervised")]
    place = (str(tmp_path / "run"), str(tmp_path / "home"))
    alone_first = "launch.num_processes=1" in first  # one process does the 6 steps of the stage before, too
    death = ("training step", 6 + 8 if alone_first else 8)
    assert forked.fork(forked.run_on_forked_ranks, str(recipe), [*words, *first], *place, death) != 0
    before = len(list(read_events(tmp_path / "run/events.jsonl")))
    code = forked.fork(forked.run_on_forked_ranks, str(recipe), [*words, *second], *place)
    assert code == 0, ranks_log(tmp_path / "run")
    later = list(read_events(tmp_path / "run/events.jsonl"))[before:]
    assert [event["step"] for event in later if event.get("what") == "resumed"] == [4]
    if optim != "adamw_torch_fused":  # the recipe's own
        whole = (str(tmp_path / "whole"), str(tmp_path / "home-whole"))
        assert forked.fork(forked.run_recipe, str(recipe), words, *whole) == 0
    expected = alone / "run" if optim == "adamw_torch_fused" else tmp_path / "whole"
    assert_equal_losses(expected, tmp_path / "run", ("pretrain", "supervised"))


@pytest.fixture(scope="module")
def tricks(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Run folders of one process and of two: pairs of sentences, then layers that wake one by one."""
    folder = tmp_path_factory.mktemp("tricks")
    words = [
        "stages.pretrain.objective=next_sentence",
        "stages.pretrain.block_size=32",
        "stages.pretrain.arguments.max_steps=8",
        "stages.supervised.tuner={name: full, discriminative: 2.6, slanted_triangular: true, gradual_unfreezing: true}",
        "stages.supervised.max_train_samples=32",
        "stages.supervised.arguments.num_train_epochs=3",
    ]
    one, two = folder / "one", folder / "two"
    assert forked.fork(forked.run_recipe, str(recipe), words, str(one), str(folder / "home-one")) == 0
    code = forked.fork(forked.run_on_forked_ranks, str(recipe), [TWO, *words], str(two), str(folder / "home-two"))
    assert code == 0, ranks_log(two)
    return one, two


@pytest.mark.long
def test_each_part_of_a_loss_is_divided_by_the_items_of_both_processes(tricks: tuple[Path, Path]) -> None:
    """Hidden tokens and pairs of sentences, in the last batch of an epoch too."""
    one, two = tricks
    assert losses(two) == pytest.approx(losses(one), rel=RELATIVE)
    assert len([step for stage, step in losses(one) if stage == "pretrain"]) == 8
    assert json.loads(next(one.glob("stages/*pretrain/metrics.json")).read_text())["epoch"] > 1


def test_layers_wake_on_both_processes(tricks: tuple[Path, Path]) -> None:
    """Weights that are frozen have no gradient to share, on either process, and join the sharing when they wake. What
    they make of the text was computed by one process and read by both."""
    for home in ("home-one", "home-two"):  # below the head, and below the second layer
        assert len(list((tricks[0].parent / home / "data").glob("features-*.npy"))) == 2
    assert losses(tricks[1]) == pytest.approx(losses(tricks[0]), rel=RELATIVE)
    one, two = (json.loads(next(run.glob("stages/*supervised/metrics.json")).read_text()) for run in tricks)
    assert one["trainable_parameters"] == two["trainable_parameters"] < one["all_parameters"]


def test_two_processes_score_every_example_once(recipe: Path, alone: Path, tmp_path: Path) -> None:
    """The same trained model, evaluated by one process and by two: the same rows to the bit."""
    shutil.copytree(alone / "home", tmp_path / "home", symlinks=True)
    evaluated = json.loads((alone / "run/stages/03-evaluate/stage.json").read_text())["fingerprint"]
    shutil.rmtree(tmp_path / "home/stages" / evaluated)
    code = forked.fork(forked.run_on_forked_ranks, str(recipe), [TWO], str(tmp_path / "run"), str(tmp_path / "home"))
    assert code == 0, ranks_log(tmp_path / "run")
    done = {
        event["stage"]: event["reused"]
        for event in read_events(tmp_path / "run/events.jsonl")
        if event["event"] == "stage_finished"
    }
    assert done == {"tokenizer": True, "pretrain": True, "supervised": True, "evaluate": False}
    one, two = (
        pq.read_table(run / "stages/03-evaluate/predictions.parquet") for run in (alone / "run", tmp_path / "run")
    )
    assert two.num_rows == 37
    assert two["index"].to_pylist() == list(range(37))
    assert two.equals(one)
    scores = [
        json.loads((run / "stages/03-evaluate/metrics.json").read_text()) for run in (alone / "run", tmp_path / "run")
    ]
    assert scores[0] == scores[1]


SEVERAL = """\
name: several
launch: {mixed_precision: no}
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
tokenizer: {train: wordpiece, vocab_size: 400}
stages:
  - stage: multi_task
    id: together
    tasks:
      - {task: builtin/python-docs, max_length: 24, max_train_samples: 40}
      - {id: short, task: builtin/python-docs, max_length: 12, max_train_samples: 20, weight: 0.5}
    loss_weighting: uncertainty
    arguments: {num_train_epochs: 2, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}
  - {stage: evaluate, from: together/python-docs, max_eval_samples: 37, per_device_eval_batch_size: 5}
"""


@pytest.mark.long
def test_two_processes_learn_several_tasks_as_one_does(tmp_path: Path) -> None:
    recipe = tmp_path / "several.yaml"
    recipe.write_text(SEVERAL)
    assert forked.fork(forked.run_recipe, str(recipe), [], str(tmp_path / "one"), str(tmp_path / "home-one")) == 0
    code = forked.fork(
        forked.run_on_forked_ranks, str(recipe), [TWO], str(tmp_path / "two"), str(tmp_path / "home-two")
    )
    assert code == 0, ranks_log(tmp_path / "two")
    assert_equal_losses(tmp_path / "one", tmp_path / "two", ("together",))
    assert list((tmp_path / "two").glob(f"stages/*/{SHARED}")) == []
    one, two = (pq.read_table(tmp_path / run / "stages/02-evaluate/predictions.parquet") for run in ("one", "two"))
    assert two["index"].to_pylist() == one["index"].to_pylist() == list(range(37))
    for row, other in zip(one["logits"].to_pylist(), two["logits"].to_pylist(), strict=True):
        assert other == pytest.approx(row, abs=1e-3)


def test_an_error_of_a_rank_is_told_as_one_process_would_tell_it(recipe: Path, tmp_path: Path) -> None:
    nan = ["stages.pretrain.arguments.learning_rate=1e30", "stages.pretrain.arguments.max_grad_norm=0"]
    code = forked.fork(
        forked.run_on_forked_ranks, str(recipe), [TWO, *nan], str(tmp_path / "run"), str(tmp_path / "home")
    )
    assert code == 1
    last = list(read_events(tmp_path / "run/events.jsonl"))[-1]
    assert (last["event"], last["reason"], last["stage"]) == ("failed", "diverged", "pretrain")
    assert last["message"].startswith("stage 'pretrain': the loss is ")
    assert not [path for path in (tmp_path / "home/stages").glob("*.partial") if path.is_dir()]


@pytest.mark.long
def test_torchrun_starts_the_ranks(recipe: Path, alone: Path, tmp_path: Path) -> None:
    child = forked.fresh("run", str(recipe), TWO, home=tmp_path / "home", folder=tmp_path)
    _, said = child.communicate(timeout=500)
    run = tmp_path / "runs" / "shared"
    assert child.returncode == 0, said.decode() + ranks_log(run)
    assert_equal_losses(alone / "run", run, ("pretrain", "supervised"))
    table = pq.read_table(run / "stages/03-evaluate/predictions.parquet")
    assert table["index"].to_pylist() == list(range(37))


@pytest.mark.long
@pytest.mark.parametrize("profile", ["ddp", "fsdp2"])
def test_a_rank_that_is_killed_ends_the_run_with_a_sentence_and_no_orphan(
    profile: str, recipe: Path, tmp_path: Path
) -> None:
    child = forked.fresh(
        "run",
        str(recipe),
        TWO,
        f"launch.profile={profile}",
        "stages.pretrain.arguments.max_steps=100000",
        "stages.pretrain.arguments.save_steps=20",
        home=tmp_path / "home",
        folder=tmp_path,
    )
    run = tmp_path / "runs" / "shared"
    deadline = time.monotonic() + 240
    while not any(event["event"] == "checkpoint" for event in read_events(run / "events.jsonl")):
        assert child.poll() is None, child.stderr.read().decode() if child.stderr else ""
        assert time.monotonic() < deadline, ranks_log(run)
        time.sleep(0.1)
    family = psutil.Process(child.pid).children(recursive=True)
    ranks = [each for each in family if "stage" in each.cmdline() and "torch.distributed.run" not in each.cmdline()]
    assert len(ranks) == 2
    ranks[1].send_signal(signal.SIGKILL)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 1
    sentence = said.decode().strip()
    assert sentence.startswith("finery: stage 'pretrain': ")
    assert "\n" not in sentence
    assert "SIGKILL" in sentence
    assert "finery resume" in sentence
    assert list(read_events(run / "events.jsonl"))[-1]["event"] == "failed"
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    partial = next(path for path in (tmp_path / "home/stages").glob("*.partial") if path.is_dir())
    assert {path.name for path in partial.iterdir()} == {"checkpoints"}


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_run_at_a_time_limit_and_is_named(recipe: Path, tmp_path: Path) -> None:
    child = forked.fresh(
        "run",
        str(recipe),
        TWO,
        FSDP2,
        "stages.pretrain.arguments.max_steps=100000",
        "stages.pretrain.arguments.ddp_timeout=20",
        home=tmp_path / "home",
        folder=tmp_path,
    )
    run = tmp_path / "runs" / "shared"
    deadline = time.monotonic() + 240
    while not losses(run):
        assert child.poll() is None, child.stderr.read().decode() if child.stderr else ""
        assert time.monotonic() < deadline, ranks_log(run)
        time.sleep(0.1)
    family = psutil.Process(child.pid).children(recursive=True)
    (second,) = [each for each in family if "stage" in each.cmdline() and each.environ().get("RANK") == "1"]
    second.suspend()
    _, said = child.communicate(timeout=180)
    assert child.returncode == 1
    sentence = said.decode().strip()
    assert "rank 1 did not answer the others for 20 s (arguments.ddp_timeout); it " in sentence
    assert sentence.endswith("`finery resume` continues from the last checkpoint")
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
