"""How a kind of task is evaluated: what is asked of a model about a benchmark, and what it answers.

Each kind has a `TaskEvaluation`. An `EvaluationRequest` is all that it is given: the benchmark, the model, and how the
stage wants it asked. What the model predicts for a split comes back as `SplitPredictions`. Imports without numpy and
torch: checks of recipes need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import ModelError
from pipelines.core.recipe import trained_by
from pipelines.core.registry import TASK_KINDS, TASKS
from pipelines.tasks.base import LabelledTask, resolve
from pipelines.tasks.text_to_text import AsText

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from pipelines.core.decoding import Generation, SpanSettings
    from pipelines.core.interfaces import Context, Rows, Score, Task
    from pipelines.core.presentation import FormField
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.extractive_qa.task import Retrieval
    from pipelines.tasks.predictions import SplitPredictions


class EvaluationSettings(Protocol):
    """How a stage wants benchmarks asked: the keys of an evaluate stage that kinds of tasks read."""

    @property
    def max_length(self) -> int | None: ...
    @property
    def max_eval_samples(self) -> int | None: ...
    @property
    def max_predict_samples(self) -> int | None: ...
    @property
    def per_device_eval_batch_size(self) -> int: ...
    @property
    def mixed_precision(self) -> str: ...
    @property
    def generation(self) -> Generation: ...
    @property
    def spans(self) -> SpanSettings: ...
    @property
    def retrieval(self) -> Retrieval | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def baselines(self) -> Sequence[str]: ...


class NotDefined(ValueError):
    """A baseline that makes no sense for this task; the message says why."""


@dataclass(frozen=True)
class Predictions:
    """The answers to every evaluation split of a benchmark."""

    predicted: Sequence[SplitPredictions]
    max_length: int
    """Tokens after which a text was cut."""
    columns: list[int] | None = None
    """The model's output behind each class of the task; None where both have the same order."""
    generation: Mapping[str, Any] | None = None
    """How texts were written; None where the answers are no texts."""
    scores: Mapping[str, tuple[float, tuple[float, float]]] = field(default_factory=dict)
    """Scores that are not counted from the answers, by name, each with its interval."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scores of the same model asked in another way, by its name."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else it takes to ask the same again, and to read the scores rightly: it stands in `details.json`."""
    apart: bool = False
    """Whether each text of a pair was cut by itself, and not both together."""


@dataclass(frozen=True)
class BenchmarkChoice:
    """One benchmark and the model that is scored on it."""

    name: str
    """`glue/mrpc`, or the id of the stage that describes an inline task: the key in `metrics.json`."""
    task: Any
    """The benchmark as a recipe writes it: a name, or the block of an inline task."""
    model: str
    """Id of the stage whose model is scored, `stage/task` where it trained several, or `model` for the recipe's own."""
    owner: str | None
    """Id of the model that was trained on the benchmark's task, if there is one."""
    subject: Any = None
    """What that model learnt, as its stage says it: `task`, `max_train_samples` and so on."""

    @property
    def kind(self) -> str:
        """The kind of the task, in the words of the TASK_KINDS table."""
        if getattr(self.subject, "as_text", False):
            return "seq2seq"
        kind: str = TASKS.load(self.task).kind if isinstance(self.task, str) else self.task.kind
        return kind

    def trained_length(self, recipe: Recipe) -> int | None:
        """`max_source_length` or `max_length` of the stage that trained the model; None for the recipe's own model."""
        return self._trained(recipe, "max_source_length") or self._trained(recipe, "max_length")

    def trained_stride(self, recipe: Recipe) -> int | None:
        """`doc_stride` of the stage that trained the model."""
        return self._trained(recipe, "doc_stride")

    def trained_target_length(self, recipe: Recipe) -> int | None:
        """The same for the texts that the model learnt to write."""
        return self._trained(recipe, "max_target_length") or self._trained(recipe, "max_length")

    def _trained(self, recipe: Recipe, key: str) -> int | None:
        length: int | None = getattr(trained_by(recipe.stages).get(self.model), key, None)
        return length

    def open_task(self) -> LabelledTask | AsText:
        """The task itself, ready to be read."""
        task = resolve(self.task, self.name)
        return AsText(task) if getattr(self.subject, "as_text", False) else task


def issues(stage: EvaluationSettings, choices: Iterable[BenchmarkChoice], recipe: Recipe) -> Iterable[ConfigIssue]:
    """What is wrong with asking for these benchmarks, positions relative to the stage."""
    for choice in choices:
        yield from TASK_KINDS.load(choice.kind).evaluation_issues(stage, choice, recipe)


@dataclass(frozen=True)
class EvaluationRequest:
    """One benchmark, the model that is asked, and how."""

    stage: EvaluationSettings
    choice: BenchmarkChoice
    task: Task
    context: Context
    model: Any
    tokenizer: Any

    def length(self) -> int:
        """Tokens after which a text is cut: what the stage says, else what the model was trained with, as far as
        it has positions."""
        from pipelines.models.predict import usable_length

        wanted = self.stage.max_length or self.choice.trained_length(self.context.recipe)
        return usable_length(self.model, self.tokenizer, wanted)

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """(suffix of the metric names, split, its rows) of everything that is evaluated."""
        own = getattr(self.choice.subject, "max_predict_samples", None)
        predicted = self.stage.max_predict_samples or own
        for suffix, split in self.task.evaluation_splits.items():
            rows = self.task.rows(split, self.stage.max_eval_samples)
            if predicted is not None and rows.labels is None:
                rows = self.task.rows(split, predicted)
            yield suffix, split, rows

    def running(self, split: str) -> dict[str, Any]:
        """Keywords of `predict` and its like: processes, device, batch size, progress, precision."""
        from pipelines.models.predict import device, progress_events

        return {
            "world": self.context.world,
            "gather": self.context.gather,
            "device": device(),
            "batch_size": self.stage.per_device_eval_batch_size,
            "progress": progress_events(self.context, f"{self.choice.name} {split}"),
            **({"precision": "bf16"} if self.stage.mixed_precision == "bf16" else {}),
        }


class TaskEvaluation:
    """Base of every kind's evaluation."""

    majority_guess: ClassVar[str] = "always guessing the most frequent class"
    """What the baseline of the kind does that learns nothing from a text."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        """What the model says about every evaluation split, on every process."""
        raise NotImplementedError

    def score(self, task: Task) -> Score:
        """The task's scores as one function of what `SplitPredictions.answers` and `.labels` hold."""
        raise NotImplementedError

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        """What a person fills in for one row: a text for each column that is read, or one where none is named."""
        from pipelines.core.presentation import field_of

        return tuple(field_of(column) for column in task.columns) or (field_of("text"),)

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str | list[str]]]:
        """Rows to start from, each with a value for every field of the form."""
        return ()

    def ways(self, task: LabelledTask) -> Sequence[tuple[str, ...]]:
        """The columns of an input, in each way in which one can be written."""
        return (tuple(task.columns),)

    def without_gold(self, task: LabelledTask) -> LabelledTask:
        """The task whose rows are inputs alone, as those of a user's own file."""
        return task

    def unread(self, tokenizer: Any, rows: Rows, length: int) -> str | None:
        """A sentence where rows have more tokens than the `length` that is read of them."""
        texts = list(rows.texts)
        pairs = None if rows.pairs is None else list(rows.pairs)
        counts = [len(ids) for ids in tokenizer(texts, pairs, verbose=False)["input_ids"]]
        return cut_sentence(counts, length)


PAIRS = (
    ("A man is playing the guitar.", "Someone plays an instrument."),
    ("A man is playing the guitar.", "The train was late again."),
)
"""To start from, where two texts are compared."""


def cut_sentence(counts: Sequence[int], length: int, what: str = "input") -> str | None:
    """What is said of inputs, or of a part of them, with so many tokens, of which `length` are read; None where none
    is longer."""
    over = [count for count in counts if count > length]
    if not over:
        return None
    if len(counts) == 1:
        return f"The {what} has {over[0]:,} tokens, and the model reads {length:,}: the end was not read."
    return f"{len(over):,} of {len(counts):,} {what}s have more than {length:,} tokens: their ends were not read."


def evaluation_of(kind: str) -> TaskEvaluation:
    """How tasks of a kind of the TASK_KINDS table are evaluated."""
    evaluation: TaskEvaluation = TASK_KINDS.part(kind, "evaluation")()
    return evaluation


@dataclass(frozen=True)
class SplitRequest(EvaluationRequest):
    """One split of a task, without its labels."""

    split: str = "test"

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """The split alone."""
        yield "", self.split, without_labels(self.task.rows(self.split, self.stage.max_eval_samples))


def without_labels(rows: Any) -> Any:
    """The rows, whose labels are not looked at."""
    hidden: dict[str, Any] = {"labels": None, "starts": None} if hasattr(rows, "starts") else {"labels": None}
    return replace(rows, **hidden)


def columns(classes: Sequence[str], config: PreTrainedConfig, task: str, model: str) -> list[int] | None:
    """The model's output for each class of the task, in the task's order; None where they agree already.

    A checkpoint names its outputs in `config.id2label`. Many are fine-tuned with the classes in another order than the
    data set's (an MNLI checkpoint may count contradiction as 0 where GLUE counts entailment); scored column by column,
    such a model looks worse than chance. Unnamed outputs (`LABEL_0`, `LABEL_1`, …) are taken in the
    task's order. Raises ModelError where the outputs are not those of the task.
    """
    outputs = int(config.num_labels)
    needed = len(classes) or 1
    if outputs != needed:
        raise ModelError(
            f"the model '{model}' has {outputs} output{'s' * (outputs != 1)}, but '{task}' needs {needed} "
            f"({_listed(classes) if classes else 'it is a regression'}); name a model that was fine-tuned on it"
        )
    if not classes:
        return None
    names = [str(config.id2label[position]) for position in range(outputs)]
    if all(re.fullmatch(r"LABEL_\d+|\d+", name) for name in names):
        return None
    wanted, given = [plain(name) for name in classes], [plain(name) for name in names]
    if wanted == given:
        return None
    if not same_classes(classes, names) or len(set(given)) < outputs:
        raise ModelError(
            f"the model '{model}' tells {_listed(names)} apart, but '{task}' needs {_listed(classes)}; "
            "name a model that was fine-tuned on it"
        )
    return [given.index(name) for name in wanted]


def same_classes(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists name the same classes, in any order."""
    return sorted(map(plain, one)) == sorted(map(plain, other))


def plain(name: str) -> str:
    """Letter case, spaces, `_` and `-` make no difference between names of one class."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … ({len(names)} classes)" if len(names) > 6 else "")
