"""A recurrent or convolutional model as formulas see it: weights, operations, and the memory of a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.architectures import convolutional_arithmetic, recurrent_arithmetic
from pipelines.core import architecture_fields
from pipelines.core.costs import FLOAT, LOGITS_KEPT, Memory, SecondModel, tokens_at_once
from pipelines.core.interfaces import Head
from pipelines.runs.planning.model_size import PLAIN_HEADS, Shape, TunedWeights, applied, outputs
from pipelines.runs.planning.training_memory import OPTIMIZER_BYTES, Segment, Step, fullest_moment

ARITHMETIC: dict[str, Any] = {"finery-rnn": recurrent_arithmetic, "finery-cnn": convolutional_arithmetic}
"""By `model_type`: modules with `parameter_count`, `forward_flops` and `kept_values`."""


class BaselineShape:
    """A model of the families `rnn` and `cnn`."""

    def __init__(self, words: Mapping[str, object]) -> None:
        self.model_type = str(words["model_type"])
        rules = architecture_fields.BASELINE_RULES[self.model_type]
        self.config = rules.completed({key: value for key, value in words.items() if key in rules.fields})
        self.family = architecture_fields.stack_of({**self.config, "model_type": self.model_type})
        self.arithmetic = ARITHMETIC[self.model_type]

    @property
    def plain_head(self) -> Head:
        """An encoder alone has no language model, unless its directions are separate: its classifier stands for it."""
        if self.config.get("separate_directions"):
            return Head("bidirectional_lm")
        return Head("sequence_classification") if self.family == "encoder" else PLAIN_HEADS[self.family]

    def counts(self, head: Head) -> Mapping[str, int]:
        counts: dict[str, int] = self.arithmetic.parameter_count(self.config, head.kind, outputs(head))
        return counts

    def outside_body(self, head: Head) -> int:
        return self.counts(head)["head"]

    def forward(self, head: Head, length: int, target: int, predicted: int) -> int:
        flops = self.arithmetic.forward_flops(self.config, head.kind, length, outputs(head), predicted, target)
        return int(flops["total"])

    def words(self, head: Head) -> dict[str, Any] | None:
        """None: these are no sizes of a transformer."""
        return None

    def cuts_last_layer(self, head: Head) -> bool:
        return False

    def lacking(self, head: Head, before: Head) -> list[str]:
        return ["classifier"] if head.kind == "sequence_classification" and head != before else []

    def second(self, model: SecondModel) -> tuple[Shape, int]:
        raise NotImplementedError(f"no objective trains a second model beside {self.model_type}")

    def adapter(self, tuner: object, head: Head, fresh: Sequence[str]) -> TunedWeights:
        return applied({"model_type": self.model_type, **self.config}, tuner, head, fresh)

    def memory(self, head: Head, step: Step, parameters: int, trainable: int) -> Memory:
        """Bytes of a training step. Cells and convolutions keep float32 for the backward pass in any precision."""
        fields, counts = self.config, self.counts(head)
        body = step.batch * self.arithmetic.kept_values(fields, step.length, step.target) * FLOAT
        share = trainable / max(parameters, 1)
        matrix = fields["vocab_size"] * fields["embedding_size"] * FLOAT
        scores = (
            step.batch * step.predicted * fields["vocab_size"] if head.kind in recurrent_arithmetic.WORD_HEADS else 0
        )
        rest = round((counts["total"] * FLOAT - matrix) * share)
        words = round(matrix * share)
        blocks = [Segment(body, rest)]
        if scores > LOGITS_KEPT:  # a chunk of them at a time
            together = tokens_at_once(fields["vocab_size"], step.on_cpu) * fields["vocab_size"]
            blocks.append(Segment(words, words, min(scores, together) * FLOAT))
        elif scores:
            blocks.append(Segment(scores * FLOAT, words, scores * FLOAT, 2 * scores * FLOAT))
        else:
            blocks[0] = Segment(body, rest + words)
        weights, gradients = parameters * FLOAT, trainable * FLOAT
        state = trainable * OPTIMIZER_BYTES[step.optimizer]
        buckets = gradients if step.processes > 1 else 0
        earlier = gradients if step.accumulated > 1 else 0
        beside = 0 if step.optimizer == "adamw_torch_fused" else 2 * matrix
        fullest = max(fullest_moment(blocks) + earlier, gradients + beside)
        activations = sum(block.activations for block in blocks)
        return Memory(weights, gradients + buckets, state, activations, weights + state + buckets + fullest)
