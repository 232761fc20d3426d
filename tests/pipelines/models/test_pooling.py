"""A head that reads the mean of an encoder's tokens: equal to transformers' own body, whatever it is opened from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS
from pipelines.models.opening import build, open_folder
from pipelines.models.read_places import text_alone
from pipelines.trainers.checkpoints import write_head
from tests import tiny

MEAN = Head("sequence_classification", ("no", "yes", "maybe"), pooling="mean")
FIRST = Head("sequence_classification", MEAN.labels, pooling="first")
PLAIN = Head("sequence_classification", MEAN.labels)
CHOICE = Head("multiple_choice", pooling="mean")
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
}
MOVED = {
    "bert": transformers.BertConfig(**SIZES),
    "roberta": transformers.RobertaConfig(**SIZES, type_vocab_size=1),
    "xlm-roberta": transformers.XLMRobertaConfig(**SIZES, type_vocab_size=1),
}
IDS = torch.tensor([[7, 12, 30, 41, 9], [7, 8, 9, 1, 1]])
MASK = (IDS != 1).long()


def saved(config: transformers.PreTrainedConfig, folder: Path) -> str:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    for weight in model.parameters():  # norms and biases that do something
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    return str(folder)


def mean_of(states: Tensor) -> Tensor:
    return torch.stack([each[real].mean(0) for each, real in zip(states, MASK.bool(), strict=True)])


@pytest.mark.parametrize("model_type", MOVED)
def test_a_moved_body_computes_what_transformers_computes(tmp_path, model_type):
    source = saved(MOVED[model_type], tmp_path / "theirs")
    model = open_folder(source, MEAN, seed=3).eval()
    theirs = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model.classifier(mean_of(theirs(IDS, attention_mask=MASK).last_hidden_state))
        torch.testing.assert_close(model(IDS, attention_mask=MASK).logits, expected, atol=1e-5, rtol=1e-5)
    assert model.finery_new_modules == ["classifier"]
    assert model.name_or_path == ""  # so that an adapter brings its base
    assert model.config.num_labels == 3
    assert model.config.id2label[2] == "maybe"
    model.save_pretrained(tmp_path / "ours")
    again = open_folder(tmp_path / "ours", PLAIN, seed=9, trained_head=True).eval()
    with torch.no_grad():
        assert torch.equal(again(IDS, attention_mask=MASK).logits, model(IDS, attention_mask=MASK).logits)


@pytest.mark.parametrize("model_type", [*MOVED, "finery", "modernbert"])
def test_each_option_is_judged_by_its_mean(tmp_path, model_type):
    special = {} if model_type == "finery" else {"bos_token_id": 2, "eos_token_id": 3}
    config = MOVED.get(model_type) or transformers.AutoConfig.for_model(model_type, **SIZES, **special)
    model = open_folder(saved(config, tmp_path), CHOICE, seed=3).eval()
    options = {"input_ids": IDS[None], "attention_mask": MASK[None]}
    with torch.no_grad():
        text = mean_of(model.base_model(IDS, attention_mask=MASK).last_hidden_state)
        expected = model.classifier(model.head(text) if model_type == "modernbert" else text).view(1, 2)
        torch.testing.assert_close(model(**options).logits, expected)
        for _ in range(2):  # the first time it is tried whether places may be left out, then it is known
            with text_alone(model, options):
                torch.testing.assert_close(model(**options).logits, expected)


def test_the_new_head_follows_the_seed(tmp_path):
    source = saved(MOVED["bert"], tmp_path)
    first, same, other = (open_folder(source, MEAN, seed=seed).classifier.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_first_token_is_read_by_the_models_own_class(tmp_path):
    model = open_folder(saved(MOVED["bert"], tmp_path), FIRST, seed=0)
    assert type(model).__name__ == "BertForSequenceClassification"
    assert model.name_or_path == str(tmp_path)


def test_our_own_checkpoint_is_told_what_to_read(tmp_path):
    config = {"model_type": "finery", **SIZES}
    own = build(config, Head("masked_lm"), tiny.tokenizer(), seed=0)
    own.save_pretrained(tmp_path / "language")
    model = open_folder(tmp_path / "language", MEAN, seed=0).eval()
    assert model.model.pooler is None
    assert model.name_or_path == ""
    with torch.no_grad():
        states = own.eval().model(IDS, attention_mask=MASK).last_hidden_state
        torch.testing.assert_close(model(IDS, attention_mask=MASK).logits, model.classifier(mean_of(states)))
    model.save_pretrained(tmp_path / "classifier")
    kept = open_folder(tmp_path / "classifier", PLAIN, seed=0)  # a later stage that says nothing
    assert kept.config.classifier_pooling == "mean"
    assert torch.equal(kept.classifier.weight, model.classifier.weight)
    back = open_folder(tmp_path / "classifier", FIRST, seed=0)
    assert back.model.pooler is not None
    assert "model.pooler.dense" in back.finery_new_modules


def test_a_model_from_scratch_is_built_with_it():
    assert build({"model_type": "finery", **SIZES}, MEAN, tiny.tokenizer(), seed=0).config.classifier_pooling == "mean"


def test_modernberts_own_word_is_set(tmp_path):
    config = transformers.ModernBertConfig(**SIZES, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
    source = saved(config, tmp_path)
    mean, first = open_folder(source, MEAN, seed=0), open_folder(source, FIRST, seed=0)
    assert (mean.config.classifier_pooling, first.config.classifier_pooling) == ("mean", "cls")
    assert (mean.name_or_path, first.name_or_path) == ("", source)


def test_another_encoder_is_refused(tmp_path):
    source = saved(
        transformers.DistilBertConfig(vocab_size=1000, dim=24, n_layers=1, n_heads=2, hidden_dim=36), tmp_path
    )
    with pytest.raises(ModelError, match=r"pooling is mean, which is offered for finery, bert, .* not for distilbert"):
        open_folder(source, MEAN, seed=0)


def test_a_bert_that_is_no_plain_one_is_refused(tmp_path):
    source = saved(transformers.BertConfig(**SIZES, is_decoder=True), tmp_path)
    with pytest.raises(ModelError, match="is_decoder is true"):
        open_folder(source, MEAN, seed=0)


@pytest.mark.parametrize("name", ["prompt", "p_tuning", "prefix"])
def test_virtual_tokens_are_not_in_the_mean(tmp_path, name):
    model = open_folder(saved(MOVED["bert"], tmp_path), MEAN, seed=0).eval()
    tuned = TUNERS.load(name)(name=name, num_virtual_tokens=3).apply(model).eval()
    with torch.no_grad():
        states = tuned.base_model.model(IDS, attention_mask=MASK).last_hidden_state
        assert states.shape[1] == IDS.shape[1]
        expected = tuned.base_model.classifier(mean_of(states))
        torch.testing.assert_close(tuned(IDS, attention_mask=MASK).logits, expected)


@pytest.mark.parametrize("name", ["lora", "adapter", "prompt"])
def test_an_adapter_comes_back_on_the_base_that_was_saved_for_it(tmp_path, name):
    """As `keep_base` does it: the base in a folder, with its pooling in its config."""
    model = open_folder(saved(MOVED["bert"], tmp_path / "theirs"), MEAN, seed=0).eval()
    model.save_pretrained(tmp_path / "base")
    model.name_or_path = str(tmp_path / "base")
    tuner = TUNERS.load(name)(name=name, **({"num_virtual_tokens": 3} if name == "prompt" else {}))
    tuned = tuner.apply(model).eval()
    with torch.no_grad():
        for weight in tuned.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
        expected = tuned(IDS, attention_mask=MASK).logits
    tuner.save(tuned, tmp_path / "tuned")
    write_head(tmp_path / "tuned", MEAN)
    with torch.no_grad():
        again = open_folder(tmp_path / "tuned", PLAIN, seed=9, trained_head=True).eval()
        torch.testing.assert_close(again(IDS, attention_mask=MASK).logits, expected, atol=1e-5, rtol=1e-4)
        further = open_folder(tmp_path / "tuned", MEAN, seed=9).eval()  # the next stage learns on
        torch.testing.assert_close(further(IDS, attention_mask=MASK).logits, expected, atol=1e-5, rtol=1e-4)
    if name != "lora":  # which cannot be merged
        with pytest.raises(ModelError, match="another pooling than first"):
            open_folder(tmp_path / "tuned", FIRST, seed=9)
    else:
        assert open_folder(tmp_path / "tuned", FIRST, seed=9).config.classifier_pooling == "first"


def test_no_place_of_the_last_layer_is_left_out(tmp_path):
    """All of them are read: what saves a first token's head the others must not be done."""
    model = open_folder(saved(MOVED["bert"], tmp_path), MEAN, seed=0).eval()
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    with torch.no_grad():
        expected = model(**inputs).logits
        for _ in range(2):  # the first time it is tried, then it is known
            with text_alone(model, inputs):
                assert torch.equal(model(**inputs).logits, expected)
