"""The one training loop: transformers' Trainer, with what every stage needs added once.

Added here: an order of examples that depends only on (seed, epoch), losses divided by the items of the whole step,
checkpoints that count only when complete, a stop by signal that saves first, an end at the first NaN, and events.
A run killed at any moment and resumed reaches the same losses and weights to the bit on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, EvalPrediction, PrinterCallback, Trainer, TrainerCallback
from transformers.trainer_utils import set_seed

from pipelines.errors import Diverged, Stopped
from pipelines.objectives.losses import IGNORED
from pipelines.protocols import Context, Score, Tuner
from pipelines.trainers import checkpoints
from pipelines.trainers.arguments import training_arguments
from pipelines.trainers.learning_rates import schedule, split_by_rate
from pipelines.trainers.lesson import LABELS
from pipelines.trainers.memory import peak_memory, reset_peak_memory
from pipelines.trainers.sampling import PADDING, EpochSampler

Loss = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, Any]]
"""`loss(model, inputs) -> (sums over the items of each part (parts,), or of the only part (); model outputs)`."""

Collate = Callable[[list[dict[str, Any]]], dict[str, Tensor]]
"""Turns examples into a batch."""

PROGRESS_EVERY = 1.0
"""Seconds between two `progress` events."""


class Draws:
    """A data set seen through draws: `draws[epoch * n + i]` is example i, marked with the draw when asked to."""

    def __init__(self, examples: Any, marked: bool = False) -> None:
        self.examples = examples
        self.marked = marked

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, draw: int) -> dict[str, Any]:
        example = dict(self.examples[draw % len(self.examples)])
        if self.marked:
            example["draw"] = max(draw, 0)
        if draw == PADDING:
            example["padding"] = True
        return example


def without_padding(collate: Collate, label_names: Mapping[str, float] = LABELS) -> Collate:
    """`collate` for batches that may be filled up: what only fills has no label, so it is neither learnt nor counted."""

    def together(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        filling = [example.pop("padding", False) for example in examples]
        batch = collate(examples)
        if any(filling):
            for name in label_names:
                batch[name][torch.tensor(filling)] = IGNORED
        return batch

    return together


def fit(
    context: Context,
    model: Any,
    tokenizer: Any,
    examples: Any,
    *,
    collate: Collate,
    loss: Loss,
    arguments: Mapping[str, Any],
    label_names: Mapping[str, float] = LABELS,
    lengths: np.ndarray | None = None,
    marked: bool = False,
    selection: Any = None,
    score: Score | None = None,
    early_stopping_patience: int | None = None,
    tuner: Tuner | None = None,
    trainer_of: Callable[..., FineryTrainer] | None = None,
) -> tuple[Any, dict[str, float]]:
    """Train `model` on `examples`, resuming from the newest complete checkpoint in the stage's folder.

    `collate` turns examples into a batch; `label_names` are the keys of it whose entries other than -100 are the items
    of one part of `loss`, with the part's weight: each part is divided by its own items of the whole step, over
    accumulation and processes. `lengths` (examples,) lets similar lengths share a batch;
    `marked` gives every example its draw for counter-based randomness; `selection` is held-out train data that
    `eval_strategy` scores with `score`; `tuner` is the one that chose the weights of `model`: its learning rates, its
    schedule and its thawing are followed. `trainer_of` builds another trainer than FineryTrainer, for models of which a
    step may leave parts unused; its `examples` are seen through draws already, and its `collate` knows of filling.

    Returns: (the trained model, the stage's metrics). Raises Stopped after saving when a signal asked to stop,
    Diverged at the first loss that is not finite.
    """
    reset_peak_memory()
    set_seed(context.seed)
    live = training_arguments(context, arguments)
    thaws = tuner is not None and tuner.thaws
    live.ddp_find_unused_parameters = thaws or trainer_of is not None  # what is frozen or unused has no gradients to share
    folder = context.folder / "checkpoints"
    if context.world.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.remove_unfinished(folder)
    context.barrier()
    resume_from = checkpoints.newest_complete(folder)
    companion = _Companion(context)
    callbacks: list[TrainerCallback] = [companion]
    patience = None if early_stopping_patience is None else EarlyStoppingCallback(early_stopping_patience)
    if patience is not None:
        callbacks.append(patience)
    trainer = (trainer_of or FineryTrainer)(
        context=context,
        loss=loss,
        label_weights=label_names,
        lengths=lengths,
        patience=patience,
        tuner=tuner,
        model=model,
        args=live,
        train_dataset=Draws(examples, marked) if trainer_of is None else examples,
        eval_dataset=None if selection is None else Draws(selection, marked),
        data_collator=without_padding(collate, label_names) if trainer_of is None else collate,
        processing_class=tokenizer,
        compute_metrics=None if score is None else _scored_by(score),
        callbacks=callbacks,
    )
    companion.trainer = trainer
    trainer.remove_callback(PrinterCallback)  # the events say it
    with context.stop.deferred():
        trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    if trainer.stopped_early:
        raise Stopped(
            f"stage '{context.stage_id}' stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; its checkpoint is saved"
        )
    trainer.refuse_spoiled_weights()
    return trainer.model, trainer.stage_metrics()


def _scored_by(score: Score) -> Callable[[EvalPrediction], dict[str, float]]:
    def compute(prediction: EvalPrediction) -> dict[str, float]:
        logits = prediction.predictions
        return score(logits[0] if isinstance(logits, tuple) else logits, prediction.label_ids)

    return compute


class FineryTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer with Finery's order, losses, checkpoints and events."""

    def __init__(
        self, *, context: Context, loss: Loss, label_weights: Mapping[str, float], lengths: np.ndarray | None,
        patience: EarlyStoppingCallback | None, tuner: Tuner | None, **keywords: Any,
    ) -> None:  # fmt: skip
        self.context = context
        self.tuner = tuner
        self.patience = patience
        self.loss = loss
        self.label_weights = label_weights
        self.lengths = lengths
        self.sampler: EpochSampler | None = None
        self.stopped_early = False
        self.seconds_before = 0.0
        self.started = time.monotonic()
        super().__init__(**keywords)
        self.loss_is_scaled_for_ga = True

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """transformers' own groups, split by the tuner's rates. All that will ever learn is in them from the start."""
        optimizer = super().create_optimizer(model)
        if self.tuner is not None:
            split_by_rate(optimizer, self.model if model is None else model, self.tuner.rates(self.model))
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            self.lr_scheduler = schedule(optimizer or self.optimizer, self.tuner, num_training_steps)
            self._created_lr_scheduler = self.lr_scheduler is not None
        return super().create_scheduler(num_training_steps, optimizer)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        at_once = self.args.train_batch_size * self.args.world_size
        step = at_once * self.args.gradient_accumulation_steps
        shared = at_once if self.args.world_size > 1 else 1
        self.sampler = EpochSampler(len(self.train_dataset), step, self.args.seed, self.lengths, shared)
        return self.sampler

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Tensor]], device: torch.device) -> Tensor | None:
        """Items of each part of the loss in the micro-batches of one step, over all processes (parts,)."""
        if not batch_samples:
            return None
        items = sum(self._items(batch).to(device) for batch in batch_samples)
        if self.args.world_size > 1:
            items = self.accelerator.gather(items).reshape(-1, len(self.label_weights)).sum(0)
        return items.clamp(min=1)

    def _items(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.stack([batch[name].ne(IGNORED).sum() for name in self.label_weights])

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        sums, outputs = self.loss(model, inputs)
        shared = 1 if num_items_in_batch is None else self.args.world_size
        items = self._items(inputs).clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        weights = torch.tensor(list(self.label_weights.values()), device=sums.device)
        # Gradients are averaged over processes, while the count is over all of them.
        value = (weights * sums.reshape(-1) / items).sum() * shared
        if model.training and self.tuner is not None:
            penalty = self.tuner.penalty(model)  # once a step, whatever the number of its micro-batches
            value = value if penalty is None else value + penalty / self.current_gradient_accumulation_steps
        return (value, outputs) if return_outputs else value

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        value = super().training_step(model, inputs, num_items_in_batch)
        if self.args.device.type == "cpu":  # elsewhere the look would make the device wait: see _refuse_nan
            self._refuse_nan(value)
        return value

    def _refuse_nan(self, value: Tensor) -> None:
        if not torch.isfinite(value).all():
            step = self.state.global_step + 1
            raise Diverged(
                f"the loss is {value.float().mean().item()} at step {step}; lower arguments.learning_rate (now {self.args.learning_rate:g}), "
                "raise arguments.warmup_steps, or set launch.mixed_precision: no"
            )

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *rest: Any, **keywords: Any) -> None:
        if self.control.should_log or self.control.should_save:
            self._refuse_nan(tr_loss)
        super()._maybe_log_save_evaluate(tr_loss, *rest, **keywords)

    def refuse_spoiled_weights(self) -> None:
        """Raise Diverged when the last update left weights that are no numbers: they must not be kept."""
        for name, weight in self.model.named_parameters():
            if weight.requires_grad and not torch.isfinite(weight).all():
                raise Diverged(
                    f"the weights ({name}) are no longer finite after step {self.state.global_step}; lower "
                    f"arguments.learning_rate (now {self.args.learning_rate:g}), or raise arguments.warmup_steps"
                )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.refuse_spoiled_weights()
        if self.args.should_save:  # the same step may be saved again, with the scores of its epoch
            checkpoints.unmark(self.context.folder / "checkpoints" / f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)
        losses = self.context.gather(self._tr_loss.item())  # every process has written its part once this returns
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
                    **own,
                },
            )
            self.context.events.emit("checkpoint", step=step, path=str(folder))
        self.context.barrier()

    def restore_accumulators(self) -> None:
        """Continue the sums behind the logged losses where the checkpoint left them; the Trainer starts them anew."""
        if self.state.global_step == 0:
            return
        state = checkpoints.state_of(self.context.folder / "checkpoints" / f"checkpoint-{self.state.global_step}")
        if len(state["loss_since_log"]) == self.context.world.size:
            self._tr_loss += torch.tensor(state["loss_since_log"][self.context.world.rank], device=self._tr_loss.device)
        self._total_loss_scalar = state["loss_logged"]
        self._globalstep_last_logged = state["step_logged"]
        self.seconds_before = state["seconds"]
        if self.patience is not None:
            self.patience.early_stopping_patience_counter = state["without_better"]
        self.restore_own(state)
        if self.context.world.is_main:
            self.context.events.emit(
                "progress", step=self.state.global_step, total=self.state.max_steps, what="resumed"
            )

    def own_state(self) -> dict[str, Any]:
        """What a kind of trainer keeps in a checkpoint besides, as JSON. Called on every process."""
        return {}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Take back what `own_state` gave."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if self.context.world.is_main and "train_loss" not in logs:  # that is the sum at the end, which goes to metrics.json
            # with include_num_input_tokens_seen, transformers puts the run's speed (`train_…`) into every log
            numbers = {key: value for key, value in logs.items() if isinstance(value, int | float) and not key.startswith("train_")}
            self.context.events.emit("metric", step=self.state.global_step, metrics=numbers)

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
            "train_steps": self.state.global_step,
            "epoch": self.state.epoch or 0.0,
            "trainable_parameters": sum(each.numel() for each in parameters if each.requires_grad),
            "all_parameters": sum(each.numel() for each in parameters),
            "peak_memory_bytes": peak_memory(),
            **self.selection_scores(),
        }

    def selection_scores(self) -> dict[str, float]:
        """What the kept weights scored on the rows set aside, as `eval_<metric>`; nothing without `eval_strategy`."""
        told = [each for each in self.state.log_history if "eval_loss" in each]
        if self.args.load_best_model_at_end:
            told = [each for each in told if each.get("step") == self.state.best_global_step] or told
        beside = ("runtime", "samples_per_second", "steps_per_second", "preparation_time")
        return {key: value for key, value in (told[-1] if told else {}).items() if key.startswith("eval_") and not key.endswith(beside)}


class _Companion(TrainerCallback):  # type: ignore[misc]
    """Sets the sampler's epoch, looks for a request to stop, reports progress."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trainer: FineryTrainer | None = None
        self.reported = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        assert self.trainer is not None
        self.trainer.restore_accumulators()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        assert self.trainer is not None
        assert self.trainer.sampler is not None
        epoch = self.trainer.sampler.epoch = int((state.epoch or 0.0) + 1e-6)
        if self.trainer.tuner is not None and self.trainer.tuner.thaws:
            self.trainer.tuner.thaw(self.trainer.model, epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
        assert self.trainer is not None
        now = time.monotonic()
        if self.context.world.is_main and (
            now - self.reported >= PROGRESS_EVERY or state.global_step == state.max_steps
        ):
            self.reported = now
            self.context.events.emit("progress", step=state.global_step, total=state.max_steps)
        if self._asked_to_stop():
            control.should_save = True
            control.should_training_stop = True
            self.trainer.stopped_early = state.global_step < state.max_steps
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> Any:
        """A stop is no end of an epoch: nothing is scored in its middle. At a true end the scores belong to the checkpoint."""
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
        asked = torch.tensor(float(self.context.stop.requested))
        if torch.distributed.get_backend() == "nccl":
            asked = asked.cuda()
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        return bool(asked.item())
