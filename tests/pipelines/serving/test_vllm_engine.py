"""Which models vLLM serves, what it is told and what it writes: against a stand-in, and a real vLLM where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

from pipelines.serving import vllm_engine
from pipelines.serving.sequences import Echo, SamplingSettings, WrittenSequence
from pipelines.serving.vllm_engine import VllmEngine, sampling, unfit
from tests import writers
from tests.byte_pairs import byte_pairs
from tests.pipelines.serving.real_vllm import LIMIT, PROMPT, SCHEMA

END = 3


class StandIn:
    """vLLM's engine, whose every text is the tokens 7, 8, 9, … one a step."""

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: dict[str, Any], settings: Any) -> None:
        if getattr(settings, "structured_outputs", SimpleNamespace(json="")).json == "[":
            raise ValueError("no schema")
        self.open[name] = SimpleNamespace(prompt=prompt, settings=settings, tokens=[])

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.open.pop(name, None)

    def step(self) -> list[Any]:
        told = []
        for name, each in list(self.open.items()):
            if each.prompt["prompt_token_ids"] == [1]:
                raise RuntimeError("out of\nmemory")
            each.tokens.append(7 + len(each.tokens))
            finished = len(each.tokens) >= each.settings.max_tokens
            chances = [
                {token: SimpleNamespace(logprob=-0.5), 5: SimpleNamespace(logprob=-2.0)} for token in each.tokens
            ]
            outputs = [SimpleNamespace(token_ids=tuple(each.tokens), logprobs=chances)]
            prompt = each.prompt["prompt_token_ids"]
            read = [None, *({token: SimpleNamespace(logprob=-1.5)} for token in prompt[1:])]
            read = read if hasattr(each.settings, "prompt_logprobs") else None
            told.append(SimpleNamespace(request_id=name, outputs=outputs, finished=finished, prompt_logprobs=read))
            if finished:
                del self.open[name]
        return told


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("vllm")
    module.engine = StandIn()
    module.EngineArgs = lambda **words: words
    module.LLMEngine = SimpleNamespace(from_engine_args=lambda words: module.engine)
    module.SamplingParams = lambda **words: SimpleNamespace(**words)
    module.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: ["LlamaForCausalLM", "GPT2LMHeadModel"])
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_unspecified=lambda: False, is_cpu=lambda: False)
    settings: Any = ModuleType("vllm.sampling_params")
    settings.StructuredOutputsParams = lambda **words: SimpleNamespace(**words)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", settings)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: object())
    return module


def test_it_is_taken_where_it_is_there_and_knows_the_model(
    vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(**config: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return unfit(tmp_path)

    assert why(architectures=["LlamaForCausalLM"]) == ""
    assert why(architectures=["FineryForCausalLM"]) == "vLLM does not know FineryForCausalLM"
    assert why(architectures=["T5"], is_encoder_decoder=True) == "it is an encoder-decoder"
    (tmp_path / "adapter_config.json").touch()
    assert unfit(tmp_path) == "it is an adapter beside its base"
    (tmp_path / "adapter_config.json").unlink()
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "is_unspecified", lambda: True)
    assert (
        why(architectures=["LlamaForCausalLM"])
        == "the vLLM that is installed is made for other devices than this machine has"
    )
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    assert unfit(tmp_path) == "vLLM is not installed"


class Text(WrittenSequence):
    """A text that notes what it tells."""

    def __init__(
        self,
        choice: SamplingSettings,
        limit: int,
        prompt: tuple[int, ...] = (5, 6),
        draw: int = 0,
        echo: Echo | None = None,
    ) -> None:
        self.told: list[dict[str, Any]] = []
        self.over = threading.Event()
        super().__init__(writers.tokenizer(), prompt, choice, limit, [END], self._note, draw, echo=echo)

    def _note(self, told: dict[str, Any]) -> None:
        self.told.append(told)
        if "reason" in told:
            self.over.set()


def test_settings_of_a_text_become_sampling_parameters() -> None:
    choice = SamplingSettings(
        0.7, 0.9, seed=11, logprobs=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={4: -1}
    )
    assert sampling(Text(choice, 12, draw=1), [END]) == {
        "n": 1, "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.25, "max_tokens": 12,
        "stop_token_ids": [END], "ignore_eos": True, "detokenize": False, "seed": 11 * 1_000_003 + 1,
        "logit_bias": {4: -1.0}, "logprobs": 2,
    }  # fmt: skip
    assert sampling(Text(SamplingSettings(top_k=5), 3), [END])["top_k"] == 5
    echoing = sampling(Text(SamplingSettings(temperature=0, top_k=5, logprobs=1), 0, echo=Echo("a", (0, 0))), [END])
    assert (echoing["prompt_logprobs"], echoing["max_tokens"], "top_k" in echoing) == (1, 1, False)
    greedy = sampling(Text(SamplingSettings(temperature=0, top_p=0.5), 3), [END])
    assert (greedy["temperature"], greedy["top_p"]) == (0, 1.0)
    assert not {"seed", "logprobs", "logit_bias"} & greedy.keys()


def test_texts_end_where_they_should_and_are_taken_back_from_vllm(vllm: Any) -> None:
    problems: list[str] = []
    engine = VllmEngine("folder", writers.tokenizer(), [END], 40, problems.append)
    whole = Text(SamplingSettings(temperature=0, logprobs=1), 4)
    stop = writers.tokenizer().decode([8])
    stopped = Text(SamplingSettings(temperature=0, stop=(stop,)), 30)
    endless = Text(SamplingSettings(temperature=0), 10**9)
    for each in (whole, stopped, endless):
        engine.submit(each)
    assert whole.over.wait(10)
    assert stopped.over.wait(10)
    assert (whole.tokens, whole.reason) == ([7, 8, 9, 10], "length")
    records = [token for each in whole.told for token in each.get("tokens", [])]
    assert [each["logprob"] for each in records] == [-0.5] * 4
    assert (stopped.tokens, stopped.reason) == ([7, 8], "stop")
    endless.cancelled = True
    assert endless.over.wait(10)
    assert endless.reason == "cancelled"
    assert set(vllm.engine.aborted) == {"2", "3"}
    assert problems == []

    echo = Echo("a b", (0, 2))
    for limit in (0, 2):
        engine.submit(echoing := Text(SamplingSettings(temperature=0, logprobs=1), limit, echo=echo))
        assert echoing.over.wait(10)
        assert (echoing.told[0]["text"], len(echoing.tokens), echoing.reason) == ("a b", limit, "length")
        assert [each["logprob"] for each in echoing.told[0]["tokens"]] == [None, -1.5]

    engine.submit(refused := Text(SamplingSettings(json_schema="["), 3))
    engine.submit(held := Text(SamplingSettings(json_schema="{}"), 3))
    assert refused.over.wait(10)
    assert held.over.wait(10)
    assert (refused.reason, held.reason) == ("error", "length"), "a text that vLLM refuses ends alone"

    engine.submit(broken := Text(SamplingSettings(temperature=0), 3, prompt=(1,)))
    assert broken.over.wait(10)
    assert (broken.reason, problems) == ("error", ["out of memory"])


@pytest.mark.long
@pytest.mark.skipif("FINERY_VLLM_BIN" not in os.environ, reason="FINERY_VLLM_BIN names no environment with vLLM")
def test_a_real_vllm_writes_what_transformers_writes(tmp_path: Path) -> None:
    """Of a Llama: greedy tokens and log-probabilities, the prompt's too; the same text again for the same seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_pairs()
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": len(tokenizer), "max_position_embeddings": 128, "num_key_value_heads": 1}
    shape |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**shape, **ends)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    command = [f"{os.environ['FINERY_VLLM_BIN']}/python", "-m", "tests.pipelines.serving.real_vllm", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["unfit"], said["problems"]) == ("", [])
    with torch.no_grad():
        written = model.generate(torch.tensor([PROMPT]), max_new_tokens=LIMIT, do_sample=False)[0].tolist()
        chances = model(torch.tensor([written])).logits[0].log_softmax(-1)
    named = [chances[place - 1, written[place]].item() for place in range(1, len(written))]
    asked, told = len(PROMPT), said["greedy"]
    assert (told["tokens"], told["reason"]) == (written[asked:], "length")
    assert told["logprobs"] == pytest.approx(named[asked - 1 :], abs=1e-4)
    assert said["echo"]["logprobs"] == [None, *(pytest.approx(each, abs=1e-4) for each in named[: asked - 1])]
    assert (said["echo"]["tokens"], said["echo"]["reason"]) == ([], "length")
    assert said["stopped"]["reason"] == "stop"
    assert said["stopped"]["tokens"] == told["tokens"][: len(said["stopped"]["tokens"])]
    one, again, other = (each["tokens"] for each in said["seeds"])
    assert one == again != other
    assert said["cancelled"] == "cancelled"
    for text in said["json"]:
        jsonschema.validate(json.loads(text), json.loads(SCHEMA))
