"""What `finery plan` says before a training step, beside what the step then is.

For shapes of every family, in float32 and 16 bits, learning whole and by LoRA: weights (counted one by one), operations
of a forward pass (torch's counter), the most memory that a step of AdamW holds, and its time. Memory is counted from
torch's own record of every allocation and release on a CPU, and is `max_memory_allocated` on a GPU. Time is that of the
processor on one core, so that a busy machine changes little, or of the clock on a GPU. Ratios are predicted over
measured.

    python benchmarks/predictions.py [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.flop_counter import FlopCounterMode

from pipelines.architectures.arithmetic import forward_flops, parameter_count
from pipelines.core.architecture_fields import DEFAULTS, resolve
from pipelines.core.interfaces import Head
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.opening import auto_class, head_settings
from pipelines.objectives.losses import classification_loss, token_loss
from pipelines.runs import hardware
from pipelines.runs.planning import training_memory
from pipelines.runs.planning.model_size import PLAIN_HEADS, OwnShape, outputs
from pipelines.runs.planning.plan import STEP_SECONDS
from pipelines.runs.planning.training_memory import Memory, Step
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.joint_projections import joint_projections
from pipelines.tuners.lora import LoRA

DECISION = Head("sequence_classification", ("no", "maybe", "yes"))
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
}
DESIGNS: list[tuple[str, dict[str, Any], Head | None]] = [
    ("bert, masked LM", {"preset": "bert-tiny"}, None),
    ("bert, a decision", {"preset": "bert-tiny"}, DECISION),
    ("modern encoder", {"preset": "modern-encoder-tiny"}, None),
    ("gpt", {"preset": "gpt-tiny"}, None),
    ("llama", {"preset": "llama-tiny"}, None),
    ("linear decoder", {"preset": "llama-tiny", "attention_pattern": "linear"}, None),
    ("transformer", {"preset": "transformer-tiny"}, None),
    ("t5", {"preset": "t5-tiny"}, None),
    ("additive encoder", {"preset": "bert-tiny", "attention_scoring": "additive"}, None),
]
"""Name, architecture, head; None is the family's language model."""
SHAPES = ((16, 32, 24), (8, 128, 100), (2, 512, 400), (4, 1024, 800))
"""Sequences, tokens of each, tokens of each target. The attention of the last is fused where no weight is dropped."""
SHARE = 0.15
"""Of the tokens, those that a masked LM is asked for."""


@dataclass(frozen=True)
class Case:
    """One kind of training step."""

    name: str
    words: dict[str, Any]
    head: Head
    lora: bool
    mixed: bool
    batch: int
    length: int
    target: int

    @property
    def predicted(self) -> int:
        """Tokens of a sequence that get logits over the vocabulary."""
        counts = {"masked_lm": max(1, round(SHARE * self.length)), "causal_lm": self.length, "seq2seq_lm": self.target}
        return counts.get(self.head.kind, 0)


def cases(quick: bool) -> Iterator[Case]:
    """Every combination, or of each design one."""
    for name, architecture, head in DESIGNS:
        words = {**resolve(architecture), **SIZES}
        words.pop("model_type")
        words.pop("type_vocab_size", None)
        if "num_decoder_layers" in words:
            words["num_decoder_layers"] = 4
        asked = head or PLAIN_HEADS[str(words["family"])]
        for lora in (False,) if quick else (False, True):
            for mixed in (True,) if quick else (False, True):
                for batch, length, target in SHAPES[1:2] if quick else SHAPES:
                    if "additive" in name and length > 128:  # a vector for each pair would need gigabytes
                        continue
                    yield Case(name, words, asked, lora, mixed, batch, length, target)


def build(case: Case, device: str) -> Any:
    """The model, ready to train, with an adapter if asked for."""
    from transformers import AutoConfig

    kind = auto_class(case.head)
    config = AutoConfig.for_model("finery", **case.words, **head_settings(case.head))
    model = kind.from_config(config, attn_implementation="eager" if device == "cpu" else None).to(device).train()
    if case.lora:
        shape = OwnShape(case.words)
        model.finery_new_modules = shape.lacking(case.head, PLAIN_HEADS[shape.family])
        model = LoRA(r=8).apply(model)
    return model


def inputs(case: Case, device: str) -> dict[str, torch.Tensor]:
    """Random tokens, and what is to be said about them."""
    torch.manual_seed(0)

    def tokens(length: int) -> torch.Tensor:
        return torch.randint(5, case.words["vocab_size"], (case.batch, length), device=device)

    found = {"input_ids": tokens(case.length)}
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    if case.head.kind == "seq2seq_lm":
        return found | {"decoder_input_ids": tokens(case.target), "labels": tokens(case.target)}
    if case.predicted == 0:
        return found | {"labels": torch.randint(0, len(case.head.labels), (case.batch,), device=device)}
    labels = tokens(case.length)
    labels[:, case.predicted :] = -100
    return found | {"labels": labels}


def step_of(
    case: Case, model: Any, batch: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """One step as the trainer does it."""
    loss = token_loss if case.predicted else partial(classification_loss, head_alone=True)
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    device = batch["input_ids"].device.type

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=case.mixed):
            value = loss(model, batch)[0] / max(1, case.batch * case.predicted)
        value.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def as_trained(model: Any, device: str) -> Iterator[None]:
    """With the attention and the dropout of a trainer on a CPU; random bits in memory that torch counts."""
    if device != "cpu":
        yield
        return
    plain = torch.from_numpy
    with (
        patch.object(torch, "from_numpy", lambda array: plain(array).clone()),
        few_bits() as bits,
        bits.batch(1),
        attention_by_size(model, training_attention.register()),
        joint_projections(model),
    ):
        yield


def standing(model: Any, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of weights and of the optimizer's state, which are there before a step and after it."""
    weights = {each.data_ptr(): each.numel() * each.element_size() for each in model.parameters()}
    state = [each for entry in optimizer.state.values() for each in entry.values() if torch.is_tensor(each)]
    return sum(weights.values()) + sum(each.numel() * each.element_size() for each in state)


def most_allocated(step: Callable[[], None]) -> int:
    """The most bytes that `step` holds at once on a CPU beside what stood before: every allocation and release, summed."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    found = [
        (each.start_ns(), each.nbytes())
        for each in record.profiler.kineto_results.events()
        if each.name() == "[memory]"
    ]
    held = most = 0
    for _, change in sorted(found, key=lambda each: each[0]):
        held += change
        most = max(most, held)
    return most


def measured_memory(step: Callable[[], None], model: Any, optimizer: torch.optim.Optimizer, device: str) -> int:
    """Bytes at the fullest moment of a step, weights and optimizer state among them."""
    if device == "cpu":
        return standing(model, optimizer) + most_allocated(step)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def measured_flops(case: Case, model: Any, batch: dict[str, torch.Tensor]) -> int:
    """Operations of a forward pass over one batch, as torch counts them."""
    given = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(**given)
    model.train()
    return int(counter.get_total_flops())


def predicted_memory(case: Case, device: str) -> Memory:
    """As the plan works it out."""
    step = Step(
        batch=case.batch,
        length=case.length,
        target=case.target,
        predicted=case.predicted,
        mixed=case.mixed,
        on_cpu=device == "cpu",
    )
    words, labels = case.words, outputs(case.head)
    if not case.lora:
        return training_memory.memory(words, case.head.kind, labels, step)
    shape = OwnShape(words)
    adapter = shape.adapter(LoRA(r=8), case.head, shape.lacking(case.head, PLAIN_HEADS[shape.family]))
    everything = shape.counts(case.head)["total"] + adapter.added
    return training_memory.memory(
        words, case.head.kind, labels, step, parameters=everything, trainable=adapter.learnt, learnt=adapter.by_layer
    )


def predicted_seconds(case: Case, rate: float) -> float:
    """As the plan works it out: three forward passes, two under LoRA, and what a step costs beside."""
    shape = OwnShape({**DEFAULTS, **case.words})
    forward = shape.forward(case.head, case.length, case.target, case.predicted)
    return case.batch * forward * (2 if case.lora else 3) / rate + STEP_SECONDS


def seconds(step: Callable[[], None], rounds: int, device: str) -> float:
    """Median time of a step."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    taken = []
    for _ in range(rounds):
        started = clock()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(clock() - started)
    return statistics.median(taken)


def compare(case: Case, rounds: int, device: str) -> dict[str, float]:
    """Predicted over measured."""
    model = build(case, device)
    batch = inputs(case, device)
    plain = build(Case(**{**case.__dict__, "lora": False}), device)
    labels = outputs(case.head)
    counted = parameter_count(case.words, case.head.kind, labels)["total"]
    flops = forward_flops(case.words, case.head.kind, case.length, labels, None, case.target)["total"] * case.batch
    found = {
        "parameters": counted / sum(weight.numel() for weight in plain.parameters()),
        "operations": flops / measured_flops(case, plain, batch),
    }
    del plain
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], fused=True)
    step = step_of(case, model, batch, optimizer)
    machine = hardware.this_machine()
    rate = machine.flops_per_second("bf16" if case.mixed else "no", 1) / (machine.units if device == "cpu" else 1)
    with as_trained(model, device):
        step()
        step()
        found["memory"] = predicted_memory(case, device).peak / measured_memory(step, model, optimizer, device)
        found["time"] = predicted_seconds(case, rate) / seconds(step, rounds, device)
    return found


def main() -> None:
    """Print the table, and the worst of each column."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one case a design")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    print(f"{'design':18} {'learns':6} {'precision':9} {'batch':>11}  parameters  operations  memory   time")
    ratios: dict[str, list[float]] = {}
    for case in cases(options.quick):
        found = compare(case, options.rounds, device)
        shape = f"{case.batch} x {case.length}" + (f"+{case.target}" if case.head.kind == "seq2seq_lm" else "")
        print(
            f"{case.name:18} {'lora' if case.lora else 'all':6} {'bf16' if case.mixed else 'float32':9} {shape:>11}  "
            f"{found['parameters']:10.4f}  {found['operations']:10.4f}  {found['memory']:6.3f}  {found['time']:5.2f}",
            flush=True,
        )
        for name, ratio in found.items():
            ratios.setdefault(name, []).append(ratio)
    for name, column in ratios.items():
        print(f"{name:10} from {min(column):.3f} to {max(column):.3f}, median {statistics.median(column):.3f}")
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {hardware.this_machine().name}")


if __name__ == "__main__":
    main()
