"""Loads a published folder where Finery does not exist, and answers with the logits that it gives.

This file is copied into an empty folder and run there by `python -I`. It imports the standard library and what any user
of the checkpoint has: torch, transformers, and peft for an adapter. Nothing of Finery can be imported, not even where
it is installed, and the Hub is out of reach. Before transformers is imported the folder is looked through: Python whose
hash is not among those that were told, and JSON that names code which is not there, are refused.

    python -I clean_room.py FOLDER QUESTIONS.json ANSWERS.safetensors
"""

from __future__ import annotations

import gc
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from torch import Tensor
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

    JSONObject = Mapping[str, Any]

BATCH = 32
LOGITS = ("logits", "prediction_logits", "seq_relationship_logits", "sop_logits", "start_logits", "end_logits")
"""What models call their answers; all that a model gives are compared."""
FORBIDDEN = ("pipelines", "service", "finery")


IMPORTABLE = (*importlib.machinery.all_suffixes(), ".pyo", ".pyd", ".pth", ".egg", ".zip", ".whl")
"""Endings of what Python can be made to import."""
CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
"""A class of a file beside the JSON that names it."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RUNS_CODE = (
    "auto_map",
    "custom_pipelines",
    "custom_generate",
    "auto_mapping",
    "megatron_config",
    "kernel_config",
    "tokenizer_kwargs",
)
"""Keys below which transformers and PEFT look for code, or for words to open code with."""
CLASSES = (
    "tokenizer_class",
    "processor_class",
    "image_processor_class",
    "image_processor_type",
    "feature_extractor_class",
    "feature_extractor_type",
    "video_processor_class",
    "video_processor_type",
    "audio_processor_class",
    "audio_processor_type",
)
"""Keys that name a class of transformers, and no code of elsewhere."""
KERNELS = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "_attn_implementation_autoset",
)
"""Keys that name a way to compute attention; one with a slash is a repository whose code is loaded."""
MEGATRON = "megatron.core"
"""The module that PEFT writes into every config, and imports where `megatron_config` asks for it."""
FILES = ("transformers_weights",)
"""Keys that name a file to read instead of the usual one."""


def importable(name: str) -> bool:
    """Whether Python would import a file of this name."""
    return name.endswith(IMPORTABLE)


def names_code(key: str, value: object) -> bool:
    """Whether an entry of a JSON beside weights leads to code. A vocabulary's words are keys too, and have numbers."""
    if value is None or isinstance(value, bool | int | float):
        return False
    if key in RUNS_CODE or key in FILES:
        return True
    if key in CLASSES:
        return not all(
            each is None or (isinstance(each, str) and NAME.fullmatch(each))
            for each in (value if isinstance(value, list) else [value])
        )
    if key == "megatron_core":
        return bool(value != MEGATRON)
    if key in KERNELS:
        return "/" in json.dumps(value)
    return False


def modules_beside(name: str, code: Mapping[str, str]) -> frozenset[str]:
    """The modules of `code` that lie in the folder of the file `name`."""
    place = os.path.dirname(name)
    return frozenset(
        os.path.basename(path)[: -len(".py")]
        for path in code
        if path.endswith(".py") and os.path.dirname(path) == place
    )


def refuse_foreign_code(folder: str, code: Mapping[str, str]) -> None:
    """Raise ValueError unless all that could run from `folder` is in `code`, relative path -> SHA-256."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):
                raise ValueError(f"'{relative}' is no plain file")
            if name in folders:
                continue
            if importable(name):
                with open(path, "rb") as file:
                    if hashlib.sha256(file.read()).hexdigest() != code.get(relative):
                        raise ValueError(f"'{relative}' is code that Finery did not write")
            elif name.endswith(".json"):
                with open(path, encoding="utf-8") as file:
                    _refuse_named(json.load(file), relative, modules_beside(relative, code), top=True)


def _refuse_named(value: object, file: str, modules: Collection[str], top: bool = False) -> None:
    if isinstance(value, dict):
        for key, entry in value.items():
            if key == "auto_map" and top and modules:
                targets = [
                    each
                    for one in (entry.values() if isinstance(entry, dict) else [entry])
                    for each in (one if isinstance(one, list) else [one])
                ]
                if all(
                    each is None or (CLASS.fullmatch(str(each)) and str(each).partition(".")[0] in modules)
                    for each in targets
                ):
                    continue
            if names_code(key, entry):
                raise ValueError(f"'{file}' names code that is not beside it: {key}")
            _refuse_named(entry, file, modules)
    elif isinstance(value, list):
        for entry in value:
            _refuse_named(entry, file, modules)


def load(
    folder: str, auto_class: str, adapter: bool, code: Mapping[str, str] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer) by the lines that the model card shows. Refuses weights that are missing from the folder.

    `code` is the Python that may run, relative path -> SHA-256; without it none may. Anything else is refused before
    transformers sees the folder.
    """
    code = code or {}
    refuse_foreign_code(folder, code)
    import transformers

    place = os.path.join(folder, "base") if adapter else folder
    trust = bool(modules_beside(os.path.relpath(os.path.join(place, "config.json"), folder), code))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    model_class = getattr(transformers, auto_class)
    model, report = model_class.from_pretrained(
        place, trust_remote_code=trust, use_safetensors=True, output_loading_info=True, dtype="float32"
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{len(missing)} weights are missing from the folder, the first is {missing[0]}")
    if adapter:
        from peft import PeftModel

        for module in beside(folder):
            _import(folder, module)
        model = PeftModel.from_pretrained(model, folder)
    return model.eval(), tokenizer


def _import(folder: str, module: str) -> None:
    """Import one file by its path: nothing else in its folder becomes importable, and the folder stays as it is."""
    if module in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(module, os.path.join(folder, f"{module}.py"))
    assert spec is not None
    assert spec.loader is not None
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    finally:
        sys.dont_write_bytecode = before


def beside(folder: str) -> list[str]:
    """The modules that teach PEFT the method of an adapter in `folder`, where PEFT does not know it."""
    return sorted(
        name[: -len(".py")] for name in os.listdir(folder) if name.startswith("finery_") and name.endswith(".py")
    )


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    pairs: list[str] | None = None,
    max_length: int | None = None,
    targets: list[str] | None = None,
    words: list[list[str]] | None = None,
    choices: int | None = None,
    spans: list[list[int]] | None = None,
    stride: int = 0,
    tokens: list[JSONObject] | None = None,
) -> Tensor:
    """Logits in fp32 on the CPU, a row for each text; for token heads, the rows of all tokens but padding, in order.

    A model that writes one text from another is told the `targets` (default: the texts themselves), and answers with
    what it would write after each of their tokens. A model with several outputs answers with one column of all
    numbers. Asked about `words`, a row for each word that has a token of its own; with `choices`, texts and pairs are
    that many for each question, and a row is a question; with `spans` (window, first token, last token), a row is the
    two logits of a span in the windows of a pair, which share `stride` tokens; with `tokens`, the texts as the model is
    given them, by the names of its inputs, `choices` of them are a row.
    """
    import torch

    if tokens is not None:
        return of_tokens(model, tokenizer, tokens, choices or 1)
    limit = max_length if max_length is not None else min(tokenizer.model_max_length, 512)
    if words is not None:
        return of_words(model, tokenizer, words, limit)
    if choices is not None:
        return of_options(model, tokenizer, texts, pairs, limit, choices)
    if spans is not None:
        return of_spans(model, tokenizer, texts, pairs, limit, spans, stride)
    lengths = [len(text) + len(pairs[row] if pairs else "") for row, text in enumerate(texts)]
    order = sorted(range(len(texts)), key=lengths.__getitem__)  # like lengths together: little padding
    at_once = BATCH if tokenizer.pad_token is not None else 1
    writes = bool(getattr(model.config, "is_encoder_decoder", False) and model.can_generate())
    rows: list[Tensor | None] = [None] * len(texts)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = encoded(tokenizer, [texts[row] for row in chosen], pairs and [pairs[row] for row in chosen], limit)
        answered = batch["attention_mask"]
        if writes:
            target_batch = encoded(tokenizer, [(targets or texts)[row] for row in chosen], None, limit - 1)
            answered = torch.nn.functional.pad(target_batch["attention_mask"], (1, 0), value=1)
            first = torch.full((len(chosen), 1), first_token(model))
            batch["decoder_input_ids"] = torch.cat([first, target_batch["input_ids"]], dim=1)
            batch["decoder_attention_mask"] = answered
        with torch.no_grad():
            outputs = model(**batch)
        all_logits = [outputs[name].float().cpu() for name in LOGITS if outputs.get(name) is not None]
        for position, row in enumerate(chosen):
            whole = [logits[position] for logits in all_logits]
            ends = outputs.get("start_logits") is not None
            real = answered[position].bool()
            # A bidirectional language model says something of each token twice: from the left, then from the right.
            parts = [
                part[None] if part.dim() == 1 and not ends else part[real.repeat(len(part) // len(real))]
                for part in whole
            ]
            rows[row] = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1, 1) for part in parts])
    return torch.cat(rows)


def batches(tokenizer: PreTrainedTokenizerBase, count: int, each: int = 1) -> list[range]:
    """Places of what is asked at once; one by one with a tokenizer that cannot pad."""
    size = max(1, BATCH // each) if tokenizer.pad_token is not None else 1
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def of_options(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    pairs: list[str] | None,
    limit: int,
    choices: int,
) -> Tensor:
    """(questions, choices)."""
    import torch

    rows = []
    for chosen in batches(tokenizer, len(texts) // choices, choices):
        part = slice(chosen.start * choices, chosen.stop * choices)
        batch = encoded(tokenizer, texts[part], pairs and pairs[part], limit)
        with torch.no_grad():
            outputs = model(**{name: value.reshape(len(chosen), choices, -1) for name, value in batch.items()})
        rows.append(outputs["logits"].float().cpu())
    return torch.cat(rows)


def of_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: list[JSONObject], together: int
) -> Tensor:
    """(texts / together, together): the one logit of each text, which is told by its tokens and filled up behind
    them."""
    import torch

    filling = next(
        each
        for each in (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        if each is not None
    )
    rows = []
    for start in range(0, len(tokens), BATCH):
        part = tokens[start : start + BATCH]
        longest = max(len(each["input_ids"]) for each in part)
        batch = {
            name: torch.tensor(
                [each[name] + [filling if name == "input_ids" else 0] * (longest - len(each[name])) for each in part]
            )
            for name in part[0]
        }
        batch["attention_mask"] = torch.tensor(
            [[1] * len(each["input_ids"]) + [0] * (longest - len(each["input_ids"])) for each in part]
        )
        with torch.no_grad():
            rows.append(model(**batch)["logits"].float().cpu().reshape(-1))
    return torch.cat(rows).reshape(-1, together)


def of_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, words: list[list[str]], limit: int) -> Tensor:
    """(words that have a token of their own, classes), in order: the logits of the first token of each.

    Words are joined by spaces; a text longer than the limit is read in several parts.
    """
    import torch

    rows = []
    for chosen in batches(tokenizer, len(words)):
        texts = [" ".join(words[row]) for row in chosen]
        batch = tokenizer(
            texts,
            truncation=True,
            max_length=limit,
            stride=0,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            padding=tokenizer.pad_token is not None,
            return_tensors="pt",
        )
        owners, offsets = batch.pop("overflow_to_sample_mapping").tolist(), batch.pop("offset_mapping").tolist()
        special = batch.pop("special_tokens_mask").tolist()
        with torch.no_grad():
            logits = model(**batch)["logits"].float().cpu()
        tokens: list[list[tuple[int, int, Tensor]]] = [[] for _ in chosen]  # of each text (begin, end, logits)
        for part, owner in enumerate(owners):
            tokens[owner] += [
                (*span, logits[part, at]) for at, span in enumerate(offsets[part]) if not special[part][at]
            ]
        for row, text_tokens in zip(chosen, tokens, strict=True):
            rows += first_tokens(words[row], text_tokens)
    return torch.stack(rows)


def first_tokens(words: list[str], tokens: list[tuple[int, int, Tensor]]) -> list[Tensor]:
    """What stands with the first token of each word; of several words that one token begins, only for the first."""
    firsts, begin, place, used = [], 0, 0, -1
    for word in words:
        while place < len(tokens) and tokens[place][1] <= begin:
            place += 1
        if place < len(tokens) and tokens[place][0] < begin + len(word) and place != used:
            firsts.append(tokens[place][2])
            used = place
        begin += len(word) + 1
    return firsts


def of_spans(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    pairs: list[str] | None,
    limit: int,
    spans: list[list[int]],
    stride: int,
) -> Tensor:
    """(texts, 2): the logits of a span's first and last token, in the window where it was found."""
    import torch

    rows = []
    for chosen in batches(tokenizer, len(texts)):
        batch = tokenizer(
            [texts[row] for row in chosen],
            [(pairs or texts)[row] for row in chosen],
            truncation="only_second",
            max_length=limit,
            stride=stride,
            return_overflowing_tokens=True,
            padding=tokenizer.pad_token is not None,
            return_tensors="pt",
        )
        owners = batch.pop("overflow_to_sample_mapping").tolist()
        wanted = [owners.index(at) + spans[row][0] for at, row in enumerate(chosen)]
        inputs = {name: value[wanted] for name, value in batch.items()}
        with torch.no_grad():
            outputs = model(**inputs)
        for at, row in enumerate(chosen):
            real = inputs["attention_mask"][at].bool()
            ends = [
                outputs[name][at][real][place]
                for name, place in zip(("start_logits", "end_logits"), spans[row][1:], strict=True)
            ]
            rows.append(torch.stack(ends).float().cpu())
    return torch.stack(rows)


def encoded(tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, limit: int) -> BatchEncoding:
    """A batch of texts, padded to the longest; a tokenizer that cannot pad is given one text at a time."""
    padding = tokenizer.pad_token is not None
    return tokenizer(texts, pairs, truncation=True, max_length=limit, padding=padding, return_tensors="pt")


def first_token(model: PreTrainedModel) -> int:
    """The token that the model's decoder begins with."""
    for config in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            if getattr(config, name, None) is not None:
                return int(getattr(config, name))
    raise ValueError("the config has no decoder_start_token_id, so that the decoder cannot begin")


def main(folder: str, questions: str, answers: str) -> None:
    """Answer every group of questions; each group is one tensor in the answers."""
    gc.disable()  # until the libraries are imported: what they make stays, and walking over it takes a second
    for name in FORBIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails from here on
    with open(questions, encoding="utf-8") as file:
        request = json.load(file)
    model, tokenizer = load(folder, request["auto_class"], request["adapter"], request.get("code"))
    gc.freeze()
    gc.enable()
    answers_by_group = {
        name: answer(model, tokenizer, **group).contiguous() for name, group in request["groups"].items()
    }
    from safetensors.torch import save_file

    save_file(answers_by_group, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
