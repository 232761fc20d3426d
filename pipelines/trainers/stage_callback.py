"""What happens at the steps and epochs of every stage: the order of an epoch, layers that wake, progress, a stop by
signal."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as LiveArguments

from pipelines.core.interfaces import Context

PROGRESS_EVERY = 1.0
"""Seconds between two `progress` events."""


class StageCallback(TrainerCallback):  # type: ignore[misc]
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
