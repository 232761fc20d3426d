"""The studies of configs/smoke, run to their end in this process: trained for real, stages shared, nothing done twice."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.load import load, load_study
from pipelines.core.signals import StopSignal
from pipelines.runs.run import run
from pipelines.studies.compare import compare
from pipelines.studies.study import run_study
from pipelines.studies.workers import DeviceSlot, RunEnd, WaitingRun

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "smoke"
STUDIES = [path for path in sorted(FOLDER.glob("*.yaml")) if "\nmatrix:" in path.read_text()]


class Here:
    """Workers that run in this process, which has torch imported already."""

    def __init__(self) -> None:
        self.slots = [DeviceSlot()]
        self.stop = StopSignal()
        self.done: list[str] = []

    def do(self, waiting: list[WaitingRun], started: Any = None, warn: Any = None) -> Iterator[RunEnd]:
        while waiting:
            began, each = time.monotonic(), waiting.pop(0)
            started(each.name)
            run(load(each.folder / "recipe.yaml"), each.folder)
            self.done.append(each.name)
            yield RunEnd(each.name, 0, time.monotonic() - began)


class Place:
    """A working folder with a home of its own."""

    def __init__(self, root: Path, recipe: Path) -> None:
        self.root, self.recipe = root, recipe
        self.folder = root / "runs" / load(recipe).name

    def go(self) -> list[str]:
        """Do the study; returns the runs that were started."""
        workers = Here()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            patch.setenv("FINERY_HOME", str(self.root / "home"))
            assert run_study(load_study(self.recipe), self.folder, None, {}, workers.stop, workers) == 0  # type: ignore[arg-type]
        return workers.done

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "study.json").read_text())
        return found


@pytest.fixture(scope="module", params=STUDIES, ids=[path.stem for path in STUDIES])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp(request.param.stem), request.param)
    made.started = made.go()  # type: ignore[attr-defined]
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


def test_trials_come_first_and_refused_cells_never(place: Place) -> None:
    plan = load_study(place.recipe)
    trials = [name for name in place.started if name.startswith("search/")]  # type: ignore[attr-defined]
    cells = [name for name in place.started if name.startswith("cells/")]  # type: ignore[attr-defined]
    assert place.started == trials + cells  # type: ignore[attr-defined]
    assert len(trials) == sum(len(group.grid) for group in plan.groups)
    assert cells == [cell.folder for cell in plan.cells if not cell.refusal]
    assert place.data()["counts"] == {
        "done": len(cells),
        "failed": 0,
        "refused": len(plan.refused),
        "stopped": 0,
        "queued": 0,
    }


def test_every_cell_is_an_ordinary_run_folder_with_the_chosen_values(place: Place) -> None:
    for cell in place.data()["cells"]:
        if cell["status"] == "refused":
            assert not (place.folder / cell["cell"] / "recipe.yaml").exists()
            continue
        recipe = load(place.folder / cell["cell"] / "recipe.yaml")
        assert recipe.matrix is None
        assert recipe.stages[0].arguments.learning_rate in cell["chosen"].values()  # type: ignore[attr-defined]
        assert "finished" in json.loads((place.folder / cell["cell"] / "manifest.json").read_text())
        assert "eval_strategy" not in recipe.stages[0].arguments.given()  # type: ignore[attr-defined]


def test_the_best_trial_on_rows_set_aside_is_the_chosen_one(place: Place) -> None:
    for group in place.data()["search"]:
        assert all(
            trial["score"] is not None and set(trial["scores"]) >= {"loss", trial["metric"]}
            for trial in group["trials"]
        )
        best = max(group["trials"], key=lambda trial: (trial["score"], -trial["scores"]["loss"]))
        assert [trial for trial in group["trials"] if trial["chosen"]] == [best]


def test_the_table_agrees_with_the_cells(place: Place) -> None:
    data = place.data()
    for row in data["rows"]:
        mine = [
            cell
            for cell in data["cells"]
            if row["labels"].items() <= cell["labels"].items() and cell["status"] == "done"
        ]
        told = [
            json.loads(next((place.folder / cell["cell"]).glob("stages/*-evaluate/metrics.json")).read_text())
            for cell in mine
        ]
        for metric, figure in row["metrics"].items():
            values = [scores[row["benchmark"]][metric] for scores in told]
            assert figure["mean"] == pytest.approx(sum(values) / len(values))
            assert figure["interval"][0] <= figure["mean"] <= figure["interval"][1]
        if row["metrics"]:
            assert 0 < row["trainable_share"] <= 1
            assert row["costs"]["saved_bytes"] > 0


def test_the_same_study_again_does_nothing_again(place: Place) -> None:
    assert place.go() == []
    assert {cell["status"] for cell in place.data()["cells"]} == {"reused", "refused"}


def test_a_cell_that_lost_its_stage_is_made_again_and_no_other(place: Place) -> None:
    cell = next(cell for cell in place.data()["cells"] if cell["status"] != "refused")
    weights = next(next((place.folder / cell["cell"]).glob("stages/01-*")).glob("model/*.safetensors"))
    weights.unlink()
    assert place.go() == [cell["cell"]]
    assert weights.is_file()


def test_cells_can_be_compared_as_any_run(place: Place) -> None:
    folders = [place.folder / cell["cell"] for cell in place.data()["cells"] if cell["status"] != "refused"]
    [benchmark] = compare([folders[0], folders[-1]])["benchmarks"]
    assert benchmark["models"][0]["reference"]
    assert benchmark["models"][1]["metrics"]["accuracy"]["difference"] is not None
