"""What every pretraining objective must do, whatever it asks and however its text is packed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core import architecture_fields
from pipelines.core.config import Block
from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.registry import OBJECTIVES
from pipelines.data.sentences import lay_out
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.models import opening
from pipelines.objectives.objective import Objective

BLOCK_SIZE = 40
LOADED = {name: OBJECTIVES.load(name)(name=name) for name in OBJECTIVES}
ON_TEXT = [name for name, objective in LOADED.items() if not objective.pairs]
ON_PAIRS = [name for name, objective in LOADED.items() if objective.pairs]
TEXTS = [
    "The cat sat on the mat. The dog looked at it for a while! Did it bark? No, it did not.",
    "A dog ran in the park. It saw a cat. The cat ran too, and the dog looked at the cat for a while. Then it sat.",
    "There was a mat in the park. Nobody sat on it. A cat came. It looked at the mat, and sat.",
] * 4

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
DROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BODIES: list[dict[str, Any]] = [
    {"model_type": "bert", **SIZES, **DROPPED},
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    {"model_type": "t5", "d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 24},
    {"model_type": "xlnet", "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
    {
        "model_type": "finery",
        **SIZES,
        "family": "encoder-decoder",
        "bidirectional_decoder": True,
        "length_prediction": True,
    },
    {"model_type": "finery-rnn", "hidden_size": 16, "stack": "encoder", "separate_directions": True},
]
"""Shapes to learn with: each objective takes the first that suits it."""


@pytest.fixture(params=list(OBJECTIVES))
def objective(request: pytest.FixtureRequest) -> Any:
    return LOADED[request.param]


@pytest.fixture(params=ON_TEXT)
def on_text(request: pytest.FixtureRequest) -> Any:
    return LOADED[request.param]


@pytest.fixture(params=ON_PAIRS)
def on_pairs(request: pytest.FixtureRequest) -> Any:
    return LOADED[request.param]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    extra = dict.fromkeys(token for objective in LOADED.values() for token in objective.special_tokens())
    return WordPiece(min_frequency=1).train(TEXTS, 120 + len(extra), tuple(extra))


@pytest.fixture(scope="module")
def model_of(tokenizer: Any) -> Any:
    """`model_of(objective)`: a tiny model that can learn it, made once, in evaluation mode."""
    made: dict[str, Any] = {}

    def build(objective: Any) -> Any:
        if objective.name not in made:
            words = next(words for words in BODIES if suits(words, objective))
            model = opening.build(words, objective.head, tokenizer, seed=0)
            config = model.config
            model = objective.prepare(
                model, tokenizer, lambda head, **other: opening.build(words | other, head, tokenizer, seed=1)
            )
            made[objective.name] = (model.eval(), config)
        return made[objective.name]

    return build


def suits(words: dict[str, Any], objective: Any) -> bool:
    if objective.misfit(words) is not None:
        return False
    return objective.head.kind in (*architecture_fields.heads(words), "pretraining")


def laid_out(objective: Any, tokenizer: Any, folder: Path) -> list[dict[str, Any]]:
    """Every example of the text, as the objective wants it packed."""
    rows = lay_out(objective.layout, tokenizer, TEXTS, objective.raw_length(BLOCK_SIZE), folder, "key")
    return [dict(rows[number]) | {"draw": number} for number in range(len(rows))]


def pairs_of(tokenizer: Any) -> list[dict[str, Any]]:
    """Sources and targets of different lengths."""
    texts = [text.split(". ") for text in TEXTS[:3]]
    sides = [(tokenizer(text[0])["input_ids"], tokenizer(text[1])["input_ids"]) for text in texts] * 8
    return [{"input_ids": source, "labels": target, "draw": draw} for draw, (source, target) in enumerate(sides)]


def test_it_is_an_objective_with_a_head_and_parts(objective: Any) -> None:
    assert isinstance(objective, Block)
    assert isinstance(objective, Objective)
    assert isinstance(objective.head, Head)
    assert objective.label_names
    assert all(weight > 0 for weight in objective.label_names.values())
    assert objective.layout in ("blocks", "stream", "sentences")
    assert objective.raw_length(BLOCK_SIZE) >= 2


def test_it_names_models_that_cannot_learn_it(objective: Any) -> None:
    """An objective either suits a body or says why not; no body is built with a head that it lacks."""
    found = [words for words in BODIES if suits(words, objective)]
    assert found
    for words in BODIES:
        sentence = objective.misfit(words)
        assert sentence is None or (sentence.strip() == sentence and not sentence.endswith("."))


def check_batch(objective: Any, batch: dict[str, torch.Tensor], examples: list[dict[str, Any]], tokenizer: Any) -> None:
    assert set(objective.label_names) <= batch.keys()
    assert all(len(value) == len(examples) for value in batch.values())
    first = next(iter(objective.label_names))
    assert (batch[first] != IGNORED).reshape(len(examples), -1).any(1).all()
    mask = batch["attention_mask"]
    filling = mask == 0 if mask.ndim == 2 else batch["input_ids"] == tokenizer.pad_token_id
    assert batch["input_ids"].shape == filling.shape
    assert (batch["input_ids"][filling] == tokenizer.pad_token_id).all()
    assert batch["input_ids"].max() < len(tokenizer)
    if batch["labels"].shape == filling.shape and objective.head.kind not in ("seq2seq_lm", "causal_lm"):
        assert (batch["labels"][filling] == IGNORED).all()


def test_a_batch_has_padded_ids_a_mask_and_every_label(
    on_text: Any, tokenizer: Any, model_of: Any, tmp_path: Path
) -> None:
    examples = laid_out(on_text, tokenizer, tmp_path)
    for number, example in enumerate(examples):  # of unequal lengths, as the last rows of other layouts are
        if on_text.layout != "sentences":
            example["input_ids"] = np.asarray(example["input_ids"])[: max(12, len(example["input_ids"]) - number % 5)]
    batch = on_text.collate(tokenizer, 0, model_of(on_text)[1])(examples)
    check_batch(on_text, batch, examples, tokenizer)
    assert batch["input_ids"].shape[1] <= BLOCK_SIZE


def test_a_batch_of_pairs_has_padded_ids_a_mask_and_every_label(on_pairs: Any, tokenizer: Any, model_of: Any) -> None:
    examples = pairs_of(tokenizer)
    check_batch(on_pairs, on_pairs.collate(tokenizer, 0, model_of(on_pairs)[1])(examples), examples, tokenizer)


def rows_of(objective: Any, tokenizer: Any, folder: Path) -> list[dict[str, Any]]:
    return pairs_of(tokenizer) if objective.pairs else laid_out(objective, tokenizer, folder)


def test_seed_and_draw_decide_alone(objective: Any, tokenizer: Any, model_of: Any, tmp_path: Path) -> None:
    examples, collate = rows_of(objective, tokenizer, tmp_path), objective.collate(tokenizer, 0, model_of(objective)[1])
    batch = collate(examples)
    torch.manual_seed(123)
    np.random.seed(123)
    state = torch.get_rng_state()
    again = pickle.loads(pickle.dumps(collate))(examples[::-1])  # as in a worker process
    assert torch.equal(torch.get_rng_state(), state)
    assert again.keys() == batch.keys()
    for key, value in batch.items():
        assert torch.equal(again[key].flip(0), value), key


def test_another_epoch_or_seed_asks_something_else(
    objective: Any, tokenizer: Any, model_of: Any, tmp_path: Path
) -> None:
    examples, config = rows_of(objective, tokenizer, tmp_path), model_of(objective)[1]
    batch = objective.collate(tokenizer, 0, config)(examples)
    later = [example | {"draw": example["draw"] + len(examples)} for example in examples]
    for other in (objective.collate(tokenizer, 0, config)(later), objective.collate(tokenizer, 1, config)(examples)):
        same = all(other[key].shape == value.shape and torch.equal(other[key], value) for key, value in batch.items())
        assert same != objective.redraws


def test_the_loss_of_a_batch_is_the_sum_of_its_examples_losses(
    objective: Any, tokenizer: Any, model_of: Any, tmp_path: Path
) -> None:
    """So that the loop may divide by the items of a whole step, however it is split."""
    examples = rows_of(objective, tokenizer, tmp_path)[:5]
    model, config = model_of(objective)
    collate = objective.collate(tokenizer, 0, config)
    together, _ = objective.loss(model, collate(examples))
    assert together.shape == (len(objective.label_names),)
    assert torch.isfinite(together).all()
    assert (together > 0).all()
    alone = sum(objective.loss(model, collate([example]))[0] for example in examples)
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)


def test_the_model_is_not_given_the_labels_and_learns(
    objective: Any, tokenizer: Any, model_of: Any, tmp_path: Path
) -> None:
    examples = rows_of(objective, tokenizer, tmp_path)[:5]
    model, config = model_of(objective)
    batch = objective.collate(tokenizer, 0, config)(examples)
    given = {name: value.clone() for name, value in batch.items()}
    model.zero_grad()
    sums, _ = objective.loss(model, batch)
    assert batch.keys() == given.keys()  # the loop counts the labels afterwards
    sums.sum().backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.abs().max() > 0 for gradient in gradients)
    assert objective.finish(model) is not None


def test_every_key_is_explained(objective: Any) -> None:
    assert {*type(objective).model_fields} - {*objective.descriptions()} <= {"name"}
