"""Likelihoods from decoders. A context is read once, however many continuations it has.

Three ways give the same numbers. `shared`: what contexts have in common is read once and kept, then what is left of
each context, then the continuations. All contexts of a split have their examples in common where they are drawn once;
else those of one question have, with and without content, and questions about one text have that text. `cached`: each
context by itself, then its continuations. `whole`: everything at once. A way is taken where it gave the numbers of
the last on the first batch that it could serve: not every model can be told where its keys stand.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.completions import opening_of, padding_token
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

LEAST_SHARED = 16
"""Tokens that contexts have to have in common for it to pay."""
LARGEST_FAMILY = 16
"""Contexts that are asked together because they begin alike, unless all do."""
BY_DISTANCE = ("alibi", "relative")
"""Positions of our own family that are distances between keys."""
TOLERANCE = 1e-4
"""Nats by which two ways may differ, for each nat and for the first."""


@dataclass(frozen=True)
class _Group:
    """A context and what may follow it. One row of the model serves all continuations that differ in their last
    token."""

    context: tuple[int, ...]
    rows: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]]
    """By the tokens that are read behind the context: the continuations that they serve."""


@dataclass(frozen=True)
class _Family:
    """Groups that are asked in one batch, because their contexts have the first `stem` tokens in common."""

    groups: tuple[_Group, ...]
    stem: int


_Said = dict[tuple[int, ...], Likelihood]
"""By continuation."""


class DecoderReader(LikelihoodReader):
    """A decoder. `prefix` says that it was trained to read its context in both directions."""

    head: ClassVar[Head] = Head("causal_lm")

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limit: int | None = None, prefix: bool = False
    ) -> None:
        super().__init__(model, tokenizer, limit)
        self.prefix = prefix
        self.opening = opening_of(tokenizer)
        self.padding = padding_token(tokenizer)
        self.way: str | None = None if not prefix and _can_go_on(model) else "whole"
        """The only way that is taken; None leaves it to the numbers."""
        self.judged: dict[tuple[str, bool], bool] = {}
        """By way, and whether texts are filled up: whether it gives the right numbers."""
        self.counts_keys = getattr(model.config, "position", None) in BY_DISTANCE or bool(
            getattr(model.config, "alibi", False)
        )
        """Whether the model takes its distances from how many keys there are, filled up or not."""
        self._kept: Any = None

    def encode(self, request: Continuation) -> Encoded:
        context, continuation = spaced(request)
        continuation += request.rest
        before = self.context(context)
        whole = (
            [*self.opening, *self.plain(context + continuation)] if context else [*before, *self.plain(continuation)]
        )
        answer = whole[len(before) :]
        if not answer:  # the end of the context swallowed it
            answer = self.plain(continuation)
        if not answer:
            raise ModelError(f"the tokenizer makes nothing of the answer {continuation!r}; write another word")
        return Encoded(before, tuple(answer))

    def context(self, text: str) -> tuple[int, ...]:
        text = text.rstrip()
        return tuple([*self.opening, *self.plain(text)] if text else self.opening or [self._begin()])

    def _begin(self) -> int:
        """What stands before a text that has nothing before it: the end of another, as in training."""
        for token in (self.tokenizer.eos_token_id, self.tokenizer.sep_token_id, self.tokenizer.bos_token_id):
            if token is not None:
                return int(token)
        raise ModelError(
            "the tokenizer has no token that texts begin or end with, which an answer without a context "
            "needs; set bos_token"
        )

    def excess(self, encoded: Encoded) -> int:
        read = len(encoded.context) + len(encoded.answer) - 1  # the last token is named, not read
        return 0 if self.limit is None else max(0, read - self.limit)

    def facts(self) -> Mapping[str, Any]:
        ways = list(dict.fromkeys(way for (way, _), right in self.judged.items() if right))
        return {"ways": ways or ["whole"]} | ({"prefix_lm": True} if self.prefix else {})

    def likelihoods(self, requests: Sequence[Encoded], **running: Unpack[InferenceOptions]) -> list[Likelihood]:
        fitting = [self._within(each) for each in requests]
        families = _families(_grouped(fitting))
        self._kept = None

        def answer(positions: list[int], device: torch.device) -> list[dict[tuple[int, ...], _Said]]:
            likelihoods = iter(self._batch([families[at] for at in positions], device))
            return [{group.context: next(likelihoods) for group in families[at].groups} for at in positions]

        lengths = [max(len(each.context) + max(map(len, each.rows)) for each in family.groups) for family in families]
        running["batch_size"] = max(
            1, running.get("batch_size", 32) // max((len(each.groups) for each in families), default=1)
        )
        by_context: dict[tuple[int, ...], _Said] = {}
        for family_likelihoods in answers(self.model, lengths, answer, **running):
            by_context |= family_likelihoods
        return [by_context[each.context][each.answer] for each in fitting]

    def _within(self, encoded: Encoded) -> Encoded:
        """Without the beginning of a context that is too long."""
        excess = self.excess(encoded)
        if excess >= len(encoded.context):
            self.refuse_too_long(encoded)
        return encoded.cut(excess)

    def _batch(self, families: Sequence[_Family], device: torch.device) -> list[_Said]:
        """What is said of each group of the families."""
        groups = [group for family in families for group in family.groups]
        stems = [family.stem for family in families for _ in family.groups]
        if min(stems) >= LEAST_SHARED and not self.counts_keys and self._serves("shared", groups, stems, device):
            return self._go_on(groups, stems, device)
        if min(len(each.context) for each in groups) > 1 and self._serves("cached", groups, None, device):
            return self._go_on(groups, None, device)
        return self._whole(groups, device)

    def _serves(self, way: str, groups: Sequence[_Group], stems: list[int] | None, device: torch.device) -> bool:
        """Whether a way gives what asking everything at once gives: judged by the first batch that can be asked so.

        Batches with texts of several lengths, which are filled up, are judged apart from those without.
        """
        if self.way is not None:
            return self.way == way
        uneven = (
            len({len(each.context) - stem for each, stem in zip(groups, stems or [0] * len(groups), strict=True)}) > 1
        )
        if (way, uneven) not in self.judged:
            expected, actual = self._whole(groups, device), self._go_on(groups, stems, device)
            pairs = [
                (one[key].nats, other[key].nats) for one, other in zip(expected, actual, strict=True) for key in one
            ]
            self.judged[way, uneven] = all(abs(one - other) <= TOLERANCE * (1 + abs(one)) for one, other in pairs)
        return self.judged[way, uneven]

    def _whole(self, groups: Sequence[_Group], device: torch.device) -> list[_Said]:
        """Each context with each of its rows, all at once."""
        import torch

        rows = [(at, read) for at, group in enumerate(groups) for read in group.rows]
        likelihoods: list[_Said] = [{} for _ in groups]
        longest = max(len(groups[at].context) + len(read) for at, read in rows)
        keep = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        for low, high in _chunks(len(rows), longest * self._vocabulary()):
            part = rows[low:high]
            texts = [(*groups[at].context, *read) for at, read in part]
            size = max(map(len, texts))
            ids, real = padded_tensors(texts, self.padding, device=device)
            first = min(len(groups[at].context) for at, _ in part) - 1 if keep else 0
            words: dict[str, Any] = {"logits_to_keep": torch.arange(first, size, device=device)} if keep else {}
            if self.prefix:
                words["prefix_length"] = torch.tensor([len(groups[at].context) for at, _ in part], device=device)
            logits = self.model(input_ids=ids, attention_mask=real, **words).logits  # (rows, kept, vocab)
            for row, (at, read) in enumerate(part):
                begin = len(groups[at].context) - 1 - first
                for target in groups[at].rows[read]:
                    likelihoods[at][target] = read_off(logits[row, begin : begin + len(target)], target)
        return likelihoods

    def _go_on(self, groups: Sequence[_Group], stems: list[int] | None, device: torch.device) -> list[_Said]:
        """The contexts through the body of the model, but for their last token; then that token and the rows
        behind it."""
        import torch

        past: Any
        seen: Any
        past, seen = self._shared(groups, stems, device) if stems else (None, None)
        begins = torch.tensor(stems or [0] * len(groups), device=device)
        bodies = [each.context[begin:-1] for each, begin in zip(groups, begins.tolist(), strict=True)]
        if max(map(len, bodies)):
            ids, real = padded_tensors(bodies, self.padding, on_the_left=True, device=device)
            seen = real if seen is None else torch.cat([seen, real], dim=1)
            places = (begins[:, None] + real.cumsum(1) - 1).clamp(min=0)
            past = self.model.base_model(
                input_ids=ids, attention_mask=seen, position_ids=places, past_key_values=past, use_cache=True
            ).past_key_values
        rows = [(at, read) for at, group in enumerate(groups) for read in group.rows]
        likelihoods: list[_Said] = [{} for _ in groups]
        longest = 1 + max(len(read) for _, read in rows)
        chunks = _chunks(len(rows), longest * self._vocabulary())
        for number, (low, high) in enumerate(chunks):
            part = rows[low:high]
            owners = torch.tensor([at for at, _ in part], device=device)
            cache = past if number == len(chunks) - 1 else copy.deepcopy(past)
            cache.batch_select_indices(owners)
            ids, real = (np.full((len(part), longest), fill, dtype=np.int64) for fill in (self.padding, 0))
            for row, (at, read) in enumerate(part):
                ids[row, : 1 + len(read)], real[row, : 1 + len(read)] = (groups[at].context[-1], *read), 1
            starts = torch.tensor([len(groups[at].context) - 1 for at, _ in part], device=device)
            behind = torch.from_numpy(real).to(device)
            logits = self.model(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=torch.cat([seen[owners], behind], dim=1),
                position_ids=starts[:, None] + behind.cumsum(1) - 1,  # what fills up stays within the positions
                past_key_values=cache,
            ).logits  # (rows, query, vocab)
            for row, (at, read) in enumerate(part):
                for target in groups[at].rows[read]:
                    likelihoods[at][target] = read_off(logits[row, : len(target)], target)
        return likelihoods

    def _shared(self, groups: Sequence[_Group], stems: list[int], device: torch.device) -> tuple[Any, Any]:
        """What is kept of the tokens that contexts begin with, a row for each context, and where those are real."""
        import torch

        beginnings = [each.context[:stem] for each, stem in zip(groups, stems, strict=True)]
        once = list(dict.fromkeys(beginnings))
        if self._kept is None or self._kept[0] != once:
            ids, real = padded_tensors(once, self.padding, on_the_left=True, device=device)
            places = (real.cumsum(1) - 1).clamp(min=0)
            cache = self.model.base_model(
                input_ids=ids, attention_mask=real, position_ids=places, use_cache=True
            ).past_key_values
            self._kept = once, cache, real
        owners = torch.tensor([once.index(each) for each in beginnings], device=device)
        past = copy.deepcopy(self._kept[1])
        past.batch_select_indices(owners)
        return past, self._kept[2][owners]

    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)


def _grouped(requests: Sequence[Encoded]) -> list[_Group]:
    """Every context once, every row once."""
    by_context: dict[tuple[int, ...], dict[tuple[int, ...], list[tuple[int, ...]]]] = {}
    for each in requests:
        served = by_context.setdefault(each.context, {}).setdefault(each.answer[:-1], [])
        if each.answer not in served:
            served.append(each.answer)
    return [_Group(context, rows) for context, rows in by_context.items()]


def _families(groups: Sequence[_Group]) -> list[_Family]:
    """Groups whose contexts begin alike: each by itself where all do, for then what they share is kept from batch
    to batch."""
    if not groups:
        return []
    common = _common(min(each.context for each in groups), max(each.context for each in groups))
    common = min(common, min(len(each.context) for each in groups) - 1)
    if len(groups) > 1 and common >= LEAST_SHARED:
        return [_Family((each,), common) for each in groups]
    families: list[_Family] = []
    for group in sorted(groups, key=lambda each: each.context):
        last = families[-1] if families else None
        stem = _common(last.groups[0].context, group.context) if last else 0
        stem = min(stem, len(group.context) - 1, *(len(each.context) - 1 for each in last.groups)) if last else 0
        if last and stem >= LEAST_SHARED and 2 * stem >= len(group.context) and len(last.groups) < LARGEST_FAMILY:
            families[-1] = _Family((*last.groups, group), min(stem, last.stem) if len(last.groups) > 1 else stem)
        else:
            families.append(_Family((group,), 0))
    # a context by itself shares all of its beginning with itself, so that a batch may hold it beside the others
    return [
        each if len(each.groups) > 1 else _Family(each.groups, len(each.groups[0].context) - 1) for each in families
    ]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that two contexts both begin with."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)


def _chunks(rows: int, numbers: int) -> list[tuple[int, int]]:
    """(first, end) of so many rows that their outputs fit into memory."""
    size = max(1, MOST_LOGITS // max(1, numbers))
    return [(low, min(low + size, rows)) for low in range(0, rows, size)]


def _can_go_on(model: PreTrainedModel) -> bool:
    """Whether the model can be told where tokens stand behind those that it keeps."""
    forward, body = (inspect.signature(each.forward).parameters for each in (model, model.base_model))
    return all(
        name in parameters
        for parameters in (forward, body)
        for name in ("position_ids", "past_key_values", "attention_mask")
    )
