from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from pipelines.core.errors import DataError
from pipelines.tasks.causal.task import Causal, CausalTask


def block(folder, rows=None, **keys):
    if rows is not None:
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Causal.model_validate({"kind": "causal", "train": "rows.jsonl", **keys}, context={"folder": folder})


def read(folder, rows, **keys):
    task = block(folder, rows, validation="rows.jsonl", **keys).task("x")
    assert isinstance(task, CausalTask)
    return task.rows("train")


def test_the_format_is_told_by_the_columns_of_the_file(tmp_path):
    rows = read(
        tmp_path,
        [{"instruction": "Add.", "input": "2", "output": "5"}, {"instruction": "Say.", "input": "", "output": "x"}],
    )
    assert rows.format == "alpaca"
    assert (rows.texts, rows.labels, rows.index) == (["Add.\n\n2", "Say."], ["5", "x"], [0, 1])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert read(tmp_path, [{"messages": messages}] * 2).format == "messages"
    share = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert read(tmp_path, [{"conversations": share}] * 2).dialogues[0].messages[1]["content"] == "b"
    assert read(tmp_path, [{"text": "abc"}] * 2).labels == ["abc", "abc"]


def test_what_is_given_overrides_what_would_be_told(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "a"}], "q": "one", "a": "two"}] * 2
    found = read(tmp_path, rows, format="prompt_completion", columns={"prompt": "q", "completion": "a"})
    assert (found.format, found.texts[0], found.labels[0]) == ("prompt_completion", "one", "two")


def test_a_bad_row_is_named_by_its_number(tmp_path):
    rows = [{"instruction": "a", "output": "b"}, {"instruction": "a", "output": "  "}]
    with pytest.raises(DataError, match=r"row 2 \(the first is 1\), has an empty answer; correct or remove the row"):
        read(tmp_path, rows)
    silent = [{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}] * 2
    with pytest.raises(DataError, match=r"row 1 .* has no answer that is to be learnt"):
        read(tmp_path, silent)
    with pytest.raises(DataError, match=r"columns \(a\) of no known format"):
        read(tmp_path, [{"a": "b"}] * 2)


def test_empty_answers_of_a_published_set_are_left_out(tmp_path):
    from dataclasses import replace

    rows = [{"instruction": str(at), "output": "" if at == 1 else "b"} for at in range(4)]
    task = replace(block(tmp_path, rows, validation="rows.jsonl").task("x"), skip_empty=True)
    assert task.rows("train").index == [0, 2, 3]
    assert task.rows("train", limit=2).index == [0, 2]


def test_a_pattern_chooses_the_metric(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    assert block(tmp_path).task("x").metrics == ("rouge1", "rouge2", "rougeL")
    assert block(tmp_path, answer_pattern="#### (.+)").task("x").metrics == ("exact_match",)
    assert block(tmp_path, format="text").task("x").metrics == ()
    assert block(tmp_path).task("x").scores[-3:] == ("perplexity", "bits_per_byte", "mean_token_accuracy")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"answer_pattern": "(a"}, "is no regular expression"),
        ({"answer_pattern": "a"}, "has 0 groups, must have one"),
        ({"format": "alpaca", "columns": {"prompt": "q"}}, "is no column of the format alpaca"),
        ({"columns": {"promt": "q"}}, "Did you mean 'prompt'"),
        ({"format": "text", "answer_pattern": "(a)"}, "plain texts answer nothing"),
        ({"format": "sharegtp"}, "Did you mean 'sharegpt'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_recipe(tmp_path, keys, sentence):
    from pipelines.core.config import flatten

    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(ValidationError) as caught:
        block(tmp_path, **keys)
    assert sentence in " ".join(message for _, message in flatten(caught.value))
