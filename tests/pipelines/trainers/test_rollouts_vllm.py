"""vLLM as the writer, with a stand-in for its engine: what it is given, and what is made of what it says."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.models import sampling
from pipelines.models.sampling import VLLMSampler, seeds, unfit
from tests import tiny


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
