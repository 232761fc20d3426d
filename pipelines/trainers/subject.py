"""What is learnt: a task, and how its examples are cut. The supervised stage is about one subject, multi-task about several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.blocks import Block, Found, Pick
from pipelines.data import chat_templates
from pipelines.data.chat_templates import TemplateName
from pipelines.data.tasks import TaskField, resolve
from pipelines.fields import architectures
from pipelines.registry import LESSONS, OBJECTIVES
from pipelines.trainers import class_keys, completion_keys, span_keys
from pipelines.trainers.class_keys import ClassWeights

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.recipe import Recipe
    from pipelines.trainers.lesson import Teacher


class Subject(Block):
    """The keys that say what is learnt."""

    as_text: ClassVar[bool] = False
    """Whether the answers are written, whatever the kind of the task."""
    task: TaskField
    """A named task such as `glue/mrpc`, or an inline one that describes your own files."""
    max_length: int = Field(128, ge=4, le=131072)
    """Tokens after which an example is cut."""
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = Field(None, validate_default=False)
    """For tasks of the kind `seq2seq`: `seq2seq` (the default) or `mask_predict`, or a mapping with its settings."""
    max_source_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a source is cut. Default: `max_length`."""
    max_target_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a target is cut. Default: `max_length`."""
    doc_stride: int | None = Field(None, ge=0, le=131072)
    """For tasks of the kind `qa`: tokens that neighbouring windows of a long context share. Default: a third of `max_length`."""
    auxiliary_lm: float | None = Field(None, gt=0, le=100)
    """The weight of naming the next tokens of the texts beside the task, for decoders; 0.5 in the paper on GPT."""
    label_smoothing_factor: float = Field(0.0, ge=0, lt=1)
    """The share of each label that is spread over all classes, as transformers' argument of that name."""
    class_weights: ClassWeights = None
    """For tasks of the kind `classification`: `balanced`, or a number a class; scaled to a mean of 1 over the training rows."""
    chat_template: TemplateName | None = None
    """For tasks of the kind `causal`: `alpaca`, `chatml`, `simple`, `zephyr`, or a Jinja file, saved with the tokenizer. Default:
    the tokenizer's own, else `simple`."""
    train_on: Literal["completions", "all"] | None = None
    """For tasks of the kind `causal`: learn the answers only (the default), or the prompts too."""
    packing: bool | None = None
    """For tasks of the kind `causal`: fill blocks of `max_length` tokens with several examples, which do not see each other."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of train."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Only the first of the rows set aside for model selection."""

    def resolved(self, name: str) -> Task:
        """The task itself; one that is described in place goes by `name`."""
        return resolve(self.task, name)

    def teacher(self) -> Teacher:
        """Who knows how tasks of this kind are learnt."""
        found: Teacher = LESSONS.load("seq2seq" if self.as_text else self.resolved("task").kind)()
        return found

    def learning_mistakes(self, name: str, recipe: Recipe) -> Iterable[Found]:
        """What is wrong with the subject for the recipe's model, places relative to the subject."""
        shape = recipe.model.architecture
        longest = architectures.resolve(shape).get("max_position_embeddings") if shape else None
        own_lengths = self.max_source_length is not None and self.max_target_length is not None
        if isinstance(longest, int) and longest < self.max_length and not own_lengths:
            yield ("max_length",), f"is {self.max_length}, but the model has max_position_embeddings {longest}"
        if self.task == "glue/ax":
            yield ("task",), "glue/ax has no training rows; train glue/mnli and evaluate on glue/ax"
        yield from completion_keys.useless(self, name)
        yield from span_keys.useless(self, name)
        teacher = self.teacher()
        found = list(teacher.mistakes(self, name, recipe))
        yield from found
        yield from class_keys.mistakes(self, self.resolved(name), teacher)
        if any(place == ("task",) for place, _ in found):  # which says it better
            return
        if shape and teacher.head_kind != "seq2seq_lm" and teacher.head_kind not in (known := architectures.heads(shape)):
            yield ("task",), f"needs a {teacher.head_kind.replace('_', ' ')} head; this architecture has {', '.join(known)}"

    def training_content(self, name: str) -> dict[str, str]:
        """Content hash of the training rows, by the columns that are read."""
        task = self.resolved(name)
        columns = self.teacher().columns(task)
        template = {"chat_template": chat_templates.content_of(self.chat_template)} if self.chat_template else {}
        return {f"train.{'+'.join(columns)}" if columns else "train": task.content()["train"]} | template

    def needed_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for the subject has beside the usual ones."""
        return chat_templates.marks_of(self.chat_template)

    def training_texts(self, name: str) -> Iterator[str]:
        """The texts of the training rows, for a tokenizer."""
        return self.teacher().texts(self.resolved(name).rows("train", self.max_train_samples))


def texts_of(rows: Any) -> Iterator[str]:
    """The texts, the second texts and the labels that are texts."""
    return chain(rows.texts, rows.pairs or (), (label for label in rows.labels or () if isinstance(label, str)))
