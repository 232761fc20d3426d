"""What `model.architecture` may say: a preset with overrides, our own family's words, or a transformers `model_type`.

The rules repeat those of FineryConfig's constructor, each at the key it is about.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.blocks import Found, show, unknown_key
from pipelines.fields.kinds import as_kind, misfit
from pipelines.fields.model_types import ModelType, model_types
from pipelines.fields.places import presets
from pipelines.marks import read_yaml
from pipelines.registry import nearest

OURS = "finery"
"""The `model_type` of our own family."""

HEADS = ("masked_lm", "sequence_classification")
"""What can stand on a model of our own family."""
FAMILIES = ("encoder",)
POSITIONS = ("learned", "sinusoidal", "rotary")
NORM_POSITIONS = ("post", "pre")
ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu",
    "sqrtsoftplus", "swish", "tanh",
)  # fmt: skip

DEFAULTS: dict[str, object] = {
    "family": "encoder",
    "position": "learned",
    "norm_position": "post",
    "sparse_prediction": False,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
}
"""FineryConfig's own fields with their default values."""


def _choices(names: tuple[str, ...]) -> str:
    return "|".join(f"={name}" for name in names)


KINDS: dict[str, str] = {
    "family": _choices(FAMILIES),
    "position": _choices(POSITIONS),
    "norm_position": _choices(NORM_POSITIONS),
    "sparse_prediction": "bool",
    "vocab_size": "int",
    "hidden_size": "int",
    "num_hidden_layers": "int",
    "num_attention_heads": "int",
    "intermediate_size": "int",
    "hidden_act": _choices(ACTIVATIONS),
    "hidden_dropout_prob": "float",
    "attention_probs_dropout_prob": "float",
    "max_position_embeddings": "int",
    "rope_theta": "float",
    "type_vocab_size": "int",
    "initializer_range": "float",
    "layer_norm_eps": "float",
    "pad_token_id": "int|null",
    "classifier_dropout": "float|null",
    "tie_word_embeddings": "bool",
}
"""Type words of `kinds` for each of FineryConfig's own fields."""

SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
COUNTED = tuple(size for size in SIZES if size != "type_vocab_size")
"""Of the words that most model types share, those that are at least 1 in all of them."""
PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
POSITIVE = ("initializer_range", "layer_norm_eps", "rope_theta")

RESERVED: dict[str, str] = {
    "num_labels": "is decided by the stage's task; leave it out",
    "id2label": "is decided by the stage's task; leave it out",
    "label2id": "is decided by the stage's task; leave it out",
    "problem_type": "is decided by the stage's task; leave it out",
    "architectures": "is decided by the stage, which builds the head that it needs; leave it out",
    "auto_map": "is written when the model is saved; leave it out",
    "transformers_version": "is written when the model is saved; leave it out",
    "dtype": "is not a matter of the shape: weights are float32; use launch.mixed_precision for the computation",
    "torch_dtype": "is not a matter of the shape: weights are float32; use launch.mixed_precision for the computation",
    "return_dict": "is decided by the trainer; leave it out",
    "output_hidden_states": "is decided by the trainer; leave it out",
    "output_attentions": "is decided by the trainer; leave it out",
    "is_encoder_decoder": "is fixed by the model_type; leave it out",
    "name_or_path": "is for pretrained weights; use model.checkpoint for them",
}
"""Words of every transformers config that a recipe does not decide here, with what decides them."""


def mistakes(value: Mapping[str, object]) -> list[Found]:
    """Every mistake in a `model.architecture`, each with its place below it."""
    if not value:
        return [((), "is empty; name a preset, such as {preset: bert-mini}, or a model_type, or our family's words")]
    found: list[Found] = []
    base: Mapping[str, object] = {}
    preset = value.get("preset")
    if preset is not None:
        known = presets()
        if isinstance(preset, str) and preset in known:
            base = _read(preset)
        else:
            hint = nearest(str(preset), known)
            found.append((("preset",), f"is {show(preset)}, which is no preset.{hint} Available: {', '.join(known)}"))
    model_type = value.get("model_type", base.get("model_type", OURS))
    if base and model_type != base.get("model_type", OURS):
        shape_of = base.get("model_type", OURS)
        sentence = f"is {show(model_type)}, but the preset '{preset}' is a shape of '{shape_of}'; leave out one of them"
        return [(("model_type",), sentence)]
    if model_type == OURS:
        return found + _own_mistakes(value, base, whole=not found)
    if not isinstance(model_type, str) or model_type not in model_types():
        hint = nearest(str(model_type), (OURS, *model_types()))
        some = f"{OURS}, bert, gpt2, llama, modernbert, t5, xlnet and {len(model_types()) - 6} more of transformers"
        return [*found, (("model_type",), f"is {show(model_type)}, which is no known text model.{hint} Known: {some}")]
    return found + _foreign_mistakes(value, model_types()[model_type], model_type)


def heads(value: Mapping[str, object]) -> tuple[str, ...]:
    """What can stand on a model of this architecture, as `Head.kind` calls it. `value` has passed `mistakes`."""
    model_type = str(resolve(value)["model_type"])
    return HEADS if model_type == OURS else model_types()[model_type].heads


def resolve(value: Mapping[str, object]) -> dict[str, object]:
    """The words of the config class: the preset's, overridden by the rest, with `model_type` filled in.

    `value` has passed `mistakes`. Other names of a field, such as `hidden_size` for `n_embd`, become the field's own.
    """
    preset = value.get("preset")
    base = _read(preset) if isinstance(preset, str) else {}
    model_type = str(value.get("model_type", base.get("model_type", OURS)))
    known = ModelType(KINDS, {}) if model_type == OURS else model_types()[model_type]
    resolved: dict[str, object] = {"model_type": model_type}
    for words in (base, value):
        for key, entry in words.items():
            if key not in ("preset", "model_type"):
                resolved[known.aliases.get(key, key)] = as_kind(entry, known.kind(key) or "any")
    return resolved


def _read(preset: str) -> dict[str, object]:
    content: dict[str, object] = read_yaml(presets()[preset])[0]
    return content


def _own_mistakes(value: Mapping[str, object], base: Mapping[str, object], whole: bool) -> list[Found]:
    """Mistakes in our family's words; what contradicts each other is only looked for when the `whole` is known."""
    found: list[Found] = []
    for key, entry in value.items():
        if key in ("preset", "model_type"):
            continue
        sentence = RESERVED.get(key) or _own_field(key, entry)
        if sentence:
            found.append(((key,), sentence))
    return found or (_between_fields(value, {**DEFAULTS, **base, **value}) if whole else [])


def _own_field(key: str, value: object) -> str | None:
    """What is wrong with one field of our family, looked at alone."""
    if key not in KINDS:
        return unknown_key(key, ("preset", "model_type", *KINDS))
    if key == "family" and value not in FAMILIES:
        return f"is {show(value)}, must be {' or '.join(FAMILIES)}: the other families are not built yet"
    sentence = misfit(value, KINDS[key])
    if sentence:
        return sentence
    if key in SIZES and isinstance(value, int) and value < 1:
        return f"is {value}, must be at least 1"
    if key in PROBABILITIES and isinstance(value, int | float) and not 0 <= value < 1:
        return f"is {value}, must be a probability of at least 0 and below 1"
    if key in POSITIVE and isinstance(value, int | float) and not 0 < value < float("inf"):
        return f"is {value}, must be a number above 0"
    if key == "pad_token_id" and isinstance(value, int) and value < 0:
        return f"is {value}, must be the id of a token, or null if the vocabulary has no padding token"
    return None


def _between_fields(value: Mapping[str, object], whole: Mapping[str, object]) -> list[Found]:
    """What is wrong with fields that are fine one by one. The place is the first of them that the recipe wrote."""

    def at(*keys: str) -> tuple[str, ...]:
        return next(((key,) for key in keys if key in value), ())

    found: list[Found] = []
    width, heads = whole["hidden_size"], whole["num_attention_heads"]
    assert isinstance(width, int)
    assert isinstance(heads, int)
    if width % heads:
        divisors = ", ".join(str(count) for count in range(1, min(width, 64) + 1) if width % count == 0)
        found.append((
            at("num_attention_heads", "hidden_size"),
            f"{heads} attention heads do not divide hidden_size {width}; set num_attention_heads to one of {divisors}, "
            "or change hidden_size",
        ))  # fmt: skip
    elif whole["position"] == "rotary" and width // heads % 2:
        found.append((
            at("num_attention_heads", "hidden_size", "position"),
            f"rotary positions turn pairs of numbers, but {heads} attention heads of hidden_size {width} are "
            f"{width // heads} wide; choose sizes with an even quotient, or position: learned",
        ))  # fmt: skip
    if whole["position"] == "sinusoidal" and width % 2:
        found.append((
            at("hidden_size", "position"),
            f"sinusoidal positions come in pairs of sine and cosine, but hidden_size is {width}; choose an even "
            "hidden_size, or position: learned",
        ))  # fmt: skip
    padding, vocabulary = whole["pad_token_id"], whole["vocab_size"]
    if isinstance(padding, int) and isinstance(vocabulary, int) and padding >= vocabulary:
        found.append((
            at("pad_token_id", "vocab_size"),
            f"pad_token_id {padding} lies outside a vocabulary of {vocabulary}; choose a smaller id, or null if there "
            "is no padding token",
        ))  # fmt: skip
    return found


def _foreign_mistakes(value: Mapping[str, object], model_type: ModelType, name: str) -> list[Found]:
    found: list[Found] = []
    for key, entry in value.items():
        if key in ("preset", "model_type"):
            continue
        kind = model_type.kind(key)
        if key in RESERVED:
            found.append(((key,), RESERVED[key]))
        elif kind is None:
            found.append(((key,), unknown_key(key, ("model_type", *model_type.keys, *model_type.aliases))))
        elif sentence := misfit(entry, kind):
            found.append(((key,), sentence))
        elif key in COUNTED and isinstance(entry, int) and entry < 1:
            found.append(((key,), f"is {entry}, must be at least 1"))
        elif key in model_type.aliases and model_type.aliases[key] in value:
            target = model_type.aliases[key]
            found.append(((key,), f"is another name of '{target}' in '{name}', which is given too; keep one"))
    return found
