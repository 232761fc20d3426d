from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Rows
from pipelines.evaluation.few_shot.questions import Demonstrations, FewShotQuestion, FewShotQuestions


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
    made = examples(count=4)
    for row in range(40):
        assert 2 not in made.draw(3, 0, row, question(2))
    with pytest.raises(DataError, match="4 training rows, too few to show 4 examples"):
        made.draw(4, 0, 0, question(2))


def test_every_row_is_drawn_as_often_as_every_other():
    counts = Counter(examples(count=10).draw(1, 0, row, NEW)[0] for row in range(5000))
    assert min(counts.values()) > 400  # 500 expected, standard deviation 21
    assert max(counts.values()) < 600
