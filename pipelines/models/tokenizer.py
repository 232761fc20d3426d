"""Opening tokenizers: the run's own, a folder's, the Hub's; and whether a model has segments for their pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.architectures.configuration_rules import completed
from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError
from pipelines.core.registry import TOKENIZERS
from pipelines.models import remote_code

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pipelines.core.recipe import Model

DEFAULT = "wordpiece"
"""What a model from scratch gets when its recipe names no tokenizer."""


SEGMENTS = "token_type_ids"
"""The model input that tells the two texts of a pair apart."""
SEGMENTS_WITHOUT_A_SIZE = ("xlnet",)
"""Model types with segments whose config has no number of them."""


def block(name: str) -> Any:
    """The algorithm of that name with its default settings."""
    return TOKENIZERS.load(name)()


def open_tokenizer(source: str, revision: str | None = None, start: Model | None = None) -> PreTrainedTokenizerBase:
    """A fast tokenizer from a folder or the Hub. Raises ModelError.

    `start` is the recipe's model, where `source` is that or was made of it: whether code beside it may run. Without
    it none runs.
    """
    from transformers import AutoTokenizer

    where = remote_code.opening(source, revision, start)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
    except (OSError, ValueError, KeyError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(
            remote_code.refusal(source, error) or f"no tokenizer could be opened from '{source}': {sentence[:300]}"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of '{source}' has no fast version, which Finery needs")
    return remote_code.forget_named(tokenizer, where)


def has_segments(shape: Mapping[str, Any]) -> bool:
    """Whether a model of this resolved architecture tells the two texts of a pair apart by `token_type_ids`.

    Others refuse them, or take them for words, as GPT-2 does.
    """
    words = dict(shape)
    model_type = words.pop("model_type", "finery")
    if model_type in SEGMENTS_WITHOUT_A_SIZE:
        return True
    if model_type in architecture_fields.BASELINE_RULES:
        return False
    if model_type == "finery":
        words = completed(words)
    elif "type_vocab_size" not in words:
        from transformers import CONFIG_MAPPING

        words["type_vocab_size"] = getattr(CONFIG_MAPPING[model_type](), "type_vocab_size", None)
    return (words["type_vocab_size"] or 0) > 1


def without_segments(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer for a model without segments: it no longer gives `token_type_ids`, nor does what is saved of it."""
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != SEGMENTS]
    return tokenizer
