"""OpenAI's graders as rewards: those that have a counterpart are translated, the others are refused with the reason.

string_check   the reward `pattern`: `eq`, `ne`, `like` and `ilike` against a fixed text, white space around an answer
               left aside
multi          the reward `weighted`: graders added up, each times a number

A reward of Finery sees the prompt and the completion of a row and nothing else of it, so a grader that reads
`{{item.…}}` has none. `python` would run code on the server. `score_model` and `label_model` put questions of the
user's own to a model of OpenAI, and `text_similarity` compares with a text of the row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

OUTPUT = re.compile(r"\s*\{\{\s*sample\.output_text\s*\}\}\s*")
TEMPLATE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
LONGEST = 200
"""Characters of a fixed text; a pattern has at most 500, and every letter may need a backslash."""
MOST_GRADERS = 20
LONGEST_SUM = 1000
OFFERED = "string_check with a fixed reference, and multi of such"
REASONS = {
    "python": "runs Python code of yours on the server, which no recipe from the network may",
    "text_similarity": "compares an answer with a text of its row, and rewards see the prompt and the answer alone",
    "score_model": (
        "puts your own question to a model of OpenAI; a judge or a reward model stands in a recipe: submit one to "
        "/api/v1/jobs"
    ),
    "label_model": (
        "puts your own question to a model of OpenAI; a classifier stands in a recipe: submit one to /api/v1/jobs"
    ),
}


class Unoffered(ValueError):
    """A grader that is no reward here; the message is one sentence."""


def reward_of(grader: object, inside: bool = False) -> dict[str, Any]:
    """The recipe's `reward` for a grader. Raises Unoffered."""
    if not isinstance(grader, Mapping):
        raise Unoffered(f"the grader is {type(grader).__name__}, must be an object with 'type'; offered: {OFFERED}")
    kind = grader.get("type")
    if kind == "string_check":
        return _string_check(grader)
    if kind == "multi" and not inside:
        return _multi(grader)
    if kind == "multi":
        raise Unoffered("a grader 'multi' stands inside another, must hold plain graders")
    if kind in REASONS:
        raise Unoffered(f"the grader '{kind}' {REASONS[kind]}; offered: {OFFERED}")
    raise Unoffered(f"there is no grader '{str(kind)[:40]}'; offered: {OFFERED}")


def _string_check(grader: Mapping[str, object]) -> dict[str, Any]:
    named = f"the grader '{str(grader.get('name', 'string_check'))[:40]}'"
    checked, reference, operation = grader.get("input"), grader.get("reference"), grader.get("operation")
    if not isinstance(checked, str) or not OUTPUT.fullmatch(checked):
        raise Unoffered(f"{named} checks {str(checked)[:60]!r}, must be '{{{{sample.output_text}}}}', the answer")
    if not isinstance(reference, str) or not reference.strip() or len(reference) > LONGEST:
        raise Unoffered(f"{named} needs a 'reference' of 1 to {LONGEST} characters")
    if TEMPLATE.search(reference):
        raise Unoffered(
            f"{named} has a reference that reads the row ({reference[:60]}); rewards see the prompt and the answer "
            "alone, so give a fixed text"
        )
    text = re.escape(reference.strip())
    patterns = {"eq": rf"\A\s*{text}\s*\Z", "ne": rf"\A(?!\s*{text}\s*\Z)", "like": text, "ilike": text}
    if operation not in patterns:
        raise Unoffered(f"{named} has the operation {str(operation)[:40]!r}, must be one of {', '.join(patterns)}")
    return {
        "name": "pattern",
        "pattern": patterns[operation],
        **({"ignore_case": True} if operation == "ilike" else {}),
    }


def _multi(grader: Mapping[str, object]) -> dict[str, Any]:
    graders, formula = grader.get("graders"), grader.get("calculate_output")
    if not isinstance(graders, Mapping) or not 1 <= len(graders) <= MOST_GRADERS:
        raise Unoffered(f"the grader 'multi' needs 'graders', an object of 1 to {MOST_GRADERS} graders by name")
    weights = weights_of(formula, [str(name) for name in graders])
    parts = [{"reward": reward_of(graders[name], inside=True), "weight": weight} for name, weight in weights.items()]
    return {"name": "weighted", "rewards": parts}


def weights_of(formula: object, names: list[str]) -> dict[str, float]:
    """What each grader is multiplied by in a sum such as `0.5 * a + 2 * b - c`. Raises Unoffered for anything else."""
    refused = Unoffered(
        f"calculate_output is {str(formula)[:60]!r}, must add graders up, each times a number: 0.5 * {names[0]} + …"
    )
    if not isinstance(formula, str) or len(formula) > LONGEST_SUM:
        raise refused
    found: dict[str, float] = {}
    try:
        for name, weight in _terms(ast.parse(formula.strip(), mode="eval").body, 1.0, 0):
            if name not in names:
                raise Unoffered(
                    f"calculate_output names '{name[:40]}', which is none of the graders: {', '.join(names)}"
                )
            found[name] = found.get(name, 0.0) + weight
    except Unoffered:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError, ArithmeticError):
        raise refused from None
    if not found:
        raise refused
    return found


def _terms(node: ast.expr, factor: float, depth: int) -> Iterator[tuple[str, float]]:
    """(grader, what it is multiplied by) of a sum. Raises ValueError for what is none."""
    if depth > 100 or not abs(factor) <= 1e6:
        raise ValueError
    match node:
        case ast.Name(id=name):
            yield name, factor
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            yield from _terms(left, factor, depth + 1)
            yield from _terms(right, factor if isinstance(sign, ast.Add) else -factor, depth + 1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            number, other = (left, right) if _number(left) is not None else (right, left)
            yield from _terms(other, factor * _needed(number), depth + 1)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            yield from _terms(left, factor / _needed(right), depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -factor, depth + 1)
        case _:
            raise ValueError


def _number(node: ast.expr) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _needed(node: ast.expr) -> float:
    found = _number(node)
    if found is None:
        raise ValueError
    return found


__all__ = ["Unoffered", "reward_of", "weights_of"]
