"""What a head that decides about a whole text reads of an encoder: its first token, or the mean of its tokens.

BERT is pretrained to say in its first token what a text is about (Devlin et al. 2019, section 3.1,
arxiv.org/abs/1810.04805); encoders of sentences are trained to say it by the mean of all tokens (Reimers and Gurevych
2019, "Sentence-BERT", section 3, arxiv.org/abs/1908.10084), and their first token was never asked. transformers'
classes for BERT and RoBERTa read the first token alone, so a body of these is moved into our own family, which computes
the same and reads either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.model_types import AFTER_PADDING, MOVED_FOR_POOLING, pooling_misfit

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

SAME = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "type_vocab_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "layer_norm_eps",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
"""Words of a BERT's config that mean the same in ours."""
NAMES = {
    "encoder.layer.": "layers.",
    "attention.self.": "attention.",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.intermediate",
    "output.dense": "feed_forward.output",
    "output.LayerNorm": "feed_forward_norm",
    "embeddings.LayerNorm": "embeddings.norm",
}
"""Parts of the names of a BERT's weights, and ours; the more specific ones come first."""
POSITIONS = "embeddings.position_embeddings.weight"


def settled(config: PreTrainedConfig, head: Head) -> PreTrainedConfig:
    """The config of the model that has `head` with its pooling: `config` itself, or that of our family which a BERT
    moves into. Raises ModelError where the pooling is not offered."""
    if head.pooling is None:
        return config
    model_type = config.model_type
    if sentence := pooling_misfit(head.pooling, {**config.to_dict(), "model_type": model_type}):
        raise ModelError(f"pooling {sentence}")
    if model_type not in MOVED_FOR_POOLING:
        first = "cls" if model_type == "modernbert" else "first"
        config.classifier_pooling = first if head.pooling == "first" else head.pooling
        return config
    return _ours(config, head.pooling) if head.pooling == "mean" else config


class Asked(NamedTuple):
    """What the pooling of a head asks of a checkpoint."""

    words: dict[str, str] = {}
    """Words of its config that are to be others."""
    moves: bool = False
    """Whether its body moves into our family."""
    changes: bool = False
    """Whether the model is another than the one in the folder."""


def asked(source: str, where: Mapping[str, Any], head: Head) -> Asked:
    """What must be done with the checkpoint for the pooling of `head`. Raises ModelError where it is not offered."""
    if head.pooling is None:
        return Asked()
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **where)
    if config.model_type in MOVED_FOR_POOLING and not pooling_misfit(head.pooling, config.to_dict()):
        return Asked(moves=head.pooling == "mean", changes=head.pooling == "mean")
    before = getattr(config, "classifier_pooling", None)
    after = settled(config, head).classifier_pooling
    return Asked({"classifier_pooling": after}, changes=after != before)


def moved(model: PreTrainedModel, head: Head) -> PreTrainedModel:
    """The body of a BERT or RoBERTa in our family, with a new head of torch's current random numbers. Raises
    ModelError."""
    from pipelines.models.heads import auto_class

    config = settled(model.config, head)
    ours: PreTrainedModel = auto_class(head).from_config(config, attn_implementation=model.config._attn_implementation)
    body = ours.base_model
    theirs = model.base_model.state_dict()
    weights = {_our_name(name): weight for name, weight in theirs.items() if not name.startswith("pooler.")}
    if model.config.model_type in AFTER_PADDING:
        weights[POSITIONS] = weights[POSITIONS][-config.max_position_embeddings :]
    own = body.state_dict()
    _refuse_other_names(weights, own)
    body.load_state_dict(weights)
    ours.finery_new_modules = ["classifier"]
    return ours


def _our_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours, 1)
    return name


def _refuse_other_names(weights: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    if other := sorted(weights.keys() ^ own.keys()):
        raise ModelError(
            f"pooling mean cannot be given to this checkpoint: it is no plain BERT (weights {', '.join(other[:3])}); "
            "leave pooling out"
        )


def _ours(config: PreTrainedConfig, pooling: str) -> PreTrainedConfig:
    """The config in our family's words, with what the head needs of it."""
    from transformers import AutoConfig

    longest = config.max_position_embeddings
    if config.model_type in AFTER_PADDING:
        longest -= (config.pad_token_id or 0) + 1
    given = {name: getattr(config, name, None) for name in SAME}
    given |= {name: None for name in ("bos_token_id", "eos_token_id") if (given[name] or 0) >= config.vocab_size}
    labels: dict[str, Any] = {"id2label": config.id2label, "label2id": config.label2id}
    try:
        return AutoConfig.for_model(
            architecture_fields.OURS,
            **given,
            **labels,
            problem_type=config.problem_type,
            max_position_embeddings=longest,
            classifier_pooling=pooling,
        )
    except ValueError as error:
        raise ModelError(f"pooling mean cannot be given to this checkpoint: {' '.join(str(error).split())}") from error
