"""Models are built or opened with the head that a stage needs, or refused in one sentence."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.activations import ACT2FN, GELUActivation, GELUTanh

from pipelines.architectures.layers import AT_ONCE
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.models import heads, opening
from pipelines.tuners.adapter import Adapter
from pipelines.tuners.lora import LoRA
from tests import tiny

ENCODERS = ["finery", "bert", "electra", "roberta", "distilbert", "albert", "modernbert", "deberta-v2"]
HEAD_MODULES = {
    "finery": ["classifier", "model.pooler.dense"], "bert": ["bert.pooler.dense", "classifier"],
    "electra": ["classifier.dense", "classifier.out_proj"], "roberta": ["classifier.dense", "classifier.out_proj"],
    "distilbert": ["classifier", "pre_classifier"], "albert": ["albert.pooler", "classifier"], "modernbert": ["classifier"],
    "deberta-v2": ["classifier", "pooler.dense"],
}  # fmt: skip
"""What masked-LM pretraining does not bring, read off each family's two classes by hand."""


BART = {
    "d_model": 16,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
T5 = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize("shape", [T5, {"model_type": "bart", **BART}])
def test_an_encoder_decoder_ends_where_its_tokenizer_does(shape: dict[str, Any]) -> None:
    tokenizer = tiny.tokenizer()
    model = opening.build(shape, tiny.TWO, tokenizer, seed=1).eval()
    assert model.config.eos_token_id == tokenizer.sep_token_id
    assert model.config.decoder_start_token_id is not None
    inputs = tokenizer(["a text", "another one"], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    assert model(**inputs).logits.shape == (2, 2)


@pytest.mark.parametrize(
    ("words", "start", "forced"),
    [
        (T5, "pad", None),
        ({"model_type": "bart", **BART}, "eos", "eos"),
        ({"model_type": "marian", **BART}, "pad", "eos"),
    ],
)
def test_a_decoder_begins_with_the_token_that_has_that_part_in_its_types_own_vocabulary(
    words: dict[str, Any], start: str, forced: str | None
) -> None:
    tokenizer = tiny.tokenizer()
    parts = {"pad": tokenizer.pad_token_id, "eos": tokenizer.sep_token_id, None: None}
    config = opening.build(words, Head("seq2seq_lm"), tokenizer, seed=1).config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert config.decoder_start_token_id == parts[start]
    assert getattr(config, "forced_eos_token_id", None) == parts[forced]
    said = opening.build(words | {"decoder_start_token_id": 4}, Head("seq2seq_lm"), tokenizer, seed=1).config
    assert said.decoder_start_token_id == 4


def test_a_decoder_stops_at_the_end_of_its_tokenizer() -> None:
    model = opening.build(tiny.shape("gpt2"), Head("causal_lm"), tiny.tokenizer(), seed=1)
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (2, 3, 0)
    assert model.generation_config.eos_token_id == 3
    given = opening.build(tiny.shape("gpt2", eos_token_id=7), Head("causal_lm"), tiny.tokenizer(), seed=1)
    assert given.config.eos_token_id == 7


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """`folder(family, head, name="model")`: a checkpoint with slightly disturbed weights."""

    def save(family: str, head: Head, name: str = "model", **overrides: Any) -> Path:
        model = tiny.build(family, head, seed=3, **overrides)
        tiny.disturb(model, by=0.05)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def body(model: Any) -> dict[str, torch.Tensor]:
    prefix = f"{model.base_model_prefix}."
    return {
        name: weight for name, weight in model.state_dict().items() if name.startswith(prefix) and "pooler" not in name
    }


def adapter(model: Any, head: Head, folder: Path) -> Any:
    """`model` with a disturbed LoRA, saved as a stage would."""
    tuned = LoRA(r=2).apply(model)
    tiny.disturb(tuned)
    tuned.save_pretrained(folder)
    (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
    return tuned


@pytest.mark.parametrize("family", ENCODERS)
def test_a_classifier_on_a_pretrained_body_keeps_the_body_and_tells_what_is_new(
    family: str, folder: Callable[..., Path]
) -> None:
    place = folder(family, tiny.MASKED)
    model = opening.open_folder(place, tiny.THREE, seed=0)
    assert model.finery_new_modules == tiny.build(family, tiny.THREE).finery_new_modules == HEAD_MODULES[family]
    pretrained = opening.open_folder(place, tiny.MASKED, seed=0)
    assert pretrained.finery_new_modules == []
    kept = body(pretrained)
    assert kept
    assert all(torch.equal(weight, kept[name]) for name, weight in body(model).items())
    assert tiny.logits(model, tiny.batch()).shape == (4, 3)
    assert model.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


def test_a_decoder_classifies_too(folder: Callable[..., Path]) -> None:
    model = tiny.build("gpt2", tiny.TWO)
    assert model.finery_new_modules == ["score"]
    assert model.config.pad_token_id == tiny.tokenizer().pad_token_id  # its classifier needs it for batches
    said = tiny.logits(model, tiny.batch())
    alone = {name: value[1:2, :7] for name, value in tiny.batch().items()}
    torch.testing.assert_close(said[1:2], tiny.logits(model, alone), rtol=1e-5, atol=1e-6)  # padding does not show
    place = folder("gpt2", tiny.TWO)
    assert opening.open_folder(place, tiny.TWO, seed=0, trained_head=True).finery_new_modules == []


def test_the_tokens_of_a_model_that_judges_them_have_named_classes(folder: Callable[..., Path]) -> None:
    head = Head("token_classification", ("original", "replaced", "unsure"))
    for family in ("finery", "electra"):
        place = folder(family, head, name=family)
        opened = opening.open_folder(place, head, seed=0, trained_head=True)
        assert opened.config.id2label == {0: "original", 1: "replaced", 2: "unsure"}
        assert tiny.logits(opened, tiny.batch()).shape == (4, 10, 3)


WRITERS: list[tuple[dict[str, Any], Head]] = [
    (T5, Head("seq2seq_lm")),
    ({"model_type": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}, Head("causal_lm")),
    (
        {
            "model_type": "llama",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        },
        Head("causal_lm"),
    ),
    (tiny.shape("gpt2"), Head("causal_lm")),
    (tiny.shape("bert"), Head("pretraining")),
]


@pytest.mark.parametrize(("shape", "head"), WRITERS, ids=[shape["model_type"] for shape, _ in WRITERS])
def test_nothing_of_a_language_model_is_new_to_its_own_pretraining(
    shape: dict[str, Any], head: Head, tmp_path: Path
) -> None:
    model = opening.build(shape, head, tiny.tokenizer(), seed=1)
    assert model.finery_new_modules == []
    model.save_pretrained(tmp_path)
    again = opening.open_folder(tmp_path, head, seed=2, trained_head=True)
    assert again.finery_new_modules == []
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("family", ["finery", "bert", "roberta", "modernbert"])
def test_a_seed_decides_every_new_weight(family: str, folder: Callable[..., Path]) -> None:
    place = folder(family, tiny.MASKED)

    def same(first: Any, second: Any) -> bool:
        others = dict(second.named_parameters())
        return all(torch.equal(weight, others[name]) for name, weight in first.named_parameters())

    for make in (
        lambda seed: tiny.build(family, tiny.TWO, seed=seed),
        lambda seed: opening.open_folder(place, tiny.TWO, seed=seed),
    ):
        first = make(1)
        torch.rand(5)
        assert same(first, make(1))
        assert not same(first, make(2))


def test_the_sizes_of_the_embeddings_follow_the_tokenizer() -> None:
    vocabulary = len(tiny.tokenizer())
    assert tiny.build("bert", tiny.MASKED).config.vocab_size == vocabulary
    assert (
        tiny.build("bert", tiny.MASKED, vocab_size=vocabulary + 8).get_input_embeddings().weight.shape[0]
        == vocabulary + 8
    )
    with pytest.raises(ModelError, match=f"vocab_size is 10, but the tokenizer has {vocabulary} entries; leave it out"):
        tiny.build("bert", tiny.MASKED, vocab_size=10)


def test_a_tokenizer_beyond_the_embeddings_is_refused(folder: Callable[..., Path]) -> None:
    vocabulary = len(tiny.tokenizer())
    model = opening.open_folder(folder("bert", tiny.TWO), tiny.TWO, seed=0)
    opening.check_vocabulary(model, tiny.tokenizer())
    model.resize_token_embeddings(vocabulary - 1)
    with pytest.raises(
        ModelError,
        match=f"the tokenizer has {vocabulary} entries, but the checkpoint has embeddings for {vocabulary - 1}",
    ):
        opening.check_vocabulary(model, tiny.tokenizer())


def test_an_architecture_that_cannot_be_is_refused_in_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"model.architecture cannot be built as AutoModelForMaskedLM: .*gpt2|GPT2"):
        tiny.build("gpt2", tiny.MASKED)
    with pytest.raises(ModelError, match=r"cannot be built as AutoModelForMaskedLM: .*multiple") as caught:
        tiny.build("bert", tiny.MASKED, num_attention_heads=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["finery", "bert"])
def test_a_head_of_another_size_is_drawn_anew_on_the_same_body(family: str, folder: Callable[..., Path]) -> None:
    place = folder(family, tiny.THREE)
    three, two = (opening.open_folder(place, head, seed=0) for head in (tiny.THREE, tiny.TWO))
    assert three.finery_new_modules == []
    assert two.finery_new_modules == ["classifier"]
    kept = body(three)
    assert all(torch.equal(weight, kept[name]) for name, weight in body(two).items())
    assert two.config.id2label == {0: "no", 1: "yes"}
    number = opening.open_folder(place, tiny.NUMBER, seed=0)
    assert number.config.num_labels == 1
    assert number.config.problem_type == "regression"


def test_a_trained_head_keeps_its_class_names(folder: Callable[..., Path]) -> None:
    place = folder("finery", tiny.THREE)
    asked = Head("sequence_classification", ("0", "1", "2"))
    assert opening.open_folder(place, asked, seed=0, trained_head=True).config.id2label == dict(
        enumerate(tiny.THREE.labels)
    )


@pytest.mark.parametrize("family", ["finery", "bert", "distilbert"])
def test_a_head_that_was_never_trained_is_refused_where_one_is_needed(family: str, folder: Callable[..., Path]) -> None:
    with pytest.raises(
        ModelError, match=r"has no trained sequence classification head for 3 outputs .* fine-tune it on the task first"
    ):
        opening.open_folder(folder(family, tiny.MASKED), tiny.THREE, seed=0, trained_head=True)


def test_a_body_of_another_shape_is_no_checkpoint(folder: Callable[..., Path]) -> None:
    place = folder("bert", tiny.MASKED)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(
        ModelError, match=r"no checkpoint for BertForMaskedLM: it has no weights for bert.encoder.layer.2"
    ):
        opening.open_folder(place, tiny.MASKED, seed=0)
    (place / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(
        ModelError, match=r"no checkpoint for BertForSequenceClassification: it has no weights for bert.encoder"
    ):
        opening.open_folder(place, tiny.TWO, seed=0)


def _cut(place: Path) -> None:
    whole = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _pickled(place: Path) -> None:
    torch.save({}, place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut weights": (_cut, "cannot be opened as AutoModelForSequenceClassification: .*incomplete"),
    "empty weights": (lambda place: (place / "model.safetensors").write_bytes(b""), "cannot be opened as .*header"),
    "pickled weights": (_pickled, r"holds pickled weights only \(pytorch_model.bin\), which are never read"),
    "no weights": (lambda place: (place / "model.safetensors").unlink(), "no file named model.safetensors"),
    "broken config": (lambda place: (place / "config.json").write_text("{"), "not a valid JSON"),
    "unknown family": (
        lambda place: (place / "config.json").write_text('{"model_type": "nosuch"}'),
        "model type `nosuch`",
    ),
    "no folder": (shutil.rmtree, "is no folder; name a folder with a checkpoint, or a Hub id"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_sentence(damage: str, folder: Callable[..., Path]) -> None:
    place = folder("bert", tiny.TWO)
    harm, sentence = DAMAGES[damage]
    harm(place)
    with pytest.raises(ModelError, match=sentence) as caught:
        opening.open_folder(place, tiny.TWO, seed=0)
    assert str(caught.value).startswith(f"'{place}' ")
    assert "\n" not in str(caught.value)


def test_a_pickle_beside_safetensors_is_not_read(folder: Callable[..., Path]) -> None:
    place = folder("bert", tiny.TWO)
    (place / "pytorch_model.bin").write_bytes(b"not a pickle")
    assert opening.open_folder(place, tiny.TWO, seed=0).finery_new_modules == []


def test_a_hub_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="'nobody/nothing' cannot be opened as AutoModelForMaskedLM"):
        opening.open_folder("nobody/nothing", tiny.MASKED, seed=0)


def test_opening_says_nothing_and_leaves_the_logging_as_it_was(
    folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    place = folder("bert", tiny.MASKED)
    parent, loader = logging.getLogger("transformers"), logging.getLogger("transformers.modeling_utils")
    level, filters = loader.level, list(loader.filters)
    parent.addHandler(caplog.handler)
    try:
        opening.open_folder(place, tiny.TWO, seed=0)
    finally:
        parent.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert (loader.level, loader.filters) == (level, filters)


@pytest.mark.parametrize("family", ["finery", "bert", "modernbert"])
def test_an_adapter_of_a_pretraining_stage_serves_a_classification_stage(
    family: str, folder: Callable[..., Path], tmp_path: Path
) -> None:
    place = folder(family, tiny.MASKED)
    adapted = adapter(opening.open_folder(place, tiny.MASKED, seed=0), tiny.MASKED, tmp_path / "adapter")
    model = opening.open_folder(tmp_path / "adapter", tiny.TWO, seed=0)
    assert model.finery_new_modules == HEAD_MODULES[family]
    merged = body(adapted.merge_and_unload())
    found = body(model)
    assert found.keys() <= merged.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, merged[name], rtol=1e-6, atol=1e-7)
    assert model.name_or_path == ""
    with pytest.raises(
        ModelError,
        match=r"has no trained sequence classification head|has a masked_lm head, but a sequence_classification head",
    ):
        opening.open_folder(tmp_path / "adapter", tiny.TWO, seed=0, trained_head=True)


def test_an_adapter_for_three_classes_serves_a_stage_with_two(folder: Callable[..., Path], tmp_path: Path) -> None:
    place = folder("bert", tiny.MASKED)
    adapter(opening.open_folder(place, tiny.THREE, seed=0), tiny.THREE, tmp_path / "adapter")
    model = opening.open_folder(tmp_path / "adapter", tiny.TWO, seed=0)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert model.finery_new_modules == ["classifier"]


def test_an_adapter_that_cannot_be_merged_serves_the_head_that_it_was_trained_with_alone(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    place, tuner = folder("bert", tiny.MASKED), Adapter(bottleneck_size=4)
    tuner.save(tuner.apply(opening.open_folder(place, tiny.THREE, seed=0)), tmp_path / "adapter")
    (tmp_path / "adapter" / "head.json").write_text(
        json.dumps({"kind": tiny.THREE.kind, "labels": list(tiny.THREE.labels)})
    )
    assert opening.open_folder(tmp_path / "adapter", tiny.THREE, seed=0).finery_new_modules == []
    for head in (tiny.TWO, tiny.MASKED):
        with pytest.raises(ModelError, match="cannot be merged into its base, so it serves only"):
            opening.open_folder(tmp_path / "adapter", head, seed=0)


@pytest.mark.parametrize("family", ["finery", "electra", "albert", "deberta-v2"])
def test_a_masked_lm_head_that_an_adapter_trained_whole_survives_merging(
    family: str, folder: Callable[..., Path], tmp_path: Path
) -> None:
    place = folder(family, tiny.THREE)  # a body without a masked-LM head: the whole head is new, its output matrix too
    opened = opening.open_folder(place, tiny.MASKED, seed=0)
    assert opened.finery_new_modules
    tuned = adapter(opened, tiny.MASKED, tmp_path / "adapter")
    wanted = tiny.logits(tuned, tiny.batch())
    assert torch.equal(
        tiny.logits(opening.open_folder(tmp_path / "adapter", tiny.MASKED, seed=1, merge=False), tiny.batch()), wanted
    )
    merged = opening.open_folder(tmp_path / "adapter", tiny.MASKED, seed=1)
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-5, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = opening.open_folder(tmp_path / "merged", tiny.MASKED, seed=2, trained_head=True)
    torch.testing.assert_close(tiny.logits(again, tiny.batch()), wanted, rtol=1e-5, atol=1e-5)


def test_a_published_adapter_has_its_base_inside_itself(folder: Callable[..., Path], tmp_path: Path) -> None:
    tuned = adapter(
        opening.open_folder(folder("bert", tiny.THREE), tiny.THREE, seed=0), tiny.THREE, tmp_path / "published"
    )
    expected = tiny.logits(tuned, tiny.batch())
    shutil.move(tmp_path / "model", tmp_path / "published/base")
    config = tmp_path / "published/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "base"}))
    opened = opening.open_folder(tmp_path / "published", tiny.THREE, seed=0, trained_head=True)
    torch.testing.assert_close(tiny.logits(opened, tiny.batch()), expected, rtol=1e-4, atol=1e-5)


def test_a_base_beside_the_adapter_is_preferred_to_the_one_it_names(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    place = folder("bert", tiny.THREE, name="stage/base")
    tuned = adapter(opening.open_folder(place, tiny.THREE, seed=0), tiny.THREE, tmp_path / "stage" / "model")
    wanted = tiny.logits(tuned, tiny.batch())
    (tmp_path / "stage").rename(tmp_path / "moved")
    found = opening.open_folder(tmp_path / "moved" / "model", tiny.THREE, seed=0, merge=False)
    assert torch.equal(tiny.logits(found, tiny.batch()), wanted)


@pytest.mark.parametrize("harm", ["weights", "config", "base"])
def test_a_damaged_adapter_is_refused_in_one_sentence(harm: str, folder: Callable[..., Path], tmp_path: Path) -> None:
    place = folder("bert", tiny.THREE)
    adapter(opening.open_folder(place, tiny.THREE, seed=0), tiny.THREE, tmp_path / "adapter")
    if harm == "weights":
        (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    elif harm == "config":
        (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    else:
        shutil.rmtree(place)
    with pytest.raises(
        ModelError, match=f"'{place}' is no folder" if harm == "base" else "the adapter in .* cannot be opened"
    ):
        opening.open_folder(tmp_path / "adapter", tiny.THREE, seed=0)


def test_the_head_that_a_stage_wrote_down_is_read_back(tmp_path: Path) -> None:
    assert heads.saved_head(tmp_path) is None
    (tmp_path / "head.json").write_text('{"kind": "sequence_classification", "labels": ["a", "b"]}')
    assert heads.saved_head(tmp_path) == Head("sequence_classification", ("a", "b"))


def test_an_adapter_with_a_module_that_its_base_has_not_is_refused(folder: Callable[..., Path], tmp_path: Path) -> None:
    base = folder("bert", tiny.TWO)
    model = opening.open_folder(base, tiny.TWO, 1)
    tuned = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=["classifier"]))
    tuned.save_pretrained(str(tmp_path / "tuned"))
    config, weights = (tmp_path / "tuned" / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    plain = config.read_text()
    config.write_text(plain.replace('"classifier"', '"classifier", "score"'))  # as PEFT does for any classifier
    opening.open_folder(tmp_path / "tuned", tiny.TWO, 1)
    config.write_text(plain.replace('"classifier"', '"score"'))
    save_file({name.replace(".classifier.", ".score."): value for name, value in load_file(weights).items()}, weights)
    with pytest.raises(ModelError, match="was trained with score, which BertForSequenceClassification has not"):
        opening.open_folder(tmp_path / "tuned", tiny.TWO, 1)


@pytest.mark.parametrize("name", sorted(AT_ONCE.keys() & ACT2FN.keys()))
def test_a_gelu_of_many_operations_is_computed_by_one(name: str) -> None:
    written, given = ACT2FN[name], torch.linspace(-8, 8, 999, dtype=torch.float64)
    assert type(opening.fused(written)) in (GELUTanh, GELUActivation)
    torch.testing.assert_close(opening.fused(written)(given), written(given), rtol=1e-8, atol=1e-8)


def test_other_activations_stay() -> None:
    assert {name for name in ACT2FN if opening.fused(own := ACT2FN[name]) is not own} == AT_ONCE.keys() & ACT2FN.keys()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_model_that_is_opened_says_what_transformers_says(
    on_gpu: bool, folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head("causal_lm")
    place = folder("gpt2", head)
    said = tiny.logits(AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager"), tiny.batch())
    opened = opening.open_folder(place, head, 0)
    assert type(opened.transformer.h[0].mlp.act) is not GELUTanh
    if on_gpu:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        opening.fuse_activations(opened)
        assert type(opened.transformer.h[0].mlp.act) is GELUTanh
        torch.testing.assert_close(tiny.logits(opened, tiny.batch()), said)
    else:
        assert torch.equal(tiny.logits(opened, tiny.batch()), said)


def test_attention_is_eager_on_a_processor_and_never_cudnns_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for seen, asked in ((False, "eager"), (True, None)):
            torch.backends.cuda.enable_cudnn_sdp(True)
            monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
            assert opening._attention() == asked
            assert torch.backends.cuda.cudnn_sdp_enabled() is not seen
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
