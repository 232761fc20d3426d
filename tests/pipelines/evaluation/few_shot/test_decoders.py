import copy

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head, World
from pipelines.evaluation.few_shot.decoders import DecoderReader
from pipelines.evaluation.few_shot.likelihood import Continuation, Encoded
from tests import tiny

ASKED = [
    Continuation(f"{context} it was", f" {answer}")
    for context in tiny.TEXTS[:4]
    for answer in ("good", "bad", "not very bad film")
]
SHAPES = {
    "finery": {"family": "decoder"},
    "finery-alibi": {"family": "decoder", "position": "alibi"},
    "finery-rotary": {"family": "decoder", "position": "rotary"},
    "finery-relative": {"family": "decoder", "position": "relative"},
    "gpt2": {},
    "llama": {},
}
FAST = ("finery-alibi", "finery")
"""Positions that are told by the mask, and positions that are told by number; the others are tested with what takes long."""


def build(name, **overrides):
    model = tiny.build(name.partition("-")[0], Head("causal_lm"), **SHAPES[name], **overrides).eval()
    tiny.disturb(model)
    return model


def reader(name="finery", **options):
    return DecoderReader(build(name), copy.deepcopy(tiny.tokenizer()), **options)


def by_hand(model, encoded, **words):
    """(nats, greedy) of one continuation, token by token."""
    nats, greedy = 0.0, True
    for place, token in enumerate(encoded.answer):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*encoded.context, *encoded.answer[:place]]]), **words).logits[0, -1]
        nats += logits.double().log_softmax(-1)[token].item()
        greedy &= int(logits.argmax()) == token
    return nats, greedy


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.long) for name in SHAPES]
)
def test_every_way_gives_what_asking_token_by_token_gives(name):
    asked = reader(name)
    encoded = [asked.encode(each) for each in ASKED]
    expected = [by_hand(asked.model, each) for each in encoded]
    for way in ("whole", "cached", None):
        asked.way = way
        found = asked.likelihoods(encoded, batch_size=3)
        assert [each.nats for each in found] == pytest.approx([nats for nats, _ in expected], rel=1e-4), way
        assert [each.greedy for each in found] == [greedy for _, greedy in expected]
        assert [each.tokens for each in found] == [len(each.answer) for each in encoded]
    assert asked.facts() == {"ways": ["cached"]}  # the last round chose for itself
    assert all(asked.judged.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.long)
        for name in SHAPES
        if name != "finery-relative"
    ],
)
def test_what_all_contexts_begin_with_is_read_once(name):
    asked = reader(name)
    examples = " ".join(tiny.WORDS[:18])
    encoded = [asked.encode(Continuation(f"{examples} {each.context}", each.answer)) for each in ASKED]
    expected = [by_hand(asked.model, asked._within(each))[0] for each in encoded]
    found = asked.likelihoods(encoded, batch_size=3)
    assert asked.facts() == {"ways": ["cached" if asked.counts_keys else "shared"]}
    assert asked.counts_keys == (name == "finery-alibi")
    assert [each.nats for each in found] == pytest.approx(expected, rel=1e-4)


def test_contexts_that_begin_alike_are_read_together():
    """As the questions of contextual calibration: the same examples, with and without content behind them."""
    asked, seen = reader(), []
    stems = [" ".join(tiny.WORDS[at : at + 18]) for at in range(3)]
    encoded = [
        asked.encode(Continuation(f"{stem} {end}", " good"))
        for stem in stems
        for end in ("the cat", "it", "a very dull dog")
    ]
    encoded.append(asked.encode(Continuation("it", " good")))  # begins as no other does
    expected = [by_hand(asked.model, each)[0] for each in encoded]
    asked.way = "shared"
    body = asked.model.base_model
    forward = body.forward
    body.forward = lambda *given, **words: (seen.append(tuple(words["input_ids"].shape)), forward(*given, **words))[1]
    assert [each.nats for each in asked.likelihoods(encoded[:9], batch_size=9)] == pytest.approx(expected[:9], rel=1e-4)
    assert (3, 18) in seen  # each of the three beginnings once
    assert [each.nats for each in asked.likelihoods(encoded, batch_size=9)] == pytest.approx(expected, rel=1e-4)
    asked.way = None
    assert [each.nats for each in asked.likelihoods(encoded, batch_size=9)] == pytest.approx(expected, rel=1e-4)


def test_one_row_serves_all_answers_of_one_token():
    asked, seen = reader(), []
    asked.way = "whole"
    forward = asked.model.forward
    asked.model.forward = lambda *given, **words: (seen.append(words["input_ids"].shape), forward(*given, **words))[1]
    asked.likelihoods([asked.encode(Continuation("the film was", f" {word}")) for word in ("good", "bad", "dull")])
    assert [tuple(shape) for shape in seen] == [(1, 3)]


def test_a_way_that_gives_other_numbers_is_not_taken():
    asked = reader()
    encoded = [asked.encode(each) for each in ASKED]
    expected = [each.nats for each in asked.likelihoods(encoded)]
    body = asked.model.base_model
    right = body.forward

    def wrong(*given, **words):
        words["position_ids"] = words["position_ids"] * 0 if words.get("position_ids") is not None else None
        return right(*given, **words)

    asked.judged, body.forward = {}, wrong
    assert [each.nats for each in asked.likelihoods(encoded)] == pytest.approx(expected, rel=1e-4)
    assert asked.facts() == {"ways": ["whole"]}


def test_a_context_that_is_too_long_loses_its_beginning():
    asked = reader(limit=12)
    long = asked.encode(Continuation(" ".join(tiny.WORDS[:20]), " good film"))
    assert asked.excess(long) == 20 + 2 - 1 - 12
    [found] = asked.likelihoods([long])
    assert found.nats == pytest.approx(by_hand(asked.model, Encoded(long.context[9:], long.answer))[0], rel=1e-4)
    with pytest.raises(ModelError, match="an answer of 14 tokens does not fit into the 12 tokens"):
        asked.likelihoods([Encoded((5,), tuple(range(5, 19)))])


def test_without_a_context_an_answer_follows_the_end_of_texts():
    asked = reader()
    assert asked.encode(Continuation("", "good")).context == (asked.tokenizer.eos_token_id,)


def test_white_space_between_both_belongs_to_the_answer():
    asked = reader()
    assert asked.encode(Continuation("the film was ", "good")) == asked.encode(Continuation("the film was", " good"))


def test_two_processes_find_what_one_finds():
    asked, parts = reader(), []
    encoded = [asked.encode(each) for each in ASKED]
    alone = asked.likelihoods(encoded, batch_size=2)

    def keep(value):
        parts.append(value)
        return parts

    with pytest.raises(IndexError):  # the first process alone has not all of it
        asked.likelihoods(encoded, batch_size=2, world=World(0, 2), gather=keep)
    assert asked.likelihoods(encoded, batch_size=2, world=World(1, 2), gather=keep) == alone


def test_a_model_of_prefixes_reads_its_context_in_both_directions():
    asked = reader(prefix=True)
    encoded = [asked.encode(each) for each in ASKED[:4]]
    expected = [by_hand(asked.model, each, prefix_length=torch.tensor([len(each.context)]))[0] for each in encoded]
    assert [each.nats for each in asked.likelihoods(encoded)] == pytest.approx(expected, rel=1e-4)
    assert asked.facts() == {"ways": ["whole"], "prefix_lm": True}
