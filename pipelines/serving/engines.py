"""The two engines that write: transformers' continuous batching, and batches of `generate`.

Continuous batching keeps keys and values in pages that all texts share, so that a question joins between two steps of
the others. It runs decoders whose attention transformers can give pages to. Whether it runs this one is tried when the
model is opened: the engine must write the tokens that `generate` writes. Where it does not, texts are written by
`generate`, a batch at a time; encoder-decoders always are. A batch that others wait for makes way after some tokens,
and goes on later from what is written.

In both, a logits processor asks each text for its next token and leaves no other choice, so that settings are of one
text, whatever is written beside it. Neither tells logits within a prompt: where these are wanted, the plain model reads
the prompt before its text is written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from pipelines.data.chat_prompts import bounded_end_of_turn
from pipelines.data.completions import padding_token
from pipelines.data.ragged import padded_tensors
from pipelines.models.checkpoint import start_token
from pipelines.models.log_probabilities import distributions_of
from pipelines.models.sampling import ends_of
from pipelines.serving.sequences import LONGEST, SamplingSettings, WrittenSequence
from pipelines.serving.trying import twin

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH = 16
"""Texts that `generate` writes at a time."""
CACHE_BYTES = 1 << 30
"""Of keys and values in pages, where the longest text fits into that."""
PAGE = 32
"""Tokens of a page."""
TURN = 32
"""Tokens that `generate` adds to a batch before it makes way, where others wait."""
STEP = 256
"""Tokens of all texts together that are read in one step."""
PROBE, PROBED = 40, 6
"""Tokens that the engine reads and writes when it is tried."""


class Tokens(NamedTuple):
    """Of one model."""

    end: int
    """Ends a text."""
    pad: int
    start: int | None
    """Begins the texts of an encoder-decoder; None for decoders."""


class Engine(Protocol):
    """Writes texts, many at a time."""

    name: str
    """`continuous` or `batched`."""

    def submit(self, sequence: WrittenSequence) -> None:
        """Begin to write a text. Returns at once."""

    def close(self) -> None:
        """End, whatever is being written."""


def open_engine(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, context: int | None, broken: Callable[[str], None]
) -> tuple[Engine, str]:
    """The engine for a model in evaluation mode, and why it is not continuous batching (empty where it is).

    `context` is the longest text in tokens, None for no bound. `broken` is called when the engine cannot go on.
    """
    ends = text_ends(model, tokenizer)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=padding_token(tokenizer))
    if model.config.is_encoder_decoder:
        return BatchedEngine(model, *tokens_of(model, tokenizer), broken), "it is an encoder-decoder"
    attention = model.config._attn_implementation
    try:
        engine = ContinuousEngine(model, ends[0], context or LONGEST, broken)
        _try(engine, model, tokenizer, context or LONGEST)
    except Exception as error:  # whatever a library finds that was not made for this model
        with suppress(Exception):
            engine.close()
        model.set_attn_implementation(attention)
        why = " ".join(str(error).split())[:200] or type(error).__name__
        return BatchedEngine(model, ends[0], padding_token(tokenizer), None, broken), why
    return engine, ""


def tokens_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """What the texts of a model begin, end and are filled with."""
    start = start_token(model, tokenizer) if model.config.is_encoder_decoder else None
    return Tokens(text_ends(model, tokenizer)[0], padding_token(tokenizer), start)


def text_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a text: where a model has none, its padding, which stands in no text."""
    return ends_of(model, tokenizer, bounded_end_of_turn) or [padding_token(tokenizer)]


def _try(engine: ContinuousEngine, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, context: int) -> None:
    """Let both write behind two prompts. Raises RuntimeError where the engine writes something else."""
    size = min(PROBE, max(1, context - PROBED - 1))
    words = min(len(tokenizer), model.get_input_embeddings().weight.shape[0])
    prompts = [[(7 * place + 11 * row + 5) % words for place in range(size - row * (size // 3))] for row in (0, 1)]
    done = [threading.Event() for _ in prompts]
    written = [
        WrittenSequence(tokenizer, prompt, SamplingSettings(temperature=0), PROBED, [engine.end], _on_end(event.set))
        for prompt, event in zip(prompts, done, strict=True)
    ]
    for each in written:
        engine.submit(each)
    if not all(event.wait(60.0) for event in done):
        raise RuntimeError("continuous batching did not answer")
    if any(each.reason == "error" for each in written):
        raise RuntimeError(engine.problem or "continuous batching failed")
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=PROBED, min_new_tokens=PROBED, pad_token_id=padding_token(tokenizer)
    )
    own, model.generation_config = model.generation_config, settings
    attention = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager" if attention.startswith("paged|") else attention)
        for prompt, each in zip(prompts, written, strict=True):
            with torch.inference_mode():
                expected = model.generate(
                    torch.tensor([prompt], device=model.device),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.int64, device=model.device),
                    generation_config=settings,
                )
            tokens = expected[0, len(prompt) :].tolist()
            if tokens[: tokens.index(engine.end) + 1 if engine.end in tokens else None] != each.tokens:
                raise RuntimeError("continuous batching writes other tokens than generate does")
    finally:
        model.generation_config = own
        model.set_attn_implementation(attention)


def tell_prompt(model: PreTrainedModel, sequence: WrittenSequence) -> None:
    """Let a text begin with its prompt, where it is echoed. `model` is a decoder with an attention of its own."""
    records: list[dict[str, Any]] = []
    behind = sequence.prompt[1:]
    if sequence.scores_prompt and behind and not sequence.cancelled:
        ids = torch.tensor([sequence.prompt], device=model.device)
        wanted = torch.ones_like(ids, dtype=torch.bool)
        wanted[:, -1] = False
        with torch.no_grad():
            _, said = distributions_of(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, wanted)
            for part, logits in said.in_chunks():
                records += sequence.records(logits, behind[part])
    if sequence.cancelled:
        sequence.end("cancelled")
    sequence.tell_prompt(records)


def _on_end(call: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    return lambda update: call() if "reason" in update else None


class _Choose(ContinuousBatchingLogitsProcessor):
    """The choice of every text's next token, where pages are used. Called in the engine's thread alone."""

    supported_kwargs: dict[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, find: Callable[[str], WrittenSequence | None], end: int) -> None:
        self._find, self._end = find, end
        self._rows: list[str] = []

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Nothing of this processor travels in tensors."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
        """Notes whose tokens the next step chooses, in the order of the rows."""
        self._rows = [each.state.request_id for each in requests_with_new_token]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """`scores` (rows, vocab) with all but the chosen token at minus infinity."""
        chosen = torch.full_like(scores, float("-inf"))
        for row, name in enumerate(self._rows):
            chosen[row, _next(self._find(name), scores[row], self._end)] = 0.0
        return chosen


def _next(sequence: WrittenSequence | None, logits: Tensor, end: int) -> int:
    """A text's next token; `end` where it is complete. A text that fails ends alone."""
    if sequence is None:
        return end
    try:
        token = sequence.choose(logits)
    except Exception:
        sequence.end("error")
        return end
    return end if token is None else token


class ContinuousEngine:
    """transformers' continuous batching."""

    name = "continuous"

    def __init__(self, model: PreTrainedModel, end: int, context: int, broken: Callable[[str], None]) -> None:
        """`end` is the token that ends every text for transformers: no text goes on behind it."""
        self.problem = ""
        self.end = end
        self._plain = twin(model)  # before its attention reads pages
        self._broken, self._closed = broken, False
        self._sequences: dict[str, WrittenSequence] = {}
        self._count = 0
        self._lock = threading.Lock()
        settings = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=pages(model.config, context),
            max_batch_tokens=STEP,
            max_requests_per_batch=STEP // 4,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            allow_block_sharing=False,
        )
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=end, pad_token_id=end),
            continuous_batching_config=settings,
        )
        processors = self._manager.logit_processor
        processors.logits_processor = LogitsProcessorList([_Choose(self._sequences.get, end)])
        processors.tensors_required, processors.do_processing = 1, True
        self._manager.start()
        self._watching = threading.Thread(target=self._watch, name="continuous batching", daemon=True)
        self._watching.start()

    def submit(self, sequence: WrittenSequence) -> None:
        """See `Engine.submit`."""
        try:
            tell_prompt(self._plain, sequence)
        except Exception as error:  # it ends alone, as a text that fails later does
            self.problem = " ".join(str(error).split())[:400] or type(error).__name__
            sequence.end("error")
        if sequence.reason is not None:
            return
        with self._lock:
            self._count += 1
            name = str(self._count)
            self._sequences[name] = sequence
        added = self._manager.add_request(
            sequence.prompt, request_id=name, max_new_tokens=sequence.limit + 1, eos_token_id=self.end
        )
        if added is None:
            self._over(name)

    def close(self) -> None:
        """See `Engine.close`."""
        self._closed = True
        self._manager.stop(block=True, timeout=10)

    def _over(self, name: str) -> None:
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            sequence.end("error")

    def _watch(self) -> None:
        """Forget the texts that are complete, and end those that failed."""
        for output in self._manager:
            if output.error:
                self.problem = str(output.error)
            if output.is_finished():
                self._over(output.request_id)
        self._fail(str(self._manager.background_thread_status.fatal_error or self.problem or "it ended"))

    def _fail(self, why: str) -> None:
        self.problem = self.problem or why
        for name in list(self._sequences):
            self._over(name)
        if not self._closed:
            self._broken(self.problem)


def pages(config: Any, context: int) -> int:
    """How many pages of keys and values are kept: at least those of one text as long as the context."""
    words = config.get_text_config()
    heads = getattr(words, "num_key_value_heads", None) or words.num_attention_heads
    size = getattr(words, "head_dim", None) or words.hidden_size // words.num_attention_heads
    page = 2 * 4 * PAGE * words.num_hidden_layers * heads * size  # keys and values, of four bytes
    least = -(-context // PAGE) + 1
    return max(least, min(BATCH * least, CACHE_BYTES // page))


class BatchedEngine:
    """`generate`, batch after batch. Texts are taken in the order in which they were asked for; those that made way
    stand behind the others.

    Where several models stand on one base, a batch holds texts of one of them, those of the text that waits longest.
    The texts of an encoder-decoder's batch have the same number of tokens written: its decoder reads no padding.
    """

    name = "batched"

    def __init__(
        self,
        model: PreTrainedModel,
        end: int,
        pad: int,
        start: int | None,
        broken: Callable[[str], None],
        turn: Callable[[str], Tokens] | None = None,
    ) -> None:
        """`start` is the token that an encoder-decoder's texts begin with; None for decoders. `turn` lets the model
        compute as another one, by its name, and returns the tokens of that one."""
        self._model, self._broken, self._turn = model, broken, turn
        self._tokens = Tokens(end, pad, start)
        self._waiting: deque[WrittenSequence] = deque()
        self._batch: list[WrittenSequence] = []
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="batched generate", daemon=True).start()

    def submit(self, sequence: WrittenSequence) -> None:
        """See `Engine.submit`."""
        with self._changed:
            self._waiting.append(sequence)
            self._changed.notify()

    def close(self) -> None:
        """See `Engine.close`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            for each in (*self._batch, *self._waiting):
                each.cancelled = True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._batch = self._next_batch()
            try:
                if self._turn is not None:
                    self._tokens = self._turn(self._batch[0].model)
                made_way = self._write(self._batch)
            except Exception as error:
                made_way = []
                self._broken(" ".join(str(error).split())[:400] or type(error).__name__)
            for each in self._batch:
                if each not in made_way:
                    each.end("error")  # those that are complete have ended
            with self._changed:
                self._waiting.extend(made_way)
                self._batch = []

    def _next_batch(self) -> list[WrittenSequence]:
        """Takes the texts that wait longest, all of one kind."""
        kind, batch, others = self._kind(self._waiting[0]), [], deque[WrittenSequence]()
        while self._waiting and len(batch) < BATCH:
            each = self._waiting.popleft()
            (batch if self._kind(each) == kind else others).append(each)
        self._waiting.extendleft(reversed(others))
        return batch

    def _kind(self, sequence: WrittenSequence) -> tuple[str, int]:
        """What the texts of a batch have in common."""
        return sequence.model, len(sequence.tokens) if self._model.config.is_encoder_decoder else 0

    def _write(self, batch: Sequence[WrittenSequence]) -> list[WrittenSequence]:
        """Go on with the texts until they are complete, or make way; returns those that made way."""
        end, pad, start = self._tokens
        for each in batch:
            if not each.tokens:
                tell_prompt(self._model, each)
        batch = [each for each in batch if each.reason is None]
        if not batch:
            return []
        before = [len(each.tokens) for each in batch]
        tokens: dict[str, Any] = {}
        inputs: dict[str, Tensor] = {}
        if start is None:
            ids, real = padded_tensors([each.prompt + each.tokens for each in batch], pad, on_the_left=True)
        else:
            ids, real = padded_tensors([each.prompt for each in batch], pad)
            tokens["decoder_start_token_id"] = start
            inputs["decoder_input_ids"] = torch.tensor([[start, *each.tokens] for each in batch])
        given = inputs.get("decoder_input_ids", ids).shape[1]
        settings = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max(each.limit - written for each, written in zip(batch, before, strict=True)),
            eos_token_id=end,
            pad_token_id=end,
            **tokens,
        )

        def choose(input_ids: Tensor, scores: Tensor) -> Tensor:
            chosen = torch.full_like(scores, float("-inf"))
            for row, sequence in enumerate(batch):
                chosen[row, _next(sequence, scores[row], end)] = 0.0
            return chosen

        def make_way(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
            over = bool(self._waiting) and input_ids.shape[1] - given >= TURN
            return torch.full((len(batch),), over, device=input_ids.device)

        inputs |= {"input_ids": ids, "attention_mask": real}
        with torch.inference_mode():
            self._model.generate(
                **{name: values.to(self._model.device) for name, values in inputs.items()},
                generation_config=settings,
                logits_processor=LogitsProcessorList([choose]),
                stopping_criteria=StoppingCriteriaList([make_way]),
            )
        grown = (each for each, written in zip(batch, before, strict=True) if len(each.tokens) > written)
        return [each for each in grown if each.reason is None]
