"""Tokens a second, utilisation, the memory in use at most since the last reset, and the profile of a few steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.interfaces import PROFILE, Context
from pipelines.trainers import profile, throughput
from pipelines.trainers.profile import KINDS, OTHER, OUTSIDE, kind_of
from pipelines.trainers.throughput import Throughput, matrix_rate, tokens_of
from tests import tiny
from tests.pipelines.trainers.test_trainer import batch_of, examples, simple

CPU = torch.device("cpu")


def test_tokens_are_those_that_are_read():
    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert int(tokens_of({"input_ids": ids, "attention_mask": mask, "labels": ids})) == 8
    assert int(tokens_of({"input_ids": ids})) == 10
    assert int(tokens_of({"input_ids": ids, "attention_mask": mask[:, None, None]})) == 10  # a mask of blocks
    pairs = {"chosen_input_ids": ids, "chosen_attention_mask": mask, "rejected_input_ids": ids[:1]}
    assert int(tokens_of({"one": pairs, "rows": [1, 2]})) == 13
    assert tokens_of({"row": ids}) == 0
    assert tokens_of({"one": pairs, "rows": [1, 2]}, padded=True) == 15


def test_speed_is_of_all_processes_and_of_steps_alone(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(throughput.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(throughput, "SETTLED", 1e9)
    speed = Throughput("no", lambda value: [value, value])
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long)}
    for _ in range(3):
        with speed.step(batch, CPU, False):
            now[0] += 2
        speed.pause()
        now[0] += 50  # evaluation and checkpoints
        speed.resume()
    speed.measure()
    assert speed.latest == {"tokens_per_second": 10.0}  # 2 processes, 30 tokens each, 6 seconds
    with speed.step(batch, CPU, False):
        now[0] += 1
    speed.pause()
    speed.measure()
    assert speed.latest == {"tokens_per_second": 20.0}
    assert speed.total() == {"tokens_per_second": round(80 / 7, 1)}


def test_utilisation_is_the_products_of_a_step_against_the_rate_of_products(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(throughput.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(throughput, "SETTLED", 0.0)
    monkeypatch.setattr(throughput, "matrix_rate", lambda device, precision: 1000.0)
    speed = Throughput("no", lambda value: [value])
    layer, states = torch.nn.Linear(4, 3, bias=False), torch.ones(10, 4)
    mask = torch.zeros(2, 5)
    mask[:, :2] = 1  # what is padded is multiplied too
    with speed.step({"input_ids": torch.ones(2, 5), "attention_mask": mask}, CPU, False):
        layer(states).sum().backward()
        now[0] += 4
    speed.pause()
    assert speed.flops_per_place == 2 * 2 * 4 * 3  # forward, and the gradient of the matrix
    assert speed.total()["utilisation"] == pytest.approx(10 * 48 / 4 / 1000)
    with speed.step({"input_ids": torch.ones(2, 5)}, CPU, False):  # as many products, more tokens
        layer(states).sum().backward()
        now[0] += 4
    speed.pause()
    assert speed.total() == {"tokens_per_second": 1.8, "utilisation": 0.12}
    compiled = Throughput("no", lambda value: [value])
    with compiled.step({"input_ids": torch.ones(2, 5)}, CPU, True):
        layer(states)
    assert compiled.flops_per_place is None


@pytest.mark.parametrize("family", ["bert", "gpt2", "finery"])
def test_counting_changes_no_gradient(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throughput, "SETTLED", 0.0)
    model, batch = tiny.build(family, tiny.THREE).train(), batch_of(examples("classification")[:4])
    gradients, states = [], []
    for counted in (False, True):
        torch.manual_seed(1)
        model.zero_grad()
        with Throughput("no", lambda value: [value]).step(batch, CPU, not counted):
            model(**batch).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_the_rate_is_above_that_of_small_products_and_draws_from_no_shared_generator():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert matrix_rate(CPU, "no") > 1e8
    assert torch.equal(torch.get_rng_state(), state)


def test_events_and_metrics_carry_the_speed(context: Callable[..., Context], events: Any, monkeypatch: Any):
    monkeypatch.setattr(throughput, "SETTLED", 0.0)
    place = context()
    _, metrics = simple(place, examples("classification"), arguments={"max_steps": 6})
    latest = [event for event in events(place) if event["event"] == "progress"][-1]
    assert latest["tokens_per_second"] > 0
    assert 0 < latest["utilisation"] < 1.5
    assert metrics["train_tokens_per_second"] > 0
    assert 0 < metrics["train_utilisation"] < 1.5


@pytest.mark.parametrize("steps", [2, 9, pytest.param(30, marks=pytest.mark.long)])
def test_a_profile_says_where_the_time_of_a_step_goes(
    steps: int, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(PROFILE, "1")
    if steps < 30:
        monkeypatch.setattr(profile, "WATCHED", 3)  # writing what was seen of a step takes a quarter of a second
    place = context()
    simple(place, examples("classification"), arguments={"max_steps": steps, "save_strategy": "no"})
    found = json.loads((place.folder / "profile.json").read_text())
    assert found["steps"] == {2: 2, 9: 3, 30: 10}[steps]
    assert sum(found["kinds"].values()) == pytest.approx(found["seconds_per_step"], rel=0.05)
    assert found["kinds"].keys() <= {*KINDS, OTHER, OUTSIDE}
    assert found["kinds"]["matrix products"] > 0
    assert found["kinds"]["optimizer"] > 0
    assert found["flops_per_step"] > 0
    assert 0 < found["utilisation"] < 1
    assert (place.folder / "trace.json.gz").stat().st_size > 1000


def test_nothing_is_watched_unasked(context: Callable[..., Context]):
    place = context()
    simple(place, examples("classification"), arguments={"max_steps": 1, "save_strategy": "no"})
    assert not (place.folder / "profile.json").exists()


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::native_dropout", "random numbers"),
        ("aten::_softmax", "attention"),
        ("aten::_log_softmax", "losses"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("aten::native_layer_norm", "normalisation"),
        ("aten::copy_", "casts and copies"),
        ("aten::gelu", OTHER),
    ],
)
def test_operations_count_as_what_their_names_say(operation: str, kind: str):
    assert kind_of(operation) == kind


LARGE = 200 * 2**20


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or torch.cuda.is_available(), reason="measures the host's memory"
)
def test_a_peak_is_seen_after_it_is_over_and_forgotten_by_a_reset() -> None:
    throughput.reset_peak_memory()
    before = throughput.peak_memory()
    large = np.ones(LARGE, dtype=np.uint8)
    del large
    after = throughput.peak_memory()
    assert LARGE * 0.9 < after - before < LARGE * 1.5
    throughput.reset_peak_memory()
    assert throughput.peak_memory() < after - LARGE * 0.5
