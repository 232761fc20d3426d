"""`python -m pipelines serve-model`: one published model, open in a process of its own, that answers a server.

The process holds no web server and no key of anybody: it connects to the socket in its working folder, says what the
model can be asked, and answers until the socket closes. See `protocol` for the words. Templates are run and rows are
predicted in the main thread, one question after another; texts are written by an engine's own thread, all together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, FineryError, ModelError, understood
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import Head
from pipelines.core.model_abilities import Abilities, abilities_of
from pipelines.core.secrets import secret
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.tokenizer import open_tokenizer
from pipelines.serving.prompts import OverLimit, prompt_text
from pipelines.serving.protocol import Channel, connect
from pipelines.serving.sequences import Choice, WrittenSequence

if TYPE_CHECKING:
    from pipelines.serving.engines import Engine

KEY = "SERVE_KEY"
"""The secret that the server knows its process by."""
MOST_WAITING = 4096
"""Questions that wait in this process."""
UNBOUNDED = 1024
"""Tokens that are written at most where neither the question nor the model has a bound."""


@dataclass(frozen=True)
class ServeRequest:
    """What the process is to do."""

    model: str
    """The published folder."""
    socket: str
    """Where the server listens, relative to the working folder: such paths must be short."""


def answer(fields: JSONObject) -> JSONObject:
    """Serve until the server closes the connection; how many questions were answered. Raises FineryError."""
    request = ServeRequest(**fields)
    try:
        channel = connect(request.socket, secret(KEY) or "")
    except OSError as error:
        raise CommandError(f"no server listens at '{request.socket}': {error.strerror}") from None
    try:
        served = ServedModel(request.model, channel)
        channel.send({"ready": served.about})
    except Exception as error:
        channel.send({"failed": str(understood(error))})
        raise
    try:
        return {"answered": served.run()}
    finally:
        served.close()


class ServedModel:
    """A model that is open, and the questions to it."""

    def __init__(self, folder: str, channel: Channel) -> None:
        """Opens the model. Raises FineryError."""
        self._channel = channel
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._open: dict[int, list[WrittenSequence]] = {}
        self._cancelled: set[int] = set()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        abilities = abilities_of(Path(folder))
        if abilities is None or not abilities.can:
            raise ModelError(f"'{folder}' holds no model that can be served")
        self.abilities: Abilities = abilities
        self.about: dict[str, Any] = {"kind": abilities.kind, "can": list(abilities.can)}
        self._answers: dict[str, Callable[[int, Mapping[str, Any]], None]] = {}
        if "predict" in abilities.can:
            self._open_predictor(folder)
        else:
            self._open_model(folder)

    def run(self) -> int:
        """Answer until the connection ends; how many questions there were."""
        threading.Thread(target=self._read, name="questions", daemon=True).start()
        count = 0
        while (message := self._inbox.get()) is not None:
            count += 1
            number = int(message["id"])
            try:
                do = self._answers.get(str(message.get("do")))
                if do is None:
                    raise CommandError(f"this model does not answer '{message.get('do')}'")
                do(number, message)
            except Exception as error:
                failure = understood(error)
                code = "template_limit" if isinstance(error, OverLimit) else failure.reason
                wrong = isinstance(error, FineryError)
                self._channel.send(
                    {"id": number, "error": {"message": str(failure), "code": code, "status": 400 if wrong else 500}}
                )
        return count

    def close(self) -> None:
        """End what is being written."""
        if self._engine is not None:
            self._engine.close()

    def _read(self) -> None:
        """In a thread: take questions in, and end what is cancelled at once."""
        for message in self._channel.receive():
            if "cancel" in message:
                with self._lock:
                    sequences = self._open.get(int(message["cancel"]))
                    if sequences is None:
                        self._cancelled.add(int(message["cancel"]))
                for each in sequences or ():
                    each.cancelled = True
            else:
                self._inbox.put(message)
        self._inbox.put(None)

    # ---- models that predict ------------------------------------------------------------------------------------

    def _open_predictor(self, folder: str) -> None:
        from pipelines.serving.predictions import Predictor

        predictor = Predictor(folder)
        predictor.warm()
        self.about |= {"kind": predictor.kind, "columns": list(predictor.columns), "engine": "predict", "why": ""}

        def predict(number: int, question: Mapping[str, Any]) -> None:
            rows, warnings = predictor.predict(question["inputs"], question.get("max_length"))
            self._channel.send({"id": number, "end": {"predictions": rows, "warnings": warnings}})

        self._answers["predict"] = predict

    # ---- models that write or embed -----------------------------------------------------------------------------

    def _open_model(self, folder: str) -> None:
        checkpoint = checkpoints.find(folder)
        writes = "complete" in self.abilities.can
        head: Head = heads.of_checkpoint(folder) if writes else heads.FAMILY_HEADS["encoder"]
        self.tokenizer = open_tokenizer(checkpoint.tokenizer)
        self.model = checkpoints.open_checkpoint(checkpoint, head, trained_head=writes)
        self.context = checkpoints.positions_of(self.model, self.tokenizer)
        self.about["context"] = self.context
        if not writes:
            self.about |= {"engine": "embed", "why": ""}
            self._answers["embed"] = self._embed
            return
        from pipelines.serving.engines import open_engine, text_ends

        self._ends = text_ends(self.model, self.tokenizer)
        self._apart = bool(self.model.config.is_encoder_decoder)
        self._engine, why = open_engine(self.model, self.tokenizer, self.context, self._broken)
        self.about |= {"engine": self._engine.name, "why": why}
        self._answers |= {"complete": self._complete, "chat": self._chat}

    def _broken(self, why: str) -> None:
        """The engine cannot go on, so neither can this process: the server starts another when it is asked again."""
        self._channel.send({"failed": f"the engine ended: {why}"})
        self._channel.close()

    def _embed(self, number: int, question: Mapping[str, Any]) -> None:
        from pipelines.models.embeddings import embed

        vectors, tokens = embed(self.model, self.tokenizer, question["inputs"])
        self._channel.send({"id": number, "end": {"vectors": vectors.tolist(), "prompt_tokens": tokens}})

    def _chat(self, number: int, question: Mapping[str, Any]) -> None:
        text = prompt_text(self.tokenizer, question["messages"])
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self._write(number, question, [ids])

    def _complete(self, number: int, question: Mapping[str, Any]) -> None:
        prompts = [
            checkpoints.text_ids(self.tokenizer, each, stays_open=not self._apart) if isinstance(each, str) else [*each]
            for each in question["prompts"]
        ]
        self._write(number, question, prompts)

    def _write(self, number: int, question: Mapping[str, Any], prompts: list[list[int]]) -> None:
        """Begin the texts of a question: `n` of each prompt."""
        choice = Choice(
            **{key: value for key, value in question["choice"].items() if key not in ("stop", "logit_bias")},
            stop=tuple(question["choice"].get("stop", ())),
            logit_bias={int(key): value for key, value in question["choice"].get("logit_bias", {}).items()},
        )
        copies = int(question.get("n", 1))
        fit = bool(question.get("fit"))
        limits = [self._limit(ids, choice.max_tokens, fit) for ids in prompts]
        asked = Asked(
            number, len(prompts) * copies, sum(map(len, prompts)), self._channel, partial(self._close, number)
        )
        sequences = [
            WrittenSequence(
                self.tokenizer, ids, choice, limit, self._ends, asked.teller(place * copies + draw), draw, self._apart
            )
            for place, (ids, limit) in enumerate(zip(prompts, limits, strict=True))
            for draw in range(copies)
        ]
        with self._lock:
            self._open[number] = sequences
            gone = number in self._cancelled
            self._cancelled.discard(number)
        assert self._engine is not None
        for each in sequences:
            each.cancelled = gone
            self._engine.submit(each)

    def _limit(self, ids: list[int], wanted: int | None, fit: bool = False) -> int:
        """Tokens that may be written behind a prompt: with `fit` what is left where that is less than wanted. Raises
        CommandError where it is too long."""
        rows = self.model.get_input_embeddings().weight.shape[0]
        if not ids:
            raise CommandError("a prompt comes to no token; give a text with words")
        if max(ids) >= rows or min(ids) < 0:
            raise CommandError(f"a prompt has a token that the vocabulary of {rows} does not hold")
        if self.context is None:
            return wanted or UNBOUNDED
        room = self.context - (1 if self._apart else len(ids))
        wanted = min(wanted, max(1, room)) if fit and wanted is not None else wanted
        if room < 1 or len(ids) > self.context or (wanted is not None and wanted > room):
            asked = f"{len(ids)} in the messages or the prompt" + (f", {wanted} in the answer" if wanted else "")
            raise ContextTooLong(
                f"This model's maximum context length is {self.context} tokens. However, you requested "
                f"{len(ids) + (wanted or 0)} tokens ({asked}). Please reduce the length of the messages or the answer."
            )
        return room if wanted is None else wanted

    def _close(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)


class ContextTooLong(CommandError):
    """A question has more tokens than the model has positions."""

    reason = "context_length_exceeded"


class Asked:
    """One question for texts: passes on what is written, and says the last word when all of them are complete."""

    def __init__(self, number: int, texts: int, prompt_tokens: int, channel: Channel, over: Callable[[], None]) -> None:
        self._number, self._left, self._prompt_tokens = number, texts, prompt_tokens
        self._channel, self._over = channel, over
        self._written = 0
        self._failed = False
        self._lock = threading.Lock()

    def teller(self, index: int) -> Callable[[dict[str, Any]], None]:
        """Where text number `index` tells what is written."""
        return partial(self._told, index)

    def _told(self, index: int, told: dict[str, Any]) -> None:
        if "reason" not in told:
            self._channel.send({"id": self._number, "piece": {"index": index, **told}})
            return
        with self._lock:
            self._left -= 1
            self._written += int(told["written"])
            self._failed |= told["reason"] == "error"
            last = self._left == 0
        if told["reason"] in ("stop", "length"):
            self._channel.send({"id": self._number, "finished": {"index": index, "reason": told["reason"]}})
        if not last:
            return
        self._over()
        if self._failed:
            error = {"message": "the text could not be written; try again", "code": "engine_error", "status": 500}
            self._channel.send({"id": self._number, "error": error})
        else:
            usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._written}
            self._channel.send({"id": self._number, "end": usage})
