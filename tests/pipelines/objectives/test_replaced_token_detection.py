"""Replaced-token detection's settings: its parts, and which models it fits.

Generator and discriminator: what they share, what is sampled, and what each loss is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForTokenClassification

from pipelines.core.interfaces import Head
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.objectives.generator import GeneratorAndDiscriminator, sampled
from pipelines.objectives.replaced_token_detection import ReplacedTokenDetection, generator_words


def test_the_defaults_are_the_papers():
    objective = ReplacedTokenDetection()
    assert objective.label_names == {"labels": 1.0, "replaced": 50.0}
    assert (objective.probability, objective.generator_size) == (0.15, 0.25)
    assert objective.head.kind == "token_classification"
    assert objective.head.labels == ("original", "replaced")
    masking = objective.masking()
    assert (masking.replace_with_mask, masking.replace_with_random) == (1.0, 0.0)


def test_only_encoders_with_known_embeddings_fit():
    objective = ReplacedTokenDetection()
    for model_type in ("finery", "electra", "bert"):
        assert objective.misfit({"model_type": model_type}) is None
    assert "the model is 't5'" in str(objective.misfit({"model_type": "t5"}))
    assert "set family: encoder" in str(objective.misfit({"model_type": "finery", "family": "decoder"}))


SHAPES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 40},
    "electra": {"embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 40},
    "finery": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 40},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece().train(["the cat sat on the mat and the dog looked at it for a while"] * 3, 90)


@pytest.fixture
def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    texts = ["the cat sat on the mat", "a dog", "the dog looked at the cat for a while and the cat looked"] * 4
    examples = [{"input_ids": ids, "draw": draw} for draw, ids in enumerate(tokenizer(texts)["input_ids"])]
    return ReplacedTokenDetection().collate(tokenizer, 0)(examples)


@pytest.fixture(params=list(SHAPES))
def joint(request: pytest.FixtureRequest, tokenizer: Any) -> GeneratorAndDiscriminator:
    return made(request.param, tokenizer)


def made(model_type: str, tokenizer: Any, attention: str = "eager", **words: Any) -> GeneratorAndDiscriminator:
    if model_type == "finery":
        from pipelines.architectures.registration import register

        register()
    torch.manual_seed(0)
    shape = {"model_type": model_type, "vocab_size": len(tokenizer), **SHAPES[model_type], **words}

    def build(head: Head, **overrides: Any) -> Any:
        chosen = dict(shape | overrides)
        kind = {"masked_lm": AutoModelForMaskedLM, "token_classification": AutoModelForTokenClassification}[head.kind]
        return kind.from_config(AutoConfig.for_model(chosen.pop("model_type"), **chosen), attn_implementation=attention)

    objective = ReplacedTokenDetection()
    found: GeneratorAndDiscriminator = objective.prepare(build(objective.head), tokenizer, build)
    return found


def test_the_batch_is_masked_and_every_real_token_is_judged(batch: dict[str, torch.Tensor], tokenizer: Any):
    asked = batch["labels"] != -100
    assert (batch["input_ids"][asked] == tokenizer.mask_token_id).all()
    assert ((batch["replaced"] == 0) == batch["attention_mask"].bool()).all()
    assert (batch["replaced"][batch["attention_mask"] == 0] == -100).all()
    assert batch["luck"].shape == batch["input_ids"].shape
    assert ((batch["luck"] >= 0) & (batch["luck"] <= 1)).all()


def test_the_generator_has_a_quarter_of_the_width_and_the_same_embeddings(joint: GeneratorAndDiscriminator):
    own, theirs = joint.generator.base_model.embeddings, joint.discriminator.base_model.embeddings
    assert joint.generator.config.hidden_size == 8
    assert joint.generator.config.num_attention_heads == 1
    assert joint.generator.config.intermediate_size == 16
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        assert getattr(own, name).weight is getattr(theirs, name).weight
    output = joint.generator.get_output_embeddings().weight
    assert output is theirs.word_embeddings.weight
    names = {name for name, _ in joint.named_parameters()}
    assert sum("word_embeddings" in name for name in names) == 1
    assert all(torch.isfinite(weight).all() for weight in joint.parameters())


def test_both_attend_as_is_usual_on_a_gpu(batch: dict[str, torch.Tensor], tokenizer: Any):
    losses = [
        ReplacedTokenDetection().loss(made("finery", tokenizer, attention).eval(), dict(batch))[0]
        for attention in ("eager", "sdpa")
    ]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)


def test_the_widths_of_the_base_model_are_the_papers():
    from transformers import ElectraConfig

    config = ElectraConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=768)
    words = generator_words(config.to_dict(), 1 / 3)  # table 6: the generator of ELECTRA-Base
    assert (words["hidden_size"], words["num_attention_heads"], words["intermediate_size"]) == (256, 4, 1024)


def test_both_losses_equal_a_loop_over_the_tokens(joint: GeneratorAndDiscriminator, batch: dict[str, torch.Tensor]):
    joint.eval()
    with torch.no_grad():
        sums, outputs = ReplacedTokenDetection().loss(joint, dict(batch))
        plain = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        generated = joint.generator(**plain).logits
        filled, naming = batch["input_ids"].clone(), 0.0
        original = batch["input_ids"].clone()
        for row, column in (batch["labels"] != -100).nonzero().tolist():
            label, logits = batch["labels"][row, column], generated[row, column].double()
            naming += functional.cross_entropy(logits, label).item()
            below = logits.softmax(-1).cumsum(-1)
            filled[row, column] = int((below <= batch["luck"][row, column].double()).sum())
            original[row, column] = label
        judged = joint.discriminator(input_ids=filled, attention_mask=batch["attention_mask"]).logits
        judging = 0.0
        for row, column in batch["attention_mask"].nonzero().tolist():
            truth = torch.tensor(int(filled[row, column] != original[row, column]))
            judging += functional.cross_entropy(judged[row, column], truth).item()
    assert torch.equal(outputs["input_ids"], filled)
    assert sums.tolist() == pytest.approx([naming, judging], rel=1e-5)
    assert outputs["replaced"].sum() > 5


def test_the_generator_learns_nothing_from_the_discriminator(
    joint: GeneratorAndDiscriminator, batch: dict[str, torch.Tensor]
):
    sums, _ = ReplacedTokenDetection().loss(joint, dict(batch))
    sums[1].backward()
    only_generator = [name for name, _ in joint.named_parameters() if name.startswith("generator.")]
    assert only_generator
    weights = dict(joint.named_parameters())
    assert all(weights[name].grad is None or not weights[name].grad.any() for name in only_generator)
    assert joint.discriminator.classifier.weight.grad.any()


def test_every_token_is_drawn_as_often_as_its_probability():
    logits = torch.log(torch.tensor([[0.5, 0.0, 0.3, 0.2]]))
    luck = (torch.arange(10_000) + 0.5) / 10_000
    counts = torch.bincount(sampled(logits.expand(10_000, 4), luck), minlength=4)
    assert counts.tolist() == pytest.approx([5000, 0, 3000, 2000], abs=2)
    assert sampled(logits, torch.tensor([1.0])).tolist() == [3]


def test_what_is_sampled_depends_on_seed_and_draw_alone(
    joint: GeneratorAndDiscriminator, batch: dict[str, torch.Tensor]
):
    joint.eval()
    with torch.no_grad():
        _, first = ReplacedTokenDetection().loss(joint, dict(batch))
        torch.manual_seed(99)
        _, again = ReplacedTokenDetection().loss(joint, {name: value.flip(0) for name, value in batch.items()})
    assert torch.equal(again["input_ids"].flip(0), first["input_ids"])


def test_a_checkpoint_holds_every_weight_once_and_comes_back(
    joint: GeneratorAndDiscriminator, tmp_path: Path, tokenizer: Any
):
    joint.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert len([name for name in weights if "word_embeddings" in name]) == 1
    other = made(joint.config.model_type, tokenizer)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(1.0)
    result = other.load_state_dict(weights, strict=False)
    assert set(result.missing_keys) <= set(other._keys_to_ignore_on_save)
    assert not result.unexpected_keys
    for (name, weight), (_, expected) in zip(other.named_parameters(), joint.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name


def test_the_discriminator_is_kept_and_the_generator_beside_it(joint: GeneratorAndDiscriminator, tmp_path: Path):
    kept = ReplacedTokenDetection().finish(joint)
    assert kept is joint.discriminator
    kept.save_pretrained(tmp_path / "model")
    for name, model in kept.finery_beside.items():
        model.save_pretrained(tmp_path / "model" / name)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "model" / "generator").eval()
    ids = torch.arange(5, 15)[None]
    joint.generator.eval()
    torch.testing.assert_close(again(input_ids=ids).logits, joint.generator(input_ids=ids).logits)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["hidden_size"] == 32


def test_two_models_learn_together(tokenizer: Any, batch: dict[str, torch.Tensor]):
    joint = made("bert", tokenizer, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    objective = ReplacedTokenDetection()
    optimizer = torch.optim.Adam(joint.parameters(), lr=5e-3)
    items = torch.stack([(batch[name] != -100).sum() for name in objective.label_names])
    values = []
    for _ in range(25):
        sums, _ = objective.loss(joint, dict(batch))
        parts = sums / items
        optimizer.zero_grad()
        (parts * torch.tensor(list(objective.label_names.values()))).sum().backward()
        optimizer.step()
        values.append(parts.detach().numpy())
    first, last = np.mean(values[:3], axis=0), np.mean(values[-3:], axis=0)
    assert last[0] < first[0] / 2
    assert last[1] < first[1] / 2


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_weights(tokenizer: Any, tmp_path: Path):
    from pipelines.core.errors import Stopped
    from pipelines.core.events import EventLog
    from pipelines.core.interfaces import Context, World
    from pipelines.core.signals import StopSignal
    from pipelines.trainers.trainer import fit

    objective = ReplacedTokenDetection()
    collate = objective.collate(tokenizer, 7)
    texts = ["the cat sat on the mat", "a dog", "the dog looked at the cat for a while and the cat looked at it"] * 8
    examples = [{"input_ids": ids} for ids in tokenizer(texts)["input_ids"]]
    arguments = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "save_steps": 100,
        "logging_steps": 1,
    }

    def trained(name: str, stop_at: int | None = None) -> Any:
        stop, calls = StopSignal(), [0]
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)

        def counted(rows: Any) -> Any:
            calls[0] += 1
            stop.requested = calls[0] == stop_at
            return collate(rows)

        context = Context(
            stage_id="s",
            folder=folder,
            fingerprint="0" * 8,
            seed=7,
            recipe=None,
            events=EventLog(folder / "e.jsonl", "s"),  # type: ignore[arg-type]
            world=World(),
            precision="no",
            cache=tmp_path,
            stage_folders={},
            open_model=lambda *_: None,
            open_tokenizer=lambda: tokenizer,
            stop=stop,  # type: ignore[arg-type,return-value]
        )
        model, _ = fit(
            context,
            made("finery", tokenizer),
            tokenizer,
            examples,
            collate=counted,
            loss=objective.loss,
            arguments=arguments,
            label_names=objective.label_names,
            marked=True,
        )
        return model

    whole = trained("whole")
    with pytest.raises(Stopped):
        trained("halves", stop_at=2)
    again = trained("halves")
    for (name, weight), (_, expected) in zip(again.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name


@pytest.mark.parametrize("model_type", list(SHAPES))
def test_documents_of_one_block_can_be_kept_apart_from_both_models(model_type: str, tokenizer: Any):
    from pipelines.objectives.attention_masks import SeparateDocuments

    objective, joint = ReplacedTokenDetection(), made(model_type, tokenizer).eval()
    collate = objective.collate(tokenizer, 0, joint.config)
    first = tokenizer("the cat sat on the mat and the dog")["input_ids"]
    others = [
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("looked at it for a while", "and the cat sat on it")
    ]
    length = min(map(len, others))
    blocks = [[{"input_ids": [*first, *other[:length], tokenizer.sep_token_id], "draw": 0}] for other in others]

    def said(together: Any) -> list[Any]:
        with torch.no_grad():
            return [objective.loss(joint, together(block))[1] for block in blocks]

    one, two = said(SeparateDocuments(collate, tokenizer.sep_token_id, False))
    torch.testing.assert_close(one["logits"][:, : len(first)], two["logits"][:, : len(first)])
    assert torch.equal(one["input_ids"][:, : len(first)], two["input_ids"][:, : len(first)])
    one, two = said(collate)
    assert not torch.allclose(one["logits"][:, : len(first)], two["logits"][:, : len(first)])
