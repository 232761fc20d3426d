"""What a served model offers to people who try it on a page: forms, and answers in the parts of `core.presentation`.

A model that predicts has the form of its kind of task; one that writes shows greedy search, beam search and a sample
side by side while they are written; one that fills in words takes a text with gaps; vectors are compared; and all that
form attention show its maps. Beams, gaps and maps need the plain model, eager and token by token, while the engine
writes for others with its own kernel: `twin` is a second module over the same weights.
"""

from __future__ import annotations

import base64
import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import GenerationConfig

from pipelines.commands.generate import (
    GenerateRequest,
    TextGenerator,
    distinct_2,
    fill_in,
    log_probabilities,
    special_tokens,
)
from pipelines.core.errors import CommandError, understood
from pipelines.core.presentation import (
    MOST_MAPS,
    Attention,
    AttentionHead,
    AttentionView,
    Form,
    FormField,
    Marked,
    Number,
    PageAnswer,
    Piece,
    Writing,
    Writings,
    bars,
    plain,
)
from pipelines.models.attention_maps import AttentionRequest, AttentionSection, OpenedModel, attend
from pipelines.models.heads import Family, family_of
from pipelines.serving.sequences import SamplingSettings, WrittenSequence
from pipelines.tasks.base import LabelledTask
from pipelines.tasks.evaluation import evaluation_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.serving.protocol import Channel

TOKENS_SHOWN = 48
"""Of each text, in maps of attention."""
PICTURE_BYTES = 1 << 20
"""Of all small maps of an answer together; where they are more, none is drawn."""
GAP = "___"
"""What people may write for the tokenizer's mask."""
TELL_SECONDS = 0.05
"""How often it is told at most what the best beam is by now."""
WAYS = (("greedy", "Greedy"), ("beam", "Beam search"), ("sample", "Sample"))
SETTINGS = (
    FormField(name="ways", label="Written by", control="ways", value="greedy,beam,sample", choices=WAYS),
    FormField(name="max_tokens", label="Tokens at most", control="number", value="64", low=1, high=512, whole=True),
    FormField(name="num_beams", label="Beams", control="number", value="4", low=2, high=16, whole=True),
    FormField(
        name="temperature",
        label="Temperature of the sample",
        control="number",
        hint="Below 1 bolder in what is likely, above 1 wilder.",
        value="0.8",
        low=0.01,
        high=5,
    ),
    FormField(
        name="top_p",
        label="Top p of the sample",
        control="number",
        hint="Drawn from the likeliest words that hold this probability.",
        value="0.95",
        low=0.01,
        high=1,
    ),
    FormField(name="seed", label="Seed of the sample", control="number", value="1", low=0, high=2**31, whole=True),
)
CONTINUED = ({"text": "It was a dark and quiet night, and"}, {"text": "The old man looked at the sea"})
SENTENCE = "The cat that chased the mouse was tired."
COMPARED = (
    {"text": "The train is late again.", "other": "Once more the train does not come in time."},
    {"text": "The train is late again.", "other": "Whales are mammals."},
)


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A module of its own over the same weights, with a config of its own: what is set there changes nothing here."""
    memo: dict[int, Any] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo).eval()


def plain_writer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TextGenerator:
    """A twin that `generate` can be called of."""
    other = twin(model)
    tokens = special_tokens(other, tokenizer)
    other.generation_config = GenerationConfig(**tokens)
    return TextGenerator(other, tokenizer, family_of(other.config), GenerateRequest("this model"), tokens)


def text_of(values: Mapping[str, Any], name: str) -> str:
    """What stands in a field of texts. Raises CommandError where it is empty."""
    text = str(values.get(name) or "")
    if not text.strip():
        raise CommandError(f"'{name.replace('_', ' ')}' is empty; write something there")
    return text


def number_of(values: Mapping[str, Any], field: FormField) -> float:
    """What stands in a field of numbers, else its first value. Raises CommandError."""
    given = str(values.get(field.name) or field.value).strip()
    allowed = f"{'a whole number' if field.whole else 'a number'} from {field.low:g} to {field.high:g}"
    try:
        number = float(given)
    except ValueError:
        raise CommandError(f"'{field.label}' is '{given[:40]}', must be {allowed}") from None
    low, high = field.low or 0.0, field.high or 0.0
    if not low <= number <= high or (field.whole and not number.is_integer()):
        raise CommandError(f"'{field.label}' is {given[:40]}, must be {allowed}")
    return number


def examples_of(kind: str) -> list[str]:
    """Texts to start from, as a kind of task that writes has them."""
    task = LabelledTask("examples", kind, ("text",), "", (), {})
    return [str(row[0]) for row in evaluation_of(kind).examples(task)]


def conversation(values: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages of a chat: the system's, what was said so far by turns, and the new one. Raises CommandError."""
    system, said = str(values.get("system") or "").strip(), values.get("dialogue") or []
    turns = [str(each) for each in said] if isinstance(said, list) else []
    if len(turns) % 2:
        raise CommandError("what was said so far must end with an answer; begin the conversation again")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
    return [*messages, {"role": "user", "content": text_of(values, "message")}]


# ---- texts, side by side ---------------------------------------------------------------------------------------------


def chat_form(examples: Sequence[str]) -> Form:
    """For a model with a chat template."""
    return Form(
        name="chat",
        title="Talk with it",
        button="Send",
        fields=(
            FormField(name="dialogue", label="Said so far", control="dialogue", needed=False),
            FormField(name="message", label="Your message"),
        ),
        settings=(
            FormField(name="system", label="System message", control="line", needed=False, hint="Said before all."),
            *SETTINGS,
        ),
        examples=tuple({"message": text} for text in examples),
        streams=True,
    )


def complete_form(apart: bool, examples: Sequence[str]) -> Form:
    """For a model that goes on with a text, or, where the answer stands `apart`, writes one from another."""
    return Form(
        name="complete",
        title="What does the model write?",
        button="Write",
        fields=(FormField(name="text", label="Text" if apart else "Beginning of a text"),),
        settings=SETTINGS,
        examples=tuple({"text": text} for text in examples) if apart else CONTINUED,
        streams=True,
    )


class SideBySide:
    """The texts of one question: passes on what is written, and shows all of them when the last is complete."""

    def __init__(self, number: int, titles: Sequence[str], channel: Channel, over: Callable[[], None]) -> None:
        self._number, self._channel, self._over = number, channel, over
        self._titles, self._left = list(titles), len(titles)
        self._texts = [""] * len(titles)
        self._chances: list[list[float]] = [[] for _ in titles]
        self._facts: list[tuple[tuple[str, str], ...]] = [()] * len(titles)
        self._notes: list[str] = []
        self._failed = ""
        self._lock = threading.Lock()
        channel.send({"id": number, "texts": self._titles})

    def note(self, text: str) -> None:
        """Something to say below the texts."""
        self._notes.append(text)

    def teller(self, index: int, tokens: Callable[[], Sequence[int]]) -> Callable[[dict[str, Any]], None]:
        """Where a `WrittenSequence` tells what it writes; `tokens` are those of the text so far."""

        def tell(update: dict[str, Any]) -> None:
            if "reason" in update:
                failed = "the text could not be written; try again" if update["reason"] == "error" else ""
                self.complete(index, update["reason"], tokens(), self._chances[index], failed)
                return
            self._texts[index] += update["text"]
            self._chances[index] += [each["logprob"] for each in update["tokens"]]
            self._channel.send({"id": self._number, "piece": {"index": index, "text": update["text"], "tokens": []}})

        return tell

    def replace(self, index: int, text: str) -> None:
        """The whole of a text that may still change, as the best beam does."""
        self._texts[index] = text
        self._channel.send({"id": self._number, "replace": {"index": index, "text": text}})

    def complete(
        self, index: int, reason: str, tokens: Sequence[int], chances: Sequence[float], failed: str = ""
    ) -> None:
        """A text is at its end: its tokens without the one that ends it, and their log-probabilities."""
        repeated = distinct_2(tokens)
        self._facts[index] = (
            ("tokens", str(len(tokens))),
            ("end", "by itself" if reason == "stop" else "at the limit" if reason == "length" else reason),
            *([("log p per token", f"{sum(chances) / len(chances):.2f}")] if chances else []),
            *([] if repeated is None else [("distinct-2", f"{repeated:.2f}")]),
        )
        if reason in ("stop", "length"):
            self._channel.send({"id": self._number, "finished": {"index": index, "reason": reason}})
        with self._lock:
            self._failed = self._failed or failed
            self._left -= 1
            if self._left:
                return
        self._over()
        if self._failed:
            error = {"message": self._failed, "code": "engine_error", "status": 500}
            self._channel.send({"id": self._number, "error": error})
            return
        writings = Writings(
            writings=tuple(
                Writing(title=title, text=text[:200_000], facts=facts)
                for title, text, facts in zip(self._titles, self._texts, self._facts, strict=True)
            )
        )
        self._channel.send({"id": self._number, "end": plain(PageAnswer(parts=(writings,), notes=tuple(self._notes)))})


class BeamSearch:
    """Beam search for one prompt, in a thread of its own; one at a time."""

    _one = threading.Lock()

    def __init__(
        self, writer: TextGenerator, prompt: Sequence[int], beams: int, limit: int, texts: SideBySide, index: int
    ) -> None:
        """What is found is told to text number `index`."""
        self.cancelled = False
        """Set from any thread; the search ends before its next step."""
        self._writer, self._prompt, self._beams, self._limit = writer, list(prompt), beams, limit
        self._texts, self._index = texts, index

    def start(self) -> None:
        """Begin. Returns at once."""
        threading.Thread(target=self._run, name="beam search", daemon=True).start()

    def _run(self) -> None:
        texts, index = self._texts, self._index
        try:
            with self._one:
                tokens, chances, ended = self._search(lambda text: texts.replace(index, text))
        except _Cancelled:
            texts.complete(index, "cancelled", (), ())
        except Exception as error:  # whatever a library finds: the other texts are told all the same
            texts.complete(index, "error", (), (), str(understood(error)))
        else:
            texts.replace(index, self._decoded(tokens))
            texts.complete(index, "stop" if ended else "length", tokens, chances)

    def _search(self, tell: Callable[[str], None]) -> tuple[list[int], list[float], bool]:
        """(tokens, their log-probabilities, whether the text ended by itself)."""
        import torch
        from transformers import LogitsProcessorList

        writer, last = self._writer, [0.0]
        decoder = writer.family == "decoder"
        start = len(self._prompt) if decoder else 1

        def watch(sequences: Any, scores: Any) -> Any:
            """Between two steps, with the best beam first: (beams, tokens)."""
            if self.cancelled:
                raise _Cancelled
            if time.monotonic() - last[0] > TELL_SECONDS:
                last[0] = time.monotonic()
                tell(self._decoded(sequences[0, start:].tolist()))
            return scores

        ids = torch.tensor([self._prompt], device=writer.model.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        settings = GenerationConfig(**writer.tokens, do_sample=False, num_beams=self._beams, max_new_tokens=self._limit)
        with torch.inference_mode():
            whole = writer.model.generate(
                **inputs, generation_config=settings, logits_processor=LogitsProcessorList([watch])
            )[0]
            chances = log_probabilities(writer, inputs, whole)[start - 1 :]
        found: list[int] = whole[start:].tolist()
        ends = writer.tokens["eos_token_id"]
        ends = set(ends) if isinstance(ends, list) else {ends}
        size = next((place for place, token in enumerate(found) if token in ends), len(found))
        return found[:size], chances[:size], size < len(found)

    def _decoded(self, tokens: Sequence[int]) -> str:
        """The text of the answer; the space before its first word is kept where the prompt goes on."""
        decode = self._writer.tokenizer.decode
        if self._writer.family != "decoder":
            return str(decode(tokens, skip_special_tokens=True))
        tail = self._prompt[-6:]
        before = decode(tail, skip_special_tokens=True)
        return str(decode([*tail, *tokens], skip_special_tokens=True))[len(before) :]


class _Cancelled(Exception):
    pass


def side_by_side(
    number: int,
    values: Mapping[str, Any],
    prompt: Sequence[int],
    room: int,
    writer: TextGenerator,
    ends: Sequence[int],
    channel: Channel,
    over: Callable[[], None],
) -> list[WrittenSequence | BeamSearch]:
    """What is to be written, and not begun yet. Raises CommandError.

    At most `room` tokens have a place behind the prompt; `over` is called when all texts are complete.
    """
    settings = {field.name: number_of(values, field) for field in SETTINGS if field.control == "number"}
    given = values.get("ways")
    chosen = list(given) if isinstance(given, list) else str(given or SETTINGS[0].value).split(",")
    ways = [way for way, _ in WAYS if way in chosen]
    if not ways:
        raise CommandError(f"'Written by' must name at least one of {', '.join(way for way, _ in WAYS)}")
    wanted, beams = int(settings["max_tokens"]), int(settings["num_beams"])
    temperature, top_p, seed = settings["temperature"], settings["top_p"], int(settings["seed"])
    limit = min(wanted, room)
    titles = {
        "greedy": "Greedy",
        "beam": f"Beam search, {beams} beams",
        "sample": f"Sample, temperature {temperature:g}, top p {top_p:g}, seed {seed}",
    }
    texts = SideBySide(number, [titles[way] for way in ways], channel, over)
    if limit < wanted:
        texts.note(f"The model has positions for {limit} more tokens: at most so many instead of {wanted} are written.")
    choices = {
        "greedy": SamplingSettings(temperature=0.0, logprobs=0),
        "sample": SamplingSettings(temperature=temperature, top_p=top_p, seed=seed, logprobs=0),
    }
    return [
        BeamSearch(writer, prompt, beams, limit, texts, index)
        if way == "beam"
        else _sequence(writer, prompt, choices[way], limit, ends, texts, index)
        for index, way in enumerate(ways)
    ]


def _sequence(
    writer: TextGenerator,
    prompt: Sequence[int],
    choice: SamplingSettings,
    limit: int,
    ends: Sequence[int],
    texts: SideBySide,
    index: int,
) -> WrittenSequence:
    """One text of the engine's."""
    own: list[WrittenSequence] = []
    stops = frozenset(ends)
    tell = texts.teller(index, lambda: [token for token in own[0].tokens if token not in stops])
    apart = writer.family != "decoder"
    own.append(WrittenSequence(writer.tokenizer, prompt, choice, limit, ends, tell, 0, apart))
    return own[0]


# ---- gaps, vectors and attention -------------------------------------------------------------------------------------


def fill_form(tokenizer: PreTrainedTokenizerBase) -> Form:
    """For an encoder with its masked language model."""
    return Form(
        name="fill_mask",
        title="Which word is missing?",
        button="Fill in",
        fields=(
            FormField(name="text", label="Text with gaps", hint=f"{GAP} or {tokenizer.mask_token} stands for a word."),
        ),
        examples=({"text": f"The old man {GAP} at the sea."}, {"text": f"She {GAP} the letter and {GAP} the door."}),
        gap=str(tokenizer.mask_token),
    )


def filled(writer: TextGenerator, values: Mapping[str, Any]) -> PageAnswer:
    """The likeliest words of each gap. Raises CommandError."""
    mask = str(writer.tokenizer.mask_token)
    text = text_of(values, "text").replace(GAP, mask)
    if text.count(mask) == 0:
        raise CommandError(f"the text has no gap; write {GAP} or {mask} where a word is missing")
    if text.count(mask) > 12:
        raise CommandError(f"the text has {text.count(mask)} gaps, must have at most 12")
    found = fill_in(writer, text)
    best = [each["candidates"][0] for each in found["masks"]]
    pieces: list[Piece] = []
    for place, part in enumerate(text.split(mask)):
        pieces += [Piece(text=part)] if part else []
        if place < len(best):
            word = best[place]["token"]
            pieces.append(Piece(text=word, mark=f"gap {place + 1}", share=best[place]["probability"]))
    columns = tuple(
        bars(
            [candidate["token"] for candidate in each["candidates"]],
            [candidate["probability"] for candidate in each["candidates"]],
            f"Gap {each['mask']}",
        )
        for each in found["masks"]
    )
    notes = ("Each gap is filled as if the others stayed open.",) if len(best) > 1 else ()
    return PageAnswer(parts=(Marked(title="The likeliest words", pieces=tuple(pieces)), *columns), notes=notes)


def similarity_form() -> Form:
    """For an encoder without anything that reads its vectors."""
    return Form(
        name="similarity",
        title="How near are two texts?",
        button="Compare",
        fields=(FormField(name="text", label="Text"), FormField(name="other", label="Other text")),
        examples=COMPARED,
        note="The cosine of the vectors that /v1/embeddings gives.",
    )


def compared(vectors: NDArray[np.float32]) -> PageAnswer:
    """Of two vectors of length 1."""
    cosine = float(np.clip(vectors[0] @ vectors[1], -1.0, 1.0))
    return PageAnswer(parts=(Number(title="Cosine of the two texts", value=cosine, low=-1.0, high=1.0),))


def attention_form(family: Family, pairs: bool, examples: Sequence[str] = ()) -> Form:
    """For every model whose layers tell what they look at. `pairs` are read together by models with segments."""
    pair = FormField(
        name="pair", label="Second text", hint="Read together with the first.", control="line", needed=False
    )
    target = FormField(
        name="target", label="What the decoder reads", hint="Empty: its own answer.", control="line", needed=False
    )
    pick = FormField(name="head", label="Head", control="pick", needed=False)
    return Form(
        name="attention",
        title="What does it look at?",
        button="Show attention",
        fields=(
            FormField(name="text", label="Text"),
            *([pair] if pairs else []),
            *([target] if family == "encoder-decoder" else []),
        ),
        settings=(pick,),
        examples=tuple({"text": text} for text in examples or (SENTENCE,)),
        note="Attention is what a head reads from, not a proof of why the model answers as it does.",
    )


def attention_shown(opened: OpenedModel, values: Mapping[str, Any]) -> PageAnswer:
    """All heads small and one of them whole. Raises FineryError."""
    pair, target = (str(values.get(name) or "").strip() or None for name in ("pair", "target"))
    request = AttentionRequest("this model", text_of(values, "text"), pair, target, limit=TOKENS_SHOWN, hints=False)
    maps = attend(request, opened)
    sections = [_with_means(section) for section in reversed(maps.sections)]  # across two texts first
    wanted, layer, head = _picked(str(values.get("head") or ""), sections)
    cells = sum(section.weights.size for section in sections)
    views = []
    for section in sections:
        entropies, distances = section.entropies(), section.distances()
        heads = [
            AttentionHead(
                layer=number,
                head=name,
                entropy=round(float(entropies[row, column]), 4),
                distance=None if distances is None else round(float(distances[row, column]), 4),
                picture=_picture(section.weights[row, column]) if cells <= PICTURE_BYTES else "",
            )
            for row, number in enumerate(section.layers)
            for column, name in enumerate(section.heads)
        ]
        shown: tuple[tuple[float, ...], ...] = ()
        if section.name == wanted:
            weights = section.weights[section.layers.index(layer), section.heads.index(head)]
            shown = tuple(tuple(round(float(each), 5) for each in row) for row in np.clip(weights, 0.0, 1.0))
        views.append(
            AttentionView(
                name=section.name,
                title=section.title,
                queries=tuple(token[:60] for token in section.queries),
                keys=tuple(token[:60] for token in section.keys),
                heads=tuple(heads[:MOST_MAPS]),
                layer=layer if shown else 0,
                head=head if shown else 0,
                weights=shown,
            )
        )
    notes = [note[:1000] for note in maps.notes]
    return PageAnswer(parts=(Attention(views=tuple(views)),), notes=tuple(notes))


def _with_means(section: AttentionSection) -> AttentionSection:
    """The section with a head 0 in each layer: the mean of its heads, whose rows sum to 1 as theirs do."""
    weights = np.concatenate([section.weights.mean(axis=1, keepdims=True), section.weights], axis=1)
    return AttentionSection(
        section.name, section.title, section.queries, section.keys, weights, section.layers, (0, *section.heads)
    )


def _picked(text: str, sections: Sequence[AttentionSection]) -> tuple[str, int, int]:
    """(section, layer, head) of `cross:2.1`; the mean of the last layer of the first section where none is named."""
    if not text:
        return sections[0].name, sections[0].layers[-1], 0
    name, _, place = text.partition(":")
    layer, _, head = place.partition(".")
    section = next((each for each in sections if each.name == name), None)
    if section is None or not layer.isdecimal() or not head.isdecimal():
        known = ", ".join(f"{each.name}:{each.layers[-1]}.{each.heads[-1]}" for each in sections)
        raise CommandError(f"'head' is '{text[:40]}', must name attention, layer and head, up to {known}")
    if int(layer) not in section.layers or int(head) not in section.heads:
        count = f"{len(section.layers)} layers with {len(section.heads) - 1} heads"
        raise CommandError(f"'head' is '{text[:40]}', but the {name} attention has {count}; 0 is their mean")
    return name, int(layer), int(head)


def _picture(weights: NDArray[np.float32]) -> str:
    """(query, key) bytes in base64: shares of the largest weight of each row."""
    shares = weights / np.maximum(weights.max(axis=-1, keepdims=True), 1e-12)
    return base64.b64encode(np.rint(shares * 255).astype(np.uint8).tobytes()).decode("ascii")
