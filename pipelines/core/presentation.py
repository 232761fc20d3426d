"""What people are shown of a model: forms to fill in, and answers as parts that a page draws.

A kind of task says what a person fills in for one of its rows, and what its answers are shown as; a page knows the few
parts below and no kind. Forms and answers travel as JSON from the process that holds the model, which is not trusted:
reading them back checks their shape and their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=200_000)]
Label = Annotated[str, Field(max_length=400)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, or a weight of attention."""
Values = Mapping[str, str | list[str]]
"""What a form was filled in with, by the name of the field."""
MOST_BARS = 200
"""Classes of one answer that are shown, the likeliest first."""
MOST_WORDS = 20_000
MOST_TOKENS = 64
"""Tokens on each side of a map of attention."""
MOST_MAPS = 1024


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FormField(_Part):
    """One thing to fill in."""

    name: Name
    """The column of a task, or the name of a setting."""
    label: Label
    control: Literal["text", "line", "words", "lines", "texts", "number", "ways", "dialogue", "pick"] = "text"
    """`words` are the words of a text as a list, `lines` one text a line, `texts` from `low` to `high` texts, each in a
    box of its own, `ways` several of `choices`, `dialogue` what was said before, `pick` what buttons of the answer
    choose."""
    hint: Label = ""
    needed: bool = True
    value: Label = ""
    """What stands there at first; of `ways` those that are ticked, with commas."""
    choices: tuple[tuple[Name, Label], ...] = Field((), max_length=20)
    low: float | None = None
    high: float | None = None
    whole: bool = False
    """Whether a number must be a whole one."""


class Form(_Part):
    """One way to ask a model."""

    name: Literal["predict", "chat", "complete", "fill_mask", "similarity", "attention"]
    title: Label
    button: Label
    fields: tuple[FormField, ...] = Field(min_length=1, max_length=40)
    settings: tuple[FormField, ...] = Field((), max_length=20)
    """What usually stays as it is."""
    examples: tuple[dict[Name, Text | list[Text]], ...] = Field((), max_length=12)
    """To start from: values of some fields."""
    streams: bool = False
    """Whether texts are told while they are written."""
    note: Label = ""
    gap: Label = ""
    """What the command's text has where people may write `___`."""


class Bar(_Part):
    """One class or option, and how likely it is."""

    label: Label
    share: Share
    text: Text = ""
    """What the label stands for: the words of an option."""
    chosen: bool = False


class Bars(_Part):
    """Probabilities side by side."""

    show: Literal["bars"] = "bars"
    title: Label = ""
    bars: tuple[Bar, ...] = Field(max_length=MOST_BARS)
    left_out: int = Field(0, ge=0)


class Number(_Part):
    """One number."""

    show: Literal["number"] = "number"
    title: Label
    value: float
    low: float | None = None
    high: float | None = None
    """The ends of its range, where it has one."""


class Piece(_Part):
    """A part of a text, marked or not."""

    text: Text
    mark: Label = ""
    """What it is; empty for text that is nothing particular."""
    share: Share | None = None


class Marked(_Part):
    """A text in which something is marked."""

    show: Literal["marked"] = "marked"
    title: Label = ""
    pieces: tuple[Piece, ...] = Field(max_length=MOST_WORDS)


class Writing(_Part):
    """A text that the model wrote."""

    title: Label
    text: Text
    facts: tuple[tuple[Label, Label], ...] = Field((), max_length=12)


class Writings(_Part):
    """Written texts side by side."""

    show: Literal["writings"] = "writings"
    writings: tuple[Writing, ...] = Field(max_length=16)


class AttentionHead(_Part):
    """One map, small."""

    layer: int = Field(ge=1)
    head: int = Field(ge=0)
    """0 is the mean of the layer's heads."""
    entropy: float
    """Bits, the mean over the rows."""
    distance: float | None
    """Tokens between who looks and what is looked at; None across two texts."""
    picture: str = Field("", max_length=8192, pattern=r"^[A-Za-z0-9+/=]*$")
    """(query, key) bytes in base64, each weight as a share of the largest of its row; empty where there are too
    many."""


class AttentionView(_Part):
    """All heads of one kind of attention, and one of them whole."""

    name: Name
    title: Label
    queries: tuple[Label, ...] = Field(max_length=MOST_TOKENS)
    keys: tuple[Label, ...] = Field(max_length=MOST_TOKENS)
    heads: tuple[AttentionHead, ...] = Field(max_length=MOST_MAPS)
    layer: int = 0
    head: int = 0
    """The head that is shown whole; layer 0 where it is one of another kind."""
    weights: tuple[tuple[Share, ...], ...] = Field((), max_length=MOST_TOKENS)
    """(query, key): its weights; each row sums to 1."""


class Attention(_Part):
    """What the heads of a model look at."""

    show: Literal["attention"] = "attention"
    views: tuple[AttentionView, ...] = Field(max_length=3)


class Sentence(_Part):
    """Something to say."""

    show: Literal["sentence"] = "sentence"
    text: Label
    """One sentence."""


Part = Annotated[Bars | Number | Marked | Writings | Attention | Sentence, Field(discriminator="show")]


class PageAnswer(_Part):
    """What a model says of a filled-in form."""

    parts: tuple[Part, ...] = Field(max_length=20)
    notes: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=20)
    """What a reader should know before believing it: what was cut, and why."""


def plain(model: BaseModel) -> dict[str, Any]:
    """A form or an answer as JSON."""
    return model.model_dump(mode="json")


def field_of(name: str, hint: str = "", **more: Any) -> FormField:
    """A field that is called as its column."""
    return FormField(name=name, label=name.replace("_", " ").strip().capitalize() or name, hint=hint, **more)


def bars(
    labels: Sequence[str],
    shares: Sequence[float],
    title: str = "",
    texts: Sequence[str] = (),
    chosen: int | None = None,
) -> Bars:
    """A bar for each label, the likeliest first; labels that stand for `texts` keep their order. `chosen` is the
    answer, where it is not the likeliest."""
    best = max(range(len(shares)), key=lambda at: shares[at], default=-1) if chosen is None else chosen
    made = [
        Bar(
            label=label[:400],
            share=min(1.0, max(0.0, float(share))),
            text=texts[at] if texts else "",
            chosen=at == best,
        )
        for at, (label, share) in enumerate(zip(labels, shares, strict=True))
    ]
    if not texts:
        made.sort(key=lambda bar: -bar.share)
    return Bars(title=title, bars=tuple(made[:MOST_BARS]), left_out=max(0, len(made) - MOST_BARS))
