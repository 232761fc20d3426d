"""The stage `features`: what it refuses, what it leaves, and that its scores pair with those of tuned models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.load import loads
from pipelines.reports.results import results_of
from pipelines.runs.fingerprints import modules_of, used_by
from pipelines.tasks.predictions import read_predictions

HEAD = "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
INLINE = "{kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}"


def recipe(*stages: str, **options: Any) -> Any:
    return loads(HEAD + "\n".join(f"  - {{{stage}}}" for stage in stages), **options)


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    """Rows that a film's word decides, and vectors of some of their words."""
    words = {"yes": ["good", "fine"], "no": ["bad", "dull"]}
    for name, rows in (("train", 40), ("dev", 12)):
        lines = []
        for at in range(rows):
            label = "yes" if at % 3 else "no"
            lines.append(f'"the {words[label][at % 2]} film {"very " * (at % 4)}",{label}')
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    vectors = ["good 1 0 1", "fine 1 0.2 0", "bad -1 0 0", "dull -1 0.1 1", "film 0 1 0"]
    (tmp_path / "vectors.txt").write_text("\n".join(vectors) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        ("task: squad", "is of the kind qa; features are for tasks of the kinds classification and regression"),
        ("task: glue/ax", "has no training rows; name glue/mnli"),
        ("task: glue/sst2, features: word2vec", "needs either 'datasets' to train on or 'vectors', a file"),
        ("task: glue/sst2, features: glov", "unknown features 'glov'. Did you mean 'glove'?"),
        ("task: glue/sst2, C: [0]", "must be greater than 0"),
        ("task: glue/sst2, C: [1, 1]", "names a strength twice"),
        ("task: glue/sst2, baselines: [majority, majority]", "'majority' is named twice"),
        (
            "from: model, task: glue/sst2, features: {name: glove, datasets: [{path: builtin/python-docs}]}",
            "names a model, but the features glove read none",
        ),
    ],
)
def test_a_mistake_is_one_sentence(stage: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(f"stage: features, {stage}")
    assert sentence in str(caught.value)
    assert len(caught.value.mistakes) == 1


def test_it_reads_the_model_only_where_features_do() -> None:
    made = recipe(
        "stage: pretrain, datasets: [{path: builtin/python-docs}]",
        "stage: features, id: frozen, task: glue/sst2",
        "stage: features, id: words, task: glue/sst2, features: {name: glove, datasets: [{path: builtin/python-docs}]}",
    )
    assert made.stage("frozen").reads(made) == ("pretrain",)
    assert made.stage("words").reads(made) == ()
    assert "pipelines.evaluation.features.glove" in used_by(modules_of(made.stage("words")))
    assert "pipelines.evaluation.features.glove" not in used_by(modules_of(made.stage("frozen")))


def test_it_scores_as_an_evaluate_stage_does(own_files: Path, evaluation_context: Callable[..., Any]) -> None:
    made = recipe(
        f"stage: features, id: film, task: {INLINE}, C: [0.01, 1], baselines: [majority, naive_bayes], "
        "features: {name: glove, vectors: vectors.txt}",
        folder=own_files,
    )
    given = evaluation_context(made, "film", {})
    made.stage("film").run(given)
    assert not given.opened  # no model was read
    metrics, details = (json.loads((given.folder / f"{name}.json").read_text()) for name in ("metrics", "details"))
    said = read_predictions(given.folder / "predictions.parquet")["film", "validation"]
    assert metrics["film"]["accuracy"] == accuracy_score(said["label"], said["prediction"]) == 1.0
    about = details["film"]
    assert about["model"] == "film"
    assert about["examples"] == {"validation": 12}
    assert set(about["intervals"]) == set(metrics["film"]) == {"accuracy", "f1"}
    assert about["baselines"]["majority"]["accuracy"] == pytest.approx(8 / 12)
    assert about["slices"]["validation"]
    assert about["features"]["name"] == "glove"
    assert 0.2 < about["features"]["unknown_words"]["train"] < 0.6  # "the" and "very"
    assert set(about["probe"]["tried"]) == {"0.01", "1"}
    probe = load_file(given.folder / "probe.safetensors")
    assert probe["weight"].shape == (2, 3)
    events = list(read_events(given.events.path))
    assert events[-1]["metrics"]["film.accuracy"] == 1.0
    assert any("smallest or largest" in str(each.get("message")) for each in events)  # of two each is an end


def test_a_pair_is_read_text_by_text(own_files: Path, evaluation_context: Callable[..., Any], classifier: Any) -> None:
    lines = [
        f"{'good' if at % 2 else 'bad'} film,{'good' if at % 3 else 'bad'} book,{at % 2 - at % 3}.5" for at in range(30)
    ]
    (own_files / "pairs.csv").write_text("\n".join(["one,other,score", *lines]) + "\n")
    task = "{kind: regression, columns: [one, other], label: score, train: pairs.csv, validation: pairs.csv}"
    made = recipe(f"stage: features, id: alike, task: {task}, baselines: [majority]", folder=own_files)
    given = evaluation_context(made, "alike", {"model": classifier()})
    made.stage("alike").run(given)
    assert load_file(given.folder / "probe.safetensors")["weight"].shape == (1, 4 * 16)
    metrics = json.loads((given.folder / "metrics.json").read_text())
    assert metrics["alike"]["pearson"] > 0.8
    (opened,) = given.opened
    assert opened.head.kind == "sequence_classification"


def test_one_class_alone_is_refused(own_files: Path, evaluation_context: Callable[..., Any]) -> None:
    made = recipe(
        f"stage: features, id: film, task: {INLINE}, max_train_samples: 2, C: [1], "
        "features: {name: word2vec, vectors: vectors.txt}",
        folder=own_files,
    )
    (own_files / "train.csv").write_text("text,label\ngood film,yes\nfine film,yes\nbad,no\n")
    with pytest.raises(DataError, match="all of one class"):
        made.stage("film").run(evaluation_context(made, "film", {}))


def test_frozen_and_tuned_models_are_paired_by_example(
    own_files: Path, evaluation_context: Callable[..., Any], classifier: Any
) -> None:
    """The same inline task has the same name, whichever stage describes it, and the same rows."""
    made = recipe(
        f"stage: supervised, id: film, task: {INLINE}",
        "stage: evaluate, id: score",
        f"stage: features, id: frozen, from: model, task: {INLINE}",
        folder=own_files,
    )
    for number, stage in ((2, "score"), (3, "frozen")):
        given = evaluation_context(made, stage, {"film": classifier(), "model": classifier()})
        place = own_files / "stages" / f"{number:02d}-{stage}"
        place.mkdir(parents=True)
        object.__setattr__(given, "folder", place)
        made.stage(stage).run(given)
    tuned, frozen = results_of(own_files, made)
    assert (tuned.benchmark, tuned.model) == ("film", "film")
    assert (frozen.benchmark, frozen.model) == ("film", "frozen")
    assert frozen.same_examples(tuned)
    assert frozen.parts[""].right is not None
    assert frozen.draws["accuracy"].shape == tuned.draws["accuracy"].shape
    assert np.isfinite(frozen.draws["accuracy"]).all()
