from __future__ import annotations

import copy
import math
from contextlib import suppress

import pytest
import torch

from pipelines.core.interfaces import Head, World
from pipelines.data.chat_formats import Dialogue
from pipelines.metrics.perplexity import likelihood
from pipelines.tasks.causal.evaluation import likelihoods
from tests import tiny


def dialogues(count=9):
    return [
        Dialogue(
            ({"role": "user", "content": one}, {"role": "assistant", "content": f" {other}"}),
            (False, True),
            templated=False,
        )
        for one, other in zip(tiny.TEXTS[:count], tiny.TEXTS[count : 2 * count], strict=True)
    ]


@pytest.fixture(scope="module")
def model():
    return tiny.build("finery", Head("causal_lm"), family="decoder").eval()


def by_hand(model, tokenizer, dialogue):
    """(bits, tokens) of an answer and its end, token by token."""
    prompt, answer = (tokenizer(each["content"], add_special_tokens=False)["input_ids"] for each in dialogue.messages)
    answer = [*answer, tokenizer.eos_token_id]
    bits = 0.0
    for place, token in enumerate(answer):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *answer[:place]]])).logits[0, -1]
        bits -= logits.double().log_softmax(-1)[token].item() / math.log(2)
    return bits, len(answer)


def test_bits_and_tokens_are_those_of_asking_token_by_token(model):
    tokenizer, rows = copy.deepcopy(tiny.tokenizer()), dialogues()
    tally = likelihoods(model, tokenizer, rows, 48, batch_size=4)
    expected = [by_hand(model, tokenizer, each) for each in rows]
    assert tally.documents.tolist() == list(range(9))
    assert tally.columns["bits"].tolist() == pytest.approx([bits for bits, _ in expected], rel=1e-4)
    assert tally.columns["tokens"].tolist() == [tokens for _, tokens in expected]
    assert tally.columns["bytes"].tolist() == [len(each.completion.encode()) for each in rows]
    figures = tally.figures(likelihood)
    total = sum(bits for bits, _ in expected)
    assert figures["perplexity"] == pytest.approx(2 ** (total / sum(tokens for _, tokens in expected)), rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(
        total / sum(len(each.completion.encode()) for each in rows), rel=1e-4
    )


def test_two_processes_find_what_one_finds(model):
    tokenizer, rows, parts = copy.deepcopy(tiny.tokenizer()), dialogues(), []

    def keep(value):
        parts.append(value)
        return [value] if len(parts) < 2 else parts

    alone = likelihoods(model, tokenizer, rows, 48, batch_size=2)
    with suppress(IndexError, ValueError):  # the first process alone has not all of it
        likelihoods(model, tokenizer, rows, 48, batch_size=2, world=World(0, 2), gather=keep)
    both = likelihoods(model, tokenizer, rows, 48, batch_size=2, world=World(1, 2), gather=keep)
    assert both.columns["bits"].tolist() == alone.columns["bits"].tolist()


def test_rows_whose_answer_is_cut_away_are_not_counted(model):
    tokenizer = copy.deepcopy(tiny.tokenizer())
    long = Dialogue(
        ({"role": "user", "content": "cat " * 60}, {"role": "assistant", "content": "dog"}),
        (False, True),
        templated=False,
    )
    tally = likelihoods(model, tokenizer, [*dialogues(2), long], 48)
    assert tally.documents.tolist() == [0, 1]
