"""GPT's auxiliary objective: while a decoder learns a task, it goes on to name the next tokens of the task's texts.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.2, equation 5:
L3 = L2 + λ · L1, with the loss of the task L2 and that of the language model L1 on the same texts, λ = 0.5 in the paper
(section 4.1). Both come from one pass through the body. The language model's output matrix is that of the pretrained
model: the embeddings where the two are tied, else a copy that learns along and is dropped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.models.log_probabilities import TokenDistributions
from pipelines.models.read_places import without_wrappers
from pipelines.tasks.subject import Subject, unfit_for_auxiliary_lm
from pipelines.tasks.training import LABELS, PreparedTask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context, Score

Collate = Callable[[Any], dict[str, Tensor]]
Loss = Callable[[Any, Any], tuple[Tensor, Any]]


HEAD = "auxiliary_lm_head"
"""The module that a model carries while it learns."""


def attach(model: PreTrainedModel, open_model: Callable[..., Any]) -> None:
    """Give `model` the output matrix of the causal language model that it stems from. Raises ModelError."""

    if sentence := unfit_for_auxiliary_lm(model.config.to_dict()):
        raise ModelError(f"auxiliary_lm {sentence}")
    language = open_model(Head("causal_lm"), trained_head=True)
    words = model.get_input_embeddings().weight.shape[0]
    if language.get_input_embeddings().weight.shape[0] < words:  # an input format has brought tokens of its own
        language.resize_token_embeddings(words, mean_resizing=False)
    setattr(model, HEAD, AuxiliaryHead.of(language))


def detach(model: PreTrainedModel) -> None:
    """Take it away again."""
    delattr(without_wrappers(model), HEAD)


def with_next_tokens(collate: Collate) -> Collate:
    """`collate` with `lm_labels` (batch, length) beside the task's labels: at each position the token that follows."""

    def together(examples: object) -> dict[str, Tensor]:
        batch = collate(examples)
        filling = batch["attention_mask"] == 0
        labels = batch["input_ids"].masked_fill(filling, IGNORED).roll(-1, dims=1).masked_fill(filling, IGNORED)
        labels[:, -1] = IGNORED
        return batch | {"lm_labels": labels}

    return together


def with_language_loss(loss: Loss) -> Loss:
    """The task's `loss` and that of the language model, each summed over its items (2,)."""

    def both(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
        inputs = dict(inputs)
        labels = inputs.pop("lm_labels")
        bare = without_wrappers(model)
        with kept(bare.base_model) as states:
            task, outputs = loss(model, inputs)
        hidden = states[0][labels != IGNORED]  # (tokens, dim)
        language = getattr(bare, HEAD)(hidden, bare.get_input_embeddings().weight, labels[labels != IGNORED])
        return torch.stack([task, language]), outputs

    return both


@contextmanager
def kept(body: Any) -> Iterator[list[Tensor]]:
    """What the body says inside the `with` block (batch, length, dim), as the only entry of a list."""
    states: list[Tensor] = []
    hook = body.register_forward_hook(lambda module, arguments, output: states.append(output[0]))
    try:
        yield states
    finally:
        hook.remove()


class AuxiliaryHead(nn.Module):  # type: ignore[misc]
    """The next token's loss, by the embeddings of the model it stands on, or by an output matrix of its own."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.scale = scale

    @classmethod
    def of(cls, model: PreTrainedModel) -> AuxiliaryHead:
        """The head of a causal language model, without its matrix where that is the embeddings."""
        output, config = model.get_output_embeddings(), model.config
        tied = output.weight is model.get_input_embeddings().weight
        scale = config.hidden_size**-0.5 if getattr(config, "scale_logits", False) else 1.0
        return cls(None if tied else output.weight, output.bias, scale)

    def forward(self, hidden: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over the labels (): hidden (tokens, dim), embeddings (vocab, dim), labels (tokens,).

        In the type of the matrix, whatever the model computes in: the head is called beside the model.
        """
        weight = embeddings if self.weight is None else self.weight
        return TokenDistributions.of(hidden.to(weight.dtype) * self.scale, weight, self.bias).cross_entropy(labels)


def prepared(
    subject: Subject,
    context: Context,
    model: PreTrainedModel,
    examples: object,
    collate: Collate,
    loss: Loss,
    score: Score,
    metric: str,
) -> PreparedTask:
    """A task with one answer a text, and the language model's loss beside its own where the subject asks for it."""
    if subject.auxiliary_lm is None:
        return PreparedTask(examples, collate, loss, LABELS, score=score, metric=metric)
    attach(model, context.open_model)
    return PreparedTask(
        examples,
        with_next_tokens(collate),
        with_language_loss(loss),
        {"labels": 1.0, "lm_labels": subject.auxiliary_lm},
        score=score,
        metric=metric,
        finish=detach,
    )
