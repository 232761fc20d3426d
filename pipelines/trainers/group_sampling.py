"""What GRPO and RLOO have in common: several completions of each prompt, each judged beside the others of its group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipelines.blocks import Found, Pick
from pipelines.data.prompts import Prompts
from pipelines.errors import DataError
from pipelines.fields import architectures
from pipelines.fields.arguments import COUNT, SWITCH, Argument
from pipelines.fields.rewards import reward_content, reward_mistakes, reward_reads
from pipelines.recipe import RewardField, Stage
from pipelines.registry import TUNERS
from pipelines.trainers import trl_stage
from pipelines.trainers.own_arguments import Setting, split

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe

SHARE = Argument("float", above=0)
NOT_NEGATIVE = Argument("float", at_least=0)
SAMPLING: dict[str, Setting] = {
    "max_completion_length": Setting(COUNT, 128),
    "temperature": Setting(SHARE, 1.0),
    "top_p": Setting(SHARE, 1.0),
    "top_k": Setting(Argument("int", at_least=0), 0),
    "min_p": Setting(Argument("float|null", at_least=0), None),
    "repetition_penalty": Setting(SHARE, 1.0),
    "num_iterations": Setting(COUNT, 1),
    "epsilon": Setting(SHARE, 0.2),
    "epsilon_high": Setting(Argument("float|null", above=0), None),
    "mask_truncated_completions": Setting(SWITCH, False),
    "disable_dropout": Setting(SWITCH, False),
}
"""TRL's own, which both methods have, with its defaults; TRL's `max_completion_length` is 512."""


class GroupSampling(Stage):
    """The keys and the course of such a stage."""

    reward: RewardField = Field(...)
    """What a completion is worth: `{from: STAGE}`, `{checkpoint: …}`, or a named one such as `{name: keyword, words: [good, great]}`."""
    prompts: Prompts
    """What is completed: `{path: reviews.jsonl, text: text, max_length: 16}`."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn: `full` or `lora`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's own settings."""

    trains: ClassVar[bool] = True
    method: ClassVar[str]
    """The beginning of the names of TRL's classes."""
    settings: ClassVar[Mapping[str, Setting]]
    """TRL's own arguments."""

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        yield from reward_mistakes(self.reward, recipe, self)
        own, rest = split(self.arguments, self.settings)
        written, length = own["max_completion_length"], self.prompts.max_length or 0
        yield from trl_stage.mistakes(self, recipe, written + length)
        shape = recipe.model.architecture
        longest = architectures.resolve(shape).get("max_position_embeddings") if shape else None
        if isinstance(longest, int) and written + max(length, 1) > longest:
            behind = f" behind prompts of {length} tokens" if length else ""
            yield ("arguments", "max_completion_length"), f"is {written}{behind}, but the model has max_position_embeddings {longest}"
        size, group = trl_stage.step_size(rest), own["num_generations"]
        if group < 2:
            yield ("arguments", "num_generations"), f"is {group}, but a completion is judged beside others of the same prompt; make it 2 or more"
        elif size is not None and size % group:
            yield ("arguments", "num_generations"), f"is {group}, which does not divide the {size} completions of a step; change it or global_batch_size"
        if own["top_p"] > 1:
            yield ("arguments", "top_p"), f"is {own['top_p']}, must be at most 1"

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy's stage, and those that the reward reads."""
        return tuple(dict.fromkeys((*super().reads(recipe), *reward_reads(self.reward))))

    def content(self, recipe: Recipe) -> dict[str, str]:
        return {"prompts": self.prompts.content()} | reward_content(self.reward)

    def texts(self) -> Iterator[str]:
        """The prompts, uncut, for a tokenizer."""
        return iter(self.prompts.plain_texts())

    def run(self, context: Context) -> None:
        """Open the models, train by TRL, save the policy."""
        from pipelines.trainers import trl_bridge, tuning
        from pipelines.trainers.rollouts import refuse
        from pipelines.trainers.saving import save_stage

        model, head, tokenizer = trl_stage.opened(self, context)
        own, arguments = split(self.arguments, self.settings)
        rows = self.prompts.read(tokenizer)
        if len(rows) == 0:
            raise DataError("no prompt is left to complete; raise prompts.max_length")
        refuse(model, rows.ids, own["max_completion_length"])
        scorer = self.reward.open(context)
        model, told = trl_bridge.prepared(model, tokenizer)
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = trl_bridge.train(
            context, self.method, model, told, tuner, arguments, own, [{"prompt": str(place)} for place in range(len(rows))],
            prompt_ids=rows.ids, texts=rows.texts, scorer=scorer,
        )  # fmt: skip
        save_stage(context, model, tokenizer, head, metrics, tuner)
        trl_stage.leave(context, self)
