import json

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS
from pipelines.evaluation.few_shot.prompts import PromptTemplate
from pipelines.evaluation.few_shot.questions import questions_of
from pipelines.tasks.classification.task import Classification
from pipelines.tasks.multiple_choice.task import MultipleChoice
from pipelines.tasks.regression.task import Regression
from pipelines.tasks.token_classification.task import TokenClassification

ASK = PromptTemplate(text="{text}")


@pytest.fixture
def choice(tmp_path):
    rows = [
        {"article": "A text.", "question": "It is _ .", "options": ["red", "blue"], "answer": letter} for letter in "AB"
    ]
    file = tmp_path / "mc.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    block = MultipleChoice(kind="multiple_choice", context="article", blank="_", train=str(file), validation=str(file))
    return block.task("own")


def test_options_stand_apart_from_their_question(choice):
    found = questions_of(choice, PromptTemplate(text="{article} {question}"), "validation")
    assert found.each[1].fields == {"article": "A text.", "question": "It is _ .", "options": "A. red\nB. blue"}
    assert [(each.options, each.answer, each.group) for each in found.each] == [
        (("red", "blue"), "red", 0),
        (("red", "blue"), "blue", 1),
    ]
    assert list(found.rows.labels) == [0, 1]


def test_letters_answer_where_the_prompt_says_so(choice):
    found = questions_of(choice, PromptTemplate(text="{question}\n{options}", answers="letters"), "validation")
    assert [(each.options, each.answer) for each in found.each] == [(("A", "B"), "A"), (("A", "B"), "B")]
    assert found.each[0].without_content("N/A").fields == {
        "article": "N/A",
        "question": "N/A",
        "options": "A. red\nB. blue",
    }


def test_classes_are_answered_with_the_words_of_the_prompt_or_their_names(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("text,label\ngood,yes\nbad,no\n")
    task = Classification(
        kind="classification", columns=("text",), label="label", train=str(file), validation=str(file)
    ).task("own")
    assert [each.answer for each in questions_of(task, ASK, "validation").each] == ["yes", "no"]
    assert [
        each.answer
        for each in questions_of(task, PromptTemplate(text="{text}", answers=("bad", "fine")), "validation").each
    ] == ["fine", "bad"]
    with pytest.raises(DataError, match="has 3 answers, but its classes are no, yes"):
        questions_of(task, PromptTemplate(text="{text}", answers=("a", "b", "c")), "validation")


def test_numbers_are_answered_with_the_nearest_that_may_be_said(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("text,stars\none,0.4\ntwo,3.9\n")
    task = Regression(kind="regression", columns=("text",), label="stars", train=str(file), validation=str(file)).task(
        "own"
    )
    found = questions_of(task, PromptTemplate(text="{text}", answers=("0", "2", "4")), "validation")
    assert [each.answer for each in found.each] == ["0", "4"]
    assert list(found.rows.labels) == [0.4, 3.9]


def test_tags_of_words_cannot_be_asked_for(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n")
    task = TokenClassification(kind="token_classification", train=str(file), validation=str(file)).task("own")
    with pytest.raises(DataError, match="cannot be asked for in a prompt"):
        questions_of(task, ASK, "validation")


def test_real_questions_without_an_answer_say_so(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    found = questions_of(TASKS.load("squad_v2"), PromptTemplate(text="{question}"), "validation", 40)
    assert {each.answer for each in found.each if not found.rows.labels[found.each.index(each)]} == {"unanswerable"}
    race = questions_of(TASKS.load("race/middle"), PromptTemplate(text="{question}"), "validation", 3)
    assert set(race.each[0].fields) == {"article", "question", "options"}
    assert all(each.answer in each.options for each in race.each)
