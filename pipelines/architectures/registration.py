"""Tells transformers' Auto classes about the family. Importing this module is enough; doing it twice is harmless.

Not needed to load a published checkpoint: there, `auto_map` in its config.json plays this part.
"""

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from .configuration_finery import FineryConfig
from .modeling_finery import FineryForMaskedLM, FineryForSequenceClassification, FineryModel

HEADS = {
    AutoModel: FineryModel,
    AutoModelForMaskedLM: FineryForMaskedLM,
    AutoModelForSequenceClassification: FineryForSequenceClassification,
}
"""The class that each Auto class builds. `AUTO_MAP` in the configuration says the same to other processes."""


def register() -> None:
    """Make `model_type: finery` known to AutoConfig and to every Auto class that the family has a head for."""
    AutoConfig.register(FineryConfig.model_type, FineryConfig, exist_ok=True)
    for auto_class, head in HEADS.items():
        auto_class.register(FineryConfig, head, exist_ok=True)


register()
