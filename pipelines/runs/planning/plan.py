"""What a recipe will cost, before anything is loaded: parameters, operations, memory and time of each stage.

For our own family neither torch nor transformers is imported (see `shapes`).

A training step costs three forward passes when all weights learn: one forward, one for the gradients of the inputs
and one for those of the weights (Kaplan et al. 2020, section 2.1, arxiv.org/abs/2001.08361). Frozen weights need no
gradient, which leaves two under LoRA, and one where the head alone learns. Recomputed activations cost one more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.architectures import arithmetic
from pipelines.core.errors import FineryError
from pipelines.core.interfaces import Head
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.runs import hardware
from pipelines.runs.planning import sizes, stage_costs, training_memory
from pipelines.runs.planning.model_size import PLAIN_HEADS, first_line, outputs, shape_of
from pipelines.runs.planning.training_memory import FLOAT, Memory, Step

BYTES_PER_TOKEN = 4
"""Of English text under a vocabulary of some thousand pieces; used where only the size of a text is known."""
DEFAULT_BATCH = 8
DEFAULT_EPOCHS = 3.0
"""TrainingArguments' own defaults."""
STEP_SECONDS = 0.01
"""What a step costs beside its operations: Python, the optimizer, short kernels. Assumed."""
DEFAULT_LENGTH = 128
"""Tokens of an evaluated sequence where no stage says."""
SELECTION_SHARE, SELECTION_MOST = 0.1, 2_000
"""Training rows set aside when a stage evaluates while it trains."""


@dataclass(frozen=True)
class StagePlan:
    """The costs of one stage. None stands for what cannot be known before the run; `notes` say why."""

    id: str
    stage: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Weights by module, `total` among them."""
    trainable_parameters: int | None = None
    all_parameters: int | None = None
    """The model's and the adapter's."""
    sequence_length: int | None = None
    target_length: int | None = None
    """Tokens of a target, for an encoder-decoder."""
    examples_per_step: int | None = None
    steps: int | None = None
    tokens: int | None = None
    """Tokens that pass through the model, padding included: at most this many where sequences vary in length."""
    flops: int | None = None
    memory: Memory | None = None
    """Of each process."""
    seconds: float | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "id": self.id,
            "stage": self.stage,
            "parameters": dict(self.parameters),
            "trainable_parameters": self.trainable_parameters,
            "all_parameters": self.all_parameters,
            "sequence_length": self.sequence_length,
            "target_length": self.target_length,
            "examples_per_step": self.examples_per_step,
            "steps": self.steps,
            "tokens": self.tokens,
            "flops": self.flops,
            "memory": self.memory.to_json() if self.memory else None,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """As text."""
        text = [f"{self.id} ({self.stage})"]
        if self.parameters:
            text.append(f"  parameters  {self.parameters['total']:,}")
            text += [
                f"    {part:<17} {count:>15,}" for part, count in self.parameters.items() if part != "total" and count
            ]
        if self.trainable_parameters is not None and self.all_parameters:
            share = self.trainable_parameters / self.all_parameters
            text.append(f"  trainable   {self.trainable_parameters:,} of {self.all_parameters:,} ({share:.1%})")
        if self.steps is not None:
            target = "" if self.target_length is None else f" and targets of {self.target_length}"
            text.append(
                f"  steps       {self.steps:,} of {self.examples_per_step} sequences of {self.sequence_length} tokens{target}"
            )
        if self.tokens is not None:
            text.append(f"  tokens      {self.tokens:,}")
        if self.flops is not None:
            text.append(f"  operations  {_amount(self.flops, 'FLOP')}")
        if self.memory is not None:
            kinds = ("weights", "gradients", "optimizer", "activations")
            parts = ", ".join(f"{kind} {_bytes(getattr(self.memory, kind))}" for kind in kinds)
            text.append(f"  memory      {_bytes(self.memory.peak)} a process at its peak ({parts})")
        if self.seconds is not None:
            text.append(f"  time        about {_duration(self.seconds)}")
        return [*text, *(f"  note        {note}" for note in self.notes)]


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
        known = [stage.seconds for stage in self.stages if stage.stage != "publish"]
        return None if None in known else sum(second for second in known if second is not None)

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
            text += ["", *stage.lines()]
        total = "unknown, see the notes" if self.seconds is None else f"about {_duration(self.seconds)}"
        return [*text, "", f"in all {total}"]


def plan(recipe: Recipe, flops_per_second: float | None = None, device: hardware.Device | None = None) -> Plan:
    """The costs of every stage of `recipe` on `device` (default: this machine), at a rate if one is given."""
    device = device or hardware.this_machine()
    asked, precision = recipe.launch.num_processes, recipe.launch.mixed_precision
    processes = asked if asked != "auto" else device.units if device.kind == "gpu" else 1
    precision = device.precision if precision == "auto" else precision
    if flops_per_second is None:
        rate = hardware.MEASURED if device.kind == "cpu" else hardware.ASSUMED
        flops_per_second = device.flops_per_second(precision, processes)
    else:
        rate = "as given"
    planner = _Planner(recipe, device, processes, precision, flops_per_second)
    stages = tuple(planner.stage(stage) for stage in recipe.stages)
    return Plan(recipe.name, device.name, processes, precision, flops_per_second, rate, stages, planner.growth())


class _Planner:
    def __init__(
        self, recipe: Recipe, device: hardware.Device, processes: int, precision: str, flops_per_second: float
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.processes = processes
        self.precision = precision
        self.flops_per_second = flops_per_second
        self.shape, self.shape_notes = shape_of(recipe)

    def stage(self, stage: Stage) -> StagePlan:
        known = {
            "pretrain": self._pretrain,
            "supervised": self._supervised,
            "reward": self._preference,
            "dpo": self._preference,
            "kto": self._preference,
            "grpo": self._groups,
            "rloo": self._groups,
            "ppo": self._ppo,
            "feedback": self._feedback,
            "evaluate": self._evaluate,
        }
        if stage.stage in known:
            return known[stage.stage](stage)
        notes = () if stage.stage == "publish" else (f"the costs of a '{stage.stage}' stage are not known",)
        return StagePlan(stage.id, stage.stage, notes=notes)

    def growth(self) -> dict[str, Any] | None:
        """How attention and feed-forward networks grow with the sequence, for the recipe's model."""
        if self.shape is None:
            return None
        try:
            words = self.shape.words(PLAIN_HEADS[self.shape.family])
            return None if words is None else arithmetic.growth(words)
        except Exception:  # the stages say why the model cannot be built
            return None

    def _pretrain(self, stage: Any) -> StagePlan:
        notes = [*self.shape_notes]
        objective = stage.objective
        taken = max(1, objective.raw_length(stage.block_size))
        examples = None
        if "max_steps" not in _arguments(stage):
            texts = [sizes.text_bytes(reference, stage.max_train_samples) for reference in stage.datasets]
            if None in texts or objective.pairs:
                notes.append("how much text there is will be known when the run starts, or set arguments.max_steps")
            else:
                examples = sum(size for size in texts if size is not None) // BYTES_PER_TOKEN // taken
                notes.append(f"about {examples:,} blocks of text, taking a token for {BYTES_PER_TOKEN} bytes")
        if hasattr(objective, "generator_size"):
            notes.append("the generator that is trained beside the model is not counted")
        return self._training(stage, objective.head, _passes(objective, stage.block_size), examples, notes)

    def _supervised(self, stage: Any) -> StagePlan:
        from pipelines.tasks.base import resolve

        notes = [*self.shape_notes]
        task = resolve(stage.task, stage.id)
        head = _task_head(task, notes)
        rows = sizes.task_rows(task, "train")
        if stage.max_train_samples is not None:
            rows = stage.max_train_samples if rows is None else min(rows, stage.max_train_samples)
        arguments = _arguments(stage)
        if rows is None and "max_steps" not in arguments:
            notes.append("how many rows there are will be known when the run starts, or set arguments.max_steps")
        if rows is not None and arguments.get("eval_strategy", "no") != "no":
            rows -= min(max(1, round(rows * SELECTION_SHARE)), SELECTION_MOST)
        notes.append(f"at most: every sequence is counted with max_length {stage.max_length}")
        length, target = stage.max_source_length or stage.max_length, stage.max_target_length or stage.max_length
        passes = _Passes(length, target, target if head.kind in arithmetic.WORD_HEADS else 0)
        if stage.auxiliary_lm is not None:
            notes.append("the scores of the auxiliary language model are not counted")
        return self._training(stage, head, passes, rows, notes)

    def _preference(self, stage: Any) -> StagePlan:
        asked = stage_costs.asked(stage, self.recipe)
        notes = [*self.shape_notes, *asked.notes]
        arguments = _arguments(stage)
        rows = asked.rows
        if rows is None and "max_steps" not in arguments:
            notes.append("how many rows there are will be known when the run starts, or set arguments.max_steps")
        if rows is not None and arguments.get("eval_strategy", "no") != "no":
            rows -= min(max(1, round(rows * SELECTION_SHARE)), SELECTION_MOST)
        notes.append(f"at most: every answer is counted with max_length {stage.max_length}")
        passes = _Passes(
            asked.source, stage.max_length, stage.max_length if asked.head.kind in arithmetic.WORD_HEADS else 0
        )
        found = self._training(stage, asked.head, passes, rows, notes, asked.sequences, asked.forwards)
        if found.memory is None or not asked.copies or found.all_parameters is None:
            return found
        copied = found.all_parameters * FLOAT
        return replace(
            found, memory=replace(found.memory, weights=found.memory.weights + copied, peak=found.memory.peak + copied)
        )

    def _groups(self, stage: Any) -> StagePlan:
        asked = stage_costs.sampled(stage)
        notes = [*self.shape_notes, *asked.notes]
        if asked.rows is None and "max_steps" not in _arguments(stage):
            notes.append("how many prompts there are will be known when the run starts, or set arguments.max_steps")
        passes = _Passes(asked.source, asked.source, asked.target)
        return self._training(stage, asked.head, passes, asked.rows, notes, asked.sequences, asked.forwards)

    def _ppo(self, stage: Any) -> StagePlan:
        asked = stage_costs.sampled_plan_ppo(stage, self.recipe)
        notes = [*self.shape_notes, *asked.notes]
        if asked.rows is None and "max_steps" not in _arguments(stage):
            notes.append("how many prompts there are will be known when the run starts, or set arguments.max_steps")
        passes = _Passes(asked.source, asked.target, asked.target)
        found = self._training(stage, asked.head, passes, asked.rows, notes, asked.sequences, asked.forwards)
        if found.memory is None or not asked.copies or found.all_parameters is None:
            return found
        copied = found.all_parameters * FLOAT
        return replace(
            found, memory=replace(found.memory, weights=found.memory.weights + copied, peak=found.memory.peak + copied)
        )

    def _training(
        self,
        stage: Any,
        head: Head,
        passes: _Passes,
        examples: int | None,
        notes: list[str],
        sequences_each: int = 1,
        forwards: int = 0,
    ) -> StagePlan:
        """A training stage of `examples` an epoch, each of `sequences_each` that are learnt from.

        `forwards` are the passes without gradients that each of these costs beside, such as a reference's.
        """
        arguments = _arguments(stage)
        each, accumulated = _batch(arguments, self.processes)
        per_step = each * accumulated * self.processes
        steps = _steps(arguments, examples, each * self.processes, accumulated)
        found = StagePlan(
            stage.id,
            stage.stage,
            sequence_length=passes.length,
            examples_per_step=per_step,
            steps=steps,
            notes=tuple(notes),
        )
        sequences = None if steps is None else steps * per_step
        if sequences is not None and examples is not None and "max_steps" not in arguments:
            whole = math.ceil(examples * arguments.get("num_train_epochs", DEFAULT_EPOCHS))
            sequences = min(sequences, whole)  # the last step of an epoch may be smaller
        both = self.shape is not None and self.shape.family == "encoder-decoder"
        tokens = passes.length + (passes.target if both else 0)
        if both:
            found = replace(found, target_length=passes.target)
        if sequences is not None:
            found = replace(found, tokens=sequences * sequences_each * tokens)
        if self.shape is None:
            return found
        try:
            counts = self.shape.counts(head)
            adapter = None
            if stage.tuner.plain() or stage.tuner.name != "full":
                adapter = self.shape.adapter(stage.tuner, head, self._fresh(stage, head))
            forward = self.shape.forward(head, passes.length + stage.tuner.positions, passes.target, passes.predicted)
        except Exception as error:  # transformers and PEFT refuse in many ways; the run itself says it in full
            return replace(found, notes=(*found.notes, f"the model cannot be built: {first_line(error)}"))
        learnt = counts["total"] if adapter is None else adapter.learnt
        everything = counts["total"] + (0 if adapter is None else adapter.added)
        recomputed = bool(arguments.get("activation_checkpointing"))
        flops = round(forward * ((3 if adapter is None else adapter.passes(counts["total"])) + recomputed + forwards))
        flops += 0 if adapter is None else 3 * adapter.flops_per_token * tokens // (2 if both else 1)
        flops *= sequences_each
        found = replace(found, parameters=counts, trainable_parameters=learnt, all_parameters=everything)
        if sequences is not None:
            seconds = sequences * flops / self.flops_per_second + (steps or 0) * STEP_SECONDS
            found = replace(found, flops=sequences * flops, seconds=seconds)
        words = self.shape.words(head)
        if words is None:
            unknown = "memory is unknown: no model of our own has these sizes and this head"
            return replace(found, notes=(*found.notes, unknown))
        step = Step(
            batch=each * sequences_each,
            length=passes.length,
            target=passes.target,
            predicted=passes.predicted,
            mixed=self.precision != "no",
            on_cpu=self.device.kind == "cpu",
            recomputed=recomputed,
            accumulated=accumulated,
            optimizer=arguments.get("optim", "adamw_torch_fused"),
            processes=self.processes,
            padded=stage.stage != "pretrain",
        )
        memory = training_memory.memory(
            words,
            head.kind,
            outputs(head),
            step,
            parameters=everything,
            trainable=learnt,
            learnt=None if adapter is None else adapter.by_layer,
        )
        if adapter is not None and adapter.packed:
            saved = round(adapter.packed * (FLOAT - packed_bytes(stage.tuner.quantization)))
            memory = replace(memory, weights=memory.weights - saved, peak=memory.peak - saved)
        return replace(found, memory=memory)

    def _feedback(self, stage: Any) -> StagePlan:
        return stage_costs.feedback(stage, self.shape, [*self.shape_notes], self.flops_per_second)

    def _evaluate(self, stage: Any) -> StagePlan:
        notes = [*self.shape_notes]
        if stage.prompts is not None:
            return StagePlan(
                stage.id,
                stage.stage,
                notes=(
                    *notes,
                    "what sampling costs depends on how many prompts there are and how long completions get",
                ),
            )
        if stage.few_shot is not None:
            return StagePlan(
                stage.id,
                stage.stage,
                notes=(*notes, "what zero- and few-shot questions cost depends on the length of their prompts"),
            )
        flops = tokens = 0
        try:
            choices, _ = stage.choices(self.recipe)
            for choice in choices:
                found = self._benchmark(stage, choice, notes)
                if found is None:
                    return StagePlan(stage.id, stage.stage, notes=tuple(dict.fromkeys(notes)))
                tokens, flops = tokens + found[0], flops + found[1]
            if stage.datasets:
                found = self._held_out(stage, notes)
                if found is None:
                    return StagePlan(stage.id, stage.stage, notes=tuple(dict.fromkeys(notes)))
                tokens, flops = tokens + found[0], flops + found[1]
        except FineryError:
            raise
        except Exception as error:  # as in `_training`
            return StagePlan(stage.id, stage.stage, notes=(*notes, f"the model cannot be built: {first_line(error)}"))
        return StagePlan(
            stage.id,
            stage.stage,
            tokens=tokens,
            flops=flops,
            seconds=flops / self.flops_per_second,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _benchmark(self, stage: Any, choice: Any, notes: list[str]) -> tuple[int, int] | None:
        """(tokens, operations) of scoring a benchmark; None, and a note, when its rows cannot be counted."""
        task: Any = choice.open_task()
        head = _task_head(task, notes)
        trained = next((each for each in self.recipe.stages if each.id == choice.model), None)
        length = stage.max_length or getattr(trained, "max_length", None) or DEFAULT_LENGTH
        target = getattr(trained, "max_target_length", None) or length
        notes.append("at most: every sequence is counted with max_length")
        tokens = flops = 0
        for split in task.evaluation_splits.values():
            rows = sizes.task_rows(task, split)
            if stage.max_eval_samples is not None:
                rows = stage.max_eval_samples if rows is None else min(rows, stage.max_eval_samples)
            if rows is None:
                notes.append(f"how many rows {choice.name} has will be known when the run starts")
                return None
            if self.shape is None:
                return None
            rows *= 2 if head.kind == "reward" else 1  # both answers of a pair
            written = head.kind in arithmetic.WORD_HEADS
            each = self.shape.forward(head, length, target, target if written else 0)
            if written:  # every beam, and every pass of mask-predict over each length, is a target of its own
                each += (self._targets(stage.generation, head) - 1) * (each - self.shape.forward(head, length, 1, 1))
            flops += rows * each
            tokens += rows * (length + (target if written else 0))
        return tokens, flops

    def _targets(self, generation: Any, head: Head) -> int:
        """How many targets the decoder reads for each text that it writes."""
        words = (self.shape.words(head) if self.shape is not None else None) or {}
        written: int = (
            generation.iterations * generation.length_beam
            if words.get("bidirectional_decoder")
            else generation.num_beams
        )
        return written

    def _held_out(self, stage: Any, notes: list[str]) -> tuple[int, int] | None:
        """(tokens, operations) of measuring a pretraining objective on text."""
        trained = stage.text_model(self.recipe)
        texts = [sizes.text_bytes(reference, stage.max_eval_samples) for reference in stage.datasets]
        if self.shape is None or trained is None:
            return None
        if None in texts:
            notes.append("how much text there is will be known when the run starts")
            return None
        passes = _passes(trained.objective, trained.block_size)
        step = stage.stride or max(1, trained.objective.raw_length(trained.block_size))
        blocks = math.ceil(sum(size for size in texts if size is not None) / BYTES_PER_TOKEN / step)
        notes.append(f"about {blocks:,} blocks of text, taking a token for {BYTES_PER_TOKEN} bytes")
        each = self.shape.forward(trained.objective.head, passes.length, passes.target, passes.predicted)
        return blocks * passes.length, blocks * each

    def _fresh(self, stage: Stage, head: Head) -> list[str]:
        """Modules that the model this stage reads has no weights for: they learn whole, whatever the tuner."""
        assert self.shape is not None
        if head.kind in arithmetic.WORD_HEADS:
            return []
        source = self.recipe.model_of(stage)
        before: Any = None if source == START else self.recipe.stage(source)
        if before is not None and before.tuner.adapts:  # an adapter's model is opened whole, its head included
            return []
        return self.shape.lacking(head, self._head_of(before))

    def _head_of(self, stage: Any) -> Head:
        """The head that a stage leaves behind; a model from scratch is compared with its family's language model."""
        assert self.shape is not None
        if stage is not None and stage.scores:
            return Head("reward")
        if (
            stage is None
            or hasattr(stage, "preference_rows")
            or not (hasattr(stage, "objective") or hasattr(stage, "task"))
        ):
            return PLAIN_HEADS[self.shape.family]
        if hasattr(stage, "objective"):
            found: Head = stage.objective.head
            return found
        from pipelines.tasks.base import resolve

        return _task_head(resolve(stage.task, stage.id), [])


@dataclass(frozen=True)
class _Passes:
    """What passes through the model for one example."""

    length: int
    target: int
    """Tokens of the decoder's part of an encoder-decoder."""
    predicted: int
    """Tokens that get a score for each word of the vocabulary."""


def _passes(objective: Any, block_size: int) -> _Passes:
    """The lengths of an example of an objective."""
    kind = objective.head.kind
    if kind == "seq2seq_lm":
        known = hasattr(objective, "lengths")
        length, target = objective.lengths(objective.raw_length(block_size)) if known else (block_size, block_size)
        return _Passes(length, target, target)
    if kind in ("masked_lm", "pretraining"):
        return _Passes(block_size, block_size, max(1, round(block_size * getattr(objective, "probability", 1.0))))
    return _Passes(block_size, block_size, block_size if kind in arithmetic.WORD_HEADS else 0)


PARTS = {
    "qa": "a context longer than max_length takes several windows, which are not counted",
    "multiple_choice": "a question is counted as one sequence, but takes as many as it has options",
}
"""Where a row is more than one sequence."""


def _task_head(task: Any, notes: list[str]) -> Head:
    """The head without reading data: two classes where their names are still in it."""
    if note := PARTS.get(task.kind):
        notes.append(note)
    if task.labels or task.kind not in ("classification", "token_classification"):
        head: Head = task.head
        return head
    notes.append("how many classes there are will be known when the run starts; two are counted")
    return Head(
        "token_classification" if task.kind == "token_classification" else "sequence_classification", ("0", "1")
    )


def packed_bytes(quantization: Mapping[str, Any]) -> float:
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
        f"  attention costs more than feed-forward from {attention:,} tokens on, its scores alone more than all n·d² terms from {scores:,} on",
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
