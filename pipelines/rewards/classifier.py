"""What a classifier makes of a text: the probability, log-probability or logit of one of its labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.recipe import FolderOrName
from pipelines.core.registry import TASK_KINDS, nearest
from pipelines.core.reward_field import unfit_source
from pipelines.rewards.reward import RewardBlock, Scorer, one_place

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe

Output = Literal["probability", "log_probability", "logit"]


class Classifier(RewardBlock):
    """One label of a text classifier: `{name: classifier, checkpoint: sentiment, label: positive}`."""

    name: Literal["classifier"] = "classifier"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: classifier, from: judge, label: 'yes'}",
        "{name: classifier, checkpoint: a/b, label: 'yes', output: logit, reads: completion}",
    )
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage that trained a classifier."""
    checkpoint: FolderOrName | None = None
    """A folder or a Hub name with a classifier, which may have another tokenizer than the policy."""
    label: str | None = None
    """The label that is rewarded. Default: none, for models with one output."""
    output: Output = "probability"
    """`probability`, `log_probability`, or `logit`: the log of its odds against all other labels, which never
    saturates."""
    reads: Literal["whole", "completion"] = "whole"
    """What is classified: the prompt with its completion behind it, or the completion alone."""
    max_length: int = Field(512, ge=4)
    """Tokens of a text; a longer one loses its beginning."""

    @model_validator(mode="after")
    def _one_place(self) -> Classifier:
        one_place(self.source, self.checkpoint)
        if self.label is None and "output" in self.model_fields_set:
            sentence = (
                "is that of a 'label', and none is named; name one, or leave 'output' out for a model with one output"
            )
            raise ConfigIssues([(("output",), sentence)])
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        return () if self.source is None else (self.source,)

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        if self.source is None:
            return
        why = unfit_source(self.source, recipe, stage_id, ("supervised", "multi_task"), "a classifier")
        if why is not None:
            yield ("from",), why
            return
        owner = recipe.stage(self.source)
        learnt = owner.subjects()
        task = getattr(learnt.get(self.source), "task", None)
        kind = getattr(task, "kind", None)
        if kind is not None and not TASK_KINDS.load(kind).labels_texts:
            yield (
                ("from",),
                f"'{self.source}' learns a task of the kind {kind}, and a classifier is needed: one of the kind "
                f"{' or '.join(TASK_KINDS.where(lambda each: each.labels_texts))}",
            )

    def content(self) -> dict[str, str]:
        from pipelines.models.checkpoint_content import checkpoint_content

        return {} if self.checkpoint is None else {"checkpoint": checkpoint_content(self.checkpoint)}

    def open(self, context: Context) -> Scorer:
        from pipelines.rewards import reward

        model = reward.opened(context, Head("sequence_classification"), self.source, self.checkpoint)
        model = reward.ready(model, context.world)
        tokenizer = context.open_tokenizer(self.source, checkpoint=self.checkpoint)
        limit = reward.usable(model, tokenizer, self.max_length)
        column = self._column(model)
        together = reward.padded(tokenizer)

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            texts = [
                prompt + completion if self.reads == "whole" else completion
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
            rows = reward.ends_kept(tokenizer, texts, limit) if texts else []
            lengths = [len(row["input_ids"]) for row in rows]
            return reward.read_by_length(
                model, rows, lengths, together, lambda outputs, _: label_score(outputs.logits, column, self.output)
            )

        return scores

    def _column(self, model: PreTrainedModel) -> int | None:
        """The output of the label; None for a model with one output. Raises ModelError."""
        names = {str(name): int(place) for place, name in model.config.id2label.items()}
        if self.label is None:
            if model.config.num_labels == 1:
                return None
            raise ModelError(
                f"the classifier of the reward has the labels {', '.join(names)}; "
                f"say which is rewarded: label: {next(iter(names))}"
            )
        if model.config.num_labels == 1:
            raise ModelError(
                f"the classifier of the reward has one output and no label '{self.label}'; leave 'label' out"
            )
        if self.label not in names:
            raise ModelError(
                f"the classifier of the reward has no label '{self.label}'.{nearest(self.label, names)} "
                f"Its labels: {', '.join(names)}"
            )
        return names[self.label]


def label_score(logits: Tensor, column: int | None, output: Output) -> Tensor:
    """The score of one label (texts,) by logits (texts, labels). `logit` is log p - log (1 - p), computed from the
    logits themselves."""
    import torch

    logits = logits.double()
    if column is None:
        return logits[:, 0]
    if output == "probability":
        return logits.softmax(-1)[:, column]
    if output == "log_probability":
        return logits.log_softmax(-1)[:, column]
    others = torch.cat([logits[:, :column], logits[:, column + 1 :]], dim=-1)
    return logits[:, column] - others.logsumexp(-1)
