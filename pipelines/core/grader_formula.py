"""The formula that joins graders into one number, such as `0.7 * answer + 0.3 * max(style, 0.5)`.

Numbers, names of graders, `+ - * / ^`, brackets, and `min max abs floor ceil exp sqrt log`. Nothing else is read: the
text is taken apart by the grammar below and never handed to Python. All numbers are floats, so that no formula grows
without bound.

    sum      product (("+" | "-") product)*
    product  signed (("*" | "/") signed)*
    signed   ("-" | "+") signed | power
    power    atom ("^" signed)?                  to the right: 2 ^ 3 ^ 2 is 2 ^ 9, and -2 ^ 2 is -4
    atom     number | name | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LONGEST = 1000
"""Characters of a formula."""
DEEPEST = 50
"""Brackets, signs and powers inside each other."""
WORD = re.compile(r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|(?P<sign>[-+*/^(),]))")
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": lambda value: float(math.floor(value)),
    "ceil": lambda value: float(math.ceil(value)),
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
SEVERAL = ("min", "max")
"""Functions of two and more values; the others have one."""
Node = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True)
class Formula:
    """A formula that was read."""

    text: str
    names: frozenset[str]
    """The graders that it reads."""
    node: Node

    def value(self, scores: Mapping[str, float]) -> float:
        """What it comes to. Raises ArithmeticError with one sentence where that is no finite number."""
        try:
            value = self.node(scores)
        except (ArithmeticError, ValueError) as error:
            raise ArithmeticError(f"calculate_output cannot be computed: {error}") from None
        if not math.isfinite(value):
            raise ArithmeticError(f"calculate_output comes to {value}, which is no finite number")
        return value


def read_formula(text: str) -> Formula:
    """The formula behind a text. Raises ValueError with one sentence."""
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters, must have at most {LONGEST}")
    return _Reader(text).formula()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = WORD.match(text, at)
            if match is None:
                raise self.wrong(f"{text[at:].strip()[:10]!r} has no meaning in it")
            self.words.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            at = match.end()
        self.at = self.depth = 0
        self.names: set[str] = set()

    def wrong(self, why: str) -> ValueError:
        return ValueError(
            f"is {self.text[:60]!r}: {why}; write numbers, names of graders, + - * / ^, brackets and "
            f"{', '.join(FUNCTIONS)}"
        )

    def formula(self) -> Formula:
        if not self.words:
            raise self.wrong("it is empty")
        node = self.sum()
        if self.at < len(self.words):
            raise self.wrong(f"{self.words[self.at][1]!r} stands where the formula should end")
        return Formula(self.text, frozenset(self.names), node)

    def taken(self, *signs: str) -> str | None:
        """The next sign, where it is one of these."""
        if self.at < len(self.words) and self.words[self.at][0] == "sign" and self.words[self.at][1] in signs:
            self.at += 1
            return self.words[self.at - 1][1]
        return None

    def sum(self) -> Node:
        terms = [("+", self.product())]
        while sign := self.taken("+", "-"):
            terms.append((sign, self.product()))
        return _folded(terms)

    def product(self) -> Node:
        factors = [("*", self.signed())]
        while sign := self.taken("*", "/"):
            factors.append((sign, self.signed()))
        return _folded(factors)

    def signed(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"it is nested more than {DEEPEST} deep")
        sign = self.taken("-", "+")
        if sign is None:
            node = self.power()
        else:
            inner = self.signed()
            node = inner if sign == "+" else lambda scores: -inner(scores)
        self.depth -= 1
        return node

    def power(self) -> Node:
        base = self.atom()
        return _folded([("", base), ("^", self.signed())]) if self.taken("^") else base

    def atom(self) -> Node:
        if self.taken("("):
            return self.closed(self.sum())
        kind, word = self.words[self.at] if self.at < len(self.words) else ("end", "")
        if kind == "number":
            self.at += 1
            number = float(word)
            return lambda scores: number
        if kind != "name":
            raise self.wrong(f"{word!r} stands where a value should" if word else "a value is missing at its end")
        self.at += 1
        if self.taken("("):
            return self.call(word)
        self.names.add(word)
        return lambda scores: scores[word]

    def closed(self, node: Node) -> Node:
        if not self.taken(")"):
            raise self.wrong("a bracket is not closed")
        return node

    def call(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise self.wrong(f"there is no function {name[:20]!r}")
        values = [self.sum()]
        while self.taken(","):
            values.append(self.sum())
        if (len(values) == 1) == (name in SEVERAL):
            raise self.wrong(f"{name} takes {'two values or more' if name in SEVERAL else 'one value'}")
        return self.closed(lambda scores: FUNCTIONS[name](*(value(scores) for value in values)))


OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": math.pow,
}


def _folded(terms: Sequence[tuple[str, Node]]) -> Node:
    """Terms joined from the left by the sign before each; that of the first has no meaning."""
    first, others = terms[0][1], [(OPERATIONS[sign], node) for sign, node in terms[1:]]
    if not others:
        return first

    def value(scores: Mapping[str, float]) -> float:
        total = first(scores)
        for operation, node in others:
            total = operation(total, node(scores))
        return total

    return value
