"""What is asked of words, spans and options: the scores are those of the written predictions, and a stranger finds the same logits.

The stranger is `publishing.clean_room`, which tokenises, cuts windows and reads logits by code of its own.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.core.results import scores_of_model
from pipelines.data.encoding import encode
from pipelines.metrics.seqeval import Seqeval
from pipelines.metrics.squad import SquadV2
from pipelines.publishing import clean_room
from pipelines.publishing.verify import questions_of
from pipelines.tasks.extractive_qa import evaluation
from pipelines.tasks.predictions import read_predictions
from pipelines.trainers.model_selection import set_aside
from tests import tiny
from tests.covering import covering
from tests.kept_baselines import kept_baselines

TAGS = ("B-X", "I-X", "O")
KINDS = {
    "tags": ("kind: token_classification", Head("token_classification", TAGS)),
    "spans": ("kind: qa, version_2_with_negative: true", Head("question_answering")),
    "options": ("kind: multiple_choice, context: context", Head("multiple_choice")),
}
FAMILIES = ("encoder", "decoder", "encoder-decoder", "bert")


def row(number: int) -> dict[str, Any]:
    """One row that serves all three kinds, longer with its number."""
    words = [tiny.WORDS[(3 * number + 5 * place) % len(tiny.WORDS)] for place in range(4 + 3 * number)]
    context = " ".join(words)
    answers = (
        {"text": [], "answer_start": []}
        if number % 4 == 3
        else {"text": [words[1]], "answer_start": [context.index(words[1])]}
    )
    return {
        "tokens": words,
        "tags": [TAGS[(number + place) % 3] for place in range(len(words))],
        "question": "which was it",
        "context": context,
        "answers": answers,
        "options": [words[0], " ".join(words[1:3]), "nothing at all"],
        "answer": "ABC"[number % 3],
    }


def recipe(folder: Path, kind: str, stages: str = "") -> Any:
    if not (folder / "rows.jsonl").exists():  # two ranks of one test read it at the same time
        (folder / "rows.jsonl").write_text("\n".join(json.dumps(row(number)) for number in range(12)))
    return loads(
        f"name: t\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n"
        f"  - {{stage: supervised, id: mine, max_length: 24, task: {{{KINDS[kind][0]}, train: rows.jsonl, validation: rows.jsonl}}}}\n"
        f"  - {{stage: evaluate, per_device_eval_batch_size: 4{stages}}}\n",
        folder=folder,
    )


def model(kind: str, family: str = "bert") -> Any:
    """A model whose answers are far from constant without training."""
    if family == "bert":
        return tiny.build("bert", KINDS[kind][1], initializer_range=0.5).eval()
    shape = {"family": family, "initializer_range": 0.5} | (
        {"num_decoder_layers": 2} if family == "encoder-decoder" else {}
    )
    return tiny.build("finery", KINDS[kind][1], **shape).eval()


def evaluated(
    folder: Path,
    evaluation_context: Callable[..., Any],
    kind: str,
    family: str = "bert",
    stages: str = "",
    opened: Any = None,
    **others: Any,
) -> Any:
    made = recipe(folder, kind, stages)
    own = copy.deepcopy(
        tiny.tokenizer()
    )  # a fast tokenizer has settings that two threads would change under each other
    given = evaluation_context(
        made, "evaluate", {"mine": opened or model(kind, family)}, open_tokenizer=lambda stage_id=None: own, **others
    )
    made.stage("evaluate").run(given)
    return given


def read(given: Any) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    metrics, details = (
        json.loads((given.folder / f"{name}.json").read_text())["mine"] for name in ("metrics", "details")
    )
    return metrics, details, pq.read_table(given.folder / "predictions.parquet").to_pylist()


@pytest.mark.parametrize(("kind", "family"), covering(product(KINDS, FAMILIES)))
def test_a_stranger_computes_the_logits_that_were_written(tmp_path, evaluation_context, kind, family):
    given = evaluated(tmp_path, evaluation_context, kind, family)
    groups, count = questions_of(scores_of_model("mine", ["evaluate"], {"evaluate": given.folder}), "no")
    assert count == 12
    (group,) = groups.values()
    again = clean_room.answer(model(kind, family), tiny.tokenizer(), **group.asked()).numpy()
    assert again.shape == group.logits.shape
    np.testing.assert_allclose(again, group.logits, atol=2e-4)
    assert len(np.unique(group.logits.round(3))) > 10  # the probe works: answers differ


def test_tags_score_what_they_say(tmp_path, evaluation_context):
    metrics, details, rows = read(evaluated(tmp_path, evaluation_context, "tags"))
    assert metrics == pytest.approx(
        Seqeval().compute([each["predicted_tags"] for each in rows], [each["tags"] for each in rows])
    )
    assert all(len(each["predicted_tags"]) == len(each["tokens"]) for each in rows)  # longer than 24 tokens, too
    assert [each["tokens"] for each in rows] == [row(number)["tokens"] for number in range(12)]
    for each in rows:
        best = np.reshape(each["logits"], (-1, 3)).argmax(axis=1)
        assert [TAGS[tag] for tag in best] == each["predicted_tags"]
    assert all(details["intervals"][name][0] <= metrics[name] <= details["intervals"][name][1] for name in metrics)


def test_spans_score_what_they_say(tmp_path, evaluation_context):
    given = evaluated(tmp_path, evaluation_context, "spans", stages=", spans: {max_answer_length: 3, doc_stride: 4}")
    metrics, details, rows = read(given)
    answers = [each["answers"] for each in rows]
    assert metrics == pytest.approx(SquadV2().compute([each["answer"] for each in rows], answers))
    assert details["spans"] == {
        "doc_stride": 4,
        "n_best_size": 20,
        "max_answer_length": 3,
        "null_score_diff_threshold": 0.0,
    }
    assert details["official"]["NoAns_total"] == 3
    assert json.loads((given.folder / "mine.predictions.json").read_text()) == {
        each["id"]: each["answer"] for each in rows
    }
    odds = json.loads((given.folder / "mine.null_odds.json").read_text())
    assert all((each["answer"] == "") == (odds[each["id"]] > 0.0) for each in rows)
    for each in rows:
        assert each["answer"] in each["text_pair"]
        assert each["text_pair"].startswith(each["answer"], each["answer_start"])
    assert max(each["window"] for each in rows) > 0  # some answers lie in later windows


def test_a_threshold_says_no_answer_more_or_less_often(tmp_path, evaluation_context):
    said = []
    for threshold in (-1e6, 1e6):
        _, _, rows = read(
            evaluated(
                tmp_path, evaluation_context, "spans", stages=f", spans: {{null_score_diff_threshold: {threshold}}}"
            )
        )
        said.append([each["answer"] == "" for each in rows])
    assert said == [[True] * 12, [False] * 12]


def test_the_threshold_is_chosen_on_the_rows_that_were_set_aside(tmp_path, evaluation_context):
    """40 training rows, every fourth without an answer: 4 are set aside by the seed, and the best of all thresholds on them is taken."""
    many = [row(number % 9) | {"question": f"which was it {number}"} for number in range(40)]
    (tmp_path / "train.jsonl").write_text(
        "\n".join(
            json.dumps(each | ({"answers": {"text": [], "answer_start": []}} if at % 2 else {}))
            for at, each in enumerate(many)
        )
    )
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row(number)) for number in range(12)))

    def made(arguments, spans=""):
        task = "{kind: qa, version_2_with_negative: true, train: train.jsonl, validation: rows.jsonl}"
        given = loads(
            f"name: t\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n"
            f"  - {{stage: supervised, id: mine, max_length: 24, seed: 3, task: {task}, arguments: {{{arguments}}}}}\n"
            f"  - {{stage: evaluate{spans}}}\n",
            folder=tmp_path,
        )
        ready = evaluation_context(given, "evaluate", {"mine": model("spans")})
        given.stage("evaluate").run(ready)
        return given, read(ready)

    given, (metrics, details, _) = made("eval_strategy: epoch")
    assert details["spans"]["threshold_chosen_on"] == {"split": "train", "set_aside": 4}
    _, (fixed, _, _) = made(
        "eval_strategy: epoch",
        f", spans: {{null_score_diff_threshold: {details['spans']['null_score_diff_threshold']}}}",
    )
    assert fixed == metrics
    assert "threshold_chosen_on" not in made("max_steps: 1")[1][1]["spans"]

    stage = given.stage("mine")
    rows = stage.task.task("mine").rows("train")
    _, aside = set_aside(encode(tiny.tokenizer(), rows, 24), given.seed_of(stage), None)
    found = evaluation.set_aside(
        SimpleNamespace(
            context=SimpleNamespace(recipe=given),
            choice=given.stage("evaluate").choices(given)[0][0],
            task=stage.task.task("mine"),
        )
    )
    assert list(found.index) == list(aside.index)  # the very rows that training left out


def test_answering_nothing_may_be_the_best():
    found = [SimpleNamespace(answer="a", difference=-3.0), SimpleNamespace(answer="b", difference=1.0)]

    class Rows(list):
        labels: Any = [(), ()]

    assert evaluation.best_of(found, Rows([1, 2])) == -4.0
    Rows.labels = [("a",), ()]
    assert evaluation.best_of(found, Rows([1, 2])) == -3.0  # the first is answered, the second is not


def test_options_score_what_they_say(tmp_path, evaluation_context):
    given = evaluated(tmp_path, evaluation_context, "options", stages=", baselines: [majority]")
    metrics, details, rows = read(given)
    right = [each["label"] == each["prediction"] == int(np.argmax(each["logits"])) for each in rows]
    assert metrics == {"accuracy": pytest.approx(sum(right) / 12)}
    assert [len(each["options"]) for each in rows] == [3] * 12
    assert details["baselines"]["majority"]["accuracy"] == pytest.approx(4 / 12)
    assert list(kept_baselines(given.folder)) == ["majority"]


def test_the_most_frequent_tag_of_each_word_is_a_baseline(tmp_path, evaluation_context):
    given = evaluated(tmp_path, evaluation_context, "tags", stages=", baselines: [majority_by_word]")
    _, details, _ = read(given)
    assert 0 < details["baselines"]["majority_by_word"]["accuracy"] <= 1
    assert list(kept_baselines(given.folder)) == ["majority_by_word"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_write_what_one_does(tmp_path, evaluation_context, kind):
    alone = evaluated(tmp_path, evaluation_context, kind)
    expected = {file.name: file.read_bytes() for file in alone.folder.iterdir() if file.name != "details.json"}
    barrier, values, failures = threading.Barrier(2), [None, None], []
    models = [model(kind), model(kind)]  # not in the threads, which share one random generator

    def rank(number: int) -> None:
        def gather(value):
            values[number] = value
            barrier.wait(60)
            every = list(values)
            barrier.wait(60)
            return every

        try:
            evaluated(
                tmp_path,
                evaluation_context,
                kind,
                opened=models[number],
                world=World(number, 2),
                gather=gather,
                barrier=lambda: barrier.wait(60),
            )
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert {file.name: file.read_bytes() for file in alone.folder.iterdir() if file.name != "details.json"} == expected


@pytest.mark.parametrize(
    ("kind", "sentence"), [("tags", "token classification head"), ("spans", "question answering head")]
)
def test_a_model_with_another_head_is_refused(tmp_path, evaluation_context, kind, sentence):
    made = recipe(tmp_path, kind)
    other = tiny.build("bert", Head("sequence_classification", TAGS))
    given = evaluation_context(made, "evaluate", {"mine": other}, open_tokenizer=lambda stage_id=None: tiny.tokenizer())
    with pytest.raises(ModelError, match=sentence):
        made.stage("evaluate").run(given)


def test_settings_of_spans_are_refused_where_none_are_looked_for(tmp_path):
    with pytest.raises(RecipeError, match="spans: is for benchmarks whose answers are spans of a text"):
        recipe(tmp_path, "tags", stages=", spans: {n_best_size: 3}")


def test_windows_that_cannot_move_on_are_refused_before_a_run(tmp_path):
    with pytest.raises(RecipeError, match=r"spans.doc_stride: is 20, must be at most 13 with windows of 24 tokens"):
        recipe(tmp_path, "spans", stages=", spans: {doc_stride: 20}")


def test_predictions_are_read_back_by_kind(tmp_path, evaluation_context):
    for kind, names in (
        ("tags", {"tokens", "tags", "predicted_tags"}),
        ("spans", {"id", "text", "text_pair", "answers", "answer"}),
    ):
        given = evaluated(tmp_path, evaluation_context, kind)
        found = read_predictions(given.folder / "predictions.parquet")["mine", "validation"]
        assert set(found) == {"index", *names}
        assert {name: found[name] for name in names} == {
            name: [each[name] for each in read(given)[2]] for name in names
        }
    found = read_predictions(evaluated(tmp_path, evaluation_context, "options").folder / "predictions.parquet")[
        "mine", "validation"
    ]
    assert found["logits"].shape == (12, 3)
    assert found["prediction"].tolist() == found["logits"].argmax(axis=1).tolist()
