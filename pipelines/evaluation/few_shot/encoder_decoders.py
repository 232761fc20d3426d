"""Likelihoods from encoder-decoders: the encoder reads the context once, the decoder each continuation."""

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
from pipelines.models.checkpoint import start_token
from pipelines.models.predict import InferenceOptions, answers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class EncoderDecoderReader(LikelihoodReader):
    """A model whose decoder writes what its encoder's text becomes."""

    head: ClassVar[Head] = Head("seq2seq_lm")

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limit: int | None = None) -> None:
        super().__init__(model, tokenizer, limit)
        if getattr(model.config, "bidirectional_decoder", False):
            raise ModelError(
                "the model writes all words at once (mask_predict), so it gives texts no likelihood from "
                "left to right; ask another model"
            )
        self.padding = padding_token(tokenizer)

    def encode(self, request: Continuation) -> Encoded:
        context, continuation = spaced(request)
        answer = self.plain(continuation + request.rest)
        if not answer:
            raise ModelError(f"the tokenizer makes nothing of the answer {continuation!r}; write another word")
        return Encoded(self.context(context), tuple(answer))

    def context(self, text: str) -> tuple[int, ...]:
        text = text.rstrip()
        return tuple(self.plain(text, special=True) if text else [self.start()])

    def start(self) -> int:
        """The token that the decoder begins with. Raises ModelError."""
        return start_token(self.model, self.tokenizer)

    def excess(self, encoded: Encoded) -> int:
        return 0 if self.limit is None else max(0, len(encoded.context) - self.limit)

    def likelihoods(self, requests: Sequence[Encoded], **running: Unpack[InferenceOptions]) -> list[Likelihood]:
        fitting = [each.cut(self.excess(each)) for each in requests]
        groups: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        for each in fitting:
            if self.limit is not None and len(each.answer) > self.limit:
                self.refuse_too_long(each)
            groups.setdefault(each.context, {})[each.answer] = None
        contexts = list(groups)

        def answer(positions: list[int], device: torch.device) -> list[dict[tuple[int, ...], Likelihood]]:
            return self._batch([(contexts[at], list(groups[contexts[at]])) for at in positions], device)

        by_context = dict(
            zip(contexts, answers(self.model, [len(each) for each in contexts], answer, **running), strict=True)
        )
        return [by_context[each.context][each.answer] for each in fitting]

    def _batch(
        self, groups: Sequence[tuple[tuple[int, ...], list[tuple[int, ...]]]], device: torch.device
    ) -> list[dict[tuple[int, ...], Likelihood]]:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        ids, real = padded_tensors([context for context, _ in groups], self.padding, device=device)
        encoded = self.model.get_encoder()(
            input_ids=ids, attention_mask=real
        ).last_hidden_state  # (contexts, tokens, dim)
        rows = [(at, target) for at, (_, targets) in enumerate(groups) for target in targets]
        likelihoods: list[dict[tuple[int, ...], Likelihood]] = [{} for _ in groups]
        longest = max(len(target) for _, target in rows)
        size = max(1, MOST_LOGITS // (longest * int(self.model.config.get_text_config(decoder=True).vocab_size)))
        for low in range(0, len(rows), size):
            part = rows[low : low + size]
            owners = torch.tensor([at for at, _ in part], device=device)
            read, _ = padded_tensors([(self.start(), *target[:-1]) for _, target in part], self.padding, device=device)
            logits = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded[owners]),
                attention_mask=real[owners],
                decoder_input_ids=read,
            ).logits  # (rows, tokens, vocab)
            for row, (at, target) in enumerate(part):
                likelihoods[at][target] = read_off(logits[row, : len(target)], target)
        return likelihoods
