"""What an evaluate stage leaves behind: scores, intervals, baselines, predictions and warnings."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError
from pipelines.core.files import finite, whole_file, write_json
from pipelines.core.interfaces import Context, Rows, Task
from pipelines.core.results import BenchmarkScores
from pipelines.core.scores import better, percent_metrics, score_names, smaller_is_better
from pipelines.data.encoding import read_part
from pipelines.evaluation.analysis import analysed, columns_of, look_for_overlap
from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.official.glue import GLUE_SCORE, glue_score
from pipelines.evaluation.outcomes import BASELINES, Outcomes, outcomes_of_answers, write_outcomes
from pipelines.metrics.base import signatures
from pipelines.tasks import scoring
from pipelines.tasks.evaluation import BenchmarkChoice, Predictions, TaskEvaluation, evaluation_of
from pipelines.tasks.predictions import SplitPredictions, write_predictions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pipelines.data.references import DatasetReference
    from pipelines.evaluation.held_out import PretrainedStage
    from pipelines.evaluation.language_modeling import HeldOutScores


class Report:
    """Collects benchmark by benchmark, then writes everything at once."""

    def __init__(self, context: Context, baselines: Sequence[str], slices: Sequence[str] = ()) -> None:
        self.context = context
        self.baselines = baselines
        self.slices = slices
        self.mistakes: list[dict[str, Any]] = []
        self.metrics: dict[str, dict[str, float]] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.predicted: list[SplitPredictions] = []
        self.guessed: dict[str, list[Outcomes]] = {}
        """By baseline: what it got right, benchmark by benchmark."""
        self.measured = 0

    def add(self, choice: BenchmarkChoice, task: Task, answers: Predictions, started: float) -> None:
        """Score the model's answers to each split of one benchmark. `started` is when its prediction began."""
        predicted = answers.predicted
        labelled = [(each, each.labels) for each in predicted if each.labels is not None]
        scores: dict[str, float] = {}
        ranges: dict[str, tuple[float, float]] = {}
        if labelled:
            score = scoring.score(task)
            for each, labels in labelled:
                split_scores = score(each.answers, labels)
                split_ranges = each.intervals(task, score, self.context.seed)
                scores |= {f"{name}{each.suffix}": value for name, value in split_scores.items()}
                ranges |= {f"{name}{each.suffix}": value for name, value in split_ranges.items()}
            scores |= {name: value for name, (value, _) in answers.scores.items()}
            ranges |= {name: interval for name, (_, interval) in answers.scores.items()}
            self.metrics[choice.name] = scores
        baselines, skipped = self._guess(choice, task, [each for each, _ in labelled], answers)
        self.predicted += predicted
        self.details[choice.name] = {
            "model": choice.model,
            "examples": {each.split: len(each.rows) for each in predicted},
            "splits": {each.suffix: each.split for each in predicted},
            "max_length": answers.max_length,
            "columns": answers.columns,
            "precision": "no",
            "intervals": ranges,
            "baselines": {**answers.baselines, **baselines},
            **({"percent": percent} if (percent := score_names(percent_metrics(task.metrics))) else {}),
            **answers.details,
            **(
                {"generation": answers.generation, "signatures": signatures(task.metrics)} if answers.generation else {}
            ),
            **({"skipped": skipped} if skipped else {}),
            "seconds": round(time.monotonic() - started, 3),
        }
        self._analyse(choice, task, predicted)
        self._warn(
            choice.name,
            task,
            predicted,
            scores,
            ranges,
            baselines.get("majority") or baselines.get("majority_by_word", {}),
        )

    def _analyse(self, choice: BenchmarkChoice, task: Task, predicted: Sequence[SplitPredictions]) -> None:
        """Put what stands behind the scores into the details."""
        columns = {
            each.split: columns_of(task, each.split, each.rows.index, self.slices)
            for each in predicted
            if each.labels is not None
        }
        analysis = analysed(self.context, choice.model, task, predicted, scoring.score(task), columns)
        self.details[choice.name] |= analysis.details
        self.mistakes += analysis.mistakes
        for warning in analysis.warnings:
            self.context.events.emit("warning", message=warning)

    def add_text(
        self,
        name: str,
        reference: DatasetReference,
        chosen: PretrainedStage,
        scores: HeldOutScores,
        stride: int | None,
        started: float,
    ) -> None:
        """Keep what was measured about one held-out text with the model of the pretrain stage `chosen`."""
        self.metrics[name] = scores.metrics
        self.details[name] = {
            "model": chosen.id,
            "examples": {reference.split: scores.documents},
            "splits": {"": reference.split},
            "objective": chosen.objective.name,
            "block_size": chosen.block_size,
            **({"stride": stride} if stride else {}),
            "precision": "no",
            "intervals": scores.intervals,
            "baselines": scores.peers,
            "seconds": round(time.monotonic() - started, 3),
        }
        self.measured += scores.documents
        warnings = [
            trained_on(name, reference, chosen),
            no_better_than_ngrams(name, scores.metrics, scores.intervals, scores.peers),
        ]
        for warning in warnings:
            if warning is not None:
                self.context.events.emit("warning", message=warning)

    def _guess(
        self, choice: BenchmarkChoice, task: Task, labelled: Sequence[SplitPredictions], answers: Predictions
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """The baselines, fitted on the rows that the model was fine-tuned on, reading no more tokens than it does."""
        if not labelled or not self.baselines:
            return {}, {name: "the benchmark has no public labels" for name in self.baselines if not labelled}
        try:
            train = task.rows("train", getattr(choice.subject, "max_train_samples", None))
        except DataError as error:
            if getattr(task, "trained_by", None) is None:
                raise
            return {}, dict.fromkeys(self.baselines, str(error))
        tokenizer = self.context.open_tokenizer(choice.model)
        read = _each_text_read if answers.apart else read_part
        train = read(tokenizer, train, answers.max_length)
        splits = {each.suffix: read(tokenizer, each.rows, answers.max_length) for each in labelled}
        found = score_baselines(self.baselines, scoring.score(task), labelled[0].outputs(task), train, splits)
        for name, answers_of in found.answers.items():
            answered = {each.suffix: each.answered(answers_of[each.suffix]) for each in labelled}
            if all(answered.values()):
                about = {"splits": {each.suffix: each.split for each in labelled}}
                reached = BenchmarkScores(choice.name, self.context.stage_id, name, found.scores[name], details=about)
                self.guessed.setdefault(name, []).append(outcomes_of_answers(reached, choice, answered))
        return found.scores, found.skipped

    def _warn(
        self,
        name: str,
        task: Task,
        predicted: Sequence[SplitPredictions],
        scores: dict[str, float],
        ranges: dict[str, tuple[float, float]],
        majority: dict[str, float],
    ) -> None:
        hidden = [each.split for each in predicted if each.labels is None]
        warnings = [each.doubt(task) for each in predicted]
        guess = evaluation_of(task.kind).majority_guess
        warnings.append(no_better_than_majority(name, scores, ranges, majority, guess))
        if hidden:
            warnings.append(
                f"{name}: the labels of '{', '.join(hidden)}' are not public: predictions are written, without a score"
            )
        for warning in warnings:
            if warning is not None:
                self.context.events.emit("warning", message=warning)

    def write(self) -> None:
        """Predictions first, `metrics.json` last: whoever finds the scores finds everything they stand on."""
        folder = self.context.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_predictions(folder / "predictions.parquet", self.predicted)
        for each in self.predicted:
            each.write_beside(folder)
        for name, outcomes in self.guessed.items():
            (folder / BASELINES).mkdir(exist_ok=True)
            write_outcomes(folder / BASELINES / f"{name}.parquet", outcomes)
        for warning in (
            *look_for_overlap(self.context, self.predicted, self.details),
            *filter(None, map(no_finite_number, self.metrics, self.metrics.values())),
        ):
            self.context.events.emit("warning", message=warning)
        write_mistakes(folder / "mistakes.jsonl", self.mistakes)
        average, stands_on = glue_score(self.metrics)
        if stands_on:
            self.details[GLUE_SCORE] = stands_on
            self.metrics |= {GLUE_SCORE: average} if average else {}
        write_json(folder / "details.json", self.details)
        write_json(folder / "metrics.json", self.metrics)
        flat = {f"{name}.{metric}": value for name, scores in self.metrics.items() for metric, value in scores.items()}
        self.context.events.emit(
            "metric", step=sum(len(each.rows) for each in self.predicted) + self.measured, metrics=flat
        )


def _each_text_read(tokenizer: PreTrainedTokenizerBase, rows: Rows, max_length: int) -> Rows:
    """`read_part`, with the texts of a pair cut each by itself."""
    if rows.pairs is None:
        return read_part(tokenizer, rows, max_length)
    first, second = (
        read_part(tokenizer, replace(rows, texts=texts, pairs=None), max_length).texts
        for texts in (rows.texts, rows.pairs)
    )
    return replace(rows, texts=first, pairs=second)


def no_finite_number(benchmark: str, scores: Mapping[str, float]) -> str | None:
    """A sentence where scores are infinite or undefined."""
    listed = ", ".join(f"{name} is {value}" for name, value in scores.items() if not math.isfinite(value))
    if not listed:
        return None
    return (
        f"{benchmark}: {listed}, no finite number, so that no table compares it; where the training diverged, lower "
        "its learning rate"
    )


def no_better_than_majority(
    benchmark: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    majority: Mapping[str, float],
    guess: str = TaskEvaluation.majority_guess,
) -> str | None:
    """A sentence where a score's interval contains, or is worse than, what always guessing one class scores."""
    ends = {name: interval[smaller_is_better(name)] for name, interval in intervals.items()}
    within = [
        name
        for name in scores
        if name in majority and (ends[name] == majority[name] or better(name, majority[name], ends[name]))
    ]
    if not within:
        return None
    listed = ", ".join(
        f"{name} {scores[name]:.3f} [{intervals[name][0]:.3f}, {intervals[name][1]:.3f}] against {majority[name]:.3f}"
        for name in within
    )
    return f"{benchmark}: not shown to be better than {guess}: {listed}"


def no_better_than_ngrams(
    name: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    peers: Mapping[str, Mapping[str, float]],
) -> str | None:
    """A sentence where the interval of bits per byte contains, or lies above, what a model of one or two tokens
    needs."""
    for metric in ("bits_per_byte", "hidden_bits_per_byte"):
        better = [
            f"{peer} {peers[peer][metric]:.3f}"
            for peer in peers
            if metric in scores and intervals[metric][1] >= peers[peer][metric]
        ]
        if better:
            low, high = intervals[metric]
            what = metric.replace("_", " ")
            return (
                f"{name}: not shown to be better than frequencies: {what} {scores[metric]:.3f} "
                f"[{low:.3f}, {high:.3f}] against {', '.join(better)}"
            )
    return None


def trained_on(name: str, reference: DatasetReference, chosen: PretrainedStage) -> str | None:
    """A sentence where the text that should be held out is what the model was pretrained on."""
    same = [
        each
        for each in chosen.datasets
        if (each.path, each.name, each.split) == (reference.path, reference.name, reference.split)
    ]
    if not same:
        return None
    return (
        f"{name}: the split '{reference.split}' is what '{chosen.id}' was trained on, so it is not held out; "
        "name another in 'split'"
    )


def write_mistakes(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Write `mistakes.jsonl` atomically, one object a line."""
    with whole_file(path) as temporary:
        temporary.write_text(
            "".join(json.dumps(finite(line), ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
        )
