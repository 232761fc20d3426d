from __future__ import annotations

import copy
from functools import cache

import pytest

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES, prompt_of
from pipelines.data.completions import CompletionCollator, encode_completions, ended, opening_of, padding_token
from tests import tiny

TEXT = (
    "the sky is blue and the answer: yes it is. a cat saw a dog, naïve 猫! Once upon a time there was an answer ###\n\n"
)


@cache
def byte_bpe():
    from pipelines.data.tokenizers.bpe import ByteBPE

    return ByteBPE().train([TEXT] * 3, 320)


def plain(prompt, completion):
    return Dialogue(
        ({"role": "user", "content": prompt}, {"role": "assistant", "content": completion}),
        (False, True),
        templated=False,
    )


def chat(*contents, learnt=None):
    messages = tuple({"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents))
    return Dialogue(messages, learnt or tuple(each["role"] == "assistant" for each in messages))


def with_template(tokenizer, name):
    found = copy.deepcopy(tokenizer)
    found.chat_template = TEMPLATES[name]
    return found


def learnt(tokenizer, examples, row=0):
    return tokenizer.decode([each for each in examples.labels[row] if each != IGNORED])


@pytest.mark.parametrize("name", TEMPLATES)
def test_answers_and_their_ends_are_learnt_and_nothing_else(name):
    tokenizer = with_template(byte_bpe(), name)
    examples = encode_completions(tokenizer, [chat("the sky", "is blue", "a cat", "saw a dog")], [7], 500)
    end = "<|im_end|>[SEP]" if name == "chatml" else "[SEP]"
    first, second = learnt(tokenizer, examples).split(end)[:2]
    assert (first.strip(), second.strip()) == ("is blue", "saw a dog")
    assert examples.labels[0][-1] == tokenizer.eos_token_id
    assert examples.index == [7]
    assert examples.sizes.tolist() == [len("is blue") + len("saw a dog")]


@pytest.mark.parametrize("prompt", ["the answer:", "the answer: ", "Once upon a", "the answer ###\n"])
@pytest.mark.parametrize("completion", ["yes", " yes", "\n\nyes", " time there was"])
def test_the_prompt_has_the_tokens_that_it_has_when_the_model_is_asked(prompt, completion):
    tokenizer = byte_bpe()
    examples = encode_completions(tokenizer, [plain(prompt, completion)], [0], 500)
    alone = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert examples.input_ids[0][: len(alone)] == alone
    assert examples.labels[0][: len(alone)] == [IGNORED] * len(alone)
    assert learnt(tokenizer, examples) == f"{completion}[SEP]"
    assert tokenizer.decode(examples.input_ids[0]) == f"{prompt}{completion}[SEP]"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_prompt_has_the_tokens_that_it_has_when_the_model_is_asked(name):
    tokenizer = with_template(byte_bpe(), name)
    asked = chat("the sky ", "\n is blue")
    examples = encode_completions(tokenizer, [asked], [0], 500)
    alone = tokenizer(prompt_of(tokenizer, asked), add_special_tokens=False)["input_ids"]
    assert examples.input_ids[0][: len(alone)] == alone


def test_what_is_learnt_agrees_with_transformers_own_mask_of_a_marked_template():
    tokenizer = copy.deepcopy(byte_bpe())
    tokenizer.chat_template = (
        "{%- for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    asked = chat("the sky", "is blue and", "a cat", "saw a dog")
    told = tokenizer.apply_chat_template(list(asked.messages), return_dict=True, return_assistant_tokens_mask=True)
    examples = encode_completions(tokenizer, [asked], [0], 500)
    assert examples.input_ids[0] == told["input_ids"]
    assert [int(each != IGNORED) for each in examples.labels[0]] == told["assistant_masks"]


def test_an_end_that_the_template_leaves_out_is_added_and_learnt():
    tokenizer = copy.deepcopy(byte_bpe())
    tokenizer.chat_template = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    examples = encode_completions(tokenizer, [chat("the sky", "is blue")], [0], 500)
    assert examples.labels[0][-1] == examples.input_ids[0][-1] == tokenizer.eos_token_id


def test_an_end_that_the_templates_marks_leave_out_is_learnt_all_the_same():
    tokenizer = copy.deepcopy(byte_bpe())
    tokenizer.chat_template = (
        "{%- for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% endfor %}"
    )
    only = Dialogue(({"role": "assistant", "content": "is blue"},), (True,))
    examples = encode_completions(tokenizer, [only], [0], 500)
    assert examples.input_ids[0].count(tokenizer.eos_token_id) == 1
    assert learnt(tokenizer, examples) == "is blue[SEP]"


def test_ends_by_hand():
    # 9 ends texts, 8 is another token that ends an answer; True is learnt
    assert ended([1, 2], [False, True], True, 9) == ([1, 2, 9], [False, True, True])
    assert ended([1, 2, 9], [False, True, False], True, 9) == ([1, 2, 9], [False, True, True])
    assert ended([1, 2, 9, 3, 2, 9], [False, True, False, False, True, True], True, 9)[1] == [
        False,
        True,
        True,
        False,
        True,
        True,
    ]
    assert ended([1, 2, 8], [False, True, True], True, 9, stops=(8,)) == ([1, 2, 8], [False, True, True])
    assert ended([1, 2, 8, 5], [False, True, True, True], True, 9, stops=(8,)) == ([1, 2, 8], [False, True, True])
    assert ended([1, 2, 3], [False, True, False], False, 9) == ([1, 2, 3], [False, True, False])


def test_padding_that_is_the_end_of_texts_hides_no_real_end():
    tokenizer = copy.deepcopy(byte_bpe())
    tokenizer.pad_token = tokenizer.eos_token
    examples = encode_completions(
        tokenizer, [plain("the sky", " is"), plain("a cat", " saw a dog and a cat")], [0, 1], 500
    )
    batch = CompletionCollator(padding_token(tokenizer))([examples[0], examples[1]])
    end = tokenizer.eos_token_id
    assert (batch["labels"] == end).sum(1).tolist() == [1, 1]
    assert batch["attention_mask"].sum(1).tolist() == examples.lengths.tolist()


def test_labels_stand_where_they_are_named_from():
    batch = CompletionCollator(0)(
        [{"input_ids": [5, 6, 7], "labels": [IGNORED, 6, 7]}, {"input_ids": [8, 9], "labels": [IGNORED, 9]}]
    )
    assert batch["labels"].tolist() == [[6, 7, IGNORED], [9, IGNORED, IGNORED]]
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]


def test_rows_that_are_cut_have_no_end_and_rows_without_an_answer_are_left_out():
    tokenizer = byte_bpe()
    rows = [
        plain("a", " cat saw a dog and a cat saw a dog"),
        plain("a cat saw a dog and a cat", " saw"),
        plain("a", " cat"),
    ]
    examples = encode_completions(tokenizer, rows, [3, 4, 5], 8)
    assert (examples.index, examples.left_out, examples.truncated) == ([3, 5], (4,), 2)
    assert examples.labels[0][-1] not in (IGNORED, tokenizer.eos_token_id)
    assert examples.labels[1][-1] == tokenizer.eos_token_id
    cut = tokenizer.decode(examples.input_ids[0])
    assert examples.sizes.tolist() == [len(cut) - len("a"), len(" cat")]
    with pytest.raises(
        DataError, match="no answer is left of any of the 1 rows: within 8 tokens there is only the prompt"
    ):
        encode_completions(tokenizer, rows[1:2], [0], 8)


def test_a_tokenizer_for_decoders_opens_a_text_and_one_for_encoders_does_not():
    from tokenizers import processors

    assert opening_of(tiny.tokenizer()) == []
    tokenizer = copy.deepcopy(byte_bpe())
    begin = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.bos_token_id)]
    )
    assert opening_of(tokenizer) == [tokenizer.bos_token_id]
    examples = encode_completions(tokenizer, [plain("the sky", " is")], [0], 500)
    assert examples.input_ids[0][0] == tokenizer.bos_token_id
    assert examples.labels[0][0] == IGNORED


def test_train_on_all_learns_the_prompt_too():
    tokenizer = with_template(byte_bpe(), "simple")
    examples = encode_completions(tokenizer, [chat("the sky", "is blue")], [0], 500, "all")
    assert examples.labels == examples.input_ids


def test_a_choice_of_rows_keeps_their_columns_together():
    examples = encode_completions(
        byte_bpe(), [plain("a", " cat"), plain("the", " sky is"), plain("a", " dog")], [0, 1, 2], 50
    )
    chosen = examples.select([2, 0])
    assert [chosen[0], chosen[1]] == [examples[2], examples[0]]
    assert chosen.lengths.tolist() == examples.lengths[[2, 0]].tolist()
