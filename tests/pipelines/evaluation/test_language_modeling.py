"""Held-out text: every token predicted once, and the figures of each objective."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import IGNORED, World
from pipelines.core.registry import OBJECTIVES, TOKENIZERS
from pipelines.data.documents import Documents, read_documents, token_streams
from pipelines.evaluation.language_modeling import (
    MASK_SEED,
    HeldOutModel,
    SpecialTokens,
    left_neighbours,
    measure,
    pieces,
    rolling,
)
from pipelines.evaluation.ngrams import NGrams, fit

TRAIN = [
    "The cat sat on the mat. The dog saw the cat, and ran!",
    "A dog and a cat sat on a mat. Who saw the dog? The cat saw.",
] * 6
HELD_OUT = [
    "The dog sat on the cat. A mat saw the dog. The cat ran, and the dog ran.",
    "Who sat?",
    "A cat saw a mat. The mat saw a cat! The end.",
]
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(20))


@cache
def tokenizer(name: str = "byte_bpe") -> Any:
    return TOKENIZERS.load(name)().train(TRAIN, 340, extra=SENTINELS)


@cache
def ngrams(name: str = "byte_bpe") -> NGrams:
    return fit(token_streams(tokenizer(name), TRAIN), len(tokenizer(name)), tokenizer(name).eos_token_id)


@cache
def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer()), n_embd=16, n_layer=2, n_head=2, n_positions=32, initializer_range=0.5
    )
    return GPT2LMHeadModel(config).eval()


class Even(torch.nn.Module):
    """A model that finds every token equally likely."""

    config = None

    def forward(self, input_ids: Any, decoder_input_ids: Any = None, target_mapping: Any = None, **others: Any) -> Any:
        rows = (
            decoder_input_ids
            if decoder_input_ids is not None
            else input_ids
            if target_mapping is None
            else target_mapping[..., 0]
        )
        outputs = {"logits": torch.zeros(*rows.shape, len(tokenizer()))}
        return outputs | {"seq_relationship_logits": torch.tensor([[1.0, 0.0]]).repeat(len(input_ids), 1)}


def reader(
    objective: str, model: Any = None, block_size: int = 16, tokens: str = "byte_bpe", **others: Any
) -> HeldOutModel:
    block = OBJECTIVES.load(objective)(name=objective)
    model = model or Even()
    collate = block.collate(tokenizer(tokens), MASK_SEED, getattr(model, "config", None))
    given: dict[str, Any] = {
        "stride": block_size,
        "batch_size": 3,
        "device": "cpu",
        "world": World(),
        "gather": lambda value: [value],
    }
    return HeldOutModel(model, tokenizer(tokens), block, collate, block_size, **(given | others))


@pytest.mark.parametrize("stride", [16, 5, 1])
def test_a_causal_model_predicts_every_token_once_as_a_plain_loop_does(stride: int, tmp_path: Path):
    found = measure(reader("causal_lm", gpt2(), stride=stride), HELD_OUT, ngrams(), tmp_path, "k", 0)
    bits = tokens = 0.0
    for text in HELD_OUT:
        ids = [tokenizer().eos_token_id, *tokenizer()(text, add_special_tokens=False)["input_ids"]]
        for target in range(1, len(ids)):
            # the first window predicts 16 tokens; each later one `stride`, of which the last ends it
            end = 16 if target <= 16 else 16 + -(-(target - 16) // stride) * stride
            end = min(end, len(ids) - 1)
            context = ids[max(0, end - 16) : target]
            with torch.no_grad():
                logits = gpt2()(torch.tensor([context])).logits[0, -1]
            bits -= logits.log_softmax(-1)[ids[target]].item() / math.log(2)
            tokens += 1
    size = sum(len(text.encode()) for text in HELD_OUT)
    assert found.metrics["bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)
    assert found.metrics["perplexity"] == pytest.approx(2 ** (bits / tokens), rel=1e-4)
    assert (found.metrics["tokens"], found.metrics["bytes"], found.documents) == (tokens, size, 3)


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_ngrams_are_asked_about_the_same_tokens(name: str, tmp_path: Path):
    given = reader("causal_lm", tokens=name)
    given = replace(given, model=_even(len(tokenizer(name))))
    found = measure(given, HELD_OUT, ngrams(name), tmp_path, "k", 0).metrics
    one = two = count = 0.0
    for text in HELD_OUT:
        ids = [tokenizer(name).eos_token_id, *tokenizer(name)(text, add_special_tokens=False)["input_ids"]]
        for left, token in pairwise(ids):
            one += ngrams(name).unigram_bits(np.asarray([token]))[0]
            two += ngrams(name).bigram_bits(np.asarray([left]), np.asarray([token]))[0]
            count += 1
    size = sum(len(text.encode()) for text in HELD_OUT)
    assert found["unigram_bits_per_byte"] == pytest.approx(one / size)
    assert found["bigram_bits_per_byte"] == pytest.approx(two / size)
    assert found["bits_per_byte"] == pytest.approx(count * math.log2(len(tokenizer(name))) / size, rel=1e-6)
    assert found["unigram_bits_per_byte"] < found["bits_per_byte"]


def _even(vocabulary: int) -> Any:
    class Flat(torch.nn.Module):
        def forward(self, input_ids: Any, **others: Any) -> Any:
            return {"logits": torch.zeros(*input_ids.shape, vocabulary)}

    return Flat()


PARTS = ["masked_lm", "prefix_lm", "permutation_lm", "span_corruption", "denoising", "next_sentence", "sentence_order"]


@pytest.mark.parametrize("objective", PARTS)
def test_parts_of_a_text_are_counted_with_the_bytes_of_their_tokens(objective: str, tmp_path: Path):
    found = measure(reader(objective), HELD_OUT, ngrams(), tmp_path, "k", 0).metrics
    hidden = "" if objective in ("prefix_lm", "permutation_lm") else "hidden_"
    answers = len(tokenizer())
    if objective == "span_corruption":  # padding, the ends of a text, the mask and the sentinels are no text
        answers -= 4 + len(SENTINELS)
    assert found[f"{hidden}bits_per_byte"] == pytest.approx(
        found["tokens"] * math.log2(answers) / found["bytes"],
        rel=1e-3,  # bytes are rounded to a whole number
    )
    whole = sum(len(text.encode()) for text in HELD_OUT)
    assert 0 < found["bytes"] < whole
    for peer in ("unigram", "bigram"):
        assert 0 < found[f"{peer}_{hidden}bits_per_byte"] < found[f"{hidden}bits_per_byte"]
    if objective in ("next_sentence", "sentence_order"):
        assert 0 <= found["pair_accuracy"] <= 1
        assert found["pairs"] > 0
    assert ("perplexity" in found) == (not hidden)


def test_pairs_are_read_by_alberts_name_for_them_too(tmp_path: Path):
    class Albert(Even):
        def forward(self, *given: Any, **others: Any) -> Any:
            outputs = super().forward(*given, **others)
            return outputs | {"sop_logits": outputs.pop("seq_relationship_logits")}

    found = measure(reader("sentence_order", Albert()), HELD_OUT, ngrams(), tmp_path, "k", 0).metrics
    assert found == measure(reader("sentence_order"), HELD_OUT, ngrams(), tmp_path, "k", 0).metrics


class _SpansEndAnywhere(torch.nn.Module):
    """Nine in ten that the span ends here, by a sentinel or the text's end; else one text token or another, equally likely."""

    config = None

    def forward(self, input_ids: Any, decoder_input_ids: Any, **others: Any) -> Any:
        chance = torch.zeros(len(tokenizer()))
        chance[tokenizer().convert_tokens_to_ids([*SENTINELS, tokenizer().eos_token])] = 0.9 / (len(SENTINELS) + 1)
        words = [token for token in range(len(tokenizer())) if token not in tokenizer().all_special_ids]
        chance[words] = 0.1 / len(words)
        return {"logits": chance.log().expand(*decoder_input_ids.shape, -1)}


def test_where_a_span_ends_is_not_asked_for_as_the_ngrams_are_not_asked_either(tmp_path: Path):
    found = measure(reader("span_corruption", _SpansEndAnywhere()), HELD_OUT, ngrams(), tmp_path, "k", 0).metrics
    words = len(tokenizer()) - len(tokenizer().all_special_ids)
    # not log2(words / 0.1), 3.3 bits more a token
    assert found["hidden_bits_per_byte"] == pytest.approx(found["tokens"] * math.log2(words) / found["bytes"], rel=1e-3)


def test_the_text_token_is_the_answer_where_a_sentinel_is_more_probable(tmp_path: Path):
    """Hidden spans are short, so that a sentinel is nearly always the most probable single token."""
    given = reader("span_corruption", block_size=40)

    class Knows(torch.nn.Module):
        def forward(self, input_ids: Any, decoder_input_ids: Any, **others: Any) -> Any:
            following = torch.roll(decoder_input_ids, -1, dims=1)
            logits = torch.nn.functional.one_hot(following, len(tokenizer())).float()
            logits[..., tokenizer().convert_tokens_to_ids(SENTINELS[0])] = 2.0
            return {"logits": logits}

    found = measure(replace(given, model=Knows()), HELD_OUT * 9, ngrams(), tmp_path, "k", 0).metrics
    assert found["accuracy"] > 0.5  # all but the last of a target, which the decoder never reads


@pytest.mark.parametrize(
    "objective", ["masked_lm", "bidirectional_lm", "prefix_lm", "permutation_lm", "span_corruption", "denoising"]
)
def test_the_left_neighbours_are_those_of_the_text(objective: str):
    """Where every pair of neighbours occurs once, a label and its neighbour say where the label stands."""
    given = reader(objective, block_size=40)
    length = given.objective.raw_length(40)
    ordinary = [token for token in range(5, len(tokenizer())) if token not in tokenizer().all_special_ids]
    random = np.random.default_rng(0)
    rows = [random.permutation(ordinary)[:length] for _ in range(8)]
    before = random.choice(ordinary, 8)
    wrapped = given.objective.layout == "blocks"
    ends = tokenizer().cls_token_id, tokenizer().sep_token_id
    examples = [
        {"input_ids": np.asarray([ends[0], *row, ends[1]] if wrapped else row), "draw": at}
        for at, row in enumerate(rows)
    ]
    batch = {name: value.numpy() for name, value in given.collate(examples).items()}
    left = left_neighbours(
        batch,
        before,
        given.marks,
        next_token=given.objective.head.kind == "causal_lm" and objective != "permutation_lm",
        wrapped=wrapped,
    )
    labels = batch["labels"]
    asked = (labels >= 0) & ~given.marks.special[np.maximum(labels, 0)]
    assert asked.sum() > 8
    for row, place in zip(*np.nonzero(asked), strict=True):
        known = [before[row], *rows[row]]
        assert left[row, place] == known[known[1:].index(labels[row, place])]


def test_only_what_the_damaged_text_does_not_show_is_counted(tmp_path: Path):
    given = reader("denoising", block_size=40)
    found = measure(given, [TRAIN[0] * 8], ngrams(), tmp_path, "k", 0).metrics
    examples = len(tokenizer()(TRAIN[0] * 8, add_special_tokens=False)["input_ids"]) // 38
    assert found["tokens"] == examples * round(38 * 0.3)


def test_masks_do_not_depend_on_the_seed_of_intervals_and_batches_not_on_processes(tmp_path: Path):
    given = reader("masked_lm", block_size=12)
    whole = measure(given, HELD_OUT * 3, ngrams(), tmp_path, "k", 0)
    other = measure(given, HELD_OUT * 3, ngrams(), tmp_path, "k", 1)
    assert whole.metrics == other.metrics
    assert whole.intervals.keys() == other.intervals.keys()
    assert whole.intervals != other.intervals
    shared: list[Any] = [None, None]

    def keep(rank: int) -> Any:
        def gather(value: Any) -> list[Any]:
            shared[rank] = value
            if None in shared:
                raise StopIteration
            return shared

        return gather

    for rank in (1, 0):
        part = replace(given, world=World(rank, 2), gather=keep(rank))
        if rank == 1:
            with pytest.raises(StopIteration):
                measure(part, HELD_OUT * 3, ngrams(), tmp_path, "k", 0)
        else:
            assert measure(part, HELD_OUT * 3, ngrams(), tmp_path, "k", 0) == whole


def test_replaced_tokens_are_judged_as_counted_by_hand(tmp_path: Path):
    """A generator that always says one token, and a judge that suspects every token of that kind."""
    given = reader("replaced_token_detection", block_size=12)
    said = tokenizer()("cat", add_special_tokens=False)["input_ids"][0]
    seen: dict[str, list[Any]] = {"true": [], "judged": []}

    def loss(model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        asked = batch["labels"] != -100
        original = torch.where(asked, batch["labels"], batch["input_ids"])
        filled = torch.where(asked, said, original)
        logits = torch.stack([torch.full(filled.shape, 0.5), (filled == said).float()], dim=-1)
        real = batch["replaced"] != -100
        seen["true"] += (filled != original)[real].tolist()
        seen["judged"] += (filled == said)[real].tolist()
        return torch.zeros(2), {"logits": logits, "replaced": (filled != original).long()}

    objective = SimpleNamespace(
        name="replaced_token_detection",
        label_names={"labels": 1.0, "replaced": 50.0},
        layout="blocks",
        every_token=False,
        loss=loss,
        raw_length=lambda size: size - 2,
    )
    found = measure(replace(given, objective=objective), HELD_OUT, None, tmp_path, "k", 0).metrics
    pairs = list(zip(seen["true"], seen["judged"], strict=True))
    assert found["accuracy"] == pytest.approx(sum(true == judged for true, judged in pairs) / len(pairs))
    hits = sum(true and judged for true, judged in pairs)
    assert found["f1"] == pytest.approx(2 * hits / (sum(seen["true"]) + sum(seen["judged"])))
    assert found["replaced"] == sum(seen["true"])
    assert found["majority_accuracy"] == pytest.approx(1 - found["replaced"] / found["tokens"])


def test_too_little_text_and_a_diverged_model_are_one_sentence(tmp_path: Path):
    with pytest.raises(DataError, match=r"the held-out text has \d+ tokens, too few for one block of 4096"):
        measure(reader("masked_lm", block_size=4096), HELD_OUT, ngrams(), tmp_path, "k", 0)
    broken = reader("causal_lm", lambda **_: {"logits": torch.full((1, 1, 1), math.nan)})
    broken = replace(broken, model=_Broken())
    with pytest.raises(ModelError, match="gives NaN or infinity for held-out text"):
        measure(broken, HELD_OUT, ngrams(), tmp_path, "k", 0)


class _Broken(torch.nn.Module):
    def forward(self, input_ids: Any, **others: Any) -> Any:
        return {"logits": torch.full((*input_ids.shape, len(tokenizer())), math.nan)}


def test_sentinels_are_told_from_other_special_tokens():
    marks = SpecialTokens.of(tokenizer(), 3)
    assert np.flatnonzero(marks.special).tolist() == [0, 2, 3, 4, *tokenizer().convert_tokens_to_ids(list(SENTINELS))]
    assert np.flatnonzero(marks.sentinel).tolist() == tokenizer().convert_tokens_to_ids(list(SENTINELS))


def test_bytes_of_the_whole_text_do_not_depend_on_the_tokenizer():
    sizes = {name: int(read_documents(tokenizer(name), HELD_OUT).sizes.sum()) for name in TOKENIZERS}
    assert set(sizes.values()) == {sum(len(text.encode()) for text in HELD_OUT)}


END, PADDING = 99, -1


def documents(lengths: list[int]) -> Documents:
    starts = np.cumsum([0, *lengths])
    return Documents(np.arange(1, starts[-1] + 1), np.ones(starts[-1], dtype=np.int64), starts, np.arange(len(lengths)))


@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_every_token_is_predicted_once_from_its_left_neighbour(lengths: list[int], length: int, stride: int):
    stride = min(stride, length)
    given = documents(lengths)
    windows = rolling(given, length, stride, END)
    batch = windows.batch(0, len(windows), PADDING)
    asked = batch.labels != IGNORED
    assert sorted(batch.labels[asked].tolist()) == given.tokens.tolist()
    np.testing.assert_array_equal(given.tokens[batch.places[asked]], batch.labels[asked])
    left = np.roll(given.tokens, 1)
    left[given.starts[:-1]] = END
    np.testing.assert_array_equal(batch.input_ids[asked], left[batch.places[asked]])
    assert batch.input_ids.shape[1] <= length
    assert not (asked & ~batch.real).any()
    assert (batch.input_ids[~batch.real] == PADDING).all()
    owner = np.searchsorted(given.starts, batch.places, side="right") - 1
    assert (owner[asked] == np.broadcast_to(batch.documents[:, None], asked.shape)[asked]).all()


def test_windows_by_hand():
    batch = rolling(documents([7]), 4, 2, END).batch(0, 3, PADDING)
    assert batch.input_ids.tolist() == [[99, 1, 2, 3], [2, 3, 4, 5], [3, 4, 5, 6]]
    assert batch.labels.tolist() == [[1, 2, 3, 4], [-100, -100, 5, 6], [-100, -100, -100, 7]]


def test_batches_are_parts_of_the_whole():
    windows = rolling(documents([7, 3, 12]), 4, 3, END)
    whole = windows.batch(0, len(windows), PADDING)
    for at in range(len(windows)):
        part = windows.batch(at, at + 1, PADDING)
        size = part.input_ids.shape[1]
        np.testing.assert_array_equal(part.labels[0], whole.labels[at, :size])
        assert (whole.labels[at, size:] == IGNORED).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6))
def test_pieces_are_the_joined_documents_cut(lengths: list[int], length: int):
    given = documents(lengths)
    stream = [
        token
        for low, high in zip(given.starts, given.starts[1:], strict=False)
        for token in [*given.tokens[low:high], END]
    ]
    found = pieces(given, length, END)
    assert found.rows.ravel().tolist() == stream[: len(stream) // length * length]
    owners = [number for number, size in enumerate(lengths) for _ in range(size + 1)]
    assert found.documents.tolist() == owners[: len(found.rows) * length : length]
    assert found.before.tolist() == [END, *stream][: len(found.rows) * length : length]
