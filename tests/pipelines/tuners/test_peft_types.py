"""PEFT knows our methods once it has been told, whoever told it before."""

from __future__ import annotations

import pytest
from peft import mapping

from pipelines.tuners import bottleneck, tuner


def test_our_own_classes_replace_those_of_a_copy_that_was_imported_before() -> None:
    for table in (mapping.PEFT_TYPE_TO_CONFIG_MAPPING, mapping.PEFT_TYPE_TO_TUNER_MAPPING):
        table["FINERY_BOTTLENECK"] = object  # as `import finery_bottleneck` beside an adapter would
    bottleneck.register(replace=False)
    assert mapping.PEFT_TYPE_TO_CONFIG_MAPPING["FINERY_BOTTLENECK"] is object
    tuner.register()
    assert mapping.PEFT_TYPE_TO_CONFIG_MAPPING["FINERY_BOTTLENECK"] is bottleneck.BottleneckConfig
    assert mapping.PEFT_TYPE_TO_TUNER_MAPPING["FINERY_FUSION"] is bottleneck.BottleneckModel
    assert mapping.PEFT_TYPE_TO_PREFIX_MAPPING["FINERY_BOTTLENECK"] == "bottleneck_"


def test_peft_still_refuses_our_names_in_its_own_way() -> None:
    """When this fails, `register_peft_method` takes any name and `register` should use it."""
    from peft.utils import register_peft_method

    with pytest.raises(ValueError, match="Unknown PEFT type FINERY_X"):
        register_peft_method(
            name="finery_x", config_cls=bottleneck.BottleneckConfig, model_cls=bottleneck.BottleneckModel
        )
