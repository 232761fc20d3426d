"""Tells transformers' Auto classes about the family. Importing this module is enough; doing it twice is harmless.

Not needed to load a published checkpoint: there, `auto_map` in its config.json plays this part.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .configuration_finery import FineryConfig
from .modeling_finery import FineryModel
from .modeling_finery_classification import (
    FineryForMultipleChoice,
    FineryForQuestionAnswering,
    FineryForReward,
    FineryForSequenceClassification,
    FineryForTokenClassification,
)
from .modeling_finery_language import (
    FineryForCausalLM,
    FineryForCausalLMWithValueHead,
    FineryForConditionalGeneration,
    FineryForMaskedLM,
    FineryForPreTraining,
)

HEADS = {
    AutoModel: FineryModel,
    AutoModelForMaskedLM: FineryForMaskedLM,
    AutoModelForPreTraining: FineryForPreTraining,
    AutoModelForCausalLM: FineryForCausalLM,
    AutoModelForSeq2SeqLM: FineryForConditionalGeneration,
    AutoModelForSequenceClassification: FineryForSequenceClassification,
    AutoModelForTokenClassification: FineryForTokenClassification,
    AutoModelForQuestionAnswering: FineryForQuestionAnswering,
    AutoModelForMultipleChoice: FineryForMultipleChoice,
}
"""The class that each Auto class builds. `AUTO_MAP` in the configuration says the same to other processes."""

WITHOUT_AUTO_CLASS = {
    "AutoModelForReward": FineryForReward,
    "AutoModelForCausalLMWithValueHead": FineryForCausalLMWithValueHead,
}
"""Heads that transformers has no Auto class for, under the names that `AUTO_MAP` gives them."""


def register() -> None:
    """Make `model_type: finery` known to AutoConfig and to every Auto class that the family has a head for."""
    AutoConfig.register(FineryConfig.model_type, FineryConfig, exist_ok=True)
    for auto_class, head in HEADS.items():
        auto_class.register(FineryConfig, head, exist_ok=True)


register()
