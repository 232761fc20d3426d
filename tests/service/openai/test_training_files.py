"""Training files are checked line by line, in OpenAI's shapes."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.openai.training_files import LONGEST_LINE, MOST_TOLD, examine
from tests.words import words_of

CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "a"}]},
    "preferred_output": [{"role": "assistant", "content": "b"}],
    "non_preferred_output": [{"role": "assistant", "content": "c"}],
}
PROMPT = {"messages": [{"role": "user", "content": "a"}], "answer": 4}


def file(*rows):
    return io.BytesIO(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))


def told(*rows, **more):
    return [(each.line, each.message) for each in examine(file(*rows), **more).mistakes]


@pytest.mark.parametrize(("row", "shape"), [(CHAT, "chat"), (PREFERENCE, "preference"), (PROMPT, "prompt")])
def test_a_good_file_is_known_by_its_shape(row, shape):
    report = examine(file(*[row] * 12))
    assert (report.shape, report.rows, report.mistakes) == (shape, 12, ())


def test_everything_that_openai_allows_in_a_chat_is_allowed():
    weighted = {
        "messages": [
            {"role": "system", "content": ""},
            {"role": "assistant", "content": "x", "weight": 0},
            {"role": "user", "content": "y", "name": "Ada"},
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "z", "weight": 1},
        ]
    }
    unasked = {"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "x"}]}
    assert told(weighted, {**CHAT, "tools": [], "parallel_tool_calls": False}, unasked) == []


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff{}", "is not UTF-8 text"),
        (b"[1]", "is a list, must be an object"),
        (b"null", "is nothing"),
        (b"3", "is a number"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"1" * 5000, "is not valid JSON"),
        (b'{"messages": ' + b"[" * 64 + b"]" * 64 + b"}", "is nested more than 64 levels deep"),
        (b'{"messages": "\\ud800"}', "holds half of a character"),
        (b'{"\\uDFFF": 1}', "holds half of a character"),
        ({}, "has the keys (none)"),
        ({"prompt": "a", "completion": "b"}, "has the keys 'prompt', 'completion'"),
        ({"messages": []}, "has an empty list as 'messages'"),
        ({"messages": "x"}, "has a text as 'messages'"),
        (
            {"messages": [{"role": "human", "content": "x"}, CHAT["messages"][1]]},
            "message 1 of 'messages' has the role \"human\"",
        ),
        (
            {"messages": [CHAT["messages"][0], {"role": "assistant", "content": [{"type": "image_url"}]}]},
            "message 2 of 'messages' has a list as content",
        ),
        ({"messages": [CHAT["messages"][0], {"role": "assistant", "content": " "}]}, "of the assistant is empty"),
        ({"messages": [CHAT["messages"][0], {"role": "assistant", "content": "x", "weight": 2}]}, "has a weight"),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}, CHAT["messages"][1]]}, "has a weight"),
        (
            {"messages": [CHAT["messages"][0], {"role": "assistant", "content": "x", "weight": 0}]},
            "has weight 0 on every message",
        ),
        ({"messages": [CHAT["messages"][1], CHAT["messages"][0]]}, "ends with a message of the user"),
        ({"messages": [CHAT["messages"][0], {"role": "system", "content": "x"}]}, "has no message of the assistant"),
        ({**PREFERENCE, "input": "x"}, "has a text as 'input'"),
        ({**PREFERENCE, "preferred_output": []}, "has an empty list as 'preferred_output'"),
        ({**PREFERENCE, "non_preferred_output": CHAT["messages"]}, "must have exactly one"),
        ({**PREFERENCE, "non_preferred_output": PREFERENCE["preferred_output"]}, "to the same answer"),
    ],
)
def test_each_mistake_is_told_with_its_line(row, sentence):
    good = PREFERENCE if isinstance(row, dict) and "input" in row else CHAT
    found = told(good, row, good)
    assert [line for line, _ in found] == [2]
    assert sentence in found[0][1]


def test_rows_of_evals_are_checked_for_what_no_answer_can_tell():
    good = {"item": {"a": "x"}, "sample": {"output_text": "\U0001f600 \\ud800"}}
    deepest = {"item": json.loads('{"a": ' + "[" * 62 + "]" * 62 + "}")}
    assert told(good, deepest, shape="eval") == []
    assert told(good, {"item": [1]}, {"item": {}, "sample": 1}, shape="eval") == [
        (2, "has a list as 'item', must be an object"),
        (3, "has a number as 'sample', must be an object"),
    ]
    for half in (
        {"item": {"a": "\ud800"}},
        {"item": {}, "sample": {"\udfff": 1}},
        {"item": {}, "more": ["\ude00\ud83d"]},
    ):
        assert told(good, half, shape="eval") == [(2, "holds half of a character")]
    deeper = {"item": {"a": deepest["item"]["a"], "b": [deepest["item"]["a"]]}}
    assert told(deeper, shape="eval") == [(1, "is nested more than 64 levels deep")]


def test_rows_of_another_shape_than_the_first_are_told():
    assert told(CHAT, PREFERENCE)[0] == (2, "is a preference row, must be a chat row like the others")
    assert "ends with the assistant" in told(CHAT, shape="prompt")[0][1]
    assert "nothing to learn" in told(CHAT, PROMPT)[0][1]


def test_an_empty_line_is_a_mistake_in_the_middle_and_none_at_the_end():
    assert told(CHAT, b"", CHAT) == [(2, "is empty")]
    assert told(CHAT, b"", b"") == []


def test_a_line_without_end_does_not_fill_the_memory():
    assert told(CHAT, b"x" * (LONGEST_LINE + 10), CHAT) == [(2, f"is longer than {LONGEST_LINE} bytes")]


def test_a_thousand_mistakes_are_told_as_twenty_and_a_number():
    report = examine(file(*[b"{"] * 1000))
    assert (len(report.mistakes), report.more) == (MOST_TOLD, 1000 - MOST_TOLD)
    assert report.sentence.splitlines()[-1] == "and 980 more"


def test_a_file_without_rows_is_a_mistake():
    assert examine(io.BytesIO(b"")).sentence == "the file has no examples, must have at least one"


@given(
    st.lists(
        st.binary(max_size=80)
        | st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        words_of("messages role content input preferred_output non_preferred_output weight x")
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=10,
        ).map(lambda value: json.dumps(value).encode()),
        max_size=6,
    )
)
def test_any_bytes_are_a_file_with_or_without_mistakes(rows):
    for shape in (None, "eval"):
        report = examine(io.BytesIO(b"\n".join(rows)), shape)
        assert report.rows or report.mistakes
