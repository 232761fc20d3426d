"""What every trainer of a stage has, whoever wrote its loop: ours and TRL's, all of them transformers' Trainer.

Learning rates and a schedule by the tuner, masks of dropout, the end of an epoch that a stop broke off, an end at the
first NaN, checkpoints that count only when complete, events, and the stage's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import EarlyStoppingCallback, PrinterCallback
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from pipelines.core.errors import Diverged, Stopped
from pipelines.core.files import remove_unfinished, restored
from pipelines.core.interfaces import Context
from pipelines.models import fsdp
from pipelines.models.attention_by_size import attention_by_size
from pipelines.objectives.losses import Meter
from pipelines.trainers import checkpoints, dropout, training_attention
from pipelines.trainers.checkpoints import State
from pipelines.trainers.dropout import MaskStream
from pipelines.trainers.joint_projections import joint_projections
from pipelines.trainers.light_step import SharedStepAdamW, few_walks
from pipelines.trainers.sharding import ShardingTrainer
from pipelines.trainers.throughput import Throughput, peak_memory
from pipelines.tuners.tuner import Tuner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipelines.trainers.frozen_features import FrozenFeatures
    from pipelines.trainers.named_rows import RowGradient


def newest_checkpoint(context: Context) -> Path | None:
    """The checkpoint that the stage goes on from; what was broken off is removed. Called on every process."""
    folder = context.folder / "checkpoints"
    if context.world.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
    context.barrier()
    return checkpoints.newest_complete(folder)


def split_by_rate(optimizer: Optimizer, model: nn.Module, rates: Mapping[str, float]) -> None:
    """Split the optimizer's groups so that each weight learns at its own multiple of the learning rate.

    `rates` are multipliers by parameter name, 1 where none is given. Everything else that a group says (weight decay,
    and which weights have none) stays. Groups at the full rate come first: theirs is the rate that is logged. Called
    before the first step and before a schedule is made, which takes each group's rate as the one to begin from.
    """
    if not rates:
        return
    multiplier = {id(weight): rates.get(name, 1.0) for name, weight in model.named_parameters()}
    if unknown := sorted(set(rates) - {name for name, _ in model.named_parameters()}):
        raise ValueError(f"learning rates are given for weights that the model does not have: {', '.join(unknown[:3])}")
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        members: dict[float, list[Any]] = {}
        for weight in group["params"]:
            members.setdefault(multiplier[id(weight)], []).append(weight)
        groups += [group | {"params": weights, "lr": group["lr"] * rate} for rate, weights in members.items()]
    optimizer.param_groups = sorted(groups, key=lambda group: -group["lr"])


def schedule(optimizer: Optimizer, tuner: Tuner | None, steps: int) -> LambdaLR | None:
    """The tuner's own schedule over `steps` updates; None when it leaves that to `arguments`."""
    if tuner is None or tuner.factor(0, steps) is None:
        return None
    own = tuner

    def factor(step: int) -> float:
        value = own.factor(min(step, steps - 1), steps)
        assert value is not None
        return value

    return LambdaLR(optimizer, factor)


class StageTrainer(ShardingTrainer):
    """To be named before a Trainer among the bases of a class. `begin` is called before the Trainer's own
    `__init__`."""

    tuner: Tuner | None
    meter: Meter | None
    patience: EarlyStoppingCallback | None
    sampler: Any
    """The order of the examples, which is told each epoch; None where the Trainer has its own."""
    stopped_early: bool
    lr_scheduler: Any

    def begin(
        self,
        context: Context,
        tuner: Tuner | None,
        patience: EarlyStoppingCallback | None = None,
        meter: Meter | None = None,
    ) -> None:
        """What the Trainer's own `__init__` may already ask for."""
        self.context = context
        self.tuner = tuner
        self.patience = patience
        self.meter = meter
        self.sampler = None
        self.stopped_early = False
        self.throughput = Throughput(context.precision, context.gather)
        self.masks: MaskStream | None = None
        self.batch_of_step = (-1, 0)
        self.frozen: FrozenFeatures | None = None
        self.row_gradient: RowGradient | None = None
        self.model_weights: list[nn.Parameter] | None = None
        """Those of the model, while it learns alone."""
        self.operations_of_a_token: int | None = None
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def learns_alone(self) -> bool:
        """Whether one process computes all as it is written, on a processor."""
        plain = self.args.device.type == "cpu" and not self.args.torch_compile and not self.args.fp16
        return plain and self.context.world.size == 1 and not self.is_deepspeed_enabled

    def get_optimizer_cls_and_kwargs(self, *given: Any) -> tuple[Any, dict[str, Any]]:
        kind, words = super().get_optimizer_cls_and_kwargs(*given)
        if kind is AdamW and words.get("fused") and self.learns_alone():
            return SharedStepAdamW, {name: word for name, word in words.items() if name != "fused"}
        return kind, words

    def create_optimizer(self, model: PreTrainedModel = None) -> torch.optim.Optimizer:
        """transformers' own groups, split by the tuner's rates. All that will ever learn is in them from the start."""
        optimizer = super().create_optimizer(model)
        if self.tuner is not None:
            split_by_rate(optimizer, self.model if model is None else model, self.tuner.rates(self.model))
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None:
            self.lr_scheduler = schedule(optimizer or self.optimizer, self.tuner, num_training_steps)
            self._created_lr_scheduler = self.lr_scheduler is not None
        return super().create_scheduler(num_training_steps, optimizer)

    def train_stage(self, resume_from: Path | None) -> None:
        """Train to the last step, from a checkpoint if there is one. Raises Stopped after saving when a signal asked to
        stop, Diverged where the loss or the weights are no numbers."""
        self.remove_callback(PrinterCallback)  # the events say it
        with self.context.stop.deferred():
            self.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
        if self.stopped_early:
            raise Stopped(
                f"stage '{self.context.stage_id}' stopped at step {self.state.global_step} of "
                f"{self.state.max_steps}; its checkpoint is saved"
            )
        self.refuse_spoiled_weights()

    def train(self, *given: Any, **keywords: Any) -> TrainOutput:
        plain = self.args.device.type == "cpu" and not self.args.torch_compile
        # what is computed twice must be computed alike, though other batches came between
        by_size = plain and not self.args.activation_checkpointing
        try:
            with (
                dropout.few_bits() if plain else nullcontext() as self.masks,
                attention_by_size(self.model, training_attention.register()) if by_size else nullcontext(),
                joint_projections(self.model) if by_size else nullcontext(),
                few_walks(self.model) if self.learns_alone() else nullcontext() as self.model_weights,
            ):
                return super().train(*given, **keywords)
        finally:
            self._end_workers()

    def _run_epoch(self, *given: Any, **keywords: Any) -> None:
        """No step where the last checkpoint was written behind the last one, as the Trainer would take another; an
        epoch that such a checkpoint broke off is ended."""
        if self._lacks_scores(keywords):  # it was broken off behind the last step of an epoch, before its evaluation
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            where = (keywords[name] for name in ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time"))
            self._maybe_log_save_evaluate(self._tr_loss, None, *where, learning_rate=self._get_learning_rate())
        if not self.is_over():
            if not self.control.should_training_stop:
                super()._run_epoch(*given, **keywords)
            return
        if keywords["steps_trained_in_current_epoch"] > 0:
            super()._run_epoch(*given, **keywords | {"num_update_steps_per_epoch": 0})
        self.control.should_training_stop = True

    def _lacks_scores(self, keywords: Mapping[str, Any]) -> bool:
        """Whether the checkpoint that is gone on from ends an epoch whose evaluation it does not know."""
        resumed = keywords["resume_from_checkpoint"] is not None and keywords["epoch"] == keywords["epochs_trained"]
        ended = resumed and self.state.global_step > 0 and keywords["steps_trained_in_current_epoch"] == 0
        scored = (each["step"] for each in self.state.log_history if "eval_loss" in each)
        return ended and self.args.eval_strategy == IntervalStrategy.EPOCH and self.state.global_step not in scored

    def is_over(self) -> bool:
        """Whether no step is left: all were taken, or the scores are not getting better."""
        patience = self.patience
        return self.state.global_step >= self.state.max_steps or (
            patience is not None and patience.early_stopping_patience_counter >= patience.early_stopping_patience
        )

    def _end_workers(self) -> None:
        """End the processes that made batches and stayed between epochs. The garbage collection, which would find them
        in a circle, waits five seconds for each."""
        for loader in self.accelerator._dataloaders:
            loader = getattr(loader, "base_dataloader", loader)
            if (end := getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)) is not None:
                end()
                loader._iterator = None  # whoever asks again gets new ones

    def _masks_of_batch(self) -> AbstractContextManager[None]:
        """Opens the stream of this batch, which is the n-th that the processes together see in this step."""
        if self.masks is None or self.args.activation_checkpointing:  # which computes again by torch's generator
            return nullcontext()
        step, seen = self.batch_of_step
        seen = seen + 1 if step == self.state.global_step else 0
        self.batch_of_step = (self.state.global_step, seen)
        world = self.context.world
        return self.masks.batch(self.args.seed, self.state.global_step, seen * world.size + world.rank)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        speed = self.throughput.step(inputs, self.args.device, self.args.torch_compile)
        with speed, self._masks_of_batch():
            value = self.passes(model, inputs, num_items_in_batch)
        if self.args.device.type == "cpu":  # elsewhere the look would make the device wait: see _refuse_nan
            self._refuse_nan(value)
        return value

    def passes(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None) -> Tensor:
        """Forward and backward pass of a batch: the loss (), detached."""
        value: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return value

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """The norm of all gradients (), which are scaled down to `max_grad_norm` if it is above that.

        torch multiplies those within it by 1, so as not to wait for a GPU; on a CPU that is another pass over them.
        """
        if not self.context.world.is_sharded and (self.is_deepspeed_enabled or self.args.fp16):
            norm: Tensor = super()._clip_grad_norm(model)
            return norm
        every = model.parameters() if self.model_weights is None else self.model_weights
        weights: list[Tensor] = [weight for weight in every if weight.grad is not None]
        part = None if self.row_gradient is None else self.row_gradient.part()
        if self.row_gradient is not None and part is not None:
            weights = [part if each is self.row_gradient.weight else each for each in weights]
        norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        if isinstance(norm, DTensor):  # the root of the sum over all processes
            clip_grads_with_norm_(weights, self.args.max_grad_norm, norm)
            return norm.full_tensor()
        on_cpu = self.args.device.type == "cpu"
        if not on_cpu or not norm + 1e-6 <= self.args.max_grad_norm:  # as torch decides; what is no number is spread
            clip_grads_with_norm_(weights, self.args.max_grad_norm, norm)
            if self.row_gradient is not None and part is not None:
                self.row_gradient.take_back(part)
        return norm

    def floating_point_ops(self, inputs: Any) -> int:
        """transformers' estimate for a batch, which TRL makes a list; it would count all parameters in every step."""
        name = getattr(self.model, "main_input_name", "input_ids")
        read = inputs.get(name) if isinstance(inputs, Mapping) else None
        if not isinstance(read, Tensor) or not read.numel():
            return int(super().floating_point_ops(inputs))
        if self.operations_of_a_token is None:
            self.operations_of_a_token = int(super().floating_point_ops(inputs)) // read.numel()
        return self.operations_of_a_token * read.numel()

    def _refuse_nan(self, value: Tensor) -> None:
        if not torch.isfinite(value).all():
            step = self.state.global_step + 1
            raise Diverged(
                f"the loss is {value.float().mean().item()} at step {step}; lower arguments.learning_rate "
                f"(now {self.args.learning_rate:g}), "
                "raise arguments.warmup_steps, or set launch.mixed_precision: no"
            )

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *rest: object, **keywords: object) -> None:
        if self.control.should_log or self.control.should_save:
            self._refuse_nan(tr_loss)
        self.throughput.pause()
        super()._maybe_log_save_evaluate(tr_loss, *rest, **keywords)
        self.throughput.resume()

    def refuse_spoiled_weights(self) -> None:
        """Raise Diverged when the last update left weights that are no numbers: they must not be kept."""
        for name, weight in self.model.named_parameters():
            if weight.requires_grad and not torch.isfinite(fsdp.local(weight)).all():
                raise Diverged(
                    f"the weights ({name}) are no longer finite after step {self.state.global_step}; lower "
                    f"arguments.learning_rate (now {self.args.learning_rate:g}), or raise arguments.warmup_steps"
                )

    def _save_checkpoint(self, model: PreTrainedModel, trial: object) -> None:
        self.refuse_spoiled_weights()
        if self.args.should_save:  # the same step may be saved again, with the scores of its epoch
            checkpoints.unmark(self.context.folder / "checkpoints" / f"checkpoint-{self.state.global_step}")
        limit, self.args.save_total_limit = (
            self.args.save_total_limit,
            None,
        )  # no other goes before this one is complete
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        losses = self.context.gather(self._tr_loss.item())  # every process has written its part once this returns
        meters = None if self.meter is None else self.context.gather(self.meter.state())
        own = self.own_state()
        if self.args.should_save:
            step = self.state.global_step
            folder = self.context.folder / "checkpoints" / f"checkpoint-{step}"
            checkpoints.mark_complete(
                folder,
                {
                    "step": step,
                    "loss_since_log": losses,
                    "loss_logged": self._total_loss_scalar,
                    "step_logged": self._globalstep_last_logged,
                    "seconds": self.seconds(),
                    "without_better": 0 if self.patience is None else self.patience.early_stopping_patience_counter,
                    "meters": meters,
                    **own,
                },
            )
            checkpoints.rotate(folder.parent, limit, self.state.best_model_checkpoint)
            self.context.events.emit("checkpoint", step=step, path=str(folder))
        self.context.barrier()

    def restore_accumulators(self) -> None:
        """Continue the sums behind the logged losses where the checkpoint left them; the Trainer starts them anew."""
        if self.state.global_step == 0:
            return
        state = checkpoints.state_of(self.context.folder / "checkpoints" / f"checkpoint-{self.state.global_step}")
        self.state.best_metric = restored(self.state.best_metric)
        self.state.log_history = restored(self.state.log_history)
        losses = state["loss_since_log"]  # of each process; what is logged is their mean
        mine = losses[self.context.world.rank] if len(losses) == self.context.world.size else sum(losses) / len(losses)
        self._tr_loss += torch.tensor(mine, device=self._tr_loss.device)
        self._total_loss_scalar = state["loss_logged"]
        self._globalstep_last_logged = state["step_logged"]
        self.seconds_before = state["seconds"]
        if self.patience is not None:
            self.patience.early_stopping_patience_counter = state["without_better"]
        if self.meter is not None and len(state["meters"]) == self.context.world.size:
            self.meter.restore(state["meters"][self.context.world.rank], self.args.device)
        self.restore_own(state)
        if self.context.world.is_main:
            self.context.events.emit(
                "progress", step=self.state.global_step, total=self.state.max_steps, what="resumed"
            )

    def own_state(self) -> State:
        """What a kind of trainer keeps in a checkpoint besides, as JSON. Called on every process."""
        return {}

    def restore_own(self, state: State) -> None:
        """Take back what `own_state` gave."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.meter is not None and "loss" in logs:
            logs |= self.meter.take(True, self.context.gather)
        elif self.meter is not None and "eval_loss" in logs:
            logs |= {f"eval_{name}": value for name, value in self.meter.take(False, self.context.gather).items()}
        super().log(logs, start_time)
        if (
            self.context.world.is_main and "train_loss" not in logs
        ):  # that is the sum at the end, which goes to metrics.json
            # with include_num_input_tokens_seen, transformers puts the run's speed (`train_…`) into every log
            latest = {
                key: value
                for key, value in self.state.log_history[-1].items()
                if key != "step" and not key.startswith("train_")
            }
            numbers = {key: value for key, value in latest.items() if isinstance(value, int | float)}
            self.context.events.emit("metric", step=self.state.global_step, metrics=numbers)
        if "loss" in logs:
            self.throughput.measure()

    def seconds(self) -> float:
        """Time spent training, that of the processes before a resume included."""
        return self.seconds_before + time.monotonic() - self.started

    def stage_metrics(self) -> dict[str, float]:
        """What `metrics.json` of a training stage carries."""
        runtime = self.seconds()
        seen = self.state.epoch * len(self.train_dataset) if self.state.epoch else 0.0
        parameters = list(self.model.parameters())
        return {
            "train_loss": self._total_loss_scalar / max(self.state.global_step, 1),
            "train_runtime": runtime,
            "train_samples_per_second": seen / runtime,
            **{f"train_{name}": value for name, value in self.throughput.total().items()},
            "train_steps": self.state.global_step,
            "epoch": self.state.epoch or 0.0,
            "trainable_parameters": sum(each.numel() for each in parameters if each.requires_grad),
            "all_parameters": sum(each.numel() for each in parameters),
            "peak_memory_bytes": peak_memory(),
            **self.selection_scores(),
        }

    def selection_scores(self) -> dict[str, float]:
        """What the kept weights scored on the rows set aside, as `eval_<metric>`; nothing without `eval_strategy`."""
        evaluations = [each for each in self.state.log_history if "eval_loss" in each]
        if self.args.load_best_model_at_end:
            evaluations = [
                each for each in evaluations if each.get("step") == self.state.best_global_step
            ] or evaluations
        beside = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")
        return {
            key: value
            for key, value in (evaluations[-1] if evaluations else {}).items()
            if key.startswith("eval_") and not key.endswith(beside)
        }
