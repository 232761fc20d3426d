"""With mapped weights ours are the published models: every output and every gradient to 1e-5, padding included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pipelines.architectures as finery
from tests.covering import by_turns

from .references import REFERENCES, SHAPE, VOCAB, Reference, Weights

TOLERANCE = {"rtol": 0, "atol": 1e-5}


def trainable(model: nn.Module) -> Weights:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def stirred(model: nn.Module) -> nn.Module:
    """Every learned weight away from its start: fresh norms and biases would hide a misplaced or missing one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in trainable(model).values():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.15)
    return model.eval()


def with_weights_of(theirs: nn.Module, reference: Reference, kernel: str) -> nn.Module:
    """Our model with the reference's weights; each of ours must be given."""
    config = finery.FineryConfig(**{**SHAPE, **reference.fields, "attn_implementation": kernel})
    ours = getattr(finery, reference.head)(config)
    given = reference.weights({name: weight.detach() for name, weight in trainable(theirs).items()})
    if reference.left_out:
        ours.model.set_submodule(reference.left_out, nn.Identity())
    weights = trainable(ours)
    with torch.no_grad():
        if reference.alone:
            weights.pop(reference.alone).zero_()
        assert weights.keys() == given.keys()
        for name, weight in weights.items():
            assert weight.shape == given[name].shape, name
            weight.copy_(given[name])
    return ours.eval()


def inputs_for(reference: Reference) -> dict[str, Tensor]:
    """Sequences of 9 and 6 tokens, padded on the right; a decoder's own of 7 and 5; four choices of them."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, VOCAB, (2, 9), generator=generator)
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    pad = reference.fields.get("pad_token_id") or 0
    inputs = {"input_ids": tokens.masked_fill(mask == 0, pad), "attention_mask": mask}
    if reference.segments:
        inputs["token_type_ids"] = (torch.arange(9) > torch.tensor([[3], [2]])).long()
    if reference.head.endswith("MultipleChoice"):
        return {name: torch.stack([value, value.flip(0)], 1) for name, value in inputs.items()}
    if reference.fields.get("family") == "encoder-decoder" and reference.head.endswith("ConditionalGeneration"):
        own = (torch.arange(7) < torch.tensor([[7], [5]])).long()
        answer = torch.randint(3, VOCAB, (2, 7), generator=generator)
        answer[:, 0] = reference.fields.get("decoder_start_token_id", 3)
        inputs |= {"decoder_input_ids": answer.masked_fill(own == 0, pad), "decoder_attention_mask": own}
    return inputs


def answers(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The scores of a model, those of padded tokens left out."""
    outputs = model(**inputs)
    scores = {}
    for name in ("prediction_logits", "logits", "start_logits", "end_logits", "seq_relationship_logits"):
        if outputs.get(name) is None:
            continue
        seen = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
        by_token = outputs[name].shape[: seen.ndim] == seen.shape
        scores[name] = outputs[name][seen] if by_token else outputs[name]
    return scores


def surprise(scores: dict[str, Tensor]) -> Tensor:
    """A loss that every score takes part in, the same for both models."""
    total = torch.zeros(())
    for name, score in scores.items():
        rows = score.reshape(1, -1) if name in ("start_logits", "end_logits") else score.reshape(-1, score.shape[-1])
        target = torch.arange(len(rows)) * 7 % rows.shape[1]
        total = total + nn.functional.cross_entropy(rows, target)
    return total


@pytest.mark.parametrize(("name", "kernel"), by_turns(REFERENCES, ("sdpa", "eager")))
def test_outputs_and_gradients_are_those_of_the_reference(name: str, kernel: str) -> None:
    """That both kernels agree is tested in every design."""
    reference = REFERENCES[name]
    torch.manual_seed(0)
    theirs = stirred(reference.build())
    ours = with_weights_of(theirs, reference, kernel)
    inputs = inputs_for(reference)

    expected, found = answers(theirs, inputs), answers(ours, inputs)
    assert found.keys() == expected.keys()
    assert expected
    for name, score in expected.items():
        assert score.std() > 0.02, name  # scores that are all alike would agree by themselves
        # T5 1.1 has scores up to 7: float32's rounding of the last sum is in proportion to them, and float64 is held to 1e-5.
        largest = score.abs().max().item() if reference is REFERENCES["t5-1.1"] else 1.0
        rounding = TOLERANCE | {"atol": TOLERANCE["atol"] * largest}
        torch.testing.assert_close(found[name], score, **rounding, msg=lambda m, name=name: f"{name}: {m}")

    # Scores reach tens, and a gradient sums over every token: float32's own rounding may be more than 1e-5 there.
    if reference is not REFERENCES["modernbert"]:  # whose own gradients are not finite in float64
        expected, found = answers(theirs.double(), inputs), answers(ours.double(), inputs)
    for name, score in expected.items():
        torch.testing.assert_close(found[name], score, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")
    surprise(expected).backward()
    surprise(found).backward()
    with_gradients = {name: weight.grad for name, weight in trainable(theirs).items()}
    gradients = reference.weights(with_gradients)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    assert largest > 0.01  # five digits of nothing would be no agreement
    for name, weight in trainable(ours).items():
        if name == reference.alone:
            continue
        torch.testing.assert_close(
            weight.grad, gradients[name], **TOLERANCE, msg=lambda m, name=name: f"gradient of {name}: {m}"
        )
