"""Copies with the matrices of the body in 8 or 4 bits, by bitsandbytes, which transformers opens by itself.

`int8` is LLM.int8() (Dettmers et al. 2022, arxiv.org/abs/2208.07339): rows of weights and of what they read in 8 bits,
outliers apart. `int4` stores blocks of 64 weights in NF4, 16 values that are the quantiles of a normal distribution
(Dettmers et al. 2023, section 3, arxiv.org/abs/2305.14314), and computes in fp32. Embeddings, norms, the head and the
output matrix stay as they are, so small models shrink by less than the bits say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

from pipelines.architectures.configuration_rules import completed
from pipelines.core.architecture_fields import OURS
from pipelines.core.errors import ModelError
from pipelines.models.heads import HEAD_CLASSES, auto_class
from pipelines.models.quantization import kept_whole
from pipelines.publishing import foreign_code
from pipelines.publishing.exports.export import ExportedModel, Original, refuse_missing

BLOCK = 64
"""Weights that share a scale in 4 bits."""
LINES = """\
from transformers import {auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = {auto_class}.from_pretrained("."{trust})"""


class Quantized:
    """As `Export` promises; `settings` are the words of a `BitsAndBytesConfig`."""

    name: ClassVar[str]
    settings: ClassVar[dict[str, Any]]
    packages: ClassVar[tuple[str, ...]] = ("bitsandbytes",)
    extra: ClassVar[str] = "export"
    tolerance: ClassVar[float | None] = None

    @classmethod
    def misfit(cls, words: Mapping[str, Any], vocabulary: str | None) -> str | None:
        """As `Export` promises: of our own family, whose rows are known before its weights are."""
        if "load_in_4bit" not in cls.settings or words.get("model_type") != OURS:
            return None
        fields: dict[str, Any] = completed(dict(words))
        rows = {name: fields[name] for name in ("hidden_size", "intermediate_size", "embedding_size")}
        rows["num_attention_heads x head_dim"] = fields["num_attention_heads"] * fields["head_dim"]
        name = next((name for name, width in rows.items() if width % BLOCK), None)
        if name is None:
            return None
        return f"comes in blocks of {BLOCK} weights, and {name} is {rows[name]}; write int8, or a multiple of {BLOCK}"

    @classmethod
    def write(cls, original: Original, out: Path) -> ExportedModel:
        """Write the copy and open it again."""
        refuse_missing(cls)
        import tempfile

        from transformers import BitsAndBytesConfig

        whole_modules = kept_whole(original.model)
        cls.refuse_narrow(original, whole_modules)
        config = BitsAndBytesConfig(**cls.settings, llm_int8_skip_modules=whole_modules)
        kind = auto_class(original.head)
        with tempfile.TemporaryDirectory() as whole:  # merged, where the publication holds an adapter
            original.model.save_pretrained(whole)
            try:
                model = kind.from_pretrained(
                    whole,
                    quantization_config=config,
                    dtype="float32",
                    device_map={"": "cpu"},
                    use_safetensors=True,
                    trust_remote_code=False,
                )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                first = str(error).strip().splitlines()[0]
                raise ModelError(
                    f"bitsandbytes cannot quantize {type(original.model).__name__}: {first[:300]}"
                ) from error
        model.save_pretrained(str(out))
        original.tokenizer.save_pretrained(str(out))
        foreign_code.settled(out, {}, leave=False)
        again = kind.from_pretrained(str(out), device_map={"": "cpu"}, dtype="float32", trust_remote_code=False).eval()
        again.to = MethodType(lambda self, *place, **words: self, again)  # it stays where it is, as it is
        trust = ", trust_remote_code=True" if getattr(again.config, "auto_map", None) else ""
        lines = LINES.format(auto_class=HEAD_CLASSES[original.head.kind].auto_class, trust=trust)
        bits = {"quantization": again.config.quantization_config.quant_method.value, **cls.settings}
        return ExportedModel(
            again, lines, {key: str(value) for key, value in bits.items()}, ("transformers", "bitsandbytes")
        )

    @classmethod
    def refuse_narrow(cls, original: Original, whole: list[str]) -> None:
        """Raise ModelError where rows of a matrix are no whole number of blocks."""
        from torch import nn

        if "load_in_4bit" not in cls.settings:
            return
        for name, module in original.model.named_modules():
            kept = any(name == each or name.startswith(f"{each}.") for each in whole)
            if isinstance(module, nn.Linear) and not kept and module.in_features % BLOCK:
                raise ModelError(
                    f"4 bits come in blocks of {BLOCK} weights, and rows of {name} have {module.in_features}; export "
                    "it to int8"
                )


class Int8(Quantized):
    """8 bits a weight."""

    name: ClassVar[str] = "int8"
    settings: ClassVar[dict[str, Any]] = {"load_in_8bit": True}


class Int4(Quantized):
    """4 bits a weight."""

    name: ClassVar[str] = "int4"
    settings: ClassVar[dict[str, Any]] = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "float32",
    }
