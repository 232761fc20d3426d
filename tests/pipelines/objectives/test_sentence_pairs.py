"""Pairs of segments: true ones follow each other in the text, false ones do not, and nothing else tells them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import IGNORED
from pipelines.data.randomness import uniforms
from pipelines.data.sentences import Corpus, Spans
from pipelines.models import opening
from pipelines.objectives.sentence_pairs import PAIR, TWO_HEADS, NextSentence, Pairing, SentenceOrder
from tests import tiny

LENGTH = 30


def spans_of(documents: int = 40, seed: int = 0, most: int = 9) -> Spans:
    """Documents of random sentences, whose tokens count upwards: each token says where it stands."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(2, 40, documents)
    lengths = generator.integers(1, most, counts.sum())
    return Spans(
        Corpus(
            np.arange(lengths.sum(), dtype=np.int32) + 1000,
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate([[0], np.cumsum(counts)]),
        ),
        LENGTH,
    )


class Counting:
    """A tokenizer whose ordinary tokens are numbers from 1000 on."""

    cls_token_id, sep_token_id, mask_token_id, pad_token_id = 1, 2, 3, 0
    all_special_ids = (0, 1, 2, 3)

    def __len__(self) -> int:
        return 100_000


def drawn(objective: Any, spans: Spans, epochs: int = 1, seed: int = 0) -> list[tuple[Any, Any, bool]]:
    collate = objective.collate(Counting(), seed)
    assert isinstance(collate, Pairing)
    pairs = []
    for draw in range(epochs * len(spans)):
        pairs.append(collate.pair(spans[draw % len(spans)], uniforms(seed, PAIR, [draw], 6)[0]))
    return pairs


def document_of(spans: Spans, token: int) -> int:
    sentence = np.searchsorted(spans.corpus.sentences, token - 1000, side="right") - 1
    return int(np.searchsorted(spans.corpus.documents, sentence, side="right") - 1)


def begins_and_ends_with_sentences(spans: Spans, segment: Any) -> bool:
    return {segment[0] - 1000, segment[-1] + 1 - 1000} <= set(spans.corpus.sentences.tolist())


def test_true_pairs_follow_each_other_and_false_ones_come_from_elsewhere() -> None:
    spans = spans_of()
    pairs = drawn(NextSentence(), spans, epochs=5)
    false = np.array([each[2] for each in pairs])
    assert abs(false.mean() - 0.5) < 5 * 0.5 / len(pairs) ** 0.5
    whole = 0
    for first, second, wrong in pairs:
        for segment in (first, second):
            assert (np.diff(segment) == 1).all()
            assert document_of(spans, segment[0]) == document_of(spans, segment[-1])
        assert len(first) + len(second) <= LENGTH
        assert begins_and_ends_with_sentences(spans, first)
        whole += begins_and_ends_with_sentences(spans, second)
        if wrong:
            assert document_of(spans, first[0]) != document_of(spans, second[0])
        else:
            assert second[0] == first[-1] + 1
    assert whole > 0.97 * len(pairs)


def test_length_does_not_tell_false_pairs_from_true_ones() -> None:
    pairs = drawn(NextSentence(short_seq_probability=0.0), spans_of(documents=200), epochs=10)
    true = np.array([len(a) + len(b) for a, b, wrong in pairs if not wrong])
    false = np.array([len(a) + len(b) for a, b, wrong in pairs if wrong])
    best = max(((true >= limit).mean() + (false < limit).mean()) / 2 for limit in range(LENGTH + 2))
    assert best < 0.6
    ends = [np.array([len(a) for a, _, wrong in pairs if wrong is kind]) for kind in (True, False)]
    assert abs(ends[0].mean() - ends[1].mean()) < 0.5


def test_order_pairs_are_the_same_segments_either_way() -> None:
    spans = spans_of()
    pairs = drawn(SentenceOrder(), spans, epochs=5)
    swapped = np.array([each[2] for each in pairs])
    assert abs(swapped.mean() - 0.5) < 5 * 0.5 / len(pairs) ** 0.5
    for first, second, wrong in pairs:
        earlier, later = (second, first) if wrong else (first, second)
        assert later[0] == earlier[-1] + 1
        assert begins_and_ends_with_sentences(spans, earlier)
        assert begins_and_ends_with_sentences(spans, later)


def test_length_does_not_tell_the_order() -> None:
    pairs = drawn(SentenceOrder(), spans_of(documents=1500), epochs=2)
    swapped = np.array([each[2] for each in pairs])
    longer = np.array([len(first) - len(second) for first, second, _ in pairs])
    assert roc_auc_score(swapped, longer) == pytest.approx(0.5, abs=0.02)  # 0.46 where spans are filled one way only


def test_short_pairs_are_as_many_as_asked_for() -> None:
    spans = spans_of()
    sizes = np.array([len(spans[number]["input_ids"]) for number in range(len(spans))])
    for probability, low, high in [(0.0, 0, 0), (0.3, 0.15, 0.35), (1.0, 0.6, 1.0)]:
        pairs = drawn(SentenceOrder(short_seq_probability=probability), spans, epochs=4)
        short = np.mean([len(a) + len(b) < sizes[number % len(sizes)] for number, (a, b, _) in enumerate(pairs)])
        assert low <= short <= high  # of spans with two sentences nothing can be taken away


def test_the_batch_is_laid_out_as_in_the_paper() -> None:
    spans = spans_of()
    examples = [dict(spans[number]) | {"draw": number} for number in range(24)]
    batch = NextSentence().collate(Counting(), seed=0)(examples)
    original = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
    for row, (first, second, wrong) in enumerate(drawn(NextSentence(), spans)[:24]):
        expected = [1, *first.tolist(), 2, *second.tolist(), 2]
        assert original[row, : len(expected)].tolist() == expected
        assert batch["token_type_ids"][row, : len(expected)].tolist() == [0] * (len(first) + 2) + [1] * (
            len(second) + 1
        )
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            assert not batch[name][row, len(expected) :].any()
        assert batch["attention_mask"][row].sum() == len(expected)
        assert batch["pair_labels"][row] == int(wrong)
    asked = batch["labels"] != IGNORED
    assert abs(asked.sum() / (batch["attention_mask"].sum() - 72) - 0.15) < 0.06
    assert original.max(1).values.tolist() != [0] * 24


def test_models_without_segments_get_none() -> None:
    class Plain:
        type_vocab_size = 0

    spans = spans_of()
    assert "token_type_ids" not in NextSentence().collate(Counting(), 0, Plain())([dict(spans[0]) | {"draw": 0}])


def test_one_document_has_no_elsewhere_but_has_an_order() -> None:
    spans = spans_of(documents=1)
    examples = [dict(spans[0]) | {"draw": draw} for draw in range(20)]
    with pytest.raises(DataError, match="the text is one document; give more"):
        NextSentence().collate(Counting(), seed=0)(examples)
    assert len(SentenceOrder().collate(Counting(), seed=0)(examples)["pair_labels"]) == 20


def test_a_tokenizer_without_ends_is_refused() -> None:
    class Endless(Counting):
        cls_token_id = None

    with pytest.raises(ModelError, match="no cls and sep tokens, which the objective sentence_order"):
        SentenceOrder().collate(Endless(), seed=0)


SMALL: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "fnet": {},
}


@pytest.mark.parametrize("model_type", TWO_HEADS)
def test_the_loss_is_the_sum_of_both_parts(model_type: str) -> None:
    objective = NextSentence(pair_weight=2.0)
    words = {
        "model_type": model_type,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
        "vocab_size": 2500,
        **SMALL.get(model_type, {}),
    }
    assert objective.misfit(words) is None
    model = opening.build(words, objective.head, tiny.tokenizer(), seed=0).eval()
    spans = spans_of()
    examples = [dict(spans[number]) | {"draw": number} for number in range(6)]
    batch = objective.collate(Counting(), 0, model.config)(examples)
    batch["input_ids"] %= 2500
    batch["labels"] = torch.where(batch["labels"] == IGNORED, IGNORED, batch["labels"] % 2500)
    tokens, pairs = objective.loss(model, batch)[0]
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "pair_labels")}
    said = model(**inputs)
    tokens_said, pairs_said = said[:2]
    expected = torch.nn.functional.cross_entropy(
        tokens_said.reshape(-1, 2500), batch["labels"].reshape(-1), reduction="sum"
    )
    torch.testing.assert_close(tokens, expected)
    torch.testing.assert_close(
        pairs, torch.nn.functional.cross_entropy(pairs_said, batch["pair_labels"], reduction="sum")
    )
    assert dict(objective.label_names) == {"labels": 1.0, "pair_labels": 2.0}


@pytest.mark.parametrize("model_type", ["electra", "gpt2", "roberta"])
def test_models_without_a_head_for_pairs_are_refused(model_type: str) -> None:
    assert f"which {model_type} has not" in str(NextSentence().misfit({"model_type": model_type}))
    assert "family encoder, not decoder" in str(NextSentence().misfit({"model_type": "finery", "family": "decoder"}))
