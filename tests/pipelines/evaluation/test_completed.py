from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS
from pipelines.metrics.perplexity import Tally
from pipelines.tasks.causal.evaluation import CompletionPredictions, graded, score_completions
from pipelines.tasks.causal.task import Dialogues
from pipelines.tasks.predictions import write_predictions

ALPACA = TASKS.load("alpaca")
GSM8K = TASKS.load("gsm8k")

TALLY = Tally(
    np.array([0, 1]), {"bits": np.array([6.0, 2.0]), "tokens": np.array([3.0, 1.0]), "bytes": np.array([4.0, 12.0])}
)


def said(texts, labels=("a cat", "a dog"), tally=TALLY):
    rows = Dialogues(["one", "two"], None, list(labels), [4, 9])
    return CompletionPredictions(
        "b", "test", "", rows, None if texts is None else np.asarray(texts, dtype=object), tally
    )


def test_texts_and_likelihood_are_scored_together():
    found = said(["a cat", "bird"])
    scores = score_completions(ALPACA)(found.said, found.labels)
    # 8 bits over 4 tokens and over 16 bytes
    assert scores == {"rouge1": 50.0, "rouge2": 50.0, "rougeL": 50.0, "perplexity": 4.0, "bits_per_byte": 0.5}
    around = found.around(ALPACA, score_completions(ALPACA), 0)
    assert set(around) == set(scores) == set(ALPACA.scores)
    assert all(low <= scores[name] <= high for name, (low, high) in around.items())


def test_without_prompts_there_is_a_likelihood_only():
    found = said(None)
    assert set(score_completions(ALPACA)(found.said, found.labels)) == {"perplexity", "bits_per_byte"}
    assert set(found.around(ALPACA, None, 0)) == {"perplexity", "bits_per_byte"}
    assert found.doubt(ALPACA) is None
    assert found.table().num_rows == 0


def test_guessers_write_texts_alone():
    assert (
        score_completions(ALPACA)(np.asarray(["a cat", "a dog"], dtype=object), ["a cat", "a dog"])["rougeL"] == 100.0
    )


def test_gsm8k_compares_the_number_behind_four_hashes():
    # the rule of the authors' dataset.py: the first match of the pattern, thousands separators left out
    texts = ["She has 9 left.\n#### 1,250", "#### 12.", "18", "#### -3\n#### 4"]
    assert graded(GSM8K, texts).tolist() == ["1250", "12", "", "-3"]
    found = said(["so #### 1250", "it is 7"], ("#### 1,250", "#### 7"))
    assert score_completions(GSM8K)(found.said, found.labels)["exact_match"] == 50.0


def test_a_pattern_compares_what_its_group_holds():
    task = replace(GSM8K, answer_pattern=r"answer is (\w+)")
    assert graded(task, ["The answer is yes.", "no"]).tolist() == ["yes", ""]


def test_the_predictions_of_each_row_carry_its_likelihood(tmp_path):
    only = Tally(np.array([1]), {name: each[1:] for name, each in TALLY.columns.items()})
    write_predictions(tmp_path / "p.parquet", [said(["x", "y"], tally=only)])
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert (table["source"], table["reference"], table["hypothesis"], table["index"]) == (
        ["one", "two"],
        ["a cat", "a dog"],
        ["x", "y"],
        [4, 9],
    )
    assert table["completion_bits"][1] == 2.0
    assert np.isnan(table["completion_bits"][0])


def test_one_text_for_all_rows_is_a_doubt():
    assert "writes 'x' for every one of the 2 examples" in str(said(["x", "x"]).doubt(ALPACA))


def test_the_numbers_of_texts_must_agree():
    with pytest.raises(DataError, match="written texts but"):
        score_completions(ALPACA)(np.asarray(["a"], dtype=object), ["a", "b"])
