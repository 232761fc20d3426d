"""What is learnt of words, spans and options: the losses are those that transformers' own heads compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.trainers.model_selection import set_aside
from tests import tiny

KINDS = {"token_classification": "tokens", "qa": "spans", "multiple_choice": "options"}
FAMILIES = ("encoder", "decoder", "encoder-decoder", "bert")


def row(number: int) -> dict[str, Any]:
    words = [tiny.WORDS[(3 * number + 5 * place) % len(tiny.WORDS)] for place in range(4 + 3 * number)]
    context = " ".join(words)
    return {
        "tokens": words,
        "tags": [("B-X", "I-X", "O")[(number + place) % 3] for place in range(len(words))],
        "question": "which was it",
        "context": context,
        "answers": {"text": [words[1]], "answer_start": [context.index(words[1])]},
        "options": [words[0], " ".join(words[1:3]), "nothing"],
        "answer": "ABC"[number % 3],
    }


def stage(
    folder: Path, kind: str, keys: str = "max_length: 24", architecture: str = "preset: bert-tiny", task: str = ""
) -> Any:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row(number)) for number in range(12)))
    described = f"{{kind: {kind}, train: rows.jsonl, validation: rows.jsonl{task}}}"
    text = f"name: t\nmodel: {{architecture: {{{architecture}}}}}\nstages:\n  - {{stage: supervised, {keys}, task: {described}}}\n"
    return loads(text, folder=folder).stages[0]


def built(head: Head, family: str) -> Any:
    if family == "bert":
        return tiny.build("bert", head)
    return tiny.build(
        "finery", head, family=family, **({"num_decoder_layers": 2} if family == "encoder-decoder" else {})
    )


@pytest.fixture
def lesson(tmp_path: Path, context: Any) -> Any:
    """`lesson(kind, family) -> (lesson, model)`."""

    def make(kind: str, family: str = "bert", **keys: Any) -> Any:
        made = stage(tmp_path, kind, **keys)
        task = made.resolved(made.id)
        model = built(made.learnt_as().training_head(made, task), family).eval()
        return made.training().prepare(made, task, context(), model, tiny.tokenizer(), 48), model

    return make


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_models_own_head(lesson: Any, kind: str, family: str) -> None:
    """transformers' heads divide by the items of the batch; the lesson returns the sum, and the loop divides."""
    made, model = lesson(kind, family)
    examples = [made.examples[position] for position in range(3)]
    batch = made.collate(examples)
    if kind == "qa":  # their softmax includes padding: one example at a time has none
        batch = made.collate(examples[:1])
    sums, _ = made.loss(model, batch)
    items = int(batch["labels"].ne(-100).sum())
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if kind == "qa":
        inputs |= {"start_positions": batch["labels"][:, 0], "end_positions": batch["labels"][:, 1]}
    else:
        inputs["labels"] = batch["labels"]
    with torch.no_grad():
        own = model(**inputs).loss
    torch.testing.assert_close(sums / items, own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_costs_the_same_alone_and_beside_longer_ones(lesson: Any, kind: str) -> None:
    made, model = lesson(kind)
    examples = [made.examples[position] for position in (0, 5, 9)]
    together, _ = made.loss(model, made.collate([dict(each) for each in examples]))
    alone = sum(made.loss(model, made.collate([dict(each)]))[0] for each in examples)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_the_head_learns(lesson: Any, kind: str) -> None:
    made, model = lesson(kind)
    loss, _ = made.loss(model, made.collate([made.examples[0], made.examples[1]]))
    loss.backward()
    head = [weight for name, weight in model.named_parameters() if name.startswith(("classifier", "qa_outputs"))]
    assert head
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head)


def test_all_parts_of_a_text_are_set_aside_together(lesson: Any) -> None:
    made, _ = lesson("qa")
    assert len(made.examples) > 12
    learn, held_out = set_aside(made.examples, 1, None)
    assert len(learn) + len(held_out) == len(made.examples)
    assert not set(learn.index) & set(held_out.index)
    assert len(set(held_out.index)) == 1  # a tenth of twelve rows


def test_words_are_scored_while_training(lesson: Any) -> None:
    import numpy as np

    made, _ = lesson("token_classification")
    labels = np.full((2, 4), -100)
    labels[0, 1:3], labels[1, 1] = (0, 1), 2
    logits = np.full((2, 4, 3), -1.0)
    logits[0, 1, 0] = logits[0, 2, 1] = logits[1, 1, 2] = 1.0
    assert made.metric == "f1"
    assert made.score(logits, labels) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}


def test_options_are_texts_for_a_tokenizer(tmp_path: Path) -> None:
    assert "nothing" in list(stage(tmp_path, "multiple_choice").texts())


def test_answers_that_no_window_holds_cannot_be_learnt(tmp_path: Path, context: Any) -> None:
    made = stage(tmp_path, "qa", keys="max_length: 16")
    long = " ".join(tiny.WORDS)
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(row(0) | {"context": long, "answers": {"text": [long], "answer_start": [0]}})
    )
    with pytest.raises(DataError, match="no window of 16 tokens holds a whole answer"):
        made.training().prepare(
            made, made.resolved("x"), context(), tiny.build("bert", Head("question_answering")), tiny.tokenizer(), 48
        )


@pytest.mark.parametrize(
    ("kind", "keys", "sentence"),
    [
        (
            "token_classification",
            "max_length: 24, doc_stride: 8",
            "doc_stride: is for tasks of the kind qa, but this task's kind is token_classification",
        ),
        ("qa", "max_length: 24, doc_stride: 20", "doc_stride: is 20, must be at most 13 with max_length 24"),
        ("qa", "max_length: 12", "max_length: is 12, must be at least 16"),
        ("qa", "auxiliary_lm: 0.5", "auxiliary_lm: is for tasks with one answer a text, but this task's kind is qa"),
        ("multiple_choice", "max_source_length: 9", "max_source_length: is for tasks of the kind seq2seq"),
        (
            "qa",
            "label_smoothing_factor: 0.1",
            "label_smoothing_factor: is 0.1, but does not reach a task of the kind qa",
        ),
    ],
)
def test_keys_of_other_kinds_are_refused(tmp_path: Path, kind: str, keys: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        stage(tmp_path, kind, keys=keys)


def test_an_architecture_without_the_head_is_refused_before_anything_loads(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="needs a multiple choice head; this architecture has"):
        stage(tmp_path, "multiple_choice", architecture="model_type: gpt2")
