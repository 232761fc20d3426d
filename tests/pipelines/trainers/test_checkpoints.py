"""Only a checkpoint whose marker was written last counts.

A stage's result is whole or absent, and an adapter names its base where it will lie.

Checkpoints of what learns: written by the main process, where the Trainer looks for them.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.core.files import remove_unfinished
from pipelines.core.interfaces import Context, World
from pipelines.models import heads, opening
from pipelines.models.tokenizer import open_tokenizer
from pipelines.trainers.checkpoints import (
    mark_complete,
    newest_complete,
    rotate,
    save_learnt,
    save_stage,
    state_of,
)
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.pipelines.trainers.test_trainer import examples, simple


def test_the_newest_marked_checkpoint_is_taken_whatever_lies_beside_it(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_text("weights")
    assert newest_complete(tmp_path) is None
    for step in (9, 10):
        mark_complete(tmp_path / f"checkpoint-{step}", {"step": step, "loss": 0.1 + 0.2, "best": [-math.inf]})
    found = newest_complete(tmp_path)
    assert found == tmp_path / "checkpoint-10"
    assert state_of(found) == {"step": 10, "loss": 0.1 + 0.2, "best": [-math.inf]}


@pytest.mark.parametrize(
    ("limit", "best", "left"), [(2, None, [100, 20]), (3, 9, [100, 20, 9]), (2, 9, [100, 9]), (2, 100, [100, 20])]
)
def test_the_newest_and_the_best_checkpoints_stay(
    tmp_path: Path, limit: int, best: int | None, left: list[int]
) -> None:
    for step in (9, 10, 20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        mark_complete(tmp_path / f"checkpoint-{step}", {})
    rotate(tmp_path, limit, None if best is None else str(tmp_path / f"checkpoint-{best}"))
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{step}" for step in left}


def test_a_kill_while_an_older_checkpoint_is_deleted_spoils_none_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4, 5):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_text("weights")
        mark_complete(tmp_path / f"checkpoint-{step}", {})

    def killed(path: Path, **_: object) -> None:
        (path / "model.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        rotate(tmp_path, 2, str(tmp_path / "checkpoint-2"))
    monkeypatch.undo()
    assert remove_unfinished(tmp_path) == [tmp_path / "checkpoint-4"]
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-5"


def test_no_checkpoint_goes_before_the_next_one_is_complete(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def marking(folder: Path, state: Any) -> None:
        seen.append({path.parent.name for path in folder.parent.glob("*/complete.json")})
        mark_complete(folder, state)

    monkeypatch.setattr("pipelines.trainers.checkpoints.mark_complete", marking)
    place = context()
    simple(place, examples("classification"), arguments={"max_steps": 4, "save_strategy": "steps", "save_steps": 1})
    names = [f"checkpoint-{step}" for step in range(1, 5)]
    assert seen == [set(), set(names[:1]), set(names[:2]), set(names[1:3])]
    assert {path.name for path in (place.folder / "checkpoints").iterdir()} == set(names[2:])


def test_half_written_checkpoints_are_removed_and_whole_ones_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
    mark_complete(tmp_path / "checkpoint-1", {})
    (tmp_path / "checkpoint-2" / "complete.json.tmp").write_text("{")
    assert remove_unfinished(tmp_path) == [tmp_path / "checkpoint-2"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize("family", ["finery", "bert"])
def test_a_result_is_opened_as_it_was(family: str, context: Callable[..., Context]) -> None:
    place, model = context(), tiny.build(family, tiny.THREE)
    save_stage(place, model, tiny.tokenizer(), tiny.THREE, {"train_loss": 0.1 + 0.2})
    opened = opening.open_folder(place.folder / "model", tiny.THREE, seed=9, trained_head=True)
    assert tiny.logits(opened, tiny.batch()).equal(tiny.logits(model, tiny.batch()))
    assert open_tokenizer(str(place.folder / "model")).get_vocab() == tiny.tokenizer().get_vocab()
    assert heads.saved_head(place.folder / "model") == tiny.THREE
    assert json.loads((place.folder / "metrics.json").read_text()) == {"train_loss": 0.1 + 0.2}
    assert sorted(path.name for path in place.folder.iterdir()) == ["metrics.json", "model"]
    assert not [*place.folder.rglob("*.bin"), *place.folder.rglob("*.pt")]


def test_models_beside_the_result_have_folders_of_their_own(context: Callable[..., Context]) -> None:
    place, model, other = context(), tiny.build("bert", tiny.THREE), tiny.build("bert", tiny.MASKED, seed=1)
    model.finery_beside = {"generator": other}
    save_stage(place, model, tiny.tokenizer(), tiny.THREE, {})
    assert sorted(path.name for path in place.folder.iterdir()) == ["generator", "metrics.json", "model"]
    opened = opening.open_folder(place.folder / "generator", tiny.MASKED, seed=9, trained_head=True)
    assert tiny.logits(opened, tiny.batch()).equal(tiny.logits(other, tiny.batch()))


def test_a_failure_leaves_the_earlier_result_alone(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = context()
    save_stage(place, tiny.build("bert", tiny.THREE), tiny.tokenizer(), tiny.THREE, {})
    before = (place.folder / "model" / "model.safetensors").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    broken = tiny.build("bert", tiny.THREE, seed=1)
    monkeypatch.setattr(type(tiny.tokenizer()), "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        save_stage(place, broken, tiny.tokenizer(), tiny.THREE, {})
    monkeypatch.undo()
    assert (place.folder / "model" / "model.safetensors").read_bytes() == before
    save_stage(place, broken, tiny.tokenizer(), tiny.THREE, {})  # what the failure left behind is no obstacle
    assert (place.folder / "model" / "model.safetensors").read_bytes() != before


def test_an_adapter_names_its_base_in_the_complete_stage(context: Callable[..., Context]) -> None:
    place = context("abc.partial")
    model = tiny.build("bert", tiny.THREE)
    model.save_pretrained(place.folder / "base")
    model.name_or_path = str(place.folder / "base")
    tuned = LoRA(r=2).apply(model)
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    save_stage(place, tuned, tiny.tokenizer(), tiny.THREE, {})
    complete = place.folder.rename(place.folder.with_name("abc"))
    config = json.loads((complete / "model" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(complete / "base")
    assert tiny.logits(opening.open_folder(complete / "model", tiny.THREE, seed=0, merge=False), tiny.batch()).equal(
        wanted
    )


def test_only_the_main_process_writes(context: Callable[..., Context]) -> None:
    place = context(world=World(rank=1, size=2))
    save_stage(place, None, None, tiny.THREE, {})
    assert list(place.folder.iterdir()) == []


def test_the_weights_come_back(tmp_path: Path):
    arguments = types.SimpleNamespace(should_save=True, output_dir=str(tmp_path / "elsewhere"))
    weights = {"a": torch.randn(2, 3), "b": torch.ones(1)}
    save_learnt(weights, arguments, str(tmp_path / "here"))
    found = load_file(str(tmp_path / "here" / "model.safetensors"))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    assert not (tmp_path / "elsewhere").exists()


def test_other_processes_write_nothing(tmp_path: Path):
    save_learnt(
        {"a": torch.ones(1)}, types.SimpleNamespace(should_save=False, output_dir=str(tmp_path)), str(tmp_path / "here")
    )
    assert not (tmp_path / "here").exists()
