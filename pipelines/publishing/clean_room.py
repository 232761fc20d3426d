"""Loads a published folder where Finery does not exist, and answers with the logits that it gives.

This file is copied into an empty folder and run there by `python -I`. It imports the standard library and what any user
of the checkpoint has: torch, transformers, and peft for an adapter. Nothing of Finery can be imported, not even where
it is installed, and the Hub is out of reach.

    python -I clean_room.py FOLDER QUESTIONS.json ANSWERS.safetensors
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

BATCH = 32
LOGITS = ("logits", "prediction_logits", "seq_relationship_logits", "sop_logits")
"""What models call their answers; all that a model gives are compared."""
FORBIDDEN = ("pipelines", "service", "finery")


def load(folder: str, auto_class: str, adapter: bool) -> tuple[Any, Any]:
    """(model, tokenizer) by the lines that the model card shows. Refuses weights that are missing from the folder."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model_class = getattr(transformers, auto_class)
    place = os.path.join(folder, "base") if adapter else folder
    model, report = model_class.from_pretrained(
        place, trust_remote_code=True, use_safetensors=True, output_loading_info=True, dtype="float32"
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{len(missing)} weights are missing from the folder, the first is {missing[0]}")
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    return model.eval(), tokenizer


def answer(
    model: Any,
    tokenizer: Any,
    texts: list[str],
    pairs: list[str] | None = None,
    max_length: int | None = None,
    targets: list[str] | None = None,
) -> Any:
    """Logits in fp32 on the CPU, a row for each text; for token heads, the rows of all tokens but padding, in order.

    A model that writes one text from another is told the `targets` (default: the texts themselves), and answers with
    what it would write after each of their tokens. A model with several outputs answers with one column of all numbers.
    """
    import torch

    limit = max_length if max_length is not None else min(tokenizer.model_max_length, 512)
    lengths = [len(text) + len(pairs[row] if pairs else "") for row, text in enumerate(texts)]
    order = sorted(range(len(texts)), key=lengths.__getitem__)  # like lengths together: little padding
    at_once = BATCH if tokenizer.pad_token is not None else 1
    writes = bool(getattr(model.config, "is_encoder_decoder", False) and model.can_generate())
    rows: list[Any] = [None] * len(texts)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = encoded(tokenizer, [texts[row] for row in chosen], pairs and [pairs[row] for row in chosen], limit)
        answered = batch["attention_mask"]
        if writes:
            told = encoded(tokenizer, [(targets or texts)[row] for row in chosen], None, limit - 1)
            answered = torch.nn.functional.pad(told["attention_mask"], (1, 0), value=1)
            first = torch.full((len(chosen), 1), first_token(model))
            batch["decoder_input_ids"] = torch.cat([first, told["input_ids"]], dim=1)
            batch["decoder_attention_mask"] = answered
        with torch.no_grad():
            outputs = model(**batch)
        said = [outputs[name].float().cpu() for name in LOGITS if outputs.get(name) is not None]
        for position, row in enumerate(chosen):
            whole = [logits[position] for logits in said]
            parts = [part[None] if part.dim() == 1 else part[answered[position].bool()] for part in whole]
            rows[row] = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1, 1) for part in parts])
    return torch.cat(rows)


def encoded(tokenizer: Any, texts: list[str], pairs: list[str] | None, limit: int) -> Any:
    """A batch of texts, padded to the longest; a tokenizer that cannot pad is given one text at a time."""
    padding = tokenizer.pad_token is not None
    return tokenizer(texts, pairs, truncation=True, max_length=limit, padding=padding, return_tensors="pt")


def first_token(model: Any) -> int:
    """The token that the model's decoder begins with."""
    for config in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            if getattr(config, name, None) is not None:
                return int(getattr(config, name))
    raise ValueError("the config has no decoder_start_token_id, so that the decoder cannot begin")


def main(folder: str, questions: str, answers: str) -> None:
    """Answer every group of questions; each group is one tensor in the answers."""
    for name in FORBIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails from here on
    with open(questions, encoding="utf-8") as file:
        asked = json.load(file)
    model, tokenizer = load(folder, asked["auto_class"], asked["adapter"])
    found = {
        name: answer(model, tokenizer, **group).contiguous()
        for name, group in asked["groups"].items()
    }
    from safetensors.torch import save_file

    save_file(found, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
