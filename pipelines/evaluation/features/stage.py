"""Features: score what a linear classifier makes of frozen vectors, beside models that were tuned on the same task.

Each text becomes a vector that is not learnt for the task (`word2vec`, `glove`, or the recipe's model: `encoder`). A
classifier is fitted on the training rows, its strength chosen on a tenth of them, and scored on the task's evaluation
splits as an evaluate stage scores a tuned model: the same metrics, intervals and files, so that `finery compare` and
studies pair both by example. Leaves, beside those files, `probe.safetensors` with the classifier.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Named, Pick
from pipelines.core.costs import StagePlan
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.registry import BASELINES, FEATURES, TASK_KINDS
from pipelines.evaluation.features.base import Reading
from pipelines.tasks.base import TaskField, resolve
from pipelines.tasks.evaluation import BenchmarkChoice, Predictions
from pipelines.tasks.known import head_without_rows, mean_tokens, task_rows

if TYPE_CHECKING:
    from pipelines.core.costs import Planning
    from pipelines.core.interfaces import Context, Rows, Task
    from pipelines.evaluation.features.base import Extractor
    from pipelines.evaluation.features.linear_probe import ChosenRegularization, Probe, TextFeatures

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


class FeatureProbe(Stage):
    """Fit a linear classifier on frozen features of a task's texts, and score it."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: features, task: glue/sst2, features: {name: word2vec, datasets: [{path: builtin/python-docs}]}}",
        "{stage: features, id: static, task: glue/stsb, features: {name: glove, "
        "datasets: [{path: builtin/python-docs}], size: 50, window: 8, x_max: 10.0}, C: [0.1, 1], "
        "baselines: [majority]}",
        "{stage: features, id: frozen, from: text, task: {kind: classification, columns: [question, sentence], "
        "label: label, train: builtin/python-docs}, features: {name: encoder, layer: mix, pooling: last}, "
        "max_length: 64}",
    )
    stage: Literal["features"] = "features"
    task: TaskField
    """A named task such as `glue/sst2`, or one that is described in place: of the kinds `classification` and
    `regression`."""
    features: Annotated[Any, Pick(FEATURES, "name")] = "encoder"
    """What a text's vector is: `word2vec`, `glove` or `encoder`, or a mapping with its settings."""
    C: tuple[Annotated[float, Field(gt=0)], ...] = Field(STRENGTHS, min_length=1)
    """Strengths to choose among on a tenth of train: C times the loss stands against half the squared weights, as in
    scikit-learn. With one nothing is set aside."""
    baselines: tuple[Annotated[str, Named(BASELINES)], ...] = ()
    """Guessers to hold the scores against, fitted on the same training rows: `majority`, `naive_bayes`."""
    slices: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Columns of the evaluated rows, such as `domain`: each of their values is scored by itself."""
    max_length: int = Field(128, ge=4, le=131072)
    """Tokens, of the recipe's tokenizer, after which a text is cut; of a pair each text by itself."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of train."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Score the first N rows of each evaluation split only."""
    per_device_eval_batch_size: int = Field(32, ge=1)
    """Texts a batch, where a model reads them."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """Of the model's matrix products."""

    joins: ClassVar[bool] = False

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        task = resolve(self.task, self.id)
        if not TASK_KINDS.load(task.kind).labels_texts:
            served = " and ".join(TASK_KINDS.where(lambda kind: kind.labels_texts))
            yield ("task",), f"is of the kind {task.kind}; features are for tasks of the kinds {served}"
        elif "train" not in task.splits and task.trained_by is not None:
            yield ("task",), f"{task.name} has no training rows; name {task.trained_by}"
        elif not task.evaluation_splits:
            yield ("task",), f"{task.name} has no split to score"
        for place, problem in self.features.issues(recipe, recipe.model_of(self)):
            yield ("features", *place), problem
        if self.source is not None and not self.features.reads_model:
            yield ("from",), f"names a model, but the features {self.features.name} read none; leave it out"
        for key, names in (("baselines", self.baselines), ("slices", self.slices)):
            yield from (
                (((key, at)), f"'{name}' is named twice") for at, name in enumerate(names) if name in names[:at]
            )
        if len(set(self.C)) < len(self.C):
            yield ("C",), "names a strength twice"

    def unavailable_reason(self) -> str | None:
        why = self.features.unavailable_reason()
        return None if why is None else f"reads the features {self.features.name}, which {why}"

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        return (recipe.model_of(self),) if self.features.reads_model else ()

    def choices(self, recipe: Recipe) -> tuple[list[BenchmarkChoice], list[ConfigIssue]]:
        """The one benchmark that is scored, as an evaluate stage names its own."""
        return [BenchmarkChoice(self._name(recipe), self.task, self.id, None, self)], []

    def _name(self, recipe: Recipe) -> str:
        """The benchmark's name; of an inline task, that of the model which an earlier stage trained on the same."""
        if isinstance(self.task, str):
            return self.task
        earlier = recipe.stages[: recipe.stages.index(self)]
        subjects = [each for stage in earlier for each in stage.subjects().items()]
        return next((model for model, subject in subjects if subject.task == self.task), self.id)

    def content(self, recipe: Recipe) -> dict[str, str]:
        from importlib.metadata import version

        task = resolve(self.task, self.id)
        hashes = {f"{task.name}:{split}": value for split, value in task.content().items()}
        hashes |= self.features.content()
        return hashes | {"scikit-learn": version("scikit-learn")}

    def modules(self, recipe: Recipe) -> set[str]:
        return {TASK_KINDS.module(resolve(self.task, self.id).kind)}

    def texts(self) -> Iterator[str]:
        """The texts of the training rows, for a tokenizer."""
        rows = resolve(self.task, self.id).rows("train", self.max_train_samples)
        return chain(rows.texts, rows.pairs or ())

    def learnt_texts(self, folder: Path | None) -> Iterator[str]:
        """The training rows, and what the vectors were learnt from."""
        rows = resolve(self.task, self.id).rows("train", self.max_train_samples)
        joined = rows.texts if rows.pairs is None else map(" ".join, zip(rows.texts, rows.pairs, strict=True))
        return chain(joined, self.features.texts())

    def cost(self, planning: Planning) -> StagePlan:
        notes = [*planning.notes, "the classifier itself is not counted"]
        if not self.features.reads_model:
            notes.append("how long vectors of words take depends on the text that they are learnt from")
            return StagePlan(self.id, self.stage, notes=tuple(notes))
        task: Any = resolve(self.task, self.id)
        rows = [self._planned(task, "train", self.max_train_samples)]
        rows += [self._planned(task, split, self.max_eval_samples) for split in task.evaluation_splits.values()]
        known = [count for count in rows if count is not None]
        if planning.model is None or len(known) < len(rows):
            notes.append(f"how many rows {task.name} has will be known when the run starts")
            return StagePlan(self.id, self.stage, notes=tuple(notes))
        texts, mean = sum(known) * len(task.columns), mean_tokens(task, "train")
        length = self.max_length if mean is None else min(self.max_length, math.ceil(mean[0] / len(task.columns)))
        counted = "at most: every text is counted with max_length"
        notes.append(counted if mean is None else f"by texts of about {length} tokens, a token for four bytes")
        try:
            flops = texts * planning.model.forward(head_without_rows(task, notes), length, length, 0)
        except Exception as error:  # transformers refuses in many ways
            return planning.not_built(self, notes, error)
        tokens = texts * length
        seconds = flops / planning.flops_per_second
        return StagePlan(
            self.id, self.stage, tokens=tokens, flops=flops, seconds=seconds, notes=tuple(dict.fromkeys(notes))
        )

    @staticmethod
    def _planned(task: Any, split: str, most: int | None) -> int | None:
        rows = task_rows(task, split)
        return most if rows is None else rows if most is None else min(rows, most)

    def run(self, context: Context) -> None:
        """Read every text once, choose the strength, fit, score."""
        from safetensors.torch import save_file

        from pipelines.core.files import whole_file
        from pipelines.evaluation.analysis import check_named
        from pipelines.evaluation.report import Report

        (choice,), _ = self.choices(context.recipe)
        task = resolve(self.task, choice.name)
        if self.slices:
            check_named([task], self.slices)
        started = time.monotonic()
        rows = _AllRows.of(self, task)
        extractor = self.features.open(self._reading(context), rows.texts())
        train = _read(extractor, "train", rows.train)
        probe, chosen = self._fitted(context, task, train, rows.train)
        answers = self._answers(choice, task, extractor, probe, rows, chosen)
        context.folder.mkdir(parents=True, exist_ok=True)
        with whole_file(context.folder / "probe.safetensors") as temporary:
            save_file(probe.tensors(), str(temporary))
        report = Report(context, self.baselines, self.slices)
        report.add(choice, task, answers, started)
        report.write()

    def _reading(self, context: Context) -> Reading:
        from pipelines.models.predict import device, progress_events

        running = {
            "device": device(),
            "batch_size": self.per_device_eval_batch_size,
            "progress": progress_events(context, f"{self.features.name} features"),
            **({"precision": "bf16"} if self.mixed_precision == "bf16" else {}),
        }
        return Reading(context, context.recipe.model_of(self), self.max_length, running)

    def _fitted(
        self, context: Context, task: Task, train: TextFeatures, rows: Rows
    ) -> tuple[Probe, ChosenRegularization]:
        """The classifier with the chosen strength, learnt on all training rows. Raises DataError."""
        from pipelines.core.errors import DataError
        from pipelines.evaluation.features import linear_probe
        from pipelines.tasks.base import drawn
        from pipelines.tasks.scoring import score

        assert rows.labels is not None
        outputs = len(task.head.labels) or 1
        if len(rows) < 2:
            raise DataError(f"'{task.name}' has {len(rows)} training rows, too few to fit a classifier on")
        scored = score(task)
        chosen = linear_probe.chosen(
            train,
            rows.labels,
            outputs,
            self.C,
            drawn(len(rows), context.seed),
            lambda logits, labels: next(iter(scored(logits, labels).values())),
            context.beat,
        )
        probe = linear_probe.fitted(train, rows.labels, outputs, chosen.C)
        if chosen.at_edge:
            context.events.emit(
                "warning",
                message=f"C {chosen.C:g} is the smallest or largest that was tried, so a wider 'C' may do better",
            )
        if not probe.converged:
            message = (
                f"the classifier had not converged after {linear_probe.ITERATIONS} steps; a smaller C converges sooner"
            )
            context.events.emit("warning", message=message)
        return probe, chosen

    def _answers(
        self,
        choice: BenchmarkChoice,
        task: Task,
        extractor: Extractor,
        probe: Probe,
        rows: _AllRows,
        chosen: ChosenRegularization,
    ) -> Predictions:
        from pipelines.tasks.predictions import ClassPredictions

        predicted = []
        for suffix, split in task.evaluation_splits.items():
            own = rows.evaluated[split]
            logits = probe.logits(_read(extractor, split, own))
            predicted.append(ClassPredictions(choice.name, split, suffix, own, logits))
        facts = {"C": chosen.C, "tried": {f"{C:g}": value for C, value in chosen.tried.items()}, **probe.facts()}
        details = {"features": {"name": self.features.name, **extractor.details()}, "probe": facts}
        return Predictions(predicted, self.max_length, apart=True, details=details)


@dataclass(frozen=True)
class _AllRows:
    """Everything that is read."""

    train: Rows
    evaluated: Mapping[str, Rows]

    @classmethod
    def of(cls, stage: FeatureProbe, task: Task) -> _AllRows:
        splits = dict.fromkeys(task.evaluation_splits.values())
        return cls(
            task.rows("train", stage.max_train_samples),
            {name: task.rows(name, stage.max_eval_samples) for name in splits},
        )

    def texts(self) -> Iterator[str]:
        """Every text."""
        for rows in (self.train, *self.evaluated.values()):
            yield from rows.texts
            yield from rows.pairs or ()


def _read(extractor: Extractor, name: str, rows: Rows) -> TextFeatures:
    """The features of a part of the data, the texts of pairs each by themselves."""
    from pipelines.evaluation.features.linear_probe import TextFeatures

    first = extractor.vectors(name, rows.texts)
    return TextFeatures(first, None if rows.pairs is None else extractor.vectors(name, rows.pairs))
