"""What a recipe will cost, before anything is loaded: parameters, operations, memory and time of each stage.

For our own family neither torch nor transformers is imported (see `model_size`).

A training step costs three forward passes when all weights learn: one forward, one for the gradients of the inputs
and one for those of the weights (Kaplan et al. 2020, section 2.1, arxiv.org/abs/2001.08361). Frozen weights need no
gradient, which leaves two under LoRA, and one where the head alone learns. Recomputed activations cost one more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.architectures import arithmetic
from pipelines.core.costs import Example, Memory, StagePlan
from pipelines.core.interfaces import Head
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.runs import hardware
from pipelines.runs.planning import training_memory
from pipelines.runs.planning.model_size import TunedWeights, first_line, outputs, shape_of
from pipelines.runs.planning.training_memory import FLOAT, Step

DEFAULT_BATCH = 8
DEFAULT_EPOCHS = 3.0
"""TrainingArguments' own defaults."""
STEP_SECONDS = 0.01
"""What a step costs beside its operations: Python, the optimizer, short kernels. Assumed."""
SELECTION_SHARE, SELECTION_MOST = 0.1, 2_000
"""Training rows set aside when a stage evaluates while it trains."""


@dataclass(frozen=True)
class Plan:
    """The costs of a recipe on a device."""

    name: str
    device: str
    processes: int
    precision: str
    flops_per_second: float
    rate: str
    """Where the rate comes from."""
    stages: tuple[StagePlan, ...]
    growth: Mapping[str, Any] | None = None
    """How the operations of one sequence's forward pass grow with its length: see `arithmetic.growth`."""

    @property
    def seconds(self) -> float | None:
        """The sum over the stages that cost time; None when one of them is unknown."""
        each_stage = [stage.seconds for stage in self.stages if stage.stage != "publish"]
        return None if None in each_stage else sum(second for second in each_stage if second is not None)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "device": self.device,
            "processes": self.processes,
            "precision": self.precision,
            "flops_per_second": self.flops_per_second,
            "rate": self.rate,
            "seconds": self.seconds,
            "growth": self.growth,
            "stages": [stage.to_json() for stage in self.stages],
        }

    def lines(self) -> list[str]:
        """As text."""
        several = f", {self.processes} processes" if self.processes > 1 else ""
        text = [
            f"{self.name} on {self.device}{several}, precision {self.precision}",
            f"at {_amount(self.flops_per_second, 'FLOP/s')}: {self.rate}",
        ]
        if self.growth is not None:
            text += ["", *_growth_lines(self.growth)]
        for stage in self.stages:
            text += ["", *_stage_lines(stage)]
        total = "unknown, see the notes" if self.seconds is None else f"about {_duration(self.seconds)}"
        return [*text, "", f"in all {total}"]


def plan(recipe: Recipe, flops_per_second: float | None = None, device: hardware.Device | None = None) -> Plan:
    """The costs of every stage of `recipe` on `device` (default: this machine), at a rate if one is given."""
    device = device or hardware.this_machine()
    num_processes, precision = recipe.launch.num_processes, recipe.launch.mixed_precision
    processes = num_processes if num_processes != "auto" else device.units if device.kind == "gpu" else 1
    precision = device.precision if precision == "auto" else precision
    if flops_per_second is None:
        rate = hardware.MEASURED if device.kind == "cpu" else hardware.ASSUMED
        flops_per_second = device.flops_per_second(precision, processes)
    else:
        rate = "as given"
    planner = _Planner(recipe, device, processes, precision, flops_per_second)
    stages = tuple(stage.cost(planner) for stage in recipe.stages)
    return Plan(recipe.name, device.name, processes, precision, flops_per_second, rate, stages, planner.growth())


class _Planner:
    """Answers what `Stage.cost` asks: the `Planning` of one recipe on one device."""

    def __init__(
        self, recipe: Recipe, device: hardware.Device, processes: int, precision: str, flops_per_second: float
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.processes = processes
        self.precision = precision
        self.flops_per_second = flops_per_second
        self.model, notes = shape_of(recipe)
        self.notes = tuple(notes)

    def growth(self) -> dict[str, Any] | None:
        """How attention and feed-forward networks grow with the sequence, for the recipe's model."""
        if self.model is None:
            return None
        try:
            words = self.model.words(self.model.plain_head)
            return None if words is None else arithmetic.growth(words)
        except Exception:  # the stages say why the model cannot be built
            return None

    def steps_given(self, stage: Stage) -> bool:
        return "max_steps" in _arguments(stage)

    def rows_to_learn(self, stage: Stage, rows: int | None, notes: list[str], what: str = "rows") -> int | None:
        arguments = _arguments(stage)
        if rows is None:
            if "max_steps" not in arguments:
                notes.append(f"how many {what} there are will be known when the run starts, or set arguments.max_steps")
            return None
        if arguments.get("eval_strategy", "no") == "no":
            return rows
        return rows - min(max(1, round(rows * SELECTION_SHARE)), SELECTION_MOST)

    def not_built(self, stage: Stage, notes: Sequence[str], error: Exception) -> StagePlan:
        sentence = f"the model cannot be built: {first_line(error)}"
        return StagePlan(stage.id, stage.stage, notes=(*notes, sentence))

    def training(self, stage: Stage, head: Head, example: Example, examples: int | None, notes: list[str]) -> StagePlan:
        plan = self._training(stage, head, example, examples, notes)
        if plan.memory is None or not example.copies or plan.all_parameters is None:
            return plan
        copied = plan.all_parameters * FLOAT
        memory = replace(plan.memory, weights=plan.memory.weights + copied, peak=plan.memory.peak + copied)
        return replace(plan, memory=memory)

    def _training(self, stage: Any, head: Head, example: Example, examples: int | None, notes: list[str]) -> StagePlan:
        arguments = _arguments(stage)
        each, accumulated = _batch(arguments, self.processes)
        per_step = each * accumulated * self.processes
        steps = _steps(arguments, examples, each * self.processes, accumulated)
        plan = StagePlan(
            stage.id,
            stage.stage,
            sequence_length=example.length,
            examples_per_step=per_step,
            steps=steps,
            notes=tuple(notes),
        )
        sequences = None if steps is None else steps * per_step
        if sequences is not None and examples is not None and "max_steps" not in arguments:
            whole = math.ceil(examples * arguments.get("num_train_epochs", DEFAULT_EPOCHS))
            sequences = min(sequences, whole)  # the last step of an epoch may be smaller
        both = self.model is not None and self.model.family == "encoder-decoder"
        tokens = example.length + (example.target if both else 0)
        if both:
            plan = replace(plan, target_length=example.target)
        if sequences is not None:
            plan = replace(plan, tokens=sequences * example.sequences * tokens)
        if self.model is None:
            return plan
        try:
            counts = self.model.counts(head)
            adapter = None
            if stage.tuner.plain() or stage.tuner.name != "full":
                adapter = self.model.adapter(stage.tuner, head, self._fresh(stage, head))
            forward = self.model.forward(
                head, example.length + stage.tuner.positions, example.target, example.predicted
            )
        except Exception as error:  # transformers and PEFT refuse in many ways; the run itself says it in full
            return replace(plan, notes=(*plan.notes, f"the model cannot be built: {first_line(error)}"))
        learnt = counts["total"] if adapter is None else adapter.learnt
        everything = counts["total"] + (0 if adapter is None else adapter.added)
        recomputed = bool(arguments.get("activation_checkpointing"))
        flops = round(
            forward * ((3 if adapter is None else adapter.passes(counts["total"])) + recomputed + example.forwards)
        )
        flops += 0 if adapter is None else 3 * adapter.flops_per_token * tokens // (2 if both else 1)
        flops *= example.sequences
        plan = replace(plan, parameters=counts, trainable_parameters=learnt, all_parameters=everything)
        if sequences is not None:
            seconds = sequences * flops / self.flops_per_second + (steps or 0) * STEP_SECONDS
            plan = replace(plan, flops=sequences * flops, seconds=seconds)
        words = self.model.words(head)
        if words is None:
            unknown = "memory is unknown: no model of our own has these sizes and this head"
            return replace(plan, notes=(*plan.notes, unknown))
        step = Step(
            batch=each * example.sequences,
            length=example.length,
            target=example.target,
            predicted=example.predicted,
            mixed=self.precision != "no",
            on_cpu=self.device.kind == "cpu",
            recomputed=recomputed,
            accumulated=accumulated,
            optimizer=arguments.get("optim", "adamw_torch_fused"),
            processes=self.processes,
            padded=stage.stage != "pretrain",
        )
        memory = _memory(words, head, step, everything, learnt, adapter)
        if adapter is not None and adapter.packed:
            saved = round(adapter.packed * (FLOAT - packed_bytes(stage.tuner.quantization)))
            memory = replace(memory, weights=memory.weights - saved, peak=memory.peak - saved)
        return replace(plan, memory=memory)

    def _fresh(self, stage: Stage, head: Head) -> list[str]:
        """Modules that the model this stage reads has no weights for: they learn whole, whatever the tuner."""
        assert self.model is not None
        if head.kind in arithmetic.WORD_HEADS:
            return []
        source = self.recipe.model_of(stage)
        before: Any = None if source == START else self.recipe.stage(source)
        if before is not None and before.tuner.adapts:  # an adapter's model is opened whole, its head included
            return []
        return self.model.lacking(head, self._head_of(before))

    def _head_of(self, stage: Stage | None) -> Head:
        """The head that a stage leaves behind; a model from scratch is compared with its family's language model."""
        assert self.model is not None
        return (None if stage is None else stage.head_left()) or self.model.plain_head


def _memory(
    words: Mapping[str, Any], head: Head, step: Step, parameters: int, trainable: int, tuned: TunedWeights | None
) -> Memory:
    by_layer = None if tuned is None else tuned.by_layer
    return training_memory.memory(
        words, head.kind, outputs(head), step, parameters=parameters, trainable=trainable, learnt=by_layer
    )


def packed_bytes(quantization: Mapping[str, object]) -> float:
    """Of a weight of 4 bits: itself, and the scale of its block of 64, of 32 bits or, quantized in blocks of 256,
    about 8.

    Dettmers et al. 2023, section 3, arxiv.org/abs/2305.14314.
    """
    scale = (8 / 64 + 32 / (64 * 256)) if quantization["bnb_4bit_use_double_quant"] else 32 / 64
    return (4 + scale) / 8


def _arguments(stage: Any) -> dict[str, Any]:
    words: dict[str, Any] = stage.arguments.given()
    if words.get("max_steps", -1) < 1:
        words.pop("max_steps", None)
    return words


def _batch(arguments: Mapping[str, Any], processes: int) -> tuple[int, int]:
    """(examples a process sees at once, accumulation steps), as the trainer works them out."""
    total: int | None = arguments.get("global_batch_size")
    if total is None:
        each: int = arguments.get("per_device_train_batch_size", DEFAULT_BATCH)
        return each, arguments.get("gradient_accumulation_steps", 1)
    share = max(1, total // processes)
    each = min(arguments.get("per_device_train_batch_size", share), share)
    return each, max(1, share // each)


def _steps(arguments: Mapping[str, Any], examples: int | None, at_once: int, accumulated: int) -> int | None:
    """Optimizer steps, as transformers' Trainer counts them."""
    if "max_steps" in arguments:
        return int(arguments["max_steps"])
    if examples is None:
        return None
    batches = examples // at_once if arguments.get("dataloader_drop_last") else math.ceil(examples / at_once)
    epochs: float = arguments.get("num_train_epochs", DEFAULT_EPOCHS)
    return math.ceil(max(1, math.ceil(batches / accumulated)) * epochs)


def _stage_lines(plan: StagePlan) -> list[str]:
    """A stage's plan as text."""
    text = [f"{plan.id} ({plan.stage})"]
    if plan.parameters:
        text.append(f"  parameters  {plan.parameters['total']:,}")
        text += [f"    {part:<17} {count:>15,}" for part, count in plan.parameters.items() if part != "total" and count]
    if plan.trainable_parameters is not None and plan.all_parameters:
        share = plan.trainable_parameters / plan.all_parameters
        text.append(f"  trainable   {plan.trainable_parameters:,} of {plan.all_parameters:,} ({share:.1%})")
    if plan.steps is not None:
        target = "" if plan.target_length is None else f" and targets of {plan.target_length}"
        text.append(
            f"  steps       {plan.steps:,} of {plan.examples_per_step} sequences of {plan.sequence_length} "
            f"tokens{target}"
        )
    if plan.tokens is not None:
        text.append(f"  tokens      {plan.tokens:,}")
    if plan.flops is not None:
        text.append(f"  operations  {_amount(plan.flops, 'FLOP')}")
    if plan.memory is not None:
        kinds = ("weights", "gradients", "optimizer", "activations")
        parts = ", ".join(f"{kind} {_bytes(getattr(plan.memory, kind))}" for kind in kinds)
        text.append(f"  memory      {_bytes(plan.memory.peak)} a process at its peak ({parts})")
    if plan.seconds is not None:
        text.append(f"  time        about {_duration(plan.seconds)}")
    return [*text, *(f"  note        {note}" for note in plan.notes)]


def _growth_lines(growth: Mapping[str, Any]) -> list[str]:
    """The table of `arithmetic.growth`, and where its lines cross."""
    text = [
        "operations of one sequence's forward pass, without its head",
        f"  {'tokens':>7}  {'projections n·d²':>17}  {'scores n²·d':>15}  {'feed-forward n·d²':>17}  {'scores':>6}",
    ]
    for row in growth["lengths"]:
        amounts = [_amount(row[part], "FLOP") for part in ("projections", "scores", "feed_forward")]
        share = row["scores"] / (row["projections"] + row["scores"] + row["feed_forward"])
        text.append(f"  {row['length']:>7,}  {amounts[0]:>17}  {amounts[1]:>15}  {amounts[2]:>17}  {share:>6.1%}")
    if growth["crossover"] is None:
        return [*text, "  scores never cost more than projections and feed-forward networks together"]
    attention, scores = growth["attention_crossover"], growth["crossover"]
    return [
        *text,
        f"  attention costs more than feed-forward from {attention:,} tokens on, its scores alone more than "
        f"all n·d² terms from {scores:,} on",
    ]


def _amount(number: float, unit: str) -> str:
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
