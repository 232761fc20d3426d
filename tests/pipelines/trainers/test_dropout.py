"""Dropout from few random bits: the distribution of torch's, masks that depend on (seed, step, batch) alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from pipelines.core.errors import Stopped
from pipelines.core.interfaces import Context, World
from pipelines.data.encoding import collate
from pipelines.objectives.losses import classification_loss
from pipelines.trainers import trainer
from pipelines.trainers.dropout import RESOLUTION, MaskStream, few_bits
from tests import tiny

ROWS = [{"input_ids": [5 + n % 9, 7, 20 + n % 3], "labels": n % 3, "index": n} for n in range(16)]
DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.2)
ARGUMENTS = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_of_p_is_dropped_independently_and_the_rest_scaled_to_the_same_mean(
    kind: torch.dtype, p: float
) -> None:
    masks, values = MaskStream(), torch.ones(400, 1001, dtype=kind, requires_grad=True)
    with masks.batch(3, 1, 4):
        first, second = masks.dropped(values, p), masks.dropped(values, p)
    zero = [(each == 0).double() for each in (first, second)]
    share = round(p * RESOLUTION) / RESOLUTION
    scale = torch.tensor(1 / (1 - share), dtype=torch.float64).to(kind)
    assert abs(share - p) <= 0.5 / RESOLUTION
    assert set(first.unique().tolist()) == {0.0, scale.item()}
    bound = 4.5 * (share * (1 - share) / values.numel()) ** 0.5
    assert abs(zero[0].mean() - share) < bound
    centred = [each - share for each in zero]
    pairs = [
        (centred[0], centred[1])
    ]  # two places of the model; neighbours in a row, in a word of 64 bits, in a column
    pairs += [(centred[0][:, :-by], centred[0][:, by:]) for by in (1, 2, 3, 4)] + [(centred[0][:-1], centred[0][1:])]
    for left, right in pairs:
        assert abs((left * right).mean()) < 4.5 * share * (1 - share) / left.numel() ** 0.5
    gradient = torch.randn_like(values)
    first.backward(gradient)
    assert values.grad is not None
    assert torch.equal(values.grad, gradient * (1 / (1 - share)) * (first != 0))


def test_the_masks_are_those_of_their_key_and_of_no_other() -> None:
    masks, values = MaskStream(), torch.ones(257)
    drawn = {}
    for key in ((7, 0, 0), (7, 0, 1), (7, 1, 0), (8, 0, 0), (7, 0, 0)):
        with masks.batch(*key):
            drops = [masks.dropped(values, 0.5) for _ in range(2)]
        assert not torch.equal(*drops)
        assert key not in drawn or torch.equal(drawn[key], drops[0])
        drawn[key] = drops[0]
    assert len({tuple(each.tolist()) for each in drawn.values()}) == 4
    with masks.batch(1):
        turned = masks.dropped(torch.ones(31, 7).t(), 0.5)
    with masks.batch(1):
        assert torch.equal(turned, masks.dropped(torch.ones(7, 31), 0.5))


def test_modules_and_attention_draw_from_the_stream_only_inside_a_batch_and_in_training() -> None:
    model, batch = tiny.build("finery", tiny.THREE, **DROPOUT).train(), tiny.batch()
    plain = torch.nn.functional.dropout

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        said: torch.Tensor = model(**batch).logits
        return said

    with few_bits() as masks:
        with masks.batch(1):
            inside = logits(0)
        with masks.batch(1):
            assert torch.equal(logits(99), inside)  # every mask, that of the attention too, came from the stream
        assert not torch.equal(logits(0), logits(99))  # torch's numbers outside of it
        with masks.batch(1):
            assert torch.equal(model.eval()(**batch).logits, model(**batch).logits)
    assert torch.nn.functional.dropout is plain


def fitted(context: Context, **changes: Any) -> tuple[Any, dict[str, float]]:
    return trainer.fit(
        context,
        tiny.build("bert", tiny.THREE, **DROPOUT),
        tiny.tokenizer(),
        ROWS,
        collate=partial(collate, tiny.tokenizer()),
        loss=classification_loss,
        arguments=ARGUMENTS | changes,
    )


def test_a_resumed_run_has_the_masks_of_the_whole_one(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2}
    whole, _ = fitted(context("whole"), **words)
    place, end = context("stopped"), trainer.StageCallback.on_step_end

    def stopping(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
        place.stop.requested = state.global_step == 3
        return end(self, args, state, control, **keywords)

    monkeypatch.setattr(trainer.StageCallback, "on_step_end", stopping)
    with pytest.raises(Stopped):
        fitted(place, **words)
    monkeypatch.undo()
    place.stop.requested = False
    resumed, _ = fitted(place, **words)
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name]), name


def test_each_batch_of_a_step_has_a_stream_of_its_own_on_every_process(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []
    plain = MaskStream.batch
    monkeypatch.setattr(MaskStream, "batch", lambda self, *key: keys.append(key) or plain(self, *key))
    fitted(context("one"), gradient_accumulation_steps=2, num_train_epochs=1, save_strategy="no")
    assert keys == [(7, step, batch) for step in range(2) for batch in range(2)]
    staged = trainer.FineryTrainer.__new__(trainer.FineryTrainer)
    staged.begin(context("two", world=World(1, 2)), None)
    staged.masks = MaskStream()
    staged.args = type("Args", (), {"activation_checkpointing": False, "seed": 7})()
    staged.state = type("State", (), {"global_step": 5})()
    keys.clear()
    for _ in range(2):
        staged._masks_of_batch()
    assert keys == [(7, 5, 1), (7, 5, 3)]
    keys.clear()
    staged.args.activation_checkpointing = True  # computes a second time, by torch's generator turned back
    staged._masks_of_batch()
    assert not keys
