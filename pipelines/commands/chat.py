"""`finery chat`: answers messages one after another, word by word.

Standard input and output are JSON lines. First comes `{"ready": …}` with what the model is; each `{"message": TEXT}` is
answered by pieces, `{"piece": TEXT}`, and `{"end": …}` with what was counted, or by `{"error": …}`, after which the
next message may come. A decoder with a chat template is given the whole dialogue, its oldest turns left out where the
positions end; one without continues each message by itself, and an encoder-decoder writes one text for each.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from pipelines.commands.generate import GenerateRequest, TextGenerator, chats, special_tokens
from pipelines.core.errors import EXIT_DONE, CommandError
from pipelines.core.files import JSONObject
from pipelines.data.chat_prompts import prompt_text
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

LEAST_ROOM = 16
"""Tokens that an answer is left at least, where older turns can make room."""


@dataclass(frozen=True)
class ChatRequest:
    """What `finery chat` was asked."""

    model: str
    temperature: float = 0.7
    top_p: float = 0.95
    max_new_tokens: int = 256
    seed: int = 42
    system: str | None = None


def chat(fields: JSONObject, read: TextIO, write: TextIO) -> int:
    """Answer until the input ends; returns the exit code. Raises FineryError for a model that cannot be talked with."""
    request = ChatRequest(**fields)
    speaker = Speaker(request)

    def tell(**words: Any) -> None:
        write.write(json.dumps(words, ensure_ascii=False) + "\n")
        write.flush()

    tell(ready=request.model, template=speaker.templated, family=speaker.writer.family)
    for line in read:
        if not line.strip():
            continue
        try:
            message = str(json.loads(line)["message"])
            end = speaker.answer(message, lambda piece: tell(piece=piece))
        except CommandError as error:
            tell(error=str(error))
        except (ValueError, KeyError, TypeError):
            tell(error='a line must be an object such as {"message": "Hello"}')
        else:
            tell(end=end)
    return EXIT_DONE


class Speaker:
    """A model and what was said so far."""

    def __init__(self, request: ChatRequest) -> None:
        if not 0 <= request.temperature < math.inf:
            raise CommandError(f"--temperature is {request.temperature:g}, must be a number from 0")
        if not 0 < request.top_p <= 1:
            raise CommandError(f"--top-p is {request.top_p:g}, must be above 0 and at most 1")
        checkpoint = checkpoints.find(request.model)
        config = checkpoints.config_of(checkpoint)
        family = heads.family_of(config)
        if family == "encoder" or getattr(config, "bidirectional_decoder", False):
            what = "is an encoder, which writes no text" if family == "encoder" else "writes all words at once"
            raise CommandError(
                f"'{request.model}' {what}; talk with a decoder or an encoder-decoder, or use: finery generate"
            )
        tokenizer = open_tokenizer(checkpoint.tokenizer)
        model = checkpoints.open_checkpoint(checkpoint, heads.FAMILY_HEADS[family], trained_head=True).eval()
        self.request = request
        self.writer = TextGenerator(
            model, tokenizer, family, GenerateRequest(request.model), special_tokens(model, tokenizer)
        )
        self.templated = chats(self.writer)
        if request.system is not None and not self.templated:
            raise CommandError(f"--system stands in a chat template, and '{request.model}' has none; leave it out")
        self.turns: list[dict[str, str]] = []
        self.left_out = 0
        """The oldest turns that the last answer had no room for; a longer dialogue has none for them either."""
        self.answers = 0

    def answer(self, message: str, say: Callable[[str], None]) -> JSONObject:
        """Say the answer piece by piece; returns what was counted. Raises CommandError for what cannot be answered."""
        import torch
        from accelerate.utils import set_seed
        from transformers import GenerationConfig

        from pipelines.models.sampling import COLDEST

        if not message.strip():
            raise CommandError("the message is empty; write a text")
        self.turns.append({"role": "user", "content": message})
        try:
            ids, room, left_out = self._fitting(message)
        except CommandError:
            self.turns.pop()
            raise
        sampled = self.request.temperature > 0
        temperature = max(self.request.temperature, COLDEST)
        drawn = {"temperature": temperature, "top_p": self.request.top_p, "top_k": 0} if sampled else {}
        settings = GenerationConfig(**self.writer.tokens, do_sample=sampled, max_new_tokens=room, **drawn)
        pieces = TextStreamer(self.writer, say)
        inputs = torch.tensor([ids], device=self.writer.model.device)
        set_seed((self.request.seed + self.answers) % 2**32)
        started = time.perf_counter()
        with torch.no_grad():
            self.writer.model.generate(
                inputs, attention_mask=torch.ones_like(inputs), generation_config=settings, streamer=pieces
            )
        seconds = time.perf_counter() - started
        self.answers += 1
        self.left_out = left_out
        self.turns.append({"role": "assistant", "content": pieces.text})
        return {
            "tokens": pieces.tokens,
            "read": len(ids),
            "turns_left_out": left_out,
            "tokens_per_second": round(pieces.tokens / seconds, 1),
        }

    def _fitting(self, message: str) -> tuple[list[int], int, int]:
        """(what the model reads, tokens that it may write, oldest turns left out). Raises CommandError."""
        limit = checkpoints.positions_of(self.writer.model, self.writer.tokenizer)
        decoder = self.writer.family == "decoder"
        left_out = self.left_out
        while True:
            ids = self._ids(message, left_out)
            if not ids:
                raise CommandError("nothing of the message is left after its tokenization; write a text with words")
            room = self.request.max_new_tokens
            if limit is None:
                return ids, room, left_out
            left = limit - (len(ids) if decoder else 1)
            if left >= min(room, LEAST_ROOM) and len(ids) <= limit:
                return ids, min(room, left), left_out
            if not self.templated or left_out + 2 >= len(self.turns):
                if left > 0 and len(ids) <= limit:
                    return ids, min(room, left), left_out
                raise CommandError(f"the message has {len(ids)} tokens, and the model reads {limit}; shorten it")
            left_out += 2  # a message and its answer

    def _ids(self, message: str, left_out: int) -> list[int]:
        tokenizer = self.writer.tokenizer
        if not self.templated:
            return checkpoints.text_ids(tokenizer, message, stays_open=self.writer.family == "decoder")
        system = [] if self.request.system is None else [{"role": "system", "content": self.request.system}]
        text = prompt_text(tokenizer, [*system, *self.turns[left_out:]])
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


class TextStreamer:
    """What `generate` gives its tokens to: says the text that they make, as soon as no later token can change it."""

    def __init__(self, writer: TextGenerator, say: Callable[[str], None]) -> None:
        self.writer, self.say = writer, say
        self.ids: list[int] = []
        self.text = ""
        self._given = False

    @property
    def tokens(self) -> int:
        """Tokens that were written."""
        return len(self.ids)

    def put(self, value: Tensor) -> None:
        """First what the model was given, then each token."""
        if not self._given:
            self._given = True
            return
        self.ids += value.reshape(-1).tolist()
        whole = self._decoded()
        # the end of a text may be half of a letter of several bytes, or of a word that goes on
        if not whole.endswith("�"):
            self._to(whole[: whole.rfind(" ") + 1] if " " in whole[len(self.text) :] else self.text)

    def end(self) -> None:
        """The rest of the text."""
        self._to(self._decoded())

    def _decoded(self) -> str:
        return str(self.writer.tokenizer.decode(self.ids, skip_special_tokens=True))

    def _to(self, whole: str) -> None:
        if whole.startswith(self.text) and len(whole) > len(self.text):
            self.say(whole[len(self.text) :])
            self.text = whole
