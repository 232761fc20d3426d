"""From rows to prompts: questions, drawn examples, and what fits into the model."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Rows
from pipelines.core.registry import TASKS
from pipelines.evaluation.few_shot.likelihood import Encoded
from pipelines.evaluation.few_shot.prompts import PromptTemplate
from pipelines.evaluation.few_shot.questions import (
    Demonstrations,
    FewShotQuestion,
    FewShotQuestions,
    asked,
    counts,
    questions_of,
)
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


def question(at, group=0):
    return FewShotQuestion({"text": f"row {at}"}, ("a", "b", "c"), "abc"[group], group)


def train(count=30):
    each = [question(at, at % 3 if at < 12 else 0) for at in range(count)]
    return FewShotQuestions(
        Rows([one.fields["text"] for one in each], None, [one.group for one in each], range(count)), each
    )


def examples(per_question=True, stratified=False, seed=1, count=30):
    return Demonstrations("own", train(count), seed, per_question, stratified)


NEW = FewShotQuestion({"text": "new"}, ("a", "b", "c"), "a", 0)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 5), st.integers(0, 50), st.booleans(), st.booleans())
def test_the_first_examples_do_not_depend_on_how_many_are_asked_for(few, more, draw, row, each, stratified):
    made = examples(each, stratified)
    one, other = sorted((few, more))
    drawn = made.draw(other, draw, row, NEW)
    assert made.draw(one, draw, row, NEW) == drawn[:one]
    assert len(set(drawn)) == other
    assert all(0 <= place < 30 for place in drawn)


def test_each_question_has_examples_of_its_own_or_all_have_the_same():
    assert len({tuple(examples().draw(4, 0, row, NEW)) for row in range(20)}) == 20
    assert len({tuple(examples(per_question=False).draw(4, 0, row, NEW)) for row in range(20)}) == 1
    assert examples(per_question=False).draw(4, 0, 0, NEW) != examples(per_question=False).draw(4, 1, 0, NEW)
    assert examples(seed=1).draw(4, 0, 0, NEW) != examples(seed=2).draw(4, 0, 0, NEW)


def test_classes_are_held_equally_as_far_as_the_number_allows():
    made = train()
    for row in range(20):
        drawn = Counter(made.each[place].group for place in examples(stratified=True).draw(7, 0, row, NEW))
        assert sorted(drawn.values()) == [2, 2, 3]


def test_a_training_row_that_asks_the_question_itself_is_passed_over():
    made, shared = examples(count=4), examples(count=4, per_question=False)
    for row in range(40):
        assert 2 not in made.draw(3, 0, row, question(2))
        assert 2 not in shared.draw(3, row, 0, question(2))
    with pytest.raises(DataError, match="4 training rows, too few to show 4 examples"):
        made.draw(4, 0, 0, question(2))


def test_every_row_is_drawn_as_often_as_every_other():
    counts = Counter(examples(count=10).draw(1, 0, row, NEW)[0] for row in range(5000))
    assert min(counts.values()) > 400  # 500 expected, standard deviation 21
    assert max(counts.values()) < 600


PROMPT = PromptTemplate(text="Q: {text}\nA:", answers=("no", "yes"), description="Answer.\n\n")


class Words:
    """A reader of so many words."""

    def __init__(self, limit):
        self.limit = limit

    def encode(self, each):
        return Encoded(self.context(each.context), self.context(each.answer))

    def context(self, text):
        return tuple(range(len(text.split())))

    def excess(self, encoded):
        return max(0, len(encoded.context) + len(encoded.answer) - self.limit)


def two_options(text, answer="yes"):
    return FewShotQuestion({"text": text}, ("no", "yes"), answer, 0)


SHOWN = [two_options("one", "no"), two_options("two"), two_options("three", "no")]


def test_a_prompt_is_description_examples_and_question_joined_by_separators():
    found = asked(Words(100), PROMPT, two_options("new"), SHOWN[:2])
    assert found.text() == ("Answer.\n\nQ: one\nA: no\n\nQ: two\nA: yes\n\nQ: new\nA: ", "")
    assert [each.answer for each in found.continuations()] == ["no", "yes"]
    assert found.continuations()[0].context == found.text()[0]


def test_a_question_without_content_stands_in_the_place_of_the_question():
    found = asked(Words(100), PROMPT, two_options("new"), SHOWN[:1])
    empty = found.question.without_content("N/A")
    assert found.text(empty)[0] == "Answer.\n\nQ: one\nA: no\n\nQ: N/A\nA: "


def test_the_first_examples_are_dropped_where_there_is_no_room():
    # the description has 1 word, an example 4, the two_options with its answer 4
    for limit, dropped, cut in ((17, 0, False), (16, 1, False), (12, 2, False), (5, 3, False), (4, 3, True)):
        found = asked(Words(limit), PROMPT, two_options("new"), SHOWN)
        assert (found.dropped, found.cut, list(found.examples)) == (dropped, cut, SHOWN[dropped:])


def test_room_is_kept_for_an_answer_that_is_written():
    assert asked(Words(17), PROMPT, two_options("new"), SHOWN, room=1).dropped == 0
    assert asked(Words(17), PROMPT, two_options("new"), SHOWN, room=2).dropped == 1


def test_what_found_no_room_is_counted():
    prompts = [asked(Words(limit), PROMPT, two_options("new"), SHOWN) for limit in (17, 12, 4)]
    assert counts(prompts) == {"examples_dropped": 5, "questions_with_fewer_examples": 2, "questions_cut": 1}
