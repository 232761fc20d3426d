"""The worst mistakes of a split."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.analysis import MOST_MISTAKES, mistakes
from pipelines.evaluation.report import write_mistakes
from pipelines.tasks.base import resolve
from pipelines.tasks.extractive_qa.evaluation import Span, SpanAnswer, SpanPredictions
from pipelines.tasks.extractive_qa.task import QuestionRows
from pipelines.tasks.multiple_choice.evaluation import OptionPredictions
from pipelines.tasks.multiple_choice.task import ChoiceRows
from pipelines.tasks.predictions import ClassPredictions, TextPredictions
from pipelines.tasks.scored_examples import ScoredExamples
from pipelines.tasks.text_to_text import AsText
from pipelines.tasks.token_classification.evaluation import TagPredictions
from pipelines.tasks.token_classification.task import TokenTask, WordRows


def listed(predictions, task):
    return mistakes(predictions, predictions.scored_examples(task))


def test_of_classes_the_surest_wrong_answer_is_the_worst():
    rows = Rows(["a", "b", "c"], ["x", "y", "z"], [0, 1, 0], [7, 8, 9])
    logits = np.log(np.array([[0.3, 0.7], [0.1, 0.9], [0.05, 0.95]], dtype=np.float32))
    found = listed(ClassPredictions("glue/mrpc", "validation", "", rows, logits), resolve("glue/mrpc", "x"))
    assert [(each["index"], each["text"], each["text_pair"], each["gold"], each["said"]) for each in found] == [
        (9, "c", "z", "not_equivalent", "equivalent"),
        (7, "a", "x", "not_equivalent", "equivalent"),
    ]
    assert [each["confidence"] for each in found] == pytest.approx([0.95, 0.7])


def test_of_numbers_the_farthest_is_the_worst():
    rows = Rows(["a", "b"], ["x", "y"], [1.0, 5.0], [0, 1])
    found = listed(
        ClassPredictions("glue/stsb", "validation", "", rows, np.array([[1.5], [2.0]], dtype=np.float32)),
        resolve("glue/stsb", "x"),
    )
    assert [(each["index"], each["badness"], each["confidence"]) for each in found] == [(1, 3.0, None), (0, 0.5, None)]


def test_options_are_told_by_letter_and_text():
    rows = ChoiceRows(["story"], None, [1], [0], [["it rained", "it snowed"]])
    [found] = listed(
        OptionPredictions("race/middle", "validation", "", rows, np.array([[2.0, 0.0]], dtype=np.float32)),
        resolve("race/middle", "x"),
    )
    assert (found["gold"], found["said"]) == ("B: it snowed", "A: it rained")
    assert found["confidence"] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)


def test_of_spans_one_that_shares_no_word_is_worse_than_one_that_is_too_long():
    def span(text, score):
        return Span(text, score, 0.0, 0, 0, 0, 0)

    rows = QuestionRows(
        ["q1", "q2", "q3"], ["c", "c", "c"], [["the cat"], ["a dog"], ["a bird"]], [0, 1, 2], [[0]] * 3, ["1", "2", "3"]
    )
    offers = [
        SpanAnswer([span("cat sat", 1.0), span("x", 0.0)], -9),
        SpanAnswer([span("fish", 2.0), span("y", 2.0)], -9),
        SpanAnswer([span("bird", 5.0)], -9),
    ]
    predictions = SpanPredictions("squad", "validation", "", rows, offers, rows.texts, False, 0.0)
    found = listed(predictions, resolve("squad", "squad"))
    assert [(each["said"], each["gold"]) for each in found] == [("fish", "a dog"), ("cat sat", "the cat")]
    assert [each["confidence"] for each in found] == pytest.approx([0.5, np.e / (np.e + 1)], abs=1e-6)


def test_of_tags_only_the_wrong_words_are_told_and_every_word_is_a_decision():
    rows = WordRows(["Ada sang", "no one"], None, [[1, 0], [0, 0]], [0, 1], [["Ada", "sang"], ["no", "one"]])
    logits = [
        np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32),
        np.array([[1.0, 0.0], [np.nan, np.nan]], dtype=np.float32),
    ]
    predictions = TagPredictions("names", "validation", "", rows, logits, ("O", "B-PER"))
    task = TokenTask("names", "token_classification", ("tokens",), "tags", ("seqeval",), {}, ("O", "B-PER"))
    outcomes = predictions.scored_examples(task)
    assert outcomes.wrong.tolist() == [True, False]
    [found] = mistakes(predictions, outcomes)
    assert (found["gold"], found["said"]) == ("Ada: B-PER", "Ada: O")
    assert len(outcomes.labels) == 3  # a word that the model did not read is no decision


def test_of_texts_the_one_that_scores_least_is_the_worst():
    rows = Rows(["eins", "zwei", "drei"], None, ["the cat sat down", "a dog ran home", "birds sing"], [0, 1, 2])
    texts = np.array(["the cat sat", "nothing of it", "birds sing"], dtype=object)
    found = listed(TextPredictions("multi30k/en-de", "test", "", rows, texts), resolve("multi30k/en-de", "x"))
    assert [each["index"] for each in found] == [1, 0]
    as_text = TextPredictions(
        "glue/sst2",
        "validation",
        "",
        Rows(["s"] * 2, None, ["positive", "negative"], [0, 1]),
        np.array(["negative", "negative"], dtype=object),
    )
    [wrong] = listed(as_text, AsText(resolve("glue/sst2", "glue/sst2")))
    assert (wrong["gold"], wrong["said"]) == ("positive", "negative")


def test_the_worst_come_first_and_right_answers_not_at_all():
    count = MOST_MISTAKES + 60
    rows = Rows([f"text {at}" for at in range(count)], None, [0] * count, list(range(count)))
    predictions = ClassPredictions("glue/sst2", "validation", "", rows, np.zeros((count, 2), dtype=np.float32))
    badness = np.arange(count) % 50 / 50.0
    found = mistakes(
        predictions, ScoredExamples(["a"] * count, ["b"] * count, np.arange(count) != 49, badness, "something")
    )
    assert len(found) == MOST_MISTAKES
    assert [each["badness"] for each in found] == sorted((each["badness"] for each in found), reverse=True)
    assert [each["index"] for each in found[:2]] == [99, 149]  # 49 would be the first, but it is right
    assert found[0]["text_pair"] is None
    assert found[0]["confidence"] is None


def test_lines_are_json_in_any_language(tmp_path):
    write_mistakes(tmp_path / "mistakes.jsonl", [{"text": "schön\n世界"}, {"text": "b"}])
    lines = (tmp_path / "mistakes.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["schön\n世界", "b"]
    assert "世界" in lines[0]
