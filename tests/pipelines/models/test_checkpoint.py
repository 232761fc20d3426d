"""A model is found under every name a user may give it, or the sentence says where models lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipelines.core.errors import CommandError, ModelError
from pipelines.core.files import RECORD
from pipelines.core.interfaces import Head
from pipelines.models.checkpoint import Checkpoint, config_of, find, open_checkpoint, positions_of, text_ids
from pipelines.models.heads import family_of
from tests import tiny, writers


def make(folder: Path, complete: bool = True, tokenizer: bool = True) -> Path:
    """A stage's folder with the names of a model in it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    if tokenizer:
        (folder / "model" / "tokenizer.json").write_text("{}")
    if complete:
        (folder / RECORD).write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs/short`: two stages with models, an evaluation, and a third that was cut off; all of them links."""
    monkeypatch.chdir(tmp_path)
    store, folder = tmp_path / "home", tmp_path / "runs" / "short"
    (folder / "stages").mkdir(parents=True)
    make(store / "a"), make(store / "b"), make(store / "d.partial", complete=False)
    (store / "c").mkdir()
    (store / "c" / RECORD).write_text("{}")
    for name, target in (("01-pretrain", "a"), ("02-mrpc", "b"), ("03-evaluate", "c"), ("04-more", "d.partial")):
        (folder / "stages" / name).symlink_to(store / target)
    return folder


def test_a_runs_model_is_that_of_its_last_complete_stage_with_one(run: Path) -> None:
    assert find("runs/short").source == "runs/short/stages/02-mrpc/model"


def test_a_stage_and_the_models_own_folder_name_themselves(run: Path) -> None:
    assert find("runs/short/stages/01-pretrain").source == "runs/short/stages/01-pretrain/model"
    assert find("runs/short/stages/01-pretrain/model").source == "runs/short/stages/01-pretrain/model"
    assert find(str(run.absolute())).source == str(run / "stages/02-mrpc/model")


@pytest.mark.parametrize("given", ["runs/short", "runs/short/stages/02-mrpc"])
def test_a_stage_without_a_tokenizer_has_its_runs(run: Path, given: str) -> None:
    (run / "stages" / "02-mrpc" / "model" / "tokenizer.json").unlink()
    (run / "tokenizer" / "model").mkdir(parents=True)
    (run / "tokenizer" / "model" / "tokenizer.json").write_text("{}")
    assert find(given).tokenizer == "runs/short/tokenizer/model"


@pytest.mark.parametrize("given", ["gpt2", "google-bert/bert-base-uncased", "owner/name_v1.2"])
def test_what_is_no_folder_may_lie_on_the_hub(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(given) == Checkpoint(given, given, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "name is empty"),
        (" ", "name is empty"),
        ("runs/none", "there is no folder 'runs/none'"),
        ("./none", "no folder './none'"),
        ("/none/at/all", "no folder '/none/at/all'"),
        ("a/b/c", "no folder 'a/b/c'"),
        ("what is this", "no folder"),
        ("registry/none", "no folder 'registry/none'"),
        ("file.txt", "'file.txt' is a file"),
        ("short", "the run of that name is 'runs/short'"),
        ("runs/short/stages/03-evaluate", "left no model"),
        ("runs/study", "is a study of several runs"),
        ("runs/empty", "no complete stage"),
        ("runs", "holds no checkpoint"),
    ],
)
def test_where_there_is_no_model_the_sentence_says_what_to_give(run: Path, given: str, expected: str) -> None:
    Path("file.txt").write_text("x")
    Path("runs/study/cells").mkdir(parents=True)
    Path("runs/empty/stages").mkdir(parents=True)
    with pytest.raises(CommandError, match=expected):
        find(given)


@pytest.mark.parametrize(
    ("kind", "family"),
    [("bert", "encoder"), ("bert-classifier", "encoder"), ("gpt2", "decoder"), ("t5", "encoder-decoder")],
)
def test_the_family_is_read_off_the_config(kind: str, family: str) -> None:
    assert family_of(config_of(find(str(writers.folder(kind))))) == family


@pytest.mark.parametrize(
    ("words", "family"),
    [
        ({"model_type": "bert", "is_decoder": True}, "decoder"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "decoder"),
        ({"model_type": "llama"}, "decoder"),
        ({"model_type": "xlnet"}, "decoder"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"model_type": "electra", "architectures": ["ElectraForPreTraining"]}, "encoder"),
        ({"model_type": "modernbert"}, "encoder"),
    ],
)
def test_families_that_transformers_opens_in_several_ways(words: dict[str, object], family: str) -> None:
    from transformers import AutoConfig

    rest = dict(words)
    assert family_of(AutoConfig.for_model(rest.pop("model_type"), **rest)) == family


def test_an_unreadable_config_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{no json")
    with pytest.raises(ModelError, match="has no readable config") as caught:
        config_of(find(str(tmp_path)))
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="there is no folder 'nobody/nothing', and the Hub gives no such model"):
        config_of(Checkpoint("nobody/nothing", "nobody/nothing", "nobody/nothing"))


@pytest.mark.parametrize("published", [True, False])
def test_an_adapter_opens_merged_into_the_base_beside_it(tmp_path: Path, published: bool) -> None:
    from peft import LoraConfig, get_peft_model

    base = writers.model("gpt2")
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    tiny.disturb(adapted, by=0.3)
    inputs = tiny.batch(rows=1)
    expected = tiny.logits(adapted, inputs)
    place = tmp_path / "model"
    adapted.save_pretrained(str(place))
    named = json.loads((place / "adapter_config.json").read_text()) | {"base_model_name_or_path": "base"}
    (place / "adapter_config.json").write_text(json.dumps(named))
    (place / "head.json").write_text(json.dumps({"kind": "causal_lm", "labels": []}))
    writers.saved(adapted.unload(), place / "base" if published else tmp_path / "base")
    found = find(str(place if published else tmp_path))
    assert (found.adapter_base is not None) == published
    assert family_of(config_of(found)) == "decoder"
    opened = open_checkpoint(found, Head("causal_lm"), trained_head=True)
    assert not opened.training
    torch.testing.assert_close(tiny.logits(opened.cpu(), inputs), expected, atol=1e-5, rtol=1e-5)


def test_what_is_to_be_continued_has_nothing_around_it() -> None:
    tokenizer = writers.tokenizer()
    assert tokenizer.convert_ids_to_tokens(text_ids(tokenizer, "the cat", stays_open=False)) == [
        "[CLS]",
        "the",
        "cat",
        "[SEP]",
    ]
    assert tokenizer.convert_ids_to_tokens(text_ids(tokenizer, "the cat", stays_open=True)) == ["the", "cat"]
    assert text_ids(tokenizer, "", stays_open=True) == []


def test_a_tokenizer_that_only_opens_texts_keeps_its_opening() -> None:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    inner = type(writers.tokenizer().backend_tokenizer).from_str(writers.tokenizer().backend_tokenizer.to_str())
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $0", special_tokens=[("[CLS]", inner.token_to_id("[CLS]"))]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="[CLS]", eos_token="[SEP]")
    assert tokenizer.convert_ids_to_tokens(text_ids(tokenizer, "the cat", stays_open=True)) == ["[CLS]", "the", "cat"]


def test_positions_end_where_the_model_or_its_tokenizer_ends() -> None:
    tokenizer = writers.tokenizer()
    assert positions_of(writers.model("gpt2"), tokenizer) == 40
    assert positions_of(writers.model("t5"), tokenizer) is None
    assert positions_of(writers.finery("causal_lm", position="alibi"), tokenizer) is None
    assert positions_of(writers.finery("causal_lm", position="rotary"), tokenizer) == 40
    roberta = tiny.build("roberta", tiny.MASKED)  # its places begin after the padding's
    assert positions_of(roberta, tokenizer) == 48 - roberta.config.pad_token_id - 1


def test_the_heads_are_kinds_that_models_can_be_opened_with() -> None:
    from pipelines.models.heads import FAMILY_HEADS, HEAD_CLASSES

    assert {head.kind for head in FAMILY_HEADS.values()} <= set(HEAD_CLASSES)
