"""Proximal policy optimization on transformers' Trainer: one step of the Trainer is one iteration of PPO.

An iteration samples a completion of each prompt of the batch, scores it, works out how much better each token was
than expected, and then takes several optimizer steps on what it sampled: `num_ppo_epochs` times over
`num_mini_batches`. All of these but the last are taken here; the last is left to the Trainer, whose schedule,
checkpoints, events and stop thus count iterations. What the policy and its value function say of the completions before
they learn is what their first learning pass says, which is not asked for twice where it reads all of them.

Stiennon et al. 2020, section 3.4, arxiv.org/abs/2009.01325; Ouyang et al. 2022, section 3.5,
arxiv.org/abs/2203.02155. What is random is a function of (seed, iteration, place), so that a killed run goes on with
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.models.log_probabilities import spread, token_log_probabilities
from pipelines.models.sampling import Rollouts
from pipelines.trainers.actor_critic import ActorCritic, TokenOutputs
from pipelines.trainers.checkpoints import save_learnt
from pipelines.trainers.ppo_diagnostics import Watch
from pipelines.trainers.ppo_experience import Experience, Layout, PromptOrder, by_length
from pipelines.trainers.ppo_losses import (
    AdaptiveKL,
    FixedKL,
    RunningMoments,
    checked,
    combined,
    estimated_kl,
    explained_variance,
    generalized_advantages,
    moments,
    policy_loss,
    shaped,
    token_rewards,
    value_loss,
    whitened,
)
from pipelines.trainers.ppo_settings import PPOArguments
from pipelines.trainers.reference import ReferenceModel
from pipelines.trainers.trainer import FineryTrainer

if TYPE_CHECKING:
    from pipelines.trainers.checkpoints import State

SHUFFLING, TEXTS = 0x9906, 0x97C4
"""Streams of random numbers: the order of the minibatches, the choice of pretraining text."""
SHOWN = 3
"""Completions in a `sample` event."""


@dataclass(frozen=True)
class PPOPlan:
    """What the loop is told beside its settings."""

    settings: PPOArguments
    prompts: Sequence[Sequence[int]]
    texts: Sequence[str]
    """The prompts as people read them."""
    scorer: Callable[[Sequence[str], Sequence[str]], list[float]]
    reference: ReferenceModel
    layout: Layout
    sample: Callable[..., Rollouts]
    """`sample(policy, prompts, draws) -> Rollouts`."""
    micro_batch: int
    """Completions that a process learns from at once."""
    blocks: Any = None
    """Pretraining text (blocks, tokens), for PPO-ptx."""


class FirstPass(NamedTuple):
    """What the policy and its value function say of all completions before they learn, with its gradients."""

    rows: list[int]
    """The completions, in the order of the pass."""
    outputs: TokenOutputs


@dataclass
class Sums:
    """Sums over the tokens of an iteration's updates, for its metrics."""

    totals: dict[str, Tensor] = field(default_factory=dict)

    def add(self, **values: Tensor) -> None:
        """Add to each name; nothing is waited for."""
        for name, value in values.items():
            value = value.detach().double() if value.device.type != "mps" else value.detach().float()
            self.totals[name] = self.totals[name] + value if name in self.totals else value

    def stacked(self) -> Tensor:
        """All of them (names,), in the order of their names."""
        return torch.stack([self.totals[name] for name in sorted(self.totals)])


class PPOTrainer(FineryTrainer):
    """FineryTrainer whose step is an iteration: sample, score, update."""

    compiles_layers = False  # they sample too, one token after another

    def __init__(self, *, plan: PPOPlan, **keywords: Any) -> None:
        s = plan.settings
        self.plan = plan
        self.controller = (
            FixedKL(s.kl_coef) if s.kl_target is None else AdaptiveKL(s.kl_coef, s.kl_target, s.kl_horizon)
        )
        self.reward_moments = RunningMoments()
        self.watch = Watch()
        self.iteration_metrics: dict[str, float] = {}
        """The metrics of the latest iteration."""
        super().__init__(**keywords)

    def _get_train_sampler(self, train_dataset: object = None) -> PromptOrder:
        sampler: Any = PromptOrder(
            len(self.plan.prompts), self.args.train_batch_size * self.args.world_size, self.args.seed
        )
        self.sampler = sampler
        return sampler

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Tensor]], device: torch.device) -> Tensor | None:
        """Minibatches count their own tokens."""
        return None

    @property
    def bare(self) -> ActorCritic:
        """The policy and its value function, without what wraps them."""
        bare: ActorCritic = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return bare

    def total(self, tensor: Tensor) -> Tensor:
        """`tensor` added up over the processes."""
        if self.args.world_size == 1:
            return tensor
        summed: Tensor = self.accelerator.reduce(tensor, "sum")
        return summed

    # -- an iteration ----------------------------------------------------------------------------------------------

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        """One iteration; the gradient of its last minibatch is left for the Trainer's own optimizer step."""
        experience, first, metrics = self.collected(model, inputs["row"].tolist(), inputs["draw"].tolist())
        loss, learnt = self.updated(model, experience, first)
        self.iteration_metrics = metrics | learnt
        self.controller.update(metrics["kl"], len(experience) * self.args.world_size)
        if self.context.world.is_main:
            for sentence in self.watch.look(self.iteration_metrics, len(experience) * self.args.world_size):
                self.context.events.emit("warning", step=self.state.global_step + 1, message=sentence)
        return loss

    # -- sampling and scoring --------------------------------------------------------------------------------------

    def collected(
        self, model: nn.Module, rows: list[int], draws: list[int]
    ) -> tuple[Experience, FirstPass | None, dict[str, float]]:
        """(completions of the prompts at `rows` with the advantage of each token, the pass to learn from first where it
        reads all of them, metrics of the iteration so far)."""
        plan, s = self.plan, self.plan.settings
        prompts, texts = [list(plan.prompts[row]) for row in rows], [plan.texts[row] for row in rows]
        with self.compute_loss_context_manager():
            written = plan.sample(self.bare.policy, prompts, draws)
        raw = checked(plan.scorer(texts, written.texts), len(rows))
        if s.reward_normalization == "running":
            self.reward_moments.add([score for process in self.context.gather(raw.tolist()) for score in process])
        scores = shaped(raw, written.ended, written.lengths, s, self.reward_moments)

        device = self.args.device
        mask = written.mask.to(device)
        experience = Experience(
            prompts,
            [written.tokens(row) for row in range(len(rows))],
            mask,
            *(torch.zeros_like(mask, dtype=torch.float32) for _ in range(4)),
        )
        reference = self._columns(experience, self._reference_columns)[0]
        first = self._first_pass(model, experience)
        columns = self._columns(experience, self._policy_columns) if first is None else _spread_out(experience, [first])
        experience.old, experience.values, entropies = columns

        kl = estimated_kl(experience.old, reference, s.kl_estimator) * mask
        rewards = token_rewards(scores.to(device), kl, mask, self.controller.coefficient)
        if s.whiten_rewards:
            rewards = whitened(rewards, mask, shift_mean=False, total=self.total)
        advantages, experience.returns = generalized_advantages(rewards, experience.values, mask, s.gamma, s.lam)
        spread_of_advantages = float(moments(advantages, mask, self.total)[1].sqrt())
        experience.advantages = whitened(advantages, mask, total=self.total) if s.whiten_advantages else advantages

        metrics = self._means(
            reward=raw,
            score=scores,
            kl=kl.sum(1),
            response_length=written.lengths,
            ended=written.ended,
            entropy=entropies.sum(1) / mask.sum(1),
            reward_squared=raw**2,
        )
        metrics["reward_std"] = max(metrics.pop("reward_squared") - metrics["reward"] ** 2, 0.0) ** 0.5
        metrics["kl_coef"] = self.controller.coefficient
        metrics["advantage_std"] = spread_of_advantages
        metrics["explained_variance"] = explained_variance(experience.values, experience.returns, mask, self.total)
        every = [text for process in self.context.gather(written.texts) for text in process]
        metrics["distinct"] = len(set(every)) / len(every)
        self._show(texts, written, raw, kl.sum(1))
        return experience, first, metrics

    def _columns(self, experience: Experience, ask: Callable[[dict[str, Tensor]], tuple[Tensor, ...]]) -> list[Tensor]:
        """Columns (rows, length) of what `ask` tells about the named tokens, in batches of similar lengths,
        without gradients."""

        def asked() -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
            size = self.plan.settings.local_rollout_forward_batch_size
            for rows in _parts(experience, range(len(experience)), size):
                with torch.no_grad(), self.compute_loss_context_manager():
                    yield rows, ask(experience.inputs(self.plan.layout, rows))

        return _spread_out(experience, asked())

    def _first_pass(self, model: nn.Module, experience: Experience) -> FirstPass | None:
        """The pass that is learnt from first; None where it reads a part of the completions, or follows a pass through
        pretraining text. It keeps what a backward pass needs, so nothing else is asked between the two."""
        s = self.plan.settings
        if s.num_mini_batches > 1 or s.ptx_coef or len(experience) > self.plan.micro_batch:
            return None
        rows = next(_parts(experience, next(self._minibatches(len(experience), 0)), self.plan.micro_batch))
        with self.compute_loss_context_manager():
            return FirstPass(rows, self._asked(model, experience, rows))

    def _policy_columns(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.bare(inputs, temperature=self.plan.settings.temperature))

    def _reference_columns(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with self.plan.reference.model_for(self.bare.policy) as reference:
            named = token_log_probabilities(reference, inputs, temperature=self.plan.settings.temperature)
        return (named.log_probabilities[named.mask],)

    def _means(self, **columns: Tensor) -> dict[str, float]:
        """The mean of each (rows,) over the completions of all processes."""
        device = self.args.device
        sums = torch.stack([column.to(device, torch.float32).sum() for column in columns.values()])
        count = self.total(torch.tensor(float(len(next(iter(columns.values())))), device=device))
        return dict(zip(columns, (self.total(sums) / count).tolist(), strict=True))

    # -- learning from what was sampled ----------------------------------------------------------------------------

    def updated(
        self, model: nn.Module, experience: Experience, first: FirstPass | None
    ) -> tuple[Tensor, dict[str, float]]:
        """(mean loss of the minibatches (), metrics). The last minibatch's gradient is not applied yet.

        `target_kl` ends the epochs early: Huang et al. 2022, "The 37 Implementation Details of Proximal Policy
        Optimization", iclr-blog-track.github.io/2022/03/25/ppo-implementation-details, on early stopping.
        """
        s = self.plan.settings
        sums, epochs = Sums(), 0
        losses: list[Tensor] = []
        for epoch in range(s.num_ppo_epochs):
            moved_before = sums.totals.get("moved"), sums.totals.get("tokens")
            for number, rows in enumerate(self._minibatches(len(experience), epoch)):
                if losses:
                    self._step(model)
                losses.append(self._accumulate(model, experience, rows, sums, (epoch, number), first))
                first = None
            epochs += 1
            if s.target_kl is not None and self._moved(sums, *moved_before) > s.target_kl:
                break
        names, totals = sorted(sums.totals), self.total(sums.stacked())
        sums_by_name = dict(zip(names, totals.tolist(), strict=True))
        tokens = sums_by_name.pop("tokens")
        text_tokens = sums_by_name.pop("ptx_tokens", 0.0)
        metrics = {
            "policy_loss": sums_by_name["policy"] / tokens,
            "value_loss": sums_by_name["value"] / tokens,
            "clip_fraction": sums_by_name["clipped"] / tokens,
            "value_clip_fraction": sums_by_name["value_clipped"] / tokens,
            "approx_kl": sums_by_name["moved"] / tokens,
            "ratio": sums_by_name["ratio"] / tokens,
            "ppo_epochs": float(epochs),
        }
        if text_tokens:
            metrics["ptx_loss"] = sums_by_name["ptx"] / text_tokens
        return torch.stack(losses).mean(), metrics

    def _minibatches(self, count: int, epoch: int) -> Iterator[list[int]]:
        """The rows of each minibatch: a fresh order every epoch."""
        place = (self.args.seed, SHUFFLING, self.state.global_step, epoch, self.context.world.rank)
        shuffled = np.random.default_rng(place).permutation(count)
        for rows in np.array_split(shuffled, self.plan.settings.num_mini_batches):
            yield rows.tolist()

    def _moved(self, sums: Sums, moved: Tensor | None, tokens: Tensor | None) -> float:
        """KL(sampling policy, policy) a token over the latest epoch, over all processes."""
        since = torch.stack(
            [
                sums.totals["moved"] - (0 if moved is None else moved),
                sums.totals["tokens"] - (0 if tokens is None else tokens),
            ]
        )
        total = self.total(since)
        return float(total[0] / total[1])

    def _accumulate(
        self,
        model: nn.Module,
        experience: Experience,
        rows: list[int],
        sums: Sums,
        place: tuple[int, int],
        first: FirstPass | None,
    ) -> Tensor:
        """Add the gradient of one minibatch, divided by its tokens over all micro-batches and processes; returns
        its loss ()."""
        tokens = self.total(experience.mask[rows].sum().float()).clamp(min=1)
        loss = self._pretraining(model, len(rows), sums, place) if self.plan.settings.ptx_coef else 0.0
        parts = list(_parts(experience, rows, self.plan.micro_batch))
        for number, chosen in enumerate(parts):
            last = (
                number == len(parts) - 1
            )  # processes share their gradients with the last pass, in which every weight takes part
            with nullcontext() if last else self.unshared(model):
                with self.compute_loss_context_manager():
                    outputs = self._asked(model, experience, chosen) if first is None else first.outputs
                    value = self._loss(outputs, experience, chosen, sums) / tokens * self.args.world_size
                    penalty = self.tuner.penalty(model) if last and self.tuner is not None else None
                    value = value if penalty is None else value + penalty
                self.accelerator.backward(value)
            loss = loss + value.detach()
        self._refuse_nan(loss)
        return loss

    def _asked(self, model: nn.Module, experience: Experience, rows: list[int]) -> TokenOutputs:
        """One pass over some completions that can be learnt from."""
        s = self.plan.settings
        outputs: TokenOutputs = model(
            experience.inputs(self.plan.layout, rows), temperature=s.temperature, learns_entropy=s.entropy_coef > 0
        )
        return outputs

    def _loss(self, outputs: TokenOutputs, experience: Experience, rows: list[int], sums: Sums) -> Tensor:
        """The PPO loss of some completions, of which `outputs` tells, summed over their tokens ()."""
        s = self.plan.settings
        old, values, advantages, returns = (
            experience.flat(column, rows)
            for column in (experience.old, experience.values, experience.advantages, experience.returns)
        )
        counts = torch.ones_like(old, dtype=torch.bool)
        policy = policy_loss(outputs.log_probabilities, old, advantages, counts, s.cliprange)
        value = value_loss(outputs.values, values, returns, counts, s.cliprange_value)
        sums.add(
            policy=policy.loss,
            value=value.loss,
            clipped=policy.clipped,
            value_clipped=value.clipped,
            moved=policy.moved,
            ratio=policy.ratio,
            tokens=counts.sum(),
        )
        return combined(policy.loss, value.loss, outputs.entropies.sum(), s.vf_coef, s.entropy_coef)

    def _pretraining(self, model: nn.Module, count: int, sums: Sums, place: tuple[int, int]) -> Tensor:
        """Add the gradient of ptx_coef times the next-token loss of `count` blocks of text: Ouyang et al. 2022,
        equation 2."""
        plan = self.plan
        drawn = np.random.default_rng((self.args.seed, TEXTS, self.state.global_step, *place, self.context.world.rank))
        chosen = drawn.integers(len(plan.blocks), size=count)
        tokens = count * (plan.blocks.shape[1] - 1) * self.args.world_size
        loss = torch.zeros((), device=self.args.device)
        with self.unshared(model):
            for start in range(0, count, plan.micro_batch):
                ids = torch.from_numpy(
                    np.asarray(plan.blocks[chosen[start : start + plan.micro_batch]], dtype=np.int64)
                ).to(self.args.device)
                inputs = {
                    "input_ids": ids[:, :-1].contiguous(),
                    "attention_mask": torch.ones_like(ids[:, :-1]),
                    "labels": ids[:, 1:].contiguous(),
                }
                with self.compute_loss_context_manager():
                    outputs: TokenOutputs = model(inputs, values=False)
                    surprise = -outputs.log_probabilities.sum()
                    value = plan.settings.ptx_coef * surprise / tokens * self.args.world_size
                self.accelerator.backward(value)
                sums.add(
                    ptx=surprise,
                    ptx_tokens=torch.tensor(float(len(outputs.log_probabilities)), device=self.args.device),
                )
                loss = loss + value.detach()
        return loss

    def _step(self, model: nn.Module) -> None:
        """An optimizer step at the iteration's learning rate: what the Trainer does after the last minibatch."""
        if self.args.max_grad_norm > 0:
            self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    # -- what is told and kept -------------------------------------------------------------------------------------

    def _show(self, texts: Sequence[str], written: Rollouts, scores: Tensor, kl: Tensor) -> None:
        """A `sample` event with the first completions, in the iterations that are logged."""
        step = self.state.global_step + 1
        if not self.context.world.is_main or (step % self.state.logging_steps and step != self.state.max_steps):
            return
        shown = [
            {
                "prompt": str(texts[row]),
                "completion": written.texts[row],
                "reward": round(float(scores[row]), 4),
                "kl": round(float(kl[row]), 4),
            }
            for row in range(min(SHOWN, len(texts)))
        ]
        self.context.events.emit("sample", step=step, completions=shown)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With every logged loss the metrics of the iteration."""
        if "loss" in logs:
            logs |= self.iteration_metrics
        super().log(logs, start_time)

    def own_state(self) -> State:
        return {
            "kl_controller": self.controller.state(),
            "scores": self.reward_moments.state(),
            "watch": self.watch.state(),
            "told": self.iteration_metrics,
        }

    def restore_own(self, state: State) -> None:
        self.controller.restore(state["kl_controller"])
        self.reward_moments.restore(state["scores"])
        self.watch.restore(state["watch"])
        self.iteration_metrics = dict(state["told"])

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        save_learnt(self.bare.learnt(), self.args, output_dir)

    def _issue_warnings_after_load(self, load_result: object) -> None:
        """What a checkpoint leaves out does not learn, or is a second name of what does."""

    def stage_metrics(self) -> dict[str, float]:
        """As of every stage, and the last iteration's; a sample is a completion that was written and learnt from."""
        metrics = super().stage_metrics()
        completions = self.state.global_step * self.args.train_batch_size * self.args.world_size
        return metrics | {"train_samples_per_second": completions / metrics["train_runtime"]} | self.iteration_metrics


def _parts(experience: Experience, rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """The rows of each pass, at most `size` of similar lengths."""
    lengths = [len(experience.prompts[row]) + len(experience.responses[row]) for row in rows]
    for part in by_length(lengths, size):
        yield [rows[position] for position in part]


def _spread_out(experience: Experience, passes: Iterable[tuple[list[int], tuple[Tensor, ...]]]) -> list[Tensor]:
    """A column (rows, length) of each thing that passes tell about the named tokens of their rows, no gradients."""
    columns: list[Tensor] = []
    for rows, told in passes:
        columns = columns or [torch.zeros_like(experience.mask, dtype=torch.float32) for _ in told]
        for column, values in zip(columns, told, strict=True):
            column[rows] = spread(values.detach().float(), experience.mask[rows])
    return columns
