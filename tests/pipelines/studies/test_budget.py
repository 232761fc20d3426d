import csv
import json
from datetime import UTC, datetime, timedelta

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import load, load_study
from pipelines.runs.planning.plan import plan
from pipelines.studies.budget import measured_seconds
from pipelines.studies.study import run_study
from pipelines.studies.workers import RunEnd
from tests.pipelines.studies.written_runs import PretendWorkers

pytestmark = pytest.mark.usefixtures("survey")
RECIPE = """\
name: methods
model: {architecture: {preset: bert-tiny, vocab_size: 1000}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc, max_length: 32, arguments: {max_steps: 120, per_device_train_batch_size: 8}}
  - {stage: evaluate}
matrix:
  method:
    full: {stages.mrpc.tuner: full}
    short: {stages.mrpc.max_length: 16}
    lora: {stages.mrpc.tuner: {name: lora, r: 4}, stages.mrpc.arguments.per_device_train_batch_size: 16}
  stages.mrpc.seed: [1, 2]
study:
  reference: full
  budget: {match: flops}
"""


@pytest.fixture
def study(tmp_path):
    def load(text=RECIPE, *overrides):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return load_study(path, overrides)

    return load


def timed(seconds, steps):
    """What a probe's events look like: the first step takes long, and one in the middle is disturbed."""
    now, lines = datetime(2026, 11, 21, tzinfo=UTC), []
    for step in range(1, steps + 1):
        now += timedelta(seconds=9.0 if step in (1, 5) else seconds)
        lines.append(
            json.dumps(
                {
                    "id": step,
                    "time": now.isoformat(),
                    "event": "metric",
                    "stage": "mrpc",
                    "step": step,
                    "metrics": {"loss": 1.0},
                }
            )
        )
    return "\n".join(lines) + "\n"


def done(plan_of_study, tmp_path, seconds=None):
    """Run the study with runs that are only written down; `seconds` is what a step takes, by tuner."""

    class Probed(PretendWorkers):
        def do(self, runs, started=None, warn=None):
            for ended in super().do(runs, started):
                if ended.name.startswith("probe/"):
                    stage = load(tmp_path / "runs" / ended.name / "recipe.yaml").stages[0]
                    (tmp_path / "runs" / ended.name / "events.jsonl").write_text(
                        timed(seconds[stage.tuner.name], stage.arguments.max_steps)
                    )
                yield ended

    workers = Probed(lambda recipe, name: (0.8, None))
    code = run_study(plan_of_study, tmp_path / "runs", None, {}, workers.stop, workers)
    told = json.loads((tmp_path / "runs" / "study.json").read_text())
    return code, workers, told


def steps_of(told):
    return {row["name"]: row["budget"] and row["budget"]["max_steps"] for row in told["rows"]}


def test_equal_steps_are_those_of_the_reference(study, tmp_path):
    code, _, told = done(study(RECIPE, "study.budget.match=steps"), tmp_path)
    assert code == 0
    assert steps_of(told) == {"full": None, "short": 120, "lora": 120}
    assert "the same number of optimizer steps as full" in (tmp_path / "runs" / "README.md").read_text()


def test_equal_tokens_give_short_texts_more_steps_and_large_batches_fewer(study, tmp_path):
    _, _, told = done(study(RECIPE, "study.budget.match=tokens"), tmp_path)
    # 120 steps of 8 x 32 tokens; short: 8 x 16; lora: 16 x 32
    assert steps_of(told) == {"full": None, "short": 240, "lora": 60}
    assert {row["budget"]["spent"] for row in told["rows"]} == {120 * 8 * 32}
    with open(tmp_path / "runs" / "table.csv") as file:
        lines = {(line["method"], line["budget_unit"], line["max_steps"]) for line in csv.DictReader(file)}
    assert lines == {("full", "tokens", ""), ("short", "tokens", "240"), ("lora", "tokens", "60")}


def test_equal_operations_are_those_of_the_plan(study, tmp_path):
    one = study()
    _, _, told = done(one, tmp_path)
    steps = steps_of(told)
    costs = {cell.labels["method"]: plan(cell.recipe).stages[0] for cell in one.cells}
    budget = costs["full"].flops
    for method in ("short", "lora"):
        each = costs[method].flops / costs[method].steps
        assert steps[method] == int(budget / each)
        assert budget - each < steps[method] * each <= budget
    assert steps["short"] > 200  # half the tokens cost a little less than half: attention grows with the square
    assert 60 < steps["lora"] < 120  # twice the batch, but frozen weights need no gradients
    cells = {cell["cell"]: cell for cell in told["cells"]}
    written = (tmp_path / "runs" / "cells" / "03" / "recipe.yaml").read_text()
    assert cells["cells/03"]["labels"]["method"] == "short"
    assert f"max_steps: {steps['short']}" in written


def test_equal_time_is_measured_first_on_one_cell_a_method(study, tmp_path):
    code, workers, told = done(
        study(RECIPE, "study.budget={match: time, probe_steps: 10}"), tmp_path, {"full": 0.5, "lora": 0.2}
    )
    assert code == 0
    assert workers.done[:3] == ["probe/01", "probe/03", "probe/05"]
    # 120 steps of 0.5 s are a minute; lora takes 0.2 s a step
    assert steps_of(told) == {"full": None, "short": 120, "lora": 300}
    assert told["budget"]["unit"] == "s"
    probe = (tmp_path / "runs" / "probe" / "05" / "recipe.yaml").read_text()
    assert "max_steps: 10" in probe
    assert "evaluate" not in probe


def test_a_budget_that_cannot_be_known_is_refused_with_its_reason(study, tmp_path, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    without = RECIPE.replace("max_steps: 120, ", "")
    code, workers, told = done(study(without), tmp_path)
    assert code == 0  # each is refused with its reason
    assert workers.done == []
    assert {cell["status"] for cell in told["cells"]} == {"refused"}
    assert (
        "its budget cannot be matched: how many steps the reference takes is not known before it runs"
        in told["cells"][0]["message"]
    )


def test_less_than_one_step_is_refused_and_the_others_run(study, tmp_path):
    text = RECIPE.replace("max_steps: 120", "max_steps: 1")
    code, _, told = done(study(text, "study.budget.match=tokens"), tmp_path)
    assert code == 0
    assert [cell["status"] for cell in told["cells"]] == ["done", "done", "done", "done", "refused", "refused"]
    assert "more than the whole budget" in told["cells"][4]["message"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("study.budget={match: epochs}", "study.budget.match"),
        (
            "study.budget={match: steps, reference: fall}",
            "'fall' is no entry of one key of the matrix. Did you mean 'full'",
        ),
        ("study.budget={match: steps, stage: pretrain}", "'pretrain' is no stage that trains in the cell"),
        ("study.budget={match: steps, probe_steps: 9}", "is for 'match: time'"),
        ("matrix.method.lora={stages.mrpc.arguments.max_steps: 7}", "works out the steps of the cell method lora"),
    ],
)
def test_a_budget_that_does_not_fit_is_a_mistake_before_anything_runs(study, override, said):
    with pytest.raises(RecipeError) as refused:
        study(RECIPE, override)
    assert said in str(refused.value)


def test_a_budget_needs_a_reference(study):
    with pytest.raises(RecipeError, match="name the entry whose training says how much"):
        study(RECIPE, "study={budget: {match: steps}}")


def test_a_probe_that_another_run_made_is_timed_as_a_whole(tmp_path):
    for name, seconds in (("01-pre-mrpc", 90.0), ("02-mrpc", 6.0)):
        (tmp_path / "stages" / name).mkdir(parents=True)
        (tmp_path / "stages" / name / "metrics.json").write_text(
            json.dumps({"train_runtime": seconds, "train_steps": 30})
        )
    assert measured_seconds(tmp_path, "mrpc") == pytest.approx(0.2)
    assert measured_seconds(tmp_path, "other") is None


PRETRAINED = """\
name: objectives
model: {architecture: {preset: bert-tiny, vocab_size: 1000}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 120, per_device_train_batch_size: 8}}
  - {stage: supervised, id: mrpc, task: glue/mrpc, max_length: 32, arguments: {max_steps: 10}}
  - {stage: evaluate}
matrix:
  task: {mrpc: {}, rte: {stages.mrpc.task: glue/rte}}
  objective:
    masks: {}
    replaced: {stages.pretrain.objective: replaced_token_detection}
study:
  reference: masks
  budget: {match: steps, stage: pretrain}
  search: {over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3]}, per: [objective]}
"""


class Written(PretendWorkers):
    """Workers that do nothing but what is written down."""

    def __init__(self):
        super().__init__(lambda recipe, name: RunEnd(name, 1, 0.0, "not run"))
        self.begins_with = {}

    def next(self, waiting):
        self.begins_with[waiting[0].name] = waiting[0].begins_with
        return waiting[0]


def trials_of(text, tmp_path, study, *overrides):
    workers = Written()
    run_study(study(text, *overrides), tmp_path / "runs", None, {}, workers.stop, workers)
    return {name: load(tmp_path / "runs" / name / "recipe.yaml") for name in workers.done}


def test_trials_behind_the_matched_stage_train_it_as_the_cells_do(study, tmp_path):
    text = PRETRAINED.replace("replaced_token_detection}", "replaced_token_detection, stages.pretrain.block_size: 64}")
    trials = trials_of(text, tmp_path, study, "study.budget.match=tokens")
    assert {name: recipe.stages[0].arguments.max_steps for name, recipe in trials.items()} == {
        "search/01-01": 120,
        "search/01-02": 120,
        "search/02-01": 240,
        "search/02-02": 240,
    }


def test_a_search_of_the_matched_stage_comes_before_its_budget(study):
    behind, itself = study(PRETRAINED), study(PRETRAINED.replace("stage: pretrain}", "stage: mrpc}"))
    assert [behind.matched_first(cell) for cell in behind.cells] == [True] * 4
    assert [itself.matched_first(cell) for cell in itself.cells] == [False] * 4


def test_runs_say_what_training_they_share_with_others(study, tmp_path):
    workers = Written()
    run_study(study(PRETRAINED), tmp_path / "runs", None, {}, workers.stop, workers)
    masks, replaced = (workers.begins_with[f"search/0{group}-01"] for group in (1, 2))
    assert workers.begins_with == {
        f"search/0{group}-0{trial}": shared for group, shared in ((1, masks), (2, replaced)) for trial in (1, 2)
    }
    assert masks
    assert replaced
    assert masks != replaced


def test_what_is_asked_of_a_pretrained_model_shares_its_training(study, tmp_path):
    features = """\
name: probes
model: {architecture: {preset: bert-tiny, vocab_size: 1000}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 4}}
  - {stage: features, id: probe, task: glue/mrpc, features: {name: encoder}}
matrix:
  C: {weak: {stages.probe.C: [0.1]}, strong: {stages.probe.C: [1]}, none: {stages.pretrain: null, stages.probe.features: {name: word2vec, datasets: [{path: builtin/python-docs}]}}}
"""
    workers = Written()
    run_study(study(features), tmp_path / "runs", None, {}, workers.stop, workers)
    weak, strong, none = (workers.begins_with[f"cells/0{cell}"] for cell in (1, 2, 3))
    assert weak == strong != none == ""
