"""What `model.architecture` may say: a preset with overrides, our own families' words, or a transformers `model_type`;
and the same words as a checkpoint's config.json says them.

The words and rules of our own families are those of `pipelines.architectures`, read from there; each mistake is said at
the recipe key it is about. A preset is a file of `configs/architectures`. `family: rnn` and `family: cnn` have words of
their own and are model types of their own, `finery-rnn` and `finery-cnn`, so that each is published with its own code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipelines.architectures import configuration_rules, convolutional_rules, recurrent_rules
from pipelines.architectures.field_rules import FieldRules
from pipelines.core.config import ConfigIssue, as_kind, json_type, misfit, show, unknown_key
from pipelines.core.files import configs_folder
from pipelines.core.model_types import ModelType, model_types
from pipelines.core.registry import nearest
from pipelines.core.yaml_positions import read_yaml

OURS = "finery"
"""The `model_type` of our transformers."""
BASELINES = {"rnn": "finery-rnn", "cnn": "finery-cnn"}
"""The `model_type` that a `family` of a recipe has where it is no transformer."""
BASELINE_RULES: dict[str, FieldRules] = {"finery-rnn": recurrent_rules.RULES, "finery-cnn": convolutional_rules.RULES}
"""The words and rules of each of these."""
OUR_MODEL_TYPES = (OURS, *BASELINE_RULES)
"""Every `model_type` whose code is ours."""

KINDS: dict[str, str] = configuration_rules.KINDS
"""Type words of `kinds` for each of FineryConfig's own fields."""
DEFAULTS: dict[str, object] = configuration_rules.DEFAULTS
"""FineryConfig's own fields with their default values."""

ANY_FAMILY = ("sequence_classification", "token_classification", "question_answering", "multiple_choice", "reward")
HEADS: dict[str, tuple[str, ...]] = {
    "encoder": ("masked_lm", "pretraining", *ANY_FAMILY),
    "decoder": ("causal_lm", "causal_lm_with_value", *ANY_FAMILY),
    "encoder-decoder": ("seq2seq_lm", *ANY_FAMILY),
}
"""What can stand on each of our transformers, as `Head.kind` calls it."""
BASELINE_HEADS: dict[str, dict[str, tuple[str, ...]]] = {
    "finery-rnn": {
        "encoder": ("sequence_classification", "bidirectional_lm"),
        "decoder": ("causal_lm", "sequence_classification"),
        "encoder-decoder": ("seq2seq_lm",),
    },
    "finery-cnn": {"encoder-decoder": ("seq2seq_lm",)},
}
"""What can stand on each stack of the others."""
COUNTED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
"""Of the words that most model types share, those that are at least 1 in all of them."""
OVERRULED: dict[str, tuple[str, ...]] = {
    "family": (
        "num_decoder_layers", "type_vocab_size", "embedding_norm", "lm_head_bias", "bidirectional_decoder",
        "length_prediction", "embedding_size", "sparse_prediction", "decoder_start_token_id",
    ),
    "attention_pattern": ("sliding_window", "global_attn_every_n_layers", "local_rope_theta"),
    "position": ("rope_theta", "local_rope_theta", "scale_embedding"),
}  # fmt: skip
"""Words of a preset that go with another of its words: a recipe that changes the latter falls back to what is usual."""

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


def mistakes(value: Mapping[str, object]) -> list[ConfigIssue]:
    """Every mistake in a `model.architecture`, each with its place below it."""
    if not value:
        return [((), "is empty; name a preset, such as {preset: bert-mini}, or a model_type, or our family's words")]
    issues: list[ConfigIssue] = []
    base: Mapping[str, object] = {}
    preset = value.get("preset")
    if preset is not None:
        names = presets()
        if isinstance(preset, str) and preset in names:
            base = _read(preset)
        else:
            hint = nearest(str(preset), names)
            issues.append((("preset",), f"is {show(preset)}, which is no preset.{hint} Available: {', '.join(names)}"))
    model_type = value.get("model_type", base.get("model_type", OURS))
    if (baseline := baseline_of(value)) is not None:
        return issues + _baseline_mistakes(value, baseline)
    if base and model_type != base.get("model_type", OURS):
        shape_of = base.get("model_type", OURS)
        sentence = f"is {show(model_type)}, but the preset '{preset}' is a shape of '{shape_of}'; leave out one of them"
        return [(("model_type",), sentence)]
    if model_type == OURS:
        return issues + _own_mistakes(value, base, whole=not issues)
    if not isinstance(model_type, str) or model_type not in model_types():
        hint = nearest(str(model_type), (*OUR_MODEL_TYPES, *model_types()))
        some = (
            f"{', '.join(OUR_MODEL_TYPES)}, bert, gpt2, llama, modernbert, t5, xlnet "
            f"and {len(model_types()) - 6} more of transformers"
        )
        return [*issues, (("model_type",), f"is {show(model_type)}, which is no known text model.{hint} Known: {some}")]
    return issues + _foreign_mistakes(value, model_types()[model_type], model_type)


def json_schema() -> dict[str, object]:
    """The JSON Schema of a `model.architecture`: a preset or our family's words, or another `model_type` with its
    own."""
    words = {key: {**json_type(kind), "default": DEFAULTS[key]} for key, kind in KINDS.items()}
    ours = {"preset": {"enum": list(presets())}, "model_type": {"const": OURS}, **words}
    others = {"model_type": {"type": "string", "not": {"enum": list(OUR_MODEL_TYPES)}}}
    return {
        "anyOf": [
            {"type": "object", "properties": ours, "additionalProperties": False, "minProperties": 1},
            *(_baseline_schema(family, model_type) for family, model_type in BASELINES.items()),
            {"type": "object", "properties": others, "required": ["model_type"]},
            {"type": "null"},
        ]
    }


def _baseline_schema(family: str, model_type: str) -> dict[str, object]:
    rules = BASELINE_RULES[model_type]
    words = {key: {**json_type(kind), "default": rules.defaults[key]} for key, kind in rules.kinds.items()}
    own = {"family": {"const": family}, "model_type": {"enum": [OURS, model_type]}, **words}
    named = {
        "anyOf": [
            {"required": ["family"]},
            {"required": ["model_type"], "properties": {"model_type": {"const": model_type}}},
        ]
    }
    return {"type": "object", "properties": own, "additionalProperties": False, **named}


def baseline_of(value: Mapping[str, object]) -> str | None:
    """The `model_type` of an architecture that is ours and no transformer; None for any other."""
    for key, model_type in (("family", BASELINES), ("model_type", {each: each for each in BASELINE_RULES})):
        if isinstance(named := value.get(key), str) and named in model_type:
            return model_type[named]
    return None


def stack_of(words: Mapping[str, object]) -> str:
    """`encoder`, `decoder` or `encoder-decoder`: the stacks of an architecture of ours whose words are resolved, or of
    a config of ours."""
    model_type = str(words.get("model_type", OURS))
    if model_type == OURS:
        return str(words.get("family", DEFAULTS["family"]))
    return str(BASELINE_RULES[model_type].completed(words).get("stack", "encoder-decoder"))


def heads(value: Mapping[str, object]) -> tuple[str, ...]:
    """What can stand on a model of this architecture, as `Head.kind` calls it. `value` has passed `mistakes`."""
    words = resolve(value)
    model_type = str(words["model_type"])
    if model_type in BASELINE_HEADS:
        return BASELINE_HEADS[model_type][stack_of(words)]
    if model_type == OURS:
        return HEADS[str(words.get("family", DEFAULTS["family"]))]
    return model_types()[model_type].heads


def heads_of(words: Mapping[str, object]) -> tuple[str, ...] | None:
    """As `heads`, for the words of a checkpoint's config.json, which nothing has checked; None where nobody knows."""
    model_type = str(words.get("model_type"))
    if model_type in OUR_MODEL_TYPES:
        key, usual = ("family", DEFAULTS["family"]) if model_type == OURS else ("stack", "encoder-decoder")
        return BASELINE_HEADS.get(model_type, HEADS).get(str(words.get(key, usual)))
    entry = model_types().get(model_type)
    return None if entry is None else entry.heads


def saved_words(folder: Path) -> dict[str, Any]:
    """The words of a checkpoint's config.json, `model_type` among them. Raises OSError and ValueError where it cannot
    be read."""
    place = folder / "config.json"
    return dict(_saved(place, place.stat().st_mtime_ns))


@lru_cache(64)
def _saved(place: Path, changed: int) -> dict[str, Any]:
    """What the file says; the checks of a recipe ask many times."""
    try:
        words = json.loads(place.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("its config.json is nested too deeply") from error
    if not isinstance(words, dict) or not isinstance(words.get("model_type"), str):
        raise ValueError("its config.json names no model_type")
    return words


def resolve(value: Mapping[str, object]) -> dict[str, object]:
    """The words of the config class: the preset's, overridden by the rest, with `model_type` filled in.

    `value` has passed `mistakes`. Other names of a field, such as `hidden_size` for `n_embd`, become the field's own.
    Under another `family`, `position` or `attention_pattern` than the preset's, words that go with its own are left
    out.
    """
    if (baseline := baseline_of(value)) is not None:
        kinds = BASELINE_RULES[baseline].kinds
        own = {key: as_kind(entry, kinds[key]) for key, entry in value.items() if key in kinds}
        return {"model_type": baseline, **own}
    preset = value.get("preset")
    base = _overridden(_read(preset), value) if isinstance(preset, str) else {}
    model_type = str(value.get("model_type", base.get("model_type", OURS)))
    model_type_words = ModelType(KINDS, {}) if model_type == OURS else model_types()[model_type]
    resolved: dict[str, object] = {"model_type": model_type}
    for words in (base, value):
        for key, entry in words.items():
            if key not in ("preset", "model_type"):
                resolved[model_type_words.aliases.get(key, key)] = as_kind(entry, model_type_words.kind(key) or "any")
    return resolved


def doubts(value: Mapping[str, object]) -> list[str]:
    """One sentence for each choice that is allowed and known to learn badly. `value` has passed `mistakes`."""
    words = resolve(value)
    return configuration_rules.doubts(words) if words["model_type"] == OURS else []


def _read(preset: str) -> dict[str, object]:
    place = presets()[preset]
    return deepcopy(_content(place, place.stat().st_mtime_ns))


@lru_cache(64)
def _content(place: Path, changed: int) -> dict[str, object]:
    """What a preset's file says; a recipe's check asks several times, and reading it is most of the work."""
    content: dict[str, object] = read_yaml(place)[0]
    return content


def _overridden(base: Mapping[str, object], value: Mapping[str, object]) -> dict[str, object]:
    """A preset's words as far as they still mean something beside those of the recipe."""
    gone = {word for key, words in OVERRULED.items() if _changes(key, base, value) for word in words}
    if _changes("family", base, value) and base.get("attention_pattern") in ("full", "causal"):
        gone.add("attention_pattern")
    return {key: entry for key, entry in base.items() if key not in gone}


def _changes(key: str, base: Mapping[str, object], value: Mapping[str, object]) -> bool:
    own = base.get(key, DEFAULTS[key])
    return bool(base) and value.get(key, own) != own


def _own_mistakes(value: Mapping[str, object], base: Mapping[str, object], whole: bool) -> list[ConfigIssue]:
    """Mistakes in our family's words; what contradicts each other is only looked for when the `whole` is known."""
    given = {key: entry for key, entry in value.items() if key not in ("preset", "model_type")}
    issues: list[ConfigIssue] = []
    for key, entry in given.items():
        sentence = RESERVED.get(key) or _own_type(key, entry)
        if sentence:
            issues.append(((key,), sentence))
    if issues or not whole:
        judged = {key: entry for key, entry in given.items() if (key,) not in {place for place, _ in issues}}
        return issues + [(keys, sentence) for keys, sentence in configuration_rules.findings(judged) if len(keys) == 1]
    full = {**DEFAULTS, **_overridden(base, value), **given}
    return [(_place(keys, given), sentence) for keys, sentence in configuration_rules.findings(full)]


def _own_type(key: str, value: object) -> str | None:
    """What is wrong with the name of a field of our transformers, or with the type of its value."""
    if key == "family":
        return misfit(value, "|".join([KINDS[key], *(f"={family}" for family in BASELINES)]))
    if key in KINDS:
        return misfit(value, KINDS[key]) and f"{misfit(value, KINDS[key])}{_needs_no_attention(key, value)}"
    for family, model_type in BASELINES.items():
        if key in BASELINE_RULES[model_type].fields:
            return f"is a word of family: {family}; leave it out, or set that family"
    return unknown_key(key, ("preset", "model_type", *KINDS))


def _needs_no_attention(key: str, value: object) -> str:
    without = (key, value) == ("attention_scoring", "none")
    return " (none is for family: rnn, whose decoder can do without)" if without else ""


def _baseline_mistakes(value: Mapping[str, object], model_type: str) -> list[ConfigIssue]:
    """Mistakes in the words of an architecture of ours that is no transformer."""
    rules = BASELINE_RULES[model_type]
    family = next(name for name, own in BASELINES.items() if own == model_type)
    issues: list[ConfigIssue] = []
    if value.get("preset") is not None:
        issues.append((("preset",), f"is a shape of a transformer, but the family is {family}; leave out one of them"))
    for key, allowed in (("model_type", (OURS, model_type)), ("family", (family,))):
        if value.get(key) not in (None, *allowed):
            other = f"is {show(value[key])}, but family: {family} is '{model_type}'; leave out one of them"
            issues.append(((key,), other))
    given = {key: entry for key, entry in value.items() if key not in ("preset", "model_type", "family")}
    for key, entry in given.items():
        if key in RESERVED:
            issues.append(((key,), RESERVED[key]))
        elif key not in rules.fields:
            foreign = f"is a word of our transformers; family: {family} takes {', '.join(rules.fields)}"
            issues.append(((key,), foreign if key in KINDS else unknown_key(key, tuple(rules.fields))))
        elif sentence := misfit(entry, rules.kinds[key]):
            issues.append(((key,), f"{sentence}{_needs_no_attention(key, entry)}"))
    judged = {key: entry for key, entry in given.items() if (key,) not in {place for place, _ in issues}}
    found = rules.findings(judged) if len(judged) == len(given) else []
    return issues + [(_place(keys, given), sentence) for keys, sentence in found]


def _place(keys: tuple[str, ...], given: Mapping[str, object]) -> tuple[str, ...]:
    """Where a mistake is said: at the first of its keys that the recipe wrote."""
    return next(((key,) for key in keys if key in given), (keys[0],))


def _foreign_mistakes(value: Mapping[str, object], model_type: ModelType, name: str) -> list[ConfigIssue]:
    issues: list[ConfigIssue] = []
    for key, entry in value.items():
        if key in ("preset", "model_type"):
            continue
        kind = model_type.kind(key)
        if key in RESERVED:
            issues.append(((key,), RESERVED[key]))
        elif kind is None:
            issues.append(((key,), unknown_key(key, ("model_type", *model_type.keys, *model_type.aliases))))
        elif sentence := misfit(entry, kind):
            issues.append(((key,), sentence))
        elif key in COUNTED and isinstance(entry, int) and entry < 1:
            issues.append(((key,), f"is {entry}, must be at least 1"))
        elif key in model_type.aliases and model_type.aliases[key] in value:
            target = model_type.aliases[key]
            issues.append(((key,), f"is another name of '{target}' in '{name}', which is given too; keep one"))
    return issues


def presets() -> dict[str, Path]:
    """Every named architecture with its file."""
    return {file.stem: file for file in sorted((configs_folder() / "architectures").glob("*.yaml"))}
