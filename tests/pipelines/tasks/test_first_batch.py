from __future__ import annotations

import copy

import pytest

from pipelines.core.interfaces import IGNORED
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.completions import encode_completions
from pipelines.tasks.first_batch import endings_missing, examined, pieces, summary, tell
from tests import tiny


def chat(one, other):
    return Dialogue(({"role": "user", "content": one}, {"role": "assistant", "content": other}), (False, True))


def looked(limit=40, template="simple", text=None, dialogues=None, tokenizer=None):
    tokenizer = tokenizer or copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = text or TEMPLATES[template]
    dialogues = dialogues or [chat(one, other) for one, other in zip(tiny.TEXTS[:9], tiny.TEXTS[9:18], strict=True)]
    examples = encode_completions(tokenizer, dialogues, range(len(dialogues)), limit)
    return examined(tokenizer, dialogues, examples, limit, "task", "messages", template), examples


def test_all_is_well():
    look, examples = looked(200)
    assert look.warnings == []
    assert look.examples == 9
    assert look.learnt_share == pytest.approx(
        sum(label != IGNORED for row in examples.labels for label in row) / examples.lengths.sum()
    )
    assert "".join(text for text, learnt in look.shown[0] if learnt).endswith("[SEP]")


def test_many_rows_that_are_cut_are_a_warning():
    look, _ = looked(22)
    assert any("are longer than 22 tokens and lose the end" in each for each in look.warnings)


def test_rows_without_an_answer_are_a_warning():
    dialogues = [chat("the cat", "saw a dog"), chat("film " * 60, "bad")]
    look, _ = looked(50, dialogues=dialogues)
    assert any("the loss mask of 1 of 2 rows is empty, the first is row 2" in each for each in look.warnings)


def test_padding_that_is_the_end_of_texts_is_a_warning():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.pad_token = tokenizer.eos_token
    look, _ = looked(200, tokenizer=tokenizer)
    assert [each for each in look.warnings if "the padding token is the end of text ([SEP])" in each]


def test_a_prompt_that_is_not_what_stands_before_the_answer_is_a_warning():
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}Now you:{% endif %}"
    look, _ = looked(200, text=text)
    assert any("the model will be asked otherwise than it was taught" in each for each in look.warnings)


def test_marks_that_the_tokenizer_does_not_have_are_a_warning():
    look, _ = looked(200, "chatml")
    assert any(
        "the template chatml writes <|im_start|>, <|im_end|>, which the tokenizer does not have" in each
        for each in look.warnings
    )


def test_unknown_tokens_in_answers_are_a_warning():
    look, _ = looked(200, dialogues=[chat("the cat", "猫 saw 犬")] * 3)
    assert any("of the learnt tokens are [UNK]" in each for each in look.warnings)


def test_a_hidden_end_is_noticed():
    from dataclasses import replace

    _, examples = looked(200)
    broken = replace(examples, labels=[[*row[:-1], 9] for row in examples.labels])
    assert endings_missing(tiny.tokenizer(), examples, 200) == 0
    assert endings_missing(tiny.tokenizer(), broken, 200) == 9


def test_pieces_and_quartiles_by_hand():
    ids = tiny.tokenizer()("the cat saw", add_special_tokens=False)["input_ids"]
    assert pieces(tiny.tokenizer(), ids, [False, True, True]) == [("the", False), ("cat saw", True)]
    assert summary([1, 2, 3, 4, 5]) == {"least": 1, "quarter": 2, "median": 3, "three_quarters": 4, "most": 5}
    assert summary([]) == {}


def test_one_process_tells(context, events):
    from pipelines.core.interfaces import World

    look, _ = looked(22)
    told, silent = context("told"), context("silent", world=World(1, 2))
    tell(told, look)
    tell(silent, look)
    assert events(told)[0]["event"] == "sample"
    assert len(events(told)) == 1 + len(look.warnings)
    assert events(silent) == []
