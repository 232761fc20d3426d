"""One step of KTO: single answers that are good or bad, against how far the policy has gone from its reference.

Ethayarajh et al. 2024, section 4.1, arxiv.org/abs/2402.01306. With r = log pi(answer) - log pi_ref(answer) and z the
policy's KL to the reference, estimated by answers of other prompts and held fixed:

kto                1 - s(beta (r - z)) for a wanted answer, 1 - s(beta (z - r)) for an unwanted one: equations 7 and 8
apo_zero_unpaired  1 - s(beta r) and s(beta r): D'Oosterlinck et al. 2024, equation 7, arxiv.org/abs/2408.06266, for
                   single answers; no z

The paper takes z from the microbatch. Here every answer has one other of another prompt for the whole training, and z
is of all answers of a step, whatever the number of microbatches and processes: so these change nothing, and the
reference can be asked for all of it before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.core.interfaces import IGNORED, Context
from pipelines.models.log_probabilities import MODEL_INPUTS, sums, token_log_probabilities
from pipelines.objectives.losses import Meter
from pipelines.tasks.preference.pairs import PreferencePairs
from pipelines.trainers.checkpoints import State
from pipelines.trainers.reference import ReferenceModel

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

    from pipelines.trainers.kto import KTOArguments
    from pipelines.trainers.trainer import Collate, Example

ANSWERS, WANTED, STORED = "answers", "wanted", "reference"
"""Keys of a batch: one for each answer that counts, whether it is wanted, and the reference's numbers where they are
stored; each (answers,)."""
OTHER = "other_"
"""What begins the keys of the answers of other prompts."""
READ = (*MODEL_INPUTS, "labels")


@dataclass(frozen=True)
class LabelledExamples:
    """Tokenised answers, each beside the answer of another prompt. As columns of pairs, `chosen` is the answer and
    `rejected` the other one, behind the same prompt."""

    pairs: PreferencePairs
    wanted: np.ndarray
    """Which answers are good (answers,), boolean."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longer row of each (answers,)."""
        return self.pairs.lengths

    @property
    def index(self) -> list[int]:
        """Row numbers in the file."""
        return self.pairs.index

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, position: int) -> dict[str, object]:
        return {**self.pairs[position], WANTED: bool(self.wanted[position])}

    def select(self, positions: Sequence[int] | np.ndarray) -> LabelledExamples:
        """The rows at `positions`."""
        return LabelledExamples(self.pairs.select(positions), self.wanted[np.asarray(positions, dtype=np.int64)])


class AnswerMeter(Meter):
    """Means of answers, and how far the two kinds of them are apart."""

    def take(self, training: bool, gather: Callable[[Any], list[Any]] = lambda value: [value]) -> dict[str, float]:
        means = super().take(training, gather)
        if {"rewards/chosen", "rewards/rejected"} <= means.keys():
            means["rewards/margins"] = means["rewards/chosen"] - means["rewards/rejected"]
        return means


@dataclass
class AnswerStep:
    """The loss of a batch of answers. `loss(model, inputs)` as the training loop wants it, and `before_step`, which
    estimates z from all batches of a step."""

    arguments: KTOArguments
    reference: ReferenceModel | None
    """None where the batch brings the numbers."""
    context: Context
    temperature: float = 1.0
    """Divides the logits of both."""
    meter: AnswerMeter = field(default_factory=AnswerMeter)
    divergence: Tensor | float = 0.0
    """z in nats, not below 0: that of the step. Evaluations take the last step's."""

    label_names: Mapping[str, float] = field(default_factory=lambda: {ANSWERS: 1.0})

    def collated(self, collate: Collate) -> Collate:
        """`collate` of pairs as a batch of answers, with those of other prompts beside them where z is needed; each
        as long as its own longest row."""

        def together(examples: list[Example]) -> dict[str, Tensor]:
            rows, wanted = len(examples), [example.pop(WANTED) for example in examples]
            stored = [example.pop(STORED, None) for example in examples]
            both = collate(examples)
            batch = _shortened({name: value[:rows] for name, value in both.items() if name in READ})
            if self.arguments.needs_divergence:
                other = _shortened({name: value[rows:] for name, value in both.items() if name in READ})
                batch |= {OTHER + name: value for name, value in other.items()}
            batch |= {ANSWERS: both["pairs"], WANTED: torch.tensor(wanted)}
            if stored[0] is not None:
                own, of_other = torch.from_numpy(np.stack(stored).T)
                batch |= {STORED: own.clone(), OTHER + STORED: of_other.clone()}
            return batch

        return together

    def before_step(self, model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> None:
        """Estimate z on the answers of other prompts in the `batches` of a step, over all processes. Called without
        gradient."""
        if not self.arguments.needs_divergence:
            return
        training = model.training
        model.eval()
        ratios = []
        for batch in batches:
            other = {name.removeprefix(OTHER): value for name, value in batch.items() if name.startswith(OTHER)}
            ratio = self._likelihoods(model, other)[0] - self._reference_likelihoods(model, other)
            ratios.append(ratio[batch[ANSWERS] != IGNORED].double())
        model.train(training)
        ratio = torch.cat(ratios)
        total, count = np.sum(self.context.gather((float(ratio.sum()), len(ratio))), axis=0)
        self.divergence = max(float(total) / max(count, 1.0), 0.0)
        self.meter.add(True, {"kl": ratio.new_tensor([self.divergence])})

    def state(self) -> State:
        """What an evaluation after a resume needs of the last step."""
        return {"divergence": float(self.divergence)}

    def restore(self, state: State) -> None:
        """Take back what `state` gave."""
        self.divergence = state["divergence"]

    def __call__(self, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """(the sum over the answers (), nothing)."""
        real, wanted = inputs[ANSWERS] != IGNORED, inputs[WANTED]
        total, _ = self._likelihoods(model, inputs)
        ratio = total - self._reference_likelihoods(model, inputs)
        losses = answer_losses(ratio, wanted, self.divergence, self.arguments)
        rewards = (self.arguments.beta * ratio).detach()
        for name, side in (("chosen", real & wanted), ("rejected", real & ~wanted)):
            if side.any():
                values = {f"rewards/{name}": rewards[side], f"logps/{name}": total.detach()[side]}
                self.meter.add(model.training, values)
        return (losses * real).sum(), ()

    def _likelihoods(self, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        read = {name: inputs[name] for name in READ if name in inputs}
        return sums(token_log_probabilities(model, read, temperature=self.temperature))

    def _reference_likelihoods(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Of every answer (answers,), asked after the policy."""
        if STORED in inputs:
            return inputs[STORED]
        assert self.reference is not None
        with self.reference.model_for(model) as reference:
            return self._likelihoods(reference, inputs)[0]


def answer_losses(ratio: Tensor, wanted: Tensor, divergence: Tensor | float, arguments: KTOArguments) -> Tensor:
    """The loss of every answer (answers,): `ratio` log pi / pi_ref in nats and `wanted` (answers,), `divergence` z."""
    away = ratio - divergence if arguments.needs_divergence else ratio
    signs = wanted.to(ratio) * 2 - 1
    weights = torch.where(wanted, arguments.desirable_weight, arguments.undesirable_weight)
    return weights * torch.sigmoid(-arguments.beta * signs * away)


def _shortened(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows without the places at the end that only fill up rows which are not among them."""
    read = int(rows["attention_mask"].sum(dim=1).max())
    written = read
    if "decoder_input_ids" in rows:
        written = int((rows["labels"] != IGNORED).sum(dim=1).max())
    widths = {"input_ids": read, "attention_mask": read, "decoder_input_ids": written, "labels": written}
    return {name: value[:, : widths[name]].contiguous() for name, value in rows.items()}
