"""A run killed at any moment and resumed ends as one that was never killed: losses, weights and scores, to the bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipelines.core.events import read_events
from tests.covering import covering
from tests.end_to_end.forked import (
    command_signalled,
    fork,
    fresh,
    run_on_forked_ranks,
    run_recipe,
    run_until_all_are_killed,
)

RECIPE = """\
name: killed
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: bpe, vocab_size: 500}
stages:
  - stage: pretrain
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 40
    arguments: {max_steps: 4, global_batch_size: 16, learning_rate: 1e-3, logging_steps: 3, save_steps: 2}
  - stage: supervised
    task: builtin/python-docs
    max_length: 32
    max_train_samples: 50
    arguments: {num_train_epochs: 3, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 3, save_steps: 4}
  - {stage: evaluate, max_eval_samples: 40}
"""
TUNERS = {
    "full": "stages.supervised.tuner=full",
    "lora": "stages.supervised.tuner={name: lora, r: 4}",
    "adapter": "stages.supervised.tuner={name: adapter, kind: parallel, bottleneck_size: 6, adapter_dropout: 0.1}",
}
TWO = "launch.num_processes=2"
STEPS = 21  # 50 rows in batches of 8 are 7 steps an epoch
MOMENTS = [
    ("training step", "pretrain"),
    ("training step", "supervised"),
    ("optimizer state being saved", "supervised"),
    ("checkpoint about to be marked", "supervised"),
    ("result about to be saved", "pretrain"),
    ("result about to be saved", "supervised"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "killed.yaml"
    path.write_text(RECIPE)
    return path


def outcome(run: Path) -> dict[str, Any]:
    """Everything that must not depend on a kill."""
    losses: dict[tuple[str, int], Any] = {}
    for event in read_events(run / "events.jsonl"):
        if event["event"] == "metric":
            losses[event["stage"], event["step"]] = event["metrics"]
    weights = {}
    for path in sorted(run.glob("stages/*/model/*.safetensors")):
        for name, tensor in load_file(path).items():
            weights[f"{path.parent.parent.name}/{name}"] = tensor.tobytes()
    scores = [json.loads(path.read_text()) for path in sorted(run.glob("stages/*evaluate/metrics.json"))]
    trained = [
        json.loads(path.read_text())["train_loss"]
        for path in sorted(run.glob("stages/*/metrics.json"))
        if "evaluate" not in str(path)
    ]
    return {"losses": losses, "weights": weights, "scores": scores, "train_loss": trained}


def forked(*arguments: Any) -> int:
    """The exit code of a forked child that runs a recipe."""
    return fork(run_recipe, *arguments)


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What an uninterrupted run ends with, by tuner; made once."""
    made: dict[str, dict[str, Any]] = {}

    def outcome_of(tuner: str) -> dict[str, Any]:
        if tuner not in made:
            folder = tmp_path_factory.mktemp(f"whole-{tuner}")
            assert forked(str(recipe), [TUNERS[tuner]], str(folder / "run"), str(folder / "home")) == 0
            made[tuner] = outcome(folder / "run")
            assert len(made[tuner]["losses"]) >= 8
        return made[tuner]

    return outcome_of


def counts(place: str, stage: str, generator: random.Random) -> int:
    """When to die: the passing of `place` that falls into the stage, drawn by the seed; later epochs included."""
    pretraining = {
        "training step": 4,
        "optimizer state being saved": 2,
        "checkpoint about to be marked": 2,
        "result about to be saved": 1,
    }
    tuning = {
        "training step": STEPS,
        "optimizer state being saved": 6,
        "checkpoint about to be marked": 6,
        "result about to be saved": 1,
    }
    return (
        generator.randint(1, pretraining[place])
        if stage == "pretrain"
        else pretraining[place] + generator.randint(1, tuning[place])
    )


@pytest.mark.parametrize(
    ("moment", "tuner"),
    covering(product(MOMENTS, TUNERS), name=lambda moment, tuner: "-".join([*moment, tuner])),
)
def test_a_killed_run_ends_as_if_it_had_not_been(
    moment: tuple[str, str], tuner: str, recipe: Path, whole: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    place, stage = moment
    generator = random.Random(f"{place} {stage} {tuner}")
    arguments = (str(recipe), [TUNERS[tuner]], str(tmp_path / "run"), str(tmp_path / "home"))
    for _ in range(2):  # killed twice, so that a resumed run is killed too
        code = forked(*arguments, (place, counts(place, stage, generator)))
        assert code in (-signal.SIGKILL, 0)
        if code == 0:  # the second draw lay beyond what was left to do
            break
    assert forked(*arguments) == 0
    assert outcome(tmp_path / "run") == whole(tuner)


def test_a_run_killed_while_layers_wake_ends_as_if_it_had_not_been(recipe: Path, tmp_path: Path) -> None:
    """Killed in the second epoch's middle and in the third's, when one and two layers have joined the head."""
    tricks = (
        "stages.supervised.tuner={name: full, discriminative: 2.6, slanted_triangular: true, gradual_unfreezing: true}"
    )
    assert forked(str(recipe), [tricks], str(tmp_path / "whole"), str(tmp_path / "home-whole")) == 0
    expected = outcome(tmp_path / "whole")
    arguments = (str(recipe), [tricks], str(tmp_path / "run"), str(tmp_path / "home"))
    assert forked(*arguments, ("training step", 4 + 10)) == -signal.SIGKILL  # 4 of pretraining, then 7 an epoch
    assert forked(*arguments, ("training step", 8)) == -signal.SIGKILL
    assert forked(*arguments) == 0
    assert outcome(tmp_path / "run") == expected


PRETRAINING = """\
name: pretraining
model:
  architecture: {family: FAMILY, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 500}
stages:
  - stage: pretrain
    objective: OBJECTIVE
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 100
    cross_document_attention: APART
    arguments: {num_train_epochs: 3, global_batch_size: 16, learning_rate: 1e-3, logging_steps: 3, save_steps: 4}
"""


@pytest.mark.parametrize(
    ("objective", "family", "apart"),
    [
        pytest.param("causal_lm", "decoder", "false", id="causal", marks=pytest.mark.long),
        pytest.param("next_sentence", "encoder", "true", id="pairs"),
    ],
)
def test_a_killed_pretraining_sees_the_samples_it_would_have_seen(
    objective: str, family: str, apart: str, tmp_path: Path
) -> None:
    """Killed in a later epoch, whose random pairs must be those of that epoch."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(PRETRAINING.replace("FAMILY", family).replace("OBJECTIVE", objective).replace("APART", apart))
    assert forked(str(recipe), [], str(tmp_path / "whole"), str(tmp_path / "home-whole")) == 0
    expected = outcome(tmp_path / "whole")
    steps = max(step for _, step in expected["losses"])
    assert steps >= 9
    arguments = (str(recipe), [], str(tmp_path / "run"), str(tmp_path / "home"))
    assert forked(*arguments, ("training step", steps * 2 // 3 + 1)) == -signal.SIGKILL
    assert forked(*arguments) == 0
    assert outcome(tmp_path / "run") == expected


def wait_for(run: Path, sign: Callable[[dict[str, Any]], bool], child: subprocess.Popen[bytes]) -> None:
    """Wait until an event shows the `sign`."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ended = child.poll() is not None  # asked first: what it wrote before that is read
        if any(sign(event) for event in read_events(run / "events.jsonl")):
            return
        assert not ended, child.stderr.read().decode() if child.stderr else ""
        time.sleep(0.02)
    raise AssertionError("the sign never came")


def test_a_signal_saves_a_checkpoint_and_leaves_75(
    recipe: Path, whole: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    run, home, said = tmp_path / "runs" / "killed", tmp_path / "home", tmp_path / "said"
    words = ["run", str(recipe), TUNERS["full"]]
    signalled = (words, str(tmp_path), str(said), str(home), "training step", 0.0, int(signal.SIGTERM))
    assert fork(command_signalled, *signalled) == 75, said.read_text()
    events = list(read_events(run / "events.jsonl"))
    assert (events[-1]["event"], events[-1]["stage"]) == ("stopped", "supervised")
    saved = [event["step"] for event in events if event["event"] == "checkpoint"][-1]
    assert saved % 4, "no checkpoint was due"
    assert f"at step {saved} of {STEPS}" in events[-1]["message"]
    assert forked(str(recipe), [TUNERS["full"]], str(run), str(home)) == 0
    assert outcome(run) == whole("full")  # the stop added a checkpoint, not a log line


@pytest.mark.long
@pytest.mark.parametrize("tuner", [tuner for tuner in TUNERS if tuner != "full"])
def test_two_forked_ranks_killed_at_seeded_moments_end_as_if_they_had_not_been(
    tuner: str, recipe: Path, tmp_path: Path
) -> None:
    """Killed twice while the tuner learns; the test behind this one starts and kills ranks of torchrun."""
    words = [TUNERS[tuner], TWO, "launch.mixed_precision=no"]
    assert fork(run_on_forked_ranks, str(recipe), words, str(tmp_path / "whole"), str(tmp_path / "home-whole")) == 0
    run, generator = tmp_path / "run", random.Random(tuner)
    place = (str(recipe), words, str(run), str(tmp_path / "home"))
    for step in (generator.randint(6, 12), generator.randint(5, 8)):  # the first checkpoint is that of step 4
        assert fork(run_until_all_are_killed, *place, ("training step", step)) == -signal.SIGKILL
    assert fork(run_on_forked_ranks, *place) == 0
    resumed = [
        (event["stage"], event["step"]) for event in read_events(run / "events.jsonl") if event.get("what") == "resumed"
    ]
    assert [stage for stage, _ in resumed] == ["supervised", "supervised"]
    assert 0 < resumed[0][1] < resumed[1][1]
    assert outcome(run) == outcome(tmp_path / "whole")


@pytest.mark.long
def test_two_processes_killed_at_seeded_moments_end_as_if_they_had_not_been(recipe: Path, tmp_path: Path) -> None:
    words = (TUNERS["full"], TWO, "launch.mixed_precision=no")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    child = fresh("run", str(recipe), *words, home=tmp_path / "home-a", folder=tmp_path / "a")
    assert child.wait(300) == 0, child.stderr.read().decode() if child.stderr else ""
    generator = random.Random("full")
    run, home = tmp_path / "b" / "runs" / "killed", tmp_path / "home-b"
    for checkpoint in (generator.choice([4, 8]), generator.choice([12, 16])):
        child = fresh("run", str(recipe), *words, home=home, folder=tmp_path / "b")
        wait_for(
            run,
            lambda event, step=checkpoint: (
                event["event"] == "checkpoint" and event.get("stage") == "supervised" and event["step"] == step
            ),
            child,
        )
        time.sleep(generator.random() * 0.2)
        child.kill()
        child.wait()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and any_rank_of(run):
            time.sleep(0.1)
        assert not any_rank_of(run), "a rank outlived the driver"
    child = fresh("resume", str(run), home=home, folder=tmp_path / "b")
    assert child.wait(300) == 0, child.stderr.read().decode() if child.stderr else ""
    assert outcome(run) == outcome(tmp_path / "a" / "runs" / "killed")


@pytest.mark.long
def test_processes_with_parts_of_the_weights_killed_while_they_save_end_as_if_they_had_not_been(
    recipe: Path, tmp_path: Path
) -> None:
    words = [TUNERS["lora"], "launch.profile=fsdp2", "launch.num_processes=2", "launch.mixed_precision=no"]
    whole = (str(recipe), words, str(tmp_path / "whole"), str(tmp_path / "home-whole"))
    assert fork(run_on_forked_ranks, *whole) == 0
    arguments = (str(recipe), words, str(tmp_path / "run"), str(tmp_path / "home"))
    deaths = [
        ("optimizer state being saved", 2, "pretrain"),
        ("checkpoint about to be marked", 1, "pretrain"),
        ("result about to be saved", 1, "pretrain"),
        ("optimizer state being saved", 2, "supervised"),
        ("checkpoint about to be marked", 2, "supervised"),
        ("result about to be saved", 1, "supervised"),
    ]
    for place, count, stage in deaths:  # counted anew by the processes of each stage
        assert fork(run_on_forked_ranks, *arguments, (place, count)) == 1
        last = list(read_events(tmp_path / "run/events.jsonl"))[-1]
        assert (last["event"], last["stage"]) == ("failed", stage)
    assert fork(run_on_forked_ranks, *arguments) == 0
    resumed = [event for event in read_events(tmp_path / "run/events.jsonl") if event.get("what") == "resumed"]
    assert [(event["stage"], event["step"]) for event in resumed] == [
        ("pretrain", 2),
        ("pretrain", 2),
        ("pretrain", 4),
        ("supervised", 4),
        ("supervised", 8),
        ("supervised", STEPS),
    ]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def any_rank_of(run: Path) -> bool:
    """Whether a process that works for this run folder is alive."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(run).encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


STREAMS = """\
name: streams
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: bpe, vocab_size: 500, max_train_samples: 40}
stages:
  - stage: pretrain
    datasets:
      - {path: builtin/python-docs, streaming: true, weight: 2}
      - {path: builtin/python-docs, split: validation, weight: 1}
    block_size: 32
    buffer_size: 6
    max_train_samples: 30
    arguments: {max_steps: 20, global_batch_size: 16, learning_rate: 1e-3, logging_steps: 3, save_steps: 4}
"""


@pytest.mark.parametrize("places", [(6,), pytest.param((1, 3, 17), marks=pytest.mark.long)])
def test_a_stream_that_was_killed_goes_on_at_its_sample(places: tuple[int, ...], tmp_path: Path) -> None:
    """Killed before the first checkpoint, between two, and after the stream has begun again."""
    recipe = tmp_path / "streams.yaml"
    recipe.write_text(STREAMS)
    assert forked(str(recipe), [], str(tmp_path / "whole"), str(tmp_path / "home-whole")) == 0
    arguments = (str(recipe), [], str(tmp_path / "run"), str(tmp_path / "home"))
    for place in places:
        assert forked(*arguments, ("training step", place)) == -signal.SIGKILL
    assert forked(*arguments) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    drawn = [
        json.loads(next((tmp_path / name).glob("stages/*pretrain/metrics.json")).read_text())["datasets"]
        for name in ("run", "whole")
    ]
    assert drawn[0] == drawn[1]
    assert min(each["epochs"] for each in drawn[0].values()) > 1
