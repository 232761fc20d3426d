"""Reinforcement learning from a reward: proximal policy optimization of what a model writes.

The model samples completions of the prompts, the reward scores them, and the model is moved towards what scored
better than expected, held back by a penalty for leaving its reference. Ziegler et al. 2019, arxiv.org/abs/1909.08593;
Stiennon et al. 2020, arxiv.org/abs/2009.01325; Ouyang et al. 2022, arxiv.org/abs/2203.02155. docs/how-to/ppo.md
explains the algorithm, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.costs import PROMPT_LENGTH, Example
from pipelines.core.errors import DataError, IncompatibleError
from pipelines.core.recipe import RewardField, Stage
from pipelines.core.registry import TUNERS
from pipelines.core.reward_field import MODEL, reward_content, reward_mistakes, reward_reads
from pipelines.data.prompts import Prompts
from pipelines.data.references import DatasetReference
from pipelines.data.row_counts import prompt_rows
from pipelines.models.open_once import open_once
from pipelines.trainers import tuning
from pipelines.trainers.ppo_settings import PPOArguments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.core.recipe import Recipe
    from pipelines.data.prompts import PromptRows
    from pipelines.models.sampling import Rollouts
    from pipelines.trainers.actor_critic import ActorCritic
    from pipelines.trainers.ppo_experience import Layout
    from pipelines.tuners.tuner import TunerBlock

FORWARDS = 3
"""Passes without gradients of a completion: sampling it with keys and values kept, reading it again, the reference."""
READS = 2
"""Of them, those that read it whole: the policy's and the reference's."""
PASSES = 3
"""A forward and a backward pass, in forward passes."""


class PPO(Stage):
    """Move a language model towards what a reward likes, by its own completions."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: ppo, from: text, reward: {name: keyword, words: [good, great]}, "
        "prompts: {path: builtin/python-docs, text: text, max_length: 16}}",
        "{stage: ppo, id: aligned, from: text, reward: {checkpoint: some/model}, "
        "prompts: {path: builtin/python-docs, text: text}, value: separate, "
        "datasets: [{path: builtin/python-docs}], block_size: 32, tuner: {name: lora, r: 4}, "
        "arguments: {response_length: 24, kl_coef: 0.1, num_ppo_epochs: 2, num_mini_batches: 2, "
        "global_batch_size: 16, ptx_coef: 1.5, kl_target: 6.0, kl_estimator: k3, learning_rate: 1e-5}}",
    )
    stage: Literal["ppo"] = "ppo"
    reward: RewardField = Field(...)
    """What a completion is worth: `{from: STAGE}`, `{checkpoint: …}`, or a named one such as `{name: keyword,
    words: [good, great]}`."""
    prompts: Prompts
    """What is completed: `{path: reviews.jsonl, text: text, max_length: 16}`."""
    value: Literal["shared", "separate", "reward"] = "shared"
    """The body under the value function: the policy's own, a copy of it, or a copy of the reward model's."""
    rollouts: Literal["transformers", "vllm"] = "transformers"
    """What writes the completions."""
    datasets: tuple[DatasetReference, ...] = ()
    """Text whose next tokens are learnt beside the reward, with the weight `ptx_coef` of `arguments` (PPO-ptx);
    for decoders."""
    block_size: int = Field(128, ge=8, le=131072)
    """Tokens of a block of `datasets`."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn. With an adapter the reference is the model without it, and no second copy is in memory."""
    arguments: PPOArguments = PPOArguments()
    """transformers TrainingArguments by name, `global_batch_size` (prompts of an iteration), and PPO's own numbers,
    such as `response_length`, `kl_coef`, `num_ppo_epochs`, `num_mini_batches`, `cliprange`, `gamma`, `lam`: see
    docs/how-to/ppo.md."""

    trains: ClassVar[bool] = True

    # -- what the recipe says ----------------------------------------------------------------------------------------

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        yield from reward_mistakes(self.reward, recipe, self)
        yield from self._unfit_arguments()
        unfit = list(tuning.policy_issues(self, recipe))
        yield from unfit
        if unfit:
            return
        kind, longest = tuning.head_kind(self, recipe), recipe.model.positions()
        both = kind != tuning.DECODER
        length, written = tuning.prompt_length(self.prompts, recipe), self.arguments.response_length
        if longest is not None and (written if both else written + (length or 1)) > longest:
            beside = "" if both or length is None else f" behind prompts of {length} tokens"
            yield (
                ("arguments", "response_length"),
                f"is {written}{beside}, but the model has max_position_embeddings {longest}",
            )
        if longest is not None and self.datasets and self.block_size > longest:
            yield ("block_size",), f"is {self.block_size}, but the model has max_position_embeddings {longest}"
        yield from self._unfit_keys(both)
        yield from tuning.issues(self, recipe, kind, written + (length or 0))

    def _unfit_arguments(self) -> Iterator[ConfigIssue]:
        s = self.arguments
        yield from tuning.held_out_issues(s)
        if s.top_p > 1:
            yield ("arguments", "top_p"), f"is {s.top_p}, must be at most 1"
        if s.gamma > 1 or s.lam > 1:
            name = "gamma" if s.gamma > 1 else "lam"
            yield ("arguments", name), f"is {getattr(s, name)}, must be at most 1"
        if s.cliprange >= 1:
            yield ("arguments", "cliprange"), f"is {s.cliprange}, must be less than 1"
        prompts = s.global_batch_size
        if prompts is not None and prompts % s.num_mini_batches:
            yield (
                ("arguments", "num_mini_batches"),
                f"is {s.num_mini_batches}, which does not divide global_batch_size {prompts}",
            )
        if "kl_horizon" in s.model_fields_set and s.kl_target is None:
            yield ("arguments", "kl_horizon"), "says how fast kl_coef is steered to kl_target, which is not given"

    def _unfit_keys(self, encoder_decoder: bool) -> Iterator[ConfigIssue]:
        if bool(self.datasets) != (self.arguments.ptx_coef > 0):
            place, other = (
                (("datasets",), "arguments.ptx_coef, the weight of this text")
                if self.datasets
                else (("arguments", "ptx_coef"), "datasets, the text to learn from")
            )
            yield place, f"needs {other}"
        if self.datasets and encoder_decoder:
            yield (
                ("datasets",),
                "is text whose next tokens a decoder learns; an encoder-decoder has no such objective here, "
                "leave it out",
            )
        if "block_size" in self.model_fields_set and not self.datasets:
            yield ("block_size",), "is the length of blocks of 'datasets', which is not given"
        if self.value == "reward" and (self.reward.name != MODEL or not self.reward.stages):
            yield (
                ("value",),
                "is reward, which takes the body of a reward model trained in this recipe; write reward: "
                "{from: STAGE}, or value: separate",
            )
        if self.tuner.positions:
            yield (
                ("tuner",),
                f"is {self.tuner.name}, whose virtual tokens ppo cannot place between a prompt and what is "
                "sampled behind it; use full, lora, ia3 or adapter",
            )
        if self.tuner.unfreezes:
            yield (
                ("tuner",),
                f"is {self.tuner.name}, which thaws weights epoch by epoch; ppo counts iterations, so use one "
                "that learns the same weights throughout",
            )
        if self.tuner.stages:
            yield ("tuner",), f"is {self.tuner.name}, which a ppo stage cannot use"

    def unavailable_reason(self) -> str | None:
        from importlib.util import find_spec

        if self.rollouts == "vllm" and find_spec("vllm") is None:
            return "has rollouts: vllm, but the package vllm is not installed here; install it, or leave 'rollouts' out"
        return None

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The model's stage, and those that the reward reads."""
        return tuple(dict.fromkeys((*super().reads(recipe), *reward_reads(self.reward))))

    def content(self, recipe: Recipe) -> dict[str, str]:
        texts = {f"datasets[{place}].{each.text}": each.content() for place, each in enumerate(self.datasets)}
        return {"prompts": self.prompts.content()} | reward_content(self.reward) | texts

    def texts(self) -> Iterator[str]:
        """Prompts, uncut, and pretraining text, for a tokenizer."""
        return chain(self.prompts.plain_texts(), chain.from_iterable(reference.rows() for reference in self.datasets))

    # -- what happens ------------------------------------------------------------------------------------------------

    def cost(self, planning: Planning) -> StagePlan:
        """Its examples are completions, learnt from `num_ppo_epochs` times."""
        s, head = self.arguments, tuning.planned_head(self, planning.recipe)
        notes = [
            *planning.notes,
            f"at most: every completion is counted with response_length {s.response_length}, and its sampling as the "
            "operations of one forward pass; that it takes its tokens one after another is not counted",
            f"what the reward '{self.reward.name}' costs is not counted",
        ]
        bodies = 1
        if self.value != "shared":
            notes.append(
                "the value function's own body is counted as a second model in the operations, neither in the memory "
                "nor in what is sent"
            )
            bodies = 2
        if s.ptx_coef:
            notes.append(
                "the pretraining text of datasets is counted as one more pass of each epoch, and not in what is sent"
            )
        learnt = s.num_ppo_epochs * (bodies + bool(s.ptx_coef))
        prompt = self.prompts.max_length or PROMPT_LENGTH
        example = Example(
            prompt if head.kind == "seq2seq_lm" else prompt + s.response_length,
            s.response_length,
            s.response_length,
            forwards=FORWARDS + bodies - 1 + PASSES * (learnt - 1),
            spared=0 if s.ptx_coef else bodies,
            copies=not self.tuner.keeps_base,
            reads=READS,
            written=s.response_length if self.rollouts == "transformers" else 0,
            together=s.local_rollout_forward_batch_size,
            rounds=s.num_ppo_epochs,
            updates=s.num_mini_batches,
            dropout=False,
        )
        rows = planning.rows_to_learn(self, prompt_rows(self.prompts), notes, what="prompts")
        return planning.training(self, head, example, rows, notes)

    def run(self, context: Context) -> None:
        """Open the models, sample and learn, save the policy as a plain language model and its value function
        beside it."""
        from pipelines.models.fsdp import gathered
        from pipelines.trainers.actor_critic import ActorCritic, OfThePolicy
        from pipelines.trainers.checkpoints import save_stage
        from pipelines.trainers.ppo_experience import PromptDraws, together
        from pipelines.trainers.ppo_trainer import PPOPlan, PPOTrainer
        from pipelines.trainers.reference import reference_for
        from pipelines.trainers.trainer import fit

        source = context.recipe.model_of(context.recipe.stage(context.stage_id))
        tokenizer = context.open_tokenizer(source if source in context.stage_folders else None)
        model, head = tuning.opened_policy(self, context)
        rows = self._prompts(context, model, tokenizer, head)
        blocks = self._blocks(context, tokenizer) if self.datasets else None
        reference = reference_for(model, self.tuner, context.precision)
        tuner, tuned = tuning.adapted(self, context, model)
        whole = ActorCritic(tuned, self._critic(context, head, tuner))
        share, micro = self._batches(context)
        plan = PPOPlan(
            settings=self.arguments,
            prompts=rows.ids,
            texts=rows.texts,
            scorer=self.reward.open(context),
            reference=reference,
            layout=self._layout(model, tokenizer, head),
            sample=self._sampler(context, model, tokenizer, rows.ids),
            micro_batch=micro,
            blocks=blocks,
        )
        whole, metrics = fit(
            context,
            _without_dropout(whole),
            tokenizer,
            PromptDraws(len(rows), share * context.world.size),
            collate=together,
            loss=_no_loss,
            arguments=self.arguments,
            overrides={"per_device_train_batch_size": share, "gradient_accumulation_steps": 1},
            tuner=OfThePolicy(tuner, whole),
            trainer_of=partial(PPOTrainer, plan=plan),
            beside_reference=True,
        )
        with gathered(whole, world=context.world):
            whole.policy.finery_beside = {"value": whole.as_critic(tuner)}
            save_stage(context, whole.policy, tokenizer, head, metrics, tuner)

    def _batches(self, context: Context) -> tuple[int, int]:
        """(completions of a process an iteration, which is a step of the loop; those that are learnt from at once)."""
        micro, accumulated = self.arguments.batch_sizes(context.world.size)
        share, parts = micro * accumulated, self.arguments.num_mini_batches
        if share % parts:
            raise IncompatibleError(
                f"an iteration has {share} completions on each process, which arguments.num_mini_batches "
                f"{parts} does not divide; "
                f"make global_batch_size a multiple of {parts * context.world.size}"
            )
        return share, min(micro, share // parts)

    def _prompts(
        self, context: Context, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: Head
    ) -> PromptRows:
        """The prompts, of which every one leaves room for a completion. Raises DataError."""
        from pipelines.models.sampling import refuse

        rows = self.prompts.read_once(context, tokenizer, encoder_decoder=head.kind == "seq2seq_lm")
        if len(rows) == 0:
            raise DataError("no prompt is left to complete; raise prompts.max_length")
        refuse(model, rows.ids, self.arguments.response_length)
        if rows.left_out and context.world.is_main:
            context.events.emit(
                "warning",
                message=f"{len(rows.left_out)} prompts are longer than prompts.max_length and are left out, the first "
                f"is row {rows.left_out[0] + 1}",
            )
        return rows

    def _blocks(self, context: Context, tokenizer: PreTrainedTokenizerBase) -> NDArray[np.int32]:
        """Pretraining text as one stream, (blocks, block_size), prepared by the main process and mapped by all."""
        from pipelines.data.packing import pack, prepared_key

        content = {name: value for name, value in self.content(context.recipe).items() if name.startswith("datasets")}

        def packed() -> NDArray[np.int32]:
            texts = chain.from_iterable(each.rows() for each in self.datasets)
            return pack(tokenizer, texts, self.block_size, context.cache, prepared_key(tokenizer, content), "stream")

        if context.world.is_main:
            packed()
        context.barrier()
        return packed()

    def _critic(self, context: Context, head: Head, tuner: TunerBlock) -> PreTrainedModel | None:
        """The body of a value function of its own, tuned like the policy; None where it shares the policy's."""
        if self.value == "shared":
            return None
        start = {"stage_id": self.reward.stages[0]} if self.value == "reward" else {}
        body = open_once(context, head, partial(context.open_model, head, **start))
        body.finery_new_modules = []  # its language-model head says nothing here
        return tuner.apply(body)

    def _layout(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: Head) -> Layout:
        from pipelines.data.completions import padding_token
        from pipelines.models.checkpoint import start_token
        from pipelines.trainers.ppo_experience import Layout

        return Layout(padding_token(tokenizer), start_token(model, tokenizer) if head.kind == "seq2seq_lm" else None)

    def _sampler(
        self, context: Context, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Any
    ) -> Any:
        """`sample(policy, prompts, draws)`, by whichever engine writes. Raises Misfit for an engine that the
        policy does not fit."""
        from pipelines.models.sampling import complete

        s = self.arguments
        if self.rollouts == "vllm":
            from pipelines.models.sampling import VLLMSampler, unfit

            unfit(model, context.world.size, self.tuner.adapts)
            return VLLMSampler(
                tokenizer,
                context.folder / "vllm",
                seed=context.seed,
                max_new_tokens=s.response_length,
                temperature=s.temperature,
                top_p=s.top_p,
                top_k=s.top_k,
                longest=max(len(prompt) for prompt in prompts),
            )

        def sample(policy: PreTrainedModel, prompts: Sequence[Sequence[int]], draws: Sequence[int]) -> Rollouts:
            return complete(
                policy,
                tokenizer,
                prompts,
                seed=context.seed,
                max_new_tokens=s.response_length,
                temperature=s.temperature,
                top_p=s.top_p,
                top_k=s.top_k,
                batch_size=s.local_rollout_forward_batch_size,
                draws=draws,
            )

        return sample


def _no_loss(model: PreTrainedModel, inputs: object) -> NoReturn:
    raise AssertionError("an iteration of PPO computes its losses itself")


def _without_dropout(whole: ActorCritic) -> ActorCritic:
    """Neither the policy nor its value function drops anything, as in Ziegler et al. 2019: else no ratio would
    begin at 1."""
    from pipelines.models.log_probabilities import without_dropout

    return without_dropout(whole)
