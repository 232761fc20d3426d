"""Smoothed labels and weighted classes: the same gradients as torch's own losses over all training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.interfaces import Context
from pipelines.core.load import loads
from pipelines.tasks.classification.training import class_weights
from pipelines.trainers import trainer
from pipelines.trainers.supervised import Supervised
from tests import tiny
from tests.pipelines.trainers.test_supervised import opener, stage  # noqa: F401
from tests.pipelines.trainers.test_trainer import SGD

LABELS = [0] * 6 + [1] * 3 + [2] * 1


class Task:
    """As much of a task as the weights need."""

    name, kind, labels = "task", "classification", None
    head = tiny.THREE


def weights(given: Any, labels: list[int] = LABELS) -> torch.Tensor:
    subject = Supervised(task="glue/sst2", class_weights=given)
    return class_weights(subject, Task(), labels)  # type: ignore[arg-type]


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    assert weights("balanced").tolist() == pytest.approx(expected.tolist())
    assert (weights("balanced")[LABELS]).mean().item() == pytest.approx(1)


def test_a_class_without_rows_does_not_change_the_others() -> None:
    found = weights("balanced", [0, 0, 0, 2])
    assert found[[0, 2]].tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1)])


def test_given_weights_keep_their_ratios_and_have_a_mean_of_one_over_the_rows() -> None:
    found = weights((1.0, 2.0, 4.0))
    assert (found / found[0]).tolist() == pytest.approx([1, 2, 4])
    assert found[LABELS].mean().item() == pytest.approx(1)
    assert torch.equal(found, weights((10, 20, 40)))


def test_without_weights_every_class_counts_the_same() -> None:
    assert weights(None) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("even", "must be balanced or a list of numbers"),
        ((1.0, -1.0), "no negative number"),
        ((0.0, 0.0), "at least one above 0"),
        ((float("inf"), 1.0), "must be finite"),
        ((float("nan"), 1.0), "must be finite"),
        ((True, 1.0), "a list of numbers"),
        ((), "a list of numbers"),
        (2.0, "a list of numbers"),
    ],
)
def test_weights_that_are_none_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Supervised(task="glue/sst2", class_weights=given)


def test_weights_that_fit_no_row_or_not_the_classes_are_refused() -> None:
    with pytest.raises(
        DataError,
        match="task 'task': class_weights has 2 numbers, must have 3, in the order of the classes: entailment, neutral",
    ):
        weights((1.0, 2.0))
    with pytest.raises(DataError, match="class_weights are 0 for every class that the training rows have"):
        weights((0.0, 0.0, 1.0), [0, 1])


RECIPE = """\
name: classes
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, task: TASK, KEYS}
"""


@pytest.mark.parametrize(
    ("task", "keys", "message"),
    [
        (
            "glue/stsb",
            "label_smoothing_factor: 0.1",
            "label_smoothing_factor: is 0.1, but does not reach a task of the kind regression; leave it out",
        ),
        (
            "glue/stsb",
            "class_weights: balanced",
            "class_weights: is for tasks of the kind classification, but this task's kind is regression",
        ),
        (
            "glue/sst2",
            "class_weights: [1, 2, 3]",
            "class_weights: has 3 numbers, must have 2, in the order of the classes: negative, positive",
        ),
        ("glue/sst2", "label_smoothing_factor: 1", "label_smoothing_factor: is 1, must be less than 1"),
        (
            "glue/sst2",
            "arguments: {label_smoothing_factor: 0.1}",
            "arguments.label_smoothing_factor: is a key of a supervised stage itself",
        ),
    ],
)
def test_keys_that_have_no_meaning_are_refused_at_their_line(task: str, keys: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loads(RECIPE.replace("TASK", task).replace("KEYS", keys))
    assert message in str(caught.value)


def test_a_translation_is_smoothed_by_its_objective() -> None:
    text = (
        RECIPE.replace("preset: bert-tiny", "preset: transformer-base")
        .replace("TASK", "multi30k/en-de")
        .replace("KEYS", "label_smoothing_factor: 0.1")
    )
    with pytest.raises(RecipeError, match=r"set objective\.label_smoothing"):
        loads(text)


@pytest.mark.parametrize(
    ("each", "keys"),
    [
        (16, {"class_weights": "balanced"}),
        (4, {"label_smoothing_factor": 0.2}),
        (5, {"class_weights": (3.0, 1.0, 2.0), "label_smoothing_factor": 0.1}),
    ],
    ids=str,
)
def test_the_gradients_are_torchs_over_all_rows_however_a_step_is_split(
    keys: dict[str, Any],
    each: int,
    context: Callable[..., Context],
    stage: Callable[..., Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,  # noqa: F811, RUF100
) -> None:
    lines = [f"{key}: {list(value) if isinstance(value, tuple) else value}" for key, value in keys.items()]
    block = stage("\n    ".join(["max_length: 32", *lines]), rows=16)
    place = context(f"{each}", open_model=opener("bert"))
    seen: list[dict[str, torch.Tensor]] = []

    def look(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        seen.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})

    monkeypatch.setattr(trainer.StageCallback, "on_pre_optimizer_step", look, raising=False)
    task = block.resolved("inline")
    model = opener("bert")(block.learnt_as().training_head(block, task))
    lesson = block.training().prepare(block, task, place, model, tiny.tokenizer(), None)
    arguments = SGD | {
        "per_device_train_batch_size": each,
        "gradient_accumulation_steps": -(-16 // each),
        "max_steps": 1,
        "learning_rate": 1e-9,
    }
    trainer.fit(
        place, model, tiny.tokenizer(), lesson.examples, collate=lesson.collate, loss=lesson.loss, arguments=arguments
    )

    plain = opener("bert")(block.learnt_as().training_head(block, task))
    batch = lesson.collate([lesson.examples[position] for position in range(16)])
    labels = batch.pop("labels")
    counts = torch.bincount(labels, minlength=3).double()
    raw = {"balanced": 16 / (3 * counts), None: torch.ones(3, dtype=torch.double)}.get(keys.get("class_weights"))
    raw = torch.tensor(keys["class_weights"], dtype=torch.double) if raw is None else raw
    scaled = raw / raw[labels].mean()
    # By hand: -(1 - e) w[y] log p[y] - e / K sum over c of w[c] log p[c], over all rows, divided by the number of rows.
    smoothing = keys.get("label_smoothing_factor", 0.0)
    said = plain(**batch).logits.double().log_softmax(-1)
    picked = said.gather(1, labels[:, None])[:, 0] * scaled[labels]
    (-((1 - smoothing) * picked + smoothing / 3 * (said * scaled).sum(1)).sum() / 16).backward()
    (found,) = seen
    for name, weight in plain.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-6)
    if not smoothing:  # torch's own weighted mean
        torch.testing.assert_close(
            functional.cross_entropy(said, labels, scaled), functional.nll_loss(said, labels, raw), rtol=1e-9, atol=1e-9
        )


def test_smoothing_is_transformers_own() -> None:
    from transformers.trainer_pt_utils import LabelSmoother

    from pipelines.objectives.losses import cross_entropy

    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=generator), torch.tensor([0, 3, -100, 1, 2, -100])
    expected = LabelSmoother(epsilon=0.15)({"logits": logits}, labels)
    assert cross_entropy(logits, labels, 0.15).item() / 4 == pytest.approx(expected.item(), rel=1e-6)
    assert cross_entropy(logits[None], labels[None]).item() == pytest.approx(
        functional.cross_entropy(logits, labels, reduction="sum").item()
    )
