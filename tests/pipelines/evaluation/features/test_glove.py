"""GloVe against the paper's arithmetic, a slow count, torch's gradients, and a language that was made up."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.errors import Stopped
from pipelines.evaluation.features import glove
from pipelines.evaluation.features.glove import GloVe, Tables, cooccurrences, fit, weight_of
from pipelines.evaluation.features.word_vectors import CorpusFile, written

from .conftest import analogy


def corpus_of(path: Path, *lines: str, known: str) -> CorpusFile:
    path.write_text("\n".join(lines) + "\n")
    return CorpusFile(path, dict.fromkeys(known.split(), 1), sum(len(line.split()) for line in lines))


def test_the_weights_are_those_of_equation_9() -> None:
    counts = np.array([1.0, 50.0, 100.0, 1000.0], dtype=np.float32)
    assert weight_of(counts, 100, 0.75).tolist() == pytest.approx([0.01**0.75, 0.5**0.75, 1.0, 1.0])


def test_a_neighbour_counts_one_over_its_distance(tmp_path: Path, running: Any) -> None:
    counts = cooccurrences(corpus_of(tmp_path / "c", "a b c", "a", known="a b c"), 2, running).toarray()
    assert counts.tolist() == [[0, 1, 0.5], [1, 0, 1], [0.5, 1, 0]]


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_counts_are_those_of_a_slow_loop(
    tmp_path: Path, running: Any, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(glove, "CHUNK", chunk)
    draw = random.Random(0)
    lines = [" ".join(draw.choice("abcdef") for _ in range(draw.randrange(12))) for _ in range(30)]
    known = "a b c d"
    place = {word: at for at, word in enumerate(known.split())}
    slow = np.zeros((4, 4))
    for line in lines:
        words = [word for word in line.split() if word in place]  # the authors' program passes over the others
        for at, word in enumerate(words):
            for back in range(1, min(3, at) + 1):
                slow[place[word], place[words[at - back]]] += 1 / back
                slow[place[words[at - back]], place[word]] += 1 / back
    counts = cooccurrences(corpus_of(tmp_path / "c", *lines, known=known), 3, running)
    np.testing.assert_allclose(counts.toarray(), slow, rtol=1e-12)


def test_gradients_are_torchs_of_equation_8() -> None:
    tables, random_state = Tables(6, 4, seed=0), np.random.default_rng(1)
    rows, columns = np.array([0, 0, 3, 5, 2]), np.array([1, 4, 3, 0, 2])
    counts = random_state.uniform(0.5, 300, 5).astype(np.float32)
    weights = weight_of(counts, 100, 0.75)
    one, other = (torch.tensor(table, requires_grad=True) for table in tables.tables)
    errors = (one[rows, :-1] * other[columns, :-1]).sum(1) + one[rows, -1] + other[columns, -1]
    errors = errors - torch.log(torch.from_numpy(counts))
    loss = (torch.from_numpy(weights) * errors**2).sum()
    (loss / 2).backward()
    mine = tables.errors(rows, columns, counts)
    np.testing.assert_allclose(mine, errors.detach().numpy(), rtol=1e-5)
    for gradient, theirs in zip(tables.gradients(rows, columns, weights * mine), (one.grad, other.grad), strict=True):
        np.testing.assert_allclose(gradient, theirs, rtol=1e-4, atol=1e-6)


def test_a_step_is_torchs_adagrad() -> None:
    tables = Tables(3, 2, seed=0)
    weight = torch.tensor(tables.tables[0], requires_grad=True)
    adagrad = torch.optim.Adagrad([weight], lr=0.05, initial_accumulator_value=1.0)
    for scale in (1.0, 3.0):
        gradient = np.full((3, 3), scale, dtype=np.float32)
        tables.step([gradient, gradient], 0.05)
        weight.grad = torch.from_numpy(gradient)
        adagrad.step()
    np.testing.assert_allclose(tables.tables[0], weight.detach(), rtol=1e-6)


def test_ranks_and_sexes_of_a_made_up_court_come_out(court: Path, running: Any) -> None:
    block = GloVe.model_validate({"datasets": ({"path": str(court)},), "size": 12, "window": 4, "epochs": 40})
    corpus = written(running.cache / "words", block, running)
    table = block.train(corpus, running)
    assert analogy(table, "king", "man", "woman") == "queen"
    assert analogy(table, "woman", "queen", "king") == "man"
    losses = [each["loss"] for each in running.told if each.get("what") == "GloVe"]
    assert losses[-1] < losses[0] / 3
    again = block.train(corpus, running)
    assert np.array_equal(table.matrix, again.matrix)
    running.seed = 2
    assert not np.allclose(table.matrix, block.train(corpus, running).matrix)


def test_both_tables_are_added_up_and_biases_left_out(tmp_path: Path, running: Any) -> None:
    counts = cooccurrences(corpus_of(tmp_path / "c", "a b", known="a b"), 1, running)
    block = GloVe.model_validate({"vectors": str(tmp_path / "c")}).model_copy(update={"size": 3, "epochs": 1})
    start = Tables(2, 3, running.seed)
    vectors, loss = fit(counts, block, running)
    assert vectors.shape == (2, 3)
    # log 1 is 0, so that the error is the product and the biases; the weight is 0.01 to the power of 0.75
    error = start.errors(np.array([0, 1]), np.array([1, 0]), np.ones(2, dtype=np.float32))
    assert loss == pytest.approx(float((0.01**0.75 * error**2).mean()), rel=1e-5)
    moved = np.abs(vectors - (start.tables[0] + start.tables[1])[:, :-1]).max()
    assert 0 < moved < 2 * 0.05  # a step of AdaGrad is smaller than its rate, in each table


def test_it_stops_when_it_is_asked_to(court: Path, running: Any) -> None:
    block = GloVe.model_validate({"datasets": ({"path": str(court)},), "size": 4})
    corpus = written(running.cache / "words", block, running)
    running.stop = SimpleNamespace(requested=True)
    with pytest.raises(Stopped):
        block.train(corpus, running)
