"""GPT's input format: what stands where, that it stays with the tokenizer, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Tokenizer

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.data.tokenizers.bpe import ByteBPE
from pipelines.trainers import input_formats
from pipelines.trainers.input_formats import TOKENS
from tests import tiny

START, DELIMITER, EXTRACT = TOKENS


@pytest.fixture(scope="module")
def trained() -> Any:
    return ByteBPE().train(tiny.TEXTS, 300)


@pytest.fixture
def tokenizer(trained: Any) -> Any:
    return copy.deepcopy(trained)


@pytest.fixture
def like_gpt2(trained: Any) -> Any:
    """GPT-2's own class: no padding, and nothing around texts."""
    model = json.loads(trained.backend_tokenizer.to_str())["model"]
    vocabulary = {token: place for token, place in model["vocab"].items() if not token.startswith("[")}
    vocabulary = {token: number for number, token in enumerate([*vocabulary, "<|endoftext|>"])}
    return GPT2Tokenizer(
        vocab=vocabulary,
        merges=[tuple(each) if isinstance(each, list) else tuple(each.split(" ")) for each in model["merges"]],
    )


def said(tokenizer: Any, *texts: str, **words: Any) -> list[str]:
    tokens: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(*texts, **words)["input_ids"])
    return tokens


@pytest.mark.parametrize("kind", ["tokenizer", "like_gpt2"])
def test_the_tokens_stand_around_texts_and_stay_when_the_tokenizer_is_opened_again(
    kind: str, request: Any, tmp_path: Path
) -> None:
    own = request.getfixturevalue(kind)
    words = [own.tokenize(text) for text in ("the cat", "a dog runs")]
    input_formats.adopt(own)
    own.save_pretrained(tmp_path)
    for each in (own, AutoTokenizer.from_pretrained(tmp_path)):
        assert said(each, "the cat") == [START, *words[0], EXTRACT]
        assert said(each, "the cat", "a dog runs") == [START, *words[0], DELIMITER, *words[1], EXTRACT]
        assert each.decode(each("the cat")["input_ids"], skip_special_tokens=True) == "the cat"
        assert each.pad_token is not None


def test_a_pair_that_is_cut_keeps_all_three_tokens(tokenizer: Any) -> None:
    input_formats.adopt(tokenizer)
    found = said(tokenizer, "the cat sleeps and runs", "a dog saw it", truncation=True, max_length=9)
    assert len(found) == 9
    assert [token for token in found if token in TOKENS] == [START, DELIMITER, EXTRACT]
    assert (found[0], found[-1]) == (START, EXTRACT)


def test_tokens_that_are_there_are_not_added_again(trained: Any) -> None:
    own = ByteBPE().train(tiny.TEXTS, 300, extra=TOKENS)
    input_formats.adopt(own)
    assert len(own) == 300
    assert len(trained) == 300  # the same vocabulary without them


def test_new_tokens_get_embeddings_of_their_own_by_the_seed(tokenizer: Any) -> None:
    drawn = []
    for seed in (1, 1, 2):
        model = tiny.build("gpt2", tiny.TWO, vocab_size=len(tokenizer))
        before = model.get_input_embeddings().weight.detach().clone()
        input_formats.prepare(model, own := copy.deepcopy(tokenizer), "gpt", seed)
        after = model.get_input_embeddings().weight
        assert after.shape[0] == model.config.vocab_size == len(own) == len(before) + 3
        assert torch.equal(after[:-3], before)
        drawn.append(after[-3:].detach().clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert 0.5 < drawn[0].std() / 0.02 < 1.5
    model(**own("a cat", "a dog", return_tensors="pt")).logits.sum().backward()
    assert all(model.get_input_embeddings().weight.grad[own.convert_tokens_to_ids(token)].any() for token in TOKENS)


def test_rows_that_no_token_has_are_taken_first(tokenizer: Any) -> None:
    model = tiny.build("gpt2", tiny.TWO, vocab_size=len(tokenizer) + 8)
    input_formats.prepare(model, tokenizer, "gpt", 1)
    assert model.get_input_embeddings().weight.shape[0] == 308


def test_a_model_without_padding_is_told_what_fills_a_batch(like_gpt2: Any) -> None:
    model = tiny.build("gpt2", tiny.TWO, vocab_size=len(like_gpt2) + 120)
    model.config.pad_token_id = None
    input_formats.prepare(model, like_gpt2, "gpt", 1)
    batch = like_gpt2(["the cat", "a dog runs on"], padding=True, return_tensors="pt")
    alone = [model.eval()(**like_gpt2(text, return_tensors="pt")).logits[0] for text in ("the cat", "a dog runs on")]
    torch.testing.assert_close(model(**batch).logits, torch.stack(alone))


def test_a_tokenizer_that_forgets_the_format_is_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = copy.deepcopy(tokenizer)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda place, **_: forgetful)
    with pytest.raises(ModelError, match="loses the input format when it is opened again"):
        input_formats.adopt(tokenizer)


def test_both_orders_are_of_the_stage_that_asks_for_them(tokenizer: Any) -> None:
    model = tiny.build("finery", tiny.TWO, family="decoder", vocab_size=320)
    input_formats.prepare(model, tokenizer, "gpt_both_orders", 1)
    assert model.config.both_orders == tokenizer.convert_tokens_to_ids(list(TOKENS))
    input_formats.prepare(model, tokenizer, None, 1)
    assert not model.config.both_orders


@pytest.mark.parametrize(("model_type", "wanted"), [("bert", "gpt"), ("gpt2", "gpt_both_orders"), ("t5", "gpt")])
def test_a_checkpoint_that_cannot_read_the_format_is_refused(model_type: str, wanted: Any, tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="input_format"):
        input_formats.prepare(tiny.build(model_type, tiny.TWO, vocab_size=320), tokenizer, wanted, 1)


RECIPE = "name: x\nmodel: {architecture: {%s}}\nstages:\n  - {stage: supervised, %s}\n"


@pytest.mark.parametrize(
    ("model", "keys", "sentence"),
    [
        ("family: decoder", "task: glue/rte, input_format: gpt", None),
        ("family: decoder", "task: glue/stsb, input_format: gpt_both_orders", None),
        ("family: decoder", "task: race/middle, input_format: gpt", None),
        ("model_type: gpt2", "task: glue/cola, input_format: gpt, auxiliary_lm: 0.5", None),
        ("family: encoder", "task: glue/rte, input_format: gpt", "sees only what comes before"),
        ("model_type: t5", "task: glue/rte, input_format: gpt", "needs a decoder, which t5 is not"),
        (
            "model_type: gpt2",
            "task: glue/mrpc, input_format: gpt_both_orders",
            "transformers' own class for gpt2 cannot read",
        ),
        ("family: decoder", "task: glue/sst2, input_format: gpt_both_orders", "pairs of texts without an order"),
        ("family: decoder", "task: race/middle, input_format: gpt_both_orders", "pairs of texts without an order"),
        (
            "family: decoder",
            "task: glue/rte, input_format: gpt, tuner: lora",
            "tuner lora freezes them; use the tuner full",
        ),
        ("family: decoder", "task: squad, input_format: gpt", "this task's kind is qa"),
        ("family: decoder", "task: glue/rte, input_format: gtp", "gtp"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_loads(model: str, keys: str, sentence: str | None) -> None:
    text = RECIPE % (model, keys)
    if sentence is None:
        assert loads(text).stages[0].special_tokens() == TOKENS
        return
    with pytest.raises(RecipeError, match="input_format") as error:
        loads(text)
    assert sentence in str(error.value)
