"""Both engines write what `generate` writes, for texts of different lengths and settings at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from pipelines.models.sampling import ends_of
from pipelines.serving import engines
from pipelines.serving.engines import BatchedEngine, Engine, open_engine
from pipelines.serving.sequences import Echo, SamplingSettings, WrittenSequence
from tests import writers

PROMPTS = ("the cat saw", "a good book saw the cat a", "the")


class Written(WrittenSequence):
    """A text that can be waited for."""

    def __init__(
        self, ids: list[int], choice: SamplingSettings, limit: int, ends: list[int], apart: bool = False
    ) -> None:
        self.done = threading.Event()
        self.text = ""
        super().__init__(writers.tokenizer(), ids, choice, limit, ends, self._note, apart=apart)

    def _note(self, told: dict[str, Any]) -> None:
        self.text += told.get("text", "")
        if "reason" in told:
            self.done.set()


def opened(kind: str) -> tuple[Any, Engine, str]:
    model = deepcopy(writers.model(kind)) if kind in ("gpt2", "t5") else writers.finery(kind)
    engine, why = open_engine(model, writers.tokenizer(), 40, lambda why: None)
    return model, engine, why


@pytest.fixture(params=["gpt2", "causal_lm", "t5", "batched"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, Engine]]:
    """A kind, a model of its own, and its engine."""
    kind = "gpt2" if request.param == "batched" else request.param
    if request.param == "batched":
        monkeypatch.setattr(engines, "ContinuousEngine", None)
    model, engine, why = opened(kind)
    expected = "batched" if request.param in ("t5", "batched") else "continuous"
    assert engine.name == expected, why
    assert bool(why) == (expected == "batched")
    yield kind, model, engine
    engine.close()


def expected_tokens(kind: str, prompt: str, limit: int) -> list[int]:
    """What `generate` writes by itself, greedily, one prompt at a time."""
    model = writers.model(kind) if kind in ("gpt2", "t5") else writers.finery(kind)
    tokenizer = writers.tokenizer()
    ids = tokenizer(prompt, add_special_tokens=kind == "t5", return_tensors="pt")["input_ids"]
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=ends_of(model, tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        **({"decoder_start_token_id": tokenizer.pad_token_id} if kind == "t5" else {}),
    )
    with torch.no_grad():
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)[0].tolist()
    return list(whole[1 if kind == "t5" else ids.shape[1] :])


def test_texts_that_are_written_together_are_those_that_generate_writes_alone(
    case: tuple[str, Any, Engine],
) -> None:
    kind, model, engine = case
    tokenizer = writers.tokenizer()
    ends = ends_of(model, tokenizer)
    texts = [
        Written(
            tokenizer(each, add_special_tokens=kind == "t5")["input_ids"], SamplingSettings(temperature=0), limit, ends
        )
        for each, limit in zip(PROMPTS, (9, 4, 12), strict=True)
    ]
    for each in texts:
        engine.submit(each)
    assert all(each.done.wait(60) for each in texts)
    assert [each.tokens for each in texts] == [
        expected_tokens(kind, prompt, limit) for prompt, limit in zip(PROMPTS, (9, 4, 12), strict=True)
    ]


def test_a_seed_gives_the_same_text_whatever_is_written_beside_it(case: tuple[str, Any, Engine]) -> None:
    kind, model, engine = case
    ids = writers.tokenizer()("the cat", add_special_tokens=kind == "t5")["input_ids"]
    ends = ends_of(model, writers.tokenizer())

    def drawn(seed: int) -> Written:
        return Written(list(ids), SamplingSettings(seed=seed, temperature=1.5), 10, ends, apart=kind == "t5")

    alone = drawn(3)
    engine.submit(alone)
    assert alone.done.wait(60)
    together = [drawn(seed) for seed in (1, 3, 2)]
    for each in together:
        engine.submit(each)
    assert all(each.done.wait(60) for each in together)
    assert together[1].tokens == alone.tokens
    assert len({tuple(each.tokens) for each in together}) > 1


def test_log_probabilities_of_a_prompt_are_those_of_the_plain_model(case: tuple[str, Any, Engine]) -> None:
    kind, model, engine = case
    ends = ends_of(model, writers.tokenizer())
    if kind == "t5":
        pytest.skip("it writes apart from its prompt")
    prompts = ([5, 6, 7, 8, 9], [7], [9, 5, 6])
    choice = SamplingSettings(temperature=0, logprobs=2)
    told: list[list[dict[str, Any]]] = [[] for _ in prompts]
    done = [threading.Event() for _ in prompts]
    for prompt, own, event, limit in zip(prompts, told, done, (3, 2, 0), strict=True):

        def note(update: dict[str, Any], own: Any = own, event: Any = event) -> None:
            own.append(update)
            if "reason" in update:
                event.set()

        echo = Echo.of(writers.tokenizer(), prompt, prompt)
        engine.submit(WrittenSequence(writers.tokenizer(), prompt, choice, limit, ends, note, echo=echo))
    assert all(event.wait(60) for event in done)
    plain = writers.model("gpt2") if kind == "gpt2" else writers.finery(kind)
    for prompt, own, limit in zip(prompts, told, (3, 2, 0), strict=True):
        with torch.no_grad():
            chances = plain(torch.tensor([prompt])).logits[0].log_softmax(-1)
        first, *behind = own[0]["tokens"]
        assert first["logprob"] is None
        expected = [float(chances[place, token]) for place, token in enumerate(prompt[1:])]
        assert [each["logprob"] for each in behind] == pytest.approx(expected, abs=1e-4)
        assert own[-1]["reason"] in ("length", "stop")
        assert own[-1]["written"] <= limit
        assert sum(len(each.get("tokens", ())) for each in own[1:]) == own[-1]["written"], "an end token is told too"


def test_a_text_joins_while_another_is_written() -> None:
    """With pages: the second is complete long before the first."""
    _, engine, why = opened("gpt2")
    assert not why
    order: list[str] = []
    first = Written([5], SamplingSettings(temperature=0), 35, [])
    second = Written([6], SamplingSettings(temperature=0), 2, [])
    begun = threading.Event()
    choose = first.choose

    def noted(logits: Any) -> int | None:
        begun.set()
        if len(first.tokens) == 3:
            engine.submit(second)
        if second.done.is_set() and "second" not in order:
            order.append("second")
        return choose(logits)

    first.choose = noted  # type: ignore[method-assign]
    engine.submit(first)
    assert first.done.wait(60)
    assert second.done.wait(60)
    assert order == ["second"], "it was complete while the first was still being written"
    engine.close()


@pytest.mark.parametrize("kind", ["t5", "seq2seq_lm", "gpt2"])
def test_a_long_text_makes_way_for_those_that_wait_and_goes_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `generate`: the short ones are complete long before it, and all texts are those that are written alone."""
    monkeypatch.setattr(engines, "TURN", 4)
    model = writers.finery(kind) if kind == "seq2seq_lm" else deepcopy(writers.model(kind))
    tokens = engines.tokens_of(model, writers.tokenizer())
    broken: list[str] = []

    def text(prompt: list[int], limit: int, seed: int = 0, temperature: float = 0.0) -> Written:
        choice = SamplingSettings(temperature=temperature, seed=seed)
        return Written(prompt, choice, limit, [], apart=kind != "gpt2")

    def asked() -> list[Written]:
        return [text([5, 7], 30), text([6], 2), text([8, 5, 9], 9, 3, 1.5)]

    alone = asked()
    for each in alone:
        engine = BatchedEngine(model, *tokens, broken.append)
        engine.submit(each)
        assert each.done.wait(60)
        engine.close()
    engine = BatchedEngine(model, *tokens, broken.append)
    together = long, *short = asked()
    lengths: list[int] = []
    choose = long.choose

    def noted(logits: Any) -> int | None:
        if len(long.tokens) == 3:
            for each in short:
                engine.submit(each)
        lengths.extend([len(long.tokens)] if all(each.done.is_set() for each in short) else [])
        return choose(logits)

    long.choose = noted  # type: ignore[method-assign]
    engine.submit(long)
    assert all(each.done.wait(60) for each in together)
    engine.close()
    assert lengths[0] <= 16, "both were complete by then"
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert [each.reason for each in together] == ["length"] * 3
    assert broken == []


def test_a_text_that_fails_ends_alone(case: tuple[str, Any, Engine]) -> None:
    kind, model, engine = case
    ends = ends_of(model, writers.tokenizer())
    good, bad = (Written([5, 6], SamplingSettings(temperature=0), 5, ends, apart=kind == "t5") for _ in range(2))

    def fail(logits: Any) -> int:
        raise RuntimeError("no")

    bad.choose = fail  # type: ignore[assignment,method-assign]
    for each in (bad, good):
        engine.submit(each)
    assert bad.done.wait(60)
    assert good.done.wait(60)
    assert (bad.reason, good.reason in ("stop", "length")) == ("error", True)


def test_an_engine_that_writes_something_else_than_generate_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_next", lambda sequence, logits, end: sequence.choose(-logits) or end)
    _, engine, why = opened("gpt2")
    assert isinstance(engine, BatchedEngine)
    assert why == "continuous batching writes other tokens than generate does"
    engine.close()


def test_a_model_that_ends_its_texts_at_once_is_written_for_in_pages_too() -> None:
    """Its first token is the end of a text: the trial must not take that for a failure."""
    model = deepcopy(writers.model("gpt2"))
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(model.lm_head.weight[writers.tokenizer().eos_token_id])
    broken: list[str] = []
    engine, why = open_engine(model, writers.tokenizer(), 40, broken.append)
    assert (engine.name, why) == ("continuous", "")
    text = Written([5], SamplingSettings(temperature=0), 9, ends_of(model, writers.tokenizer()))
    engine.submit(text)
    assert text.done.wait(60)
    assert (text.tokens, text.reason) == ([writers.tokenizer().eos_token_id], "stop")
    engine.close()


def test_an_engine_that_is_closed_is_not_broken() -> None:
    broken: list[str] = []
    engine, why = open_engine(deepcopy(writers.model("gpt2")), writers.tokenizer(), 40, broken.append)
    assert not why
    engine.close()
    engine._watching.join(20)  # type: ignore[attr-defined]
    assert broken == []


@pytest.mark.parametrize("position", ["alibi", "relative"])
def test_a_model_that_pages_do_not_fit_is_written_for_by_generate(position: str) -> None:
    """Their biases have a shape of their own."""
    words = {"position": position, "max_position_embeddings": 64}
    model = writers.finery("causal_lm", **words)
    engine, why = open_engine(model, writers.tokenizer(), 64, lambda why: None)
    assert engine.name == "batched"
    assert why
    text = Written([5, 6, 7], SamplingSettings(temperature=0), 20, [])
    engine.submit(text)
    assert text.done.wait(60)
    settings = GenerationConfig(do_sample=False, max_new_tokens=20, pad_token_id=0)
    with torch.no_grad():
        whole = writers.finery("causal_lm", **words).generate(
            torch.tensor([[5, 6, 7]]), attention_mask=torch.ones(1, 3, dtype=torch.int64), generation_config=settings
        )
    assert text.tokens == whole[0, 3 : 3 + len(text.tokens)].tolist()
    assert len(text.tokens) > 0
    engine.close()


def test_pages_hold_at_least_one_text_of_the_longest_kind() -> None:
    config = writers.model("gpt2").config
    assert engines.pages(config, 40) * engines.PAGE >= 40
    assert engines.pages(config, 10**9) * engines.PAGE >= 10**9
