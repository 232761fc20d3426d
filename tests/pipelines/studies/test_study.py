import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import Busy
from pipelines.core.events import read_events
from pipelines.core.files import lock, read_json
from pipelines.core.load import load_study
from pipelines.studies.study import run_study
from pipelines.studies.workers import RunEnd
from tests.pipelines.studies.written_runs import GUESSED, RECIPE, PretendWorkers, right

pytestmark = pytest.mark.usefixtures("survey")
RATES = {"full": {2e-5: 0.6, 5e-5: 0.8, 1e-4: 0.7}, "lora": {1e-4: 0.5, 1e-3: 0.6, 1e-2: 0.9}}
"""What each learning rate scores on the rows set aside."""


def outcome(recipe, name):
    """full answers 80 % rightly, lora 70 %; the score on the rows set aside is told by RATES."""
    stage = recipe.stages[0]
    rate = stage.arguments.learning_rate
    return (0.8 if stage.tuner.name == "full" else 0.7), RATES[stage.tuner.name][rate]


@pytest.fixture
def go(tmp_path):
    def run(text=RECIPE, workers=None, overrides=(), expected=0):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        workers = workers or PretendWorkers(outcome)
        code = run_study(
            load_study(path, overrides),
            tmp_path / "runs" / "methods",
            None,
            {"recipe": str(path)},
            workers.stop,
            workers,
        )
        assert code == expected
        return workers, tmp_path / "runs" / "methods"

    return run


USUAL = []


@pytest.fixture
def usual(go):
    """The usual study, done once for the tests that only read what it left."""
    if not USUAL:
        USUAL.append(go())
    return USUAL[0]


def data(folder):
    return json.loads((folder / "study.json").read_text())


def test_each_method_gets_the_rate_that_scored_best_on_the_rows_set_aside(usual):
    workers, folder = usual
    assert workers.done[:6] == [
        "search/01-01",
        "search/01-02",
        "search/01-03",
        "search/02-01",
        "search/02-02",
        "search/02-03",
    ]
    assert workers.done[6:] == [f"cells/0{number}" for number in range(1, 7)]
    chosen = {cell["labels"]["method"]: list(cell["chosen"].values()) for cell in data(folder)["cells"]}
    assert chosen == {"full": [5e-5], "lora": [1e-2]}
    trials = data(folder)["search"][0]["trials"]
    assert [(each["score"], each["chosen"]) for each in trials] == [(0.6, False), (0.8, True), (0.7, False)]
    warnings = [event["message"] for event in read_events(folder / "events.jsonl") if event["event"] == "warning"]
    assert warnings == ["method lora: learning_rate 0.01 is the largest that was tried, so a wider grid may do better"]


def test_every_value_is_tried_with_as_many_seeds_and_their_mean_decides(go):
    def lucky(recipe, name):
        """On its first seed 2e-5 looks best for full; 1e-3 for lora diverges with its second."""
        share, score = outcome(recipe, name)
        stage = recipe.stages[0]
        if name.startswith("search") and stage.arguments.learning_rate == 2e-5 and stage.seed == 1:
            return share, 0.95
        if name == "search/02-02-seed2":
            return RunEnd(name, 1, 1.0, "the loss is nan", "diverged")
        return share, score

    workers, folder = go(RECIPE.replace("{seeds: 1, over", "{over"), PretendWorkers(lucky))
    trials = [name for name in workers.done if name.startswith("search/")]
    assert trials[:3] == ["search/01-01", "search/01-01-seed2", "search/01-01-seed3"]
    assert len(trials) == 18
    events = [event for event in read_events(folder / "events.jsonl") if event.get("cell") == trials[1]]
    assert events[-1]["labels"] == {"method": "full", "trial": "learning_rate 2e-05", "seed": "2"}
    full, lora = (group["trials"] for group in data(folder)["search"])
    assert full[0]["by_seed"] == [0.95, 0.6, 0.6]
    assert [round(each["score"], 6) for each in full] == [0.716667, 0.8, 0.7]
    assert [each["score"] for each in lora] == [0.5, None, 0.9]
    assert [each["chosen"] for each in full] == [False, True, False]


def test_trials_of_stages_without_rows_set_aside_are_scored_by_an_evaluation_of_the_search(go):
    text = """\
name: methods
model: {architecture: {preset: gpt-tiny}}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}]}
  - {stage: ppo, reward: {name: keyword, words: [list]}, prompts: {path: builtin/python-docs}}
  - {stage: evaluate, prompts: {path: builtin/python-docs, split: test}, reward: {name: keyword, words: [list]}}
matrix: {seed: [1, 2, 3]}
study:
  search:
    over: {stages.ppo.arguments.learning_rate: [1e-5, 1e-4, 1e-3]}
    evaluate: {prompts: {path: builtin/python-docs, split: validation}, reward: {name: keyword, words: [list]}}
"""
    shares = {1e-5: 0.5, 1e-4: 0.9, 1e-3: 0.7}
    workers, folder = go(
        text, PretendWorkers(lambda recipe, name: (shares[recipe.stage("ppo").arguments.learning_rate], None))
    )
    [group] = data(folder)["search"]
    assert [(each["metric"], round(each["score"], 6), each["chosen"]) for each in group["trials"]] == [
        ("accuracy", 0.5, False), ("accuracy", 0.9, True), ("accuracy", 0.7, False),
    ]  # fmt: skip
    assert workers.done[-3:] == ["cells/01", "cells/02", "cells/03"]
    assert "chosen on split 'validation' of builtin/python-docs; the reported" in (folder / "README.md").read_text()


def test_what_was_expected_is_confirmed_refuted_or_left_undecided(go):
    expected = """
  margin: 0.02
  hypotheses:
    - {claim: full is ahead, better: full, than: lora}
    - {better: lora, than: full}
    - {equal: [lora, full]}
"""
    _, folder = go(RECIPE.rstrip() + expected)
    found = data(folder)["hypotheses"]
    assert [(each["claim"], each["outcome"]) for each in found] == [
        ("full is ahead", "confirmed"),
        ("lora > full", "refuted"),
        ("lora = full", "refuted"),
    ]
    assert found[0]["difference"] == pytest.approx(0.1)
    assert found[0]["p_corrected"] <= 0.05 < found[2]["p_equivalent"]
    page, text = (folder / "report.html").read_text(), (folder / "README.md").read_text()
    assert "| full is ahead | glue/mrpc | full less lora: accuracy +0.100" in text
    assert page.count("confirmed") == 1
    assert "lora: clearly worse than full" in text
    _, folder = go(RECIPE.rstrip() + expected, overrides=["matrix.stages.mrpc.seed=[1, 2]"])
    assert {each["outcome"] for each in data(folder)["hypotheses"]} == {"undecided"}
    assert "No claim: 2 of 3 seeds." in (folder / "README.md").read_text()


def test_a_hypothesis_may_be_about_a_baseline_of_the_same_rows(go):
    expected = """
  hypotheses:
    - {claim: full knows more than words, better: full, than: naive_bayes}
    - {better: naive_bayes, than: lora}
    - {better: lora, than: naive_bayes, benchmark: glue/cola}
"""
    _, folder = go(
        RECIPE.replace("{stage: evaluate}", "{stage: evaluate, baselines: [naive_bayes]}").rstrip() + expected
    )
    full, lora = data(folder)["hypotheses"]
    assert [full["difference"], lora["difference"]] == pytest.approx([0.2, -0.1])
    # by hand: the mean over three seeds of the differences on the same examples; a baseline is the same for every seed
    guessed = right(GUESSED, 0).astype(float)
    paired = np.mean([right(0.8, seed) - guessed for seed in (1, 2, 3)], axis=0)
    half = 1.96 * paired.std(ddof=1) / np.sqrt(len(paired))
    assert full["interval"] == pytest.approx([0.2 - half, 0.2 + half], abs=0.006)
    assert full["lacks"] == lora["lacks"] == []
    assert [full["outcome"], lora["outcome"]] == ["confirmed", "refuted"]
    assert "full less naive_bayes: accuracy +0.200" in (folder / "README.md").read_text()


def test_what_differs_by_less_than_the_margin_is_equivalent(go):
    workers = PretendWorkers(lambda recipe, name: (0.8, outcome(recipe, name)[1]))
    _, folder = go(
        RECIPE.rstrip() + "\n  margin: 0.1\n  hypotheses: [{equal: [full, lora]}, {better: lora, than: full}]\n",
        workers,
    )
    lora = data(folder)["rows"][1]
    assert lora["verdict"] == "equivalent"
    assert lora["p_equivalent"] <= 0.05
    assert [each["outcome"] for each in data(folder)["hypotheses"]] == ["confirmed", "refuted"]
    assert "lora: equivalent to full within 0.1" in (folder / "README.md").read_text()


def test_the_table_has_means_over_seeds_and_the_paired_difference(usual):
    _, folder = usual
    full, lora = data(folder)["rows"]
    assert (full["name"], lora["name"], full["verdict"], lora["verdict"]) == ("full", "lora", "reference", "worse")
    assert (lora["benchmark"], lora["stage"], lora["model"]) == ("glue/mrpc", "evaluate", "mrpc")
    assert lora["metrics"]["accuracy"]["mean"] == pytest.approx(0.7)
    assert lora["metrics"]["accuracy"]["sd"] == pytest.approx(0.0, abs=1e-12)
    difference = lora["metrics"]["accuracy"]["difference"]
    assert difference["value"] == pytest.approx(-0.1)
    # by hand: the mean over three seeds of paired differences of the same examples
    paired = np.mean([right(0.7, seed).astype(float) - right(0.8, seed) for seed in (1, 2, 3)], axis=0)
    half = 1.96 * paired.std(ddof=1) / np.sqrt(len(paired))
    assert difference["interval"] == pytest.approx([-0.1 - half, -0.1 + half], abs=0.006)
    assert lora["costs"] == {
        "trainable_parameters": 100,
        "all_parameters": 10_000,
        "peak_memory_bytes": 5e8,
        "train_runtime": 2.0,
        "saved_bytes": 400,
    }
    assert lora["trainable_share"] == 0.01


def test_every_file_of_the_report_is_written(usual):
    _, folder = usual
    with open(folder / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["metric"]) for row in rows] == [
        ("full", "accuracy"),
        ("full", "f1"),
        ("lora", "accuracy"),
        ("lora", "f1"),
    ]
    assert float(rows[2]["difference"]) == pytest.approx(-0.1)
    assert pq.read_table(folder / "table.parquet").num_rows == 4
    readme = (folder / "README.md").read_text()
    assert "6 of 6 cells are done." in readme
    assert "## glue/mrpc" in readme
    assert "| lora | 3 | 0.700 ± 0.000 |" in readme
    assert "lora: clearly worse than full, accuracy -0.100" in readme
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 5  # scores, weights, disk, curves, search: memory and time are the same for both
    assert "http" not in page.replace("http-equiv", "")
    assert read_json(folder / "manifest.json")["exit_code"] == 0


def test_a_second_run_does_nothing_again(go):
    go()
    workers, folder = go(workers=PretendWorkers(lambda recipe, name: pytest.fail(f"{name} was done again")))
    assert workers.done == []
    assert {cell["status"] for cell in data(folder)["cells"]} == {"reused"}
    assert data(folder)["counts"]["done"] == 6


def test_a_stopped_study_ends_with_75_and_continues_where_it_stopped(go):
    first, folder = go(workers=PretendWorkers(outcome, stop_after=8), expected=75)
    assert data(folder)["counts"] == {"done": 2, "failed": 0, "refused": 0, "stopped": 0, "queued": 4}
    assert [event["event"] for event in read_events(folder / "events.jsonl")][-1] == "stopped"
    assert "2 of 6 cells are done; 4 missing." in (folder / "README.md").read_text()
    second, _ = go()
    assert second.done == ["cells/03", "cells/04", "cells/05", "cells/06"]
    assert first.done[6:] + second.done == [f"cells/0{number}" for number in range(1, 7)]


def test_a_study_stopped_during_its_search_has_a_table_too(go):
    _, folder = go(workers=PretendWorkers(outcome, stop_after=2), expected=75)
    assert data(folder)["counts"]["queued"] == 6
    assert [row["metric"] for row in data(folder)["rows"]] == [None, None]


def test_the_other_cells_finish_when_one_fails(go):
    def failing(recipe, name):
        return (
            RunEnd(name, 1, 1.0, "stage 'mrpc': memory ran out", "out_of_memory")
            if name == "cells/02"
            else outcome(recipe, name)
        )

    workers, folder = go(workers=PretendWorkers(failing), expected=1)
    assert len(workers.done) == 12
    assert data(folder)["counts"] == {"done": 5, "failed": 1, "refused": 0, "stopped": 0, "queued": 0}
    assert "method full, seed 2 (cells/02): failed: stage 'mrpc': memory ran out" in (folder / "README.md").read_text()
    full, lora = data(folder)["rows"]
    assert len(full["metrics"]["accuracy"]["values"]) == 2
    assert lora["metrics"]["accuracy"]["difference"] is not None  # two seeds against three, as unpaired seeds


def test_a_cell_that_its_model_refuses_is_no_failure(go):
    def refusing(recipe, name):
        lora = recipe.stages[0].tuner.name == "lora"
        return (
            RunEnd(name, 1, 1.0, "the tuner lora cannot serve this model", "misfit") if lora else outcome(recipe, name)
        )

    workers, folder = go(workers=PretendWorkers(refusing))
    assert data(folder)["counts"] == {"done": 3, "failed": 0, "refused": 3, "stopped": 0, "queued": 0}
    assert "refused: the tuner lora cannot serve this model" in (folder / "README.md").read_text()
    assert "cells/04" not in workers.done  # its trials said so already


def test_a_rate_that_diverges_only_loses(go):
    def diverging(recipe, name):
        found = outcome(recipe, name)
        return RunEnd(name, 1, 1.0, "the loss is nan", "diverged") if found[1] == 0.9 else found

    _, folder = go(workers=PretendWorkers(diverging))
    assert {cell["labels"]["method"]: list(cell["chosen"].values()) for cell in data(folder)["cells"]}["lora"] == [1e-3]
    assert data(folder)["search"][1]["trials"][2]["message"] == "the loss is nan"


def test_a_method_with_a_broken_trial_is_not_compared_unfairly(go):
    def breaking(recipe, name):
        return (
            RunEnd(name, 1, 1.0, "the disk is full", "disk_full") if name == "search/02-01" else outcome(recipe, name)
        )

    _, folder = go(workers=PretendWorkers(breaking), expected=1)
    assert [cell["status"] for cell in data(folder)["cells"]] == ["done"] * 3 + ["failed"] * 3
    assert "a trial of its search failed: the disk is full" in (folder / "README.md").read_text()


def test_cells_run_once_their_own_search_has_ended(go):
    class CellsFirst(PretendWorkers):
        def next(self, waiting):
            return min(waiting, key=lambda run: run.name.startswith("search"))

    workers, folder = go(workers=CellsFirst(outcome))
    cells, trials = ([f"{kind}-0{number}" for number in (1, 2, 3)] for kind in ("search/01", "search/02"))
    assert workers.done == [*cells, "cells/01", "cells/02", "cells/03", *trials, "cells/04", "cells/05", "cells/06"]
    assert {cell["labels"]["method"]: list(cell["chosen"].values()) for cell in data(folder)["cells"]} == {
        "full": [5e-5],
        "lora": [1e-2],
    }


def test_cells_without_a_search_run_beside_the_trials_of_others(go):
    other = "other: {stages: [{stage: supervised, id: other, task: glue/mrpc}, {stage: evaluate}]}"
    workers, folder = go(
        RECIPE.replace("  stages.mrpc.seed: [1, 2, 3]", f"    {other}"),
        PretendWorkers(lambda recipe, name: (0.8, None) if recipe.stages[0].id == "other" else outcome(recipe, name)),
    )
    assert workers.done[-3:] == ["cells/03", "cells/01", "cells/02"]
    assert [cell["status"] for cell in data(folder)["cells"]] == ["done"] * 3


def test_halving_tries_the_best_again_with_more(go):
    text = RECIPE.replace(
        "search: {seeds: 1, over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3, 1e-2]}}",
        "search: {seeds: 1, over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3, 1e-2]}, halving: "
        "{stages.mrpc.arguments.max_steps: [10, 20]}}",
    )
    steps = {}

    def seen(recipe, name):
        steps[name] = recipe.stages[0].arguments.given().get("max_steps")
        return outcome(recipe, name)

    _, folder = go(text, PretendWorkers(seen))
    # 3 rates with 10 steps; ceil(3 * 10 / 20) = 2 of them again with 20
    assert {name: count for name, count in steps.items() if name.startswith("search")} == {
        "search/01-01-1": 10,
        "search/01-02-1": 10,
        "search/01-03-1": 10,
        "search/02-01-1": 10,
        "search/02-02-1": 10,
        "search/02-03-1": 10,
        "search/01-02-2": 20,
        "search/01-03-2": 20,
        "search/02-02-2": 20,
        "search/02-03-2": 20,
    }
    assert {cell["labels"]["method"]: list(cell["chosen"].values()) for cell in data(folder)["cells"]} == {
        "full": [5e-5],
        "lora": [1e-2],
    }


def test_two_writers_are_kept_apart(go, tmp_path):
    folder = tmp_path / "runs" / "methods"
    folder.mkdir(parents=True)
    with lock(folder / ".lock"), pytest.raises(Busy):
        go()


def test_refused_cells_of_the_recipe_check_are_shown(go):
    text = RECIPE.replace("stages.mrpc.seed: [1, 2, 3]", "stages.mrpc.max_length: [64, 9999]").replace(
        "study:", "study:\n  # one search for all"
    )
    _, folder = go(text)
    assert data(folder)["counts"] == {"done": 2, "failed": 0, "refused": 2, "stopped": 0, "queued": 0}
    assert any("max_position_embeddings" in cell["message"] for cell in data(folder)["cells"])
