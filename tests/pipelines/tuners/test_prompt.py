"""Prompt tuning: what the prompt begins with, and what it is."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from pipelines.core.errors import ModelError
from pipelines.tuners.prompt import Prompt
from tests import tiny


def prompt_of(tuner: Prompt, model: object) -> torch.Tensor:
    return tuner.apply(model).prompt_encoder["default"].embedding.weight.detach()


def test_a_prompt_of_known_words_is_those_words() -> None:
    """A prompt that says "good film" hears what the model hears in the ids of "good film" before the text."""
    model = tiny.build("gpt2", tiny.THREE)
    untouched = copy.deepcopy(model).eval()
    model.finery_tokenizer = tiny.tokenizer()
    tuned = Prompt(init="text", init_text="good film", num_virtual_tokens=2).apply(model)
    said = tiny.tokenizer()("good film", add_special_tokens=False)["input_ids"]
    assert len(said) == 2
    ids = tiny.batch(rows=1)["input_ids"]
    with torch.no_grad():
        expected = untouched(input_ids=torch.cat([torch.tensor([said]), ids], 1)).logits
    torch.testing.assert_close(tiny.logits(tuned, {"input_ids": ids}), expected)


def test_a_text_is_repeated_or_cut() -> None:
    model = tiny.build("bert", tiny.THREE)
    model.finery_tokenizer = tiny.tokenizer()
    good, film = tiny.tokenizer()("good film", add_special_tokens=False)["input_ids"]
    words = model.get_input_embeddings().weight.detach().clone()
    assert torch.equal(
        prompt_of(Prompt(init="text", init_text="good film", num_virtual_tokens=3), model), words[[good, film, good]]
    )
    other = tiny.build("bert", tiny.THREE)
    other.finery_tokenizer = tiny.tokenizer()
    assert torch.equal(
        prompt_of(Prompt(init="text", init_text="good film", num_virtual_tokens=1), other),
        other.get_input_embeddings().weight[[good]],
    )


def test_the_tokenizer_beside_the_weights_serves_too(tmp_path: Path) -> None:
    model = tiny.build("bert", tiny.THREE)
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    model.name_or_path = str(tmp_path)
    assert prompt_of(Prompt(init="text", init_text="good film", num_virtual_tokens=2), model).shape == (2, 32)
    lost = tiny.build("bert", tiny.THREE)
    lost.name_or_path = str(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no tokenizer lies beside the model"):
        Prompt(init="text", init_text="good film").apply(lost)


def test_a_sampled_prompt_is_made_of_words_that_begin_end_and_fill_nothing() -> None:
    model = tiny.build("bert", tiny.THREE)
    words, config = model.get_input_embeddings().weight.detach().clone(), model.config
    torch.manual_seed(0)
    found = prompt_of(Prompt(init="sampled_vocabulary", num_virtual_tokens=400), model)
    rows = torch.cdist(found, words).argmin(1)
    assert torch.equal(found, words[rows])
    assert len(set(rows.tolist())) > 50
    assert not {config.pad_token_id, config.bos_token_id, config.eos_token_id} & set(rows.tolist())


def test_a_random_prompt_is_even_from_minus_a_half_to_a_half() -> None:
    """Section 3.2 of the paper; the mean of 6,400 such numbers lies within 4 * sqrt(1 / 12 / 6400) of 0, their variance is 1/12."""
    found = prompt_of(Prompt(init="random", num_virtual_tokens=200), tiny.build("bert", tiny.THREE))
    assert found.abs().max() <= 0.5
    assert abs(found.mean()) < 4 * (1 / 12 / 6400) ** 0.5
    assert abs(found.var() - 1 / 12) < 0.01


def test_a_plan_needs_no_words() -> None:
    with torch.device("meta"):
        model = tiny.build("bert", tiny.THREE)
    assert prompt_of(Prompt(init="text", init_text="good", num_virtual_tokens=2), model).shape == (2, 32)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"init": "text"}, "init is text, so say what the prompt begins with"),
        ({"init": "text", "init_text": "  "}, "init is text, so say what the prompt begins with"),
        ({"init_text": "good"}, "but init is sampled_vocabulary; write init: text"),
        ({"num_virtual_tokens": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_said(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Prompt(**given)
