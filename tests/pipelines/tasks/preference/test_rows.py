"""Every format of preferences becomes the same rows, and bad rows are refused or counted with their reasons."""

from __future__ import annotations

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.chat_formats import Unreadable
from pipelines.tasks.preference import rows as formats
from pipelines.tasks.preference.rows import (
    ComparedAnswers,
    LabelledAnswer,
    LabelledRows,
    PreferenceRows,
    joined,
    read_rows,
    split_in_two,
    told,
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def said(dialogue):
    return [(each["role"], each["content"]) for each in dialogue.messages]


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "prompt_chosen_rejected"),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}, "chosen_rejected"),
        ({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}, "transcripts"),
        ({"prompt": "a", "completion": "b", "label": True}, "prompt_completion_label"),
    ],
)
def test_the_format_is_told_by_the_columns_and_the_first_row(first, name):
    assert formats.detect(list(first), first, {}) == name


def test_a_column_may_be_called_otherwise():
    first = {"question": "a", "better": "b", "worse": "c"}
    given_names = {"prompt": "question", "chosen": "better", "rejected": "worse"}
    assert formats.detect(list(first), first, given_names) == "prompt_chosen_rejected"
    assert formats.columns_of("prompt_chosen_rejected", list(first), given_names) == given_names


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"a": "b"}, "of no known format"),
        ({"chosen": "plain", "rejected": "text"}, "neither a list of messages nor a transcript"),
    ],
)
def test_columns_of_no_format_are_refused_with_what_would_do(first, words):
    with pytest.raises(Unreadable, match=words):
        formats.detect(list(first), first, {})


def test_a_missing_column_is_named():
    with pytest.raises(
        Unreadable, match=r"no column 'chosen', which the format prompt_chosen_rejected reads\. Did you mean 'chosed'"
    ):
        formats.columns_of("prompt_chosen_rejected", ["prompt", "chosed", "rejected"], {})


def test_plain_texts_stay_plain_and_messages_are_for_a_template():
    plain = formats.read("prompt_chosen_rejected", {"prompt": "Q:", "chosen": " yes", "rejected": " no"})
    assert isinstance(plain, ComparedAnswers)
    assert said(plain.chosen) == [("user", "Q:"), ("assistant", " yes")]
    assert not plain.chosen.templated
    assert plain.chosen.learnt == (False, True)
    assert plain.margin is None
    chat = formats.read(
        "prompt_chosen_rejected", {"prompt": [user("Q")], "chosen": [assistant("yes")], "rejected": [assistant("no")]}
    )
    assert said(chat.rejected) == [("user", "Q"), ("assistant", "no")]
    assert chat.rejected.templated


def test_an_answer_says_whether_it_was_cut():
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    whole, cut = (
        formats.read("prompt_chosen_rejected", row | more)
        for more in ({}, {"ended_chosen": False, "ended_rejected": True})
    )
    assert (whole.chosen.cut, whole.rejected.cut) == (False, False)
    assert (cut.chosen.cut, cut.rejected.cut) == (True, False)


def test_a_system_column_opens_both_sides():
    row = formats.read(
        "prompt_chosen_rejected", {"prompt": "Q", "chosen": "yes", "rejected": "no", "system": "Be short."}
    )
    assert said(row.chosen)[0] == said(row.rejected)[0] == ("system", "Be short.")
    assert row.chosen.templated


def test_a_prompt_that_stands_in_the_messages_again_is_read_once():
    row = {"prompt": "Q", "chosen": [user("Q"), assistant("yes")], "rejected": [user("Q"), assistant("no")]}
    assert said(formats.read("prompt_chosen_rejected", row).chosen) == [("user", "Q"), ("assistant", "yes")]


def test_the_prompt_of_two_dialogues_is_what_they_have_in_common():
    before = [user("one"), assistant("two"), user("three")]
    row = formats.read(
        "chosen_rejected", {"chosen": [*before, assistant("yes")], "rejected": [*before, assistant("no")]}
    )
    assert said(row.chosen)[:-1] == said(row.rejected)[:-1] == [(each["role"], each["content"]) for each in before]
    assert (row.chosen.completion, row.rejected.completion) == ("yes", "no")
    assert row.chosen.learnt == (False, False, False, True)  # the earlier answer is no part of what is compared


TURN = (
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n"), min_size=1)
    .map(str.strip)
    .filter(bool)
)


@settings(deadline=None)
@given(st.lists(TURN, min_size=1, max_size=5).filter(lambda turns: len(turns) % 2 == 1), TURN, TURN)
def test_transcripts_are_split_behind_the_last_assistant_that_both_share(turns, chosen, rejected):
    if chosen == rejected:
        return
    opening = (
        "".join(f"\n\n{('Human', 'Assistant')[at % 2]}: {turn}" for at, turn in enumerate(turns)) + "\n\nAssistant: "
    )
    row = formats.read("transcripts", {"chosen": opening + chosen, "rejected": opening + rejected})
    assert [content for _, content in said(row.chosen)] == [*turns, chosen]
    assert [content for _, content in said(row.rejected)] == [*turns, rejected]
    assert [role for role, _ in said(row.chosen)] == [("user", "assistant")[at % 2] for at in range(len(turns) + 1)]


def test_answers_that_begin_alike_are_not_taken_for_the_prompt():
    row = formats.read(
        "transcripts",
        {"chosen": "\n\nHuman: a\n\nAssistant: I think yes", "rejected": "\n\nHuman: a\n\nAssistant: I think no"},
    )
    assert (row.chosen.completion, row.rejected.completion) == ("I think yes", "I think no")


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        (
            "transcripts",
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"},
            "no common prompt",
        ),
        (
            "transcripts",
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: b"},
            "the same text as chosen",
        ),
        (
            "transcripts",
            {"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": "\n\nHuman: a\n\nAssistant: b"},
            "empty answer in the column 'chosen'",
        ),
        ("transcripts", {"chosen": 3, "rejected": "b"}, r"holds '3' \(int\) in the column 'chosen', must be a text"),
        (
            "transcripts",
            {"chosen": "\n\nHuman: \n\nAssistant: b", "rejected": "\n\nHuman: \n\nAssistant: c"},
            "empty prompt",
        ),
        (
            "prompt_chosen_rejected",
            {"prompt": "a", "chosen": "b", "rejected": "b"},
            "the same text as chosen and as rejected",
        ),
        (
            "prompt_chosen_rejected",
            {"prompt": "a", "chosen": "b", "rejected": " "},
            "empty answer in the column 'rejected'",
        ),
        ("prompt_chosen_rejected", {"prompt": "", "chosen": "b", "rejected": "c"}, "empty prompt"),
        (
            "prompt_chosen_rejected",
            {"prompt": None, "chosen": "b", "rejected": "c"},
            "holds nothing in the column 'prompt'",
        ),
        (
            "prompt_chosen_rejected",
            {"prompt": [user("a")], "chosen": [assistant("b"), user("c")], "rejected": [assistant("d")]},
            "has 2 messages",
        ),
        (
            "chosen_rejected",
            {"chosen": [user("a"), assistant("b")], "rejected": [user("x"), assistant("c")]},
            "do not begin alike",
        ),
        (
            "chosen_rejected",
            {"chosen": [user("a"), assistant("b"), user("c")], "rejected": [user("a"), assistant("d")]},
            "no common prompt",
        ),
        (
            "prompt_completion_label",
            {"prompt": "a", "completion": "b", "label": "perhaps"},
            "has the label 'perhaps', must be true",
        ),
        (
            "prompt_chosen_rejected",
            {"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"},
            "holds 'much' in the column 'margin'",
        ),
    ],
)
def test_a_row_that_says_nothing_is_refused_with_the_reason(name, row, words):
    with pytest.raises(Unreadable, match=words):
        formats.read(name, row)


def test_margins_are_told_or_follow_from_scores():
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert formats.read("prompt_chosen_rejected", row | {"margin": 2}).margin == 2.0
    assert formats.read("prompt_chosen_rejected", row | {"score_chosen": 7, "score_rejected": 2.5}).margin == 4.5
    assert (
        formats.read("prompt_chosen_rejected", row | {"margin": 1, "score_chosen": 7, "score_rejected": 2.5}).margin
        == 1.0
    )


@pytest.mark.parametrize(
    ("label", "good"),
    [(True, True), (False, False), (1, True), ("0", False), ("True", True), (" good ", True), ("rejected", False)],
)
def test_labels_of_single_answers(label, good):
    row = formats.read("prompt_completion_label", {"prompt": "a", "completion": "b", "label": label})
    assert isinstance(row, LabelledAnswer)
    assert row.good is good


GOOD = [{"prompt": f"question {at}", "chosen": f"yes {at}", "rejected": "no", "margin": float(at)} for at in range(4)]
BAD = {"prompt": "question", "chosen": "same", "rejected": "same", "margin": 1.0}


def read(rows, **keywords):
    return read_rows(Dataset.from_list(rows), range(len(rows)), "file x", **keywords)


def test_rows_are_columns_with_the_better_answer_first():
    rows = read(GOOD)
    assert isinstance(rows, PreferenceRows)
    assert rows.texts == [f"question {at}" for at in range(4)]
    assert [each.completion for each in rows.chosen] == [f"yes {at}" for at in range(4)]
    assert {each.completion for each in rows.rejected} == {"no"}
    assert (rows.margins, rows.labels, rows.index, rows.format) == (
        [0.0, 1.0, 2.0, 3.0],
        [0] * 4,
        [0, 1, 2, 3],
        "prompt_chosen_rejected",
    )


def test_a_judge_s_probabilities_are_kept_where_every_row_has_one():
    sure = [row | {"probability": 0.75} for row in GOOD]
    assert read(sure).probabilities == [0.75] * 4
    assert read(GOOD).probabilities is None
    assert joined([read(sure), read(sure)]).probabilities == [0.75] * 8
    assert joined([read(sure), read(GOOD)]).probabilities is None
    with pytest.raises(DataError, match=r"holds 1\.5 in the column 'probability', must be from 0 to 1"):
        read([GOOD[0] | {"probability": 1.5}])


def test_a_bad_row_stops_everything_with_its_number_and_what_to_do():
    with pytest.raises(
        DataError,
        match=r"file x, row 3 \(the first is 1\), has the same text as chosen and as rejected; correct or remove",
    ):
        read([*GOOD[:2], BAD, *GOOD[2:]])


def test_bad_rows_are_counted_and_named_where_they_may_be_skipped():
    rows = read([BAD, *GOOD[:2], BAD, *GOOD[2:]], skip_bad_rows=True)
    assert rows.index == [1, 2, 4, 5]
    assert rows.skipped == dict.fromkeys((0, 3), "has the same text as chosen and as rejected")
    assert told(rows.skipped, 6).startswith("2 of 6 rows are left out (the first row is 1): row 1 has the same text")


def test_nothing_but_bad_rows_is_an_error_all_the_same():
    with pytest.raises(DataError, match="no row that can be read: 2 of 2 rows"):
        read([BAD, BAD], skip_bad_rows=True)


def test_a_limit_counts_rows_that_can_be_read():
    assert read([BAD, *GOOD], skip_bad_rows=True, limit=2).index == [1, 2]


def test_single_answers_and_pairs_split_in_two():
    rows = read([{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": False}])
    assert isinstance(rows, LabelledRows)
    assert rows.labels == [1, 0]
    both = split_in_two(read(GOOD))
    assert both.labels == [1, 0] * 4
    assert [each.completion for each in both.dialogues[:3]] == ["yes 0", "no", "yes 1"]
    assert both.index == [0, 0, 1, 1, 2, 2, 3, 3]


def test_files_are_joined_one_behind_the_other_and_numbered_on():
    one, two = (
        read([BAD, *GOOD[:2]], skip_bad_rows=True),
        read([{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in GOOD]),
    )
    both = joined([one, two])
    assert len(both) == 6
    assert both.index == [1, 2, 3, 4, 5, 6]
    assert both.margins is None  # the second says none
    assert joined([one, one]).margins == [0.0, 1.0] * 2
    assert joined([one]) is one


def test_a_template_makes_turns_of_plain_texts():
    rows = read(GOOD)
    assert not rows.chosen[0].templated
    assert all(each.templated for each in (*rows.in_turns().chosen, *rows.in_turns().rejected))
