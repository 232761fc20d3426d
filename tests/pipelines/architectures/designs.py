"""The designs that every family is tried in: each choice of the config appears in one of them at least."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pipelines.architectures as finery
from tests.covering import covering

TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,  # large enough that a wrong path changes the output visibly
    "layer_norm_eps": 1e-6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # or small random models would stop at once
}

DESIGNS: dict[str, dict[str, object]] = {
    "learned": {},
    "sinusoidal": {"position": "sinusoidal", "hidden_act": "relu"},
    "modern": {
        "position": "rotary", "norm_type": "rms_norm", "norm_position": "pre", "num_key_value_heads": 2,
        "qk_norm": True, "hidden_act": "silu", "is_gated_act": True, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "alibi": {"position": "alibi", "norm_position": "pre", "norm_bias": False, "num_key_value_heads": 1},
    "relative": {
        "position": "relative", "norm_type": "rms_norm", "norm_position": "pre", "attention_scoring": "dot_product",
        "attention_bias": False, "mlp_bias": False, "scale_logits": True, "initializer": "fan_in",
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    },
    "sandwich": {"position": "none", "norm_position": "sandwich", "hidden_act": "relu2", "head_dim": 8},
    "general": {"attention_scoring": "general", "position": "rotary"},
    "additive": {"attention_scoring": "additive", "norm_position": "pre"},
    "cosine": {"attention_scoring": "cosine", "norm_position": "pre", "initializer": "xavier_uniform"},
    "linear": {"attention_pattern": "linear", "norm_position": "pre"},
    "window": {
        "attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2,
        "position": "rotary", "local_rope_theta": 100.0, "norm_position": "pre",
    },
}  # fmt: skip

FAMILIES = ("encoder", "decoder", "encoder-decoder")


def designed(*families: str) -> list[tuple[str, str]]:
    """Every family in every design; another family comes first with each design, so that a covering takes all alike."""
    turned = [(families[at % len(families) :] + families, design) for at, design in enumerate(DESIGNS)]
    return [(family, design) for order, design in turned for family in order[: len(families)]]


DESIGNED = designed(*FAMILIES)
WRITERS = designed("decoder", "encoder-decoder")
each_design = pytest.mark.parametrize(("family", "design"), covering(DESIGNED))
each_writer = pytest.mark.parametrize(("family", "design"), covering(WRITERS))


def config_of(family: str, design: str, **overrides: object) -> finery.FineryConfig:
    """The tiny config of a family in a design."""
    fields = {**TINY, "family": family, **DESIGNS[design]}
    if family == "encoder-decoder":
        fields |= {"decoder_start_token_id": 1, "num_decoder_layers": 3}
    return finery.FineryConfig(**{**fields, **overrides})


def stirred(model: nn.Module) -> nn.Module:
    """Every learned weight away from its start: fresh norms and biases would hide a misplaced or missing one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


HEADS = {
    "encoder": (
        "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification",
        "ForQuestionAnswering", "ForMultipleChoice", "ForReward",
    ),
    "decoder": (
        "Model", "ForCausalLM", "ForCausalLMWithValueHead", "ForSequenceClassification", "ForTokenClassification",
        "ForQuestionAnswering", "ForMultipleChoice", "ForReward",
    ),
    "encoder-decoder": (
        "Model", "ForConditionalGeneration", "ForSequenceClassification", "ForTokenClassification",
        "ForQuestionAnswering", "ForMultipleChoice", "ForReward",
    ),
}  # fmt: skip
"""What each family can be asked for."""
HEADED = [(family, head) for family, heads in HEADS.items() for head in heads]
each_head = pytest.mark.parametrize(("family", "head"), covering(HEADED))


def headed(family: str, head: str, design: str = "learned", **overrides: object) -> nn.Module:
    """A family's model with any head, in evaluation mode."""
    torch.manual_seed(0)
    return stirred(getattr(finery, f"Finery{head}")(config_of(family, design, **overrides)))


def language_model(family: str, design: str, **overrides: object) -> nn.Module:
    """The head that predicts words, in evaluation mode."""
    head = {"encoder": "ForMaskedLM", "decoder": "ForCausalLM", "encoder-decoder": "ForConditionalGeneration"}[family]
    return headed(family, head, design, **overrides)


def padded(family: str) -> dict[str, Tensor]:
    """Sequences of 8 and 5 tokens, the second padded on the right; an encoder-decoder also reads 6 and 4 of its own."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, 61, (2, 8), generator=generator)
    mask = (torch.arange(8) < torch.tensor([[8], [5]])).long()
    inputs = {"input_ids": tokens * mask, "attention_mask": mask}
    if family == "encoder-decoder":
        own = (torch.arange(6) < torch.tensor([[6], [4]])).long()
        answer = torch.randint(3, 61, (2, 6), generator=generator)
        inputs |= {"decoder_input_ids": answer * own, "decoder_attention_mask": own}
    return inputs


def prompt(family: str) -> dict[str, Tensor]:
    """Three prompts of 6, 4 and 3 tokens, padded on the left for a decoder and on the right for an encoder."""
    tokens = torch.randint(3, 61, (3, 6), generator=torch.Generator().manual_seed(11))
    mask = (torch.arange(6) >= torch.tensor([[0], [2], [3]])).long()
    if family == "encoder-decoder":
        mask = mask.flip(1)
    return {"input_ids": tokens * mask, "attention_mask": mask}
