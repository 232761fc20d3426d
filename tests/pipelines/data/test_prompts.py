"""Prompts are the first tokens of plain texts, and whole questions in the form in which the model learnt them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.errors import DataError
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.prompts import ASKED, PLAIN, Prompts, PromptText
from pipelines.data.ragged import mapped, write
from tests import tiny


@pytest.fixture
def tokenizer() -> Any:
    return copy.deepcopy(tiny.tokenizer())


def opening(tokenizer: Any) -> Any:
    """The tokenizer as one made for decoders: a token before each text, none behind it."""
    from tokenizers.processors import TemplateProcessing

    made = copy.deepcopy(tokenizer)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.cls_token_id)]
    )
    return made


def written(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Prompts:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return Prompts.model_validate({"path": str(folder / "rows.jsonl"), **keys})


LONG = " ".join(tiny.WORDS * 4)


def test_a_plain_text_is_cut_to_its_first_tokens(tmp_path: Path, tokenizer: Any) -> None:
    prompts = written(tmp_path, [{"text": LONG}, {"text": ""}, {"text": "good film"}], text="text", max_length=5)
    rows = prompts.read(tokenizer)
    whole = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    assert rows.ids == [whole[:5], tokenizer("good film", add_special_tokens=False)["input_ids"]]
    assert rows.texts == [" ".join(tiny.WORDS[:5]), "good film"]
    assert (rows.index, rows.truncated, rows.left_out) == ([0, 2], 1, ())
    assert len(rows) == 2


def test_processes_map_what_the_main_one_encoded(tmp_path: Path, tokenizer: Any) -> None:
    """The same prompts, in arrays that stand in the file, with their messages; the other columns are read when asked."""
    chats = [{"prompt": [{"role": "user", "content": "the film"}], "answer": each} for each in ("good", "dull")]
    own = written(tmp_path, chats).read(tokenizer)
    write(tmp_path / "prompts", own)
    other = mapped(tmp_path / "prompts")
    assert (other.ids, other.texts, other.index) == (own.ids, own.texts, own.index)
    assert [text.messages for text in other.texts] == [text.messages for text in own.texts]
    assert not other.ids.values.flags.writeable  # the file's own pages
    (whole,) = {text._row.func.__self__ for text in other.texts}
    assert whole.data is None
    assert [text.row["answer"] for text in other.texts] == ["good", "dull"]


def test_what_opens_a_text_counts(tmp_path: Path, tokenizer: Any) -> None:
    rows = written(tmp_path, [{"text": LONG}], max_length=5).read(opening(tokenizer))
    whole = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    assert rows.ids == [[tokenizer.cls_token_id, *whole[:4]]]
    assert rows.texts == [" ".join(tiny.WORDS[:4])]


def test_an_encoder_reads_a_text_with_what_closes_it(tmp_path: Path, tokenizer: Any) -> None:
    rows = written(tmp_path, [{"text": LONG}, {"text": "a cat"}], max_length=6).read(tokenizer, encoder_decoder=True)
    whole = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    assert rows.ids == [[tokenizer.cls_token_id, *whole[:4], tokenizer.sep_token_id], tokenizer("a cat")["input_ids"]]
    assert rows.texts == [" ".join(tiny.WORDS[:4]), "a cat"]


def test_only_the_beginning_of_a_long_text_is_read_and_that_changes_nothing(tmp_path: Path, tokenizer: Any) -> None:
    texts = [" ".join(tiny.WORDS * 40), "the" + " " * 3000 + "cat dog film", "x" * 4000]
    rows = written(tmp_path, [{"text": text} for text in texts], max_length=7).read(tokenizer)
    whole = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert rows.ids == [each[:7] for each in whole]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([*tiny.WORDS, "  ", "éclair", "x" * 90, "\n"]), min_size=1, max_size=300),
    st.integers(1, 9),
)
def test_prompts_are_a_prefix_of_the_whole_text(tmp_path_factory: Any, words: list[str], limit: int) -> None:
    text = " ".join(["a", *words])
    rows = written(tmp_path_factory.mktemp("prompts"), [{"text": text}], max_length=limit).read(tiny.tokenizer())
    whole = tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert rows.ids == [whole[:limit]]
    assert text.startswith(rows.texts[0])


def test_some_rows_are_spread_over_a_sorted_file(tmp_path: Path, tokenizer: Any) -> None:
    rows = written(tmp_path, [{"text": f"good {at}"} for at in range(10)], max_samples=4).read(tokenizer)
    assert rows.index == [0, 2, 5, 7]
    assert rows.texts == ["good 0", "good 2", "good 5", "good 7"]
    assert written(tmp_path, [{"text": "good"}] * 3, max_samples=9).read(tokenizer).index == [0, 1, 2]


MESSAGES = [
    {"role": "user", "content": "good film ?"},
    {"role": "assistant", "content": "very good"},
    {"role": "user", "content": "and the dog ?"},
]


def test_messages_are_joined_by_a_template_and_stay_known(tmp_path: Path, tokenizer: Any) -> None:
    answered = [*MESSAGES, {"role": "assistant", "content": "the dog is fine"}]
    rows = written(tmp_path, [{"messages": MESSAGES}, {"messages": answered}]).read(tokenizer)
    assert tokenizer.chat_template == TEMPLATES["simple"]
    assert rows.ids[0] == rows.ids[1]  # the data set's own answer is not asked
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert rows.ids[0] == tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert [dict(each) for each in rows.texts[0].messages] == MESSAGES
    assert str(rows.texts[0]) == "user: good film ?\n\nassistant: very good\n\nuser: and the dog ?"


def test_a_prompt_is_plain_without_a_template_and_a_question_with_one(tmp_path: Path, tokenizer: Any) -> None:
    prompts = written(tmp_path, [{"prompt": "good film ?"}])
    rows = prompts.read(tokenizer)
    assert rows.ids == [tokenizer("good film ?", add_special_tokens=False)["input_ids"]]
    assert rows.texts[0].messages == ()
    tokenizer.chat_template = TEMPLATES["simple"]
    asked = prompts.read(tokenizer)
    assert asked.ids[0] != rows.ids[0]
    assert [dict(each) for each in asked.texts[0].messages] == [{"role": "user", "content": "good film ?"}]
    assert str(asked.texts[0]) == "good film ?"
    plain = written(tmp_path, [{"prompt": "good film ?"}], text="prompt").read(
        tokenizer
    )  # its column is named: a text to go on from
    assert plain.ids == rows.ids


def test_a_template_may_be_named(tmp_path: Path, tokenizer: Any) -> None:
    rows = written(tmp_path, [{"prompt": "good film ?"}], chat_template="alpaca").read(tokenizer)
    assert tokenizer.chat_template == TEMPLATES["alpaca"]
    assert len(rows.ids[0]) > 20


def test_long_questions_are_left_out_not_cut(tmp_path: Path, tokenizer: Any) -> None:
    rows = written(tmp_path, [{"prompt": LONG}, {"prompt": "good ?"}], max_length=6).read(tokenizer)
    assert (rows.texts, rows.left_out, rows.truncated) == (["good ?"], (0,), 0)
    with pytest.raises(DataError, match="2 prompts, all longer than 3 tokens; raise max_length"):
        written(tmp_path, [{"prompt": LONG}] * 2, max_length=3).read(tokenizer)


def test_the_default_lengths(tmp_path: Path, tokenizer: Any) -> None:
    assert len(written(tmp_path, [{"text": LONG}]).read(tokenizer).ids[0]) == PLAIN
    rows = written(tmp_path, [{"prompt": LONG}]).read(tokenizer)
    assert PLAIN < len(rows.ids[0]) < ASKED


def test_what_cannot_be_read_is_said_with_its_row(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(DataError, match="row 2, holds '3' \\(int\\) in the column 'text'"):
        written(tmp_path, [{"text": None}, {"text": 3}], text="text").read(tokenizer)
    with pytest.raises(DataError, match=r"has no column 'txt'\. Did you mean 'text'"):
        written(tmp_path, [{"text": "a"}], text="txt").read(tokenizer)
    with pytest.raises(DataError, match="all its cells are empty"):
        written(tmp_path, [{"text": " "}]).read(tokenizer)
    with pytest.raises(DataError, match="asks nothing"):
        written(tmp_path, [{"messages": [{"role": "assistant", "content": "x"}]}]).read(tokenizer)
    with pytest.raises(ValidationError, match="does not exist"):
        Prompts.model_validate({"path": str(tmp_path / "none.jsonl")})


def test_content_follows_rows_and_template(tmp_path: Path) -> None:
    one = written(tmp_path, [{"text": "a"}]).content()
    assert written(tmp_path, [{"text": "a"}], max_length=3).content() == one  # the length stands in the recipe
    assert written(tmp_path, [{"text": "a"}], chat_template="alpaca").content() != one
    assert written(tmp_path, [{"text": "b"}]).content() != one


def test_a_tokenizer_may_learn_from_the_whole_texts(tmp_path: Path) -> None:
    assert written(tmp_path, [{"text": LONG}, {"text": ""}], max_length=2).plain_texts() == [LONG]
    assert written(tmp_path, [{"messages": MESSAGES}]).plain_texts()[0].endswith("and the dog ?")


def test_a_prompt_is_a_text_that_travels_between_processes() -> None:
    prompt = PromptText("good ?", MESSAGES)
    copied = pickle.loads(pickle.dumps(prompt))
    assert copied == "good ?"
    assert copied.messages == prompt.messages == tuple(MESSAGES)
