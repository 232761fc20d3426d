"""The one training loop: transformers' Trainer, with what every stage needs added once.

Added here: an order of examples that depends only on (seed, epoch), losses divided by the items of the whole step,
checkpoints that count only when complete, a stop by signal that saves first, an end at the first NaN, and events.
A run killed at any moment and resumed reaches the same losses and weights to the bit on a CPU: it must see the batches
it would have seen, so no order is drawn from the global generator. Examples of similar length share a batch, which
leaves little padding; the batches themselves come in random order.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import DynamoBackend
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import EarlyStoppingCallback, EvalPrediction, Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput, set_seed
from transformers.utils import ModelOutput

from pipelines.core.interfaces import IGNORED, Context, Score
from pipelines.core.training_arguments import TrainingArguments
from pipelines.data.ragged import SHARED
from pipelines.data.randomness import permuted
from pipelines.models import layer_compilation
from pipelines.models.bfloat16_norms import bfloat16_norms
from pipelines.objectives.losses import Meter
from pipelines.tasks.training import LABELS
from pipelines.trainers import checkpoints, frozen_features, named_rows
from pipelines.trainers.checkpoints import State
from pipelines.trainers.halving import Halving, parts_by_size
from pipelines.trainers.model_selection import Examples
from pipelines.trainers.muon import MuonWithAdamW
from pipelines.trainers.named_rows import RowsInUse
from pipelines.trainers.profile import profiled
from pipelines.trainers.stage_callback import StageCallback
from pipelines.trainers.stage_trainer import StageTrainer, newest_checkpoint
from pipelines.trainers.step_graphs import StepGraphs, can_be_recorded
from pipelines.trainers.throughput import reset_peak_memory
from pipelines.trainers.trackers import trackers
from pipelines.trainers.training_args import training_arguments
from pipelines.tuners.tuner import Tuner

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MEGABATCH = 50
"""Batches that are sorted together: enough for tight lengths, few enough to keep the order random."""


def order(seed: int, epoch: int, examples: int, batch_size: int, lengths: np.ndarray | None = None) -> np.ndarray:
    """A permutation of `range(examples)`; with `lengths`, neighbours within a batch have similar ones.

    `batch_size` is the number of examples of one optimizer step over all processes, so that the order does not
    depend on how many processes share the work.
    """
    generator = np.random.default_rng([seed, epoch])
    shuffled = generator.permutation(examples)
    if lengths is None:
        return shuffled
    window = MEGABATCH * batch_size
    whole = examples - examples % batch_size
    batches = []
    for start in range(0, whole, window):
        part = shuffled[start : min(start + window, whole)]
        batches.append(part[np.argsort(-lengths[part], kind="stable")].reshape(-1, batch_size))
    if not batches:
        return shuffled
    stacked = np.concatenate(batches)
    return np.concatenate([stacked[generator.permutation(len(stacked))].reshape(-1), shuffled[whole:]])


AT_ONCE = 1 << 16
"""Draws that are held as integers of Python at a time."""
MOST_HELD = 1 << 24
"""Examples whose order is held, in 128 MB; that of more is computed as it is asked for."""
PADDING = -1
"""The draw of an example that only fills a batch up and must not be learnt from."""


class EpochSampler(Sampler[int]):
    """Yields draws: `epoch * examples + index`. A draw names one example in one epoch, and nothing else ever.

    `epoch` is set by the loop at the start of every epoch, which also holds after batches were skipped. Processes that
    share an epoch need equally many batches: the last ones are filled up with PADDING to a multiple of `shared`, where
    accelerate would fill them with the epoch's first examples and count these twice. With `in_order` the draws come one
    after another, for examples that decide themselves what each draw is.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        seed: int,
        lengths: np.ndarray | None = None,
        shared: int = 1,
        in_order: bool = False,
    ) -> None:
        self.examples = examples
        self.in_order = in_order
        self.batch_size = batch_size
        self.seed = seed
        self.lengths = lengths
        self.epoch = 0
        self.fill = -examples % shared

    def __iter__(self) -> Iterator[int]:
        base, filling = self.epoch * self.examples, repeat(PADDING, self.fill)
        if self.in_order:
            return chain(range(base, base + self.examples), filling)
        starts = range(0, self.examples, AT_ONCE)  # as integers of Python they take more memory
        if self.lengths is None and self.examples > MOST_HELD:
            ranges = (np.arange(at, min(at + AT_ONCE, self.examples)) for at in starts)
            parts = (permuted(each, self.examples, self.seed, self.epoch) for each in ranges)
        else:
            draws = order(self.seed, self.epoch, self.examples, self.batch_size, self.lengths)
            parts = (draws[at : at + AT_ONCE] for at in starts)
        return chain(chain.from_iterable((base + part).tolist() for part in parts), filling)

    def __len__(self) -> int:
        return self.examples + self.fill


Loss = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, ModelOutput]]
"""`loss(model, inputs) -> (sums over the items of each part (parts,), or of the only part (); model outputs)`.

One that needs a number of a whole step has `before_step(model, batches)` too, called without gradient on every process,
and `state()` and `restore(state)` where an evaluation needs what it kept of the last one.
"""

Example = dict[str, Any]
Collate = Callable[[list[Example]], dict[str, Tensor]]
"""Turns examples into a batch."""


class Draws:
    """A data set seen through draws: `draws[epoch * n + i]` is example i, marked with the draw when asked to.

    Examples that are `in_order`, as a Mixture is, are asked for the draw itself.
    """

    def __init__(self, examples: Examples, marked: bool = False) -> None:
        self.examples = examples
        self.marked = marked
        self.in_order = bool(getattr(examples, "in_order", False))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, draw: int) -> Example:
        example = dict(self.examples[draw if self.in_order and draw != PADDING else draw % len(self.examples)])
        if self.marked:
            example["draw"] = max(draw, 0)
        if draw == PADDING:
            example["padding"] = True
        return example


def without_padding(collate: Collate, label_names: Mapping[str, float] = LABELS) -> Collate:
    """`collate` for batches that may be filled up: what only fills has no label, so it is neither learnt nor
    counted."""

    def together(examples: list[Example]) -> dict[str, Tensor]:
        filling = [example.pop("padding", False) for example in examples]
        batch = collate(examples)
        if any(filling):
            for name in label_names:
                batch[name][torch.tensor(filling)] = IGNORED
        return batch

    return together


def fit(
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    *,
    collate: Collate,
    loss: Loss,
    arguments: TrainingArguments | Mapping[str, Any],
    overrides: Mapping[str, object] | None = None,
    label_names: Mapping[str, float] = LABELS,
    lengths: np.ndarray | None = None,
    marked: bool = False,
    selection: Examples | None = None,
    score: Score | None = None,
    early_stopping_patience: int | None = None,
    tuner: Tuner | None = None,
    trainer_of: Callable[..., FineryTrainer] | None = None,
    meter: Meter | None = None,
    only_named_rows: bool = False,
    frozen_once: bool = False,
    same_steps: bool = False,
    beside_reference: bool = False,
) -> tuple[PreTrainedModel, dict[str, float]]:
    """Train `model` on `examples`, resuming from the newest complete checkpoint in the stage's folder.

    `arguments` are the stage's, and `overrides` what the stage decides instead of them.
    `collate` turns examples into a batch; `label_names` are the keys of it whose entries other than -100 are the items
    of one part of `loss`, with the part's weight: each part is divided by its own items of the whole step, over
    accumulation and processes. `lengths` (examples,) lets similar lengths share a batch;
    `marked` gives every example its draw for counter-based randomness; `selection` is held-out train data that
    `eval_strategy` scores with `score`; `tuner` is the one that chose the weights of `model`: its learning rates, its
    schedule and its thawing are followed. `trainer_of` builds another trainer than FineryTrainer, for models of which a
    step may leave parts unused; its `examples` are seen through draws already, and its `collate` knows of filling.
    `meter` is what `loss` adds further numbers to: their means stand beside every logged loss and every evaluation.
    `only_named_rows` says that nothing but the look-up of `input_ids` reads the word embedding, of which rows that no
    example names then take no part in the steps. `frozen_once` has frozen layers below the first that learns asked once
    for each example, without dropout; the model must read the batch of `collate` and nothing else. `same_steps` says
    that `loss` does the same for every batch of one shape, so that a GPU may replay it. `beside_reference` says that
    `loss` compares the model with another, which must be computed alike: its norms stay in float32 then, where they
    hand out bfloat16 on a processor otherwise.

    Returns: (the trained model, the stage's metrics). Raises Stopped after saving when a signal asked to stop,
    Diverged at the first loss that is not finite.
    """
    reset_peak_memory()
    set_seed(context.seed)
    given = TrainingArguments.model_validate(arguments)
    live = training_arguments(context, given, overrides)
    # What is frozen or unused has no gradients to share.
    unfreezes = tuner is not None and tuner.unfreezes
    live.ddp_find_unused_parameters = unfreezes or trainer_of is not None
    resume_from = newest_checkpoint(context)
    every_stage = StageCallback(context)
    callbacks: list[TrainerCallback] = [every_stage, *profiled(context), *trackers(context, given)]
    patience = None if early_stopping_patience is None else EarlyStoppingCallback(early_stopping_patience)
    if patience is not None:
        callbacks.append(patience)
    rounds = not beside_reference and live.device.type == "cpu" and live.bf16 and not live.torch_compile

    def norms() -> AbstractContextManager[None]:
        return bfloat16_norms(model, learns=True) if rounds else nullcontext()

    frozen = None
    if frozen_once and not (unfreezes and live.dataloader_persistent_workers):  # which would not see that a layer wakes
        whole = live.max_steps * live.train_batch_size * live.gradient_accumulation_steps * context.world.size
        asked = whole if live.max_steps > 0 else None
        epochs = math.ceil(live.num_train_epochs if asked is None else asked / len(examples))
        with norms():
            frozen = frozen_features.compute_once(
                context, model, tuner, epochs, collate, loss, asked, live.device, examples, selection
            )
    rows = named_rows.cut(model, tokenizer, live.optim, examples, selection) if only_named_rows else None
    if frozen is not None:
        collate, loss, (examples, selection) = frozen.collate, frozen.loss, frozen.examples
    trainer = (trainer_of or FineryTrainer)(
        context=context,
        loss=loss,
        label_weights=label_names,
        lengths=lengths,
        patience=patience,
        tuner=tuner,
        meter=meter,
        muon=given.optim == "muon",
        halves=given.per_device_train_batch_size == "auto" and context.world.size == 1,
        divides=type(given) is TrainingArguments and trainer_of is None and context.world.size == 1,
        model=model,
        args=live,
        train_dataset=Draws(examples, marked) if trainer_of is None else examples,
        eval_dataset=None if selection is None else Draws(selection, marked),
        data_collator=without_padding(collate, label_names) if trainer_of is None else collate,
        processing_class=tokenizer,
        compute_metrics=None if score is None else _scored_by(score),
        callbacks=callbacks,
    )
    every_stage.trainer = trainer
    trainer.rows = rows
    trainer.frozen = frozen
    trainer.same_steps = same_steps and frozen is None
    with norms(), nullcontext() if frozen is None else frozen.passing():
        trainer.train_stage(resume_from)
    if rows is not None:
        trainer.rejoin(rows)
    if context.world.is_main:
        shutil.rmtree(context.folder / SHARED, ignore_errors=True)  # those who map its files still read them
    return trainer.model, trainer.stage_metrics()


def _scored_by(score: Score) -> Callable[[EvalPrediction], dict[str, float]]:
    def compute(prediction: EvalPrediction) -> dict[str, float]:
        logits = prediction.predictions
        return score(logits[0] if isinstance(logits, tuple) else logits, prediction.label_ids)

    return compute


@cache
def _on_device(weights: tuple[float, ...], device: torch.device) -> Tensor:
    """The weights of the parts of a loss (parts,), copied once: each copy would wait for the device."""
    return torch.tensor(weights, device=device)


class FineryTrainer(StageTrainer, Trainer):  # type: ignore[misc]
    """transformers' Trainer with Finery's order, losses, checkpoints and events."""

    def __init__(
        self,
        *,
        context: Context,
        loss: Loss,
        label_weights: Mapping[str, float],
        lengths: np.ndarray | None,
        patience: EarlyStoppingCallback | None,
        tuner: Tuner | None,
        meter: Meter | None = None,
        muon: bool = False,
        halves: bool = False,
        divides: bool = False,
        **keywords: Any,
    ) -> None:
        self.begin(context, tuner, patience, meter)
        self.loss = loss
        self.label_weights = label_weights
        self.lengths = lengths
        super().__init__(**keywords)
        self.loss_is_scaled_for_ga = True
        self.muon = muon
        self.halving = Halving() if halves else None
        if divides and self.args.device.type == "cpu" and not self.args.torch_compile:
            self.halving = Halving(parts_by_size(self.model, self.args.bf16), recovers=halves)
        self.rows: RowsInUse | None = None
        self.same_steps = False
        self.graphs: StepGraphs | None = None

    compiles_layers = True
    """Whether `torch_compile` compiles layers; else accelerate compiles the model as one."""

    def train(self, *given: Any, **keywords: Any) -> TrainOutput:
        try:
            return super().train(*given, **keywords)
        finally:
            self.graphs = None  # and the memory of the card that they hold
            layer_compilation.as_before(self.model)

    def _prepare_for_training(self, *given: Any, **keywords: Any) -> Any:
        if self.compiles_layers and not self.is_deepspeed_enabled:
            # accelerate keeps this for all that follows in the process
            self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
            if self.args.torch_compile:
                words = {"backend": self.args.torch_compile_backend, "mode": self.args.torch_compile_mode}
                layer_compilation.compile_layers(self.model, **{name: word for name, word in words.items() if word})
        prepared = super()._prepare_for_training(*given, **keywords)
        halves = self.halving is not None and self.halving.recovers
        if self.same_steps and not halves and can_be_recorded(self.model, self.args, self.tuner):
            self.graphs = StepGraphs(self.model, self._tell_graphs, meter=self.meter)
        return prepared

    def create_optimizer(self, model: PreTrainedModel = None) -> torch.optim.Optimizer:
        if self.muon and self.optimizer is None:
            whole, args = self.model if model is None else model, self.args
            decayed = self.get_decay_parameter_names(whole)
            betas = (args.adam_beta1, args.adam_beta2)
            self.optimizer = MuonWithAdamW(
                whole, decayed, args.learning_rate, args.weight_decay, betas, args.adam_epsilon
            )
        optimizer = super().create_optimizer(model)
        if self.rows is not None:
            self.rows.follow(optimizer)
            if self.learns_alone():
                self.row_gradient = self.rows.keep_gradient()
        return optimizer

    def own_state(self) -> State:
        state = super().own_state()
        if self.rows is not None:
            state["decay"] = self.rows.decay
        if self.halving is not None and self.halving.recovers:
            state["parts"] = self.halving.parts
        if (kept := getattr(self.loss, "state", None)) is not None:
            state["loss"] = kept()
        return state

    def restore_own(self, state: State) -> None:
        if self.rows is not None:
            self.rows.decay = state["decay"]
        if self.halving is not None:
            self.halving.parts = state.get("parts", 1)
        if "loss" in state:
            self.loss.restore(state["loss"])

    def rejoin(self, rows: RowsInUse) -> None:
        """Give the model its whole embedding, with the weight decay of the step whose weights are kept."""
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self.restore_own(checkpoints.state_of(Path(self.state.best_model_checkpoint)))
        rows.rejoin()

    def _get_train_sampler(self, train_dataset: object = None) -> EpochSampler:
        at_once = self.args.train_batch_size * self.args.world_size
        step = at_once * self.args.gradient_accumulation_steps
        shared = at_once if self.args.world_size > 1 else 1
        in_order = getattr(self.train_dataset, "in_order", False)
        self.sampler = EpochSampler(len(self.train_dataset), step, self.args.seed, self.lengths, shared, in_order)
        return self.sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> EpochSampler:
        """The rows one after another; the last batches are filled up, where accelerate would count rows twice."""
        at_once = self.args.eval_batch_size * self.args.world_size
        shared = at_once if self.args.world_size > 1 else 1
        return EpochSampler(len(eval_dataset), at_once, self.args.seed, shared=shared, in_order=True)

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Tensor]], device: torch.device) -> Tensor | None:
        """Items of each part of the loss in the micro-batches of one step, over all processes (parts,)."""
        if not batch_samples:
            return None
        items = sum(self._items(batch).to(device) for batch in batch_samples)
        if self.args.world_size > 1:
            items = self.accelerator.gather(items).reshape(-1, len(self.label_weights)).sum(0)
        return items.clamp(min=1)

    def get_batch_samples(self, *arguments: Any, **keywords: Any) -> tuple[list[Any], Tensor | int | None]:
        if self.halving is not None:
            self.halving.begin()
        samples: tuple[list[Any], Tensor | int | None] = super().get_batch_samples(*arguments, **keywords)
        if samples[0] and (before_step := getattr(self.loss, "before_step", None)) is not None:
            with torch.no_grad(), self.compute_loss_context_manager():
                before_step(self.model, samples[0])
        return samples

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        if self.halving is None:
            return super().training_step(model, inputs, num_items_in_batch)
        step = super().training_step
        return self.halving.loss(
            inputs,
            lambda part: step(model, part, num_items_in_batch),
            lambda: self.optimizer.zero_grad(set_to_none=True),
            self._tell_halved,
        )

    def passes(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None) -> Tensor:
        if self.graphs is None or self.throughput.counts:  # which counts what is launched one by one
            return super().passes(model, inputs, num_items_in_batch)
        step = super().passes
        parts = self.current_gradient_accumulation_steps
        return self.graphs.loss(inputs, num_items_in_batch, lambda *given: step(model, *given), parts)

    def _tell_graphs(self, message: str) -> None:
        self.context.events.emit("progress", message=message)

    def _tell_halved(self, parts: int) -> None:
        each = -(-self.args.train_batch_size // parts)
        message = f"memory ran out: from now on {each} examples are computed at once, and an update learns from as many"
        self.context.events.emit("warning", step=self.state.global_step + 1, message=f"{message} as before")

    def _items(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.stack([batch[name].ne(IGNORED).sum() for name in self.label_weights])

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ModelOutput]:
        sums, outputs = self.loss(model, inputs)
        if not model.training:  # an evaluation weighs the mean of each batch by its rows
            num_items_in_batch = None
        shared = 1 if num_items_in_batch is None else self.args.world_size
        items = self._items(inputs).clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        weights = _on_device(tuple(self.label_weights.values()), sums.device)
        # Gradients are averaged over processes, while the count is over all of them.
        value = (weights * sums.reshape(-1) / items).sum() * shared
        if model.training and self.tuner is not None:
            penalty = self.tuner.penalty(model)  # once a step, whatever the number of its parts
            parts = self.current_gradient_accumulation_steps * (1 if self.halving is None else self.halving.computed)
            value = value if penalty is None else value + penalty / parts
        return (value, outputs) if return_outputs else value
