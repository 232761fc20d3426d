"""What a stage costs, told before anything is loaded: the answer of `Stage.cost`, and what it may ask to find it.

`pipelines.runs.planning` answers these questions; each stage only says what passes through its models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pipelines.core.interfaces import Head, Precision
    from pipelines.core.recipe import Recipe, Stage

BYTES_PER_TOKEN = 4
"""Of English text under a vocabulary of some thousand pieces; used where only the size of a text is known."""
FLOAT = 4
"""Bytes of a weight: models are kept in float32, mixed precision computes in copies."""
PROMPT_LENGTH = 64
"""Tokens of a prompt where the recipe does not say."""
LOGITS_KEPT = 2**23
"""The most logits over a vocabulary that a loss computes at once and keeps for the backward pass."""
LOGITS_AT_ONCE = 2**25
"""Where they are more, the most that exist together on a processor, in chunks of tokens."""
LOGITS_AT_ONCE_ON_GPU = 2**27
"""The same there: products are so fast that adding up the gradient of the output matrix, once a chunk, would take as
long, and 256 MiB are a small part of memory."""
TOKENS_AT_ONCE = 512
"""Tokens of a chunk on a processor: of fewer, that adding up costs more; logits of more lie in no cache, and the memory
for them is asked of the system in every step."""
LOGITS_IN_CACHE = 2**22
"""Logits of a chunk under a small vocabulary."""
SCORES_OF_A_SOFTMAX = 2**20
"""Logits that a processor takes through the softmax together: they fit into its cache."""

TENSOR_KEPT = 1 << 25
"""Bytes of the largest tensor whose memory glibc keeps when it is freed (its greatest `M_MMAP_THRESHOLD`). Larger ones
are asked of the system anew each time, which hands out page by page."""

DENSEST = 0.75
"""The share of places that are read from which on the whole last layer runs: picking them out would cost more than it
saves."""

SCORES_ASKED = {"no": 1 << 20, "bf16": 6 << 20}
"""Scores of a layer (rows x heads x length²) from which on, on a processor, a model is asked with fused attention, by
precision, unless it has AMX: it was the faster one, or as fast (decision 49)."""
SCORES_LEARNT = {"no": 1 << 22, "bf16": 1 << 24}
"""The same in training, where no attention weight is dropped, beside attention written for it
(`trainers.training_attention`)."""


def tokens_at_once(vocab: int, on_cpu: bool) -> int:
    """Tokens whose logits exist together in a loss over a vocabulary of so many words, where all are too many."""
    most = (LOGITS_AT_ONCE if on_cpu else LOGITS_AT_ONCE_ON_GPU) // vocab
    return max(1, min(most, max(TOKENS_AT_ONCE, LOGITS_IN_CACHE // vocab)) if on_cpu else most)


def rows_on_cpu(length: int, widest: int, heads: int, mixed: bool) -> int:
    """How many sequences of so many tokens a processor computes at once, so that no tensor exceeds TENSOR_KEPT unless
    one sequence does: activations as wide as the `widest` layer, and the scores of all heads."""
    sequence = length * max(widest, heads * length) * (FLOAT // 2 if mixed else FLOAT)
    return max(1, TENSOR_KEPT // max(1, sequence))


def fused_pays(scores: int, precision: Precision, learning: bool) -> bool:
    """Whether so many scores of a layer are computed by fused attention on a processor, where it knows them."""
    enough = (SCORES_LEARNT if learning else SCORES_ASKED).get(precision)
    return enough is not None and scores >= enough


@dataclass(frozen=True)
class Memory:
    """Bytes of one process while it trains, the Python process itself (about half a gigabyte) left out."""

    weights: int
    gradients: int
    """All of them, as the optimizer finds them."""
    optimizer: int
    activations: int
    """What the forward pass keeps for the backward pass, 16-bit copies of the weights among it."""
    peak: int
    """The fullest moment of the step: less than the sum, since activations go while gradients come."""


@dataclass(frozen=True)
class Communication:
    """What each process sends to the others, and receives from them, in one optimizer step."""

    bytes: int
    operations: int
    """Collective operations, one after another."""
    reduces: bool
    """Whether they leave the sum on every process, or a part of it on each and gather weights."""
    exposed: int = 0
    """Of `bytes`, those beside which nothing computes: gathered for one token at a time, or behind the optimizer."""


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
    usual_length: int | None = None
    """Tokens of a sequence in a batch, padding included, by which operations and time are counted where sequences vary
    in length. None: all are counted with `sequence_length`."""
    examples_per_step: int | None = None
    sequences_per_example: int = 1
    """More where an example has several answers: both of a preference, the options of a question."""
    examples_asked: int | None = None
    """`global_batch_size`, which processes without an example cannot share."""
    steps: int | None = None
    tokens: int | None = None
    """Tokens that pass through the model, padding included: about so many where `usual_length` is known, else at most
    this many where sequences vary in length."""
    flops: int | None = None
    memory: Memory | None = None
    """Of each process."""
    communication: Communication | None = None
    """None for one process, and where the model's sizes are not known."""
    seconds: float | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"parameters": dict(self.parameters), "notes": list(self.notes)}


@dataclass(frozen=True)
class SecondModel:
    """A model that learns beside the first one from the same examples, and shares its embeddings."""

    name: str
    """What its weights are called in a plan."""
    head: Head
    words: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The words of its config that differ from those of the first model's config, which it is given."""
    predicted: int
    """Tokens that get a score for each word of the vocabulary from it."""


@dataclass(frozen=True)
class Example:
    """What passes through the model for one example of a training stage."""

    length: int
    """Tokens that it reads."""
    target: int
    """Tokens of the decoder's part of an encoder-decoder."""
    predicted: int
    """Tokens that get a score for each word of the vocabulary."""
    sequences: int = 1
    """Sequences of an example that are learnt from."""
    forwards: int = 0
    """Passes without gradients that each of them costs beside, such as a reference's."""
    copies: bool = False
    """Whether a frozen copy of the model is in memory."""
    whole: bool = True
    """Whether the model's last layer runs for all places; else for those that its head reads, where the model's build
    allows it."""
    frozen_once: bool = False
    """Whether frozen layers below the first that learns are asked once for each example, not in every epoch."""
    reads: int = 0
    """Of `forwards`, those that read an example whole through weights which `fsdp2` divides, and so gather them."""
    written: int = 0
    """Tokens of it that the model writes itself, one after another, before it learns from them."""
    together: int | None = None
    """Examples that are written, and read without gradients, at once; None for those that are learnt from at once."""
    rounds: int = 1
    """How often a step learns from its examples."""
    updates: int = 1
    """Optimizer steps of each round."""
    dropout: bool = True
    """Whether the model's dropout is on while it learns."""
    mean: tuple[int, int] | None = None
    """Tokens that it reads, and of a target, on average; None where that is not known or all are full."""
    second: SecondModel | None = None
    spared: int = 0
    """Of `forwards`, those whose place the first pass that learns takes, where it reads all examples of a process."""

    def spares(self, accumulated: int) -> int:
        """Passes that are spared where a process learns from so many batches a step, one after another."""
        return self.spared if accumulated * self.updates == 1 else 0

    def usual(self, padded: float = 1.0) -> Example:
        """It with the lengths that it has on average, in batches that padding makes so many times longer."""
        if self.mean is None:
            return self
        length, target = (
            min(most, round(padded * mean)) for most, mean in zip((self.length, self.target), self.mean, strict=True)
        )
        return replace(self, length=length, target=target, predicted=min(self.predicted, target))


class ModelSize(Protocol):
    """The recipe's model as formulas see it."""

    family: str
    """`encoder`, `decoder` or `encoder-decoder`."""

    @property
    def plain_head(self) -> Head:
        """The language model of its family."""

    def forward(self, head: Head, length: int, target: int, predicted: int) -> int:
        """Operations of one sequence; `predicted` of its tokens get logits over the vocabulary.

        `target` is the length of the decoder's part of an encoder-decoder.
        """

    def outside_body(self, head: Head) -> int:
        """Weights that are not the body's, which several heads on one body do not share."""

    def words(self, head: Head) -> dict[str, Any] | None:
        """FineryConfig's words of a model of these sizes, for formulas; None when the config does not name its sizes,
        or ours has no such head."""


class Planning(Protocol):
    """What `Stage.cost` may ask."""

    recipe: Recipe
    model: ModelSize | None
    """None where it cannot be looked at; the notes say why."""
    notes: tuple[str, ...]
    """What had to be assumed of the model."""
    flops_per_second: float

    def training(self, stage: Stage, head: Head, example: Example, examples: int | None, notes: list[str]) -> StagePlan:
        """A training stage of `examples` an epoch; None where that is not known."""

    def rows_to_learn(self, stage: Stage, rows: int | None, notes: list[str], what: str = "rows") -> int | None:
        """Of `rows`, those that are not set aside for evaluation; a note where `rows` decide and are not known."""

    def steps_given(self, stage: Stage) -> bool:
        """Whether the recipe says how many steps the stage takes, so that rows do not matter."""

    def not_built(self, stage: Stage, notes: list[str], error: Exception) -> StagePlan:
        """The plan of a stage whose model transformers refuses to build: the run itself says it in full."""
