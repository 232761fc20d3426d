"""Models: built from a recipe's architecture, or opened from a folder or the Hub, with the head that a stage needs."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import ModelError
from pipelines.protocols import Head

AUTO_CLASSES = {
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
}
"""The transformers class that each kind of head is opened with."""


def auto_class(head: Head) -> Any:
    """The transformers Auto class for a head, our own family registered with it."""
    import transformers

    from pipelines.architectures.registration import register

    register()
    return getattr(transformers, AUTO_CLASSES[head.kind])


def head_settings(head: Head) -> dict[str, Any]:
    """Config entries that a head needs."""
    if head.kind != "sequence_classification":
        return {}
    if not head.labels:
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(head.labels)),
        "label2id": {label: position for position, label in enumerate(head.labels)},
        "problem_type": "single_label_classification",
    }


def build(architecture: Mapping[str, Any], head: Head, tokenizer: Any, seed: int) -> Any:
    """A model with random weights. `architecture` is resolved: `model_type` and its config's keys."""
    from transformers import AutoConfig
    from transformers.trainer_utils import set_seed

    words = dict(architecture)
    model_type = words.pop("model_type")
    words.setdefault("vocab_size", len(tokenizer))
    if words["vocab_size"] < len(tokenizer):
        raise ModelError(
            f"model.architecture.vocab_size is {words['vocab_size']}, but the tokenizer has {len(tokenizer)} entries; leave it out"
        )
    for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is not None and name in ("pad", "bos", "eos"):
            words.setdefault(f"{name}_token_id", token_id)
    kind = auto_class(head)
    try:
        config = AutoConfig.for_model(model_type, **words, **head_settings(head))
        set_seed(seed)
        model = kind.from_config(config, attn_implementation=_attention())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(f"model.architecture cannot be built as {kind.__name__}: {sentence[:400]}") from error
    model.finery_new_modules = _fresh_modules(model)
    return model


def open_folder(
    source: str | Path,
    head: Head,
    seed: int,
    *,
    revision: str | None = None,
    trained_head: bool = False,
    merge: bool = True,
) -> Any:
    """A model from a folder or the Hub, with `head`; weights that the checkpoint lacks are drawn by `seed`.

    An adapter folder is opened on its base, and merged unless told otherwise. Only safetensors are read.
    Raises ModelError when the body does not fit, or `trained_head` is asked for and absent.
    """
    from transformers.trainer_utils import set_seed

    source = str(source)
    if (Path(source) / "adapter_config.json").is_file():
        return _open_adapter(Path(source), head, seed, merge, trained_head)
    kind = auto_class(head)
    set_seed(seed)
    quiet = logging.getLogger("transformers.modeling_utils")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # missing heads are expected here and judged below
    try:
        model, report = kind.from_pretrained(
            source, revision=revision, use_safetensors=True, dtype="float32", attn_implementation=_attention(),
            ignore_mismatched_sizes=not trained_head, output_loading_info=True,
            **({} if trained_head else head_settings(head)),  # a trained head keeps the class names it was trained with
        )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(f"'{source}' cannot be opened as {kind.__name__}: {sentence[:400]}") from error
    finally:
        quiet.setLevel(level)
    missing = sorted({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])})
    fresh = sorted({_module_of(key) for key in missing})
    prefix = f"{model.base_model_prefix}."
    lost = [name for name in fresh if name.startswith(prefix) and "pooler" not in name]
    if lost:
        raise ModelError(
            f"'{source}' is no checkpoint for {type(model).__name__}: it has no weights for {', '.join(lost[:3])}"
        )
    if trained_head and fresh:
        raise ModelError(
            f"'{source}' has no trained {head.kind.replace('_', ' ')} head for {len(head.labels) or 1} outputs "
            f"(no weights for {', '.join(fresh[:3])}); fine-tune it on the task first"
        )
    model.finery_new_modules = fresh
    return model


def _open_adapter(folder: Path, head: Head, seed: int, merge: bool, trained_head: bool) -> Any:
    """An adapter on its base, with the head it was trained with; a stage that trains another head gets it merged."""
    from peft import PeftModel

    beside = folder.parent / "base"
    named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    own = saved_head(folder) or head
    base = open_folder(beside if beside.is_dir() else named, own, seed)
    model = PeftModel.from_pretrained(base, str(folder))
    if not merge:
        return model
    merged = model.merge_and_unload()
    if own != head and not trained_head:
        with tempfile.TemporaryDirectory() as place:
            merged.save_pretrained(place)
            merged = open_folder(place, head, seed)
    elif own.kind != head.kind:
        raise ModelError(f"'{folder}' has a {own.kind} head, but a {head.kind} head is needed; fine-tune it on the task first")
    else:
        merged.finery_new_modules = []
    merged.name_or_path = ""  # it lies in no folder: a further adapter must be given its base
    return merged


def saved_head(folder: Path) -> Head | None:
    """The head that a stage's model was trained with, as it wrote it down beside the weights."""
    path = folder / "head.json"
    if not path.is_file():
        return None
    said = json.loads(path.read_text())
    return Head(said["kind"], tuple(said["labels"]))


def _module_of(key: str) -> str:
    return key.rpartition(".")[0]


def _fresh_modules(model: Any) -> list[str]:
    """Modules of a model from scratch that its masked-LM pretraining would not have brought: its head and pooler.

    The same modules are trained whole by an adapter with and without pretraining, so that the two compare.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    prefix = f"{model.base_model_prefix}."
    outside = {name for name, _ in model.named_parameters() if not name.startswith(prefix)}
    try:
        with torch.device("meta"):
            pretrained = AutoModelForMaskedLM.from_config(model.config)
        kept = {name for name, _ in pretrained.named_parameters()}
    except ValueError:  # a family without a masked-LM head
        kept = {name for name, _ in model.named_parameters() if name.startswith(prefix)}
    absent = {name for name, _ in model.named_parameters() if name.startswith(prefix) and name not in kept}
    if type(model).__name__.endswith("ForMaskedLM"):
        return []
    return sorted({_module_of(name) for name in outside | absent})


def _attention() -> str | None:
    """Eager attention is 5 to 14 % faster than sdpa at short lengths on a CPU; elsewhere transformers decides."""
    import torch

    return None if torch.cuda.is_available() else "eager"
