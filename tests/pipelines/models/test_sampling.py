"""Sampling: each completion a function of its prompt and its number, from the distribution it says, ended where it ends.

vLLM as the writer, with a stand-in for its engine: what it is given, and what is made of what it says.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError, IncompatibleError, ModelError
from pipelines.core.interfaces import Head
from pipelines.data.randomness import uniforms
from pipelines.models import sampling
from pipelines.models.checkpoint import start_token
from pipelines.models.sampling import (
    SAMPLING,
    VLLMSampler,
    complete,
    inverted,
    restricted,
    seeds,
    texts_behind,
    unfit,
    until_the_end,
)
from tests import tiny

PROMPTS = [[5 + (row * 7 + place) % 60 for place in range(2 + row % 5)] for row in range(10)]
WRITERS: dict[str, tuple[str, Head, dict[str, Any]]] = {
    "our decoder": ("finery", Head("causal_lm"), {"family": "decoder"}),
    "gpt2": ("gpt2", Head("causal_lm"), {}),
    "llama": ("llama", Head("causal_lm"), {}),
    "our encoder-decoder": ("finery", Head("seq2seq_lm"), {"family": "encoder-decoder"}),
    "t5": ("t5", Head("seq2seq_lm"), {}),
    "bart": ("bart", Head("seq2seq_lm"), {}),
}


def writer(name: str) -> Any:
    model_type, head, words = WRITERS[name]
    return tiny.build(model_type, head, **words)


@pytest.mark.parametrize("name", WRITERS)
def test_a_completion_depends_on_nothing_but_its_prompt_and_its_number(name: str):
    model, tokenizer = writer(name), tiny.tokenizer()
    together = complete(model, tokenizer, PROMPTS, seed=1, max_new_tokens=6)
    apart = complete(model, tokenizer, PROMPTS[::-1], seed=1, max_new_tokens=6, batch_size=3, draws=range(9, -1, -1))
    assert together.texts == apart.texts[::-1]
    assert [together.tokens(row) for row in range(10)] == [apart.tokens(9 - row) for row in range(10)]
    assert together.texts != complete(model, tokenizer, PROMPTS, seed=2, max_new_tokens=6).texts
    assert together.texts != complete(model, tokenizer, PROMPTS, seed=1, max_new_tokens=6, draws=range(10, 20)).texts
    assert model.training  # as it was


@pytest.mark.parametrize("name", WRITERS)
def test_a_token_is_chosen_by_inverting_the_models_own_distribution(name: str):
    """Token by token without a cache, from the plain forward pass and the numbers of each place."""
    model, tokenizer = writer(name).eval(), tiny.tokenizer()
    found = complete(model, tokenizer, PROMPTS[:3], seed=4, max_new_tokens=5, temperature=0.7)
    both = model.config.is_encoder_decoder
    start = start_token(model, tokenizer) if both else None
    for row, prompt in enumerate(PROMPTS[:3]):
        chances = uniforms(4, SAMPLING, [row], 5)[0]
        written: list[int] = []
        for place in range(len(found.tokens(row))):
            with torch.no_grad():
                if both:
                    logits = model(
                        input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *written]])
                    ).logits
                else:
                    logits = model(input_ids=torch.tensor([[*prompt, *written]])).logits
            summed = np.cumsum((logits[0, -1].double() / 0.7).softmax(-1).numpy())
            written.append(int(np.searchsorted(summed, chances[place] * summed[-1], side="right")))
        assert found.tokens(row) == written


def test_the_checkpoints_own_generation_settings_change_nothing():
    model, tokenizer = writer("gpt2"), tiny.tokenizer()
    plain = complete(model, tokenizer, PROMPTS, seed=1, max_new_tokens=6)
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.temperature = 0.1
    own = model.generation_config
    assert complete(model, tokenizer, PROMPTS, seed=1, max_new_tokens=6).texts == plain.texts
    assert model.generation_config is own


def test_without_temperature_the_likeliest_token_is_taken():
    model, tokenizer = writer("llama").eval(), tiny.tokenizer()
    found = complete(model, tokenizer, PROMPTS[:2], seed=1, max_new_tokens=3, temperature=0)
    for row in range(2):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([PROMPTS[row]])).logits
        assert found.tokens(row)[0] == int(logits[0, -1].argmax())


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-10])
def test_at_a_temperature_next_to_none_the_likeliest_token_is_taken(temperature: float):
    model, tokenizer = writer("llama").eval(), tiny.tokenizer()
    found, greedy = (
        complete(model, tokenizer, PROMPTS[:2], seed=1, max_new_tokens=3, temperature=each) for each in (temperature, 0)
    )
    assert torch.equal(found.ids, greedy.ids)


def test_samples_are_as_frequent_as_they_are_likely():
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]])
    chances = torch.from_numpy(uniforms(3, SAMPLING, range(4000), 1))[:, 0]
    drawn = inverted(logits.expand(4000, -1), chances)[:, 0]
    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, logits.softmax(-1)[0], atol=0.02, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    row=st.lists(st.floats(-4, 4, allow_nan=False), min_size=2, max_size=8),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(0, 9),
    chance=st.floats(0, 0.999999),
)
def test_nothing_is_drawn_from_outside(row: list[float], top_p: float, top_k: int, chance: float):
    logits = torch.tensor([row])
    kept = restricted(logits, top_p, top_k)
    alive = torch.isfinite(kept)[0]
    assert alive.any()
    assert torch.equal(kept[0][alive], logits[0][alive])
    if top_k:
        assert int(alive.sum()) <= max(top_k, int((logits[0] >= logits[0].topk(min(top_k, len(row))).values[-1]).sum()))
    chosen = int(inverted(kept, torch.tensor([chance], dtype=torch.float64)))
    assert bool(alive[chosen])


def test_the_nucleus_by_hand():
    """Probabilities 0.5, 0.3, 0.2: 0.5 alone does not hold 0.6, the first two do."""
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    assert torch.isfinite(restricted(logits, 0.6, 0)).tolist() == [[True, False, True]]
    assert torch.isfinite(restricted(logits, 0.5, 0)).tolist() == [[True, False, False]]
    assert torch.isfinite(restricted(logits, 1.0, 1)).tolist() == [[True, False, False]]


def test_a_text_ends_with_its_first_end_token():
    mask, ended = until_the_end(torch.tensor([[4, 2, 2, 0], [4, 5, 6, 7], [3, 9, 9, 9]]), ends=[2, 3])
    assert mask.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert ended.tolist() == [True, False, True]


def test_what_stands_behind_the_end_is_padding():
    model, tokenizer = writer("our decoder"), tiny.tokenizer()
    found = complete(model, tokenizer, PROMPTS * 4, seed=1, max_new_tokens=8, draws=range(40))
    assert found.ended.any()
    assert not found.ended.all()
    assert (found.ids[~found.mask] == tokenizer.pad_token_id).all()
    for row in range(40):
        own = found.tokens(row)
        assert len(own) == 8 or found.ended[row]
        assert bool(found.ended[row]) == (own[-1] == tokenizer.sep_token_id)
        assert tokenizer.sep_token_id not in own[:-1]
    assert found.lengths.tolist() == [len(found.tokens(row)) for row in range(40)]


def test_a_lora_policy_is_asked_with_its_adapter():
    from pipelines.tuners.lora import LoRA

    model = LoRA(name="lora", r=2).apply(writer("gpt2"))
    before = complete(model, tiny.tokenizer(), PROMPTS, seed=1, max_new_tokens=6)
    tiny.disturb(model, by=2.0)
    assert complete(model, tiny.tokenizer(), PROMPTS, seed=1, max_new_tokens=6).texts != before.texts
    with model.disable_adapter():
        assert complete(model, tiny.tokenizer(), PROMPTS, seed=1, max_new_tokens=6).texts == before.texts


def test_a_completion_reads_on_from_its_prompt():
    tokenizer = tiny.tokenizer()
    prompt, completion = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the film", "was good"))
    assert texts_behind(tokenizer, [prompt], [[*completion, tokenizer.sep_token_id]]) == [" was good"]
    assert texts_behind(tokenizer, None, [completion]) == ["was good"]
    piece = next(token for token in range(len(tokenizer)) if tokenizer.convert_ids_to_tokens(token).startswith("##"))
    (text,) = texts_behind(tokenizer, [prompt], [[piece]])
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, piece])
    assert "##" not in text


def test_what_cannot_be_completed_is_refused():
    model, tokenizer = writer("gpt2"), tiny.tokenizer()
    with pytest.raises(DataError, match="prompt 2 of 2 has no tokens"):
        complete(model, tokenizer, [[5], []], seed=1, max_new_tokens=4)
    with pytest.raises(
        DataError, match=r"prompts of 3 tokens and completions of 46 do not fit into the model's 48 positions"
    ):
        complete(model, tokenizer, [[5, 6, 7]], seed=1, max_new_tokens=46)
    both = writer("our encoder-decoder")
    assert (
        len(complete(both, tokenizer, [[5, 6, 7]], seed=1, max_new_tokens=46)) == 1
    )  # prompt and completion are read apart
    with pytest.raises(ModelError, match="writes no text"):
        complete(tiny.build("bert", tiny.TWO), tokenizer, [[5]], seed=1, max_new_tokens=4)
    with pytest.raises(ModelError, match="mask-predict"):
        complete(
            tiny.build("finery", Head("seq2seq_lm"), family="encoder-decoder", bidirectional_decoder=True),
            tokenizer,
            [[5]],
            seed=1,
            max_new_tokens=4,
        )
    with pytest.raises(ValueError, match="1 draws for 2 prompts"):
        complete(model, tokenizer, [[5], [6]], seed=1, max_new_tokens=4, draws=[1])


class Engine:
    """Writes three words and the end, or eight words; remembers what it was given."""

    def __init__(self, model: str, **words: Any) -> None:
        self.words = words
        self.folder = Path(model)
        self.weights: list[dict[str, torch.Tensor]] = []
        self.asked: list[Any] = []
        inner = types.SimpleNamespace(
            load_weights=lambda weights: self.weights.append({name: weight.clone() for name, weight in weights})
        )
        runner = types.SimpleNamespace(model=inner)
        self.llm_engine = types.SimpleNamespace(
            model_executor=types.SimpleNamespace(driver_worker=types.SimpleNamespace(model_runner=runner))
        )

    def reset_prefix_cache(self) -> None:
        """Nothing is kept."""

    def generate(self, prompts: list[Any], asked: list[Any], use_tqdm: bool) -> list[Any]:
        self.asked = asked
        end = asked[0].stop_token_ids[0]
        written = [[6, 7, 8, end] if row % 2 == 0 else [9] * 8 for row in range(len(prompts))]
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tuple(each))]) for each in written]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("vllm")
    stand_in.LLM = Engine
    stand_in.SamplingParams = lambda **words: types.SimpleNamespace(**words)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


def test_the_engine_writes_with_the_policy_as_it_is_now(vllm: None, tmp_path: Path):
    policy, tokenizer = tiny.build("gpt2", Head("causal_lm")), tiny.tokenizer()
    sampler = VLLMSampler(
        tokenizer, tmp_path / "vllm", seed=3, max_new_tokens=8, temperature=0.7, top_p=0.9, top_k=0, longest=4
    )
    found = sampler(policy, [[5, 6], [7, 8, 9, 10]], [4, 5])
    assert found.tokens(0) == [6, 7, 8, tokenizer.sep_token_id]
    assert found.tokens(1) == [9] * 8
    assert found.ended.tolist() == [True, False]
    assert found.mask.sum(1).tolist() == [4, 8]
    engine = sampler.engine
    assert engine.words["max_model_len"] == 12
    assert (engine.folder / "config.json").is_file()
    assert [each.seed for each in engine.asked] == seeds(3, [4, 5])
    assert (engine.asked[0].temperature, engine.asked[0].top_p, engine.asked[0].top_k) == (0.7, 0.9, -1)
    tiny.disturb(policy)
    sampler(policy, [[5, 6]], [6])
    assert sampler.engine is engine
    assert len(engine.weights) == 2
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(engine.weights[1][name], policy.get_parameter(name))
    assert not torch.equal(engine.weights[0][name], engine.weights[1][name])


def test_every_completion_has_a_seed_of_its_own():
    assert len(set(seeds(1, range(100)))) == 100
    assert seeds(1, [7]) == [seeds(1, range(10))[7]]
    assert seeds(1, [7]) != seeds(2, [7])


def test_policies_that_the_engine_cannot_be_given_are_refused(monkeypatch: pytest.MonkeyPatch):
    decoder = tiny.build("gpt2", Head("causal_lm"))
    monkeypatch.setattr(sampling.torch.cuda, "is_available", lambda: True)
    unfit(decoder, 1, adapts=False)
    with pytest.raises(IncompatibleError, match="adapter"):
        unfit(decoder, 1, adapts=True)
    with pytest.raises(IncompatibleError, match="one process"):
        unfit(decoder, 2, adapts=False)
    with pytest.raises(IncompatibleError, match="finery family"):
        unfit(tiny.build("finery", Head("causal_lm"), family="decoder"), 1, adapts=False)
    with pytest.raises(IncompatibleError, match="decoders only"):
        unfit(tiny.build("t5", Head("seq2seq_lm")), 1, adapts=False)
    monkeypatch.setattr(sampling.torch.cuda, "is_available", lambda: False)
    with pytest.raises(IncompatibleError, match="needs a GPU"):
        unfit(decoder, 1, adapts=False)
