"""Opening a checkpoint with the matrices of its body in 4 bits, as a tuner asks for it. Needs bitsandbytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPUTE = {"bf16": "bfloat16", "fp16": "float16", "no": "float32"}
"""What a product is computed in under each precision of a run."""


def settled(quantization: Mapping[str, Any] | None, precision: str) -> Mapping[str, Any] | None:
    """The tuner's words, with `auto` resolved by the run's precision."""
    if quantization is None or quantization["bnb_4bit_compute_dtype"] != "auto":
        return quantization
    return {**quantization, "bnb_4bit_compute_dtype": COMPUTE[precision]}


def loading(
    kind: Any, source: str, where: Mapping[str, Any], words: Mapping[str, Any], quantization: Mapping[str, Any]
) -> dict[str, Any]:
    """What `from_pretrained` of the Auto class `kind` is given to quantize while it loads.

    `where` says the revision and whether code may run; `words` are the head's in the config.
    """
    import torch
    from transformers import AutoConfig, BitsAndBytesConfig

    config = AutoConfig.from_pretrained(source, **where, **words)
    with torch.device("meta"):
        model = kind.from_config(config, **{key: value for key, value in where.items() if key != "revision"})
    device = torch.accelerator.current_accelerator()
    place = "cpu" if device is None else f"{device.type}:{os.environ.get('LOCAL_RANK', '0')}"
    return {
        "quantization_config": BitsAndBytesConfig(**quantization, llm_int8_skip_modules=kept_whole(model)),
        "device_map": {"": place},
    }


def kept_whole(model: PreTrainedModel) -> list[str]:
    """Modules that are not quantized: the head, whose weights a task learns, and a pooler, which a task may bring
    anew."""
    prefix = model.base_model_prefix
    outside = [name for name, _ in model.named_children() if name != prefix] if hasattr(model, prefix) else []
    output = model.get_output_embeddings()
    return [
        *outside,
        *(name for name, module in model.named_modules() if module is output or name.rpartition(".")[2] == "pooler"),
    ]
