"""What is known of transformers' own text models: their words, heads, positions, and which look back only.

The table of words and heads is read from model_types.json when one of them is first asked for; the file is written by
`python -m pipelines.core.generate_model_types` from the pinned transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class ModelType(NamedTuple):
    """What the config class of one `model_type` accepts."""

    keys: dict[str, str]
    """Field -> type words of `kinds`."""
    aliases: dict[str, str]
    """Other names of fields, such as `hidden_size` for `n_embd`."""
    heads: tuple[str, ...] = ()
    """What transformers can put on it: `masked_lm`, `causal_lm`, `seq2seq_lm`, `sequence_classification`, …"""

    def kind(self, key: str) -> str | None:
        """Type words of a field or of an alias; None if there is no such key."""
        return self.keys.get(self.aliases.get(key, key))


@cache
def model_types() -> dict[str, ModelType]:
    """Every known `model_type`."""
    text = Path(__file__).with_name("model_types.json").read_text(encoding="utf-8")
    types = json.loads(text)["types"]
    return {name: ModelType(entry["keys"], entry["aliases"], tuple(entry["heads"])) for name, entry in types.items()}


RECURRENT, CONVOLUTIONAL = "finery-rnn", "finery-cnn"
"""The model types of our families `rnn` and `cnn`."""


def looks_back_only(words: Mapping[str, object]) -> bool:
    """Whether the first token of a text knows nothing of the others.

    A decoder alone does; in an encoder-decoder each token of the decoder sees the whole text through the encoder.
    """
    model_type = words.get("model_type", "finery")
    if model_type == "finery":
        return bool(words.get("family", "encoder") == "decoder")
    if model_type == RECURRENT:
        return bool(words.get("stack") == "decoder")
    entry = model_types().get(str(model_type))
    if entry is None:
        return False
    return bool(words.get("is_decoder")) or (
        "causal_lm" in entry.heads and not {"masked_lm", "seq2seq_lm"} & set(entry.heads)
    )


AFTER_PADDING = frozenset(
    {
        "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta",
        "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }
)  # fmt: skip
"""Families of RoBERTa's kind: their first token stands at `pad_token_id + 1`, so that 514 positions hold 512 tokens."""


def usable_positions(config: object) -> int | None:
    """Tokens of the longest text that a model of this transformers config can read; None where there is no bound."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:  # XLNet says -1
        return None
    model_type = getattr(config, "model_type", "")
    if model_type not in AFTER_PADDING:
        return positions
    padding = 1 if model_type == "mpnet" else getattr(config, "pad_token_id", None) or 0
    return positions - padding - 1


def positions_of(words: Mapping[str, object]) -> int | None:
    """`max_position_embeddings` of a model of these config words, by the name that its model type has for it; None
    where there is no bound, or nobody says."""
    name, entry = "max_position_embeddings", model_types().get(str(words.get("model_type")))
    own = name if entry is None else entry.aliases.get(name, name)
    positions = words.get(name, words.get(own))
    return positions if isinstance(positions, int) and positions > 0 else None


def positions_for_text(model: Any) -> int | None:
    """Tokens of the longest text that an open model can read: its positions but those that its virtual tokens take."""
    positions = usable_positions(model.config)
    return None if positions is None else positions - getattr(model, "virtual_tokens", 0)


MOVED_FOR_POOLING = ("bert", "roberta", "xlm-roberta")
"""Encoders that transformers opens with a head on the first token alone, and whose body our own family holds too."""
POOLED = ("finery", *MOVED_FOR_POOLING, "modernbert")
"""Encoders whose heads can be told what of a text they read."""


def pooling_misfit(pooling: str, words: Mapping[str, Any]) -> str | None:
    """Why a head with that pooling cannot stand on a model of these config words, as a sentence without its subject."""
    model_type = words.get("model_type", "finery")
    if model_type not in POOLED:
        return f"is {pooling}, which is offered for {', '.join(POOLED)}, not for {model_type}; leave it out"
    family = words.get("family", "encoder")
    if model_type == "finery" and family != "encoder":
        return f"is {pooling}, which is for encoders; a model of the family {family} reads its last token, leave it out"
    if words.get("is_decoder"):
        return f"is {pooling}, which is for encoders, but is_decoder is true; leave it out"
    if words.get("position_embedding_type") not in (None, "absolute"):
        return f"is {pooling}, which needs position_embedding_type absolute; leave it out"
    return None


BOTH_WAYS = ("bert-generation", "xlnet")
"""Model types that see both ways although they have no masked-LM head."""


def sees_ahead(architecture: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved architecture would see the token it must name, as a sentence without its subject."""
    model_type = architecture.get("model_type", "finery")
    if model_type == "finery":
        family = architecture.get("family", "encoder")
        if family == "decoder":
            return None
        return f"needs a model that sees only what comes before: family decoder, not {family}"
    if model_type == RECURRENT:
        stack = architecture.get("stack", "encoder-decoder")
        return (
            None
            if stack == "decoder"
            else f"needs a model that sees only what comes before: stack decoder, not {stack}"
        )
    if model_type == CONVOLUTIONAL:
        return (
            "needs a model that sees only what comes before, but family cnn has an encoder; use rnn with stack: decoder"
        )
    facts = model_types().get(model_type)
    if facts is None or architecture.get("is_decoder"):
        return None
    encoder = "masked_lm" in facts.heads and "seq2seq_lm" not in facts.heads
    if not encoder and model_type not in BOTH_WAYS:
        return None
    instead = "set is_decoder: true, or " if "is_decoder" in facts.keys else ""
    return (
        f"needs a model that sees only what comes before, but {model_type} sees both ways; "
        f"{instead}use a decoder such as gpt2"
    )


TAKE_MASKS = ("bert", "finery", "gpt2", "gpt_neox", "llama", "qwen2", "qwen3")
"""Model types whose attention takes a ready mask, and a position for each token, as they are."""


def takes_masks(architecture: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved architecture does not take a ready mask, as a sentence without its subject."""
    model_type = architecture.get("model_type", "finery")
    if model_type not in TAKE_MASKS:
        return (
            f"needs attention that takes a mask for each pair of tokens, which {model_type} is not known for; "
            f"known: {', '.join(TAKE_MASKS)}"
        )
    if model_type == "finery" and architecture.get("attention_pattern") == "linear":
        return (
            "needs attention that takes a mask for each pair of tokens, which attention_pattern linear does not; "
            "use another pattern"
        )
    return None


def loses_window(architecture: Mapping[str, Any], tokens: int) -> str | None:
    """Why ready masks of so many tokens cannot serve this whole configuration, as a sentence without its subject; None
    if they can.

    transformers hands one ready mask to every layer, those with a window among them; ours puts the window into it.
    """
    window = architecture.get("sliding_window")
    if architecture.get("model_type") == "finery" or not window or tokens <= window:
        return None
    if "sliding_attention" not in (architecture.get("layer_types") or ()):
        return None
    return (
        f"needs a mask for each pair of {tokens} tokens, with which {architecture.get('model_type')} forgets that some "
        f"of its layers see {window} tokens only; set use_sliding_window: false, or take at most {window} tokens"
    )


ATTENTION_DROPOUT = {
    "bert": ("attention_probs_dropout_prob", 0.1),
    "finery": ("attention_probs_dropout_prob", 0.1),
    "gpt2": ("attn_pdrop", 0.1),
    "gpt_neox": ("attention_dropout", 0.0),
    "llama": ("attention_dropout", 0.0),
    "qwen2": ("attention_dropout", 0.0),
    "qwen3": ("attention_dropout", 0.0),
}
"""What the chance to drop an attention weight is called, and what it is where nothing is said, of `TAKE_MASKS`."""


def takes_sequences(architecture: Mapping[str, Any]) -> str | None:
    """Why attention by sequences, without a mask, cannot serve this resolved architecture, as a sentence without its
    subject; None if it can."""
    model_type = architecture.get("model_type", "finery")
    if model_type not in ATTENTION_DROPOUT:
        return f"is not known to serve {model_type}; known: {', '.join(ATTENTION_DROPOUT)}"
    if model_type == "finery":
        if architecture.get("family", "encoder") == "encoder-decoder":
            return "serves encoders and decoders, but family is encoder-decoder"
        if architecture.get("attention_pattern") == "linear":
            return "computes a softmax, but attention_pattern is linear"
        if architecture.get("attention_scoring") == "additive":
            return "computes products of queries and keys, but attention_scoring is additive"
        if architecture.get("position") in ("alibi", "relative"):
            return f"has no place for what position {architecture['position']} adds to each score"
    key, usual = ATTENTION_DROPOUT[model_type]
    if (dropout := architecture.get(key, usual)) != 0:
        return f"drops no attention weights, but {key} is {dropout}"
    return None
