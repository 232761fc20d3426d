"""Who scores what, known from the recipe alone: held against the evaluate stage's own choice."""

from __future__ import annotations

import pytest

from pipelines.core.load import loads
from pipelines.evaluation.benchmark_selection import choose
from pipelines.publishing.requirements import metrics_of, scored_before

HEAD = "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
STAGES = {
    "mrpc": "  - {stage: supervised, id: mrpc, task: glue/mrpc, arguments: {}}\n",
    "again": "  - {stage: supervised, id: again, task: glue/mrpc, from: model, arguments: {}}\n",
    "mnli": "  - {stage: supervised, id: mnli, task: glue/mnli, from: model, arguments: {}}\n",
    "own": "  - {stage: supervised, id: own, task: {kind: classification, columns: [text], label: label, train: train.csv}, arguments: {}}\n",
}


@pytest.mark.parametrize(
    ("stages", "evaluate"),
    [
        (["mrpc"], "{stage: evaluate}"),
        (["mrpc", "again"], "{stage: evaluate}"),
        (["mrpc", "again"], "{stage: evaluate, from: mrpc}"),
        (["mrpc", "again", "mnli"], "{stage: evaluate, benchmarks: [mrpc, glue/mnli, glue/ax]}"),
        (["mrpc", "again", "mnli"], "{stage: evaluate, benchmarks: [glue/mnli, glue/ax], from: mnli}"),
        (["own", "mrpc"], "{stage: evaluate}"),
        (["own", "mrpc"], "{stage: evaluate, benchmarks: [own]}"),
    ],
)
def test_it_agrees_with_the_evaluate_stage(tmp_path, stages, evaluate):
    (tmp_path / "train.csv").write_text("text,label\n" + "a,x\nb,y\n" * 10)
    recipe = loads(HEAD + "".join(STAGES[name] for name in stages) + f"  - {evaluate}\n", folder=tmp_path)
    stage = recipe.stages[-1]
    choices, mistakes = choose(recipe, stage, stage.benchmarks)
    assert mistakes == []
    assert choices
    assert scored_before(recipe, len(recipe.stages)) == {choice.name: {choice.model} for choice in choices}


def test_metrics_carry_the_suffix_of_their_split():
    recipe = loads(HEAD + STAGES["mnli"])
    assert metrics_of(recipe, "glue/mrpc") == ["accuracy", "f1"]
    assert metrics_of(recipe, "glue/mnli") == ["accuracy", "accuracy_mm"]
    assert metrics_of(recipe, "glue/stsb") == ["pearson", "spearmanr"]


def test_held_out_text_is_scored_on_the_pretrained_model_by_its_objectives_figures(tmp_path):
    (tmp_path / "held.txt").write_text("a text\n" * 10)
    words = "  - {stage: pretrain, id: words, datasets: [{path: held.txt}]}\n"
    measured = "  - {stage: evaluate, id: text, datasets: [{path: held.txt}]}\n"
    recipe = loads(HEAD + words + STAGES["mrpc"] + measured + "  - {stage: evaluate}\n", folder=tmp_path)
    assert scored_before(recipe, 3) == {"held.txt": {"words"}}
    assert scored_before(recipe, 4) == {"held.txt": {"words"}, "glue/mrpc": {"mrpc"}}
    assert metrics_of(recipe, "held.txt") == ["hidden_bits_per_byte", "accuracy"]
    both = loads(HEAD + words + STAGES["mrpc"] + measured.replace("]}", "], benchmarks: [glue/mrpc]}"), folder=tmp_path)
    assert scored_before(both, 3) == {"held.txt": {"words"}, "glue/mrpc": {"mrpc"}}
