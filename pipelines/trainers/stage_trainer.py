"""What every trainer of a stage has, whoever wrote its loop: ours and TRL's, all of them transformers' Trainer.

The live arguments, learning rates and a schedule by the tuner, peak memory, checkpoints that count only when complete,
a stop by signal that saves first, an end at the first NaN, events, and metrics.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as LiveArguments
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from pipelines.core.errors import Diverged, StageError
from pipelines.core.files import restored
from pipelines.core.interfaces import Context
from pipelines.core.scores import smaller_is_better
from pipelines.core.training_arguments import TrainingArguments
from pipelines.models import fsdp
from pipelines.models.open_once import is_opened_once
from pipelines.objectives.losses import Meter
from pipelines.trainers import checkpoints, dropout, optimizer_state
from pipelines.trainers.checkpoints import State
from pipelines.trainers.dropout import MaskStream
from pipelines.trainers.throughput import Throughput
from pipelines.tuners.tuner import Tuner


def reset_peak_memory() -> None:
    """Forget earlier peaks, so that a stage reports its own."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # not Linux, or not allowed: the peak then covers the whole process
            return


def peak_memory() -> int:
    """Bytes at the peak since the last reset."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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


PROGRESS_EVERY = 1.0
"""Seconds between two `progress` events."""


if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers import Trainer as Base

    from pipelines.trainers.frozen_features import FrozenFeatures
else:
    Base = object


ZERO = {"zero2": 2, "zero3": 3}
"""Stages of ZeRO (Rajbhandari et al. 2020, arxiv.org/abs/1910.02054) by profile."""


def deepspeed_configuration(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration; `auto` is what transformers fills in from its arguments."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,  # ours are torch's, and not DeepSpeed's own
        "zero_optimization": {
            "stage": stage,
            "contiguous_gradients": True,
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": stage == 3,
        },
    }


def live_words(
    context: Context, arguments: TrainingArguments, overrides: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The words of transformers' TrainingArguments: the user's, and what Finery fixes so that runs resume exactly.

    `overrides` are what the stage decides instead of the user. Warns of names of earlier transformers versions.
    """
    if context.world.is_main:
        for warning in arguments.warnings():
            context.events.emit("warning", message=warning)
    each, accumulated = arguments.batch_sizes(context.world.size, context.fits)
    words = arguments.of_the_trainer() | {
        "per_device_train_batch_size": each,
        "gradient_accumulation_steps": accumulated,
        "logging_steps": arguments.logging_steps,
        "report_to": "none",  # trackers are callbacks of our own: see `trackers`
        "save_total_limit": max(2, arguments.save_total_limit or 2),  # a kill may spoil the one being written
    }
    if arguments.load_best_model_at_end:
        words.setdefault("save_strategy", arguments.eval_strategy)
    if words.get("optim") == "muon":  # which transformers does not know: see FineryTrainer.create_optimizer
        words["optim"] = "adamw_torch_fused"
    on_cpu = not torch.cuda.is_available()
    fixed: dict[str, Any] = {
        "output_dir": str(context.folder / "checkpoints"),
        "seed": context.seed,
        "bf16": context.precision == "bf16",
        "fp16": context.precision == "fp16",
        "use_cpu": on_cpu,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "logging_nan_inf_filter": False,  # a NaN must be seen, not averaged away
        "average_tokens_across_devices": True,
        "dataloader_pin_memory": not on_cpu,
        "accelerator_config": {"non_blocking": not on_cpu},  # a batch is copied while the one before is computed
        "ddp_find_unused_parameters": False,
    }
    if on_cpu and context.world.size > 1:
        fixed["ddp_backend"] = "gloo"
    if context.world.profile in ZERO:
        fixed["deepspeed"] = deepspeed_configuration(ZERO[context.world.profile])
    words |= dict(overrides or {})
    decides = str(words.get("metric_for_best_model") or "").removeprefix("eval_")
    if words.get("greater_is_better") is None and smaller_is_better(decides):
        words["greater_is_better"] = False  # transformers knows it of losses alone
    return words | fixed


def training_arguments(
    context: Context, arguments: TrainingArguments, overrides: Mapping[str, object] | None = None
) -> LiveArguments:
    """transformers' object of what `live_words` says."""
    return LiveArguments(**live_words(context, arguments, overrides))


class StageTrainer(Base):  # type: ignore[misc]
    """To be named before a Trainer among the bases of a class. `begin` is called before the Trainer's own
    `__init__`."""

    context: Context
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
        self.operations_of_a_token: int | None = None
        self.seconds_before = 0.0
        self.started = time.monotonic()

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

    # -- how processes share the model -------------------------------------------------------------------------------

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """What is to be divided is moved layer by layer, as it is divided."""
        if not self.context.world.is_sharded:
            super()._move_model_to_device(model, device)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """What has no weights of its own takes them from the first process when the model is divided."""
        if self.context.world.is_main or not is_opened_once(self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _prepare_for_training(self, *given: Any, **keywords: Any) -> Any:
        """The model is divided here, once the weights of a checkpoint are in it and before there is an optimizer."""
        world = self.context.world
        if world.is_sharded:
            fsdp.shard(self.model, self.args.device, world.size)
            # transformers' word for a model that owns its placement: no DistributedDataParallel around it
            self.is_distributed_loading_by_transformers = True
        model, loader = super()._prepare_for_training(*given, **keywords)
        self._tell_distribution(model)
        return model, loader

    def _tell_distribution(self, model: nn.Module) -> None:
        """Emit what each process holds. Raises StageError where the model is not distributed as the profile says."""
        world = self.context.world
        zero = self.accelerator.state.deepspeed_plugin.zero_stage if self.is_deepspeed_enabled else None
        by_zero = next((profile for profile, stage in ZERO.items() if stage == zero), None)
        found = by_zero or (
            "fsdp2" if fsdp.is_sharded(model) else "ddp" if isinstance(model, DistributedDataParallel) else "single"
        )
        if world.size != self.accelerator.num_processes or found != (world.profile if world.size > 1 else "single"):
            raise StageError(
                f"launch asks for {world.profile} on {world.size} processes, but the model is prepared for {found} on "
                f"{self.accelerator.num_processes}; is another version of accelerate installed?"
            )
        if world.size > 1:
            held = self.context.gather(fsdp.elements(self.model))
            if world.is_main:
                ranks = [{"rank": rank, "local": own, "global": whole} for rank, (own, whole) in enumerate(held)]
                self.context.events.emit("distributed", profile=found, num_processes=world.size, ranks=ranks)

    def _defer_fsdp_gradient_reduction(self) -> AbstractContextManager[None]:
        """Nothing is put off: gradients that wait on each process for the last batch of a step would be whole."""
        return nullcontext()

    def unshared(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside the `with` block gradients may be added up on this process alone, where it has room for all."""
        if self.context.world.is_sharded:
            return nullcontext()
        alone: AbstractContextManager[None] = self.accelerator.no_sync(model)
        return alone

    def whole_model(self, write_back: bool = False) -> AbstractContextManager[None]:
        """Inside the `with` block the main process has the whole model, as `fsdp.gathered` says. Called on all."""
        if not self.context.world.is_sharded:
            return nullcontext()
        return fsdp.gathered(self.model, world=self.context.world, write_back=write_back)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self.whole_model():
            super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.context.world.is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        optimizer_state.write_optimizer(self.optimizer, Path(output_dir), self.context.world)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        if checkpoint is None or not (self.context.world.is_sharded or (folder / optimizer_state.OPTIMIZER).is_file()):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        optimizer_state.read_optimizer(self.optimizer, folder)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))

    def _load_best_model(self) -> None:
        with self.whole_model(write_back=True):
            if self.context.world.is_main or not self.context.world.is_sharded:
                super()._load_best_model()

    # -- a step --------------------------------------------------------------------------------------------------------

    def train(self, *given: Any, **keywords: Any) -> TrainOutput:
        few_bits = self.args.device.type == "cpu" and not self.args.torch_compile
        try:
            with dropout.few_bits() if few_bits else nullcontext() as self.masks:
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
        weights = [weight for weight in model.parameters() if weight.grad is not None]
        norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        if isinstance(norm, DTensor):  # the root of the sum over all processes
            clip_grads_with_norm_(weights, self.args.max_grad_norm, norm)
            return norm.full_tensor()
        on_cpu = self.args.device.type == "cpu"
        if not on_cpu or not norm + 1e-6 <= self.args.max_grad_norm:  # as torch decides; what is no number is spread
            clip_grads_with_norm_(weights, self.args.max_grad_norm, norm)
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


class Companion(TrainerCallback):  # type: ignore[misc]
    """Sets the sampler's epoch, looks for a request to stop, reports progress."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trainer: Any = None
        self.reported = 0.0

    def on_train_begin(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> None:
        assert self.trainer is not None
        self.trainer.restore_accumulators()
        if self.trainer.tuner is not None and self.context.world.is_main:
            asleep = self.trainer.tuner.never_unfrozen(self.trainer.model, state.num_train_epochs)
            if asleep:
                self.context.events.emit("warning", message=asleep)

    def on_epoch_begin(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> None:
        assert self.trainer is not None
        epoch = int((state.epoch or 0.0) + 1e-6)
        if self.trainer.sampler is not None:
            self.trainer.sampler.epoch = epoch
        if self.trainer.tuner is not None and self.trainer.tuner.unfreezes:
            self.trainer.tuner.unfreeze(self.trainer.model, epoch)
            if self.trainer.frozen is not None:
                self.trainer.frozen.follow()

    def on_step_end(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> TrainerControl:
        assert self.trainer is not None
        self.context.beat()
        now = time.monotonic()
        if self.context.world.is_main and (
            now - self.reported >= PROGRESS_EVERY or state.global_step == state.max_steps
        ):
            self.reported = now
            speed = self.trainer.throughput.latest
            self.context.events.emit("progress", step=state.global_step, total=state.max_steps, **speed)
        if self._asked_to_stop():
            control.should_save = True
            control.should_training_stop = True
            self.trainer.stopped_early = state.global_step < state.max_steps
        return control

    def on_epoch_end(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> TrainerControl:
        """A stop is no end of an epoch: nothing is scored in its middle. At a true end the scores belong to the
        checkpoint."""
        assert self.trainer is not None
        if self.trainer.stopped_early:
            ended = abs((state.epoch or 0.0) - round(state.epoch or 0.0)) < 1e-6
            control.should_evaluate = control.should_evaluate and ended
            control.should_save = control.should_evaluate
        return control

    def _asked_to_stop(self) -> bool:
        if self.context.world.size == 1:
            return self.context.stop.requested
        # A signal reaches the processes at different steps; they must all leave after the same one.
        requested = torch.tensor(float(self.context.stop.requested))
        if torch.distributed.get_backend() == "nccl":
            requested = requested.cuda()
        torch.distributed.all_reduce(requested, op=torch.distributed.ReduceOp.MAX)
        return bool(requested.item())
