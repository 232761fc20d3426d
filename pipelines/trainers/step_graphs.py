"""Steps of small models as CUDA graphs: what was launched kernel by kernel once is replayed as a whole.

A GPU computes forward and backward pass of a small model faster than a processor can launch their kernels: 2 ms against
20 for 22 million weights and batches of 32 sentences on an H200 (docs/performance-gpu.md). The passes of a shape that
keeps coming back are therefore recorded (developer.nvidia.com/blog/cuda-graphs) and replayed: the same kernels on the
same memory, with new inputs and with the random numbers that they would have drawn. Clipping, the optimizer and all
that is decided by the step stay outside.

A recording keeps what Python decided when it was made, and it must never wait for the device. It is made only where a
stage says that its loss does the same for every batch of a shape, and after a rehearsal in which whatever waits is an
error; a stage whose steps wait goes on as before. Gradients have places of their own that stay from step to step. What
a loss tells a meter is recorded too, and added to it behind each replay.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.core.errors import StageError
from pipelines.models.log_probabilities import asked_everywhere
from pipelines.objectives.losses import Meter, Told

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers import TrainingArguments as LiveArguments

    from pipelines.tuners.tuner import Tuner

Batch = dict[str, Tensor]
Passes = Callable[[Batch, Tensor | None], Tensor]
"""`passes(batch, items of the whole step) -> loss ()`, which adds to the gradients."""
Replay = Callable[[], tuple[Tensor, Told]]
Record = Callable[[Replay], Replay]
"""Records what a function does; what it gives back does it again and returns the loss that the function returned, and
what the meter was told."""

SEEN = 2
"""How often a shape comes before it is recorded: shapes that come once or twice would only cost."""
MOST = 64
"""Shapes that are recorded: each holds some megabytes."""
MOST_OPERATIONS = 4e12
"""Of a batch, 6 for each weight and token (Kaplan et al. 2020, section 2.1, arxiv.org/abs/2001.08361). By
estimate a GPU takes as long above that as the processor that launches it, and the memory has better uses."""


def can_be_recorded(model: PreTrainedModel, args: LiveArguments, tuner: Tuner | None) -> bool:
    """Whether settings leave every step of a shape the same: one GPU, and nothing that looks at gradients, computes
    activations twice, leaves layers out, or lets other weights learn from epoch to epoch."""
    several = args.world_size > 1 or args.n_gpu > 1
    twice = args.torch_compile or args.activation_checkpointing or args.torch_empty_cache_steps is not None
    left_out = any(getattr(model.config, f"{part}layerdrop", 0) for part in ("", "encoder_", "decoder_"))
    packed = getattr(model, "hf_quantizer", None) is not None
    thaws = tuner is not None and tuner.unfreezes
    return args.device.type == "cuda" and not (several or args.fp16 or twice or left_out or packed or thaws)


@dataclass
class Recording:
    """The passes of one shape, and the places that they read."""

    batch: Batch
    items: Tensor | None
    places: list[tuple[nn.Parameter, Tensor]]
    """Each weight that the loss reaches, with the place of its gradient."""
    replay: Replay


class StepGraphs:
    """The recordings of one stage."""

    def __init__(
        self,
        model: nn.Module,
        tell: Callable[[str], None] = lambda message: None,
        record: Record | None = None,
        meter: Meter | None = None,
    ) -> None:
        """`tell` is handed that the first shape was recorded, or why none is; `meter` is the one that the loss tells
        its numbers."""
        self.learning = [each for each in model.parameters() if each.requires_grad]
        self.weights = sum(each.numel() for each in model.parameters())
        words = {id(each.weight): each.weight.numel() for each in model.modules() if isinstance(each, nn.Embedding)}
        self.weights -= sum(words.values())  # which are looked up, and not multiplied
        self.tell = tell
        self.record = record or Recorder()
        self.meter = meter or Meter()
        self.places: dict[nn.Parameter, Tensor] = {}
        """Where gradients lie while recordings add to them."""
        self.seen: dict[object, int] = {}
        self.recordings: dict[object, Recording] = {}
        self.stopped = False

    def loss(self, batch: Batch, items: Tensor | None, passes: Passes, *beside: object) -> Tensor:
        """The loss () of a batch, whose gradients are added to those of the step, by a replay where there is one.

        `beside` is what else `passes` depends on.
        """
        if self.stopped or not self._fits(batch):
            return passes(batch, items)
        with asked_everywhere():  # the first steps of a shape too, so that all round alike
            return self._loss(batch, items, passes, *beside)

    def _loss(self, batch: Batch, items: Tensor | None, passes: Passes, *beside: object) -> Tensor:
        key = (*((name, each.shape, each.dtype) for name, each in batch.items()), items is None, *beside)
        recording = self.recordings.get(key)
        if recording is None:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= SEEN or len(self.recordings) == MOST:
                return passes(batch, items)
            recording = self._recorded(batch, items, passes)
            if recording is None:
                self.stopped = True
                return passes(batch, items)
            if not self.recordings:
                self.tell("steps are recorded as CUDA graphs, one for each padded length, and replayed")
            self.recordings[key] = recording
        gradients_in_place(recording.places)
        for name, place in recording.batch.items():
            place.copy_(batch[name], non_blocking=True)
        if items is not None and recording.items is not None:
            recording.items.copy_(items, non_blocking=True)
        loss, told = recording.replay()
        self.meter.take_in(told)
        return loss.clone()  # the next replay writes where this one did

    def _fits(self, batch: Mapping[str, Any]) -> bool:
        if not all(isinstance(each, Tensor) for each in batch.values()):
            return False
        tokens = max((each.numel() for each in batch.values()), default=0)
        return 6 * self.weights * tokens <= MOST_OPERATIONS

    def _recorded(self, batch: Batch, items: Tensor | None, passes: Passes) -> Recording | None:
        """A recording for batches of this shape; None, with everything as it was, where the passes wait."""
        held = [(weight, weight.grad) for weight in self.learning]
        batch = {name: each.clone() for name, each in batch.items()}
        items = None if items is None else items.clone()
        for weight in self.learning:
            weight.grad = None
        try:
            with rehearsal(), self.meter.held():
                passes(batch, items)
            reached = [weight for weight in self.learning if weight.grad is not None]
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            self.tell(f"steps are not recorded as CUDA graphs, because they wait for the GPU ({first_line(error)})")
            return None
        finally:
            for weight, gradient in held:
                weight.grad = gradient
        places = [(weight, self.places.setdefault(weight, torch.zeros_like(weight))) for weight in reached]
        for weight, place in places:
            weight.grad = place  # whose address is recorded

        def work() -> tuple[Tensor, Told]:
            with self.meter.held() as told:
                return passes(batch, items), told

        try:
            replay = self.record(work)
        except RuntimeError as error:
            raise StageError(
                f"the steps of this model could not be recorded as a CUDA graph: {first_line(error)}; "
                "set arguments.torch_compile: true, which compiles its layers instead"
            ) from error
        for weight, gradient in held:
            weight.grad = gradient
        return Recording(batch, items, places, replay)


@torch.no_grad()
def gradients_in_place(places: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Whatever a step has added up so far lies where a recording adds to it: zeros at the beginning of a step."""
    away = [(weight, place) for weight, place in places if weight.grad is not place]
    empty = [place for weight, place in away if weight.grad is None]
    if empty:
        torch._foreach_zero_(empty)
    for weight, place in away:
        if weight.grad is not None:
            place.copy_(weight.grad)
        weight.grad = place


def first_line(error: Exception) -> str:
    """What an error says, without its advice."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def rehearsal() -> Iterator[None]:
    """Inside the `with` block what waits for the GPU raises RuntimeError, libraries take the way that they take while
    being recorded, and random numbers are drawn that are given back."""
    if not torch.cuda.is_available():
        yield
        return
    before, capturing = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
    states = torch.cuda.get_rng_state()
    torch.cuda.is_current_stream_capturing = lambda: True
    torch.cuda.set_sync_debug_mode("error")
    try:
        with on_another_stream(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
        torch.cuda.is_current_stream_capturing = capturing
        torch.cuda.set_rng_state(states)


@contextmanager
def on_another_stream() -> Iterator[None]:
    """Work that a recording asks to be done before it, where it does not meet the usual stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)


class Recorder:
    """Records CUDA graphs that share their memory: no two of them run at a time."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, work: Replay) -> Replay:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            found = work()
        self.pool = self.pool or graph.pool()

        def replay() -> tuple[Tensor, Told]:
            graph.replay()
            return found

        return replay
