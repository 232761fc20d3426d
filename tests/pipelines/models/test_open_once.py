"""One process opens a model, the others make one of its shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, GPT2Config
from transformers.activations import GELUTanh, NewGELUActivation

from pipelines.core.interfaces import Head, World
from pipelines.models import opening
from pipelines.models.open_once import copied, is_opened_once, open_once

HEAD = Head("sequence_classification", ("bad", "good"))
SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def ranks(count: int, head: Head, opened: Callable[[], Any]) -> tuple[list[Any], list[int]]:
    """(what each of `count` processes gets, which of them opened the model). Processes are threads, of which one works at
    a time: transformers changes torch's functions while it makes a model."""
    said: list[Any] = [None] * count
    turn, alone, models, callers = Barrier(count), Lock(), [None] * count, []

    def go(rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            said[rank] = value
            alone.release()
            turn.wait(60)
            values = list(said)
            turn.wait(60)
            alone.acquire()
            return values

        def counted() -> Any:
            callers.append(rank)
            return opened()

        context: Any = SimpleNamespace(world=World(rank, count, "fsdp2"), gather=gather)
        with alone:
            models[rank] = open_once(context, head, counted)

    threads = [Thread(target=go, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return models, sorted(callers)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_to_be_trained_computes_its_gelu_at_once(processes: int) -> None:
    config = GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    plain = AutoModelForCausalLM.from_config(config).eval()
    opened, _ = ranks(processes, Head("causal_lm"), lambda: copied(plain))
    assert [type(each.transformer.h[0].mlp.act) for each in opened] == [GELUTanh] * processes
    assert type(plain.transformer.h[0].mlp.act) is NewGELUActivation
    ids = torch.arange(12)[None]
    torch.testing.assert_close(opened[0](ids).logits, plain(ids).logits, rtol=0, atol=1e-6)


def test_one_opens_and_the_others_have_its_shape(tmp_path: Path) -> None:
    made = BertForSequenceClassification(BertConfig(**SMALL))
    made.base_model.save_pretrained(tmp_path)
    (one, *others), callers = ranks(3, HEAD, lambda: opening.open_folder(tmp_path, HEAD, 3))
    assert callers == [0]
    assert torch.equal(one.bert.embeddings.word_embeddings.weight, made.bert.embeddings.word_embeddings.weight)
    for other in others:
        assert type(other) is type(one)
        assert other.config.to_dict() == one.config.to_dict()
        assert other.finery_new_modules == one.finery_new_modules != []
        assert {name: weight.shape for name, weight in other.named_parameters()} == {
            name: weight.shape for name, weight in one.named_parameters()
        }
        assert not any(weight.any() for weight in other.parameters())
        for (name, buffer), (_, expected) in zip(other.named_buffers(), one.named_buffers(), strict=True):
            assert torch.equal(buffer, expected), name
    assert all(map(is_opened_once, (one, *others)))


def test_weights_that_are_tied_stay_tied() -> None:
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=40, bos_token_id=1, eos_token_id=2)
    (_, other), _ = ranks(2, Head("causal_lm"), lambda: AutoModelForCausalLM.from_config(config))
    assert other.lm_head.weight is other.transformer.wte.weight


class Own(BertForSequenceClassification):
    """Code that the other processes may not have."""


def grown() -> BertForSequenceClassification:
    model = BertForSequenceClassification(BertConfig(**SMALL))
    model.more = torch.nn.Linear(2, 2)
    return model


@pytest.mark.parametrize("opened", [lambda: Own(BertConfig(**SMALL)), grown], ids=["own code", "other weights"])
def test_what_a_configuration_does_not_make_is_opened_by_each(opened: Callable[[], Any]) -> None:
    models, callers = ranks(2, HEAD, opened)
    assert callers == [0, 1]
    assert [type(each) for each in models] == [type(opened())] * 2
    assert not any(map(is_opened_once, models))


def test_a_copy_has_weights_where_the_model_has_them_and_takes_no_memory_elsewhere() -> None:
    shape = SMALL | {"vocab_size": 60_000, "hidden_size": 64}
    (one, other), _ = ranks(2, HEAD, lambda: BertForSequenceClassification(BertConfig(**shape)))
    assert torch.equal(copied(one).bert.embeddings.word_embeddings.weight, one.bert.embeddings.word_embeddings.weight)
    before = resident()
    copies = [copied(other) for _ in range(4)]
    assert resident() - before < 4_000_000  # of 15 MB each
    assert {name: weight.shape for name, weight in copies[0].named_parameters()} == {
        name: weight.shape for name, weight in one.named_parameters()
    }
    copies[0].bert.embeddings.word_embeddings.weight.data.fill_(1)
    assert not other.bert.embeddings.word_embeddings.weight.any()
    assert is_opened_once(copies[0])


def resident() -> int:
    """Bytes of memory that belong to this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
