"""Whatever text model transformers can build learns by size what it learns with eager attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.core import costs
from pipelines.core.model_types import model_types
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.log_probabilities import without_dropout
from pipelines.trainers import training_attention

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "n_head", "n_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_decoder_layers"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "moe_intermediate_size", "index_head_dim"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "index_topk"), 4),
    **dict.fromkeys(("num_experts_per_tok", "index_n_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "bos_token_id"), 1),
    "vocab_size": 120,
    "max_position_embeddings": 48,
    "n_positions": 48,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
"""By the names that families have for them."""
LARGEST = 3_000_000
"""Weights of a model that these sizes did not make small; it is passed over."""
CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "seq2seq_lm": "AutoModelForSeq2SeqLM",
}


def built(model_type: str) -> Any:
    """A small language model without dropout; None where transformers cannot build one of these sizes, or says
    something else when it is asked again."""
    import transformers

    entry = model_types()[model_type]
    kind = next((name for head, name in CLASSES.items() if head in entry.heads), None)
    if kind is None:
        return None
    words = {name: value for name, value in SIZES.items() if name in entry.keys or name in entry.aliases}
    torch.manual_seed(0)
    try:
        config = transformers.AutoConfig.for_model(model_type, **words)
        if config.num_hidden_layers > 4 or config.hidden_size > 64:
            return None
        model = getattr(transformers, kind).from_config(config, attn_implementation="eager").train()
        if sum(weight.numel() for weight in model.parameters()) > LARGEST:
            return None
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * torch.randn(weight.shape)
        first, again = (learnt(without_dropout(model))[0] for _ in range(2))
    except Exception:
        return None
    return model if torch.equal(first, again) else None


def learnt(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What it says of two texts, one of them padded, and the gradients of a sum over it."""
    ids = torch.randint(5, 100, (2, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    beside = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    model.zero_grad(set_to_none=True)
    said = model(input_ids=ids, attention_mask=mask, **beside).logits.float()
    (said * torch.linspace(-1, 1, said.numel()).view(said.shape)).sum().backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return (said[mask.bool()] if said.shape[:2] == mask.shape else said).detach(), found


@pytest.mark.long
def test_every_family_learns_by_size_what_it_learns_with_eager_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, int] = {}
    for model_type in sorted(model_types()):
        if (model := built(model_type)) is None:
            continue
        said, expected = learnt(model)
        seen: list[str] = []
        look = model.base_model.register_forward_hook(
            lambda body, given, output, seen=seen: seen.append(body.config._attn_implementation)
        )
        for enough in (1, 1 << 40):
            monkeypatch.setitem(costs.SCORES_LEARNT, "no", enough)
            with attention_by_size(model, training_attention.register()):
                found, gradients = learnt(model)
            torch.testing.assert_close(found, said, rtol=1e-3, atol=1e-3, msg=model_type)
            assert gradients.keys() == expected.keys(), model_type
            for name, gradient in expected.items():
                assert (gradients[name] - gradient).norm() <= 0.02 * gradient.norm() + 2e-6, (model_type, name)
        look.remove()
        for attention in set(seen):
            taken[attention] = taken.get(attention, 0) + 1
    assert min(taken["sdpa"], taken[training_attention.NAME]) >= 100, taken
