"""Continuations equal what a plain loop decodes, and are measured by the model's own probabilities."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from pipelines.commands.generate import answer, distinct_2
from pipelines.core.errors import CommandError, ModelError
from tests import writers
from tests.writers import TEXT

SHORT = {"max_new_tokens": 8, "samples": 2}


def told(kind: str | Path, prompt: str = TEXT, **asked: Any) -> dict[str, Any]:
    place = kind if isinstance(kind, Path) else writers.folder(kind)
    return answer({"model": str(place), "prompt": prompt, **SHORT, **asked})


def ways(kind: str | Path, prompt: str = TEXT, **asked: Any) -> dict[str, Any]:
    return {each["method"]: each for each in told(kind, prompt, **asked)["prompts"][0]["continuations"]}


def without_speed(found: Any) -> Any:
    """What must be the same on every run."""
    if isinstance(found, dict):
        return {
            name: without_speed(value) for name, value in found.items() if name not in ("seconds", "tokens_per_second")
        }
    return [without_speed(each) for each in found] if isinstance(found, list) else found


def start_of(kind: str, prompt: str = TEXT) -> tuple[dict[str, Any], list[int]]:
    """What the model is always given, and the tokens that its decoder begins with."""
    tokenizer = writers.tokenizer()
    if kind == "gpt2":
        return {}, tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return {"input_ids": torch.tensor([tokenizer(prompt)["input_ids"]])}, [
        writers.model("t5").config.decoder_start_token_id
    ]


def chances_of(kind: str, given: dict[str, Any], ids: list[int]) -> torch.Tensor:
    """(vocab,): log-probabilities of the next token."""
    name = "input_ids" if kind == "gpt2" else "decoder_input_ids"
    with torch.no_grad():
        return writers.model(kind)(**given, **{name: torch.tensor([ids])}).logits[0, -1].log_softmax(-1)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_greedy_takes_the_likeliest_token_each_time_and_tells_its_probability(kind: str) -> None:
    given, ids = start_of(kind)
    chances = []
    for _ in range(8):
        best = chances_of(kind, given, ids).max(-1)
        ids = [*ids, int(best.indices)]
        chances.append(float(best.values))
        if ids[-1] == writers.tokenizer().eos_token_id:
            break
    found = ways(kind)["greedy"]
    assert found["ids"] == ids[-len(chances) :]
    assert found["log_probabilities"] == pytest.approx(chances, abs=1e-4)
    assert found["log_probability_per_token"] == pytest.approx(sum(chances) / len(chances), abs=1e-4)
    assert found["tokens"] == len(chances)
    assert found["tokens_per_second"] > 0


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_samples_are_measured_by_the_whole_distribution_at_temperature_1(kind: str) -> None:
    given, ids = start_of(kind)
    found = ways(kind, temperature=1.7, top_k=5)["sample 1"]
    chances = []
    for token in found["ids"]:
        chances.append(float(chances_of(kind, given, ids)[token]))
        ids = [*ids, token]
    assert found["log_probabilities"] == pytest.approx(chances, abs=1e-4)


def test_a_beam_as_wide_as_the_vocabulary_finds_the_best_pair_of_tokens() -> None:
    given, ids = start_of("gpt2")
    size, end = len(writers.tokenizer()), writers.tokenizer().eos_token_id
    first = chances_of("gpt2", given, ids)
    with torch.no_grad():
        logits = writers.model("gpt2")(torch.tensor([[*ids, token] for token in range(size)])).logits[:, -1]
    pairs = first[:, None] + logits.log_softmax(-1)  # (first, second)
    pairs[end] = -math.inf  # an ended text has one token
    best = divmod(int(pairs.argmax()), size)
    assert float(pairs.max()) / 2 > float(first[end])  # the pair beats ending at once, token for token
    found = ways("gpt2", max_new_tokens=2, num_beams=size, samples=0)[f"beam {size}"]
    assert tuple(found["ids"]) == best


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_seed_decides_the_samples_and_nothing_else_does(kind: str) -> None:
    first = told(kind, seed=5)
    assert without_speed(told(kind, seed=5)) == without_speed(first)
    one = {each["method"]: each for each in first["prompts"][0]["continuations"]}
    two = ways(kind, seed=6)
    assert one["sample 1"]["ids"] != two["sample 1"]["ids"]
    assert one["sample 2"]["ids"] == two["sample 1"]["ids"]  # each sample has the next seed
    assert one["greedy"]["ids"] == two["greedy"]["ids"]


def test_a_prompt_has_the_same_samples_wherever_it_stands_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the dog\u2028\n\nthe cat\r\n", newline="")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the cat"}\n')
    both = answer({"model": str(writers.folder("gpt2")), "prompts": str(tmp_path / "prompts.txt"), **SHORT})
    alone = answer({"model": str(writers.folder("gpt2")), "prompts": str(tmp_path / "prompts.jsonl"), **SHORT})
    assert [each["prompt"] for each in both["prompts"]] == ["the dog\u2028", "the cat"]
    assert without_speed(both["prompts"][1:]) == without_speed(alone["prompts"])


def test_sampling_from_one_word_is_greedy_and_a_tiny_nucleus_too() -> None:
    one_word = ways("gpt2", top_k=1)
    assert one_word["sample 1"]["ids"] == one_word["greedy"]["ids"]
    assert ways("gpt2", top_p=1e-6)["sample 2"]["ids"] == one_word["greedy"]["ids"]


def test_one_beam_or_no_samples_leave_their_columns_out() -> None:
    assert list(ways("gpt2")) == ["greedy", "beam 4", "sample 1", "sample 2"]
    assert list(ways("gpt2", num_beams=1, samples=0)) == ["greedy"]


def test_penalties_that_a_checkpoint_suggests_are_not_applied(tmp_path: Path) -> None:
    made = writers.model("gpt2")
    made.generation_config.repetition_penalty = 9.0
    made.generation_config.no_repeat_ngram_size = 1
    made.generation_config.min_new_tokens = 7
    writers.saved(made, tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["repetition_penalty"] == 9.0
    assert without_speed(ways(tmp_path)) == without_speed(ways("gpt2"))


def test_a_text_that_ends_says_so_and_stops() -> None:
    found = ways("gpt2", max_new_tokens=30, samples=12, temperature=1.5, top_p=1.0, top_k=0)
    ended = [each for each in found.values() if each["ended"]]
    assert ended  # one of twelve wild samples ends
    for each in ended:
        assert each["ids"][-1] == writers.tokenizer().eos_token_id
        assert "[SEP]" not in each["text"]
    assert all(each["tokens"] == 30 for each in found.values() if not each["ended"])


def test_what_does_not_fit_the_positions_is_not_written() -> None:
    found = told("gpt2", " ".join(["cat"] * 36), max_new_tokens=64)
    assert all(each["tokens"] <= 4 for each in found["prompts"][0]["continuations"])
    assert found["notes"] == ["The model has positions for 40 tokens: at most 4 instead of 64 are added."]


def test_an_encoder_fills_each_mask_with_its_likeliest_words() -> None:
    tokenizer = writers.tokenizer()
    prompt = "the [MASK] saw a [MASK] book"
    found = told("bert", prompt)["prompts"][0]
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        chances = writers.model("bert")(ids).logits[0].softmax(-1)
    assert [each["position"] for each in found["masks"]] == [2, 5]
    for each in found["masks"]:
        best = chances[each["position"]].topk(5)
        assert [candidate["id"] for candidate in each["candidates"]] == best.indices.tolist()
        assert [candidate["probability"] for candidate in each["candidates"]] == pytest.approx(
            best.values.tolist(), abs=1e-5
        )


@pytest.mark.parametrize(
    ("kind", "prompt", "expected"),
    [
        ("gpt2", " ", "the prompt is empty"),
        ("bert", TEXT, r"is an encoder, which continues no text: put its mask token \[MASK\]"),
        ("bert", "the <mask> sat", r"put its mask token \[MASK\]"),
        ("gpt2", "cat " * 40, "has 40 tokens, but .* has positions for 40"),
        ("bert", "[MASK] " * 60, "has 62 tokens, but .* has positions for 40"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused_in_a_sentence(kind: str, prompt: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        told(kind, prompt)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.txt", None, "cannot be read: No such file"),
        ("empty.txt", b"\n \n", "holds no prompt"),
        ("bad.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("bad.jsonl", b'{"prompt": "x"}\n{"text": "y"}', r'line 2: must be an object such as \{"prompt"'),
        ("bad.jsonl", b"[", "line 1: must be"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CommandError, match=expected):
        answer({"model": str(writers.folder("gpt2")), "prompts": str(tmp_path / name)})


def test_a_head_that_was_never_trained_writes_nothing() -> None:
    with pytest.raises(ModelError, match="has no trained masked lm head"):
        told("bert-classifier", "the [MASK] sat")


def test_distinct_2_by_hand() -> None:
    assert distinct_2([1, 2, 1, 2, 1]) == 2 / 4  # (1 2) and (2 1), twice each
    assert distinct_2([1, 1, 1]) == 1 / 2
    assert distinct_2([1]) is None


@given(st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_distinct_2_is_a_share_and_1_without_repetition(ids: list[int]) -> None:
    found = distinct_2(ids)
    assert found is not None
    assert 0 < found <= 1
    assert distinct_2(list(range(len(ids)))) == 1.0


@pytest.mark.parametrize("head", ["causal_lm", "seq2seq_lm"])
def test_our_own_family_writes(head: str, tmp_path: Path) -> None:
    made = writers.finery(head)
    found = ways(writers.saved(made, tmp_path))
    tokenizer = writers.tokenizer()
    given: dict[str, Any] = {} if head == "causal_lm" else {"input_ids": torch.tensor([tokenizer(TEXT)["input_ids"]])}
    ids = (
        tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        if head == "causal_lm"
        else [made.config.decoder_start_token_id]
    )
    for token, chance in zip(found["greedy"]["ids"], found["greedy"]["log_probabilities"], strict=True):
        with torch.no_grad():
            logits = made(
                **given, **{"input_ids" if head == "causal_lm" else "decoder_input_ids": torch.tensor([ids])}
            ).logits[0, -1]
        assert token == int(logits.argmax())
        assert chance == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)
        ids = [*ids, token]


def test_a_chat_model_is_asked_as_it_was_taught_unless_told_otherwise(tmp_path: Path) -> None:
    folder = writers.saved(writers.finery("causal_lm"), tmp_path)
    plain = told(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    template = "{% for message in messages %}ask {{ message['content'] }}{% endfor %} answer"
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    asked = told(folder)
    assert "--plain" in asked["notes"][0]
    assert without_speed(told(folder, plain=True)) == without_speed(plain)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(str(folder))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    by_hand = told(folder, prompt=f"ask {TEXT} answer")
    for one, other in zip(asked["prompts"][0]["continuations"], by_hand["prompts"][0]["continuations"], strict=True):
        assert one["ids"] == other["ids"]
    (folder / "chat_template.jinja").write_text("{{ 'x' * 1100000 }}")
    with pytest.raises(CommandError, match="the chat template wrote 1100000 characters"):
        told(folder)


def test_an_answer_ends_where_the_template_ends_it(tmp_path: Path) -> None:
    folder = writers.saved(writers.saying("[MASK]"), tmp_path)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}[MASK]{% endfor %}")
    for way in told(folder, samples=0)["prompts"][0]["continuations"]:
        assert (way["tokens"], way["ended"]) == (1, True)


def test_a_model_that_writes_at_once_does_so_its_own_way(tmp_path: Path) -> None:
    made = writers.finery("seq2seq_lm", bidirectional_decoder=True, length_prediction=True)
    found = told(writers.saved(made, tmp_path))
    tokenizer = writers.tokenizer()
    source = torch.tensor([tokenizer(TEXT)["input_ids"]])
    expected = made.mask_predict(
        source, mask_token_id=tokenizer.mask_token_id, excluded=tuple(tokenizer.all_special_ids)
    )[0]
    assert found["method"] == "mask_predict"
    [each] = found["prompts"][0]["continuations"]
    assert each["ids"] == expected.tolist()
    assert "all words at once" in found["notes"][0]
    for place, (token, chance) in enumerate(zip(each["ids"], each["log_probabilities"], strict=True)):
        masked = expected.clone()
        masked[place] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = made(input_ids=source, decoder_input_ids=masked[None]).logits[0, place]
        assert chance == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)


def test_our_own_encoder_fills_in(tmp_path: Path) -> None:
    found = told(writers.saved(writers.finery("masked_lm"), tmp_path), "the [MASK] sat")
    assert len(found["prompts"][0]["masks"][0]["candidates"]) == 5
