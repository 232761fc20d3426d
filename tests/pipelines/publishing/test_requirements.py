"""Requirements: what may be written, when a score meets it, and who scores what, held against the evaluate stage."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pipelines.core.load import loads
from pipelines.core.registry import METRICS
from pipelines.core.scores import score_names
from pipelines.evaluation.benchmark_selection import choose
from pipelines.publishing.requirements import OPERATORS, metrics_of, parse, scored_before

NUMBERS = some.floats(min_value=-1, max_value=1, allow_nan=False).map(lambda number: round(number, 6))
SPACE = some.sampled_from(["", " ", "  ", "\t"])


@given(
    some.sampled_from(sorted(OPERATORS)),
    NUMBERS,
    SPACE,
    SPACE,
    SPACE,
    some.sampled_from(sorted(score_names(METRICS))),
    some.sampled_from(["", "_mm"]),
)
def test_what_python_compares_is_what_is_required(symbol, threshold, before, between, after, metric, suffix):
    requirement = parse(f"glue/mnli.{metric}{suffix}", f"{before}{symbol}{between}{threshold!r}{after}")
    assert (requirement.benchmark, requirement.metric, requirement.operator) == ("glue/mnli", metric + suffix, symbol)
    for score in (threshold, math.nextafter(threshold, 2), math.nextafter(threshold, -2), -1.0, 0.0, 1.0):
        assert requirement.met_by(score) is eval(f"{score!r} {symbol} {threshold!r}")


@given(some.sampled_from(sorted(OPERATORS)), NUMBERS)
def test_not_a_number_meets_nothing(symbol, threshold):
    assert not parse("glue/mrpc.f1", f"{symbol}{threshold!r}").met_by(math.nan)


@given(some.text(max_size=12) | some.text("<>=! 0123456789.e+-", max_size=8))
def test_any_other_text_is_refused_with_a_sentence(text):
    symbol = next((each for each in sorted(OPERATORS, key=len, reverse=True) if text.strip().startswith(each)), "")
    number = text.strip()[len(symbol) :].strip()
    plain = symbol and re.fullmatch(r"[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?", number, re.ASCII)
    if plain and math.isfinite(float(number)):
        requirement = parse("demo.f1", text)
        assert (requirement.operator, requirement.threshold) == (symbol, float(number))
    else:
        with pytest.raises(ValueError, match=r"'>= 0\.80'"):
            parse("demo.f1", text)


@pytest.mark.parametrize(
    "comparison",
    [
        ">= nan",
        ">= inf",
        ">= 1e999",
        ">= 0,8",
        ">= 0.8 0.9",
        ">=",
        "0.8",
        "!= 0.8",
        "= 0.8",
        "≥ 0.8",
        ">= 0x1",
        ">= 1_0",
        True,
        None,
        0.8,
        ["> 1"],
    ],
)
def test_near_misses_are_refused(comparison):
    with pytest.raises(ValueError):
        parse("demo.f1", comparison)


@pytest.mark.parametrize(
    "path", ["f1", ".f1", "glue/mrpc.", "glue/mrpc", " glue/mrpc.f1", "glue/mrpc.F1", "glue/mrpc.f1mm"]
)
def test_a_path_that_is_no_metric_is_refused(path):
    with pytest.raises(ValueError):
        parse(path, ">= 0.8")


def test_a_percentage_for_a_fraction_is_explained():
    with pytest.raises(ValueError, match=r"write 0\.835 for 83\.5 %"):
        parse("glue/mrpc.f1", ">= 83.5")
    assert parse("squad.f1", ">= 83.5").threshold == 83.5


@pytest.mark.parametrize(
    ("path", "comparison", "remedy"),
    [
        ("squad_v2.f1", ">= 0.8", "lie between 0 and 100; write 80"),
        ("multi30k/en-de.bleu", ">= 0.3", "lie between 0 and 100; write 30"),
        ("multi30k/en-de.bleu", ">= 130", "lie between 0 and 100; write a number between them"),
        ("glue/mrpc/8-shot.acc", ">= 80", "lie between -1 and 1; write 0.8 for 80 %"),
        ("glue/mnli.accuracy_mm", ">= 80", "lie between -1 and 1"),
        ("imdb.accuracy", ">= 80", "lie between -1 and 1"),
    ],
)
def test_the_bounds_are_those_of_the_benchmarks_metrics(path, comparison, remedy):
    with pytest.raises(ValueError, match=remedy):
        parse(path, comparison)


def test_a_sentence_names_value_and_threshold_or_what_was_scored():
    requirement = parse("glue/mrpc.f1", ">= 0.80")
    assert requirement.unmet({"glue/mrpc": {"f1": 0.8}}) is None
    assert requirement.unmet({"glue/mrpc": {"f1": 0.79996}}) == "glue/mrpc.f1 is 0.79996, must be >= 0.80"
    assert "scored: glue/mrpc.accuracy" in (requirement.unmet({"glue/mrpc": {"accuracy": 1.0}}) or "")


def test_figures_of_held_out_text_may_be_required():
    requirement = parse("english_novels.bits_per_byte", "<= 2.1")
    assert (requirement.benchmark, requirement.metric) == ("english_novels", "bits_per_byte")
    assert requirement.unmet({"english_novels": {"bits_per_byte": 2.0}}) is None
    assert (
        requirement.unmet({"english_novels": {"bits_per_byte": 2.2}})
        == "english_novels.bits_per_byte is 2.2, must be <= 2.1"
    )
    assert parse("held.txt.pair_accuracy", ">= 0.6").metric == "pair_accuracy"


@pytest.mark.parametrize(
    ("path", "comparison", "better"),
    [
        ("squad.f1", ">= 0.8", "write 80"),
        ("squad_v2.exact_match", "> .5", "write 50"),
        ("race/all.accuracy", ">= 60", "write 0.6"),
    ],
)
def test_a_threshold_on_the_other_scale_is_refused(path, comparison, better):
    with pytest.raises(ValueError, match=better):
        parse(path, comparison)


HEAD = "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
STAGES = {
    "mrpc": "  - {stage: supervised, id: mrpc, task: glue/mrpc, arguments: {}}\n",
    "again": "  - {stage: supervised, id: again, task: glue/mrpc, from: model, arguments: {}}\n",
    "mnli": "  - {stage: supervised, id: mnli, task: glue/mnli, from: model, arguments: {}}\n",
    "own": "  - {stage: supervised, id: own, task: {kind: classification, columns: [text], label: label, train: "
    "train.csv}, arguments: {}}\n",
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
