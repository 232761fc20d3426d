"""RACE prediction files, `{example_id: "A"}`, against files with `example_id` and `answer`: accuracy.

In the published RACE files `example_id` names an article, which several questions share. Such an id takes a list of
letters, one a question in the order of the file, as the articles' own files have them: `{"middle13.txt": ["A",
"C"]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from pipelines.evaluation.official.files import columns_of, listed, missing_ids, read_json

LETTERS = ("A", "B", "C", "D")
SCHOOLS = ("middle", "high")
"""How ids begin; where both occur, each school's accuracy stands beside that of all questions."""


def score_race(predictions: Path, references: Path) -> dict[str, Any]:
    """`accuracy` over all questions, and how many they are. Raises CommandError."""
    right = _read_right(references)
    predicted = _read_said(predictions, right)
    if missing := missing_ids(right, predicted):
        raise CommandError(
            f"{predictions} has no prediction for {len(missing)} of the {len(right)} ids of {references}: "
            f"{listed(missing)}; add them"
        )
    if strange := missing_ids(predicted, set(right)):
        raise CommandError(
            f"{predictions} has {len(strange)} ids that {references} has not: {listed(strange)}; is it another split?"
        )
    marks = {
        name: [one == other for one, other in zip(predicted[name], letters, strict=True)]
        for name, letters in right.items()
    }
    scores: dict[str, Any] = {"accuracy": _mean(marks)}
    by_school = {school: {name: each for name, each in marks.items() if name.startswith(school)} for school in SCHOOLS}
    if all(by_school.values()):
        scores |= {f"accuracy_{school}": _mean(each) for school, each in by_school.items()}
    return scores | {"total": sum(len(each) for each in marks.values())}


def _mean(marks: Mapping[str, list[bool]]) -> float:
    every = [mark for each in marks.values() for mark in each]
    return sum(every) / len(every)


def _letter(value: object, path: Path, name: str) -> str:
    letter = value.strip().upper() if isinstance(value, str) else ""
    if letter not in LETTERS:
        raise CommandError(
            f"{path} has {str(value)[:40]!r} for '{name}', must be one of the letters {', '.join(LETTERS)}"
        )
    return letter


def _read_right(path: Path) -> dict[str, list[str]]:
    columns = columns_of(path, ("example_id", "answer"))
    answers: dict[str, list[str]] = {}
    for name, answer in zip(columns["example_id"], columns["answer"], strict=True):
        answers.setdefault(str(name), []).append(_letter(answer, path, str(name)))
    return answers


def _read_said(path: Path, right: Mapping[str, list[str]]) -> dict[str, list[str]]:
    data = read_json(path)
    if not isinstance(data, dict) or not data:
        raise CommandError(f'{path} must hold one object such as {{"high1.txt": "A"}}, with at least one prediction')
    answers: dict[str, list[str]] = {}
    for name, value in data.items():
        letters = [_letter(each, path, name) for each in (value if isinstance(value, list) else [value])]
        count = len(right.get(name, letters))
        if len(letters) != count:
            raise CommandError(
                f"{path} has {len(letters)} letters for '{name}', which has {count} questions; give a list "
                "with a letter for each, in the order of the file"
            )
        answers[name] = letters
    return answers
