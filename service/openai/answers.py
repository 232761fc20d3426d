"""Answers in OpenAI's words: the objects of chat completions and completions, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Whole:
    """An answer that is read as a whole: its texts, in the order of their numbers."""

    count: int
    texts: list[str] = field(init=False)
    tokens: list[list[Mapping[str, Any]]] = field(init=False)
    reasons: list[str] = field(init=False)
    usage: Mapping[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.texts, self.reasons = [""] * self.count, ["stop"] * self.count
        self.tokens = [[] for _ in range(self.count)]

    def add(self, part: Mapping[str, Any]) -> None:
        """Take in a part of the answer."""
        if "piece" in part:
            index = int(part["piece"]["index"])
            self.texts[index] += part["piece"]["text"]
            self.tokens[index] += part["piece"]["tokens"]
        elif "finished" in part:
            self.reasons[int(part["finished"]["index"])] = part["finished"]["reason"]
        elif "end" in part:
            self.usage = usage_of(part["end"])


def usage_of(end: Mapping[str, Any]) -> dict[str, int]:
    """The counts of an answer."""
    read, written = int(end["prompt_tokens"]), int(end["completion_tokens"])
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class ResponseBuilder:
    """What is the same of every object of one answer."""

    whole_object, chunk_object = "", ""

    def __init__(self, identifier: str, model: str, fingerprint: str, logprobs: bool, texts: int) -> None:
        """`texts` are written in all."""
        self.texts = texts
        self._logprobs = logprobs
        self._about = {
            "id": identifier,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fp_{fingerprint[:12]}",
        }

    def document(self, whole: Whole) -> dict[str, Any]:
        """The answer as a whole."""
        choices = [
            {**self._whole(index, whole.texts[index], whole.tokens[index]), "finish_reason": whole.reasons[index]}
            for index in range(self.texts)
        ]
        return {**self._about, "object": self.whole_object, "choices": choices, "usage": dict(whole.usage)}

    def begun(self, usage: bool) -> Iterator[dict[str, Any]]:
        """What a stream begins with."""
        yield from ()

    def chunks(self, part: Mapping[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
        """A part of the answer as chunks of a stream; with `usage` the last of them tells the counts."""
        if "piece" in part:
            piece = part["piece"]
            choice = self._piece(int(piece["index"]), piece["text"], piece["tokens"])
            yield self._chunk([{**choice, "finish_reason": None}], usage)
        elif "finished" in part:
            index, reason = int(part["finished"]["index"]), part["finished"]["reason"]
            yield self._chunk([{**self._last(index), "finish_reason": reason}], usage)
        elif "end" in part and usage:
            yield {**self._chunk([], usage), "usage": usage_of(part["end"])}

    def _chunk(self, choices: list[dict[str, Any]], usage: bool) -> dict[str, Any]:
        own: dict[str, Any] = {"usage": None} if usage else {}
        return {**self._about, "object": self.chunk_object, "choices": choices, **own}

    def _whole(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError

    def _piece(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError

    def _last(self, index: int) -> dict[str, Any]:
        raise NotImplementedError


class ChatCompletionBuilder(ResponseBuilder):
    """Of chat completions."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def begun(self, usage: bool) -> Iterator[dict[str, Any]]:
        """Each message says first who speaks."""
        for index in range(self.texts):
            delta = {"role": "assistant", "content": "", "refusal": None}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield self._chunk([choice], usage)

    def _whole(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._log_probabilities(tokens)}

    def _piece(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "logprobs": self._log_probabilities(tokens)}

    def _last(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None}

    def _log_probabilities(self, tokens: list[Mapping[str, Any]]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        content = [{**_token(each), "top_logprobs": [_token(other) for other in each["top"]]} for each in tokens]
        return {"content": content, "refusal": None}


def _token(token: Mapping[str, Any]) -> dict[str, Any]:
    text = str(token["token"])
    return {"token": text, "bytes": list(text.encode("utf-8", "replace")), "logprob": float(token["logprob"])}


class CompletionBuilder(ResponseBuilder):
    """Of completions."""

    whole_object = chunk_object = "text_completion"

    def _whole(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._log_probabilities(tokens)}

    def _piece(self, index: int, text: str, tokens: list[Mapping[str, Any]]) -> dict[str, Any]:
        return self._whole(index, text, tokens)

    def _last(self, index: int) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None}

    def _log_probabilities(self, tokens: list[Mapping[str, Any]]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {
            "tokens": [each["token"] for each in tokens],
            "token_logprobs": [each["logprob"] for each in tokens],
            "top_logprobs": [None if each["top"] is None else _by_text(each["top"]) for each in tokens],
            "text_offset": [each["offset"] for each in tokens],
        }


def _by_text(top: list[Mapping[str, Any]]) -> dict[str, float]:
    """Log-probabilities by the texts of tokens; of those with the same text, such as parts of characters, the first."""
    return {str(each["token"]): each["logprob"] for each in reversed(top)}
