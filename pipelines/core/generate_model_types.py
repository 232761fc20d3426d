"""Write model_types.json from the installed transformers: `python -m pipelines.core.generate_model_types`.

Kept are the model types that read text and nothing else: those with a masked, causal or sequence-to-sequence language
model, a vocabulary of their own and no nested configs.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipelines.core.architecture_fields import RESERVED

TARGET = Path(__file__).with_name("model_types.json")
ORDER = ("int", "float", "bool", "str", "list", "dict", "any", "null")
PLAIN = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    type(None): "null",
    None: "null",
    list: "list",
    tuple: "list",
    dict: "dict",
    object: "any",
    Any: "any",
    Callable: "str",
}


def words(annotation: Any) -> set[str]:
    """The words of `kinds` for a type annotation."""
    if annotation in PLAIN:
        return {PLAIN[annotation]}
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return words(inner[0])
    if origin is typing.Literal:
        return {f"={choice}" if isinstance(choice, str) else PLAIN[type(choice)] for choice in inner}
    if origin in (typing.Union, types.UnionType):
        return set().union(*(words(part) for part in inner))
    if origin is not None:
        return words(Callable if "Callable" in str(origin) else list if origin not in (dict, list, tuple) else origin)
    if isinstance(annotation, type) and annotation.__name__ == "dtype":
        return {"str"}
    return {"dict"}  # nested configs and typed mappings


def kind(annotation: Any) -> str:
    """The words of an annotation in a fixed order."""
    kinds = words(annotation)
    if "any" in kinds:
        return "any"
    if "str" in kinds:
        kinds = {word for word in kinds if not word.startswith("=")}
    return "|".join(sorted(kinds, key=lambda word: (ORDER.index(word) if word in ORDER else -1, word)))


HEADS = {
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "sequence_classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question_answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "multiple_choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
}
"""The heads a recipe can ask for, and transformers' table of the model types that have each."""
PAIR_LABELS = ("next_sentence_label", "sentence_order_label")
"""What a pretraining model takes that answers a question about a pair of segments, beside naming hidden tokens."""
LANGUAGE_MODELS = ("masked_lm", "causal_lm", "seq2seq_lm")


def describe(config_class: Any) -> dict[str, Any]:
    """Keys, aliases and heads of one config class."""
    import torch  # transformers' annotations name torch.dtype without importing it

    hints = typing.get_type_hints(config_class, localns={"torch": torch})
    keys = {each.name: kind(hints[each.name]) for each in fields(config_class) if each.name not in RESERVED}
    aliases = {alias: key for alias, key in config_class.attribute_map.items() if key in keys and alias not in keys}
    from transformers.models.auto import modeling_auto

    heads = [head for head, names in HEADS.items() if config_class.model_type in getattr(modeling_auto, names)]
    if _judges_pairs(config_class):
        heads.insert(1, "pretraining")
    return {"keys": keys, "aliases": aliases, "heads": heads}


def _judges_pairs(config_class: Any) -> bool:
    """Whether transformers has BERT's pretraining model of this type, one head for hidden tokens and one for pairs."""
    from transformers import AutoModelForPreTraining

    if config_class not in AutoModelForPreTraining._model_mapping:
        return False
    taken = inspect.signature(AutoModelForPreTraining._model_mapping[config_class].forward).parameters
    return "labels" in taken and any(label in taken for label in PAIR_LABELS)


def table() -> dict[str, dict[str, Any]]:
    """Every text model type of the installed transformers."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    names = {name for head in LANGUAGE_MODELS for name in getattr(modeling_auto, HEADS[head])}
    types_by_name = {}
    for name in sorted(names):
        config_class = CONFIG_MAPPING[name]
        own = {each.name for each in fields(config_class)}
        if "vocab_size" in own and not config_class.sub_configs:
            types_by_name[name] = describe(config_class)
    return types_by_name


def text() -> str:
    """The content of model_types.json: one line a model type."""
    from transformers import __version__

    lines = [f" {json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in table().items()]
    return f'{{"transformers": "{__version__}", "types": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
