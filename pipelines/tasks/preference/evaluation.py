"""Evaluating preferences: a score for each of two answers, and how often the better one has the higher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Score, Task
from pipelines.core.model_types import looks_back_only
from pipelines.core.presentation import FormField, Part, bars
from pipelines.core.registry import BASELINES
from pipelines.data.completions import stops_of
from pipelines.metrics.calibration import softmax
from pipelines.metrics.statistics import LEVEL, RESAMPLES, interval_of_mean
from pipelines.tasks.evaluation import (
    EvaluationRequest,
    NotDefined,
    Predictions,
    TaskEvaluation,
)
from pipelines.tasks.predictions import LogitPredictions, SplitPredictions
from pipelines.tasks.preference import scores as pair_scores
from pipelines.tasks.preference.candidates import (
    EXAMPLES,
    FORM,
    WAYS,
    CandidatePredictions,
    CandidateRows,
    CandidateTask,
)
from pipelines.tasks.preference.task import PreferenceTask
from pipelines.tasks.scored_examples import ScoredExamples, scored_decisions

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.data.reward_inputs import RewardCollator, RewardInputFormat
    from pipelines.tasks.base import LabelledTask


@dataclass(frozen=True)
class PairPredictions(LogitPredictions):
    """Pairs of answers. `logits` are the scores (pairs, 2), the chosen answer's first: their softmax is Bradley
    and Terry's model."""

    def scored_examples(self, task: Task) -> ScoredExamples:
        rows: Any = self.rows
        preferred = [(rows.chosen, rows.rejected)[side][at] for at, side in enumerate(self.logits.argmax(axis=1))]
        return scored_decisions(
            self.logits,
            np.asarray(self.labels),
            [each.completion for each in rows.chosen],
            [each.completion for each in preferred],
        )

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        rows: Any = self.rows
        scores = self.logits[place]
        answers = [rows.chosen[place].completion, rows.rejected[place].completion]
        names = [f"score {score:.3g}" for score in scores]
        return (bars(names, softmax(scores).tolist(), "Which of two answers is better", answers),)

    def doubt(self, task: Task) -> str | None:
        if len(self.logits) > 1 and np.ptp(self.logits) == 0:
            return (
                f"{self.benchmark}: the model gives every answer of '{self.split}' the same score; it has not "
                "learnt to tell them apart"
            )
        return None

    def table(self) -> pa.Table:
        """Both answers with their scores; `label` is 0, as the first is the better one, and `prediction` the one
        with the higher score."""
        import pyarrow as pa

        rows: Any = self.rows
        scores = np.asarray(self.logits, dtype=np.float32)
        return pa.table(
            {
                **self.key_columns(),
                "text": pa.array(list(rows.texts), pa.string()),
                "chosen": pa.array([each.completion for each in rows.chosen], pa.string()),
                "rejected": pa.array([each.completion for each in rows.rejected], pa.string()),
                "score_chosen": pa.array(scores[:, 0]),
                "score_rejected": pa.array(scores[:, 1]),
                "label": pa.nulls(len(rows), pa.int64()) if self.labels is None else pa.array(self.labels),
                "prediction": pa.array(scores.argmax(axis=1).astype(np.int64)),
                "logits": pa.array(list(scores), pa.list_(pa.float32())),
            }
        )


def score_pairs(task: Task) -> Score:
    """The share of pairs whose chosen answer has the higher score; the same score counts half."""

    def of(scores: object, labels: object) -> dict[str, float]:
        values = np.asarray(scores)
        if values.ndim != 2 or values.shape[1] != 2:
            raise ModelError(f"'{task.name}' needs two scores a pair, found the shape {values.shape}")
        if len(values) == 0:
            raise DataError(f"'{task.name}' has no pair to score; choose a split with rows, or raise max_eval_samples")
        wrong = ~np.isfinite(values).all(axis=1)
        if wrong.any():
            raise ModelError(
                f"the model gives NaN or infinity for {int(wrong.sum())} of {len(values)} pairs of "
                f"'{task.name}' (first in row "
                f"{int(wrong.argmax())}): its training diverged, so lower its learning rate"
            )
        return {"accuracy": pair_scores.accuracy(values)}

    return of


def difference(
    scores: object, other: object, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> Mapping[str, Any]:
    """How much more accurate `scores` are than `other`, both (pairs, 2) on the same pairs, with a paired bootstrap
    interval: the same drawn pairs for both."""
    gaps = _credit(scores) - _credit(other)
    return {"difference": float(gaps.mean()), "interval": list(interval_of_mean(gaps, seed, resamples, level))}


def _credit(scores: object) -> NDArray[np.float64]:
    """What each pair adds to the accuracy: 1, 0, or a half."""
    values = np.asarray(scores, dtype=np.float64)
    credit: NDArray[np.float64] = (values[:, 0] > values[:, 1]) + 0.5 * (values[:, 0] == values[:, 1])
    return credit


class PreferenceEvaluation(TaskEvaluation):
    """One number an answer, by which the better of two is told."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        from pipelines.models.predict import answers
        from pipelines.tasks.preference import scores as pair_scores

        name, tokenizer = request.choice.name, request.tokenizer
        reading = reading_of(request)
        task: Any = request.task
        if isinstance(task, PreferenceTask) and getattr(request.choice.subject, "skip_bad_rows", False):
            request = replace(request, task=replace(task, skip_bad_rows=True))
        predicted: list[SplitPredictions] = []
        histograms, paired, skipped, templated = {}, {}, {}, False
        for suffix, split, given in request.splits():
            rows: Any = given
            rows = rows.in_turns() if reading.templated else rows
            if isinstance(rows, CandidateRows):
                predicted.append(_judged(request, split, rows, reading))
                continue
            templated = any(each.templated for each in rows.chosen)
            examples, answer = prepared(request.model, tokenizer, rows, reading)
            scores = _stacked(answers(request.model, examples.lengths.tolist(), answer, **request.running(split)))
            predicted.append(PairPredictions(name, split, suffix, rows, scores))
            histograms[split] = pair_scores.histogram(scores)
            paired[split] = _against(request, rows, scores)
            if rows.skipped:
                skipped[split] = {number + 1: why for number, why in rows.skipped.items()}
        details = {
            "reads": reading.reads,
            "reading": asdict(replace(reading, templated=templated)),
            "histogram": histograms,
            **({"paired": paired} if any(paired.values()) else {}),
            **({"skipped_rows": skipped} if skipped else {}),
        }
        return Predictions(predicted, reading.max_length, details=details)

    def score(self, task: Task) -> Score:

        return score_pairs(task)

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        return FORM

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str | list[str]]]:
        return EXAMPLES

    def ways(self, task: LabelledTask) -> Sequence[tuple[str, ...]]:
        return WAYS

    def without_gold(self, task: LabelledTask) -> LabelledTask:
        return CandidateTask.of(task)

    def unread(self, tokenizer: Any, rows: Any, length: int) -> str | None:
        count = getattr(rows, "truncated", 0)
        if not count:
            return None
        answers = sum(map(len, rows.answers))
        return (
            f"{count:,} of {answers:,} answers are longer with their prompt than what the model reads: the beginning "
            "of the prompt or the end of the answer was not read."
        )


def reading_of(request: EvaluationRequest) -> RewardInputFormat:
    """How the model reads a prompt and an answer: as it was trained, else as its family does."""
    from pipelines.data.reward_inputs import RewardInputFormat, settings_in

    folders, model = request.context.stage_folders, request.choice.model
    opened = getattr(request.model, "finery_folder", None) or request.context.recipe.model.checkpoint
    folder = folders[model] / "model" if model in folders else opened
    settings = None if folder is None else settings_in(folder)
    if settings is not None:
        return (
            settings.reading
            if request.stage.max_length is None
            else replace(settings.reading, max_length=request.length())
        )
    return RewardInputFormat("text" if looks_back_only(request.model.config.to_dict()) else "pair", request.length())


def prepared(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Any, reading: RewardInputFormat
) -> tuple[Any, Any]:
    """(the pairs, what `answers` asks of them: both scores of each)."""
    from pipelines.tasks.preference.training import ScoredPairsCollator, encode_scored_pairs

    together = ScoredPairsCollator(_collator(model, tokenizer))
    examples = encode_scored_pairs(tokenizer, rows, reading, stops_of(model), with_margins=False, keep_all=True)

    def scores(places: list[int], device: Any) -> Any:
        """(pairs, 2): the chosen answers' scores first."""
        batch = together([examples[at] for at in places])
        return _scores(model, batch, 2 * len(places), device).reshape(2, -1).T

    return examples, scores


def _judged(
    request: EvaluationRequest, split: str, rows: CandidateRows, reading: RewardInputFormat
) -> CandidatePredictions:
    """The score of every answer."""
    from pipelines.data.reward_inputs import encoded
    from pipelines.models.predict import answers

    together = _collator(request.model, request.tokenizer)
    flat = [each for row in rows.answers for each in row]
    if reading.reads == "text" and not reading.templated and not request.tokenizer.chat_template:
        flat = reading.dialogues([each.prompt for each in flat], [each.completion for each in flat])
    examples, cut = encoded(request.tokenizer, flat, reading, stops_of(request.model))

    def scores(places: list[int], device: Any) -> Any:
        return _scores(request.model, together([examples[at] for at in places]), len(places), device)

    found = iter(answers(request.model, examples.lengths.tolist(), scores, **request.running(split)))
    by_row = [np.asarray([next(found) for _ in row], dtype=np.float32) for row in rows.answers]
    rows = replace(rows, truncated=int(cut.sum()))
    return CandidatePredictions(request.choice.name, split, "", rows, by_row)


def _collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> RewardCollator:
    """What joins single texts to batches, which the model then finds the ends of."""
    from pipelines.data.reward_inputs import RewardCollator

    together = RewardCollator.of(tokenizer)
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = together.pad_id
    return together


def _scores(model: PreTrainedModel, batch: Mapping[str, Any], count: int, device: Any) -> Any:
    """(answers,): a score each. Raises ModelError for a model that gives no single number."""
    from pipelines.models.read_places import text_alone

    inputs = {name: value.to(device) for name, value in batch.items() if name not in ("labels", "margin")}
    with text_alone(model, inputs):
        logits = model(**inputs).logits
    if tuple(logits.shape) != (count, 1):
        raise ModelError(
            f"the model gives outputs of shape {tuple(logits.shape)} for {count} answers, where a reward model gives "
            "one number each; evaluate one that a reward stage has trained"
        )
    return logits.float().reshape(-1).cpu().numpy()


def _stacked(scores: list[Any]) -> Any:
    import numpy as np

    return np.stack(scores)


def _against(request: EvaluationRequest, rows: object, scores: object) -> dict[str, Any]:
    """What the model gains over each guesser that is asked for, with an interval of the difference."""

    gains = {}
    for name in request.stage.baselines:
        try:
            guess = BASELINES.load(name)(None, rows, 1)
        except NotDefined:
            continue
        gains[name] = difference(scores, guess, request.context.seed)
    return gains
