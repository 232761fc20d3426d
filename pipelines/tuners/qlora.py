"""QLoRA: LoRA beside a base whose matrices are kept in 4 bits. Dettmers et al. 2023, arxiv.org/abs/2305.14314.

The matrices of the body are stored as NormalFloat of 4 bits, quantized twice, and unpacked for each product;
embeddings, norms, biases and the head stay in full precision, and the gradients reach the updates through the unpacked
matrices. What is saved is a plain LoRA adapter that names the base as it came: opened later, it stands beside the
full-precision base, or is merged into it, whose answers differ from those of training by what the 4 bits had rounded
away.

Needs bitsandbytes with a backend for the device at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from pipelines.core.config import ConfigIssues
from pipelines.tuners.lora import LoRA

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

INSTEAD = "take `tuner: lora` here, or run on a machine that has it"


class QLoRA(LoRA):
    """LoRA beside matrices of 4 bits: the same updates, in about a quarter of the memory for frozen weights."""

    name: Literal["qlora"] = "qlora"  # type: ignore[assignment]
    known_elsewhere: ClassVar[bool] = False
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """How a weight is written in 4 bits: NormalFloat, made for normally distributed weights, or a plain float."""
    bnb_4bit_use_double_quant: bool = True
    """Whether the scales of the blocks of weights are quantized too: 0.37 bits a weight less."""
    bnb_4bit_compute_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """What the matrices are unpacked to for a product. Default: what `launch.mixed_precision` computes in."""

    @model_validator(mode="after")
    def _keeps_base(self) -> Self:
        if self.init_lora_weights not in (True, "gaussian", "orthogonal"):
            sentence = (
                f"is {self.init_lora_weights}, which changes the base, but weights of 4 bits stay as they are; "
                "use lora, or true"
            )
            raise ConfigIssues([(("init_lora_weights",), sentence)])
        return self

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The words of transformers' `BitsAndBytesConfig`."""
        return {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": self.bnb_4bit_quant_type,
            "bnb_4bit_use_double_quant": self.bnb_4bit_use_double_quant,
            "bnb_4bit_compute_dtype": self.bnb_4bit_compute_dtype,
        }

    def unavailable_reason(self) -> str | None:
        if find_spec("bitsandbytes") is None:
            return (
                "keeps weights in 4 bits, for which bitsandbytes is not installed: pip install 'finery[qlora]', "
                f"or {INSTEAD}"
            )
        import torch
        from transformers.utils.import_utils import BITSANDBYTES_MIN_VERSION, is_bitsandbytes_available

        bitsandbytes: Any = import_module("bitsandbytes")

        if not is_bitsandbytes_available():
            return (
                f"needs bitsandbytes {BITSANDBYTES_MIN_VERSION} or later, but {bitsandbytes.__version__} is "
                f"installed; update it, or {INSTEAD}"
            )
        device = torch.accelerator.current_accelerator()
        kind = "cpu" if device is None else device.type
        devices: set[str] = getattr(bitsandbytes, "supported_torch_devices", set())
        if kind not in devices:
            return (
                f"keeps weights in 4 bits, for which bitsandbytes {bitsandbytes.__version__} has no backend on "
                f"'{kind}'; {INSTEAD}"
            )
        return None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`, which `quantization` opened in 4 bits; one in full precision gets plain LoRA."""
        from peft import prepare_model_for_kbit_training

        if getattr(model, "is_loaded_in_4bit", False):
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # the Trainer says when
        return super().apply(model)
