"""Evaluating preferences: scores of two answers, and the difference from baselines."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipelines.core.errors import DataError, ModelError, RecipeError
from pipelines.core.interfaces import Head, Rows
from pipelines.core.load import loads
from pipelines.data.reward_inputs import RewardInputFormat, RewardSettings
from pipelines.evaluation.baselines import NotDefined, longer, shorter
from pipelines.tasks.preference.evaluation import PairPredictions, difference, score_pairs
from tests import tiny
from tests.kept_baselines import kept_baselines
from tests.pipelines.tasks.preference.test_pairs import rows

ROWS = [
    {"prompt": tiny.TEXTS[at], "chosen": f" {tiny.TEXTS[at + 8]}", "rejected": f" {tiny.TEXTS[at + 12]} it"}
    for at in range(8)
]
HEAD = Head("reward")


def recipe(folder: Path, stage: str = "", rows: list[dict[str, Any]] = ROWS, learnt: str = "") -> Any:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return loads(
        "name: t\nmodel: {architecture: {preset: gpt-tiny}}\nstages:\n"
        f"  - {{stage: reward, id: mine, max_length: 40{learnt}, task: {{kind: preference, train: rows.jsonl, validation: rows.jsonl}}}}\n"
        f"  - {{stage: evaluate, per_device_eval_batch_size: 3{stage}}}\n",
        folder=folder,
    )


def asked(
    made: Any, evaluation_context: Callable[..., Any], model: Any, folders: Any = None
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    given = evaluation_context(
        made, "evaluate", {"mine": model}, open_tokenizer=lambda stage_id=None: tokenizer, stage_folders=folders or {}
    )
    made.stage("evaluate").run(given)
    metrics, details = (
        json.loads((given.folder / f"{name}.json").read_text())["mine"] for name in ("metrics", "details")
    )
    return metrics, details, pq.read_table(given.folder / "predictions.parquet").to_pylist()


@pytest.mark.parametrize(
    ("model_type", "shape", "reads"),
    [("finery", {"family": "decoder"}, "text"), ("gpt2", {}, "text"), ("bert", {}, "pair")],
)
def test_scores_are_those_of_each_answer_alone(
    tmp_path: Path, evaluation_context: Callable[..., Any], model_type: str, shape: dict[str, Any], reads: str
) -> None:
    model = tiny.build(model_type, HEAD, **shape).eval()
    metrics, details, rows = asked(recipe(tmp_path, ", baselines: [longer, shorter]"), evaluation_context, model)
    tokenizer, right = tiny.tokenizer(), 0.0
    for row in rows:
        for side in ("chosen", "rejected"):
            both = (
                tokenizer(row["text"], row[side])["input_ids"]
                if reads == "pair"
                else [
                    *tokenizer(row["text"], add_special_tokens=False)["input_ids"],
                    *tokenizer(row[side], add_special_tokens=False)["input_ids"],
                    tokenizer.sep_token_id,
                ]
            )
            segments = {
                "token_type_ids": torch.tensor(
                    [tokenizer(row["text"], row[side], return_token_type_ids=True)["token_type_ids"]]
                )
            }
            more = segments if "token_type_ids" in tokenizer.model_input_names and reads == "pair" else {}
            with torch.no_grad():
                alone = model(input_ids=torch.tensor([both]), **more).logits.item()
            assert row[f"score_{side}"] == pytest.approx(alone, abs=1e-4)
        right += row["score_chosen"] > row["score_rejected"]
    assert metrics == {"accuracy": pytest.approx(right / len(rows))}
    assert details["reads"] == reads
    assert set(details["baselines"]) == set(details["paired"]["validation"]) == {"longer", "shorter"}
    (left,) = tmp_path.rglob("details.json")
    assert set(kept_baselines(left.parent)) == {"longer", "shorter"}
    gap = details["paired"]["validation"]["longer"]
    assert gap["difference"] == pytest.approx(metrics["accuracy"] - details["baselines"]["longer"]["accuracy"])
    assert gap["interval"][0] <= gap["difference"] <= gap["interval"][1]
    assert sum(details["histogram"]["validation"]["rejected"]) == len(rows)
    assert details["calibration"]["validation"]["accuracy"] == pytest.approx(metrics["accuracy"])


def test_it_reads_as_it_was_trained(tmp_path: Path, evaluation_context: Callable[..., Any]) -> None:
    model = tiny.build("finery", HEAD, family="decoder").eval()
    folder = tmp_path / "stage" / "model"
    folder.mkdir(parents=True)
    RewardSettings(RewardInputFormat("text", 9, 3), 0.0, 1.0).write(folder, {})
    made = recipe(tmp_path)
    short = asked(made, evaluation_context, model, {"mine": folder.parent})
    assert short[1]["max_length"] == 9
    assert [row["score_chosen"] for row in short[2]] != [
        row["score_chosen"] for row in asked(made, evaluation_context, model)[2]
    ]


def test_a_model_without_a_stage_is_read_as_the_folder_that_it_was_opened_from_says(
    tmp_path: Path, evaluation_context: Callable[..., Any]
) -> None:
    (tmp_path / "model").mkdir()
    RewardSettings(RewardInputFormat("text", 9, 3)).write(tmp_path / "model", {})
    model = tiny.build("finery", HEAD, family="decoder").eval()
    model.finery_folder = str(tmp_path / "model")
    _, details, _ = asked(recipe(tmp_path), evaluation_context, model)
    assert details["reading"] == {"reads": "text", "max_length": 9, "max_prompt_length": 3, "templated": False}


def test_bad_rows_are_skipped_where_the_stage_that_trained_skipped_them(
    tmp_path: Path, evaluation_context: Callable[..., Any]
) -> None:
    bad = {"prompt": "x", "chosen": "same", "rejected": "same"}
    model = tiny.build("finery", HEAD, family="decoder").eval()
    _, details, rows = asked(
        recipe(tmp_path, rows=[bad, *ROWS], learnt=", skip_bad_rows: true"), evaluation_context, model
    )
    assert len(rows) == len(ROWS)
    assert details["skipped_rows"] == {"validation": {"1": "has the same text as chosen and as rejected"}}


def test_a_model_without_a_single_number_is_refused(tmp_path: Path, evaluation_context: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="where a reward model gives one number each"):
        asked(recipe(tmp_path), evaluation_context, tiny.build("gpt2", tiny.TWO).eval())


def test_a_model_that_was_trained_on_something_else_is_refused_with_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be scored with the model of 'two'"):
        loads(
            "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: supervised, id: two, task: glue/rte}\n"
            "  - {stage: evaluate, from: two, benchmarks: [alpaca_eval_preferences]}\n"
        )


class Task:
    name = "pairs"
    kind = "preference"


PAIRS = rows(
    ("the cat", " runs", " sleeps on it"), ("a dog", " is good and fine", " is bad"), ("a film", " good", " dull")
)
SCORES = np.array([[1.0, 0.0], [0.5, 2.0], [3.0, 3.0]], dtype=np.float32)


def said(scores=SCORES):
    return PairPredictions("pairs", "test", "", PAIRS, scores)


def test_the_score_is_the_share_in_order_and_a_tie_counts_half():
    assert score_pairs(Task())(SCORES, said().labels) == {"accuracy": pytest.approx(0.5)}
    assert score_pairs(Task())(SCORES, None) == {"accuracy": pytest.approx(0.5)}  # the labels are not looked at


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(ModelError, match="NaN or infinity for 1 of 3 pairs"):
        score_pairs(Task())(np.where(SCORES == 0.5, np.nan, SCORES), None)
    with pytest.raises(ModelError, match="two scores a pair"):
        score_pairs(Task())(SCORES[:, :1], None)
    with pytest.raises(DataError, match="has no pair to score"):
        score_pairs(Task())(SCORES[:0], None)


def test_the_table_holds_both_answers_with_their_scores():
    table = said().table().to_pylist()
    assert table[1] | {"logits": None} == {
        "benchmark": "pairs",
        "split": "test",
        "index": 11,
        "text": "a dog",
        "chosen": " is good and fine",
        "rejected": " is bad",
        "score_chosen": 0.5,
        "score_rejected": 2.0,
        "label": 0,
        "prediction": 1,
        "logits": None,
    }


def test_people_read_what_the_table_holds():
    columns = said().columns(Task())
    assert columns["prediction"] == [0, 1, 0]
    assert columns["score_chosen"] == [1.0, 0.5, 3.0]
    assert columns["index"] == [10, 11, 12]
    assert "benchmark" not in columns


def test_mistakes_are_read_with_what_was_preferred():
    found = said().scored_examples(Task())
    assert found.wrong.tolist() == [False, True, False]
    assert found.gold[1] == " is good and fine"
    assert found.answers[1] == " is bad"
    assert found.confidence[1] == pytest.approx(1 / (1 + np.exp(-1.5)))


def test_equal_scores_everywhere_are_a_doubt():
    assert "the same score" in said(np.ones_like(SCORES)).doubt(Task())
    assert said().doubt(Task()) is None


def test_guessers_look_at_nothing_but_the_length():
    assert score_pairs(Task())(longer(None, PAIRS, 1), None) == {"accuracy": pytest.approx((0 + 1 + 0.5) / 3)}
    assert score_pairs(Task())(shorter(None, PAIRS, 1), None) == {"accuracy": pytest.approx((1 + 0 + 0.5) / 3)}
    with pytest.raises(NotDefined, match="no pairs of answers"):
        longer(None, Rows(["a"], None, [0], [0]), 2)


def test_the_difference_to_a_guesser_is_paired():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(400, 2)) + [0.5, 0]
    worse = np.where(generator.random((400, 1)) < 0.1, scores[:, ::-1], scores)  # one pair in ten turned round
    found = difference(scores, worse, 7)
    gaps = (scores[:, 0] > scores[:, 1]).astype(float) - (worse[:, 0] > worse[:, 1])
    assert found["difference"] == pytest.approx(gaps.mean())
    low, high = found["interval"]
    assert low < found["difference"] < high
    assert high - low == pytest.approx(2 * 1.96 * gaps.std() / 20, rel=0.15)
    assert difference(scores, scores, 7) == {"difference": 0.0, "interval": [0.0, 0.0]}
    assert difference(scores, worse, 7) == found
