"""Packed and unpacked batches of the same examples must teach the same."""

from __future__ import annotations

import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import CompletionCollator, encode_completions
from pipelines.tasks.causal.training import Packed, completion_loss, pack_completions
from tests import tiny

SHAPES = {
    "learned": {"family": "decoder", "position": "learned"},
    "rotary": {"family": "decoder", "position": "rotary"},
    "alibi": {"family": "decoder", "position": "alibi"},
    "relative": {"family": "decoder", "position": "relative"},
}


def examples():
    dialogues = [
        Dialogue(
            ({"role": "user", "content": one}, {"role": "assistant", "content": other}), (False, True), templated=False
        )
        for one, other in zip(tiny.TEXTS[:12], tiny.TEXTS[12:24], strict=True)
    ]
    return encode_completions(tiny.tokenizer(), dialogues, range(12), 40)


def model(name):
    if name in SHAPES:
        return tiny.build("finery", Head("causal_lm"), **SHAPES[name]).eval()
    return tiny.build(name, Head("causal_lm")).eval()


@pytest.mark.parametrize("name", [*SHAPES, "gpt2"])
def test_the_losses_and_gradients_of_packed_and_unpacked_batches_are_equal(name):
    taught, given = model(name), examples()
    packs = pack_completions(given, 40)
    assert len(packs) < len(given)
    batches = CompletionCollator(0)([given[at] for at in range(12)]), Packed(0)([packs[at] for at in range(len(packs))])
    told = []
    for batch in batches:
        taught.zero_grad()
        loss, _ = completion_loss(taught, batch)
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in taught.parameters() if each.grad is not None])
        told.append((loss.item(), gradients, int((batch["labels"] != -100).sum())))
    assert told[0][2] == told[1][2]
    assert told[0][0] == pytest.approx(told[1][0], rel=1e-5)
    torch.testing.assert_close(told[0][1], told[1][1], rtol=1e-3, atol=2e-5)


def test_no_example_of_a_block_sees_another():
    taught, given = model("rotary"), examples()
    packs = pack_completions(given, 40)
    pack = next(packs[at] for at in range(len(packs)) if len(packs.members[at]) > 1)
    batch = Packed(0)([pack])
    batch.pop("labels")
    first = len(pack["parts"][0]["input_ids"])
    changed = batch | {"input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, first - 1] = 7 if batch["input_ids"][0, first - 1] != 7 else 8
    with torch.no_grad():
        before, after = taught(**batch).logits, taught(**changed).logits
    assert torch.equal(before[0, first:], after[0, first:])
    assert not torch.equal(before[0, first - 1], after[0, first - 1])
    assert batch["position_ids"][0, first].item() == 0
