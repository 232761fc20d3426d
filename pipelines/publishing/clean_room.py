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
    model: Any, tokenizer: Any, texts: list[str], pairs: list[str] | None = None, max_length: int | None = None
) -> Any:
    """Logits in fp32 on the CPU, a row for each text; for token heads, the rows of all tokens but padding, in order."""
    import torch

    limit = max_length if max_length is not None else min(tokenizer.model_max_length, 512)
    lengths = [len(text) + len(pairs[row] if pairs else "") for row, text in enumerate(texts)]
    order = sorted(range(len(texts)), key=lengths.__getitem__)  # like lengths together: little padding
    rows: list[Any] = [None] * len(texts)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        batch = tokenizer(
            [texts[row] for row in chosen],
            [pairs[row] for row in chosen] if pairs else None,
            truncation=True, max_length=limit, padding=True, return_tensors="pt",
        )  # fmt: skip
        with torch.no_grad():
            logits = model(**batch).logits.float().cpu()
        for position, row in enumerate(chosen):
            whole = logits[position]
            rows[row] = whole[None] if whole.dim() == 1 else whole[batch["attention_mask"][position].bool()]
    return torch.cat(rows)


def main(folder: str, questions: str, answers: str) -> None:
    """Answer every group of questions; each group is one tensor in the answers."""
    for name in FORBIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails from here on
    with open(questions, encoding="utf-8") as file:
        asked = json.load(file)
    model, tokenizer = load(folder, asked["auto_class"], asked["adapter"])
    found = {
        name: answer(model, tokenizer, group["texts"], group["pairs"], group["max_length"]).contiguous()
        for name, group in asked["groups"].items()
    }
    from safetensors.torch import save_file

    save_file(found, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
