"""Four more tasks made from the documentation that every CPython carries: one of each shape, without any download.

- `words`: in each sentence a run of three to five words is turned round; which words are they? (tags in IOB2)
- `questions`: which words follow these in a paragraph? (a span of the paragraph)
- `endings`: which of four endings belongs to this beginning of a sentence? As SWAG asks (Zellers et al. 2018,
  arxiv.org/abs/1808.05326), but the wrong ones are endings of other sentences.
- `preferences`: which of two continuations of a sentence is the better one? The other has the same words in another order.

Rows depend on the running Python only, and on its sentences in the order of `python_docs`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pipelines.data.python_docs import Split, sentences_of, text_rows

SEED = 21
RUN = (3, 5)
"""Words of a turned run."""
ANSWER = (1, 4)
"""Words of an answer."""
ASKED = 4
"""Words that a question shows."""
ENDINGS = 4


def word_rows(split: Split) -> list[dict[str, Any]]:
    """`{tokens, tags}`: sentences with a run of words in reverse order, `B-TURNED I-TURNED …`, and `O` elsewhere."""
    generator = random.Random(f"{SEED} words {split}")
    rows = []
    for sentence in _shuffled(split, generator):
        words = sentence.split()
        count = generator.randint(*RUN)
        begin = generator.randint(1, max(1, len(words) - count - 1))
        turned = words[begin : begin + count][::-1]
        if turned == turned[::-1]:
            continue
        tags = ["O"] * begin + ["B-TURNED", *["I-TURNED"] * (len(turned) - 1)]
        tokens = [*words[:begin], *turned, *words[begin + count :]]
        rows.append({"tokens": tokens, "tags": tags + ["O"] * (len(tokens) - len(tags))})
    return rows


def question_rows(split: Split) -> list[dict[str, Any]]:
    """`{id, question, context, answers}`: some neighbouring words of a paragraph, and those that follow them there."""
    generator = random.Random(f"{SEED} questions {split}")
    rows = []
    for number, paragraph in enumerate(text_rows(split)):
        context = paragraph["text"]
        words = context.split(" ")
        count = generator.randint(*ANSWER)
        if len(words) < ASKED + count:
            continue
        begin = generator.randint(0, len(words) - ASKED - count)
        asked = " ".join(words[begin : begin + ASKED])
        if context.count(asked) != 1:  # what follows it must be one thing
            continue
        answer = " ".join(words[begin + ASKED : begin + ASKED + count])
        start = len(" ".join(words[: begin + ASKED])) + 1
        rows.append({
            "id": f"{split}-{number}", "question": f"What follows {asked}?", "context": context,
            "answers": {"text": [answer], "answer_start": [start]},
        })  # fmt: skip
    generator.shuffle(rows)
    return rows


def ending_rows(split: Split) -> list[dict[str, Any]]:
    """`{question, options, answer}`: a sentence's beginning, four endings, and the letter of its own."""
    generator = random.Random(f"{SEED} endings {split}")
    halves = []
    for sentence in _shuffled(split, generator):
        words = sentence.split()
        middle = len(words) // 2
        halves.append((" ".join(words[:middle]), " ".join(words[middle:])))
    rows = []
    for beginning, ending in halves:
        others = [other for _, other in generator.sample(halves, min(len(halves), 3 * ENDINGS)) if other != ending]
        options = [ending, *list(dict.fromkeys(others))[: ENDINGS - 1]]
        if len(options) < ENDINGS:
            continue
        generator.shuffle(options)
        rows.append({"question": beginning, "options": options, "answer": "ABCD"[options.index(ending)]})
    return rows


def preference_rows(split: Split) -> list[dict[str, Any]]:
    """`{prompt, chosen, rejected}`: a sentence's beginning, the rest of it, and the rest with its words in another order."""
    generator = random.Random(f"{SEED} preferences {split}")
    rows = []
    for sentence in _shuffled(split, generator):
        words = sentence.split()
        middle = len(words) // 2
        rest = words[middle:]
        mixed = generator.sample(rest, len(rest))
        if mixed == rest:
            continue
        rows.append({"prompt": " ".join(words[:middle]), "chosen": f" {' '.join(rest)}", "rejected": f" {' '.join(mixed)}"})
    return rows


def _shuffled(split: Split, generator: random.Random) -> list[str]:
    sentences = list(sentences_of(split))
    generator.shuffle(sentences)
    return sentences


ROWS: dict[str, Callable[[Split], list[dict[str, Any]]]] = {
    "words": word_rows, "questions": question_rows, "endings": ending_rows, "preferences": preference_rows,
}  # fmt: skip
"""By configuration of the embedded data set."""
