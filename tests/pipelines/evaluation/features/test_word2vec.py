"""Word2vec: gensim is told what the recipe says, and a made-up language comes out."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.evaluation.features import word2vec
from pipelines.evaluation.features.word2vec import Word2Vec
from pipelines.evaluation.features.word_vectors import written

from .conftest import analogy


def block_of(court: Path, **words: Any) -> Word2Vec:
    return Word2Vec.model_validate(
        {"datasets": ({"path": str(court)},), "size": 12, "window": 4, "sample": 0.0} | words
    )


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
def test_ranks_and_sexes_of_a_made_up_court_come_out(court: Path, running: Any, algorithm: str) -> None:
    block = block_of(court, algorithm=algorithm, epochs=20, learning_rate=0.05)
    table = block.train(written(running.cache / "words", block, running), running)
    assert analogy(table, "king", "man", "woman") == "queen"
    assert analogy(table, "woman", "queen", "king") == "man"


def test_a_seed_gives_the_same_bits_and_settings_reach_the_trainer(
    court: Path, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gensim.models

    told: list[dict[str, Any]] = []

    class Trainer(gensim.models.Word2Vec):
        def __init__(self, **words: Any) -> None:
            told.append(words)
            super().__init__(**words)

    monkeypatch.setattr(gensim.models, "Word2Vec", Trainer)
    block = block_of(court, negative=3, epochs=2, min_count=1, learning_rate=0.05)
    corpus = written(running.cache / "words", block, running)
    one, other = block.train(corpus, running), block.train(corpus, running)
    assert np.array_equal(one.matrix, other.matrix)
    assert told[0] == told[1]
    wanted = {"vector_size": 12, "window": 4, "sg": 1, "negative": 3, "alpha": 0.05, "seed": 1, "workers": 1}
    assert told[0].items() >= wanted.items()
    running.seed = 2
    assert not np.array_equal(one.matrix, block.train(corpus, running).matrix)
    assert [each["step"] for each in running.told if each.get("what") == "word2vec"][:2] == [1, 2]


def test_without_gensim_the_reason_is_one_sentence(
    court: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert block_of(court).unavailable_reason() is None
    assert block_of(court).content()["gensim"] == metadata.version("gensim")
    monkeypatch.setattr(word2vec, "find_spec", lambda name: None)
    assert "pip install 'finery[features]'" in str(block_of(court).unavailable_reason())
    file = tmp_path / "v.txt"
    file.write_text("a 1 2\n")
    assert Word2Vec.model_validate({"vectors": str(file)}).unavailable_reason() is None  # nothing is trained
