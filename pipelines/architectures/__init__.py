"""Finery's own families, loaded on first use: transformers (`model_type: finery`), recurrent networks (`finery-rnn`)
and convolutional ones (`finery-cnn`).

Importing this package costs nothing: torch and transformers are imported when a class is first asked for, and
asking for one also registers the families with transformers' Auto classes.

The folder is flat, its files import each other with one dot and nothing else of this project, because
`save_pretrained` copies exactly such files beside the weights. A published checkpoint carries its own code.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_finery import FineryConfig
    from .configuration_finery_cnn import FineryCnnConfig
    from .configuration_finery_rnn import FineryRnnConfig
    from .modeling_finery import FineryModel
    from .modeling_finery_classification import (
        FineryForMultipleChoice,
        FineryForQuestionAnswering,
        FineryForReward,
        FineryForSequenceClassification,
        FineryForTokenClassification,
    )
    from .modeling_finery_cnn import FineryCnnForConditionalGeneration, FineryCnnModel
    from .modeling_finery_language import (
        FineryForCausalLM,
        FineryForCausalLMWithValueHead,
        FineryForConditionalGeneration,
        FineryForMaskedLM,
        FineryForPreTraining,
    )
    from .modeling_finery_rnn import FineryRnnModel
    from .modeling_finery_rnn_heads import (
        FineryRnnForCausalLM,
        FineryRnnForConditionalGeneration,
        FineryRnnForPreTraining,
        FineryRnnForSequenceClassification,
    )

__all__ = [
    "FineryCnnConfig",
    "FineryCnnForConditionalGeneration",
    "FineryCnnModel",
    "FineryConfig",
    "FineryForCausalLM",
    "FineryForCausalLMWithValueHead",
    "FineryForConditionalGeneration",
    "FineryForMaskedLM",
    "FineryForMultipleChoice",
    "FineryForPreTraining",
    "FineryForQuestionAnswering",
    "FineryForReward",
    "FineryForSequenceClassification",
    "FineryForTokenClassification",
    "FineryModel",
    "FineryRnnConfig",
    "FineryRnnForCausalLM",
    "FineryRnnForConditionalGeneration",
    "FineryRnnForPreTraining",
    "FineryRnnForSequenceClassification",
    "FineryRnnModel",
]


def __getattr__(name: str) -> type:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public: type = getattr(import_module(".registration", __name__), name)
    return public


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
