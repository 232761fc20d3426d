"""Tells transformers' Auto classes about our families. Importing this module is enough; doing it twice is harmless.

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
RNN_HEADS = {
    AutoModel: FineryRnnModel,
    AutoModelForPreTraining: FineryRnnForPreTraining,
    AutoModelForCausalLM: FineryRnnForCausalLM,
    AutoModelForSeq2SeqLM: FineryRnnForConditionalGeneration,
    AutoModelForSequenceClassification: FineryRnnForSequenceClassification,
}
"""The same for `model_type: finery-rnn`,"""
CNN_HEADS = {AutoModel: FineryCnnModel, AutoModelForSeq2SeqLM: FineryCnnForConditionalGeneration}
"""and for `finery-cnn`."""
FAMILIES = {FineryConfig: HEADS, FineryRnnConfig: RNN_HEADS, FineryCnnConfig: CNN_HEADS}

WITHOUT_AUTO_CLASS = {
    "AutoModelForReward": FineryForReward,
    "AutoModelForCausalLMWithValueHead": FineryForCausalLMWithValueHead,
}
"""Heads that transformers has no Auto class for, under the names that `AUTO_MAP` gives them."""


def register() -> None:
    """Make our model types known to AutoConfig, and to every Auto class that they have a head for."""
    for config, heads in FAMILIES.items():
        AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto_class, head in heads.items():
            auto_class.register(config, head, exist_ok=True)


register()
