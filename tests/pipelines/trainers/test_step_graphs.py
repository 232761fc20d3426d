"""Steps that are recorded and replayed: what is learnt is what steps launched one by one learn. A recording is played
by calling its work again here; `make test-gpu` holds CUDA graphs against launched steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipelines.core.errors import StageError
from pipelines.core.interfaces import Context, Head
from pipelines.objectives.losses import Meter, Told, classification_loss
from pipelines.trainers import step_graphs, trainer
from pipelines.trainers.dpo_settings import DPOArguments
from pipelines.trainers.dpo_step import PreferenceStep
from pipelines.trainers.reference import FrozenCopy
from pipelines.trainers.step_graphs import SEEN, Replay, StepGraphs, can_be_recorded
from tests import tiny
from tests.pipelines.trainers.test_trainer import batch_of, examples


class Played:
    """Records by keeping the work, and counts what it recorded and replayed."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Replay) -> Replay:
        self.recorded += 1

        def replay() -> tuple[Tensor, Told]:
            self.replayed += 1
            return work()

        return replay


class Model(nn.Module):
    """Words and two layers, of which batches of three columns reach one only; and a weight that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.one, self.other = nn.Embedding(20, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.unread = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        states = self.one(self.words(ids))
        return self.other(states).sum() if ids.shape[1] == 3 else states.square().sum()


def passes(model: nn.Module, batch: dict[str, Tensor], items: Tensor | None) -> Tensor:
    loss: Tensor = model(batch["ids"]) / (1 if items is None else items)
    loss.backward()
    return loss.detach()


def batch(number: int, rows: int = 2) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 20, (rows, 3 + number % 2), generator=torch.Generator().manual_seed(number))}


def learnt(graphs: Callable[[nn.Module], StepGraphs] | None, accumulated: int) -> tuple[nn.Module, list[float]]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    recorded, losses = None if graphs is None else graphs(model), []
    for step in range(12):
        for part in range(accumulated):
            given, items = batch(accumulated * step + part), torch.tensor(3.0 + step)
            work = partial(passes, model)
            loss = work(given, items) if recorded is None else recorded.loss(given, items, work)
            losses.append(loss.item())
        optimizer.step()
        model.zero_grad()
    return model, losses


@pytest.mark.parametrize("accumulated", [1, 2, 3])
def test_replayed_steps_learn_what_launched_ones_learn(accumulated: int) -> None:
    played = Played()
    plain, expected = learnt(None, accumulated)
    model, losses = learnt(lambda model: StepGraphs(model, record=played), accumulated)
    assert losses == expected
    for name, weight in plain.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name
    assert played.recorded == 2  # shapes
    assert played.replayed == 12 * accumulated - 2 * SEEN
    assert torch.equal(model.get_parameter("unread"), torch.ones(3))  # no gradient, so no weight decay


def test_preferences_are_learnt_alike_and_told_alike() -> None:
    """The reference is asked within the recorded step, and every place of a batch in place of the named ones."""
    played, found = Played(), []
    for recorded in (False, True):
        policy, meter = tiny.build("gpt2", Head("causal_lm"), seed=0), Meter()
        step = PreferenceStep({"sigmoid": 1.0}, DPOArguments(), FrozenCopy.of(policy), meter)
        graphs = StepGraphs(policy, record=played, meter=meter) if recorded else None
        optimizer, losses = torch.optim.SGD(policy.parameters(), lr=0.1), []

        def learn(given: dict[str, Tensor], items: Tensor | None, step: Any = step, policy: Any = policy) -> Tensor:
            loss = step(policy, given)[0].sum()
            loss.backward()
            return loss.detach()

        for number in range(8):
            given = pairs_of(number)
            losses.append(learn(given, None) if graphs is None else graphs.loss(given, None, learn))
            optimizer.step()
            policy.zero_grad()
        found.append((torch.stack(losses), meter.take(True), policy))
    assert (played.recorded, played.replayed) == (2, 8 - 2 * SEEN)
    (losses, told, plain), (others, also_told, policy) = found
    assert torch.allclose(losses, others, rtol=1e-5)
    assert told == pytest.approx(also_told, rel=1e-4)
    for name, weight in plain.named_parameters():
        assert torch.allclose(weight, policy.get_parameter(name), atol=1e-5), name


def pairs_of(number: int) -> dict[str, Tensor]:
    """Two pairs, the second of which only fills the batch up; of two lengths in turn."""
    length, generator = 6 + number % 2, torch.Generator().manual_seed(number)
    ids = torch.randint(5, 40, (4, length), generator=generator)
    labels = torch.cat([ids[:, 1:], torch.full((4, 1), -100)], dim=1)
    labels[:, :2] = -100
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
        "pairs": torch.tensor([1, -100]),
    }


def test_losses_stay_what_they_were_when_the_next_step_is_replayed() -> None:
    place = torch.zeros(())

    def record(work: Replay) -> Replay:
        return lambda: (place.copy_(work()[0]), [])  # as a graph writes it to the same memory again

    model = Model()
    graphs = StepGraphs(model, record=record)
    losses = [graphs.loss(batch(2 * number), None, partial(passes, model)) for number in range(6)]
    assert len({loss.item() for loss in losses}) == 6


@pytest.mark.parametrize("error", ["called a synchronizing CUDA operation", "shapes do not fit"])
def test_steps_that_wait_are_launched_as_before(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, told, played = Model(), [], Played()
    rehearsing = False

    class Rehearsal:
        def __enter__(self) -> None:
            nonlocal rehearsing
            rehearsing = True

        def __exit__(self, *_: object) -> None:
            nonlocal rehearsing
            rehearsing = False

    def work(given: dict[str, Tensor], items: Tensor | None) -> Tensor:
        loss = passes(model, given, items)
        if rehearsing:
            raise RuntimeError(error)
        return loss

    monkeypatch.setattr(step_graphs, "rehearsal", Rehearsal)
    graphs = StepGraphs(model, told.append, played)
    for _ in range(SEEN):
        graphs.loss(batch(0), None, work)
    held = {name: weight.grad for name, weight in model.named_parameters()}
    if "synchronizing" not in error:
        with pytest.raises(RuntimeError, match="do not fit"):
            graphs.loss(batch(0), None, work)
        return
    expected = work(batch(0), None)
    assert graphs.loss(batch(0), None, work) == expected
    assert all(weight.grad is held[name] for name, weight in model.named_parameters())
    graphs.loss(batch(0), None, work)
    assert played.recorded == 0
    assert told == [f"steps are not recorded as CUDA graphs, because they wait for the GPU ({error})"]


def test_what_cannot_be_recorded_says_what_to_do() -> None:
    def record(work: Replay) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might …")

    model = Model()
    graphs = StepGraphs(model, record=record)
    for _ in range(SEEN):
        graphs.loss(batch(0), None, partial(passes, model))
    with pytest.raises(StageError, match=r"not permitted when stream is capturing; set arguments.torch_compile: true"):
        graphs.loss(batch(0), None, partial(passes, model))


def test_large_steps_and_rare_shapes_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    model, played = Model(), Played()
    monkeypatch.setattr(step_graphs, "MOST", 1)
    monkeypatch.setattr(step_graphs, "MOST_OPERATIONS", 6 * (2 * 20 + 3) * 8)  # two rows of four, words not counted
    graphs = StepGraphs(model, record=played)
    for _ in range(SEEN + 2):
        for number, rows in ((0, 2), (1, 2), (1, 3)):
            graphs.loss(batch(number, rows), None, partial(passes, model))
    # three columns; the others are one shape too many, and too large
    assert (played.recorded, played.replayed) == (1, 2)
    assert graphs.loss({"ids": batch(0)["ids"], "names": ["a"]}, None, partial(passes, model)).ndim == 0


def test_a_stage_trains_the_same(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played()
    monkeypatch.setattr(trainer, "can_be_recorded", lambda *_: True)
    monkeypatch.setattr(step_graphs, "Recorder", lambda: played)
    found = []
    for same_steps in (False, True):
        arguments = {"num_train_epochs": 4, "logging_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
        model, metrics = trainer.fit(
            context(f"{same_steps}"),
            tiny.build("bert", tiny.THREE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            tiny.tokenizer(),
            examples("classification"),
            collate=batch_of,
            loss=classification_loss,
            arguments=arguments,
            same_steps=same_steps,
        )
        found.append((model.state_dict(), metrics["train_loss"]))
    assert played.replayed > 4
    assert found[0][1] == found[1][1]
    for name, weight in found[0][0].items():
        assert torch.equal(weight, found[1][0][name]), name


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"device": torch.device("cpu")},
        {"world_size": 2},
        {"n_gpu": 2},
        {"fp16": True},
        {"torch_compile": True},
        {"activation_checkpointing": True},
        {"torch_empty_cache_steps": 4},
        {"config": {"layerdrop": 0.1}},
        {"config": {"encoder_layerdrop": 0.1}},
        {"config": {"decoder_layerdrop": 0.1}},
        {"tuner": True},
        {"hf_quantizer": object()},
    ],
)
def test_settings_that_a_recording_could_not_follow(change: dict[str, Any]) -> None:
    names = ("fp16", "torch_compile", "activation_checkpointing")
    args = {"device": torch.device("cuda"), "world_size": 1, "n_gpu": 1, "torch_empty_cache_steps": None}
    given: Any = SimpleNamespace(**args | dict.fromkeys(names, False) | change)
    config = SimpleNamespace(**change.get("config", {}))
    model: Any = SimpleNamespace(config=config, hf_quantizer=change.get("hf_quantizer"))
    tuner: Any = SimpleNamespace(unfreezes=change.get("tuner", False))
    assert can_be_recorded(model, given, tuner) == (change == {})
