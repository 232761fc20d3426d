"""Frozen layers asked once: the same losses and weights as asking them in each step, and whose features are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.errors import Stopped
from pipelines.core.interfaces import Context
from pipelines.data.encoding import collate
from pipelines.objectives.losses import classification_loss
from pipelines.trainers import frozen_features, trainer
from pipelines.trainers.frozen_layers import stack_of
from pipelines.tuners.adapter import Adapter
from pipelines.tuners.bitfit import BitFit
from pipelines.tuners.full import Full
from pipelines.tuners.fusion import Fusion
from pipelines.tuners.ia3 import IA3
from pipelines.tuners.last_layer import LastLayer
from pipelines.tuners.lora import LoRA
from pipelines.tuners.p_tuning import PTuning
from pipelines.tuners.prefix import Prefix
from pipelines.tuners.prompt import Prompt
from tests import tiny
from tests.covering import covering
from tests.pipelines.trainers.test_trainer import examples, weights

ARGUMENTS = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-2,
    "optim": "sgd",  # which makes no whole steps of rounding
    "logging_steps": 1,
    "save_strategy": "no",
}
HEAD, TOP = LastLayer(), LastLayer(layers=1)
UPPER = LoRA(r=2, layers_to_transform=1)
GRADUAL = Full(gradual_unfreezing=True)
WAKING = {"shape": {"num_hidden_layers": 3}, "arguments": {"num_train_epochs": 5}}
"""Three layers and an epoch for each, after one for the head and before one for the embeddings."""


def fitted(
    place: Context, once: bool, family: str = "bert", tuner: Any = HEAD, loss: Any = classification_loss, **more: Any
) -> tuple[Any, dict[str, float]]:
    shape = {"dropout": more.pop("dropout", False), **more.pop("shape", {})}
    model = tuner.apply(tiny.build(family, tiny.THREE, **shape))
    rows = more.pop("rows", None) or examples("classification")
    return trainer.fit(
        place,
        model,
        tiny.tokenizer(),
        rows,
        collate=partial(collate, tiny.tokenizer()),
        loss=loss,
        arguments=ARGUMENTS | more.pop("arguments", {}),
        tuner=tuner,
        frozen_once=once,
        **more,
    )


def kept(place: Context) -> list[Any]:
    return sorted(place.cache.glob("features-*.npy"))


def close(once: Any, plain: Any) -> None:
    expected = weights(plain)
    for name, weight in weights(once).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers of BERT were asked, at each pass through one."""
    from transformers.models.bert.modeling_bert import BertLayer

    passes: list[int] = []
    whole = BertLayer.forward

    def counting(self: Any, *given: Any, **words: Any) -> Any:
        passes.append(1)
        return whole(self, *given, **words)

    monkeypatch.setattr(BertLayer, "forward", counting)
    return passes


PLAIN = covering(
    product(("bert", "finery", "gpt2", "distilbert", "llama", "modernbert"), (HEAD, TOP)),
    name=lambda family, tuner: f"{family}-{'layer' if tuner.layers else 'head'}",
)
ADAPTED = {
    "lora": ("bert", UPPER),
    "dora": ("finery", LoRA(r=2, layers_to_transform=1, use_dora=True, lora_alpha=4)),
    "pissa": ("bert", LoRA(r=2, layers_to_transform=1, init_lora_weights="pissa")),
    "lora gpt2": ("gpt2", UPPER),
    "lora llama": ("llama", LoRA(r=2, target_modules=("q_proj", "down_proj"), layers_to_transform=1)),
    "lora by name": ("bert", LoRA(r=2, exclude_modules=("layer.0",))),
    "ia3": ("bert", IA3(target_modules=("layer.1.attention.self.key", "layer.1.attention.self.value"))),
    "houlsby": ("bert", Adapter(layers=(1,), reduction_factor=4)),
    "parallel": ("finery", Adapter(layers=(1,), kind="parallel", reduction_factor=4)),
    "freeze": ("bert", Full(freeze=("embeddings", "encoder.layer.0"))),
    "train": ("modernbert", Full(train=("layers.1",))),
}


ALSO = ("dora", "pissa", "lora gpt2", "lora llama", "lora by name", "parallel", "train")
"""Other ways to the same cut."""


@pytest.mark.parametrize(
    ("family", "tuner"),
    [
        *PLAIN,
        *(
            pytest.param(*case, id=name, marks=pytest.mark.long if name in ALSO else ())
            for name, case in ADAPTED.items()
        ),
    ],
)
def test_losses_and_weights_are_those_of_asking_in_each_step(
    family: str, tuner: Any, context: Callable[..., Context], events: Any
):
    (plain, metrics), (once, same) = (fitted(context(str(way)), way, family, tuner) for way in (False, True))
    assert len(kept(context("True"))) == 1
    close(once, plain)
    assert same["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-5)
    assert same["trainable_parameters"] == metrics["trainable_parameters"]
    assert all("forward" not in vars(module) for module in once.modules())  # layers compute again
    inputs = tiny.batch()
    assert torch.allclose(tiny.logits(once, inputs), tiny.logits(plain, inputs), atol=1e-4)
    untouched = weights(tuner.apply(tiny.build(family, tiny.THREE)))
    assert not all(torch.equal(weight, untouched[name]) for name, weight in weights(once).items())  # it learns


def test_frozen_layers_are_asked_once_for_all_epochs_and_runs(context: Callable[..., Context], asked: list[int]):
    fitted(context("first"), True)
    first = len(asked)
    fitted(context("second"), True, arguments={"learning_rate": 1e-3, "num_train_epochs": 9})
    again = len(asked) - first
    assert again < first  # the look at both ways, no layer in a step
    assert again <= 6
    fitted(context("plain"), False)
    assert len(asked) - first - again == 2 * 8  # two layers, eight steps
    assert len(kept(context("first"))) == 1


@pytest.mark.parametrize("family", [pytest.param("bert", marks=pytest.mark.long), "finery"])
def test_layers_that_wake_see_what_they_would_have_seen(family: str, context: Callable[..., Context]):
    more = {"selection": examples("classification", 6), "score": lambda logits, labels: {"mean": float(logits.mean())}}
    each = WAKING | {"arguments": {"num_train_epochs": 5, "eval_strategy": "epoch"}}
    (plain, metrics), (once, same) = (
        fitted(context(str(way)), way, family, GRADUAL, **more, **each, only_named_rows=True) for way in (False, True)
    )
    assert len(kept(context("True"))) == 3  # below the head, the third and the second layer
    close(once, plain)
    assert same["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-5)
    assert same["eval_mean"] == pytest.approx(metrics["eval_mean"], abs=1e-5)
    assert all(weight.requires_grad for weight in once.parameters())


def test_one_pass_through_each_layer_serves_all_phases(context: Callable[..., Context], asked: list[int]):
    fitted(context("first"), True, tuner=GRADUAL, **WAKING)
    steps = 4 * (0 + 1 + 2 + 3 + 3)  # four an epoch, through the layers that learn
    tried = 3 + 3 + (0 + 1 + 2) + 3  # the whole model, its states, it with those of each cut, its graph
    assert len(asked) == 3 + tried + steps  # 16 short examples are asked together
    fitted(context("second", seed=8), True, tuner=GRADUAL, **WAKING)
    assert len(asked) == 3 + 2 * (tried + steps)
    fitted(context("plain"), False, tuner=GRADUAL, **WAKING)
    assert len(asked) == 3 + 2 * (tried + steps) + 4 * 5 * 3
    assert len(kept(context("first"))) == 3


@pytest.mark.parametrize(
    ("stop_at", "dropout"),
    [
        pytest.param(stop_at, dropout, marks=() if (stop_at, dropout) in ((6, True), (18, False)) else pytest.mark.long)
        for stop_at, dropout in product((6, 18, 2, 10, 12), (False, True))
    ],
)
def test_a_stop_while_layers_wake_resumes_to_the_bit(stop_at: int, dropout: bool, context: Callable[..., Context]):
    """In the middle of epochs, at the end of one, and once everything learns; the files gone meanwhile."""
    words = WAKING | {"tuner": GRADUAL, "dropout": dropout, "only_named_rows": True}
    words |= {
        "selection": examples("classification", 6),
        "score": lambda logits, labels: {"mean": float(logits.mean())},
    }
    words["arguments"] = words["arguments"] | {
        "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True,
        "metric_for_best_model": "mean", "optim": "adamw_torch_fused", "learning_rate": 1e-3,
    }  # fmt: skip
    whole, metrics = fitted(context("whole"), True, **words)
    first, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(model.training)
        first.stop.requested = sum(calls) == stop_at
        return classification_loss(model, inputs)

    with pytest.raises(Stopped, match=f"at step {stop_at} of 20"):
        fitted(first, True, loss=stopping, **words)
    for file in kept(first):
        file.unlink()
    resumed, after = fitted(context("stopped"), True, **words)
    expected = weights(whole)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())
    assert after["train_loss"] == metrics["train_loss"]
    assert after["eval_mean"] == metrics["eval_mean"]


def test_dropout_of_frozen_layers_is_left_out_and_that_of_the_rest_stays(context: Callable[..., Context]):
    (once, _), (again, _) = (fitted(context(name), True, dropout=True) for name in ("one", "two"))
    plain, _ = fitted(context("plain"), False, dropout=True)
    head = [weights(model)["classifier.weight"] for model in (once, again, plain)]
    assert torch.equal(head[0], head[1])
    assert not torch.allclose(head[0], head[2], atol=1e-4)


def test_what_it_depends_on_names_the_file(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch):
    once = {"num_train_epochs": 1}
    fitted(context("one"), True, arguments=once)
    build = tiny.build
    monkeypatch.setattr(tiny, "build", lambda *given, **words: build(*given, seed=5, **words))  # other weights
    fitted(context("two"), True, arguments=once)
    fitted(context("three", precision="bf16"), True, arguments=once)
    fitted(context("four"), True, rows=examples("classification", 15), arguments=once)
    assert len(kept(context("one"))) == 4


def test_another_seed_reads_the_file_whatever_it_sets_aside(
    context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
):
    """Another order of rows, another head, other adapters, other rows set aside: the layers below are the same."""
    build = tiny.build
    before = []
    for seed in (1, 2):

        def of_seed(*given: Any, seed: int = seed, **words: Any) -> Any:
            model = build(*given, **words)
            torch.manual_seed(seed)
            torch.nn.init.normal_(model.classifier.weight, std=0.02)
            model.finery_new_modules = ("classifier",)
            return model

        monkeypatch.setattr(tiny, "build", of_seed)
        rows = [dict(row) for row in examples("classification")]
        aside = np.random.default_rng(seed).permutation(16)
        learnt, selection = [rows[at] for at in aside[4:]], [rows[at] for at in aside[:4]]
        place = context(f"seed-{seed}", seed=seed)
        more = {"selection": selection, "arguments": {"eval_strategy": "epoch"}}
        fitted(place, True, tuner=UPPER, rows=learnt, **more)
        before.append([event for event in events(place) if "frozen layers" in str(event.get("what"))])
    assert [len(each) for each in before] == [1, 0]
    assert len(kept(context("seed-1"))) == 1


def test_tuners_with_the_same_frozen_layers_read_the_same_file(context: Callable[..., Context]):
    for number, tuner in enumerate((TOP, UPPER, Adapter(layers=(1,)), Full(freeze=("embeddings", "layer.0")))):
        fitted(context(str(number)), True, tuner=tuner, rows=examples("classification", 4))
    assert len(kept(context("0"))) == 1
    fitted(context("gradual"), True, tuner=GRADUAL, rows=examples("classification", 4))
    assert len(kept(context("0"))) == 2  # and that below the head


def test_a_mix_of_frozen_adapters_in_upper_layers_leaves_the_lower_ones_frozen(context: Callable[..., Context]):
    place = context("adapters")
    for number in range(2):
        adapted = Adapter(layers=(1,), kind="pfeiffer").apply(tiny.build("bert", tiny.THREE))
        tiny.disturb(adapted, seed=number)
        Adapter(layers=(1,)).save(adapted, place.folder / str(number))
    tuner = Fusion(adapters=("one", "two")).given({"one": place.folder / "0", "two": place.folder / "1"})
    (plain, _), (once, _) = (fitted(context(str(way)), way, tuner=tuner) for way in (False, True))
    assert len(kept(place)) == 1
    close(once, plain)


def test_equal_rows_lie_there_once(context: Callable[..., Context]):
    rows = examples("classification", 8)
    fitted(context("once"), True, rows=rows)
    fitted(context("twice"), True, rows=[*rows, *({**row, "index": 8 + at} for at, row in enumerate(rows))])
    assert len(kept(context("once"))) == 1
    tokens = sum(len(row["input_ids"]) for row in rows)
    assert np.load(kept(context("once"))[0]).shape == (tokens, 32)


@pytest.mark.parametrize(
    ("family", "tuner"),
    [
        ("bert", Full()),
        ("bert", Full(freeze=("embeddings",))),
        ("bert", Full(freeze=("layer.0",))),
        ("bert", LoRA(r=2)),
        ("bert", LoRA(r=2, layers_to_transform=0)),
        ("bert", LoRA(r=2, layers_to_transform=1, bias="all")),
        ("bert", LoRA(r=2, layers_to_transform=1, modules_to_save=("word_embeddings",))),
        ("bert", IA3()),
        ("bert", Adapter()),
        ("bert", BitFit(biases="query_and_intermediate")),
        ("bert", Prompt(num_virtual_tokens=3)),
        ("bert", PTuning(num_virtual_tokens=3)),
        ("bert", Prefix(num_virtual_tokens=3)),
        ("distilbert", Prefix(num_virtual_tokens=3)),
    ],
    ids=[
        "full", "embeddings frozen", "a layer frozen", "lora", "lora in the first", "all biases", "embeddings learn",
        "ia3", "adapter", "bitfit", "prompt", "p_tuning", "prefix", "prefix in attention",
    ],
)  # fmt: skip
def test_where_the_lowest_weights_learn_nothing_is_kept(family: str, tuner: Any, context: Callable[..., Context]):
    place = context()
    fitted(place, True, family, tuner, rows=examples("classification", 4), arguments={"num_train_epochs": 1})
    assert not kept(place)


@pytest.mark.parametrize(
    "family", [*(pytest.param(name, marks=pytest.mark.long) for name in ("electra", "roberta")), "deberta-v2", "xlnet"]
)
def test_other_families_are_served_or_asked_in_each_step(family: str, context: Callable[..., Context]):
    """XLNet's states have the length first."""
    (plain, _), (once, _) = (fitted(context(str(way)), way, family, TOP) for way in (False, True))
    assert len(kept(context("True"))) == (family != "xlnet")
    close(once, plain)


def test_a_model_of_two_stacks_is_asked_in_each_step():
    assert stack_of(TOP.apply(tiny.build("t5", tiny.THREE))) is None


def test_a_weight_of_no_layer_that_is_read_below_and_learns_is_found(context: Callable[..., Context]):
    """DeBERTa-v2's convolution stands beside the layers and changes what the first one answers."""
    shape = {"conv_kernel_size": 3, "num_hidden_layers": 3}
    place, names = context(), ("encoder.layer.2", "encoder.conv")
    fitted(place, True, "deberta-v2", Full(train=names), shape=shape, arguments={"num_train_epochs": 1})
    assert not kept(place)
    fitted(place, True, "deberta-v2", Full(train=names[:1]), shape=shape, arguments={"num_train_epochs": 1})
    assert len(kept(place)) == 1


def test_fewer_steps_than_examples_ask_in_each_step(context: Callable[..., Context]):
    place = context()
    fitted(place, True, arguments={"max_steps": 2})
    fitted(place, True, tuner=GRADUAL, arguments={"max_steps": 2})
    assert not kept(place)


def test_packed_blocks_and_options_are_asked_in_each_step(context: Callable[..., Context]):
    model = HEAD.apply(tiny.build("gpt2", tiny.THREE))
    for rows in ([{"parts": [{"input_ids": [5, 6]}]}] * 4, [{"input_ids": [[5, 6], [5, 7]]}] * 4):
        asked = (model, HEAD, 3, list, classification_loss, None, torch.device("cpu"), rows)
        assert frozen_features.compute_once(context(), *asked) is None


def test_a_model_that_answers_otherwise_to_features_is_asked_in_each_step(context: Callable[..., Context]):
    """ALBERT's one layer is asked again and again: what it answers first is not what the head reads."""
    place = context()
    fitted(place, True, "albert", arguments={"num_train_epochs": 1})
    assert stack_of(HEAD.apply(tiny.build("albert", tiny.THREE))) is not None
    assert not kept(place)


@pytest.mark.parametrize("full_when", ["asked", "written"])
def test_a_full_disk_leaves_the_layers_to_each_step(
    full_when: str, context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
):
    plain, _ = fitted(context("plain"), False, tuner=UPPER)
    if full_when == "asked":
        monkeypatch.setattr(frozen_features.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    else:

        def fallocate(*given: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", fallocate)
    place = context("full")
    once, _ = fitted(place, True, tuner=UPPER)
    assert not list(place.cache.iterdir())
    (warning,) = [event["message"] for event in events(place) if event["event"] == "warning"]
    assert warning.startswith("frozen layers are computed in each step")
    assert all(torch.equal(weight, weights(plain)[name]) for name, weight in weights(once).items())


def test_the_highest_cuts_are_kept_where_all_files_would_be_too_large(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    plain, _ = fitted(context("plain"), False, tuner=GRADUAL, **WAKING)
    tokens = sum(len(row["input_ids"]) for row in examples("classification"))
    monkeypatch.setattr(frozen_features, "MOST_BYTES", 2 * tokens * 32 * 4 + 1)
    once, _ = fitted(context("two"), True, tuner=GRADUAL, **WAKING)
    assert len(kept(context("two"))) == 2
    close(once, plain)


def test_a_stop_resumes_to_the_bit_and_rows_set_aside_are_scored(context: Callable[..., Context]):
    more = {"selection": examples("classification", 6), "score": lambda logits, labels: {"mean": float(logits.mean())}}
    each = {"arguments": {"eval_strategy": "epoch", "save_strategy": "epoch"}}
    whole, metrics = fitted(context("whole"), True, **more, **each)
    assert "eval_mean" in metrics
    first, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(1)
        first.stop.requested = len(calls) >= 6
        return classification_loss(model, inputs)

    with pytest.raises(Stopped):
        fitted(first, True, loss=stopping, **more, **each)
    resumed, after = fitted(context("stopped"), True, **more, **each)
    expected = weights(whole)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())
    assert after["eval_mean"] == metrics["eval_mean"]
    _, other = fitted(context("plain"), False, **more, **each)
    assert other["eval_mean"] == pytest.approx(metrics["eval_mean"], abs=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {"dataloader_num_workers": 1},
        pytest.param({"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, marks=pytest.mark.long),
        {"activation_checkpointing": True},
    ],
    ids=["workers", "persistent", "checkpointing"],
)
def test_batches_made_elsewhere_and_layers_computed_twice_follow_the_phase(
    more: dict[str, Any], context: Callable[..., Context]
):
    plain, _ = fitted(context("plain"), False, tuner=GRADUAL, **WAKING)
    words = WAKING | {"arguments": WAKING["arguments"] | more}
    once, _ = fitted(context("once"), True, tuner=GRADUAL, **words)
    assert len(kept(context("once"))) == (0 if "dataloader_persistent_workers" in more else 3)
    close(once, plain)


def test_the_first_token_alone_is_tried_on_the_text_itself(context: Callable[..., Context]):
    """The trial reads two rows: the features of the batch are not theirs."""
    loss = partial(classification_loss, head_alone=True)
    (plain, _), (once, _) = (fitted(context(str(way)), way, tuner=TOP, loss=loss) for way in (False, True))
    assert plain.finery_text_place == "first"
    assert once.finery_text_place == "first"
    close(once, plain)


def test_features_lie_where_the_tokens_lie():
    together = frozen_features.with_features(partial(collate, tiny.tokenizer()))
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]
    states = [np.arange(6, dtype=np.float32).reshape(3, 2), np.full((1, 2), 9, np.float32)]
    batch = together([{**row, frozen_features.FEATURES: own} for row, own in zip(rows, states, strict=True)])
    laid = batch[frozen_features.FEATURES]
    assert laid.shape == (2, 3, 2)
    assert torch.equal(laid[0], torch.from_numpy(states[0]))
    assert laid[1].tolist() == [[9, 9], [0, 0], [0, 0]]
