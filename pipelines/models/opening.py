"""Opening models: built from a recipe's architecture, or read from a folder or the Hub, with the head a stage needs."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.shared_bases import base_of
from pipelines.models import pooling, remote_code
from pipelines.models import quantization as quantizing
from pipelines.models.heads import auto_class, head_settings, saved_head

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.recipe import Model

MERGEABLE = ("LORA", "IA3")
"""PEFT's types of adapters that can be folded into the weights of their base."""

LANGUAGE_MODELS = ("ForMaskedLM", "ForPreTraining", "ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How the names of classes end whose head is one that pretraining trains."""


def build(
    architecture: Mapping[str, Any], head: Head, tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """A model with random weights. `architecture` is resolved: `model_type` and its config's keys."""
    from accelerate.utils import set_seed  # transformers' own lies beside an import of PEFT
    from transformers import AutoConfig

    words = dict(architecture)
    model_type = words.pop("model_type")
    words.setdefault("vocab_size", len(tokenizer))
    if words["vocab_size"] < len(tokenizer):
        raise ModelError(
            f"model.architecture.vocab_size is {words['vocab_size']}, but the tokenizer has {len(tokenizer)} "
            "entries; leave it out"
        )
    for name, token_id in _ends(tokenizer).items():
        words.setdefault(f"{name}_token_id", token_id)
    kind = auto_class(head)
    try:
        config = pooling.settled(AutoConfig.for_model(model_type, **words, **head_settings(head)), head)
        if getattr(config, "is_encoder_decoder", False):
            _mark_ends(config, architecture)
        set_seed(seed)
        model = kind.from_config(config, attn_implementation=_attention())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(f"model.architecture cannot be built as {kind.__name__}: {sentence[:400]}") from error
    model.finery_new_modules = _fresh_modules(model)
    _fuse_on_gpu(model)
    return model


def _ends(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The ids of padding and of the tokens that a text begins and ends with: [CLS] and [SEP] where it has no others."""
    ids = {
        "pad": tokenizer.pad_token_id,
        "bos": tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id,
        "eos": tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id,
    }
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


def _mark_ends(config: PreTrainedConfig, given: Mapping[str, Any]) -> None:
    """The tokens that a decoder begins with, and is made to end with, where the recipe does not say.

    They are those that have the same part in the model type's own vocabulary: BART begins with its end, Marian with
    padding. Where the type leaves the beginning open it is padding, T5's own choice; in our own family it is the token
    that every text begins with, so that no step is spent on writing it.
    """
    own = type(config)()
    parts = {
        getattr(own, f"{name}_token_id", None): getattr(config, f"{name}_token_id", None)
        for name in ("bos", "eos", "pad")
    }
    parts.pop(None, None)
    if "decoder_start_token_id" not in given:
        start = getattr(own, "decoder_start_token_id", None)
        ours = config.model_type in architecture_fields.OUR_MODEL_TYPES
        usual = config.bos_token_id if ours else config.pad_token_id
        config.decoder_start_token_id = parts.get(start, usual)
    if getattr(own, "forced_eos_token_id", None) is not None and "forced_eos_token_id" not in given:
        config.forced_eos_token_id = config.eos_token_id


def open_folder(
    source: str | Path,
    head: Head,
    seed: int,
    *,
    revision: str | None = None,
    trained_head: bool = False,
    merge: bool = True,
    quantization: Mapping[str, Any] | None = None,
    start: Model | None = None,
) -> PreTrainedModel:
    """A model from a folder or the Hub, with `head`; weights that the checkpoint lacks are drawn by `seed`.

    An adapter folder is opened on its base, and merged unless told otherwise. Only safetensors are read.
    `quantization` are the words of a `BitsAndBytesConfig` for the body's matrices; an adapter's base stays as it is.
    `start` is the recipe's model, where `source` is that or was made of it: whether code beside it may run, and which
    revision an adapter's base has. Without it none runs. Raises ModelError when the body does not fit, or
    `trained_head` is asked for and absent.
    """
    from accelerate.utils import set_seed
    from safetensors import SafetensorError

    source = str(source)
    if (Path(source) / "adapter_config.json").is_file():
        adapted = _open_adapter(Path(source), head, seed, merge, trained_head, start)
        adapted.finery_folder = source
        return adapted
    kind = auto_class(head)
    _refuse_unreadable(source)
    words = {} if trained_head else head_settings(head)  # a trained head keeps the class names it was trained with
    where = remote_code.opening(source, revision, start)
    set_seed(seed)
    loader = logging.getLogger("transformers.modeling_utils")
    loader.addFilter(_errors_only)  # missing heads are expected here and judged below
    try:
        pooled = pooling.asked(source, where, head)
        words |= pooled.words
        packed = {}
        if quantization is not None and not pooled.moves:  # what moves is packed when it is opened again, from its base
            packed = quantizing.loading(kind, source, where, words, quantization)
        model, report = kind.from_pretrained(
            source,
            **where,
            use_safetensors=True,
            dtype="float32",
            attn_implementation=_attention(),
            ignore_mismatched_sizes=not trained_head,
            output_loading_info=True,
            **packed,
            **words,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(
            remote_code.refusal(source, error) or f"'{source}' cannot be opened as {kind.__name__}: {sentence[:400]}"
        ) from error
    finally:
        loader.removeFilter(_errors_only)
    remote_code.forget_named(model, where)
    fresh = outermost({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])})
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
    if pooled.moves:
        model = pooling.moved(model, head)
    _fuse_on_gpu(model)
    model.finery_folder = source  # where what is told of it lies, beside its weights
    if pooled.changes:  # it lies in no folder as it is: an adapter must be given its base
        model.name_or_path = ""
    return model


def _open_adapter(
    folder: Path, head: Head, seed: int, merge: bool, trained_head: bool, start: Model | None
) -> PreTrainedModel:
    """An adapter on its base, with the head it was trained with; a stage that trains another head gets it merged."""
    from safetensors import SafetensorError, safe_open

    from pipelines.tuners import bottleneck, virtual_tokens

    bottleneck.register()
    virtual_tokens.register()
    asked, head = head, replace(head, pooling=None)  # the base was saved with the pooling it was trained with
    own = saved_head(folder) or head
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        place = str(base_of(folder))
        revision = start.revision if start is not None and place == start.checkpoint else settings.get("revision")
        base = open_folder(place, own, seed, revision=revision, start=start)
        modules = {name.rpartition(".")[2] for name, _ in base.named_modules()}
        named = [name for name in settings.get("modules_to_save") or () if name.rpartition(".")[2] not in modules]
        weights = folder / "adapter_model.safetensors"
        kept: list[str] = []
        if named and weights.is_file():  # PEFT itself names heads of other architectures beside the model's own
            with safe_open(weights, "numpy") as file:
                kept = list(file.keys())
        lost = [name for name in named if any(f".{name}." in key for key in kept)]
        if lost:  # PEFT would leave what was trained of them out without a word
            raise ModelError(
                f"the adapter in '{folder}' was trained with {', '.join(lost)}, which {type(base).__name__} has not; "
                "train it again"
            )
        model = virtual_tokens.opener(settings["peft_type"]).from_pretrained(base, str(folder))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(f"the adapter in '{folder}' cannot be opened: {sentence[:400]}") from error
    if not merge:
        return model
    if settings["peft_type"] not in MERGEABLE:
        if (own != head and not trained_head) or own.kind != head.kind:
            raise ModelError(
                f"the adapter in '{folder}' cannot be merged into its base, so it serves only the "
                f"{own.kind.replace('_', ' ')} "
                "head it was trained with; read the model that it was trained on instead"
            )
        if asked.pooling not in (None, getattr(model.config, "classifier_pooling", "first")):
            raise ModelError(
                f"the adapter in '{folder}' cannot be merged into its base, whose head reads another pooling than "
                f"{asked.pooling}; leave pooling out, or read the model that it was trained on instead"
            )
        model.finery_new_modules = []
        return model
    merged = model.merge_and_unload()
    _untie(merged)
    if (own != head and not trained_head) or asked.pooling is not None:
        with tempfile.TemporaryDirectory() as place:
            merged.save_pretrained(place)
            merged = open_folder(place, asked, seed, start=start)
    elif own.kind != head.kind:
        raise ModelError(
            f"'{folder}' has a {own.kind} head, but a {head.kind} head is needed; fine-tune it on the task first"
        )
    else:
        merged.finery_new_modules = []
    merged.name_or_path = ""  # it lies in no folder: a further adapter must be given its base
    return merged


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose ids go beyond the model's embeddings. Raises ModelError."""
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} entries, but the checkpoint has embeddings for {rows}; "
            "use the checkpoint's own tokenizer: leave 'tokenizer' out of the recipe"
        )


def _untie(model: PreTrainedModel) -> None:
    """An output matrix that was trained on its own is no longer the embeddings: let both be saved, and tie nothing."""
    from torch import nn

    output = model.get_output_embeddings()
    if output is None or output.weight is model.get_input_embeddings().weight:
        return
    model.config.tie_word_embeddings = False
    seen: set[int] = set()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(weight) in seen:
                setattr(module, name, nn.Parameter(weight.detach().clone()))
            seen.add(id(weight))


def _errors_only(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _refuse_unreadable(source: str) -> None:
    """Sentences for folders that can hold no readable checkpoint, where transformers' own would mislead."""
    folder = Path(source)
    if not folder.is_dir():
        if folder.is_absolute() or source.startswith("."):
            raise ModelError(f"'{source}' is no folder; name a folder with a checkpoint, or a Hub id")
        return
    if list(folder.glob("*.bin")) and not list(folder.glob("*.safetensors")):
        raise ModelError(
            f"'{source}' holds pickled weights only ({sorted(folder.glob('*.bin'))[0].name}), which are never read "
            "because a pickle can run code; convert them to safetensors first"
        )


def outermost(keys: Iterable[str]) -> list[str]:
    """The modules that hold these weights, without those that lie inside another of them."""
    modules = {key.rpartition(".")[0] for key in keys}
    return sorted(name for name in modules if not any(name.startswith(f"{other}.") for other in modules))


def _fresh_modules(model: PreTrainedModel) -> list[str]:
    """Modules of a model from scratch that its pretraining would not have brought: its head and pooler.

    The same modules are trained whole by an adapter with and without pretraining, so that the two compare.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    if type(model).__name__.endswith(LANGUAGE_MODELS):
        return []
    prefix = f"{model.base_model_prefix}."
    weights = {name: weight.shape for name, weight in model.named_parameters()}
    brought = {name.removeprefix(prefix): shape for name, shape in weights.items() if name.startswith(prefix)}
    for kind in (AutoModelForMaskedLM, AutoModelForSeq2SeqLM):
        try:
            with torch.device("meta"):
                pretrained = kind.from_config(model.config)
        except ValueError:  # a family without such a head
            continue
        # The body has a name of its own in some classes of a family only: T5's classifier has a `transformer`.
        brought = {name.removeprefix(prefix): weight.shape for name, weight in pretrained.named_parameters()}
        break
    return outermost(name for name, shape in weights.items() if brought.get(name.removeprefix(prefix)) != shape)


def _fuse_on_gpu(model: nn.Module) -> None:
    """On a processor a model that is only asked says to the bit what transformers says."""
    import torch

    if torch.cuda.is_available():
        fuse_activations(model)


def fuse_activations(model: nn.Module) -> None:
    """Let torch's own operation compute GELU wherever `fused` knows it."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if (better := fused(child)) is not child:
                setattr(module, name, better)


def fused(activation: nn.Module) -> nn.Module:
    """The same function as one operation of torch, for a GELU that transformers writes as powers and products, each of
    which reads and writes all values once more: `gelu_new` of GPT-2, `gelu_fast`, `gelu_accurate`, the `gelu_python`s.
    Rounding differs. Any other module comes back as it is."""
    from transformers import activations

    kind, by_hand = type(activation), isinstance(getattr(activation, "act", None), MethodType)
    by_tanh = (activations.NewGELUActivation, activations.FastGELUActivation, activations.AccurateGELUActivation)
    if kind in by_tanh or (kind is activations.GELUTanh and by_hand):
        return activations.GELUTanh()
    return activations.GELUActivation() if kind is activations.GELUActivation and by_hand else activation


def _attention() -> str | None:
    """Eager attention on a CPU; else transformers decides. Which is faster there depends on length, precision and
    threads.

    On a GPU torch asks cuDNN first where it can, which plans each pair of batch and length anew, for 0.1 to 3.5 s a
    step on an H200: batches of all lengths go to torch's other kernels.
    """
    import torch

    if not torch.cuda.is_available():
        return "eager"
    torch.backends.cuda.enable_cudnn_sdp(False)
    return None
