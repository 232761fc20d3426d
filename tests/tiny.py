"""Models small enough for a test: one shape a family, one tokenizer, one kind of batch."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from pipelines.core.interfaces import Head

SENTENCE = "the a cat dog film book was is good bad fine dull not very on in it saw read runs sleeps and or"
WORDS = SENTENCE.split()
TEXTS = [
    " ".join(WORDS[(step * (row + 3) + row) % len(WORDS)] for step in range(2 + row * 5 % 11)) for row in range(40)
]

MASKED = Head("masked_lm")
TWO = Head("sequence_classification", ("no", "yes"))
THREE = Head("sequence_classification", ("entailment", "neutral", "contradiction"))
NUMBER = Head("sequence_classification")

_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
}
SHAPES: dict[str, dict[str, Any]] = {
    "finery": _BERT,
    "bert": _BERT,
    "electra": _BERT | {"embedding_size": 24},
    "roberta": _BERT,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 48},
    "albert": _BERT | {"embedding_size": 24},
    "modernbert": _BERT,
    "deberta-v2": _BERT,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48},
    "llama": _BERT,
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2},
    "bart": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 48,
    },
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
}
"""The sizes of each family, in its own words."""

NO_DROPOUT = {
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "modernbert": {},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {},
    "t5": {"dropout_rate": 0.0},
    "bart": {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "classifier_dropout": 0.0},
    "xlnet": {"dropout": 0.0, "summary_last_dropout": 0.0},
}
_BERT_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}


@cache
def _trained_tokenizer() -> Any:
    from pipelines.data.tokenizers.wordpiece import WordPiece

    return WordPiece().train(TEXTS, 120)


def tokenizer() -> Any:
    """A WordPiece tokenizer of the words above; each call gives one of its own, so no test changes another's."""
    return copy.deepcopy(_trained_tokenizer())


def shape(model_type: str, dropout: bool = False, **overrides: Any) -> dict[str, Any]:
    """An architecture as `models.build` takes it."""
    silent = {} if dropout else NO_DROPOUT.get(model_type, _BERT_NO_DROPOUT)
    return {"model_type": model_type, **SHAPES[model_type], **silent, **overrides}


def build(model_type: str, head: Head, seed: int = 0, **overrides: Any) -> Any:
    """A model from scratch, without dropout."""
    from pipelines.models import opening

    return opening.build(shape(model_type, **overrides), head, tokenizer(), seed)


def batch(rows: int = 4, length: int = 10, seed: int = 0) -> dict[str, Any]:
    """Token ids and their mask; the second row is padded on the right."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(5, len(_trained_tokenizer()), (rows, length), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    if rows > 1:
        attention_mask[1, length - 3 :] = 0
        input_ids[1, length - 3 :] = _trained_tokenizer().pad_token_id
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def logits(model: Any, inputs: dict[str, Any]) -> Any:
    """What the model says in evaluation mode."""
    import torch

    training = model.training
    with torch.no_grad():
        said = model.eval()(**inputs).logits
    model.train(training)
    return said


def disturb(model: Any, seed: int = 0, by: float = 0.1) -> None:
    """Move every trainable weight a little, as training would."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += by * torch.randn(weight.shape, generator=generator)
