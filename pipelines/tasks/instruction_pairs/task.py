"""Instructions for encoder-decoders: rows of the kind `causal` as pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from pipelines.core.config import ConfigIssues
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import Head, HeadKind, Rows
from pipelines.tasks.base import LabelledTask, PromptForm
from pipelines.tasks.causal.task import Causal, CausalTask, Dialogues

if TYPE_CHECKING:
    from pipelines.core.config import ConfigIssue
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationSettings


class InstructionPairs(Causal):
    """Answers in words, for encoder-decoders: the last answer of each row, given all that stands before it."""

    head_kind: ClassVar[HeadKind] = "seq2seq_lm"
    prompt_form: ClassVar[PromptForm | None] = None
    evaluation_keys: ClassVar[tuple[str, ...]] = ()
    smooths_labels: ClassVar[bool] = False
    read_as: ClassVar[str | None] = "seq2seq"
    rows_hold: ClassVar[str] = ""
    kind: Literal["instruction_pairs"]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _something_is_asked(self) -> InstructionPairs:
        if self.format == "text":
            raise ConfigIssues(
                [
                    (
                        ("format",),
                        "is text, which asks nothing; pairs need messages, sharegpt, alpaca or prompt_completion",
                    )
                ]
            )
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        settings = Causal.model_construct(
            **{**{key: getattr(self, key) for key in type(self).model_fields}, "kind": "causal"}
        )
        causal = settings.task(name)
        assert isinstance(causal, CausalTask)
        return PairsTask(**{key: getattr(causal, key) for key in CausalTask.__dataclass_fields__} | {"kind": "seq2seq"})

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        """Never: the same rows are read as `causal`."""
        return None

    @classmethod
    def evaluation_issues(
        cls, stage: EvaluationSettings, choice: BenchmarkChoice, recipe: Recipe
    ) -> Iterable[ConfigIssue]:
        return ()


@dataclass(frozen=True)
class PairsTask(CausalTask):
    """A task of the kind `seq2seq` whose sources and targets are read from dialogues."""

    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> tuple[str, ...]:
        """Every score that an evaluation gives."""
        return self.metrics

    @property
    def head(self) -> Head:
        """The head that writes."""
        return Head("seq2seq_lm")

    def rows(self, split: str, limit: int | None = None) -> Rows:  # type: ignore[override]
        """What is asked, and the last answers. Raises DataError."""
        dialogues: Dialogues = super().rows(split, limit)
        texts: Sequence[str] = dialogues.texts
        return Rows(texts, None, dialogues.labels, dialogues.index)
