"""How many examples at once the memory plan lets a stage take."""

from __future__ import annotations

import pytest

from pipelines.core.interfaces import World
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.runs import hardware
from pipelines.runs.planning.plan import peak_memory, plan
from pipelines.runs.run import RecipeRun
from pipelines.runs.workspace import RunFolder, StageStore

RECIPE = """\
name: fitting
model: {architecture: {preset: bert-mini}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - stage: pretrain
    datasets: [{path: builtin/python-docs}]
    arguments: {max_steps: 2, global_batch_size: 64, per_device_train_batch_size: auto}
"""


def test_a_step_fits_up_to_the_batch_whose_peak_is_the_free_memory(tmp_path, monkeypatch):
    recipe = loads(RECIPE)
    (stage,) = recipe.stages
    peaks = {each: peak_memory(recipe, stage, each, 1, "single", "no") for each in (1, 16, 32, 64)}
    assert sorted(peaks.values()) == list(peaks.values())
    monkeypatch.setattr(hardware, "free_memory", lambda processes: peaks[16] / hardware.ROOM + 1)
    job = RecipeRun(recipe, RunFolder(tmp_path / "run", StageStore(tmp_path)), StopSignal())
    job.__dict__["precision"] = "no"
    assert [job._fits(stage, World(0, 1), each) for each in peaks] == [True, True, False, False]
    assert stage.arguments.batch_sizes(1, lambda each: job._fits(stage, World(0, 1), each)) == (16, 4)


def test_gradients_of_earlier_batches_of_a_step_are_counted():
    whole, part = loads(RECIPE), loads(RECIPE.replace("global_batch_size: 64", "global_batch_size: 16"))
    peaks = [peak_memory(each, each.stages[0], 16, 1, "single", "no") for each in (whole, part)]
    (costs,) = plan(part).stages
    assert peaks[0] - peaks[1] == pytest.approx(4 * costs.trainable_parameters, rel=0.02)


def test_a_plan_says_that_it_is_for_the_whole_batch_at_once():
    (costs,) = plan(loads(RECIPE)).stages
    assert any("the run takes as many of them as fit" in note for note in costs.notes)


def test_free_memory_is_what_the_control_group_leaves(tmp_path, monkeypatch):
    whole = hardware.free_memory(1)
    assert hardware.free_memory(2) == pytest.approx(whole / 2, rel=0.2)
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    assert hardware.free_memory(1) == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert hardware.free_memory(1) == pytest.approx(whole, rel=0.2)
