"""What the rooms of `pipelines` agree on: heads, rows, tasks, tuners and the context of a stage, typed.

`run` builds a Context for each stage and puts into it what the stage needs from elsewhere. Nothing here imports
torch: models, tokenizers and tensors are typed as Any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pipelines.core.events import EventLog
    from pipelines.core.recipe import Recipe


HeadKind = Literal[
    "masked_lm",
    "pretraining",
    "causal_lm",
    "seq2seq_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "reward",
    "causal_lm_with_value",
]
"""`pretraining` is masked LM and a decision about the pair (BERT's); `reward` gives one number a sequence;
`causal_lm_with_value` one more number a token beside the next word."""


@dataclass(frozen=True)
class Head:
    """What a stage needs on top of the body of a model."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    """Class names in the order of their ids; empty for regression (one output) and for language modelling."""


@dataclass(frozen=True)
class Rows:
    """Labelled texts of one split, in the order of the file. All sequences have the same length."""

    texts: Sequence[str]
    pairs: Sequence[str] | None
    """Second text of each pair; None for tasks on single texts."""
    labels: Sequence[int] | Sequence[float] | Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[str]] | None
    """Class ids, numbers, the texts that the texts are to become, ids of each word, or the right answers of each
    question; None where the split has no public labels."""
    index: Sequence[int]
    """Row number in the file."""

    def __len__(self) -> int:
        return len(self.texts)


class Task(Protocol):
    """A labelled task: `pipelines.tasks.base.Task` is the class behind it."""

    @property
    def name(self) -> str:
        """`glue/mrpc`, or the id of the stage that describes an inline task."""

    @property
    def head(self) -> Head:
        """The head that the task is learnt with. May read the training rows to find the class names."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names in the METRICS registry, the first is the one to select models by."""

    @property
    def evaluation_splits(self) -> Mapping[str, str]:
        """Suffix of the metric names -> split: `{"": "validation"}`, MNLI has `{"": "validation_matched", "_mm":
        …}`."""

    def rows(self, split: str, limit: int | None = None) -> Rows:
        """The rows of `train` or of an evaluation split, the first `limit` of them. Raises DataError."""

    def content(self) -> dict[str, str]:
        """Content hash of each split's data, by split."""


Score = Callable[[Any, Any], dict[str, float]]
"""`score(logits (examples, outputs), labels (examples,)) -> {"accuracy": …}`: numpy arrays in, plain floats out."""


class Tuner(Protocol):
    """WHICH weights learn: a block with a verb. `pipelines.tuners.tuner.TunerBlock` says what the verbs promise."""

    name: str
    adapts: bool
    """Whether `apply` leaves the base alone and returns an adapter around it."""
    merges: bool
    """Whether what was learnt can be folded into the weights of the base."""
    merges_into_code: bool
    """Whether it can become part of the model's own code instead."""

    @property
    def positions(self) -> int:
        """How many of the model's positions the tuner takes for itself."""

    @property
    def keeps_base(self) -> bool:
        """Whether the tuned model with its adapter disabled is the model that `apply` was given."""

    @property
    def unfreezes(self) -> bool:
        """Whether `unfreeze` changes what learns while training."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Ids of the earlier stages whose adapters the tuner builds on."""

    def given(self, folders: Mapping[str, Path]) -> Tuner:
        """The tuner, told in which folder the model of each of its `stages` lies."""

    def misfit(self, words: Mapping[str, Any], head: str) -> str | None:
        """Why this tuner cannot serve a model with these config words and this kind of head."""

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """The words of the `BitsAndBytesConfig` that the base is opened with."""

    def unavailable_reason(self) -> str | None:
        """What this machine has not got that the tuner needs."""

    def apply(self, model: Any) -> Any:
        """The model with its trainable weights chosen; a PEFT model for adapters."""

    def rates(self, model: Any) -> Mapping[str, float]:
        """What the learning rate is multiplied by, by parameter name."""

    def unfreeze(self, model: Any, epoch: int) -> None:
        """Choose the trainable weights of the epoch."""

    def never_unfrozen(self, model: Any, epochs: int) -> str | None:
        """What never learns in that many epochs although it could."""

    def factor(self, step: int, steps: int) -> float | None:
        """What the learning rates are multiplied by at `step` of `steps`; None leaves it to `arguments`."""

    def penalty(self, model: Any) -> Any:
        """What the tuned model adds to the loss of each step; None for nothing."""

    def save(self, model: Any, folder: Path) -> None:
        """Write what was learnt."""


@dataclass(frozen=True)
class World:
    """The processes that run a stage together."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and events."""
        return self.rank == 0


@dataclass
class StopSignal:
    """Whether SIGINT or SIGTERM asked this process to stop.

    A stage that can finish a step and save first wraps that part in `with stop.deferred():` and looks at `requested`
    between steps; anywhere else the signal raises Stopped at once.
    """

    requested: bool = False
    depth: int = 0

    def deferred(self) -> _Deferred:
        """Hold signals back inside the `with` block."""
        return _Deferred(self)


class _Deferred:
    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop

    def __enter__(self) -> StopSignal:
        self.stop.depth += 1
        return self.stop

    def __exit__(self, *exception: object) -> None:
        self.stop.depth -= 1


def _unwired(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "this context was built without a way to sample, weigh completions or tell a writing head"
    )


@dataclass(frozen=True)
class Context:
    """Everything a stage is given. Built by `run`."""

    stage_id: str
    folder: Path
    """The stage's own folder, kept over a kill: `model/`, `checkpoints/`, `metrics.json`, `predictions.parquet`."""
    fingerprint: str
    seed: int
    recipe: Recipe
    events: EventLog
    world: World
    precision: Literal["no", "bf16", "fp16"]
    """Resolved: never `auto`."""
    cache: Path
    """Where prepared data may be kept between runs, named by content."""
    stage_folders: Mapping[str, Path]
    """Folders of the complete stages before this one, by id."""
    open_model: Callable[..., Any]
    """`open_model(head, stage_id=None, merge=True, trained_head=False, keep_base=None, checkpoint=None)`: the model
    of a stage (default: the one this stage reads) with that head, in fp32 on the CPU, freshly seeded. Adapters are
    merged unless `merge=False`. With `trained_head`, raises ModelError when the checkpoint has no weights for the
    head. `keep_base` is a folder where a model that is in no folder yet is saved, so that an adapter has a base to
    name. `checkpoint`, a folder or a Hub name, is opened instead of a stage's model, such as a reward model from
    elsewhere; its tokenizer may be another. A `head` of None is the one that the model writes with: ModelError where
    it writes no texts."""
    open_tokenizer: Callable[..., Any]
    """`open_tokenizer(stage_id=None, checkpoint=None)`: the run's tokenizer, or that of a stage as the stage left it,
    with its chat template, or a checkpoint's own."""
    score: Callable[[Task], Score]
    """How a task's logits are scored."""
    writing_head: Callable[[], Head] = _unwired
    """The head that the model which this stage reads writes with, told before it is opened. Raises ModelError where it
    writes no texts token by token."""
    complete: Callable[..., Any] = _unwired
    """`complete(model, tokenizer, prompts, seed=…, max_new_tokens=…, temperature=1.0, top_p=1.0, top_k=0,
    batch_size=64, draws=None)`: one sampled completion of each prompt (token ids), as `pipelines.models.sampling`
    says: ids, mask, ended, texts."""
    log_probabilities: Callable[..., Any] = _unwired
    """`log_probabilities(model, tokenizer, prompts, completions, temperature=1.0)`: of every token of every
    completion (token ids) of a batch, in nats, as lists: `pipelines.models.log_probabilities`."""
    stop: StopSignal = field(default_factory=StopSignal)
    barrier: Callable[[], None] = lambda: None
    """Waits for every process of the world."""
    beat: Callable[[], None] = lambda: None
    """Called at every step: a sign that this process moves on."""
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    """Every process's picklable value, in the order of ranks, on every process."""
