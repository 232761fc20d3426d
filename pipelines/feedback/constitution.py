"""A constitution: principles that a judge compares by, and that critiques and revisions are asked for by.

Bai et al. 2022, "Constitutional AI: Harmlessness from AI Feedback", sections 3.1 and 4.1, arxiv.org/abs/2212.08073: a
principle is drawn anew for every critique and every comparison. Here the draw depends on the seed and on the
comparison's own number alone. A file of principles becomes part of the resolved recipe, so that a resume does not
need it. The last revision of each completion is what a supervised stage then learns. A revision that is empty leaves
the completion as it was, and its row out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from pipelines.core.config import Block, ConfigIssues
from pipelines.core.principles import DEFAULT, principles_in, read_principles
from pipelines.feedback.judges import questions
from pipelines.feedback.judges.judge import Judge


class Principle(Block):
    """One thing that a completion is judged by."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$")
    """Its name in what is written down."""
    comparison: str | None = Field(None, min_length=1)
    """The question that two completions are compared by."""
    critique: str | None = Field(None, min_length=1)
    """The request to say what is wrong with a completion."""
    revision: str | None = Field(None, min_length=1)
    """The request to write it anew after that."""

    @model_validator(mode="after")
    def _says_something(self) -> Principle:
        if (self.critique is None) != (self.revision is None):
            missing = "revision" if self.revision is None else "critique"
            raise ConfigIssues([((missing,), "is missing: a critique and the revision after it belong together")])
        if self.comparison is None and self.critique is None:
            raise ConfigIssues([((), "says nothing: give a 'comparison', or a 'critique' and a 'revision'")])
        return self


def _read(value: Any, info: ValidationInfo) -> Any:
    """Principles in place, of a file beside the recipe, or the default ones."""
    if not isinstance(value, str):
        return value
    if value == DEFAULT:
        with as_file(files(__package__) / "constitutions" / f"{DEFAULT}.yaml") as path:
            return principles_in(path, value)
    return read_principles(value, Path((info.context or {}).get("folder", Path.cwd())))


def _differ(value: tuple[Principle, ...]) -> tuple[Principle, ...]:
    ids = [each.id for each in value]
    for at, name in enumerate(ids):
        if name in ids[:at]:
            raise ConfigIssues([((at, "id"), f"'{name}' is the id of an earlier principle too; ids must differ")])
    return value


Constitution = Annotated[
    tuple[Principle, ...],
    Field(min_length=1),
    AfterValidator(_differ),
    BeforeValidator(_read, json_schema_input_type=str | list[Principle]),
]
"""The type of a recipe's key that takes principles: a list, a YAML file, or `default`."""


def drawn(principles: Sequence[Principle], part: str, *number: int | str) -> Principle | None:
    """The principle for the comparison or critique of that number, of those that have this part; None where none
    has."""
    fit = [each for each in principles if getattr(each, part) is not None]
    return fit[Random("\x1f".join(map(str, (part, *number)))).randrange(len(fit))] if fit else None


class Revise(Block):
    """How completions are revised."""

    rounds: int = Field(1, ge=1, le=16)
    """Critiques and revisions one after another, each by a principle drawn anew."""
    length: int = Field(128, ge=1, le=8192)
    """Tokens that a critique, and a revision, may have."""


@dataclass(frozen=True)
class Round:
    """One critique and what was written after it."""

    principle: str
    critique: str
    revision: str


def revise(
    judge: Judge,
    prompts: Sequence[str],
    completions: Sequence[str],
    principles: Sequence[Principle],
    settings: Revise,
    seed: int,
    numbers: Sequence[int],
) -> list[list[Round]]:
    """The rounds of each completion, in order. `numbers` are the completions' own, by which principles are drawn."""
    current = list(completions)
    done: list[list[Round]] = [[] for _ in completions]
    for number in range(settings.rounds):
        chosen = [drawn(principles, "critique", seed, own, number) for own in numbers]
        rules = [each for each in chosen if each is not None]
        critiques = judge.write(
            [
                _asked(questions.critique(prompt, completion, str(rule.critique)))
                for prompt, completion, rule in zip(prompts, current, rules, strict=True)
            ],
            settings.length,
        )
        written = judge.write(
            [
                _asked(questions.revision(prompt, completion, critique, str(rule.revision)))
                for prompt, completion, critique, rule in zip(prompts, current, critiques, rules, strict=True)
            ],
            settings.length,
        )
        for at, (rule, critique, text) in enumerate(zip(rules, critiques, written, strict=True)):
            if text.strip():
                done[at].append(Round(rule.id, critique, text))
                current[at] = text
    return done


def row_of(prompt: Any, original: str, rounds: Sequence[Round]) -> dict[str, Any] | None:
    """The row of `revisions.jsonl`: `prompt` and `completion` are what is learnt; None where nothing was written."""
    if not rounds or rounds[-1].revision == original:
        return None
    return {
        "prompt": prompt,
        "completion": rounds[-1].revision,
        "original": original,
        "critique": rounds[-1].critique,
        "principle": rounds[-1].principle,
        "rounds": [vars(each) for each in rounds],
    }


def _asked(text: str) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": text}]
