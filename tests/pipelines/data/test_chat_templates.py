"""Chat templates by name and from files, and the answers found in what any template makes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from pipelines.core.errors import DataError
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import (
    DEFAULT,
    MARKS,
    TEMPLATES,
    TemplateName,
    adopt,
    answer_spans,
    content_of,
    end_of_turn,
    marks_of,
    prompt_of,
    render,
    text_of,
)
from tests import tiny

FIELD = TypeAdapter(TemplateName)


def checked(value, folder):
    return FIELD.validate_python(value, context={"folder": folder})


def test_a_name_stays_and_a_file_becomes_absolute(tmp_path):
    (tmp_path / "mine.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert checked("chatml", tmp_path) == "chatml"
    assert checked("mine.jinja", tmp_path) == str(tmp_path / "mine.jinja")
    assert text_of(checked("mine.jinja", tmp_path)).startswith("{% for m")


def test_what_is_neither_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ValidationError, match="'file:file-1' names what a server holds; hand the recipe in with"):
        checked("file:file-1", tmp_path)
    with pytest.raises(ValidationError, match=r"'chatlm' is no known template. Did you mean 'chatml'.*looked for"):
        checked("chatlm", tmp_path)
    (tmp_path / "bytes.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValidationError, match="is not UTF-8 text"):
        checked("bytes.jinja", tmp_path)


def test_adopting_asks_the_recipe_then_the_tokenizer_then_the_models_training():
    assert adopt(SimpleNamespace(chat_template="own"), "zephyr", "inherited") == "zephyr"
    tokenizer = SimpleNamespace(chat_template="own")
    assert (adopt(tokenizer, None, "inherited"), tokenizer.chat_template) == ("the tokenizer's own", "own")
    tokenizer = SimpleNamespace(chat_template=None)
    assert (adopt(tokenizer, None, TEMPLATES["alpaca"]), tokenizer.chat_template) == ("alpaca", TEMPLATES["alpaca"])
    assert adopt(SimpleNamespace(chat_template=None), None) == DEFAULT
    tokenizer = SimpleNamespace(chat_template={"tool_use": "tools", "default": "plain"})
    adopt(tokenizer, None)
    assert tokenizer.chat_template == "plain"


def test_a_hash_changes_with_the_file(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("a")
    before = content_of(str(file))
    file.write_text("b")
    assert content_of(str(file)) != before


def test_marks_stand_in_their_templates():
    assert set(MARKS) <= set(TEMPLATES)
    assert all(mark in TEMPLATES["chatml"] for mark in marks_of("chatml"))
    assert marks_of(None) == marks_of("simple") == ()


MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "saw a dog"},
    {"role": "user", "content": "a film"},
    {"role": "assistant", "content": "the cat"},  # an answer that is also a question
]
# Templates in the manner of published models; the traps that they set are named.
STRIPS_EARLIER = """{%- for m in messages %}{{ '<' + m.role + '>' }}{%- if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].strip() }}
{%- else %}{{ m.content }}{% endif %}{{ '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
NUMBERS_TURNS = """{%- for m in messages %}{{ messages | length }}|{{ m.role }}: {{ m.content | trim }}[SEP]
{% endfor %}{% if add_generation_prompt %}{{ messages | length }}|assistant: {% endif %}"""
LLAMA_2 = """{%- for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"""
MARKED = """{%- for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"""
MIRRORS = "{%- for m in messages %}{{ m.content | reverse }};{% endfor %}{{ messages | length }}"


@pytest.fixture
def tokenizer():
    import copy

    return copy.deepcopy(tiny.tokenizer())


def answers(tokenizer, template, messages=MESSAGES):
    tokenizer.chat_template = template
    text, spans = answer_spans(tokenizer, messages)
    return [text[begin:end] for begin, end in spans]


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_of_our_templates_ends_every_answer_with_the_end_of_texts(tokenizer, name):
    found = answers(tokenizer, TEMPLATES[name])
    end = {"chatml": "<|im_end|>[SEP]"}.get(name, "[SEP]")
    assert [each.strip() for each in found] == [f"saw a dog{end}", f"the cat{end}"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_of_each_of_our_templates_is_what_stands_before_the_last_answer(tokenizer, name):
    tokenizer.chat_template = TEMPLATES[name]
    text, spans = answer_spans(tokenizer, MESSAGES)
    assert prompt_of(tokenizer, Dialogue(tuple(MESSAGES), (False,) * 4 + (True,))) == text[: spans[-1][0]]


def test_the_end_of_a_turn_is_the_special_token_behind_an_answer(tokenizer):
    assert end_of_turn(tokenizer) is None, "without a template"
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS["chatml"])})
    ends = {name: "<|im_end|>" if name == "chatml" else "[SEP]" for name in TEMPLATES}
    for name, template in TEMPLATES.items():
        tokenizer.chat_template = template
        assert end_of_turn(tokenizer) == tokenizer.convert_tokens_to_ids(ends[name])
    for template in (LLAMA_2, MARKED, NUMBERS_TURNS):
        tokenizer.chat_template = template
        assert end_of_turn(tokenizer) == tokenizer.sep_token_id
    for template in (MIRRORS, "{{ raise_exception('no') }}", "{{ messages[1].content + ' [SEP]'.lower() }}"):
        tokenizer.chat_template = template
        assert end_of_turn(tokenizer) is None


def test_alpaca_is_the_prompt_of_its_authors_word_for_word(tokenizer):
    tokenizer.chat_template = TEMPLATES["alpaca"]
    asked = {"role": "user", "content": "Say it.\n\nred", "instruction": "Say it.", "input": "red"}
    # PROMPT_DICT of stanford_alpaca/train.py
    with_input = (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSay it.\n\n### Input:\nred\n\n### Response:"
    )
    without = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSay it.\n\n### Response:"
    )
    answer = {"role": "assistant", "content": "x"}
    assert prompt_of(tokenizer, Dialogue((asked, answer), (False, True))) == with_input + "\n"
    assert (
        prompt_of(tokenizer, Dialogue(({"role": "user", "content": "Say it."}, answer), (False, True)))
        == without + "\n"
    )


def test_a_template_that_rewrites_earlier_answers_is_taken_apart_by_stand_ins(tokenizer):
    messages = [*MESSAGES[1:2], {"role": "assistant", "content": "<think>hm</think>\n\nsaw a dog"}, *MESSAGES[3:]]
    found = answers(tokenizer, STRIPS_EARLIER, messages)
    assert found[0].startswith("saw a dog")
    assert "<think>" not in found[0]
    assert found[1].startswith("the cat")


def test_a_template_that_counts_the_turns_is_taken_apart_by_stand_ins(tokenizer):
    found = answers(tokenizer, NUMBERS_TURNS)
    assert found[0] == "saw a dog[SEP]"
    assert found[1].startswith("the cat[SEP]")


def test_llama_2_has_no_prompt_for_answers_and_keeps_its_spaces(tokenizer):
    assert answers(tokenizer, LLAMA_2, MESSAGES[1:]) == [" saw a dog [SEP]", " the cat [SEP]"]


def test_marks_in_the_template_are_believed(tokenizer):
    assert answers(tokenizer, MARKED) == ["saw a dog[SEP]", "the cat[SEP]"]


def test_marks_around_some_answers_only_are_refused(tokenizer):
    template = MARKED.replace("m.role == 'assistant' %}{% gen", "m.role == 'assistant' and loop.last %}{% gen")
    with pytest.raises(DataError, match=r"marks 1 answers of 2 with \{% generation %\}"):
        answers(tokenizer, template)


def test_a_template_whose_answers_cannot_be_found_is_refused(tokenizer):
    with pytest.raises(DataError, match=r"the answers cannot be found in its text; put \{% generation %\}"):
        answers(tokenizer, MIRRORS)


def test_a_dialogue_that_the_template_refuses_names_its_roles(tokenizer):
    with pytest.raises(
        DataError, match="refuses a dialogue of user, tool, assistant: the template alpaca knows the roles"
    ):
        answers(tokenizer, TEMPLATES["alpaca"], [MESSAGES[1], {"role": "tool", "content": "4"}, MESSAGES[2]])


def test_weights_choose_the_answers_that_are_learnt(tokenizer):
    tokenizer.chat_template = TEMPLATES["simple"]
    found = render(tokenizer, Dialogue(tuple(MESSAGES), (False, False, False, False, True)))
    assert [found.text[begin:end] for begin, end in found.spans] == ["the cat[SEP]"]
    assert found.size == len("the cat")
    everything = render(tokenizer, Dialogue(tuple(MESSAGES), (False, False, True, False, True)), "all")
    assert everything.spans == ((0, len(everything.text)),)


def test_without_a_template_messages_are_one_text(tokenizer):
    said = ({"role": "user", "content": "The sky is"}, {"role": "assistant", "content": " blue."})
    found = render(tokenizer, Dialogue(said, (False, True), templated=False))
    assert (found.text, found.spans, found.bare, found.size) == ("The sky is blue.", ((10, 16),), True, 6)
