"""What the stages that TRL trains have in common: what they cannot do, said before anything loads, and groups.

GRPO and RLOO sample several completions of each prompt, each judged beside the others of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.costs import PROMPT_LENGTH, Example
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head
from pipelines.core.recipe import RewardField, Stage
from pipelines.core.registry import TUNERS
from pipelines.core.reward_field import reward_content, reward_mistakes, reward_reads
from pipelines.core.training_arguments import (
    Accepts,
    Count,
    NotNegative,
    OptionalNotNegative,
    OptionalPositive,
    Positive,
    Switch,
    TrainingArguments,
)
from pipelines.data.prompts import Prompts
from pipelines.data.row_counts import prompt_rows
from pipelines.trainers import tuning

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.trainers.tuning import TrainingStage


def issues(stage: TrainingStage, recipe: Recipe, longest: int) -> Iterable[ConfigIssue]:
    """What TRL cannot do in a stage, places relative to the stage. `longest` is the longest text it will see."""
    yield from tuning.policy_issues(stage, recipe, (tuning.DECODER,))
    if not stage.tuner.known_elsewhere:
        known = " and ".join(TUNERS.where(lambda tuner: tuner.known_elsewhere))
        yield (
            ("tuner",),
            f"is {stage.tuner.name}, but {stage.stage} is trained by TRL, which knows {known}; use one of them, or the "
            "stage dpo or ppo",
        )
    elif not stage.tuner.keeps_base and stage.tuner.adapts:
        yield (
            ("tuner",),
            "changes weights of the base, of which TRL's reference is made; leave bias and init_lora_weights "
            "out, or use the stage dpo or ppo",
        )
    if stage.tuner.unfreezes:
        yield (
            ("tuner",),
            "thaws weights epoch by epoch, which TRL's trainers do not follow; leave the schedule out, or "
            "use the stage dpo",
        )
    yield from tuning.held_out_issues(stage.arguments)
    yield from tuning.issues(stage, recipe, tuning.DECODER, longest)


def opened(stage: TrainingStage, context: Context) -> tuple[PreTrainedModel, Head, PreTrainedTokenizerBase]:
    """(the policy, in a folder from which TRL can read its reference; its head; the tokenizer). Raises ModelError."""
    from pipelines.core.interfaces import Head

    if tuning.writing_head(context).kind != tuning.DECODER:
        tuning.opened_policy(stage, context, (tuning.DECODER,))  # which says why not
    head = Head("causal_lm")
    source = context.recipe.model_of(stage)
    model = context.open_model(head, keep_base=context.folder / "base", trained_head=source in context.stage_folders)
    return model, head, context.open_tokenizer(source) if source in context.stage_folders else context.open_tokenizer()


def leave(context: Context, stage: TrainingStage) -> None:
    """Take away the folder that only TRL's reference was read from; an adapter still names its base."""
    import shutil

    if context.world.is_main and not stage.tuner.adapts:
        shutil.rmtree(context.folder / "base", ignore_errors=True)
    context.barrier()


class GroupArguments(TrainingArguments):
    """What both methods have of TRL's numbers, with its defaults; TRL's `max_completion_length` is 512."""

    learning_rate: NotNegative = 1e-6
    """The learning rate at its highest."""
    max_completion_length: Count = 128
    """Tokens of a completion at most."""
    temperature: Positive = 1.0
    """Divides the logits of what is sampled."""
    top_p: Positive = 1.0
    """Sample from the likeliest tokens that hold so much probability."""
    top_k: Annotated[int, Accepts("int", at_least=0)] = 0
    """Sample from so many of the likeliest tokens; 0 takes all."""
    min_p: OptionalNotNegative = None
    """Sample no token whose probability is below this share of the likeliest one's."""
    repetition_penalty: Positive = 1.0
    """Above 1 tokens that were written already become less likely."""
    num_generations: Count = 8
    """Completions of a prompt: its group."""
    num_iterations: Count = 1
    """Passes over what was sampled."""
    beta: NotNegative = 0.0
    """The weight of the KL to the reference."""
    epsilon: Positive = 0.2
    """How far a probability ratio may go from 1."""
    epsilon_high: OptionalPositive = None
    """How far it may go above 1. Default: `epsilon`."""
    mask_truncated_completions: Switch = False
    """Learn nothing from completions that did not come to their end."""
    disable_dropout: Switch = False
    """Drop nothing while training."""


class GroupSampling(Stage):
    """The keys and the course of such a stage."""

    reward: RewardField = Field(...)
    """What a completion is worth: `{from: STAGE}`, `{checkpoint: …}`, or a named one such as `{name: keyword,
    words: [good, great]}`."""
    prompts: Prompts
    """What is completed: `{path: reviews.jsonl, text: text, max_length: 16}`."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn: `full` or `lora`."""
    arguments: GroupArguments = GroupArguments()
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's own settings."""

    trains: ClassVar[bool] = True
    method: ClassVar[str]
    """The beginning of the names of TRL's classes."""

    def cost(self, planning: Planning) -> StagePlan:
        """Its examples are completions."""
        arguments = self.arguments
        prompts, written = prompt_rows(self.prompts), arguments.max_completion_length
        notes = [
            *planning.notes,
            f"at most: every completion is counted with max_completion_length {written}, and as one forward pass over "
            "its prompt and itself",
            f"what the reward '{self.reward.name}' costs is not counted",
        ]
        completions = None if prompts is None else prompts * arguments.num_generations
        rows = planning.rows_to_learn(self, completions, notes, what="prompts")
        length = (self.prompts.max_length or PROMPT_LENGTH) + written
        example = Example(length, length, written, forwards=1 + (arguments.beta > 0))
        return planning.training(self, Head("causal_lm"), example, rows, notes)

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from reward_mistakes(self.reward, recipe, self)
        arguments = self.arguments
        written, length = arguments.max_completion_length, tuning.prompt_length(self.prompts, recipe) or 0
        yield from issues(self, recipe, written + length)
        longest = recipe.model.positions()
        if longest is not None and written + max(length, 1) > longest:
            behind = f" behind prompts of {length} tokens" if length else ""
            yield (
                ("arguments", "max_completion_length"),
                f"is {written}{behind}, but the model has max_position_embeddings {longest}",
            )
        group, size = arguments.num_generations, arguments.global_batch_size
        if size is None:
            processes = recipe.launch.num_processes
            size = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
            size *= processes if isinstance(processes, int) else 1
        if group < 2:
            yield (
                ("arguments", "num_generations"),
                f"is {group}, but a completion is judged beside others of the same prompt; make it 2 or more",
            )
        elif size % group:
            yield (
                ("arguments", "num_generations"),
                f"is {group}, which does not divide the {size} completions of a step; change it or global_batch_size",
            )
        if arguments.top_p > 1:
            yield ("arguments", "top_p"), f"is {arguments.top_p}, must be at most 1"

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
        rows = self.prompts.read_once(context, tokenizer)
        if len(rows) == 0:
            raise DataError("no prompt is left to complete; raise prompts.max_length")
        refuse(model, rows.ids, self.arguments.max_completion_length)
        scorer = self.reward.open(context)
        model, marked = trl.prepared(model, tokenizer)
        tuner, model = tuning.adapted(self, context, model)
        model, metrics = trl.train(
            context,
            self.method,
            model,
            marked,
            tuner,
            self.arguments,
            {},
            [{"prompt": str(place)} for place in range(len(rows))],
            prompt_ids=rows.ids,
            texts=rows.texts,
            scorer=scorer,
        )
        save_stage(context, model, tokenizer, head, metrics, tuner)
        leave(context, self)
