from __future__ import annotations

import pytest

from pipelines.data.chat_formats import FORMATS, READERS, Unreadable, columns_of, detect, read

ASSISTANT = {"role": "assistant", "content": "It is."}


def said(dialogue):
    return [(each["role"], each["content"]) for each in dialogue.messages]


@pytest.mark.parametrize(
    ("columns", "first", "expected"),
    [
        (["messages"], {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        (["id", "conversations"], {"conversations": [{"from": "human", "value": "a"}]}, "sharegpt"),
        (["conversations"], {"conversations": [{"role": "user", "content": "a"}]}, "messages"),
        (["instruction", "input", "output"], {}, "alpaca"),
        (["instruction", "output", "text"], {}, "alpaca"),
        (["prompt", "completion"], {}, "prompt_completion"),
        (["text", "author"], {}, "text"),
    ],
)
def test_the_columns_and_the_first_row_tell_the_format(columns, first, expected):
    assert detect(columns, first, {}) == expected


def test_renamed_columns_tell_it_too():
    assert detect(["question", "answer"], {}, {"prompt": "question", "completion": "answer"}) == "prompt_completion"
    assert columns_of("alpaca", ["question", "answer"], {"instruction": "question", "output": "answer"}) == {
        "instruction": "question",
        "output": "answer",
    }


def test_unknown_columns_are_shown_with_the_known_formats():
    with pytest.raises(
        Unreadable, match=r"columns \(a, b\) of no known format \(messages: messages; sharegpt.*name the format"
    ):
        detect(["a", "b"], {}, {})


def test_a_missing_column_is_named_with_its_nearest():
    with pytest.raises(Unreadable, match=r"no column 'output', which the format alpaca reads. Did you mean 'outputs'"):
        columns_of("alpaca", ["instruction", "outputs"], {})
    with pytest.raises(Unreadable, match="no column 'hint'"):
        columns_of("alpaca", ["instruction", "output"], {"input": "hint"})


def test_every_format_has_a_reader():
    assert set(READERS) == set(FORMATS)


def test_share_gpt_has_names_of_its_own_for_speakers():
    rows = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Is it?"},
        {"from": "gpt", "value": "It is."},
    ]
    found = read("sharegpt", {"conversations": rows})
    assert said(found) == [("system", "Be kind."), ("user", "Is it?"), ("assistant", "It is.")]
    assert found.learnt == (False, False, True)
    assert (found.prompt, found.completion) == ("system: Be kind.\n\nuser: Is it?", "It is.")


def test_a_last_question_without_an_answer_is_left_out():
    found = read(
        "messages", {"messages": [{"role": "user", "content": "a"}, ASSISTANT, {"role": "user", "content": "b"}]}
    )
    assert said(found) == [("user", "a"), ("assistant", "It is.")]


def test_weights_say_which_answers_are_learnt():
    messages = [
        {"role": "user", "content": "a"},
        ASSISTANT | {"weight": 0},
        {"role": "user", "content": "b"},
        ASSISTANT | {"weight": 1},
    ]
    found = read("messages", {"messages": messages})
    assert found.learnt == (False, False, False, True)
    assert all("weight" not in each for each in found.messages)
    with pytest.raises(Unreadable, match=r"weight 0\.5, must be 0"):
        read("messages", {"messages": [ASSISTANT | {"weight": 0.5}]})


def test_an_instruction_and_its_input_are_one_question_and_stay_apart_for_the_alpaca_template():
    found = read("alpaca", {"instruction": "Add.", "input": "2 and 3", "output": "5"})
    assert said(found) == [("user", "Add.\n\n2 and 3"), ("assistant", "5")]
    assert (found.messages[0]["instruction"], found.messages[0]["input"]) == ("Add.", "2 and 3")
    assert "input" not in read("alpaca", {"instruction": "Add.", "input": "", "output": "5"}).messages[0]


def test_history_and_system_stand_before_the_instruction():
    row = {"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "s"}
    assert said(read("alpaca", row)) == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
    ]


def test_a_prompt_and_its_completion_are_one_text_until_a_template_is_named():
    found = read("prompt_completion", {"prompt": "The sky is", "completion": " blue."})
    assert not found.templated
    assert found.in_turns().templated
    plain = read("text", {"text": "The sky."})
    assert plain.in_turns() == plain  # nothing is asked, so there are no turns


def test_a_prompt_may_be_messages_and_only_the_completion_is_learnt():
    row = {
        "prompt": [{"role": "user", "content": "a"}, ASSISTANT, {"role": "user", "content": "b"}],
        "completion": [ASSISTANT],
    }
    assert read("prompt_completion", row).learnt == (False, False, False, True)


@pytest.mark.parametrize(
    ("name", "cells", "sentence"),
    [
        ("messages", {"messages": "hello"}, "holds 'hello' .str. in the column 'messages', must be a list of messages"),
        ("messages", {"messages": []}, "must be a list of messages"),
        ("messages", {"messages": ["a"]}, "must be an object with role and content"),
        (
            "messages",
            {"messages": [{"role": "narrator", "content": "a"}]},
            "a message by 'narrator', must be one of user, human",
        ),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "that holds '3' .int., must be a text"),
        ("messages", {"messages": [{"role": "user", "content": "a"}]}, "has no answer in the column 'messages'"),
        ("alpaca", {"instruction": None, "output": "a"}, "holds nothing in the column 'instruction', must be a text"),
        ("alpaca", {"instruction": "a", "output": "b", "input": 3}, "in the column 'input', must be a text"),
        (
            "alpaca",
            {"instruction": "a", "output": "b", "history": ["x"]},
            "must be pairs of an instruction and its answer",
        ),
        (
            "prompt_completion",
            {"prompt": 1, "completion": "a"},
            "in the column 'prompt', must be a text, or a list of messages",
        ),
        ("text", {"text": 1.5}, "in the column 'text', must be a text"),
    ],
)
def test_what_a_row_should_be_is_said(name, cells, sentence):
    with pytest.raises(Unreadable, match=sentence):
        read(name, cells)
