"""The text of a sequence: told as soon as it is certain, ended by tokens, stop strings and limits."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch

from pipelines.serving.sequences import Echo, SamplingSettings, WrittenSequence
from tests import writers

WORDS = "the cat saw a good book"


class Characters:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return bytes(each for each in ids if each != 0 or not skip_special_tokens).decode("utf-8", "replace")


def written(
    text: bytes, choice: SamplingSettings, limit: int = 100, end: bool = True
) -> tuple[list[dict[str, Any]], list[str]]:
    """What is told, and the pieces of text, when a model is certain of these bytes and then of the end."""
    told: list[dict[str, Any]] = []
    sequence = WrittenSequence(Characters(), b"> ", choice, limit, [0], told.append)  # type: ignore[arg-type]
    for byte in (*text, *([0] if end else [])):
        if sequence.choose(torch.nn.functional.one_hot(torch.tensor(byte), 256) * 100.0) is None:
            break
    return told, [each["text"] for each in told if "text" in each]


def test_text_is_told_byte_by_byte_and_the_end_token_is_none_of_it() -> None:
    told, pieces = written(b"hello", SamplingSettings(temperature=0))
    assert pieces == list("hello")
    assert told[-1] == {"reason": "stop", "written": 6}


def test_half_of_a_character_waits_for_its_other_half() -> None:
    assert written("aéb€".encode(), SamplingSettings(temperature=0))[1] == ["a", "é", "b", "€"]


def test_a_limit_ends_a_text_by_its_length() -> None:
    told, pieces = written(b"hello", SamplingSettings(temperature=0), limit=3)
    assert (pieces, told[-1]) == (["h", "e", "l"], {"reason": "length", "written": 3})


@pytest.mark.parametrize("stop", [("lo",), ("zz", "lo"), ("l",), ("hello",), ("o", "lo")])
def test_a_stop_string_is_no_part_of_the_text_nor_is_its_beginning_told(stop: tuple[str, ...]) -> None:
    told, pieces = written(b"say hello to all", SamplingSettings(temperature=0, stop=stop))
    text = "say hello to all"
    assert "".join(pieces) == text[: min(text.find(each) for each in stop if each in text)]
    assert told[-1]["reason"] == "stop"


def test_what_only_looks_like_a_stop_string_is_told_in_the_end() -> None:
    assert "".join(written(b"hel hell", SamplingSettings(temperature=0, stop=("hello",)))[1]) == "hel hell"


def test_every_token_has_its_log_probability_and_the_likeliest_beside_it() -> None:
    told, pieces = written(b"hi", SamplingSettings(temperature=0, logprobs=2))
    tokens = [token for each in told for token in each.get("tokens", ())]
    assert [token["token"] for token in tokens] == ["h", "i"]
    assert "".join(pieces) == "hi"
    assert all(token["top"][0]["token"] == token["token"] and len(token["top"]) == 2 for token in tokens)
    assert tokens[0]["logprob"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("sizes", [(1,) * 16, (3, 2, 5, 1, 5), (16,)])
@pytest.mark.parametrize("stop", [(), ("lo",), ("ll",), ("é hé", "zz"), ("to",), ("say",)])
def test_the_texts_of_all_tokens_are_the_text_wherever_a_stop_string_begins(
    stop: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    """Tokens of so many bytes; a stop string may begin within one, and a character may end within the next."""
    whole = "sé hél lo to"
    pieces = [whole.encode()[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    class Pieces:
        def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
            return b"".join(pieces[each] for each in ids if each < len(pieces)).decode("utf-8", "replace")

    told: list[dict[str, Any]] = []
    choice = SamplingSettings(temperature=0, logprobs=1, stop=stop)
    sequence = WrittenSequence(Pieces(), [], choice, 100, [99], told.append, apart=True)  # type: ignore[arg-type]
    for token in (*range(len(pieces)), 99):
        if sequence.choose(torch.nn.functional.one_hot(torch.tensor(token), 100) * 100.0) is None:
            break
    text = "".join(each.get("text", "") for each in told)
    tokens = [token for each in told for token in each.get("tokens", ())]
    assert text == whole[: min((whole.find(each) for each in stop if each in whole), default=None)]
    assert "".join(each["token"] for each in tokens) == text
    assert [each["offset"] for each in tokens] == [0, *accumulate(len(each["token"]) for each in tokens)][:-1]
    assert all(each["top"][0]["token"] == each["token"] for each in tokens)


def test_a_seed_fixes_what_is_drawn_and_a_draw_changes_it() -> None:
    def drawn(seed: int, draw: int) -> list[int]:
        choice = SamplingSettings(seed=seed)
        sequence = WrittenSequence(writers.tokenizer(), [1], choice, 12, (), lambda told: None, draw)
        for _ in range(12):
            sequence.choose(torch.zeros(200))
        return sequence.tokens

    assert drawn(1, 0) == drawn(1, 0)
    assert len({tuple(drawn(seed, draw)) for seed in (1, 2) for draw in (0, 1)}) == 4


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-10])
def test_at_a_temperature_next_to_none_the_likeliest_token_is_taken(temperature: float) -> None:
    choice = SamplingSettings(temperature=temperature, seed=1)
    sequence = WrittenSequence(writers.tokenizer(), [1], choice, 1, (), lambda told: None)
    sequence.choose(torch.tensor([0.5, 0.9, -20.0, 0.2]))
    assert sequence.tokens == [1]


def test_top_p_and_biases_leave_what_they_say() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()

    def chosen(choice: SamplingSettings) -> set[int]:
        found = set()
        for draw in range(40):
            sequence = WrittenSequence(writers.tokenizer(), [1], choice, 1, (), lambda told: None, draw)
            sequence.choose(logits)
            found.add(sequence.tokens[0])
        return found

    assert chosen(SamplingSettings(seed=1)) == {0, 1, 2}
    assert chosen(SamplingSettings(seed=1, top_p=0.7)) == {0, 1}
    assert chosen(SamplingSettings(temperature=0, logit_bias={2: 50.0})) == {2}
    assert chosen(SamplingSettings(seed=1, logit_bias={0: -100.0})) == {1, 2}


def test_a_frequency_penalty_keeps_a_token_from_coming_back() -> None:
    sequence = WrittenSequence(
        writers.tokenizer(), [1], SamplingSettings(temperature=0, frequency_penalty=1.0), 3, (), lambda told: None
    )
    for _ in range(3):
        sequence.choose(torch.tensor([1.0, 0.6, 0.3]))
    assert sequence.tokens == [0, 1, 2]


def test_an_echo_begins_the_text_and_the_end_token_then_has_a_log_probability() -> None:
    told: list[dict[str, Any]] = []
    choice = SamplingSettings(temperature=0, logprobs=1)
    echo = Echo.of(Characters(), "é>".encode(), "é>".encode())  # type: ignore[arg-type]
    assert echo == Echo("é>", (0, 0, 1))
    sequence = WrittenSequence(Characters(), "é>".encode(), choice, 5, [0], told.append, echo=echo)  # type: ignore[arg-type]
    logits = torch.nn.functional.one_hot(torch.tensor([*"é>a".encode(), 0]), 256) * 100.0
    sequence.tell_prompt(sequence.records(logits[1:3], sequence.prompt[1:]))
    assert sequence.choose(logits[4]) is None
    assert told[0]["text"] == "é>"
    assert [each["offset"] for each in told[0]["tokens"]] == [0, 0, 1]
    assert told[0]["tokens"][0]["logprob"] is None
    assert told[0]["tokens"][1]["logprob"] == pytest.approx(0.0, abs=1e-6)
    assert (told[1]["text"], told[1]["tokens"][0]["offset"], told[2]) == ("", 2, {"reason": "stop", "written": 1})


def test_nothing_is_written_behind_an_echo_without_a_limit_to_write() -> None:
    told: list[dict[str, Any]] = []
    tokenizer = writers.tokenizer()
    ids = tokenizer("The CAT saw", add_special_tokens=False)["input_ids"]
    echo = Echo.of(tokenizer, "The CAT saw", ids)
    WrittenSequence(tokenizer, ids, SamplingSettings(seed=1), 0, [0], told.append, echo=echo).tell_prompt()
    assert told == [{"text": "The CAT saw", "tokens": []}, {"reason": "length", "written": 0}]


def test_top_k_leaves_the_likeliest() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    found = set()
    for draw in range(40):
        choice = SamplingSettings(seed=1, temperature=2, top_k=2)
        sequence = WrittenSequence(writers.tokenizer(), [1], choice, 1, (), lambda told: None, draw)
        sequence.choose(logits)
        found.add(sequence.tokens[0])
    assert found == {0, 1}


def test_a_cancelled_text_ends_before_its_next_token() -> None:
    told: list[dict[str, Any]] = []
    sequence = WrittenSequence(writers.tokenizer(), [1], SamplingSettings(), 9, (), told.append)
    sequence.choose(torch.zeros(50))
    sequence.cancelled = True
    assert sequence.choose(torch.zeros(50)) is None
    assert told[-1] == {"reason": "cancelled", "written": 1}
