"""Critique and revision: a model finds fault with a completion by a principle, and writes it anew.

Bai et al. 2022, section 3.1, arxiv.org/abs/2212.08073. The last revision of each completion is what a supervised stage then
learns. A revision that is empty leaves the completion as it was, and its row out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from pipelines.blocks import Block
from pipelines.feedback import question
from pipelines.feedback.constitution import Principle, drawn
from pipelines.feedback.judge import Judge


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
    judge: Judge, prompts: Sequence[str], completions: Sequence[str], principles: Sequence[Principle], settings: Revise, seed: int, numbers: Sequence[int]
) -> list[list[Round]]:
    """The rounds of each completion, in order. `numbers` are the completions' own, by which principles are drawn."""
    current = list(completions)
    done: list[list[Round]] = [[] for _ in completions]
    for number in range(settings.rounds):
        chosen = [drawn(principles, "critique", seed, own, number) for own in numbers]
        rules = [each for each in chosen if each is not None]
        critiques = judge.write(
            [
                _asked(question.critique(prompt, completion, str(rule.critique)))
                for prompt, completion, rule in zip(prompts, current, rules, strict=True)
            ],
            settings.length,
        )
        written = judge.write(
            [
                _asked(question.revision(prompt, completion, critique, str(rule.revision)))
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
        "prompt": prompt, "completion": rounds[-1].revision, "original": original, "critique": rounds[-1].critique,
        "principle": rounds[-1].principle, "rounds": [vars(each) for each in rounds],
    }  # fmt: skip


def _asked(text: str) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": text}]
