"""Fields of a configuration as plain data, and what may be wrong with them: no torch, no transformers.

The recurrent and the convolutional family write their words down with these few kinds of fields. A field that is wrong
gives one sentence; a rule between fields is looked for among fields that are fine alone. It travels with a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

Config = Mapping[str, Any]
"""A config's fields by name."""
Finding = tuple[tuple[str, ...], str]
"""The fields that a mistake is about, the one to change first, and what to say. About one field, the sentence goes on
after its name ("is 0, must be at least 1"); about several, it is complete."""
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class FieldRule:
    """One word of a configuration."""

    kind: str
    """Its type, as `pipelines.core` spells types."""
    default: object
    check: Callable[[object], str | None]
    """The sentence for a value other than null, or None."""
    null: str = ""
    """What null means; empty where it is not allowed."""

    def mistake(self, value: object) -> str | None:
        """What is wrong with a value, as a sentence without its subject."""
        if value is None and self.null:
            return None
        sentence = self.check(value)
        return sentence and (f"{sentence}, or null {self.null}" if self.null else sentence)


def count(default: int | None, null: str = "", most: int = LARGEST) -> FieldRule:
    """A whole number of at least 1."""

    def check(value: object) -> str | None:
        if not _whole(value):
            return f"is {value!r}, must be a whole number of at least 1"
        if value > most:  # type: ignore[operator]
            return f"is {value}, must be at most {most}"
        return f"is {value}, must be at least 1" if value < 1 else None  # type: ignore[operator]

    return FieldRule(_kind("int", null), default, check, null)


def choice(default: str | None, names: tuple[str, ...], null: str = "") -> FieldRule:
    """One of a few names."""

    def check(value: object) -> str | None:
        if value in names:
            return None
        close = get_close_matches(str(value), names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"is {value!r}, must be one of: {', '.join(names)}{hint}"

    return FieldRule(_kind("|".join(f"={name}" for name in names), null), default, check, null)


def flag(default: bool | None, null: str = "") -> FieldRule:
    """True or false."""
    return FieldRule(
        _kind("bool", null),
        default,
        lambda value: None if isinstance(value, bool) else f"is {value!r}, must be true or false",
        null,
    )


def probability(default: float | None, null: str = "") -> FieldRule:
    """A number of at least 0 and below 1."""

    def check(value: object) -> str | None:
        fine = _number(value) and 0 <= value < 1  # type: ignore[operator]
        return None if fine else f"is {value!r}, must be a probability of at least 0 and below 1"

    return FieldRule(_kind("float", null), default, check, null)


def positive(default: float) -> FieldRule:
    """A number above 0."""

    def check(value: object) -> str | None:
        fine = _number(value) and value > 0  # type: ignore[operator]
        return None if fine else f"is {value!r}, must be a number above 0"

    return FieldRule("float", default, check)


def token(default: int | None, meaning: str) -> FieldRule:
    """The id of a token."""

    def check(value: object) -> str | None:
        fine = _whole(value) and value >= 0  # type: ignore[operator]
        return None if fine else f"is {value!r}, must be the id of a token"

    return FieldRule("int|null", default, check, f"if the vocabulary has no {meaning}")


@dataclass(frozen=True)
class FieldRules:
    """The words of one family, and what contradicts what among them."""

    fields: Mapping[str, FieldRule]
    complete: Callable[[dict[str, Any]], dict[str, Any]]
    """All fields, what is usual written out where one is null. Called with every field that is not given at its
    default."""
    rules: tuple[Callable[[Config], Iterator[Finding]], ...]
    """What may be wrong between fields that are fine one by one. Each gets the completed fields."""

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each field."""
        return {name: field.kind for name, field in self.fields.items()}

    @property
    def defaults(self) -> dict[str, object]:
        """The value of each field that is not given."""
        return {name: field.default for name, field in self.fields.items()}

    def completed(self, fields: Config) -> dict[str, Any]:
        """`fields` with every default filled in and every null that stands for what is usual written out."""
        return self.complete({**self.defaults, **fields})

    def findings(self, fields: Config) -> list[Finding]:
        """Every mistake in `fields`, of which those that are absent have their default value."""
        own = {name: value for name, value in fields.items() if name in self.fields}
        single = [((name,), sentence) for name, value in own.items() if (sentence := self.fields[name].mistake(value))]
        if single:
            return single
        full = self.completed(own)
        return [finding for rule in (*self.rules, _vocabulary) for finding in rule(full)]

    def contradictions(self, fields: Config) -> list[str]:
        """One sentence for each mistake in `fields`. Empty if all is well."""
        return [f"{keys[0]} {sentence}" if len(keys) == 1 else sentence for keys, sentence in self.findings(fields)]


TOKENS = {
    "pad_token_id": token(0, "padding token"),
    "bos_token_id": token(None, "token that begins a text"),
    "eos_token_id": token(None, "token that ends a text"),
    "decoder_start_token_id": token(None, "token that a decoder starts from"),
}
"""The special tokens that every family knows."""


def _vocabulary(fields: Config) -> Iterator[Finding]:
    for name in TOKENS:
        value, size = fields.get(name), fields["vocab_size"]
        if value is not None and value >= size:
            yield (
                (name, "vocab_size"),
                f"{name} {value} lies outside a vocabulary of {size}; choose a smaller id, or null",
            )


def _kind(kind: str, null: str) -> str:
    return f"{kind}|null" if null else kind


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
