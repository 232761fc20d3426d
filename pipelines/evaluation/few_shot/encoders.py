"""Likelihoods from encoders, through their mask: how well a word fits into its place in a text.

One token is hidden and named (Schick and Schütze 2021, "Exploiting Cloze Questions", section 3.1,
arxiv.org/abs/2001.07676). Of an answer of several tokens each is hidden by itself, the others stay, and their
log-probabilities are added up: the pseudo-log-likelihood of Salazar et al. 2020, "Masked Language Model Scoring",
section 2.2, arxiv.org/abs/1910.14659. It favours answers of several tokens, which help each other; the normalised
accuracies tell how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.completions import padding_token
from pipelines.data.ragged import padded_tensors
from pipelines.evaluation.few_shot.likelihood import (
    MOST_LOGITS,
    Continuation,
    Encoded,
    Likelihood,
    LikelihoodReader,
    read_off,
    spaced,
)
from pipelines.models.predict import InferenceOptions, answers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class MaskReader(LikelihoodReader):
    """An encoder with a masked-LM head. The special tokens around a text belong to its context and its rest."""

    head: ClassVar[Head] = Head("masked_lm")

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limit: int | None = None) -> None:
        super().__init__(model, tokenizer, limit)
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "the tokenizer has no mask token, through which an encoder is asked; use the one that the "
                "model was trained with"
            )
        self.padding = padding_token(tokenizer)
        self._before, self._after = self._ends()

    def _ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before and behind a text."""
        whole, plain = self.plain("a", special=True), self.plain("a")
        place = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
        return tuple(whole[:place]), tuple(whole[place + len(plain) :])

    def encode(self, request: Continuation) -> Encoded:
        context, answer = spaced(request)
        begin, end = len(context), len(context) + len(answer)
        given = self.tokenizer(
            context + answer + request.rest, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, places = given["input_ids"], given["offset_mapping"]
        inside = [at for at, (low, high) in enumerate(places) if low < end and high > begin and high > low]
        if not inside:
            raise ModelError(f"the tokenizer makes nothing of the answer {answer!r}; write another word")
        first, last = inside[0], inside[-1] + 1
        return Encoded((*self._before, *ids[:first]), tuple(ids[first:last]), (*ids[last:], *self._after))

    def context(self, text: str) -> tuple[int, ...]:
        return (*self._before, *self.plain(text.rstrip()))

    def excess(self, encoded: Encoded) -> int:
        size = len(encoded.context) + len(encoded.answer) + len(encoded.rest)
        return 0 if self.limit is None else max(0, size - self.limit)

    def _within(self, encoded: Encoded) -> Encoded:
        """Without the beginning of a text that is too long; what the tokenizer puts before it stays."""
        excess = self.excess(encoded)
        prefix_length = len(self._before)
        if excess > len(encoded.context) - prefix_length:
            self.refuse_too_long(encoded)
        return Encoded((*self._before, *encoded.context[prefix_length + excess :]), encoded.answer, encoded.rest)

    def likelihoods(self, requests: Sequence[Encoded], **running: Unpack[InferenceOptions]) -> list[Likelihood]:
        fitting = [self._within(each) for each in requests]
        hidden: dict[tuple[tuple[int, ...], int], dict[int, Likelihood]] = {}
        for each in fitting:
            for at, token in enumerate(each.answer):
                hidden.setdefault(self._hiding(each, at), {})[token] = Likelihood(0.0, 0, False)
        texts = list(hidden)
        longest = max((len(ids) for ids, _ in texts), default=1)
        room = max(1, MOST_LOGITS // (longest * int(self.model.config.get_text_config().vocab_size)))
        running["batch_size"] = max(1, min(running.get("batch_size", 32), room))

        def answer(positions: list[int], device: torch.device) -> list[dict[int, Likelihood]]:
            return self._batch([(texts[at], list(hidden[texts[at]])) for at in positions], device)

        by_text = dict(zip(texts, answers(self.model, [len(ids) for ids, _ in texts], answer, **running), strict=True))
        return [
            _summed([by_text[self._hiding(each, at)][token] for at, token in enumerate(each.answer)])
            for each in fitting
        ]

    def _hiding(self, encoded: Encoded, at: int) -> tuple[tuple[int, ...], int]:
        """(the text with one token of its answer hidden, the place of that token)."""
        answer = (*encoded.answer[:at], int(self.tokenizer.mask_token_id), *encoded.answer[at + 1 :])
        return (*encoded.context, *answer, *encoded.rest), len(encoded.context) + at

    def _batch(
        self, queries: Sequence[tuple[tuple[tuple[int, ...], int], list[int]]], device: torch.device
    ) -> list[dict[int, Likelihood]]:
        import torch

        from pipelines.models.log_probabilities import logits_of

        ids, real = padded_tensors([text for (text, _), _ in queries], self.padding, device=device)
        wanted = torch.zeros(ids.shape, dtype=torch.bool, device=device)
        for row, ((_, place), _) in enumerate(queries):
            wanted[row, place] = True
        _, logits = logits_of(self.model, {"input_ids": ids, "attention_mask": real}, wanted)  # (texts, vocab)
        return [
            {token: read_off(logits[row : row + 1], [token]) for token in tokens}
            for row, (_, tokens) in enumerate(queries)
        ]


def _summed(parts: Sequence[Likelihood]) -> Likelihood:
    return Likelihood(
        sum(each.nats for each in parts), sum(each.tokens for each in parts), all(each.greedy for each in parts)
    )
