"""A reward model's score: how much people, or a judge, would like a completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.recipe import FolderOrName
from pipelines.core.reward_field import unfit_source
from pipelines.rewards.reward import RewardBlock, Scorer, one_place

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.data.chat_formats import Dialogue
    from pipelines.data.reward_inputs import RewardInputFormat, RewardSettings

LENGTH = 512
"""Tokens that a model from elsewhere reads where the recipe does not say."""


class RewardModel(RewardBlock):
    """The score of a reward model: `{from: STAGE}` or `{checkpoint: …}`. It may have another tokenizer than the
    policy."""

    name: Literal["model"] = "model"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{from: scores}",
        "{checkpoint: a/b, max_length: 32}",
    )
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage of the kind `reward`."""
    checkpoint: FolderOrName | None = None
    """A folder or a Hub name with a reward model: a head with one output."""
    normalize: bool = False
    """Whether scores are shifted and divided so that those of its training data have mean 0 and standard deviation
    1."""
    max_length: int | None = Field(None, ge=4)
    """Tokens of a prompt and its completion. Default: what the model was trained with, else 512."""

    @model_validator(mode="after")
    def _one_place(self) -> RewardModel:
        one_place(self.source, self.checkpoint)
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        return () if self.source is None else (self.source,)

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        if self.source is None:
            return
        if (why := unfit_source(self.source, recipe, stage_id, ("reward",), "a reward model")) is not None:
            classifiers = [stage.id for stage in recipe.stages if stage.stage == "supervised"]
            hint = "; a classifier is read by name: classifier" if self.source in classifiers else ""
            yield ("from",), f"{why}{hint}"

    def content(self) -> dict[str, str]:
        from pipelines.models.checkpoint_content import checkpoint_content

        return {} if self.checkpoint is None else {"checkpoint": checkpoint_content(self.checkpoint)}

    def open(self, context: Context) -> Scorer:
        from pipelines.data.reward_inputs import RewardCollator, encode_scored, settings_in
        from pipelines.rewards import reward as batches

        model = batches.opened(context, Head("reward"), self.source, self.checkpoint)
        if model.config.num_labels != 1:
            raise ModelError(
                f"'{self.checkpoint or self.source}' has {model.config.num_labels} outputs and is a classifier; "
                "write {name: classifier, label: …}"
            )
        tokenizer = context.open_tokenizer(self.source, checkpoint=self.checkpoint)
        settings = settings_in(self.checkpoint or context.stage_folders[str(self.source)] / "model")
        mean, spread = self._constants(settings)
        reading = self._reading(model, tokenizer, settings)
        together = RewardCollator.of(tokenizer)
        if getattr(model.config, "pad_token_id", None) is None:
            # transformers' decoders look for the last token that is no padding
            model.config.pad_token_id = together.pad_id
        model = batches.ready(model, context.world)
        stops = ends_of(model)

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            rows = encode_scored(tokenizer, dialogues_of(reading, tokenizer, prompts, completions), reading, stops)
            examples = [rows[place] for place in range(len(rows))]
            raw = batches.read_by_length(
                model, examples, rows.lengths.tolist(), together, lambda outputs, _: outputs.logits[:, 0]
            )
            return [(score - mean) / spread for score in raw]

        return scores

    def _constants(self, settings: RewardSettings | None) -> tuple[float, float]:
        """What is taken from a score, and what it is divided by."""
        if not self.normalize:
            return 0.0, 1.0
        if settings is None:
            raise ModelError(
                f"'{self.checkpoint}' has no reward.json that says how its scores are spread; leave 'normalize' out"
            )
        return settings.mean, settings.std or 1.0

    def _reading(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: RewardSettings | None
    ) -> RewardInputFormat:
        """How the model reads: as in its training, else as the stage `reward` would have it read."""
        from pipelines.data.reward_inputs import RewardInputFormat
        from pipelines.models.heads import family_of
        from pipelines.rewards.reward import usable

        if settings is not None:
            reading = settings.reading
        else:
            decoder = family_of(model.config) == "decoder"
            templated = decoder and bool(tokenizer.chat_template)
            reading = RewardInputFormat("text" if decoder else "pair", LENGTH, templated=templated)
        return replace(reading, max_length=usable(model, tokenizer, self.max_length or reading.max_length))


def dialogues_of(
    reading: RewardInputFormat, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], completions: Sequence[str]
) -> list[Dialogue]:
    """Prompts with their completions, in the form in which the model learnt such. A prompt of messages keeps them."""
    from pipelines.data.chat_formats import Dialogue

    dialogues = reading.dialogues(prompts, completions)
    for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        messages = getattr(prompt, "messages", ())
        if messages and reading.reads == "text" and tokenizer.chat_template:
            dialogues[place] = Dialogue(
                (*messages, {"role": "assistant", "content": completion}), (*[False] * len(messages), True)
            )
    return dialogues


def ends_of(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens at which the model's own generation would end."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if own is None else tuple(own) if isinstance(own, list | tuple) else (int(own),)
