"""`python -m pipelines serve-model`: one published model, open in a process of its own, that answers a server.

The process holds no web server and no key of anybody: it connects to the socket in its working folder, says what the
model can be asked, and answers until the socket closes. See `protocol` for the words. Templates are run and rows are
predicted in the main thread, one question after another; texts are written by an engine's own thread, all together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, FineryError, ModelError, understood
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import Head
from pipelines.core.model_abilities import Abilities, abilities_of
from pipelines.core.presentation import Form, PageAnswer, plain
from pipelines.core.secrets import secret
from pipelines.data.chat_prompts import OverLimit, bounded_end_of_turn, prompt_text
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.tokenizer import open_tokenizer
from pipelines.serving.protocol import Channel, connect
from pipelines.serving.sequences import LONGEST, Echo, SamplingSettings, WrittenSequence
from pipelines.serving.structured_outputs import GrammarCompiler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.models.attention_maps import OpenedModel
    from pipelines.serving.engines import Engine
    from pipelines.serving.trying import BeamSearch

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
    name: str = ""
    """What the server calls the model."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Folders of other models, by name, whose adapters stand on the same base. Questions then say whom they are for."""


def answer(fields: JSONObject) -> JSONObject:
    """Serve until the server closes the connection; how many questions were answered. Raises FineryError."""
    request = ServeRequest(**fields)
    try:
        channel = connect(request.socket, secret(KEY) or "")
    except OSError as error:
        raise CommandError(f"no server listens at '{request.socket}': {error.strerror}") from None
    try:
        served = ServedModel(request.model, channel, request.name, request.beside)
        channel.send({"ready": served.about})
    except Exception as error:
        channel.send({"failed": str(understood(error))})
        raise
    try:
        return {"answered": served.run()}
    finally:
        served.close()


@dataclass(frozen=True)
class Writer:
    """What is one model's own, where several stand on one base: its tokens, and how long its texts may be."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    ends: list[int]
    """The tokens that end a text."""
    apart: bool
    """Whether texts do not go on with their prompts, as an encoder-decoder's."""
    context: int | None
    """Tokens of the longest text; None for no bound but LONGEST."""
    rows: int
    """Tokens that the model knows."""
    spare: int = 0
    """Positions that the engine needs behind a prompt that nothing is written behind."""

    @classmethod
    def of(cls, name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Writer:
        """That of an opened model."""
        from pipelines.serving.engines import text_ends

        return cls(
            name,
            tokenizer,
            text_ends(model, tokenizer),
            bool(model.config.is_encoder_decoder),
            checkpoints.positions_of(model, tokenizer),
            model.get_input_embeddings().weight.shape[0],
        )

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """What its answers may be held to."""
        return GrammarCompiler(self.tokenizer, self.ends, self.rows)

    def limit(self, ids: list[int], wanted: int | None, fit: bool = False, given: str = "prompt") -> int:
        """Tokens that may be written behind a prompt: with `fit` what is left where that is less than wanted. `given`
        is the argument that it stands in. Raises CommandError where it is too long."""
        if not ids:
            raise WrongArgument(given, "a prompt comes to no token; give a text with words")
        if max(ids) >= self.rows or min(ids) < 0:
            raise WrongArgument(given, f"a prompt has a token that the vocabulary of {self.rows} does not hold")
        context = LONGEST if self.context is None else self.context
        room = context - (1 if self.apart else len(ids))
        wanted = min(wanted, max(1, room)) if fit and wanted is not None else wanted
        needed = self.spare if wanted == 0 else 1
        if room < needed or len(ids) > context or (wanted is not None and wanted > room):
            asked = f"{len(ids)} in the messages or the prompt" + (f", {wanted} in the answer" if wanted else "")
            raise ContextTooLong(
                given,
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{len(ids) + (wanted or 0)} tokens ({asked}). Please reduce the length of the messages or the answer.",
            )
        if wanted is None:
            return min(room, UNBOUNDED) if self.context is None else room
        return wanted


class ServedModel:
    """A model that is open, and the questions to it."""

    def __init__(self, folder: str, channel: Channel, name: str = "", beside: Mapping[str, str] | None = None) -> None:
        """Opens the model, and those beside it that can stand on its base. Raises FineryError."""
        self._channel = channel
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._open: dict[int, Sequence[WrittenSequence | BeamSearch]] = {}
        self._cancelled: set[int] = set()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._writers: dict[str, Writer] = {}
        abilities = abilities_of(Path(folder))
        if abilities is None or not abilities.can:
            raise ModelError(f"'{folder}' holds no model that can be served")
        self.abilities: Abilities = abilities
        self.about: dict[str, Any] = {"kind": abilities.kind, "can": list(abilities.can)}
        self._answers: dict[str, Callable[[int, Mapping[str, Any]], None]] = {"try": self._try}
        self._forms: list[Form] = []
        self._tries: dict[str, Callable[[int, Mapping[str, Any]], PageAnswer | None]] = {}
        if "predict" in abilities.can:
            self._open_predictor(folder)
        elif beside:
            self._open_adapters({name: folder, **beside})
        else:
            self._open_model(folder, name)
        self.about["forms"] = [plain(each) for each in self._forms]

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
                told = {"message": str(failure), "code": code, "status": 400 if wrong else 500}
                if isinstance(error, WrongArgument):
                    told["param"] = error.param
                self._channel.send({"id": number, "error": told})
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

    # ---- pages on which people try the model ---------------------------------------------------------------------

    def _offer(self, form: Form, answer: Callable[[int, Mapping[str, Any]], PageAnswer | None]) -> None:
        """Put a form on the page. `answer` takes the number of the question and what was filled in; one that gives None
        answers later."""
        self._forms.append(form)
        self._tries[form.name] = answer

    def _try(self, number: int, question: Mapping[str, Any]) -> None:
        do = self._tries.get(str(question["form"]))
        if do is None:
            raise CommandError(f"this model has no form '{question['form']}'; it has {', '.join(self._tries)}")
        answer = do(number, question["values"])
        if answer is not None:
            self._channel.send({"id": number, "end": plain(answer)})

    def _offer_attention(self, opened: Callable[[], OpenedModel], config: Any, examples: Sequence[str] = ()) -> None:
        """Of any model: one that forms no maps says so when it is asked."""
        from pipelines.models.heads import family_of
        from pipelines.serving.trying import attention_form, attention_shown

        kept = cache(opened)
        pairs = bool(getattr(config, "type_vocab_size", 0) or 0)
        form = attention_form(family_of(config), pairs, examples)
        self._offer(form, lambda _, values: attention_shown(kept(), values))

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
        self._offer(predictor.form(), lambda _, values: predictor.shown(values))

        def opened() -> OpenedModel:
            from pipelines.models.attention_maps import OpenedModel
            from pipelines.serving.trying import twin

            model, tokenizer = predictor.open_model()
            return OpenedModel(twin(model).base_model, tokenizer, False)  # heads of options take texts in another shape

        self._offer_attention(opened, predictor.config())

    # ---- models that write or embed -----------------------------------------------------------------------------

    def _open_model(self, folder: str, name: str) -> None:
        checkpoint = checkpoints.find(folder)
        writes = "complete" in self.abilities.can
        if writes and self._open_in_vllm(name, checkpoint):
            return
        head: Head = heads.of_checkpoint(folder) if writes else heads.FAMILY_HEADS["encoder"]
        self.tokenizer = open_tokenizer(checkpoint.tokenizer)
        fills = not writes and self.tokenizer.mask_token is not None
        try:
            self.model = checkpoints.open_checkpoint(checkpoint, head, trained_head=writes or fills)
        except ModelError:
            if not fills:
                raise
            fills = False
            self.model = checkpoints.open_checkpoint(checkpoint, head, trained_head=False)
        self.context = checkpoints.positions_of(self.model, self.tokenizer)
        self.about["context"] = self.context
        from pipelines.models.attention_maps import OpenedModel
        from pipelines.serving import trying

        self._page_writer = trying.plain_writer(self.model, self.tokenizer)
        seen = OpenedModel(
            self._page_writer.model, self.tokenizer, writes and bool(self.model.config.is_encoder_decoder)
        )
        if not writes:
            self.about |= {"engine": "embed", "why": ""}
            self._answers["embed"] = self._embed
            if fills:
                self._offer(
                    trying.fill_form(self.tokenizer),
                    lambda _, values: trying.filled(self._page_writer, self._short(values)),
                )
            self._offer(trying.similarity_form(), self._compare)
            self._offer_attention(lambda: seen, self.model.config)
            return
        from pipelines.serving.engines import open_engine

        self._own = Writer.of(name, self.model, self.tokenizer)
        self._writers = {name: self._own}
        self._engine, why = open_engine(self.model, self.tokenizer, self.context, self._broken)
        self.about |= {"engine": self._engine.name, "why": why}
        self._answers |= {"complete": self._complete, "chat": self._chat}
        examples = trying.examples_of(self.abilities.kind)
        if "chat" in self.abilities.can:
            self._offer(trying.chat_form(examples), self._try_chat)
        else:
            self._offer(trying.complete_form(self._own.apart, examples), self._try_complete)
        self._offer_attention(lambda: seen, self.model.config, examples if self._own.apart else ())

    def _compare(self, number: int, values: Mapping[str, Any]) -> PageAnswer:
        from pipelines.models.embeddings import embed
        from pipelines.serving.trying import compared, text_of

        texts = [text_of(values, "text"), text_of(values, "other")]
        return compared(embed(self.model, self.tokenizer, texts)[0])

    def _short(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was filled in, where its text is no longer than the model reads. Raises CommandError."""
        count = len(self.tokenizer(str(values.get("text") or ""), verbose=False)["input_ids"])
        if self.context is not None and count > self.context:
            raise CommandError(f"the text has {count} tokens, and the model reads {self.context}; shorten it")
        return values

    def _try_complete(self, number: int, values: Mapping[str, Any]) -> None:
        from pipelines.serving.trying import text_of

        text = text_of(values, "text")
        self._side_by_side(number, values, checkpoints.text_ids(self.tokenizer, text, stays_open=not self._own.apart))

    def _try_chat(self, number: int, values: Mapping[str, Any]) -> None:
        from pipelines.serving.trying import conversation

        text = prompt_text(self.tokenizer, conversation(values))
        self._side_by_side(number, values, self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _side_by_side(self, number: int, values: Mapping[str, Any], ids: list[int]) -> None:
        """Begin the texts of a page, each written in another way."""
        from pipelines.serving.trying import side_by_side

        room = self._own.limit(ids, None)
        over = partial(self._close, number)
        texts = side_by_side(number, values, ids, room, self._page_writer, self._own.ends, self._channel, over)
        self._begin(number, texts)

    def _open_in_vllm(self, name: str, checkpoint: checkpoints.Checkpoint) -> bool:
        """Whether vLLM serves the model; then it is open."""
        from pipelines.serving.vllm_engine import VllmEngine, unfit

        if unfit(Path(checkpoint.source)):
            return False
        from transformers import AutoConfig

        tokenizer = open_tokenizer(checkpoint.tokenizer)
        config = AutoConfig.from_pretrained(checkpoint.source, trust_remote_code=False).get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        given = getattr(config, "eos_token_id", None)
        end_ids = [*given] if isinstance(given, list) else [given]
        end_ids += [tokenizer.eos_token_id, bounded_end_of_turn(tokenizer)]
        ends = list(dict.fromkeys(each for each in end_ids if isinstance(each, int)))
        self._engine = VllmEngine(checkpoint.source, tokenizer, ends, context, self._broken)
        self._writers = {name: Writer(name, tokenizer, ends, False, context, int(config.vocab_size), spare=1)}
        self.about |= {"context": context, "engine": self._engine.name, "why": ""}
        self._answers |= {"complete": self._complete, "chat": self._chat}
        return True

    def _open_adapters(self, folders: Mapping[str, str]) -> None:
        """Models whose adapters stand on one base take turns."""
        from pipelines.serving.adapters import AdaptersOnOneBase
        from pipelines.serving.engines import BatchedEngine, Tokens, tokens_of

        first = next(iter(folders.values()))
        adapters = AdaptersOnOneBase({name: Path(each) for name, each in folders.items()}, heads.of_checkpoint(first))
        self.model = adapters.model
        tokens: dict[str, Tokens] = {}
        for name in adapters.names:
            tokenizer = open_tokenizer(checkpoints.find(folders[name]).tokenizer)
            self._writers[name] = Writer.of(name, self.model, tokenizer)
            tokens[name] = tokens_of(self.model, tokenizer)

        def turn(name: str) -> Tokens:
            adapters.switch(name)
            return tokens[name]

        self._engine = BatchedEngine(self.model, *tokens[adapters.names[0]], self._broken, turn)
        self.about |= {
            "context": self._writers[adapters.names[0]].context,
            "engine": self._engine.name,
            "why": f"{len(adapters.names)} adapters on one base take turns",
            "models": adapters.names,
        }
        self._answers |= {"complete": self._complete, "chat": self._chat}

    def _writer(self, question: Mapping[str, Any]) -> Writer:
        """The model that a question is for. Raises CommandError."""
        name = str(question.get("model", next(iter(self._writers))))
        if name not in self._writers:
            raise CommandError(f"the model '{name}' is not open here")
        return self._writers[name]

    def _broken(self, why: str) -> None:
        """The engine cannot go on, so neither can this process: the server starts another when it is asked again."""
        self._channel.send({"failed": f"the engine ended: {why}"})
        self._channel.close()

    def _embed(self, number: int, question: Mapping[str, Any]) -> None:
        from pipelines.models.embeddings import embed

        try:
            vectors, tokens = embed(self.model, self.tokenizer, question["inputs"])
        except CommandError as error:
            raise WrongArgument("input", str(error)) from None
        self._channel.send({"id": number, "end": {"vectors": vectors.tolist(), "prompt_tokens": tokens}})

    def _chat(self, number: int, question: Mapping[str, Any]) -> None:
        writer = self._writer(question)
        text = prompt_text(writer.tokenizer, question["messages"])
        ids: list[int] = writer.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self._write(number, question, [ids], writer)

    def _complete(self, number: int, question: Mapping[str, Any]) -> None:
        writer = self._writer(question)
        prompts = [
            checkpoints.text_ids(writer.tokenizer, each, stays_open=not writer.apart)
            if isinstance(each, str)
            else [*each]
            for each in question["prompts"]
        ]
        if not question.get("echo"):
            self._write(number, question, prompts, writer)
            return
        if writer.apart:
            raise WrongArgument(
                "echo", "'echo' is for models that go on with their prompt; this one writes a text apart from it"
            )
        given = zip(question["prompts"], prompts, strict=True)
        self._write(number, question, prompts, writer, [Echo.of(writer.tokenizer, each, ids) for each, ids in given])

    def _write(
        self,
        number: int,
        question: Mapping[str, Any],
        prompts: list[list[int]],
        writer: Writer,
        echoes: Sequence[Echo | None] = (),
    ) -> None:
        """Begin the texts of a question: `n` of each prompt, behind its echo where it has one."""
        choice = SamplingSettings(
            **{key: value for key, value in question["choice"].items() if key not in ("stop", "logit_bias")},
            stop=tuple(question["choice"].get("stop", ())),
            logit_bias={int(key): value for key, value in question["choice"].get("logit_bias", {}).items()},
        )
        copies = int(question.get("n", 1))
        fit = bool(question.get("fit"))
        given = "messages" if "messages" in question else "prompt"
        limits = [writer.limit(ids, choice.max_tokens, fit, given) for ids in prompts]
        beyond = next((token for token in choice.logit_bias if token >= writer.rows), None)
        if beyond is not None:
            raise WrongArgument(
                "logit_bias", f"'logit_bias' names token {beyond}, and the vocabulary has {writer.rows} tokens"
            )
        stream = ResponseStream(
            number, len(prompts) * copies, sum(map(len, prompts)), self._channel, partial(self._close, number)
        )
        if choice.json_schema is not None:  # refused here, whoever follows it
            try:
                writer.grammars.compile_json_schema(choice.json_schema)
            except CommandError as error:
                raise WrongArgument("response_format", str(error)) from None
        ours = None if self.about["engine"] == "vllm" else choice.json_schema
        sequences = [
            WrittenSequence(
                writer.tokenizer,
                ids,
                choice,
                limit,
                writer.ends,
                stream.teller(place * copies + draw),
                draw,
                writer.apart,
                writer.name,
                echo,
                None if ours is None else writer.grammars.compile_json_schema(ours),
            )
            for place, (ids, limit, echo) in enumerate(
                zip(prompts, limits, echoes or [None] * len(prompts), strict=True)
            )
            for draw in range(copies)
        ]
        self._begin(number, sequences)

    def _begin(self, number: int, texts: Sequence[WrittenSequence | BeamSearch]) -> None:
        """Let the texts of a question be written, by the engine or by themselves."""
        with self._lock:
            self._open[number] = texts
            gone = number in self._cancelled
            self._cancelled.discard(number)
        assert self._engine is not None
        for each in texts:
            each.cancelled = gone
            if isinstance(each, WrittenSequence):
                self._engine.submit(each)
            else:
                each.start()

    def _close(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)


class WrongArgument(CommandError):
    """An argument of a question is wrong."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        """Its name."""


class ContextTooLong(WrongArgument):
    """A question has more tokens than the model has positions."""

    reason = "context_length_exceeded"


class ResponseStream:
    """One question for texts: passes on what is written, and says the last word when all of them are complete."""

    def __init__(self, number: int, texts: int, prompt_tokens: int, channel: Channel, over: Callable[[], None]) -> None:
        self._number, self._left, self._prompt_tokens = number, texts, prompt_tokens
        self._channel, self._over = channel, over
        self._written = 0
        self._failed = False
        self._lock = threading.Lock()

    def teller(self, index: int) -> Callable[[dict[str, Any]], None]:
        """Where text number `index` tells what is written."""
        return partial(self._pass_on, index)

    def _pass_on(self, index: int, update: dict[str, Any]) -> None:
        if "reason" not in update:
            self._channel.send({"id": self._number, "piece": {"index": index, **update}})
            return
        with self._lock:
            self._left -= 1
            self._written += int(update["written"])
            self._failed |= update["reason"] == "error"
            last = self._left == 0
        if update["reason"] in ("stop", "length"):
            self._channel.send({"id": self._number, "finished": {"index": index, "reason": update["reason"]}})
        if not last:
            return
        self._over()
        if self._failed:
            error = {"message": "the text could not be written; try again", "code": "engine_error", "status": 500}
            self._channel.send({"id": self._number, "error": error})
        else:
            usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._written}
            self._channel.send({"id": self._number, "end": usage})
