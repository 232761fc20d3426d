"""Masked LM on pairs of segments, with a question about the pair: does it follow, or which of the two comes first?

next_sentence: does the second segment follow the first? Devlin et al. 2019, "BERT", section 3.1, task 2,
arxiv.org/abs/1810.04805: half of the time the second segment is the text that follows, half of the time it comes from
another document. The loss is the sum of both mean likelihoods (appendix A.2). Labels as in the reference
implementation: 0 follows, 1 does not.

sentence_order: which of two neighbouring segments comes first? Lan et al. 2020, "ALBERT", section 3.1,
arxiv.org/abs/1909.11942: two consecutive segments of one document, swapped half of the time, so that the topic gives
nothing away. Labels as in the reference implementation: 0 in order, 1 swapped.

What is drawn depends on seed and draw alone: how many sentences are taken, where they are cut in two, whether the pair
is a false one, and for next-sentence prediction where the false continuation begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Head
from pipelines.data.randomness import uniforms
from pipelines.objectives.batches import draws_of, padded_and_real, tensors
from pipelines.objectives.masked_lm import Masked, Masking
from pipelines.objectives.objective import Collate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


TWO_HEADS = ("albert", "bert", "big_bird", "ernie", "fnet", "finery", "megatron-bert", "mobilebert")
"""Model types that have a head for tokens and one for pairs."""
Ids: TypeAlias = "npt.NDArray[np.int32]"


class SentencePairs(Masked):
    """Base: hide tokens of two segments, and ask one question about the pair."""

    pair_weight: float = Field(1.0, gt=0)
    """How much the question about the pair counts beside the hidden tokens."""
    short_seq_probability: float = Field(0.1, ge=0, le=1)
    """The share of the pairs that take fewer sentences than fit, so that short texts are known too."""

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "sentences"
    text_scores: ClassVar[tuple[str, ...]] = ("hidden_bits_per_byte", "accuracy", "pair_accuracy")

    @property
    def head(self) -> Head:
        """Heads for tokens and for the pair."""
        return Head("pretraining")

    @property
    def label_names(self) -> Mapping[str, float]:
        """The hidden tokens, and the pairs."""
        return {"labels": 1.0, "pair_labels": self.pair_weight}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Only encoders with a head for pairs serve."""
        model_type = architecture.get("model_type", "finery")
        if model_type not in TWO_HEADS:
            return (
                f"needs a model with a head for pairs of segments, which {model_type} has not; "
                f"model types that have one: {', '.join(TWO_HEADS)}"
            )
        if architecture.get("family", "encoder") != "encoder":
            return f"needs a model of the family encoder, not {architecture['family']}"
        return None

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from spans of sentences to a masked batch of pairs. Raises ModelError."""

        return Pairing.of(self, tokenizer, seed, config)

    def loss(self, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """Cross-entropy of the hidden tokens and of the pairs, summed (2,)."""
        from pipelines.objectives.losses import pretraining_loss

        return pretraining_loss(model, batch)

    def false_pair(
        self, example: dict[str, Any], first: Ids, second: Ids, short: bool, luck: npt.NDArray[np.float64]
    ) -> tuple[Ids, Ids]:
        """The segments of a span of sentences made a pair whose label is 1; `short` where it takes fewer sentences
        than fit."""
        raise NotImplementedError


class NextSentence(SentencePairs):
    """Name the hidden tokens, and tell whether the second segment follows the first."""

    name: Literal["next_sentence"] = "next_sentence"

    def false_pair(
        self, example: dict[str, Any], first: Ids, second: Ids, short: bool, luck: npt.NDArray[np.float64]
    ) -> tuple[Ids, Ids]:
        """The second segment from another document."""
        filled = not short and example["span"] + 1 < example["spans"].others(example["span"])[1]
        # True pairs of filled spans come near the full length, others do not: length must not give false ones away.
        room = (example["spans"].length if filled else len(first) + len(second)) - len(first)
        return first, _elsewhere(example, int(room), luck)


class SentenceOrder(SentencePairs):
    """Name the hidden tokens, and tell whether the segments are in their order."""

    name: Literal["sentence_order"] = "sentence_order"

    def false_pair(
        self, example: dict[str, Any], first: Ids, second: Ids, short: bool, luck: npt.NDArray[np.float64]
    ) -> tuple[Ids, Ids]:
        """The segments the other way round."""
        return second, first


PAIR = 3
"""Stream of random numbers; those of the masks are 0 to 2."""
SHORT, HOW_MANY, CUT, FALSE, WHERE, BEGIN = range(6)
"""Positions in that stream."""


@dataclass(frozen=True)
class Pairing:
    """The collator of objectives on pairs: `[CLS] A [SEP] B [SEP]`, masked, with `pair_labels` (batch,)."""

    objective: SentencePairs
    masking: Masking
    seed: int
    start: int
    end: int
    segments: bool
    """Whether the model has segment embeddings."""

    @classmethod
    def of(
        cls, objective: SentencePairs, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig
    ) -> Pairing:
        """The pairing for a tokenizer and a model. Raises ModelError when the tokenizer has no cls, sep or mask."""
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise ModelError(
                f"the tokenizer has no cls and sep tokens, which the objective {objective.name} puts around segments; "
                "use one made for encoders"
            )
        kinds = getattr(config, "type_vocab_size", None)  # None is what is usual: two
        return cls(
            objective,
            Masking.of(objective, tokenizer, seed),
            seed,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            segments=kinds is None or kinds > 1,
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `token_type_ids` where the model has segments, `labels` and `pair_labels`."""
        import numpy as np

        draws = draws_of(examples)
        luck = uniforms(self.seed, PAIR, draws, 6)
        pairs = [self.pair(example, luck[row]) for row, example in enumerate(examples)]
        rows = [np.concatenate([[self.start], a, [self.end], b, [self.end]]) for a, b, _ in pairs]
        original, real = padded_and_real(rows, self.masking.pad_id)
        masked, labels = self.masking.mask(original, draws)
        batch = {"input_ids": masked, "attention_mask": real.astype(np.int64), "labels": labels}
        if self.segments:
            second = np.asarray([len(a) + 2 for a, _, _ in pairs])[:, None]
            batch["token_type_ids"] = (real & (np.arange(real.shape[1])[None, :] >= second)).astype(np.int64)
        return tensors(**batch, pair_labels=np.asarray([int(false) for _, _, false in pairs], dtype=np.int64))

    def pair(self, example: dict[str, Any], luck: npt.NDArray[np.float64]) -> tuple[Ids, Ids, bool]:
        """(first segment, second segment, whether the pair is a false one) of a span of at least two sentences."""
        count, short = len(example["sentences"]) - 1, luck[SHORT] < self.objective.short_seq_probability
        if short:
            count = 2 + int(luck[HOW_MANY] * (count - 1))
        bounds = example["sentences"][: count + 1]
        cut, total = bounds[1 + int(luck[CUT] * (count - 1))], bounds[count]
        first, second = example["input_ids"][:cut], example["input_ids"][cut:total]
        false = bool(luck[FALSE] < 0.5)
        if false:
            first, second = self.objective.false_pair(example, first, second, bool(short), luck)
        return first, second, false


def _elsewhere(example: dict[str, Any], most: int, luck: npt.NDArray[np.float64]) -> Ids:
    """At most `most` tokens from a sentence of another document onwards."""
    import numpy as np

    spans = example["spans"]
    own, beyond = spans.others(example["span"])
    others = len(spans) - (beyond - own)
    if others == 0:
        raise DataError(
            "next_sentence takes false continuations from other documents, but the text is one document; give more"
        )
    place = int(luck[WHERE] * others)
    span = place if place < own else place + beyond - own
    lengths = np.diff(spans.bounds[spans.first[span] : spans.last[span] + 1])
    fitting = np.flatnonzero(lengths <= most)  # a cut sentence would give the false pair away
    places = fitting if len(fitting) else np.arange(len(lengths))
    tokens: Ids = spans.onward(span, int(places[int(luck[BEGIN] * len(places))]), most)
    return tokens
