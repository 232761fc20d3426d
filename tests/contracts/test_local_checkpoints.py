"""A checkpoint in a folder is checked before anything loads, by its config.json: refused where it cannot do what a stage
asks, and never where nobody can tell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from tests import tiny

FAMILIES = {
    "bert": "masked_lm",
    "finery": "masked_lm",
    "gpt2": "causal_lm",
    "llama": "causal_lm",
    "xlnet": "causal_lm",
    "t5": "seq2seq_lm",
    "bart": "seq2seq_lm",
}
"""Model types of each family, with the head that they are saved with."""
DECODERS, ENCODER_DECODERS = ("gpt2", "llama", "xlnet"), ("t5", "bart")
TEXT = "datasets: [{path: builtin/python-docs}], arguments: {max_steps: 2}"
PROMPTS = "prompts: {path: builtin/python-docs, text: text, max_length: 40}, reward: {name: keyword, words: [a]}"
DPO = "{stage: dpo, task: {kind: preference, train: builtin/python-docs, name: preferences}}"
PPO = f"{{stage: ppo, {PROMPTS}, arguments: {{response_length: 40}}}}"
GRPO = f"{{stage: grpo, {PROMPTS}, arguments: {{max_completion_length: 40}}}}"
PAIRS = "{stage: supervised, task: multi30k/en-de}"
CLASSES = "{stage: supervised, task: glue/mrpc}"


def pretrain(objective: str, keys: str = "block_size: 32") -> str:
    return f"{{stage: pretrain, objective: {objective}, {keys}, {TEXT}}}"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of each type, small."""
    places = {model_type: tmp_path_factory.mktemp(model_type) for model_type in FAMILIES}
    for model_type, head in FAMILIES.items():
        tiny.build(model_type, Head(head)).save_pretrained(places[model_type])  # type: ignore[arg-type]
    return places


@pytest.fixture
def changed(folders: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """`changed("bert", is_decoder=True)`: a copy of that folder with another config.json; None leaves a word out."""

    def make(model_type: str, /, **words: object) -> Path:
        place = Path(shutil.copytree(folders[model_type], tmp_path / f"{model_type}-{len(list(tmp_path.iterdir()))}"))
        config = json.loads((place / "config.json").read_text()) | words
        (place / "config.json").write_text(json.dumps({key: each for key, each in config.items() if each is not None}))
        return place

    return make


def mistakes(checkpoint: object, *stages: str, more: str = "") -> str:
    listed = "".join(f"  - {stage}\n" for stage in stages)
    try:
        loads(f"name: x\nmodel: {{checkpoint: '{checkpoint}'{more}}}\nstages:\n{listed}")
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("model_type", "stage", "sentence"),
    [
        ("bert", pretrain("causal_lm"), "bert sees both ways"),
        ("bert", pretrain("span_corruption"), "span_corruption, whose head this architecture does not have"),
        ("gpt2", pretrain("masked_lm"), "masked_lm, whose head this architecture does not have"),
        ("t5", pretrain("masked_lm"), "masked_lm, whose head this architecture does not have"),
        ("finery", pretrain("causal_lm"), "family decoder, not encoder"),
        ("bert", PAIRS, "needs a model that writes"),
        ("gpt2", PAIRS, "needs a model that writes"),
        ("bert", PPO, "which learns from answers that a model writes"),
        ("finery", DPO, "which learns from answers that a model writes"),
        ("bart", GRPO, "which TRL trains for decoders alone"),
        ("bart", "{stage: supervised, task: race/middle}", "needs a multiple choice head"),
        ("gpt2", "{stage: supervised, task: glue/mrpc, pooling: mean}", "offered for"),
        ("bert", "{stage: supervised, task: glue/mrpc, auxiliary_lm: 0.5}", "bert sees both ways"),
        ("bert", "{stage: supervised, task: glue/mrpc, input_format: gpt}", "bert sees both ways"),
        ("gpt2", "{stage: supervised, task: glue/mrpc, tuner: {name: lora, layers_to_transform: [7]}}", "2 layers"),
        ("xlnet", "{stage: supervised, task: glue/mrpc, tuner: prefix}", "xlnet does not have"),
        ("bert", f"{{stage: evaluate, {PROMPTS}}}", "does not write texts"),
    ],
)
def test_what_the_architecture_cannot_do_is_refused(folders, model_type, stage, sentence):
    assert sentence in mistakes(folders[model_type], stage)


@pytest.mark.parametrize(
    ("model_type", "stage", "key"),
    [
        ("bert", pretrain("masked_lm", "block_size: 64"), "block_size"),
        ("gpt2", pretrain("causal_lm", "block_size: 64"), "block_size"),
        ("gpt2", "{stage: supervised, task: glue/mrpc, max_length: 64}", "max_length"),
        ("bart", "{stage: supervised, task: multi30k/en-de, max_target_length: 64}", "max_target_length"),
        ("llama", f"{DPO[:-1]}, max_length: 64}}", "max_length"),
        ("gpt2", PPO.replace("response_length: 40", "response_length: 48"), "response_length"),
    ],
)
def test_longer_texts_than_it_has_positions_for_are_refused(folders, model_type, stage, key):
    said = mistakes(folders[model_type], stage)
    assert f"{key}: is " in said
    assert "max_position_embeddings 48" in said


def test_a_third_stage_that_cannot_follow_is_refused_before_the_first_begins(folders):
    said = mistakes(folders["bert"], pretrain("masked_lm"), CLASSES, PAIRS)
    assert "stages.supervised-2.task: is a task of pairs" in said


@pytest.mark.parametrize(
    ("model_types", "stage"),
    [
        (tuple(FAMILIES), CLASSES),
        (("bert", "finery"), pretrain("masked_lm")),
        (("gpt2", "llama", "bart"), pretrain("causal_lm")),
        (ENCODER_DECODERS, pretrain("span_corruption")),
        (ENCODER_DECODERS, PAIRS),
        ((*DECODERS, *ENCODER_DECODERS), DPO),
        ((*DECODERS, *ENCODER_DECODERS), PPO),
        (DECODERS, GRPO),
        (("t5", "xlnet"), "{stage: supervised, task: glue/mrpc, max_length: 4096}"),
    ],
)
def test_what_fits_is_allowed(folders, model_types, stage):
    assert {each: mistakes(folders[each], stage) for each in model_types} == dict.fromkeys(model_types, "")


def test_an_encoder_made_causal_is_a_decoder(changed):
    causal = changed("bert", is_decoder=True)
    assert [mistakes(causal, stage) for stage in (pretrain("causal_lm"), PPO, GRPO)] == ["", "", ""]
    assert mistakes(changed("bert", architectures=["BertLMHeadModel"]), DPO) == ""


def test_an_encoder_decoder_that_was_pretrained_as_a_decoder_is_one(folders):
    assert mistakes(folders["bart"], pretrain("causal_lm"), GRPO) == ""
    assert "TRL trains for decoders alone" in mistakes(folders["bart"], pretrain("span_corruption"), GRPO)


def test_words_that_a_config_leaves_out_are_in_no_ones_way(changed):
    assert mistakes(changed("t5", is_encoder_decoder=None, architectures=None), DPO) == ""
    assert mistakes(changed("bert", max_position_embeddings=None), pretrain("masked_lm", "block_size: 64")) == ""
    assert mistakes(changed("gpt2", model_type="unheard-of"), DPO, CLASSES) == ""


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., Path]:
    """`adapter(base)`: a folder with the settings of an adapter whose base has that name or path."""

    def make(base: object, name: str = "adapter") -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        return tmp_path / name

    return make


def test_an_adapter_is_checked_by_the_config_of_its_base(folders, adapter):
    named = adapter(str(folders["bert"]))
    on_another = adapter(str(named), "on another")
    published = adapter("/gone", "published")
    shutil.copytree(folders["bert"], published / "base")
    for place in (named, on_another, published):
        assert "needs a model that writes" in mistakes(place, PAIRS)
        assert "max_position_embeddings 48" in mistakes(place, pretrain("masked_lm", "block_size: 64"))
        assert mistakes(place, CLASSES) == ""


def test_an_adapter_whose_base_is_lost_is_refused(adapter, tmp_path):
    (tmp_path / "empty").mkdir()
    for number, (base, sentence) in enumerate(
        {
            "/no/such/base": "its base '/no/such/base' is neither a folder nor a Hub name",
            str(tmp_path / "empty"): "empty' holds no config.json",
            str(tmp_path / "adapter 2"): "it is its own base",
            None: "its adapter_config.json names no base_model_name_or_path",
        }.items()
    ):
        said = mistakes(adapter(base, f"adapter {number}"), CLASSES)
        assert "model.checkpoint: " in said
        assert sentence in said
        assert "put the base into" in said
    (tmp_path / "adapter 0" / "adapter_config.json").write_text("{")
    assert "holds an adapter that cannot be opened" in mistakes(tmp_path / "adapter 0", CLASSES)


def test_nobody_can_tell_of_a_hub_name_an_adapter_on_one_and_a_folder_without_a_readable_config(
    changed, adapter, tmp_path
):
    on_the_hub, empty = adapter("google-bert/bert-base-uncased"), tmp_path / "empty"
    empty.mkdir()
    unread = [changed("bert", model_type=None), changed("bert", model_type=["bert"]), changed("bert")]
    (unread[-1] / "config.json").write_text("[" * 100_000)
    for checkpoint in (on_the_hub, empty, "google-bert/bert-base-uncased", *unread):
        assert mistakes(checkpoint, PPO, pretrain("causal_lm"), PAIRS) == "", checkpoint


def test_a_hub_name_is_not_looked_for_in_the_working_folder(folders, tmp_path, monkeypatch):
    shutil.copytree(folders["bert"], tmp_path / "some" / "bert")
    monkeypatch.chdir(tmp_path)
    text = f"name: x\nmodel: {{checkpoint: some/bert}}\nstages:\n  - {PPO}\n"
    (tmp_path / "elsewhere").mkdir()
    assert loads(text, folder=tmp_path / "elsewhere").model.words() is None


def test_code_that_lies_beside_a_model_may_do_more_than_transformers(changed):
    coded = changed("bert", auto_map={"AutoModelForSeq2SeqLM": "modeling.Odd"})
    assert mistakes(coded, PAIRS, more=", trust_remote_code: true") == ""
    assert "needs a model that writes" in mistakes(coded, PAIRS)


@pytest.mark.parametrize(
    ("words", "stage", "sentence"),
    [
        ({"model_type": "finery-rnn", "stack": "decoder"}, pretrain("causal_lm"), ""),
        ({"model_type": "finery-rnn", "stack": "decoder"}, PAIRS, "needs a model that writes (seq2seq_lm)"),
        ({"model_type": "finery-rnn", "stack": "decoder"}, f"{CLASSES[:-1]}, tuner: lora}}", "changes the layers of"),
        ({"model_type": "finery-rnn"}, PAIRS, ""),
        ({"model_type": "finery-cnn"}, PAIRS, ""),
        ({"model_type": "finery-cnn"}, pretrain("causal_lm"), "family cnn has an encoder"),
    ],
)
def test_our_families_that_are_no_transformers_are_checked_too(tmp_path, words, stage, sentence):
    (tmp_path / "config.json").write_text(json.dumps(words))
    said = mistakes(tmp_path, stage)
    assert sentence in said
    assert bool(sentence) == bool(said)
