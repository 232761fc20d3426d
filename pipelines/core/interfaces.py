"""What the rooms of `pipelines` agree on: heads, rows, tasks, tuners, and the context that a stage is given.

`run` builds a Context for each stage. Nothing here imports torch or transformers but for their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from pipelines.core.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.events import EventLog
    from pipelines.core.recipe import Recipe


IGNORED = -100
"""The label of a position that is not asked for, as torch's cross-entropy has it."""
PROFILE = "FINERY_PROFILE"
"""The environment variable that, set to 1, has training stages profiled."""

HeadKind = Literal[
    "masked_lm",
    "pretraining",
    "bidirectional_lm",
    "causal_lm",
    "seq2seq_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "reward",
    "causal_lm_with_value",
]
"""`pretraining` is masked LM and a decision about the pair (BERT's); `bidirectional_lm` the next word from the left and
the one before from the right (ELMo's); `reward` gives one number a sequence;
`causal_lm_with_value` one more number a token beside the next word."""
Pooling = Literal["first", "mean"]
"""The first token of a text, or the mean of its tokens without padding and virtual tokens."""


@dataclass(frozen=True)
class Head:
    """What a stage needs on top of the body of a model."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    """Class names in the order of their ids; empty for regression (one output) and for language modelling."""
    pooling: Pooling | None = None
    """What a head on a whole text reads of an encoder; None: what the model's own class does."""


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


@dataclass(frozen=True)
class FirstRecipe:
    """What `finery init` writes around a task: a small model from nothing, and how it learns and is scored."""

    architecture: str = "{preset: bert-mini}"
    shape: str = (
        "BERT's shape with 4 layers of 256, built from scratch. Other presets: bert-tiny, bert-small, bert-medium, "
        "bert-base."
    )
    """The architecture in words, and others that fit."""
    tokenizer: str = "wordpiece"
    pretrains: bool = True
    """Whether masked-language-model pretraining on the file's own texts comes first, where there are enough."""
    stage: str = "supervised"
    """The stage that learns the task."""
    learning_rate: str = "3e-4"
    hint: str = "`tuner: {name: lora, r: 8}` learns a small update instead of every weight."
    baselines: tuple[str, ...] = ()
    """What the scores are held against."""
    evaluate: tuple[str, ...] = ()
    """Further keys of the evaluate stage, a line of YAML each."""


class Task(Protocol):
    """A labelled task: `pipelines.tasks.base.LabelledTask` is the class behind it."""

    @property
    def name(self) -> str:
        """`glue/mrpc`, or the id of the stage that describes an inline task."""

    @property
    def kind(self) -> str:
        """The kind as which it is learnt and evaluated: a name in TASK_KINDS."""

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


Precision = Literal["no", "bf16", "fp16"]
"""What a stage computes in: `mixed_precision` where `auto` is resolved."""

Score = Callable[[Any, Any], dict[str, float]]
"""`score(logits (examples, outputs), labels (examples,)) -> {"accuracy": …}`: arrays or sequences in, plain floats
out."""

Value = TypeVar("Value")


class Gather(Protocol):
    """Collects a picklable value of every process."""

    def __call__(self, value: Value, /) -> list[Value]:
        """The values in the order of ranks, on every process."""


Profile = Literal["single", "ddp", "fsdp2", "zero2", "zero3"]
"""How processes share the training of a model: not at all, each with a whole one, or with the weights divided."""


@dataclass(frozen=True)
class World:
    """The processes that run a stage together."""

    rank: int = 0
    size: int = 1
    profile: Profile = "single"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and events."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the weights that it trains."""
        return self.profile == "fsdp2"


class ModelOpener(Protocol):
    """Opens the model of a stage, by default the one that this stage reads, in fp32 on the CPU, freshly seeded."""

    def __call__(
        self,
        head: Head | None,
        stage_id: str | None = None,
        merge: bool = True,
        trained_head: bool = False,
        keep_base: Path | None = None,
        checkpoint: str | None = None,
    ) -> PreTrainedModel:
        """A `head` of None is the one that the model writes with: ModelError where it writes no texts.

        Adapters are merged unless `merge=False`. With `trained_head`, raises ModelError when the checkpoint has no
        weights for the head. `keep_base` is a folder where a model that is in no folder yet is saved, so that an
        adapter has a base to name. `checkpoint`, a folder or a Hub name, is opened instead of a stage's model, such as
        a reward model from elsewhere; its tokenizer may be another.
        """


class TokenizerOpener(Protocol):
    """Opens the run's tokenizer."""

    def __call__(self, stage_id: str | None = None, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
        """The tokenizer of a stage is as the stage left it, with its chat template; that of a checkpoint is its own."""


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
    precision: Precision
    cache: Path
    """Where prepared data may be kept between runs, named by content."""
    stage_folders: Mapping[str, Path]
    """Folders of the complete stages before this one, by id."""
    open_model: ModelOpener
    open_tokenizer: TokenizerOpener
    stop: StopSignal = field(default_factory=StopSignal)
    barrier: Callable[[], None] = lambda: None
    """Waits for every process of the world."""
    beat: Callable[[], None] = lambda: None
    """Called at every step: a sign that this process moves on."""
    fits: Callable[[int], bool] = lambda each: True
    """Whether a step of the stage on so many examples at once fits into this process's memory, as far as is known."""
    gather: Gather = lambda value: [value]
    """Every process's picklable value, in the order of ranks, on every process."""
