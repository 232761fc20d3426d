"""Outputs of batches on all processes, and progress events."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core import costs
from pipelines.core.errors import DataError, ModelError
from pipelines.core.events import EventLog, read_events
from pipelines.core.interfaces import Head, Rows, World
from pipelines.models import predict as module
from pipelines.models.predict import batched_by_length, predict, progress_events, rows_at_once, usable_length
from tests import tiny


def one_by_one(model, tokenizer, rows: Rows, max_length: int) -> np.ndarray:
    """The plain way: each text alone, never padded."""
    pairs = rows.pairs or [None] * len(rows)
    with torch.no_grad():
        return np.stack(
            [
                model(**tokenizer(text, pair, truncation=True, max_length=max_length, return_tensors="pt"))
                .logits[0]
                .numpy()
                for text, pair in zip(rows.texts, pairs, strict=True)
            ]
        )


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_every_text_gets_its_own_logits_in_its_own_place(classifier, tokenizer, sentences, batch_size):
    model = classifier(3)
    expected = one_by_one(model, tokenizer, sentences, 16)
    assert np.abs(expected - expected[0]).max() > 0.1  # the probe itself works: texts differ
    found = predict(model, tokenizer, sentences, 16, batch_size=batch_size)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pairs_keep_their_segments(classifier, tokenizer):
    rows = Rows(["the cat sleeps", "a good film"], ["the dog runs .", "dull"], None, [0, 1])
    model = classifier()
    found = predict(model, tokenizer, rows, 32)
    np.testing.assert_allclose(found, one_by_one(model, tokenizer, rows, 32), atol=1e-5)
    swapped = Rows(rows.pairs, rows.texts, None, [0, 1])
    assert np.abs(found - predict(model, tokenizer, swapped, 32)).max() > 1e-3


def test_a_model_in_training_mode_and_half_precision_is_asked_without_dropout_in_fp32(classifier, tokenizer, sentences):
    model = classifier()
    expected = predict(model, tokenizer, sentences, 32)
    model.train()
    np.testing.assert_array_equal(predict(model, tokenizer, sentences, 32), expected)
    assert not model.training
    assert predict(model.to(torch.bfloat16), tokenizer, sentences, 32).dtype == np.float32
    assert next(model.parameters()).dtype == torch.float32


def together(world_size: int, work) -> list:
    """Run `work(world, gather)` for each rank in threads of this process, as processes would."""
    barrier, values, results = threading.Barrier(world_size), [None] * world_size, [None] * world_size

    def rank(number: int) -> None:
        def gather(value):
            values[number] = value
            barrier.wait(60)
            every = list(values)
            barrier.wait(60)
            return every

        results[number] = work(World(number, world_size), gather)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


@pytest.mark.parametrize("world_size", [2, 3, 50])
def test_many_processes_give_the_same_bits_as_one(classifier, tokenizer, sentences, world_size):
    model, computed = classifier(), []
    alone = predict(model, tokenizer, sentences, 32, batch_size=4)
    models = [copy.deepcopy(model) for _ in range(world_size)]  # a process has a model of its own
    for model in models:
        model.register_forward_hook(lambda module, inputs, outputs: computed.append(len(outputs.logits)))
    every = together(
        world_size,
        lambda world, gather: predict(
            models[world.rank], tokenizer, sentences, 32, world=world, gather=gather, batch_size=4
        ),
    )
    for logits in every:
        np.testing.assert_array_equal(logits, alone)
    assert sum(computed) == len(sentences)  # each example once, over all processes


@pytest.mark.parametrize(("copies", "filled"), [(1, 0), (5, 2048)])
def test_little_is_padded(classifier, tokenizer, sentences, copies, filled, monkeypatch):
    model, tokens = classifier(), []
    monkeypatch.setattr(module, "FILLED_ON_CPU", filled)
    sentences = Rows(sentences.texts * copies, None, None, range(copies * len(sentences)))
    predict(model, tokenizer, sentences, 64)  # the first call tries what the head reads
    model.register_forward_pre_hook(
        lambda module, args, inputs: tokens.append(
            (inputs["attention_mask"].sum().item(), inputs["input_ids"].numel())
        ),
        with_kwargs=True,
    )
    predict(model, tokenizer, sentences, 64, batch_size=8)
    useful, computed = map(sum, zip(*tokens, strict=True))
    assert useful / computed > 0.85
    assert tokens[0][1] == max(size for _, size in tokens)  # the largest batch comes first


def test_progress_counts_examples_up_to_all(classifier, tokenizer, sentences, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "FILLED_ON_CPU", 0)
    predict(
        classifier(), tokenizer, sentences, 32, batch_size=16, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(16, 41), (32, 41), (41, 41)]


def test_batches_hold_every_position_once_and_are_stable():
    assert batched_by_length([3, 5, 3, 9], 2) == [[3, 1], [0, 2]]
    assert batched_by_length([], 2) == []


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.one_of(st.integers(0, 300), st.just(math.inf)))
def test_no_batch_is_larger_than_the_first(lengths, batch_size, fill):
    batches = batched_by_length(lengths, batch_size, fill)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) * lengths[batch[0]] <= batch_size * max(lengths) for batch in batches)
    most = min(fill, batch_size * max(lengths, default=0))
    for batch in batches[:-1]:
        longest = max(1, lengths[batch[0]])
        assert len(batch) == batch_size or batch_size < len(batch) == most // longest


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.integers(0, 200))
def test_a_batch_has_no_more_rows_than_its_longest_allows(lengths, batch_size, tokens):
    batches = batched_by_length(lengths, batch_size, most=lambda length: tokens // max(1, length))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= tokens
        assert len(batch) <= batch_size
        assert batch == sorted(batch, key=lambda place: (-lengths[place], place))


def test_short_texts_fill_a_batch(classifier, tokenizer, sentences, monkeypatch):
    model, seen = classifier(), []
    monkeypatch.setattr(module, "FILLED_ON_CPU", 0)
    apart = predict(model, tokenizer, sentences, 32, batch_size=4)
    monkeypatch.undo()
    model.register_forward_pre_hook(lambda *given: seen.append(given[2]["input_ids"].shape), with_kwargs=True)
    assert np.allclose(predict(model, tokenizer, sentences, 32, batch_size=4), apart, atol=1e-5)
    assert seen[0][0] == 4
    assert seen[-2][0] > 4
    assert max(rows * length for rows, length in seen) == seen[0].numel()


def test_a_processor_is_asked_with_fewer_long_texts(classifier, tokenizer, sentences, monkeypatch):
    model, seen = classifier(), []
    whole = predict(model, tokenizer, sentences, 32)  # which finds out which places its head reads, too
    model.register_forward_pre_hook(lambda *given: seen.append(given[2]["input_ids"].shape), with_kwargs=True)
    inner, heads = model.config.intermediate_size, model.config.num_attention_heads
    monkeypatch.setattr(costs, "TENSOR_KEPT", 100 * inner * 4)  # a hundred tokens
    assert np.allclose(predict(model, tokenizer, sentences, 32), whole, atol=1e-5)
    largest = [rows * length * max(inner, heads * length) * 4 for rows, length in seen if rows > 1]
    assert 0 < max(largest) <= costs.TENSOR_KEPT
    assert seen[0][0] < seen[-2][0]


def test_the_outputs_over_a_vocabulary_are_no_layer():
    tied, loose = (tiny.build("gpt2", Head("causal_lm"), tie_word_embeddings=tied) for tied in (True, False))
    assert rows_at_once(tied, False)(512) == rows_at_once(loose, False)(512) > 1
    assert rows_at_once(tied, True)(512) >= 2 * rows_at_once(tied, False)(512)
    assert rows_at_once(torch.nn.Linear(9, 9), False) is None


def test_no_rows_are_an_error(classifier, tokenizer):
    with pytest.raises(DataError, match="no rows"):
        predict(classifier(), tokenizer, Rows([], None, [], []), 32)


def test_a_model_with_an_output_for_each_token_is_refused(tokenizer, sentences):
    from transformers import BertConfig, BertForTokenClassification

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForTokenClassification(BertConfig(vocab_size=len(tokenizer), **shape))
    with pytest.raises(ModelError, match="sequence classification head"):
        predict(model, tokenizer, sentences, 32)


def test_the_length_is_what_model_and_tokenizer_allow(classifier, tokenizer):
    model = classifier(positions=64)
    assert usable_length(model, tokenizer, 32) == 32
    assert usable_length(model, tokenizer, None) == 64
    assert usable_length(classifier(), tokenizer, None) == 128
    assert usable_length(classifier(), tokenizer, 10_000) == 512


TWO_PROCESSES = """
import sys
import numpy as np, torch, torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
from pipelines.models.predict import predict
from pipelines.core.interfaces import Rows, World
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if size > 1:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
def gather(value):
    if size == 1:
        return [value]
    every = [None] * size
    dist.all_gather_object(every, value)
    return every
torch.manual_seed(0)
tokenizer = BertTokenizerFast(vocab=f"{folder}/vocab.txt")
shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, initializer_range=0.5)
model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **shape))
texts = [" ".join("abcdefgh"[(row + step) % 8] for step in range(1 + row % 11)) for row in range(37)]
logits = predict(model, tokenizer, Rows(texts, None, None, range(37)), 16, world=World(rank, size), gather=gather, batch_size=4)
np.save(f"{folder}/{size}-{rank}.npy", logits)
"""


@pytest.mark.long
def test_two_real_processes_give_the_same_bits_as_one(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    started = [
        subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, str(rank), str(size), str(tmp_path)])
        for rank, size in ((0, 1), (0, 2), (1, 2))
    ]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    alone = np.load(tmp_path / "1-0.npy")
    for rank in (0, 1):
        np.testing.assert_array_equal(np.load(tmp_path / f"2-{rank}.npy"), alone)


class Context:
    def __init__(self, path, rank=0):
        self.events, self.world = EventLog(path), World(rank, 2)


def test_few_events_but_always_the_last(tmp_path, monkeypatch):
    clock = iter([100.0, 100.1, 100.6, 100.7])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    progress = progress_events(Context(tmp_path / "e.jsonl"), "glue/mrpc validation")
    for done in (10, 20, 30, 40):
        progress(done, 40)
    events = list(read_events(tmp_path / "e.jsonl"))
    assert [event["step"] for event in events] == [10, 30, 40]
    assert events[0] | {"id": 0, "time": ""} == {
        "id": 0,
        "time": "",
        "event": "progress",
        "step": 10,
        "total": 40,
        "what": "glue/mrpc validation",
    }


def test_only_the_main_process_writes(tmp_path):
    assert progress_events(Context(tmp_path / "e.jsonl", rank=1), "x") is None
