"""Training only the embedding rows that the text names: the same losses and weights as training all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from pipelines.core.errors import Stopped
from pipelines.core.interfaces import Context, Head
from pipelines.data.encoding import collate
from pipelines.objectives.losses import classification_loss
from pipelines.trainers import named_rows, trainer
from pipelines.trainers.halving import parts_by_size
from pipelines.trainers.named_rows import NamedRows, RowGradient
from pipelines.tuners.full import Full
from tests import tiny

ARGUMENTS = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "logging_steps": 1,
    "save_strategy": "no",
}
END = tiny.tokenizer().eos_token_id or 3
ROWS = [{"input_ids": [5 + n % 9, 7, 20 + n % 3, END], "labels": n % 3, "index": n} for n in range(16)]


def fitted(context: Context, family: str, only: bool, tuner: Any = None, **changes: Any) -> tuple[Any, Any]:
    """The trained model, and what the loop says of it."""
    model = tiny.build(family, tiny.THREE)
    return trainer.fit(
        context,
        model if tuner is None else tuner.apply(model),
        tiny.tokenizer(),
        ROWS,
        collate=partial(collate, tiny.tokenizer()),
        loss=classification_loss,
        arguments=ARGUMENTS | changes,
        tuner=tuner,
        only_named_rows=only,
    )


@pytest.mark.parametrize("family", ["finery", "bert", "t5", "gpt2"])
def test_the_weights_are_those_of_training_the_whole_matrix(
    family: str, context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[Any] = []
    monkeypatch.setattr(named_rows, "cut", lambda *given, cut_it=named_rows.cut: cut.append(cut_it(*given)) or cut[-1])
    (plain, metrics), (saving, same) = (
        fitted(context(str(only)), family, only, num_train_epochs=2) for only in (False, True)
    )
    assert cut[0].rows.weight.shape[0] < 30 < plain.get_input_embeddings().weight.shape[0]
    assert cut[0].rows.gradient is not None
    assert type(saving.get_input_embeddings()) is torch.nn.Embedding
    assert same["all_parameters"] == metrics["all_parameters"]
    assert same["train_loss"] == pytest.approx(metrics["train_loss"], rel=1e-6)
    wanted = plain.state_dict()
    assert saving.state_dict().keys() == wanted.keys()
    for name, weight in saving.state_dict().items():
        torch.testing.assert_close(weight, wanted[name], rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    untouched = saving.get_input_embeddings().weight[60]  # named by no row: decayed, and nothing else
    torch.testing.assert_close(untouched, plain.get_input_embeddings().weight[60], rtol=1e-6, atol=0)
    assert not torch.equal(untouched, tiny.build(family, tiny.THREE).get_input_embeddings().weight[60])


def test_a_batch_is_computed_in_no_more_parts_for_its_many_rows() -> None:
    batch = {"input_ids": torch.zeros(400, 512, dtype=torch.int64)}
    model = tiny.build("bert", tiny.THREE, vocab_size=4000)
    parts = parts_by_size(model, mixed=False)(batch)
    cut = named_rows.cut(model, tiny.tokenizer(), "adamw_torch", [{"input_ids": list(range(3000))}])
    assert cut is not None
    assert len(cut.rows.weight) > 10 * model.config.intermediate_size
    assert parts_by_size(model, mixed=False)(batch) == parts > 1


def test_rows_that_wake_late_are_decayed_from_then_on(context: Callable[..., Context]) -> None:
    tricks = Full(gradual_unfreezing=True)
    models = [fitted(context(str(only)), "bert", only, tuner=tricks)[0] for only in (False, True)]
    plain, saving = (model.get_input_embeddings().weight for model in models)
    torch.testing.assert_close(saving, plain, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_has_the_decay_of_all_its_steps(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = fitted(context("whole"), "bert", True, num_train_epochs=2, save_strategy="steps", save_steps=2)
    place = context("stopped")
    end = trainer.StageCallback.on_step_end

    def stopping(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
        place.stop.requested = state.global_step == 5
        return end(self, args, state, control, **keywords)

    monkeypatch.setattr(trainer.StageCallback, "on_step_end", stopping)
    with pytest.raises(Stopped):
        fitted(place, "bert", True, num_train_epochs=2, save_strategy="steps", save_steps=2)
    monkeypatch.undo()
    place.stop.requested = False
    resumed, _ = fitted(place, "bert", True, num_train_epochs=2, save_strategy="steps", save_steps=2)
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name]), name


def test_the_best_checkpoint_has_the_decay_of_its_step(context: Callable[..., Context]) -> None:
    kept = []
    for only in (False, True):
        model, epochs = tiny.build("bert", tiny.THREE), count()
        model, _ = trainer.fit(
            context(f"best-{only}"),
            model,
            tiny.tokenizer(),
            ROWS,
            collate=partial(collate, tiny.tokenizer()),
            loss=classification_loss,
            arguments=ARGUMENTS
            | {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
            | {"metric_for_best_model": "worse", "greater_is_better": False},
            selection=[{"input_ids": [50, 51], "labels": 0, "index": 0}],
            score=lambda logits, labels, epochs=epochs: {"worse": float(next(epochs))},
            only_named_rows=only,
        )
        kept.append(model.get_input_embeddings().weight)
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-5, atol=1e-6)


def test_a_matrix_that_something_else_reads_is_left_whole() -> None:
    writers = (("bert", tiny.MASKED, {}), ("t5", Head("seq2seq_lm"), {"tie_word_embeddings": False}))
    for family, head, words in writers:
        assert named_rows.cut(tiny.build(family, head, **words), tiny.tokenizer(), "adamw_torch", ROWS) is None
    other = tiny.build("bert", tiny.THREE)
    assert named_rows.cut(other, tiny.tokenizer(), "adafactor", ROWS) is None
    other.get_input_embeddings().weight.requires_grad_(False)
    assert named_rows.cut(other, tiny.tokenizer(), "adamw_torch", ROWS) is None


def test_an_id_that_was_not_named_is_refused() -> None:
    rows = NamedRows(torch.nn.Embedding(9, 2), torch.tensor([1, 4]))
    assert torch.equal(rows(torch.tensor([[4, 1]])), rows.weight[[1, 0]][None])
    with pytest.raises(IndexError):
        rows(torch.tensor([3]))


PLACES = [torch.tensor([[1, 4, 4], [0, 2, 1]]), torch.tensor([[3, 4, 0]]), torch.tensor([[2], [2], [5]])]


@pytest.mark.parametrize("padding", [None, 0])
def test_gradients_of_rows_are_those_of_autograd(padding: int | None) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Embedding(6, 3, padding_idx=padding)
    rows = NamedRows(plain, torch.arange(6))
    gradient = rows.gradient = RowGradient(rows.weight, rows.padding_idx)
    # Of one batch, of two, and of rows that the last step had as well.
    for step in (PLACES[:1], PLACES[1:], PLACES[2:]):
        for places in step:
            for each in (plain, rows):
                (each(places).sin() * torch.arange(1.0, 4.0)).sum().backward()
        torch.testing.assert_close(rows.weight.grad, plain.weight.grad, rtol=1e-6, atol=1e-7)
        part = gradient.part()
        assert part is not None
        assert part.grad is not None
        assert len(part.grad) == len({place for places in step for place in places.flatten().tolist()})
        torch.testing.assert_close(part.grad.norm(), plain.weight.grad.norm())
        torch.nn.utils.clip_grads_with_norm_([part], 0.5, part.grad.norm())
        gradient.take_back(part)
        torch.nn.utils.clip_grad_norm_([plain.weight], 0.5)
        torch.testing.assert_close(rows.weight.grad, plain.weight.grad, rtol=1e-5, atol=1e-7)
        for each in (plain, rows):
            each.zero_grad()
    assert gradient.part() is None


def test_a_gradient_that_somebody_else_put_there_is_added_to() -> None:
    rows = NamedRows(torch.nn.Embedding(6, 3), torch.arange(6))
    rows.gradient = RowGradient(rows.weight, None)
    theirs = rows.weight.grad = torch.ones(6, 3)
    rows(PLACES[0]).sum().backward()
    assert rows.weight.grad is theirs
    assert theirs.sum(1).tolist() == [6.0, 9.0, 6.0, 3.0, 9.0, 3.0]
    assert rows.gradient.part() is None


def test_rows_that_do_not_learn_have_no_gradient() -> None:
    rows = NamedRows(torch.nn.Embedding(6, 3), torch.arange(6))
    rows.gradient = RowGradient(rows.weight, None)
    rows.weight.requires_grad_(False)
    assert not rows(PLACES[0]).requires_grad
    rows.weight.requires_grad_(True)
    with torch.no_grad():
        rows(PLACES[0])
    assert rows.weight.grad is None
