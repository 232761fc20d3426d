"""What a FineryConfig may hold, as rules that need neither torch nor transformers.

The configuration's constructor refuses what this module finds; a recipe can be checked with the same sentences
before anything heavy is imported.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

FAMILIES = ("encoder",)
POSITIONS = ("learned", "sinusoidal", "rotary")
NORM_POSITIONS = ("post", "pre")

ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu",
    "sqrtsoftplus", "swish", "tanh",
)  # fmt: skip
"""transformers' activations that hold no parameters of their own (PReLU and xIELU do, and would not be counted)."""

CHOICES = {
    "family": FAMILIES,
    "position": POSITIONS,
    "norm_position": NORM_POSITIONS,
    "hidden_act": ACTIVATIONS,
}
SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
POSITIVE = ("initializer_range", "layer_norm_eps", "rope_theta")
SWITCHES = ("sparse_prediction", "tie_word_embeddings")


def contradictions(fields: Mapping[str, object]) -> list[str]:
    """One sentence for each mistake in `fields`: what was given, what is allowed, what to do. Empty if all is well.

    Fields that are absent are not judged, so a recipe's overrides can be checked alone or merged with a preset.
    """
    found = [sentence for name, value in fields.items() if (sentence := _field(name, value))]
    return found or _between_fields(fields)


def _field(name: str, value: Any) -> str | None:
    """What is wrong with one field, looked at alone."""
    if name in CHOICES and value not in CHOICES[name]:
        close = get_close_matches(str(value), CHOICES[name], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        if len(CHOICES[name]) == 1:
            hint = " (the only one built so far)"
        return f"{name} is {value!r}, must be one of: {', '.join(CHOICES[name])}{hint}"
    if name in SIZES and not (_whole(value) and value >= 1):
        hint = "; 1 means that every token belongs to the same segment" if name == "type_vocab_size" else ""
        return f"{name} is {value!r}, must be a whole number of at least 1{hint}"
    if name in PROBABILITIES and not (_number(value) and 0 <= value < 1):
        if name == "classifier_dropout" and value is None:
            return None
        hint = ", or null to use hidden_dropout_prob" if name == "classifier_dropout" else ""
        return f"{name} is {value!r}, must be a probability of at least 0 and below 1{hint}"
    if name in POSITIVE and not (_number(value) and value > 0):
        return f"{name} is {value!r}, must be a number above 0"
    if name in SWITCHES and not isinstance(value, bool):
        return f"{name} is {value!r}, must be true or false"
    if name == "pad_token_id" and value is not None and not (_whole(value) and value >= 0):
        return f"pad_token_id is {value!r}, must be the id of a token, or null if the vocabulary has no padding token"
    return None


def _between_fields(fields: Mapping[str, Any]) -> list[str]:
    """What is wrong with fields that are fine one by one."""
    found = []
    width, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if width is not None and heads is not None and width % heads:
        divisors = ", ".join(str(count) for count in range(1, min(width, 64) + 1) if width % count == 0)
        found.append(
            f"hidden_size is {width} and num_attention_heads is {heads}, which does not divide it: "
            f"choose one of {divisors} heads, or another hidden_size"
        )
    elif fields.get("position") == "rotary" and width is not None and heads is not None and width // heads % 2:
        found.append(
            f"position is 'rotary' and each head is {width // heads} wide (hidden_size {width}, num_attention_heads "
            f"{heads}): rotation turns pairs of numbers, so choose sizes with an even quotient, or position: learned"
        )
    if fields.get("position") == "sinusoidal" and width is not None and width % 2:
        found.append(
            f"position is 'sinusoidal' and hidden_size is {width}: sines and cosines come in pairs, "
            "so choose an even hidden_size, or position: learned"
        )
    padding, vocabulary = fields.get("pad_token_id"), fields.get("vocab_size")
    if padding is not None and vocabulary is not None and padding >= vocabulary:
        found.append(
            f"pad_token_id is {padding} and vocab_size is {vocabulary}: choose an id below the vocabulary's size, "
            "or null if it has no padding token"
        )
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
