"""What the stages that TRL trains have in common, and the settings of those that judge groups of completions.

What the stages that TRL trains have in common: what they cannot do, said before anything loads.

What GRPO and RLOO have in common: several completions of each prompt, each judged beside the others of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.costs import PROMPT_LENGTH, Example
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head
from pipelines.core.recipe import RewardField, Stage
from pipelines.core.registry import TUNERS
from pipelines.core.reward_field import reward_content, reward_mistakes, reward_reads
from pipelines.core.training_arguments import COUNT, SWITCH, Argument
from pipelines.data.prompts import Prompts
from pipelines.data.row_counts import prompt_rows
from pipelines.trainers import tuning
from pipelines.trainers import tuning as policy
from pipelines.trainers.arguments import Setting, in_todays_names, split

if TYPE_CHECKING:
    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


TUNERS_OF_TRL = ("full", "lora")
NO_ROWS_ASIDE = ("eval_strategy", "load_best_model_at_end")
"""Arguments about rows set aside, of which there are none."""


def mistakes(stage: Any, recipe: Recipe, longest: int) -> Iterable[ConfigIssue]:
    """What TRL cannot do in a stage, places relative to the stage. `longest` is the longest text it will see."""
    yield from policy.mistakes_policy(stage, recipe, (policy.DECODER,))
    if stage.tuner.name not in TUNERS_OF_TRL:
        yield (
            ("tuner",),
            f"is {stage.tuner.name}, but {stage.stage} is trained by TRL, which knows {' and '.join(TUNERS_OF_TRL)}; use one of them, or the stage dpo or ppo",
        )
    elif not stage.tuner.leaves_base and stage.tuner.adapts:
        yield (
            ("tuner",),
            "changes weights of the base, of which TRL's reference is made; leave bias and init_lora_weights out, or use the stage dpo or ppo",
        )
    if stage.tuner.thaws:
        yield (
            ("tuner",),
            "thaws weights epoch by epoch, which TRL's trainers do not follow; leave the schedule out, or use the stage dpo",
        )
    words = in_todays_names(stage.arguments)
    for name in NO_ROWS_ASIDE:
        if words.get(name) not in (None, False, "no"):
            yield ("arguments", name), "is not offered here: no rows are set aside; use an evaluate stage"
    yield from tuning.mistakes(stage, recipe, policy.DECODER, longest)


def opened(stage: Any, context: Context) -> tuple[Any, Any, Any]:
    """(the policy, in a folder from which TRL can read its reference; its head; the tokenizer). Raises ModelError."""
    from pipelines.core.interfaces import Head

    if policy.writing_head(context).kind != policy.DECODER:
        policy.opened_policy(stage, context, (policy.DECODER,))  # which says why not
    head = Head("causal_lm")
    source = context.recipe.model_of(stage)
    model = context.open_model(head, keep_base=context.folder / "base", trained_head=source in context.stage_folders)
    return model, head, context.open_tokenizer(source) if source in context.stage_folders else context.open_tokenizer()


def step_size(arguments: Mapping[str, Any]) -> int | None:
    """Examples of a step on one process, as far as the arguments tell."""
    words = in_todays_names(arguments)
    if isinstance(words.get("global_batch_size"), int):
        return int(words["global_batch_size"])
    each, accumulated = words.get("per_device_train_batch_size", 8), words.get("gradient_accumulation_steps", 1)
    return each * accumulated if isinstance(each, int) and isinstance(accumulated, int) else None


def leave(context: Context, stage: Any) -> None:
    """Take away the folder that only TRL's reference was read from; an adapter still names its base."""
    import shutil

    if context.world.is_main and not stage.tuner.adapts:
        shutil.rmtree(context.folder / "base", ignore_errors=True)
    context.barrier()


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
    """What a completion is worth: `{from: STAGE}`, `{checkpoint: …}`, or a named one such as `{name: keyword,
    words: [good, great]}`."""
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

    def cost(self, planning: Planning) -> StagePlan:
        """Its examples are completions."""
        own, _ = split(self.arguments, self.settings)
        prompts, written = prompt_rows(self.prompts), own["max_completion_length"]
        notes = [
            *planning.notes,
            f"at most: every completion is counted with max_completion_length {written}, and as one forward pass over "
            "its prompt and itself",
            f"what the reward '{self.reward.name}' costs is not counted",
        ]
        completions = None if prompts is None else prompts * own["num_generations"]
        rows = planning.rows_to_learn(self, completions, notes, what="prompts")
        length = (self.prompts.max_length or PROMPT_LENGTH) + written
        example = Example(length, length, written, forwards=1 + (own["beta"] > 0))
        return planning.training(self, Head("causal_lm"), example, rows, notes)

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from reward_mistakes(self.reward, recipe, self)
        own, rest = split(self.arguments, self.settings)
        written, length = own["max_completion_length"], self.prompts.max_length or 0
        yield from mistakes(self, recipe, written + length)
        shape = recipe.model.architecture
        longest = architecture_fields.resolve(shape).get("max_position_embeddings") if shape else None
        if isinstance(longest, int) and written + max(length, 1) > longest:
            behind = f" behind prompts of {length} tokens" if length else ""
            yield (
                ("arguments", "max_completion_length"),
                f"is {written}{behind}, but the model has max_position_embeddings {longest}",
            )
        size, group = step_size(rest), own["num_generations"]
        if group < 2:
            yield (
                ("arguments", "num_generations"),
                f"is {group}, but a completion is judged beside others of the same prompt; make it 2 or more",
            )
        elif size is not None and size % group:
            yield (
                ("arguments", "num_generations"),
                f"is {group}, which does not divide the {size} completions of a step; change it or global_batch_size",
            )
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
        from pipelines.models.sampling import refuse
        from pipelines.trainers import trl, tuning
        from pipelines.trainers.checkpoints import save_stage

        model, head, tokenizer = opened(self, context)
        own, arguments = split(self.arguments, self.settings)
        rows = self.prompts.read(tokenizer)
        if len(rows) == 0:
            raise DataError("no prompt is left to complete; raise prompts.max_length")
        refuse(model, rows.ids, own["max_completion_length"])
        scorer = self.reward.open(context)
        model, told = trl.prepared(model, tokenizer)
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = trl.train(
            context,
            self.method,
            model,
            told,
            tuner,
            arguments,
            own,
            [{"prompt": str(place)} for place in range(len(rows))],
            prompt_ids=rows.ids,
            texts=rows.texts,
            scorer=scorer,
        )
        save_stage(context, model, tokenizer, head, metrics, tuner)
        leave(context, self)
