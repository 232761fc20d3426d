"""What a recipe will cost, before anything is loaded: parameters, operations, memory and time of each stage.

For our own family neither torch nor transformers is imported (see `model_size`).

A training step costs three forward passes when all weights learn: one forward, one for the gradients of the inputs
and one for those of the weights (Kaplan et al. 2020, section 2.1, arxiv.org/abs/2001.08361). Frozen weights need no
gradient, which leaves two under LoRA, and one where the head alone learns. Recomputed activations cost one more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.architectures import arithmetic
from pipelines.core.costs import FLOAT, Communication, Example, Memory, StagePlan, rows_on_cpu
from pipelines.core.interfaces import Head, Profile
from pipelines.core.network import measurement_for
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.runs import hardware
from pipelines.runs.distributed import hosts
from pipelines.runs.planning import training_memory
from pipelines.runs.planning.baseline_size import BaselineShape
from pipelines.runs.planning.communication import added_seconds, communication
from pipelines.runs.planning.model_size import OwnShape, TunedWeights, first_line, outputs, shape_of
from pipelines.runs.planning.training_memory import Step
from pipelines.trainers import tuning

DEFAULT_BATCH = 8
DEFAULT_EPOCHS = 3.0
"""TrainingArguments' own defaults."""
PADDED = 2.0
"""How many times longer than the mean a batch of texts in random order is: 1.5 to 3.4 for 32 rows of GLUE's tasks,
TREC, IMDb and AG News."""
STEP_SECONDS = 0.01
"""What a step costs beside its operations: Python, the optimizer, short kernels. Assumed."""
KEPT = (
    "memory is what a step needs; on a CPU a long run was seen to hold three times as much, "
    "since glibc keeps what was freed"
)
"""Of SQuAD and LoRA on MRPC with batches of many lengths; see docs/explanation/planning.md."""
ZERO: Mapping[Profile, int] = {"zero2": 2, "zero3": 3}
"""DeepSpeed's stages of ZeRO, by profile."""
SELECTION_SHARE, SELECTION_MOST = 0.1, 2_000
"""Training rows set aside when a stage evaluates while it trains."""


@dataclass(frozen=True)
class Plan:
    """The costs of a recipe on a device."""

    name: str
    device: str
    processes: int
    profile: Profile
    """How the processes share the model."""
    reason: str
    """Why it is that one, where the recipe leaves it open; else empty."""
    precision: str
    flops_per_second: float
    rate: str
    """Where the rate comes from."""
    stages: tuple[StagePlan, ...]
    growth: Mapping[str, Any] | None = None
    """How the operations of one sequence's forward pass grow with its length: see `arithmetic.growth`."""
    beside: str | None = None
    """What a process holds that `memory` does not count, where that is much."""

    @property
    def seconds(self) -> float | None:
        """The sum over the stages that cost time; None when one of them is unknown."""
        return self.known_seconds if not self.untimed else None

    @property
    def known_seconds(self) -> float:
        """The sum over the stages whose time is known."""
        return sum(stage.seconds for stage in self.stages if stage.seconds is not None)

    @property
    def untimed(self) -> list[str]:
        """Ids of the stages that cost time, and how much is not known."""
        return [stage.id for stage in self.stages if stage.stage != "publish" and stage.seconds is None]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "device": self.device,
            "processes": self.processes,
            "profile": self.profile,
            "reason": self.reason,
            "precision": self.precision,
            "flops_per_second": self.flops_per_second,
            "rate": self.rate,
            "seconds": self.seconds,
            "known_seconds": self.known_seconds,
            "growth": self.growth,
            "beside": self.beside,
            "stages": [stage.to_json() for stage in self.stages],
        }

    def lines(self) -> list[str]:
        """As text."""
        several = f", {self.processes} processes by {self.profile}" if self.processes > 1 else ""
        text = [
            f"{self.name} on {self.device}{several}, precision {self.precision}",
            f"at {amount_text(self.flops_per_second, 'FLOP/s')}: {self.rate}",
            *([f"launch.profile auto is {self.profile}: {self.reason}"] if self.reason else []),
            *([] if self.beside is None else [self.beside]),
        ]
        if self.growth is not None:
            text += ["", *_growth_lines(self.growth)]
        for stage in self.stages:
            text += ["", *_stage_lines(stage)]
        total = f"about {duration_text(self.known_seconds)}" if self.known_seconds else "unknown"
        without = f" without {', '.join(self.untimed)}" if self.known_seconds else ""
        return [*text, "", f"in all {total}" + (f"{without}, see the notes" if self.untimed else "")]


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
    profile, reason = profile_of(recipe, processes, precision)
    planner = Planner(recipe, device, processes, profile, precision, flops_per_second)
    stages = tuple(stage.cost(planner) for stage in recipe.stages)
    growth = planner.growth()
    trains = any(stage.memory is not None for stage in stages)
    beside = KEPT if device.kind == "cpu" and trains else None
    return Plan(
        recipe.name, device.name, processes, profile, reason, precision, flops_per_second, rate, stages, growth, beside
    )


def profile_of(recipe: Recipe, processes: int, precision: str, free: int | None = None) -> tuple[Profile, str]:
    """(how so many processes share the model, why where the recipe says `auto`): the simplest that fits.

    `free` are the bytes that each process may take; default: what it may take here and now.
    """
    asked = recipe.launch.profile
    if asked != "auto":
        return ("ddp" if processes > 1 else "single") if asked == "single" else asked, ""
    if processes == 1:
        return "single", "there is one process"
    whole, largest = _largest(recipe, processes, "ddp", precision)
    if whole is None:
        return "ddp", "how much memory a step needs is not known, see the notes"
    room = round(hardware.ROOM * (hardware.free_memory(processes) if free is None else free))
    on_each = f"'{largest}' needs {bytes_text(whole)} on each process with the whole model"
    needs = f"{on_each}, of {bytes_text(room)} that it may take"
    if whole <= room:
        return "ddp", needs
    if (unfit := unfit_for(recipe, "fsdp2", precision)) is not None:
        return "ddp", f"{needs}, but cannot be divided: {unfit}"
    divided, _ = _largest(recipe, processes, "fsdp2", precision)
    too_much = "" if divided is None or divided <= room else ", which is too much as well"
    return "fsdp2", f"{needs}, and {bytes_text(divided or 0)} with a part of it{too_much}"


def unfit_for(recipe: Recipe, profile: Profile, precision: str) -> str | None:
    """Why the training stages of `recipe` cannot run under a profile; None where they can."""
    if profile == "fsdp2" and precision == "fp16":
        return "launch.mixed_precision is fp16"
    trained: list[Any] = [stage for stage in recipe.stages if hasattr(stage, "tuner")]
    issues = (f"{stage.id}: {text}" for stage in trained for _, text in tuning.profile_issues(stage, recipe, profile))
    return next(issues, None)


def _largest(recipe: Recipe, processes: int, profile: Profile, precision: str) -> tuple[int | None, str]:
    """(bytes of a process at the peak of the training stage that needs most, its id); None where none is known."""
    planner = Planner(recipe, hardware.this_machine(), processes, profile, precision, 1.0)
    costs = [stage.cost(planner) for stage in recipe.stages if stage.trains]
    known = [(each.memory.peak, each.id) for each in costs if each.memory is not None]
    return max(known) if known else (None, "")


def peak_memory(recipe: Recipe, stage: Any, each: int, processes: int, profile: Profile, precision: str) -> int | None:
    """Bytes of a step of a training stage on so many examples at once in one process; None where it is not known.

    Where the step takes several such batches, the gradients of the first ones wait beside the activations of the next.
    """
    total = stage.arguments.global_batch_size or each * processes
    arguments = stage.arguments.model_copy(update={"per_device_train_batch_size": each, "global_batch_size": total})
    planner = Planner(recipe, hardware.this_machine(), processes, profile, precision, 1.0)
    costs: StagePlan = stage.model_copy(update={"arguments": arguments}).cost(planner)
    return None if costs.memory is None else costs.memory.peak


class Planner:
    """Answers what `Stage.cost` asks: the `Planning` of one recipe on one device."""

    def __init__(
        self,
        recipe: Recipe,
        device: hardware.Device,
        processes: int,
        profile: Profile,
        precision: str,
        flops_per_second: float,
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.processes = processes
        self.profile = profile
        self.precision = precision
        self.flops_per_second = flops_per_second
        backend = "nccl" if device.kind == "gpu" else "gloo"
        self.network = measurement_for(hosts().count, processes, backend) if processes > 1 else None
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
        if example.second is not None and plan.all_parameters is not None:
            plan = self._with_second(plan, stage, example, examples)
        if plan.memory is None or not example.copies or plan.all_parameters is None:
            return plan
        # stages with a reference of their own run under no other profile that divides weights
        copied = plan.all_parameters * FLOAT // (self.processes if self.profile == "fsdp2" else 1)
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
            sequences_per_example=example.sequences,
            examples_asked=arguments.get("global_batch_size"),
            steps=steps,
            notes=tuple(notes),
        )
        if arguments.get("per_device_train_batch_size") == "auto":
            note = f"what is said is for {each} examples at once; the run takes as many of them as fit into its memory"
            plan = replace(plan, notes=(*plan.notes, note))
        sequences = None if steps is None else steps * per_step
        if sequences is not None and examples is not None and "max_steps" not in arguments:
            whole = math.ceil(examples * arguments.get("num_train_epochs", DEFAULT_EPOCHS))
            sequences = min(sequences, whole)  # the last step of an epoch may be smaller
        both = self.model is not None and self.model.family == "encoder-decoder"
        usual = example.usual(PADDED if each > 1 and arguments.get("train_sampling_strategy") == "random" else 1.0)
        tokens = usual.length + (usual.target if both else 0)
        if both:
            plan = replace(plan, target_length=example.target)
        if example.mean is not None:
            plan = replace(plan, usual_length=usual.length)
        if sequences is not None:
            plan = replace(plan, tokens=sequences * example.sequences * tokens)
        if self.model is None:
            return plan
        try:
            counts = self.model.counts(head)
            adapter = None
            if stage.tuner.plain() or not stage.tuner.trains_all:
                adapter = self.model.adapter(stage.tuner, head, self._fresh(stage, head))
            forward = self.model.forward(head, usual.length + stage.tuner.positions, usual.target, usual.predicted)
        except Exception as error:  # transformers and PEFT refuse in many ways; the run itself says it in full
            return replace(plan, notes=(*plan.notes, f"the model cannot be built: {first_line(error)}"))
        learnt = counts["total"] if adapter is None else adapter.learnt
        everything = counts["total"] + (0 if adapter is None else adapter.added)
        recomputed = bool(arguments.get("activation_checkpointing"))
        passes = (3 if adapter is None else adapter.passes(counts["total"])) + recomputed
        passes += example.forwards - example.spares(accumulated)
        repeated = sequences or 0
        once = example.frozen_once and example.sequences == 1 and not both  # what `compute_once` keeps
        if once and adapter is not None and not adapter.reaches_body and examples is not None:
            repeated = min(repeated, examples)  # only the head learns, and the body is asked once for each row
        passes -= 0 if not sequences else 1 - repeated / sequences
        flops = round(forward * passes)
        flops += 0 if adapter is None else 3 * adapter.flops_per_token * tokens // (2 if both else 1)
        flops *= example.sequences
        plan = replace(plan, parameters=counts, trainable_parameters=learnt, all_parameters=everything)
        if sequences is not None:
            seconds = sequences * flops / self.flops_per_second + (steps or 0) * STEP_SECONDS
            plan = replace(plan, flops=sequences * flops, seconds=seconds)
        words = self.model.words(head)
        baseline = self.model if isinstance(self.model, BaselineShape) else None
        if words is None and baseline is None:
            unknown = "memory is unknown: no model of our own has these sizes and this head"
            return replace(plan, notes=(*plan.notes, unknown))
        # of a baseline no profile divides the layers
        layered, layers = (0, 0) if words is None else training_memory.in_layers(words, head.kind, outputs(head))
        plan = self._with_communication(
            plan, self._sent(example, each, accumulated, everything, layered, learnt, layers), example.written
        )
        divided = self._parts(stage, words, each * example.sequences, example)
        step = Step(
            batch=math.ceil(each / divided) * example.sequences,
            length=example.length,
            target=example.target,
            predicted=example.predicted,
            mixed=self.precision != "no",
            on_cpu=self.device.kind == "cpu",
            compiled=bool(arguments.get("torch_compile")),
            dropout=example.dropout,
            recomputed=recomputed,
            accumulated=accumulated * divided,
            optimizer=arguments.get("optim", "adamw_torch_fused"),
            processes=self.processes,
            sharded=self.profile == "fsdp2",
            zero=ZERO.get(self.profile, 0),
            padded=stage.stage != "pretrain",
            whole=example.whole or not self._cuts(stage, head, arguments),
            every_query=not isinstance(self.model, OwnShape),
        )
        if words is None:
            assert baseline is not None
            return replace(plan, memory=baseline.memory(head, step, everything, learnt))
        assert words is not None
        memory = _memory(words, head, step, everything, learnt, adapter)
        if adapter is not None and adapter.packed:
            saved = round(adapter.packed * (FLOAT - packed_bytes(stage.tuner.quantization)))
            memory = replace(memory, weights=memory.weights - saved, peak=memory.peak - saved)
        return replace(plan, memory=memory)

    def _with_second(self, plan: StagePlan, stage: Any, example: Example, examples: int | None) -> StagePlan:
        """`plan` with the model that learns beside: its operations and weights, the embeddings counted once."""
        second, beside = example.second, copy.copy(self)
        assert second is not None
        assert self.model is not None
        beside.model, shared = self.model.second(second)
        own = replace(example, predicted=second.predicted, second=None)
        other = beside._training(stage, second.head, own, examples, [])
        if other.all_parameters is None or other.trainable_parameters is None:
            return replace(plan, notes=(*plan.notes, *other.notes, f"the {second.name} is not counted"))
        added = other.all_parameters - shared
        parameters = {**plan.parameters, second.name: added, "total": plan.parameters["total"] + added}
        plan = replace(
            plan,
            parameters=parameters,
            trainable_parameters=(plan.trainable_parameters or 0) + added,
            all_parameters=(plan.all_parameters or 0) + added,
        )
        if plan.flops is not None and other.flops is not None and plan.seconds is not None:
            seconds = plan.seconds + other.flops / self.flops_per_second
            plan = replace(plan, flops=plan.flops + other.flops, seconds=seconds)
        if plan.memory is not None and other.memory is not None:
            plan = replace(plan, memory=_both(plan.memory, other.memory, added / other.all_parameters))
        if plan.communication is not None and other.communication is not None:
            sent = round(other.communication.bytes * added / other.all_parameters)
            sum_of_both = replace(plan.communication, bytes=plan.communication.bytes + sent)
            plan = replace(plan, communication=sum_of_both)
        return plan

    def _cuts(self, stage: Any, head: Head, arguments: Mapping[str, Any]) -> bool:
        """Whether the last layer can run for the places that are read alone, as `models.read_places` finds out: not
        where it is compiled, where virtual tokens stand before a text, or where weights are divided untried."""
        hindered = arguments.get("torch_compile") or stage.tuner.positions or self.profile == "zero3"
        return not hindered and self.model is not None and self.model.cuts_last_layer(head)

    def _parts(self, stage: Stage, words: Mapping[str, Any] | None, rows: int, example: Example) -> int:
        """In how many parts such a batch of sequences is computed, as `trainers.halving` divides it."""
        arguments = _arguments(stage)
        divides = self.device.kind == "cpu" and self.processes == 1 and not arguments.get("torch_compile")
        if words is None or not divides or stage.stage not in ("pretrain", "supervised"):
            return 1
        longest = max(example.length, example.target if words["family"] == "encoder-decoder" else 0)
        widest = max(words["intermediate_size"], words["hidden_size"])
        return math.ceil(rows / rows_on_cpu(longest, widest, words["num_attention_heads"], self.precision != "no"))

    def _sent(
        self, example: Example, each: int, accumulated: int, weights: int, layered: int, learnt: int, layers: int
    ) -> Communication | None:
        """What a process sends in a step of so many batches of `each` examples; `weights` and `learnt` are numbers of
        weights, `layered` bytes of them in float32."""
        share, parts = each * accumulated, example.updates
        batches = math.ceil(share / parts / min(each, max(1, share // parts)))
        passes = math.ceil(share / min(example.together or each, share))
        size = 2 if self.profile in ZERO and self.precision != "no" else FLOAT
        return communication(
            self.profile,
            self.processes,
            weights * size,
            layered * size // FLOAT,
            learnt * size,
            layers,
            example.rounds * parts * batches,
            # the first token of a text reads its prompt
            reads=passes * (example.reads - (example.spares(accumulated) > 0) + (example.written > 0)),
            sampled=passes * max(0, example.written - 1),
            updates=example.rounds * parts,
        )

    def _with_communication(self, plan: StagePlan, sent: Communication | None, written: int) -> StagePlan:
        """`plan` with what the processes send, and with the time of it where this network was measured."""
        plan = replace(plan, communication=sent)
        if sent is not None and sent.exposed and self.profile == "fsdp2":
            note = (
                f"under fsdp2 each of the {written} tokens of a completion gathers every layer anew: "
                f"{bytes_text(sent.exposed)} of what a process sends in a step, which no computation hides"
            )
            plan = replace(plan, notes=(*plan.notes, note))
        if sent is None or plan.seconds is None or not plan.steps or self.network is None:
            return plan
        computing = plan.seconds / plan.steps if self.device.kind == "gpu" else 0.0  # cores compute, or they copy
        network = self.network.bytes_per_second, self.network.latency_seconds
        added = added_seconds(sent, self.profile, self.processes, computing, *network)
        return replace(plan, seconds=plan.seconds + plan.steps * added)

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


def _both(first: Memory, second: Memory, own: float) -> Memory:
    """Two models that learn together; the share `own` of the second one's weights is not the first one's."""
    weights, gradients, optimizer = (round(own * each) for each in (second.weights, second.gradients, second.optimizer))
    shared = second.weights + second.optimizer - weights - optimizer
    return Memory(
        first.weights + weights,
        first.gradients + gradients,
        first.optimizer + optimizer,
        first.activations + second.activations,
        first.peak + second.peak - shared,
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
    wanted = arguments.get("per_device_train_batch_size", share)
    each = share if wanted == "auto" else min(wanted, share)
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
        most = "" if plan.usual_length is None else "at most "
        target = "" if plan.target_length is None else f" and targets of {most}{plan.target_length}"
        several = "" if plan.sequences_per_example == 1 else f" × {plan.sequences_per_example}"
        text.append(
            f"  steps       {plan.steps:,} of {plan.examples_per_step}{several} sequences of "
            f"{most}{plan.sequence_length} tokens{target}"
        )
    if plan.tokens is not None:
        text.append(f"  tokens      {plan.tokens:,}")
    if plan.flops is not None:
        text.append(f"  operations  {amount_text(plan.flops, 'FLOP')}")
    if plan.memory is not None:
        kinds = ("weights", "gradients", "optimizer", "activations")
        parts = ", ".join(f"{kind} {bytes_text(getattr(plan.memory, kind))}" for kind in kinds)
        text.append(f"  memory      {bytes_text(plan.memory.peak)} a process at its peak ({parts})")
    if plan.communication is not None:
        text.append(f"  sends       {bytes_text(plan.communication.bytes)} a process and step")
    if plan.seconds is not None:
        text.append(f"  time        about {duration_text(plan.seconds)}")
    return [*text, *(f"  note        {note}" for note in plan.notes)]


def _growth_lines(growth: Mapping[str, Any]) -> list[str]:
    """The table of `arithmetic.growth`, and where its lines cross."""
    text = [
        "operations of one sequence's forward pass, without its head",
        f"  {'tokens':>7}  {'projections n·d²':>17}  {'scores n²·d':>15}  {'feed-forward n·d²':>17}  {'scores':>6}",
    ]
    for row in growth["lengths"]:
        amounts = [amount_text(row[part], "FLOP") for part in ("projections", "scores", "feed_forward")]
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


def amount_text(number: float, unit: str) -> str:
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def bytes_text(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
