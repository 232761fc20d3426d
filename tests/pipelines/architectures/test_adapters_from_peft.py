"""PEFT finds its way in our models without knowing them."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from peft.tuners.lora import Linear

from pipelines.architectures import (
    FineryForCausalLM,
    FineryForConditionalGeneration,
    FineryForMaskedLM,
    FineryForSequenceClassification,
)
from pipelines.architectures.configuration_finery import AUTO_MAP

LAYER = ("attention.query", "attention.key", "attention.value", "attention.output")
FEED_FORWARD = ("feed_forward.intermediate", "feed_forward.output")


def wrapped(model: PeftModel) -> set[str]:
    """Names of the linear layers that got an update, without PEFT's prefix."""
    names = {name for name, module in model.named_modules() if isinstance(module, Linear)}
    return {name.removeprefix("base_model.model.") for name in names}


def in_each_layer(*names: str) -> set[str]:
    return {f"model.layers.{index}.{name}" for index in range(3) for name in names}


def test_explicit_targets_wrap_these_layers_only(tiny):
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"])
    model = get_peft_model(FineryForSequenceClassification(tiny()), lora)
    assert wrapped(model) == in_each_layer("attention.query", "attention.value")


def test_all_linear_wraps_the_encoder_and_the_pooler_but_not_the_classifier(tiny):
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules="all-linear")
    model = get_peft_model(FineryForSequenceClassification(tiny()), lora)
    assert wrapped(model) == in_each_layer(*LAYER, *FEED_FORWARD) | {"model.pooler.dense"}
    assert all(
        weight.requires_grad for name, weight in model.named_parameters() if "classifier.modules_to_save" in name
    )


def test_all_linear_wraps_the_masked_lm_transform_but_not_the_tied_output_matrix(tiny):
    model = get_peft_model(FineryForMaskedLM(tiny()), LoraConfig(r=2, target_modules="all-linear"))
    assert wrapped(model) == in_each_layer(*LAYER, *FEED_FORWARD) | {"lm_head.dense"}


@torch.no_grad()
def test_a_merged_model_is_saved_with_every_head_and_the_code(tiny, batch, tmp_path):
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(FineryForSequenceClassification(tiny()), lora).eval()
    tuned = model(**batch).logits
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert (tmp_path / "modeling_finery.py").is_file()
    loaded = FineryForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(**batch).logits, tuned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("position", "implementation"), [("learned", "eager"), ("sinusoidal", "eager"), ("rotary", "sdpa")]
)
def test_prefix_tuning_trains_the_prefix(tiny, position, batch, implementation, tmp_path):
    base = FineryForSequenceClassification(tiny(position=position, attn_implementation=implementation))
    model = get_peft_model(base, PrefixTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=4))
    model(**batch, labels=torch.tensor([1, 0])).loss.backward()
    (prefix,) = [weight for name, weight in model.named_parameters() if "prompt_encoder" in name]
    assert prefix.grad.abs().sum() > 0

    model.eval().save_pretrained(tmp_path / "adapter")
    base.save_pretrained(tmp_path / "base")
    reloaded = PeftModel.from_pretrained(
        FineryForSequenceClassification.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    ).eval()
    torch.testing.assert_close(reloaded(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("pattern", ["causal", "linear"])
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_prefix_is_trained_before_a_decoders_text_and_written_on_from(tiny, position, pattern):
    base = FineryForCausalLM(tiny(family="decoder", position=position, attention_pattern=pattern))
    model = get_peft_model(base, PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4))
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 9, 10, 11]]), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    (prefix,) = [weight for name, weight in model.named_parameters() if "prompt_encoder" in name]
    assert prefix.grad.abs().sum() > 0

    with torch.no_grad():
        prefix.normal_()
    model.eval()
    found = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=3, do_sample=False)
    with torch.no_grad():
        for _ in range(3):
            logits = model(input_ids=ids, attention_mask=mask).logits
            ids, mask = torch.cat([ids, logits[:, -1:].argmax(-1)], 1), torch.cat([mask, mask[:, :1] * 0 + 1], 1)
    assert torch.equal(found, ids)


def test_prefixes_of_both_kinds_of_attention_are_trained_in_an_encoder_decoder(tiny):
    base = FineryForConditionalGeneration(tiny(family="encoder-decoder"))
    model = get_peft_model(base, PrefixTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=4))
    ids, mask = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    (prefix,) = [weight for name, weight in model.named_parameters() if "prompt_encoder" in name]
    assert prefix.grad.abs().sum() > 0
