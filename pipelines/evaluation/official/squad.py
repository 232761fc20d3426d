"""SQuAD prediction files against reference files, as the official scripts compute it.

Rajpurkar et al. 2016, arxiv.org/abs/1606.05250, and 2018, arxiv.org/abs/1806.03822; both scripts stand at
rajpurkar.github.io/SQuAD-explorer. Where the scripts go on with a wrong score (version 1.1 counts a missing
prediction as wrong, version 2.0 ends with a KeyError), these refuse; `missing="zero"` asks for what version 1.1 does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from pipelines.evaluation.official.files import columns_of, listed, missing_ids, once_each, read_json
from pipelines.metrics.squad import Squad, SquadV2, best_threshold

Answers = Mapping[str, Sequence[str]]
"""The right answers of each question, by id."""


def score_squad(
    predictions: Path, references: Path, missing: str = "refuse", notes: list[str] | None = None
) -> dict[str, float]:
    """`exact_match` and `f1` in percent, and `total` questions. Raises CommandError; what a reader should know is
    added to `notes`."""
    right = read_references(references)
    if empty := [each for each, answers in right.items() if not answers]:
        raise CommandError(
            f"{references} has {len(empty)} questions without an answer ({listed(empty)}), which SQuAD 1.1 "
            "does not know; score it as squad_v2"
        )
    predictions_of = read_answers(predictions)
    left_out = _left_out(right, predictions_of, predictions, references, missing == "zero", notes)
    scored_ids = [each for each in right if each not in left_out]
    each = (
        Squad().counts([predictions_of[name] for name in scored_ids], [right[name] for name in scored_ids]).tolist()
        if scored_ids
        else []
    )
    exact, f1 = sum(row[0] for row in each), sum(row[1] for row in each)
    scores = {"exact_match": 100.0 * exact / len(right), "f1": 100.0 * f1 / len(right), "total": len(right)}
    return scores | ({"missing": len(left_out)} if left_out else {})


def score_squad_v2(
    predictions: Path,
    references: Path,
    na_probs: Path | None = None,
    threshold: float = 1.0,
    notes: list[str] | None = None,
) -> dict[str, float]:
    """What the official script prints, with `exact_match` beside its `exact`. Raises CommandError.

    `na_probs` holds how likely each question has no answer: one above `threshold` is taken as not answered, and the
    best scores that any threshold would give are added.
    """
    right, answers = read_references(references), read_answers(predictions)
    _left_out(right, answers, predictions, references, False, notes)
    odds = None if na_probs is None else _read_odds(na_probs, right)
    ids = list(right)
    raw = dict(
        zip(ids, SquadV2().counts([answers[name] for name in ids], [right[name] for name in ids]).tolist(), strict=True)
    )
    scores = {name: row[:2] for name, row in raw.items()}
    likely = odds or dict.fromkeys(ids, 0.0)  # without a file, the script takes every question for answerable
    scores |= {name: [float(not right[name])] * 2 for name in ids if likely[name] > threshold}
    results = {"exact": _mean(scores, ids, 0), "f1": _mean(scores, ids, 1), "total": len(ids)}
    for kind, chosen in (
        ("HasAns", [name for name in ids if right[name]]),
        ("NoAns", [name for name in ids if not right[name]]),
    ):
        if chosen:
            results |= {
                f"{kind}_exact": _mean(scores, chosen, 0),
                f"{kind}_f1": _mean(scores, chosen, 1),
                f"{kind}_total": len(chosen),
            }
    if odds is not None:
        order = [name for name in odds if name in right]  # of equal odds, the script takes the first in the file first
        results |= best_threshold(
            [answers[name] for name in order], [odds[name] for name in order], [right[name] for name in order]
        )
    return {"exact_match": results["exact"]} | results


def _mean(scores: Mapping[str, Sequence[float]], ids: Sequence[str], column: int) -> float:
    return float(100.0 * sum(scores[name][column] for name in ids) / len(ids))


def _left_out(
    right: Answers,
    answers: Mapping[str, str],
    predictions: Path,
    references: Path,
    allowed: bool,
    notes: list[str] | None,
) -> set[str]:
    """The questions without a prediction. Raises CommandError unless they are `allowed`."""
    missing = missing_ids(right, answers)
    if missing and not allowed:
        raise CommandError(
            f"{predictions} has no prediction for {len(missing)} of the {len(right)} questions of "
            f"{references}: {listed(missing)}; add them, "
            "with an empty text for no answer"
        )
    sentences: list[str] = [] if notes is None else notes
    if missing:
        sentences.append(f"{len(missing)} questions have no prediction and are scored 0: {listed(missing)}")
    if unknown := missing_ids(answers, set(right)):
        sentences.append(
            f"{len(unknown)} predictions are for questions that {references} has not, and are left out: "
            f"{listed(unknown)}"
        )
    return set(missing)


def read_answers(path: Path) -> dict[str, str]:
    """A prediction file: the text said about each question. Raises CommandError."""
    answers = read_json(path)
    if not isinstance(answers, dict):
        raise CommandError(
            f'{path} holds a {_kind(answers)}, must hold one object such as {{"56be4db0acb8001400a502ec": '
            '"Denver Broncos"}}'
        )
    if not answers:
        raise CommandError(f"{path} holds no predictions")
    for name, text in answers.items():
        if not isinstance(text, str):
            raise CommandError(
                f"{path} has a {_kind(text)} for the question {name}, must be a text (empty for no answer)"
            )
    return answers


def read_references(path: Path) -> dict[str, list[str]]:
    """The right answers by question, of an official file or of a Parquet or JSONL file with `id` and `answers`.
    Raises CommandError."""
    if path.suffix.lower() in (".parquet", ".jsonl"):
        columns = columns_of(path, ("id", "answers"))
        pairs = [
            (str(name), _texts_of(answers, path, name))
            for name, answers in zip(columns["id"], columns["answers"], strict=True)
        ]
    else:
        pairs = _official(read_json(path), path)
    if not pairs:
        raise CommandError(f"{path} holds no questions")
    once_each([name for name, _ in pairs], path, "question")
    return dict(pairs)


def _official(data: Any, path: Path) -> list[tuple[str, list[str]]]:
    try:
        articles = data["data"]
        questions = [
            question for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]
        ]
        return [(str(each["id"]), _texts_of(each["answers"], path, each["id"])) for each in questions]
    except (KeyError, TypeError, IndexError):
        raise CommandError(
            f'{path} is not in the format of SQuAD, {{"data": [{{"paragraphs": [{{"qas": [{{"id": …, '
            f'"answers": [{{"text": …}}]}}]}}]}}]}}; '
            "were the files exchanged?"
        ) from None


def _texts_of(answers: object, path: Path, question: object) -> list[str]:
    """The texts of `[{"text": …}, …]`, of `{"text": […]}`, or of a list of texts."""
    given = answers.get("text") if isinstance(answers, dict) else answers
    texts = [each["text"] if isinstance(each, dict) else each for each in given] if isinstance(given, list) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise CommandError(f"{path} has answers of the question {question} that are no texts: {str(answers)[:60]}")
    return texts


def _read_odds(path: Path, right: Answers) -> dict[str, float]:
    odds = read_json(path)
    if not isinstance(odds, dict) or not odds:
        raise CommandError(f'{path} must hold one object such as {{"56ddde6b9a695914005b9628": 0.9}}')
    for name, value in odds.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise CommandError(f"{path} has {str(value)[:40]!r} for the question {name}, must be a finite number")
    if missing := missing_ids(right, odds):
        raise CommandError(f"{path} has no number for {len(missing)} of the {len(right)} questions: {listed(missing)}")
    return {name: float(value) for name, value in odds.items()}


def _kind(value: object) -> str:
    return {dict: "mapping", list: "list", str: "text", type(None): "null", bool: "truth value"}.get(
        type(value), "number"
    )
