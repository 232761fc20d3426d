"""Windows hold the question and a part of the context each, and know where the answer stands in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import ModelError
from pipelines.core.registry import TOKENIZERS
from pipelines.tasks.extractive_qa.task import QuestionRows, question_room, stride_of, widest_stride
from pipelines.tasks.extractive_qa.training import collate_questions, encode_questions, questions_in
from tests import tiny

CONTEXT = " ".join(tiny.WORDS[(7 * number) % len(tiny.WORDS)] for number in range(60)) + " zebra crossing here."
QUESTION = "was the cat in it"


def rows(*answers: str | None, context: str = CONTEXT, question: str = QUESTION) -> QuestionRows:
    texts = [() if answer is None else (answer,) for answer in answers]
    starts = [() if answer is None else (context.index(answer),) for answer in answers]
    count = len(answers)
    return QuestionRows(
        [question] * count, [context] * count, texts, range(count), starts, [str(row) for row in range(count)]
    )


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "byte_bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS.load(request.param)().train([*tiny.TEXTS, "zebra crossing here."] * 3, 400)


def text_between(windows: Any, window: int, context: str) -> str:
    """The characters that the labelled tokens of a window stand for."""
    first, last = windows.labels[window]
    by_place = {int(place): (int(begin), int(end)) for place, begin, end in windows.contexts[window]}
    return context[by_place[int(first)][0] : by_place[int(last)][1]].strip()


@pytest.mark.parametrize("answer", ["zebra", "zebra crossing", "crossing here."])
def test_the_labelled_tokens_are_the_answer_in_every_window_that_holds_it(tokenizer, answer):
    windows = encode_questions(tokenizer, rows(answer), 40, 8, keep_contexts=True)
    assert len(windows) > 2
    begin, end = CONTEXT.index(answer), CONTEXT.index(answer) + len(answer)
    held = 0
    for number, context in enumerate(windows.contexts or ()):
        whole = context[0, 1] <= begin and end <= context[-1, 2]
        held += whole
        if whole:
            assert text_between(windows, number, CONTEXT) == answer
        else:
            assert windows.labels[number].tolist() == [windows.blanks[number]] * 2
    assert held > 0
    assert (windows.truncated, windows.cut, windows.unanswered) == (1, 0, 0)


def test_the_windows_of_a_context_cover_it_and_share_what_they_are_told_to(tokenizer):
    windows = encode_questions(tokenizer, rows("zebra"), 40, 8, keep_contexts=True)
    whole = tokenizer(CONTEXT, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    seen: list[tuple[int, int]] = []
    for number, context in enumerate(windows.contexts or ()):
        spans = [(int(begin), int(end)) for _, begin, end in context]
        seen += spans if number == 0 else spans[8:]
        if number:
            assert spans[:8] == seen[-len(spans) : len(seen) - len(spans) + 8]
    assert seen == [tuple(span) for span in whole]
    assert windows.lengths.max() <= 40


def test_a_question_without_an_answer_points_to_the_blank():
    windows = encode_questions(tiny.tokenizer(), rows(None, context="the cat was in it"), 64, 8)
    assert windows.blanks.tolist() == [0]
    assert windows.labels.tolist() == [[0, 0]]
    assert windows.unanswered == 0


def test_what_only_looks_back_has_its_blank_at_the_end():
    windows = encode_questions(tiny.tokenizer(), rows("cat", context="the cat was in it"), 64, 8, last_blank=True)
    assert windows.blanks[0] == windows.lengths[0] - 1


def test_a_question_that_is_too_long_loses_its_end():
    long = rows("zebra", question=" ".join(tiny.WORDS * 3))
    windows = encode_questions(tiny.tokenizer(), long, 40, 8)
    assert windows.cut == 1
    asked = questions_in(tiny.tokenizer(), long.texts, 40)[0]
    assert len(tiny.tokenizer()(asked, add_special_tokens=False)["input_ids"]) == question_room(40) == 10
    assert long.texts[0].startswith(asked)


def test_an_answer_that_no_window_holds_is_counted():
    answer = CONTEXT[: CONTEXT.index("zebra")].strip()
    assert encode_questions(tiny.tokenizer(), rows(answer), 40, 8).unanswered == 1


def test_labels_move_with_padding_on_the_left():
    import copy

    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.padding_side = "left"
    windows = encode_questions(tokenizer, rows("zebra"), 40, 8)
    short, long = int(windows.lengths.argmin()), int(windows.lengths.argmax())
    batch = collate_questions(tokenizer, [windows[short], windows[long]])
    moved = windows.labels[short] + int(windows.lengths[long] - windows.lengths[short])
    assert batch["labels"].tolist() == [moved.tolist(), windows.labels[long].tolist()]


def test_windows_of_one_row_are_known_as_such_and_can_be_chosen():
    windows = encode_questions(tiny.tokenizer(), rows("zebra", "cat"), 40, 8, keep_contexts=True)
    assert sorted(set(windows.index)) == [0, 1]
    chosen = windows.select(np.flatnonzero(windows.rows == 1))
    assert set(chosen.index) == {1}
    assert chosen[0]["input_ids"] == windows[int(np.flatnonzero(windows.rows == 1)[0])]["input_ids"]


def test_a_tokenizer_without_characters_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match="use a fast tokenizer"):
        encode_questions(Slow(), rows("zebra"), 40, 8)


@pytest.mark.parametrize("length", [16, 17, 40, 128, 384, 512])
def test_windows_always_move_on(length):
    """The longest question, the most special tokens and the widest stride leave at least one new token a window."""
    assert length - question_room(length) - 4 - widest_stride(length) >= 1
    assert 0 <= stride_of(length, None) <= widest_stride(length)
    assert stride_of(384, None) == 128
