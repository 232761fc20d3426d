"""Predictions of every head, for a task's split and for one's own file, say what the model's logits say."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from pipelines.commands.predict import answer
from pipelines.commands.score import answer as score
from pipelines.core.errors import CommandError, DataError, ModelError
from pipelines.core.interfaces import Head
from pipelines.serving.predictions import Predictor
from pipelines.tasks.predictions import read_predictions
from tests import tiny
from tests.finished_run import finished, inside

RUN = "runs/finished"
OPTIONS = {"model": "published", "out": "o.tsv"}


@pytest.fixture(autouse=True)
def _there():
    with inside(finished().root):
        yield


def stage(benchmark, split="validation"):
    return read_predictions(finished().run / "stages" / "06-evaluate" / "predictions.parquet")[benchmark, split]


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as text:
        return list(csv.DictReader(text, delimiter="\t" if path.suffix == ".tsv" else ","))


def predicted(tmp_path, ending=".parquet", **request):
    told = answer({"model": RUN, "out": str(tmp_path / f"said{ending}")} | request)
    rows = read(tmp_path / f"said{ending}")
    assert told["rows"] == len(rows)
    return rows


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv", ".tsv"])
def test_classes_have_the_probabilities_of_their_logits(tmp_path, ending):
    rows = predicted(tmp_path, ending, task="glue/mrpc", split="validation")
    logits = stage("glue/mrpc")["logits"].astype(np.float64)
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = ("not_equivalent", "equivalent")
    assert [row["prediction"] for row in rows] == [names[at] for at in logits.argmax(axis=1)]
    for at, name in enumerate(names):
        assert [float(row[f"probability_{name}"]) for row in rows] == pytest.approx(likely[:, at], abs=1e-6)
    assert [float(row["probability"]) for row in rows] == pytest.approx(likely.max(axis=1), abs=1e-6)
    assert [int(row["index"]) for row in rows] == list(range(16))


def test_what_is_predicted_scores_as_the_stage_measured(tmp_path):
    predicted(tmp_path, ".tsv", task="glue/mrpc", split="validation")
    references = finished().root / "data" / "glue" / "mrpc" / "validation-00000-of-00001.parquet"
    found = score({"benchmark": "glue/mrpc", "predictions": str(tmp_path / "said.tsv"), "references": str(references)})[
        "scores"
    ]
    assert found == {**finished().scores["glue/mrpc"], "total": 16}


def test_numbers_answers_and_options_are_those_of_the_stage(tmp_path):
    numbers = predicted(tmp_path, task="glue/stsb", split="validation")
    assert [row["prediction"] for row in numbers] == pytest.approx(stage("glue/stsb")["logits"][:, 0])
    answers = predicted(tmp_path, ".jsonl", task="squad")  # it has no test split: the validation split is taken
    assert [row["prediction"] for row in answers] == stage("squad")["answer"]
    assert all(
        row["text_pair"][row["answer_start"] :].startswith(row["prediction"]) for row in answers if row["prediction"]
    )
    assert all(0 < row["probability"] <= 1 for row in answers if row["prediction"])
    options = predicted(tmp_path, task="race/middle", split="validation")
    letters = ["ABCD"[int(at)] for at in stage("race/middle")["prediction"]]
    assert [row["prediction"] for row in options] == letters
    assert all(sum(row[f"probability_{letter}"] for letter in "ABCD") == pytest.approx(1) for row in options)


def test_the_test_split_is_the_default_and_its_labels_are_not_needed(tmp_path):
    assert len(predicted(tmp_path, task="glue/rte")) == 5
    assert len(predicted(tmp_path, task="glue/rte", limit=2)) == 2


def test_ones_own_file_is_read_by_the_columns_that_are_named(tmp_path):
    """The file's labels are wrong on purpose: nobody looks at them."""
    source = pq.read_table(finished().root / "data" / "glue" / "mrpc" / "validation-00000-of-00001.parquet").to_pylist()
    lines = [json.dumps({"one": row["sentence1"], "two": row["sentence2"], "label": "nonsense"}) for row in source]
    (tmp_path / "own.jsonl").write_text("\n".join(lines) + "\n")
    rows = predicted(tmp_path, model="published", data=str(tmp_path / "own.jsonl"), text=["one", "two"])
    names = ("not_equivalent", "equivalent")
    assert [row["prediction"] for row in rows] == [names[int(at)] for at in stage("glue/mrpc")["prediction"]]
    assert [row["text"] for row in rows] == [row["sentence1"] for row in source]


def test_a_task_of_ones_own_is_asked_about_further_rows(tmp_path):
    (tmp_path / "more.csv").write_text('text\n"the cat, she said ""no"""\na film\n')
    rows = predicted(tmp_path, ".csv", model=f"{RUN}/stages/05-mine", data=str(tmp_path / "more.csv"))
    assert [row["text"] for row in rows] == ['the cat, she said "no"', "a film"]
    assert {row["prediction"] for row in rows} <= {"no", "yes"}


HEADS = {
    "classes": ("bert", tiny.THREE, {"text": "a cat"}, {"entailment", "neutral", "contradiction"}),
    "a number": ("bert", tiny.NUMBER, {"text": "a cat"}, float),
    "tags": ("bert", Head("token_classification", ("O", "B-X", "I-X")), {"tokens": ["a", "cat"]}, list),
    "a span": ("bert", Head("question_answering"), {"question": "was it ?", "context": "the cat sleeps and runs"}, str),
    "a text": ("t5", Head("seq2seq_lm"), {"text": "a cat"}, str),
    "a continuation": ("gpt2", Head("causal_lm"), {"prompt": "a cat"}, str),
}


@pytest.mark.parametrize("case", list(HEADS))
def test_a_checkpoint_that_others_made_is_asked_by_the_head_that_it_has(tmp_path, case):
    family, head, row, expected = HEADS[case]
    tiny.build(family, head).save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    rows = predicted(tmp_path, ".jsonl", model=str(tmp_path / "model"), data=str(tmp_path / "own.jsonl"), max_length=24)
    assert len(rows) == 2
    said = rows[0]["prediction"]
    assert said == (pytest.approx(rows[1]["prediction"], abs=1e-6) if expected is float else rows[1]["prediction"])
    assert said in expected if isinstance(expected, set) else isinstance(said, expected)
    if case == "tags":
        assert len(said) == len(rows[0]["probabilities"]) == 2


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"model": RUN}, CommandError, "holds several models: para .* name one with --task"),
        ({"model": RUN, "task": "glue/cola"}, CommandError, "none of them was trained on 'glue/cola'"),
        ({"task": "glue/rte"}, CommandError, "cannot be scored with the model of 'para'"),
        ({"task": "glue/mrpc", "split": "tset"}, DataError, "no split 'tset'. Did you mean 'test'"),
        ({"task": "nothing"}, CommandError, "unknown task 'nothing'"),
        ({"data": "gone.csv"}, CommandError, "does not exist"),
        ({"data": "recipe.yaml"}, CommandError, "unknown format"),
        ({"data": "mine.csv"}, DataError, "no column 'sentence1'"),
        ({"data": "mine.csv", "text": ["text", "label", "text"]}, CommandError, "given 3 times"),
        ({"out": "o.xls"}, CommandError, "must end with one of .parquet, .jsonl, .csv, .tsv"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(request_, error, sentence):
    with pytest.raises(error, match=sentence):
        answer(OPTIONS | request_)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("published", "an input of this model is sentence1 and sentence2; give JSONL, such as {"),
        (f"{RUN}/stages/02-span", "an input of this model is question and context; give JSONL, such as {"),
    ],
)
def test_lines_of_plain_text_are_refused_where_an_input_has_several_columns(tmp_path, model, sentence):
    (tmp_path / "lines.jsonl").write_text('{"text": "a cat"}\n')
    with pytest.raises(DataError) as raised:
        answer({**OPTIONS, "model": model, "data": str(tmp_path / "lines.jsonl"), "text": ["text"], "plain": True})
    assert str(raised.value).startswith(f"standard input holds one text a line, but {sentence}")


def test_a_length_that_the_model_does_not_have_is_warned_of(tmp_path):
    (tmp_path / "own.csv").write_text("text\na film\n")
    asked = {"model": f"{RUN}/stages/05-mine", "data": str(tmp_path / "own.csv"), "out": str(tmp_path / "o.csv")}
    told = answer({**asked, "max_length": 100_000})
    assert [each for each in told["warnings"] if "max_length is 100,000, but the model reads " in each]
    assert not [each for each in answer({**asked, "max_length": 8})["warnings"] if "max_length" in each]


@pytest.fixture
def pairs(tmp_path):
    """A published classifier of pairs, far from its rows."""
    folder = tmp_path / "pairs"
    shutil.copytree(finished().root / "published", folder)
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    task = {"kind": "classification", "columns": ["q1", "q2"], "label": "same", "train": "file:file-0123abcd"}
    recipe["stages"][0] |= {"task": task, "max_length": 30}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_half_a_pair_is_refused_by_a_model_that_is_far_from_its_rows(pairs, tmp_path):
    predictor = Predictor(str(pairs))
    assert predictor.columns == ("q1", "q2")
    assert [each.name for each in predictor.form().fields] == ["q1", "q2"]
    for half in ("a cat", {"q1": "a cat"}, {"text": "a cat"}):
        with pytest.raises(CommandError, match=r"^input 0 (must be|has no 'q.';) an object with 'q1' and 'q2'$"):
            predictor.predict([half])
    (row,), warnings = predictor.predict([{"q1": "a cat " * 20, "q2": "a dog"}])
    assert row["prediction"] in ("not_equivalent", "equivalent")
    assert [each for each in warnings if "and the model reads 30: the end was not read" in each]
    for half, sentence in (({"q1": "a cat"}, "has no column 'q2'"), ({"q1": "a", "q2": None}, "nothing in the column")):
        (tmp_path / "own.jsonl").write_text(json.dumps(half) + "\n")
        with pytest.raises(DataError, match=sentence):
            answer({"model": str(pairs), "data": str(tmp_path / "own.jsonl"), "out": str(tmp_path / "o.csv")})


def test_questions_that_are_cut_are_counted(tmp_path):
    """Windows of 32 tokens have room for 8 of a question."""
    rows = [{"question": text, "context": "the cat sleeps and runs"} for text in ("was it ?", "was it " * 6)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = f"{RUN}/stages/02-span"
    told = answer({"model": model, "data": str(tmp_path / "own.jsonl"), "out": str(tmp_path / "o.csv")})
    assert told["warnings"] == ["1 of 2 questions have more than 8 tokens: their ends were not read."]
    predictor = Predictor(model)
    assert predictor.predict(rows[:1])[1] == []
    assert predictor.shown(rows[1]).notes == (
        "The question has 12 tokens, and the model reads 8: the end was not read.",
    )


def test_a_reader_that_knows_of_no_answer_is_asked_without_the_rows_that_its_threshold_is_chosen_on(tmp_path):
    folder = tmp_path / "02-span"
    shutil.copytree(finished().run / "stages" / "02-span", folder)
    record = json.loads((folder / "stage.json").read_text())
    record["identity"] |= {"task": "squad_v2", "arguments": {"eval_strategy": "steps", "eval_steps": 1}}
    (folder / "stage.json").write_text(json.dumps(record))
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "was it ?", "context": "the cat sleeps"}) + "\n")
    (row,) = predicted(tmp_path, ".jsonl", model=str(folder), data=str(tmp_path / "own.jsonl"))
    assert row["prediction"] in "the cat sleeps"


def test_equal_answers_to_inputs_without_labels_are_no_fault(tmp_path):
    (tmp_path / "own.csv").write_text("text\n" + "a film\n" * 8)
    told = answer({"model": f"{RUN}/stages/05-mine", "data": str(tmp_path / "own.csv"), "out": str(tmp_path / "o.csv")})
    assert told["warnings"] == []


def test_a_model_without_such_a_head_is_one_sentence(tmp_path):
    tiny.build("bert", tiny.MASKED).save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="BertForMaskedLM in its config, which has no head that predicts"):
        answer({"model": str(tmp_path / "model"), "data": "mine.csv", "out": "o.csv"})
    with pytest.raises(ModelError, match="has no trained sequence classification head"):
        answer({"model": str(tmp_path / "model"), "task": "glue/mrpc", "out": "o.csv"})
