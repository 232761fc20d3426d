from pathlib import Path

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe
from pipelines.evaluation.benchmark_selection import choose

SCRATCH = "{architecture: {preset: bert-tiny}}"


@pytest.fixture
def recipe(tmp_path: Path):
    """`recipe(model, *stages)` beside a `train.csv`."""
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")

    def build(model: str, *stages: str) -> Recipe:
        lines = "\n".join(f"  - {{{stage}}}" for stage in stages)
        return loads(f"name: t\nmodel: {model}\nstages:\n{lines}\n", folder=tmp_path)

    return build


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "tuned").mkdir()
    return "{checkpoint: ./tuned}"


INLINE = "task: {kind: classification, columns: [text], label: label, train: train.csv}"


def chosen(recipe: Recipe, stage: str = "evaluate") -> list[tuple[str, str]]:
    evaluate = recipe.stage(stage)
    choices, found = choose(recipe, evaluate, evaluate.benchmarks)
    assert found == []
    return [(choice.name, choice.model) for choice in choices]


def mistakes(build, *arguments: str) -> list[str]:
    with pytest.raises(RecipeError) as error:
        build(*arguments)
    return [f"{mistake.key}: {mistake.message}" for mistake in error.value.mistakes]


def test_without_benchmarks_every_trained_task_is_scored_by_the_latest_stage_that_trained_it(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: first, task: glue/mrpc",
        "stage: supervised, id: mine, " + INLINE,
        "stage: supervised, id: second, task: glue/mrpc, from: first",
        "stage: evaluate",
        "stage: supervised, id: later, task: glue/rte",
    )
    assert chosen(made) == [("glue/mrpc", "second"), ("mine", "mine")]
    assert made.stage("evaluate").reads(made) == ("second", "mine")


def test_from_scores_that_stages_own_task(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: first, task: glue/mrpc",
        "stage: supervised, id: second, task: glue/mrpc, from: model",
        "stage: evaluate, from: first",
    )
    assert chosen(made) == [("glue/mrpc", "first")]
    assert made.stage("evaluate").reads(made) == ("first",)


def test_a_named_task_is_scored_by_the_latest_stage_and_an_id_by_its_own(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: pretrained, task: glue/mrpc",
        "stage: supervised, id: scratch, task: glue/mrpc, from: model",
        "stage: evaluate, id: a, benchmarks: [glue/mrpc]",
        "stage: evaluate, id: b, benchmarks: [pretrained]",
    )
    assert chosen(made, "a") == [("glue/mrpc", "scratch")]
    assert chosen(made, "b") == [("glue/mrpc", "pretrained")]


def test_an_inline_task_is_read_from_its_stage_and_scored_by_from(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: mine, " + INLINE,
        "stage: supervised, id: other, " + INLINE,
        "stage: evaluate, benchmarks: [mine], from: other",
    )
    assert chosen(made) == [("mine", "other")]
    assert made.stage("evaluate").reads(made) == ("other", "mine")


def test_the_diagnostics_ask_the_model_of_mnli(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: nli, task: glue/mnli, max_length: 96",
        "stage: supervised, id: rte, task: glue/rte",
        "stage: evaluate, benchmarks: [glue/ax, glue/rte]",
    )
    assert chosen(made) == [("glue/ax", "nli"), ("glue/rte", "rte")]
    choices, _ = choose(made, made.stage("evaluate"), ("glue/ax",))
    assert choices[0].trained_length(made) == 96
    assert choices[0].kind == "classification"


def test_sources_and_targets_keep_the_lengths_they_were_trained_with(recipe):
    made = recipe(
        "{architecture: {model_type: t5}}",
        "stage: supervised, id: a, task: multi30k/en-de, max_length: 60, max_target_length: 40",
        "stage: supervised, id: b, task: multi30k/en-fr, max_length: 50, max_source_length: 30",
        "stage: evaluate",
    )
    choices, _ = choose(made, made.stage("evaluate"), None)
    assert [(choice.trained_length(made), choice.trained_target_length(made)) for choice in choices] == [
        (60, 40),
        (30, 50),
    ]
    assert {choice.kind for choice in choices} == {"seq2seq"}


def test_a_checkpoint_is_scored_directly(recipe, checkpoint):
    made = recipe(checkpoint, "stage: evaluate, benchmarks: [glue/mrpc, glue/ax]")
    assert chosen(made) == [("glue/mrpc", "model"), ("glue/ax", "model")]
    assert made.stage("evaluate").reads(made) == ("model",)
    made = recipe(
        checkpoint, "stage: supervised, id: s, task: glue/rte", "stage: evaluate, benchmarks: [glue/rte, glue/cola]"
    )
    assert chosen(made) == [("glue/rte", "s"), ("glue/cola", "model")]
    made = recipe(
        checkpoint, "stage: supervised, id: s, task: glue/rte", "stage: evaluate, benchmarks: [s], from: model"
    )
    assert chosen(made) == [("glue/rte", "model")]


def test_nothing_to_score_is_a_mistake(recipe, checkpoint):
    assert mistakes(recipe, SCRATCH, "stage: evaluate") == [
        "stages.evaluate: has nothing to score: no earlier stage trains a task; add {stage: supervised, task: …} before it"
    ]
    assert mistakes(recipe, checkpoint, "stage: evaluate") == [
        "stages.evaluate.benchmarks: is missing: no earlier stage trains a task, so say what to score the checkpoint on"
    ]


def test_a_task_that_nothing_trained_is_a_mistake_from_scratch(recipe):
    found = mistakes(
        recipe,
        SCRATCH,
        "stage: supervised, id: mrpc, task: glue/mrpc",
        "stage: evaluate, benchmarks: [glue/mrpc, glue/ax]",
    )
    assert found == [
        "stages.evaluate.benchmarks[1]: no earlier stage trained 'glue/mnli', and the model is built from scratch; "
        "trained before: glue/mrpc. Add {stage: supervised, task: glue/mnli} before this stage"
    ]


def test_every_unknown_benchmark_is_named_with_its_nearest(recipe):
    found = mistakes(
        recipe,
        SCRATCH,
        "stage: supervised, id: mine, task: glue/mrpc",
        "stage: evaluate, benchmarks: [glue/mrcp, mime, evaluate, later]",
        "stage: supervised, id: later, task: glue/rte",
    )
    assert [each.split(":")[0] for each in found] == [f"stages.evaluate.benchmarks[{at}]" for at in range(4)]
    assert "unknown benchmark 'glue/mrcp'. Did you mean 'glue/mrpc'?" in found[0]
    assert "unknown benchmark 'mime'. Did you mean 'mine'? Available: mine, " in found[1]
    assert "stage 'evaluate' is a 'evaluate' stage, which trains no task" in found[2]
    assert "stage 'later' comes later" in found[3]


def test_the_same_benchmark_twice_is_a_mistake(recipe):
    found = mistakes(
        recipe,
        SCRATCH,
        "stage: supervised, id: mine, task: glue/mrpc",
        "stage: evaluate, benchmarks: [glue/mrpc, mine]",
    )
    assert found == [
        "stages.evaluate.benchmarks[1]: 'mine' scores 'glue/mrpc' a second time; "
        "use another evaluate stage to compare two models"
    ]


def test_from_must_name_a_model_that_knows_a_task(recipe):
    assert mistakes(recipe, SCRATCH, "stage: evaluate, benchmarks: [glue/mrpc], from: model") == [
        "stages.evaluate.from: 'model' is built from scratch, so it knows no task yet. no earlier stage trains a task"
    ]
    found = mistakes(
        recipe,
        SCRATCH,
        "stage: supervised, id: mine, task: glue/mrpc",
        "stage: evaluate",
        "stage: evaluate, id: b, from: evaluate",
    )
    assert found == [
        "stages.b.from: 'evaluate' is a 'evaluate' stage, which leaves no model trained on a task. Allowed: mine"
    ]
    found = mistakes(recipe, SCRATCH, "stage: supervised, id: mine, task: glue/mrpc", "stage: evaluate, from: mien")
    assert len(found) == 1
    assert "'mien' is no earlier stage" in found[0]


def test_a_model_of_another_task_is_refused_before_anything_loads(recipe):
    found = mistakes(
        recipe,
        SCRATCH,
        "stage: supervised, id: mrpc, task: glue/mrpc",
        "stage: evaluate, from: mrpc, benchmarks: [glue/rte, glue/stsb, glue/mrpc]",
    )
    assert found == [
        "stages.evaluate.benchmarks[0]: 'glue/rte' cannot be scored with the model of 'mrpc', which learnt 'glue/mrpc' "
        "(not_equivalent, equivalent, needed: entailment, not_entailment); name a stage that was trained on it in 'from'",
        "stages.evaluate.benchmarks[1]: 'glue/stsb' cannot be scored with the model of 'mrpc', which learnt 'glue/mrpc' "
        "(not_equivalent, equivalent, needed: a number); name a stage that was trained on it in 'from'",
    ]


def test_a_model_of_another_task_with_the_same_classes_is_welcome(recipe):
    made = recipe(
        SCRATCH,
        "stage: supervised, id: qnli, task: glue/qnli",
        "stage: evaluate, from: qnli, benchmarks: [glue/rte, glue/wnli]",
    )
    assert chosen(made) == [("glue/rte", "qnli"), ("glue/wnli", "qnli")]
