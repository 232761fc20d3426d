import json
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.core.registry import BASELINES
from pipelines.tasks.predictions import read_predictions
from tests import tiny
from tests.kept_baselines import kept_baselines

RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
"""


def recipe(*stages: str, **options):
    return loads(RECIPE + "\n".join(f"  - {{{stage}}}" for stage in stages), **options)


def results(context):
    folder = context.folder
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "details")]


def events(context, kind: str):
    return [event for event in read_events(context.events.path) if event["event"] == kind]


@pytest.fixture
def data(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))


@pytest.fixture
def own_files(tmp_path):
    """A small task in files: enough to score without the mirror."""
    texts = ["good film", "bad film", "fine book , very good", "dull", "the dog runs", "is it bad ?"]
    for name, rows in (("train", 4), ("dev", 6)):
        lines = [f'"{text}",{"yes" if at % 2 == 0 else "no"}' for at, text in enumerate(texts[:rows])]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return tmp_path


INLINE = "task: {kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}"


def test_scores_equal_the_references_on_glue(data, context, classifier):
    made = recipe(
        "stage: supervised, id: para, task: glue/mrpc, max_length: 32, max_train_samples: 100",
        "stage: supervised, id: grammar, task: glue/cola, from: model, max_train_samples: 100",
        "stage: supervised, id: likeness, task: glue/stsb, from: model, max_train_samples: 100",
        "stage: supervised, id: nli, task: glue/mnli, from: model, max_train_samples: 100",
        "stage: evaluate, max_eval_samples: 60, baselines: [majority, naive_bayes]",
    )
    models = {"para": classifier(), "grammar": classifier(), "likeness": classifier(1), "nli": classifier(3)}
    given = context(made, "evaluate", models)
    made.stage("evaluate").run(given)
    metrics, details = results(given)
    said = read_predictions(given.folder / "predictions.parquet")

    assert list(metrics) == ["glue/mrpc", "glue/cola", "glue/stsb", "glue/mnli"]
    mrpc = said["glue/mrpc", "validation"]
    assert metrics["glue/mrpc"] == pytest.approx(
        {
            "accuracy": accuracy_score(mrpc["label"], mrpc["prediction"]),
            "f1": f1_score(mrpc["label"], mrpc["prediction"]),
        }
    )
    cola = said["glue/cola", "validation"]
    assert metrics["glue/cola"] == pytest.approx(
        {"matthews_correlation": matthews_corrcoef(cola["label"], cola["prediction"])}
    )
    stsb = said["glue/stsb", "validation"]
    assert stsb["label"].max() > 4.5
    assert metrics["glue/stsb"] == pytest.approx(
        {
            "pearson": pearsonr(stsb["prediction"], stsb["label"])[0],
            "spearmanr": spearmanr(stsb["prediction"], stsb["label"])[0],
        }
    )
    matched, other = said["glue/mnli", "validation_matched"], said["glue/mnli", "validation_mismatched"]
    assert metrics["glue/mnli"] == pytest.approx(
        {
            "accuracy": accuracy_score(matched["label"], matched["prediction"]),
            "accuracy_mm": accuracy_score(other["label"], other["prediction"]),
        }
    )

    assert [(each.stage_id, each.trained_head) for each in given.opened] == [(name, True) for name in models]
    assert details["glue/mrpc"]["max_length"] == 32
    assert details["glue/mnli"]["splits"] == {"": "validation_matched", "_mm": "validation_mismatched"}
    assert details["glue/mnli"]["examples"] == {"validation_matched": 60, "validation_mismatched": 60}
    for name, scores in metrics.items():
        assert list(details[name]["intervals"]) == list(scores)
        for metric, (low, high) in details[name]["intervals"].items():
            assert low <= scores[metric] <= high
    assert set(details["glue/mnli"]["baselines"]["naive_bayes"]) == {"accuracy", "accuracy_mm"}
    assert details["glue/cola"]["baselines"]["majority"] == {"matthews_correlation": 0.0}
    assert details["glue/stsb"]["baselines"] == {}
    assert set(details["glue/stsb"]["skipped"]) == {"majority", "naive_bayes"}
    kept = kept_baselines(given.folder)
    assert list(kept) == ["majority", "naive_bayes"]
    for benchmarks in kept.values():
        assert [each.benchmark for each in benchmarks] == ["glue/mrpc", "glue/cola", "glue/mnli"]

    flat = {f"{name}.{metric}": value for name, scores in metrics.items() for metric, value in scores.items()}
    assert [event["metrics"] for event in events(given, "metric")] == [flat]
    told = {event["what"] for event in events(given, "progress")}
    assert {each for each in told if not each.startswith("comparing with")} == {
        f"{name} {split}" for name, split in said
    }
    assert all(event["stage"] == "evaluate" for event in read_events(given.events.path))


def test_baselines_learn_from_the_rows_that_the_model_learnt_from(own_files, context, classifier):
    shares = {}
    for rows in (3, 1):
        made = recipe(
            f"stage: supervised, id: mine, max_train_samples: {rows}, " + INLINE,
            "stage: evaluate, baselines: [naive_bayes]",
            folder=own_files,
        )
        given = context(made, "evaluate", {"mine": classifier()})
        made.stage("evaluate").run(given)
        shares[rows] = results(given)[1]["mine"]["baselines"]["naive_bayes"]["accuracy"]
    # one row, a "yes": all six are guessed "yes", and three are; three rows teach that "bad" means "no", which is right
    # for two more; "dull" is the fourth row, so it is still guessed "yes" and wrong
    assert shares == {1: 0.5, 3: pytest.approx(5 / 6)}


@pytest.mark.long
def test_without_a_limit_every_row_counts(data, context, classifier):
    made = recipe(
        "stage: supervised, id: para, task: glue/mrpc, max_length: 16", "stage: evaluate, baselines: [majority]"
    )
    given = context(made, "evaluate", {"para": classifier()})
    began = time.monotonic()
    made.stage("evaluate").run(given)
    whole = time.monotonic() - began
    _, details = results(given)
    assert details["glue/mrpc"]["examples"] == {"validation": 408}
    assert details["glue/mrpc"]["model"] == "para"
    assert details["glue/mrpc"]["baselines"]["majority"] == pytest.approx({"accuracy": 279 / 408, "f1": 558 / 687})
    assert 0 < details["glue/mrpc"]["seconds"] <= whole


def test_an_inline_task_is_keyed_by_its_stage(own_files, context, classifier):
    made = recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate", folder=own_files)
    given = context(made, "evaluate", {"mine": classifier()})
    began = time.monotonic()
    made.stage("evaluate").run(given)
    whole = time.monotonic() - began
    metrics, details = results(given)
    assert set(metrics) == {"mine"}
    assert set(metrics["mine"]) == {"accuracy", "f1"}
    assert details["mine"]["examples"] == {"validation": 6}
    assert details["mine"]["model"] == "mine"
    assert 0 < details["mine"]["seconds"] <= whole
    table = pq.read_table(given.folder / "predictions.parquet")
    assert table["text"].to_pylist()[0] == "good film"
    assert table["label"].to_pylist() == [1, 0, 1, 0, 1, 0]


def test_classes_in_another_order_are_put_right(own_files, context, classifier):
    made = recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate", folder=own_files)
    straight = context(made, "evaluate", {"mine": classifier(names=("no", "yes"))})
    made.stage("evaluate").run(straight)
    expected, details = results(straight)
    logits = read_predictions(straight.folder / "predictions.parquet")["mine", "validation"]["logits"]
    assert details["mine"]["columns"] is None

    turned = context(made, "evaluate", {"mine": classifier(names=("Yes", "No"))})
    made.stage("evaluate").run(turned)
    metrics, details = results(turned)
    again = read_predictions(turned.folder / "predictions.parquet")["mine", "validation"]["logits"]
    np.testing.assert_array_equal(again, logits[:, ::-1])
    assert details["mine"]["columns"] == [1, 0]
    assert metrics["mine"]["accuracy"] == pytest.approx(1 - expected["mine"]["accuracy"])


def test_a_wrong_head_is_one_sentence_and_leaves_no_scores(own_files, context, classifier):
    made = recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate", folder=own_files)
    given = context(made, "evaluate", {"mine": classifier(3)})
    with pytest.raises(ModelError, match=r"'mine' has 3 outputs, but 'mine' needs 2 \(no, yes\)"):
        made.stage("evaluate").run(given)
    assert list(given.folder.iterdir()) == []


def test_doubts_are_warnings(own_files, context, classifier):
    import torch

    model = classifier()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    made = recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate, baselines: [majority]", folder=own_files)
    given = context(made, "evaluate", {"mine": model})
    made.stage("evaluate").run(given)
    overlap, constant, majority = [event["message"] for event in events(given, "warning")]
    assert "4 of 6 examples of 'validation' overlap with what was trained on (mine): 4 as a whole" in overlap
    assert "predicts the class 'yes' for every one of the 6 examples" in constant
    assert "not shown to be better than always guessing" in majority


@pytest.fixture
def diagnostics(tmp_path, monkeypatch):
    """Two rows of glue/ax."""
    folder = tmp_path / "data" / "glue" / "ax"
    folder.mkdir(parents=True)
    rows = {
        "premise": ["the cat sleeps", "a dog"],
        "hypothesis": ["the cat runs", "a film"],
        "label": [-1, -1],
        "idx": [0, 1],
    }
    pq.write_table(pa.table(rows), folder / "test-00000-of-00001.parquet")
    monkeypatch.setenv("FINERY_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("trained", "asked", "rows"),
    [
        ("", "", 2),
        ("", ", max_eval_samples: 1", 1),
        ("", ", max_eval_samples: 1, max_predict_samples: 2", 2),
        (", max_predict_samples: 1", "", 1),
        (", max_predict_samples: 1", ", max_predict_samples: 2", 2),
    ],
)
def test_of_a_split_without_public_labels_as_many_rows_are_predicted_as_is_said(
    diagnostics, context, classifier, trained, asked, rows
):
    made = recipe(
        f"stage: supervised, id: nli, task: glue/mnli{trained}", f"stage: evaluate, benchmarks: [glue/ax]{asked}"
    )
    given = context(made, "evaluate", {"nli": classifier(3)})
    made.stage("evaluate").run(given)
    assert len(read_predictions(given.folder / "predictions.parquet")["glue/ax", "test"]["logits"]) == rows


def test_labels_that_are_not_public_give_predictions_without_a_score(diagnostics, context, classifier):
    made = recipe(
        "stage: supervised, id: nli, task: glue/mnli", "stage: evaluate, benchmarks: [glue/ax], baselines: [majority]"
    )
    given = context(made, "evaluate", {"nli": classifier(3)})
    made.stage("evaluate").run(given)
    metrics, details = results(given)
    assert metrics == {}
    assert details["glue/ax"]["model"] == "nli"
    assert details["glue/ax"]["intervals"] == {}
    assert details["glue/ax"]["skipped"] == {"majority": "the benchmark has no public labels"}
    assert not {"slices", "classes", "calibration", "mistakes"} & details["glue/ax"].keys()
    assert (given.folder / "mistakes.jsonl").read_text() == ""
    said = read_predictions(given.folder / "predictions.parquet")["glue/ax", "test"]
    assert said["label"] is None
    assert said["logits"].shape == (2, 3)
    assert any("not public" in event["message"] for event in events(given, "warning"))


def test_two_processes_write_what_one_does(own_files, context, classifier):
    made = recipe(
        "stage: supervised, id: mine, " + INLINE, "stage: evaluate, per_device_eval_batch_size: 2", folder=own_files
    )
    alone = context(made, "evaluate", {"mine": classifier()})
    made.stage("evaluate").run(alone)
    expected = [(alone.folder / name).read_bytes() for name in ("metrics.json", "predictions.parquet")]
    for file in alone.folder.iterdir():
        file.unlink()

    barrier, values, failures = threading.Barrier(2), [None, None], []

    def rank(number: int) -> None:
        def gather(value):
            values[number] = value
            barrier.wait(60)
            every = list(values)
            barrier.wait(60)
            return every

        try:
            given = context(
                made,
                "evaluate",
                {"mine": classifier_of[number]},
                world=World(number, 2),
                gather=gather,
                barrier=lambda: barrier.wait(60),
            )
            made.stage("evaluate").run(given)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    classifier_of = [classifier(), classifier()]
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert [(alone.folder / name).read_bytes() for name in ("metrics.json", "predictions.parquet")] == expected


def test_content_is_that_of_the_splits_it_reads(data):
    made = recipe(
        "stage: supervised, id: para, task: glue/mrpc",
        "stage: evaluate, id: all",
        "stage: evaluate, id: named, benchmarks: [glue/mrpc]",
        "stage: evaluate, id: beside, benchmarks: [glue/mrpc], baselines: [majority]",
    )
    contents = {name: made.stage(name).content(made) for name in ("all", "named", "beside")}
    assert list(contents["all"]) == ["glue/mrpc:validation"]
    assert contents["all"] == contents["named"] == made.stage("named").content(made)
    assert sorted(contents["beside"]) == ["glue/mrpc:train", "glue/mrpc:validation"]


def test_content_follows_the_file(own_files):
    made = recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate", folder=own_files)
    before = made.stage("evaluate").content(made)
    (own_files / "dev.csv").write_text("text,label\ngood,yes\nbad,yes\n")
    assert list(before) == ["mine:validation"]
    assert made.stage("evaluate").content(made) != before


def test_every_mistake_of_the_block_is_found_at_once():
    with pytest.raises(RecipeError) as error:
        recipe(
            "stage: supervised, id: para, task: glue/mrpc",
            "stage: evaluate, baselines: [bayes], max_length: 1, benchmark: [glue/mrpc], per_device_eval_batch_size: 0",
        )
    text = str(error.value)
    assert len(error.value.mistakes) == 4
    assert f"unknown baseline 'bayes'. Did you mean 'naive_bayes'? Available: {', '.join(sorted(BASELINES))}" in text
    assert "unknown key 'benchmark'. Did you mean 'benchmarks'?" in text


def test_how_texts_are_written_is_refused_where_none_are():
    with pytest.raises(
        RecipeError, match=r"generation: is for benchmarks whose answers are texts, and none that is scored has such"
    ):
        recipe("stage: supervised, id: para, task: glue/mrpc", "stage: evaluate, generation: {num_beams: 2}")


def test_a_baseline_is_named_once():
    with pytest.raises(RecipeError, match=r"baselines\[1\]: 'majority' is named twice"):
        recipe("stage: supervised, id: para, task: glue/mrpc", "stage: evaluate, baselines: [majority, majority]")


def test_checking_a_recipe_loads_nothing_heavy():
    code = (
        "import sys; from pipelines.core.load import loads\n"
        "loads('''name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
        "  - {stage: supervised, id: nli, task: glue/mnli}\n  - {stage: evaluate, benchmarks: [glue/ax, nli]}\n''')\n"
        "heavy = {'torch', 'transformers', 'datasets', 'evaluate', 'sklearn', 'scipy', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


QA = "task: {kind: qa, question: question, context: context, answers: answers, train: qa.jsonl, validation: qa.jsonl}"


@pytest.fixture
def questions(tmp_path):
    """Four questions about three contexts; each context but one is found by its words."""
    contexts = ["the cat sleeps on the book", "a dog reads a film", "the dull book runs"]
    asked = [("cat", 0, "the book"), ("dog", 1, "a film"), ("dull", 2, "runs"), ("dog", 0, "sleeps")]
    lines = [
        {
            "question": question,
            "context": contexts[at],
            "answers": {"text": [answer], "answer_start": [contexts[at].index(answer)]},
        }
        for question, at, answer in asked
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in contexts[::-1]))
    return tmp_path


@pytest.mark.parametrize(
    ("retrieval", "expected"),
    [
        ("name: bm25, k: 1, recall_at: [1, 3]", {"recall@1": 0.75, "recall@3": 1.0}),
        ("name: bm25, k: 2, recall_at: [1], passages: {path: passages.jsonl}", {"recall@1": 0.75}),
        ("name: embeddings, k: 3, recall_at: [3]", {"recall@3": 1.0}),
        ("name: embeddings, from: model, k: 1, recall_at: [3]", {"recall@3": 1.0}),
    ],
)
def test_questions_are_answered_from_passages_that_were_searched_for(questions, context, retrieval, expected):
    made = recipe(
        f"stage: supervised, id: asked, max_length: 24, {QA}",
        f"stage: evaluate, retrieval: {{{retrieval}}}",
        folder=questions,
    )
    model = tiny.build("bert", Head("question_answering"), max_position_embeddings=64)
    given = context(made, "evaluate", {"asked": model, "model": model})
    made.stage("evaluate").run(given)
    metrics, details = results(given)
    assert {name: metrics["asked"][name] for name in expected} == expected
    assert set(metrics["asked"]) == {"exact_match", "f1", *expected}
    for name, value in expected.items():
        low, high = details["asked"]["intervals"][name]
        assert 0 <= low <= value <= high <= 1
    assert set(details["asked"]["baselines"]["given passages"]) == {"exact_match", "f1"}
    assert details["asked"]["retrieval"]["name"] == made.stage("evaluate").retrieval.name
    (table,) = read_predictions(given.folder / "predictions.parquet").values()
    if "bm25, k: 1" in retrieval:  # the last question finds the other dog
        assert list(table["text_pair"])[-1] == "a dog reads a film"


def test_only_models_before_the_stage_embed(questions):
    stage = f"stage: supervised, id: asked, max_length: 24, {QA}"
    with pytest.raises(RecipeError, match=r"'aksed' is no model.*Did you mean 'asked'"):
        recipe(stage, "stage: evaluate, retrieval: {name: embeddings, from: aksed}", folder=questions)
    with pytest.raises(RecipeError, match=r"is for retrieval\.name: embeddings, and it is bm25"):
        recipe(stage, "stage: evaluate, retrieval: {from: asked}", folder=questions)


def test_retrieval_is_for_questions_about_texts(own_files):
    with pytest.raises(RecipeError, match=r"retrieval.*answers are spans of a text"):
        recipe("stage: supervised, id: mine, " + INLINE, "stage: evaluate, retrieval: {name: bm25}", folder=own_files)
