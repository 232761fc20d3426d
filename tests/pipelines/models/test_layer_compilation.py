"""Layers that are compiled in place compute what they did, and what looks at a model from outside still finds it."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from pipelines.core.interfaces import Head
from pipelines.models import layer_compilation, log_probabilities
from pipelines.models.read_places import can_be_cut, last_layer
from pipelines.objectives.losses import token_loss
from tests import tiny


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def learnt(model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss, _ = token_loss(model, dict(batch))
    loss.backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("family", "kind"), [("finery", "masked_lm"), ("gpt2", "causal_lm"), ("t5", "seq2seq_lm")])
def test_equal_layers_are_compiled_once_and_compute_what_they_did(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probabilities, "LOGITS_KEPT", 0)
    model = tiny.build(family, Head(kind)).train()
    model.config.use_cache = False  # as the loop sets it: a cache would tell one layer from the next
    batch = tiny.batch() | {"labels": torch.full((4, 10), -100)}
    batch["labels"][:, ::3] = batch["input_ids"][:, ::3]
    if kind == "seq2seq_lm":
        batch["decoder_input_ids"] = batch["input_ids"]
    names, plain = list(model.state_dict()), learnt(model, batch)
    for each in ("finery_output_is_last", "finery_narrowing_is_exact"):
        delattr(model, each) if hasattr(model, each) else None
    counter = CompileCounter()
    assert layer_compilation.compile_layers(model, backend=counter) == (4 if kind == "seq2seq_lm" else 2)
    assert list(model.state_dict()) == names
    loss, gradients = learnt(model, batch)
    assert 1 <= counter.frame_count <= (4 if kind == "seq2seq_lm" else 1)
    assert loss == pytest.approx(plain[0], rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain[1][name], rtol=1e-4, atol=1e-6)
    assert model.finery_output_is_last, "losses of large vocabularies are still computed by chunk"
    if (layer := last_layer(model)) is not None:
        assert not can_be_cut(model, layer), "hooks that come later do not reach what was compiled"
        layer_compilation.as_before(model)
        assert can_be_cut(model, layer)


def test_threads_that_run_models_as_written_leave_compiling_as_it_was() -> None:
    @torch.compile(backend=(counter := CompileCounter()))
    def doubled(number: torch.Tensor) -> torch.Tensor:
        return number * 2

    came = Event()

    def other() -> None:
        came.set()
        with layer_compilation.as_written():
            time.sleep(0.3)  # longer than this one is inside, where both could be

    thread = Thread(target=other)
    with layer_compilation.as_written():
        thread.start()
        assert came.wait(10)
        time.sleep(0.1)
        doubled(torch.zeros(2))
        assert counter.frame_count == 0
    thread.join()
    doubled(torch.zeros(2))
    assert counter.frame_count == 1
