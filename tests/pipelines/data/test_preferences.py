from __future__ import annotations

import pytest
from datasets import Dataset

from pipelines.core.errors import DataError
from pipelines.tasks.preference.rows import LabelledRows, PreferenceRows, joined, read_rows, split_in_two, told

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
