"""A task and a language model from one pass: both losses are what two models with the same weights would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.interfaces import Context, Head
from pipelines.core.load import loads
from pipelines.data.encoding import collate
from pipelines.models import opening
from pipelines.objectives.losses import classification_loss
from pipelines.tasks import auxiliary_lm, subject
from pipelines.tuners.lora import LoRA
from tests import tiny

CAUSAL = Head("causal_lm")
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}
GPT = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 48,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT},
    "openai-gpt": {"model_type": "openai-gpt", **GPT},
    "gpt_neox": {"model_type": "gpt_neox", **SIZES},
    "llama": {"model_type": "llama", **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3", **SIZES, "num_key_value_heads": 1, "head_dim": 8},
    "finery": {"model_type": "finery", **SIZES, "family": "decoder", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "finery, untied, scaled, with bias": {
        "model_type": "finery", **SIZES, "family": "decoder", "tie_word_embeddings": False, "scale_logits": True,
        "lm_head_bias": True, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip


def test_every_model_type_is_tried() -> None:
    assert {shape["model_type"] for shape in SHAPES.values()} == set(subject.LANGUAGE_MODELS)


@pytest.fixture(params=SHAPES)
def pretrained(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """(folder of a causal language model, the model)."""
    model = opening.build(SHAPES[request.param], CAUSAL, tiny.tokenizer(), seed=3).eval()
    tiny.disturb(model)
    model.save_pretrained(tmp_path / "pretrained")
    tiny.tokenizer().save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained", model


def opener(folder: Path) -> Callable[..., Any]:
    return lambda head, keep_base=None, trained_head=False, **_: opening.open_folder(
        folder, head, 5, trained_head=trained_head
    )


def rows(count: int = 6) -> list[dict[str, Any]]:
    return [
        {"input_ids": tiny.tokenizer()(text)["input_ids"], "labels": number % 3}
        for number, text in enumerate(tiny.TEXTS[:count])
    ]


def batch() -> dict[str, torch.Tensor]:
    return auxiliary_lm.with_next_tokens(lambda examples: collate(tiny.tokenizer(), examples))(rows())


def test_every_token_but_the_first_is_asked_once() -> None:
    found = batch()
    for number, row in enumerate(rows()):
        ids = row["input_ids"]
        assert found["lm_labels"][number].tolist() == [*ids[1:], *[-100] * (found["input_ids"].shape[1] - len(ids) + 1)]
    padded = {"input_ids": torch.tensor([[0, 0, 7, 8]]), "attention_mask": torch.tensor([[0, 0, 1, 1]])}
    assert auxiliary_lm.with_next_tokens(lambda _: padded)(None)["lm_labels"].tolist() == [[-100, -100, 8, -100]]


def test_both_losses_are_those_of_two_models(pretrained: Any) -> None:
    folder, language_model = pretrained
    model = opening.open_folder(folder, tiny.THREE, seed=5).eval()
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    before = set(model.state_dict())
    inputs = batch()
    plain = {name: value for name, value in inputs.items() if name not in ("labels", "lm_labels")}
    expected_task = cross_entropy(model(**plain).logits, inputs["labels"], reduction="sum")
    logits = language_model(**{name: value for name, value in plain.items() if name != "token_type_ids"}).logits
    expected_language = cross_entropy(
        logits.reshape(-1, logits.shape[-1]), inputs["lm_labels"].reshape(-1), reduction="sum"
    )
    auxiliary_lm.attach(model, opener(folder))
    for learner in (model, LoRA(r=2).apply(model)):
        (task, language), outputs = auxiliary_lm.with_language_loss(classification_loss)(learner, dict(inputs))
        torch.testing.assert_close(task, expected_task)
        torch.testing.assert_close(language, expected_language)
        assert outputs.logits.shape == (6, 3)
    model = opening.open_folder(folder, tiny.THREE, seed=5)
    auxiliary_lm.attach(model, opener(folder))
    auxiliary_lm.detach(model)
    assert set(model.state_dict()) == before


@pytest.mark.parametrize("own", [True, False])
def test_rounded_states_are_multiplied_in_the_type_of_the_matrix(own: bool) -> None:
    torch.manual_seed(0)
    matrix, bias, labels = torch.randn(20, 8), torch.randn(20), torch.tensor([3, 0, 19])
    head = auxiliary_lm.AuxiliaryHead(matrix if own else None, bias, scale=0.5)
    states = torch.randn(3, 8).to(torch.bfloat16)
    expected = cross_entropy(0.5 * states.float() @ matrix.T + bias, labels, reduction="sum")
    torch.testing.assert_close(head(states, matrix, labels), expected)


RECIPE = """\
name: gpt
model: {{architecture: {{model_type: gpt2, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 48}}}}
stages:
  - stage: supervised
    task: {{kind: classification, columns: [text], label: label, train: train.csv, validation: train.csv}}
    max_length: 32
    {keys}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Any]:
    def build(keys: str, architecture: str | None = None) -> Any:
        lines = [
            f"{('bad', 'fine', 'good')[row % 3]} {tiny.TEXTS[row]},{('bad', 'fine', 'good')[row % 3]}"
            for row in range(30)
        ]
        (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
        text = RECIPE.format(keys=keys)
        if architecture is not None:
            text = text.replace("{model_type: gpt2, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 48}", architecture)
        return loads(text, folder=tmp_path)

    return build


@pytest.mark.parametrize("tuner", [pytest.param("full", marks=pytest.mark.long), "lora"])
def test_a_stage_learns_both_and_leaves_a_classifier(
    tuner: str, recipe: Any, context: Callable[..., Context], events: Any, tmp_path: Path
) -> None:
    pretrained = opening.build(SHAPES["gpt2"], CAUSAL, tiny.tokenizer(), seed=3)
    pretrained.save_pretrained(tmp_path / "pretrained")
    weights = {}
    for key, words in (("with", "auxiliary_lm: 0.5"), ("without", "seed: 7")):
        written = recipe(
            f"{words}\n    tuner: {tuner}\n    arguments: {{num_train_epochs: 4, learning_rate: 1e-2, global_batch_size: 10, "
            "per_device_train_batch_size: 5, logging_steps: 3, save_steps: 5}"
        )
        place = context(key, recipe=written, open_model=opener(tmp_path / "pretrained"))
        written.stages[0].run(place)
        losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
        assert losses[-1] < losses[0]
        weights[key] = losses[0]
        assert json.loads((place.folder / "metrics.json").read_text())["train_steps"] == 12
        model = opening.open_folder(
            place.folder / "model", Head("sequence_classification", ("bad", "fine", "good")), 0, trained_head=True
        )
        assert not [name for name in model.state_dict() if auxiliary_lm.HEAD in name]
    assert weights["with"] > weights["without"] + 1  # half of the language model's logarithm of the vocabulary


@pytest.mark.parametrize(
    ("keys", "architecture", "sentence"),
    [
        ("auxiliary_lm: 0.5", "{preset: bert-tiny}", "auxiliary_lm: needs a model that sees only what comes before"),
        (
            "auxiliary_lm: 0.5",
            "{model_type: bloom}",
            "auxiliary_lm: is offered for finery, gpt2, .* not for bloom; leave it out",
        ),
        ("auxiliary_lm: 0", None, "auxiliary_lm: is 0, must be greater than 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_loads(
    keys: str, architecture: str | None, sentence: str, recipe: Any
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(keys, architecture)


def test_a_checkpoint_without_a_language_model_is_refused(tmp_path: Path) -> None:
    opening.build(SHAPES["llama"], tiny.THREE, tiny.tokenizer(), seed=3).save_pretrained(tmp_path / "classifier")
    model = opening.open_folder(tmp_path / "classifier", tiny.THREE, seed=5)
    with pytest.raises(ModelError, match="has no trained causal lm head"):
        auxiliary_lm.attach(model, opener(tmp_path / "classifier"))
    with pytest.raises(ModelError, match="auxiliary_lm needs a model that sees only"):
        auxiliary_lm.attach(tiny.build("bert", tiny.THREE), opener(tmp_path / "classifier"))
