"""A stage of any kind that was killed in one world goes on in another, with the losses of a run that nobody killed."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipelines.core.events import read_events
from tests.end_to_end import forked
from tests.end_to_end.test_profiles import RECIPES as ALL
from tests.end_to_end.test_profiles import numbers
from tests.end_to_end.test_two_processes import ranks_log

WORLDS = {
    "single": ["launch.num_processes=1"],
    "ddp": ["launch.num_processes=2"],
    "fsdp2": ["launch.num_processes=2", "launch.profile=fsdp2"],
}
RECIPES = {"reward": "decoder", "dpo-lora": "decoder", "ppo": "decoder"} | dict.fromkeys(
    ("together", "adapter", "prefix"), "encoder"
)
"""The recipe of `test_profiles.py` that a stage is taken from."""
CASES = [*((stage, "fsdp2", ("single", "ddp")) for stage in RECIPES), ("prefix", "single", ("fsdp2",))]
"""A stage, where it is killed, and where it goes on."""
SAVED, KILLED = 4, 5
"""Steps: the last checkpoint, and the one that is not finished."""
RELATIVE = 1e-3
"""The promise is 0.02; without the optimizer's state the norms of the next gradients would be further away."""


def recipe_of(stage: str, folder: Path) -> tuple[Path, list[str]]:
    """The stage behind its pretraining, and the words that make it seven steps or so."""
    recipe = YAML(typ="safe").load(ALL[RECIPES[stage]])
    recipe["stages"] = [each for each in recipe["stages"] if each.get("id", each["stage"]) in ("pretrain", stage)]
    path = folder / f"{stage}.json"
    path.write_text(json.dumps(recipe))
    arguments = f"stages.{stage}.arguments"
    return path, [
        f"{arguments}.save_steps={SAVED // 2}",
        *([] if stage == "together" else [f"{arguments}.max_steps=7"]),
    ]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The home in which a recipe's tokenizer and pretraining are done, by recipe."""
    homes = {}
    for name, stage in (("decoder", "reward"), ("encoder", "adapter")):
        folder = tmp_path_factory.mktemp(name)
        path, _ = recipe_of(stage, folder)
        recipe = json.loads(path.read_text())
        path.write_text(json.dumps(recipe | {"stages": recipe["stages"][:1]}))
        assert forked.fork(forked.run_recipe, str(path), [], str(folder / "run"), str(folder / "home")) == 0
        homes[name] = folder / "home"
    return homes


@pytest.mark.long
@pytest.mark.parametrize(("stage", "first", "others"), CASES)
def test_a_killed_stage_goes_on_in_another_world(
    stage: str, first: str, others: tuple[str, ...], pretrained: dict[str, Path], tmp_path: Path
) -> None:
    """All processes are killed at once in the fifth step; the fourth was saved, with the optimizer's state."""
    path, words = recipe_of(stage, tmp_path)
    ready, place = pretrained[RECIPES[stage]], "iteration of ppo" if stage == "ppo" else "training step"

    def home(name: str, origin: Path) -> tuple[str, str]:
        shutil.copytree(origin, tmp_path / f"home-{name}", symlinks=True)
        return str(tmp_path / name), str(tmp_path / f"home-{name}")

    assert forked.fork(forked.run_recipe, str(path), words, *home("whole", ready)) == 0
    expected = {key: value for key, value in numbers(tmp_path / "whole").items() if key[0] == stage}
    assert len({step for _, step, _ in expected}) >= 7

    killed = (str(path), [*words, *WORLDS[first]], *home("killed", ready))
    assert forked.fork(forked.run_until_all_are_killed, *killed, (place, KILLED)) == -signal.SIGKILL
    for world in others:
        elsewhere = (str(path), [*words, *WORLDS[world]], *home(world, tmp_path / "home-killed"))
        assert forked.fork(forked.run_on_forked_ranks, *elsewhere) == 0, ranks_log(tmp_path / world)[-5000:]
        events = list(read_events(tmp_path / world / "events.jsonl"))
        assert [event["step"] for event in events if event.get("what") == "resumed"] == [SAVED]
        later = numbers(tmp_path / world)
        assert {step for _, step, _ in later} == {step for _, step, _ in expected if step > SAVED}
        assert numbers(tmp_path / "killed") | later == pytest.approx(expected, rel=RELATIVE), world
