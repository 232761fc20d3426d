"""Completions sampled from a model, by transformers or by vLLM: every choice a function of seed, example and position.

Which token is drawn at place t of a completion depends on the model, the prompt and on (seed, draw, t), where the
draw is the completion's own number. It depends neither on the prompts beside it, nor on how many processes share the
work, nor on the state of a generator: a run that is killed and resumed writes the same texts. (Rounding in a batch of
another shape may still tip a choice that is all but even.)

A token is chosen by inverting the distribution function: the first token at which the summed probability exceeds a
uniform number. What is sampled from is the model's distribution at `temperature`, cut to the `top_k` likeliest tokens
(Fan et al. 2018, section 5.3, arxiv.org/abs/1805.04833) or to the nucleus that holds `top_p` (Holtzman et al. 2020,
section 3.1, arxiv.org/abs/1904.09751). Nothing else that a checkpoint's own generation settings ask for is done
(penalties, forced tokens): the log-probabilities that a trainer computes of these texts would not know of it.

vLLM's engine is for one GPU, where the package is installed. It is opened once, with the policy as the stage found it,
and given the policy's weights before every iteration. Each completion has a seed of its own, made of (seed, draw), so
that it does not depend on its neighbours; vLLM's kernels do not promise the same bits twice. Log-probabilities are
computed by the trainer as ever.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.core import architecture_fields
from pipelines.core.errors import DataError, IncompatibleError, ModelError
from pipelines.core.model_types import positions_for_text
from pipelines.data.chat_templates import end_of_turn
from pipelines.data.completions import padding_token
from pipelines.data.ragged import padded_tensors
from pipelines.data.randomness import uniforms
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.checkpoint import start_token
from pipelines.models.packed_linear import packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLING = 0x5A3D
"""The stream of the numbers that choose tokens."""
BATCH = 64
"""Prompts that are continued at a time."""
COLDEST = 1e-20
"""The lowest temperature that logits are divided by: below it they would leave the range of floats."""


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions, in the order of the prompts."""

    ids: Tensor
    """(rows, longest): the tokens, filled up with padding."""
    mask: Tensor
    """(rows, longest), bool: what belongs to the completion, the token that ends it included."""
    ended: Tensor
    """(rows,), bool: whether the completion came to its end before `max_new_tokens`."""
    texts: list[str]
    """The completions as people read them, without special tokens: what follows the prompt, leading white space
    included."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each completion (rows,)."""
        return self.mask.sum(1)

    def tokens(self, row: int) -> list[int]:
        """The tokens of one completion."""
        tokens: list[int] = self.ids[row][self.mask[row]].tolist()
        return tokens


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    seed: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    batch_size: int = BATCH,
    draws: Sequence[int] | None = None,
) -> Rollouts:
    """One completion of each prompt. A decoder goes on with it; an encoder-decoder reads it and writes.

    `draws` number the completions (default: 0, 1, …): another number is another sample of the same prompt. A
    `temperature` of 0 takes the likeliest token; a `top_k` of 0 leaves the vocabulary whole. The model stays on its
    device and in its training mode. Raises DataError for an empty prompt or one that leaves no room, ModelError for a
    model that cannot write token by token.
    """
    numbers = list(range(len(prompts))) if draws is None else [int(draw) for draw in draws]
    if len(numbers) != len(prompts):
        raise ValueError(f"there are {len(numbers)} draws for {len(prompts)} prompts")
    refuse(model, prompts, max_new_tokens)
    pad, ends = padding_token(tokenizer), ends_of(model, tokenizer)
    ids = torch.full((len(prompts), max_new_tokens), pad, dtype=torch.int64)
    by_length = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    with _asked_plainly(model, tokenizer, ends, pad) as generate:
        for start in range(0, len(by_length), batch_size):
            rows = by_length[start : start + batch_size]
            choose = _Choosing(seed, [numbers[row] for row in rows], max_new_tokens, temperature, top_p, top_k)
            new = generate([prompts[row] for row in rows], choose, max_new_tokens).cpu()  # (batch, written)
            ids[torch.tensor(rows), : new.shape[1]] = new
    mask, ended = until_the_end(ids, ends)
    longest = max(int(mask.sum(1).max()), 1) if len(prompts) else 0
    ids, mask = ids[:, :longest].masked_fill(~mask[:, :longest], pad), mask[:, :longest]
    written = [row[own].tolist() for row, own in zip(ids, mask, strict=True)]
    return Rollouts(
        ids, mask, ended, texts_behind(tokenizer, None if model.config.is_encoder_decoder else prompts, written)
    )


def texts_behind(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]] | None, completions: Sequence[Sequence[int]]
) -> list[str]:
    """The completions as people read them, so that prompt + completion is the text that the tokens of both stand for.

    Tokens that are decoded alone lose what they say about the place before them: a space, or that a word goes on.
    Without `prompts` they are texts of their own.
    """
    alone: list[str] = tokenizer.batch_decode([list(each) for each in completions], skip_special_tokens=True)
    if prompts is None:
        return alone
    before = tokenizer.batch_decode([list(each) for each in prompts], skip_special_tokens=True)
    whole = tokenizer.batch_decode(
        [[*prompt, *each] for prompt, each in zip(prompts, completions, strict=True)], skip_special_tokens=True
    )
    return [
        both[len(first) :] if both.startswith(first) else own
        for own, first, both in zip(alone, before, whole, strict=True)
    ]


def until_the_end(ids: Tensor, ends: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(what of `ids` (rows, length) belongs to the text, its first end token included (rows, length); whether
    there is one (rows,))."""
    is_end = torch.isin(ids, torch.tensor(list(ends), dtype=ids.dtype, device=ids.device))
    before = is_end.cumsum(1) - is_end.long()  # end tokens to the left of each place
    return before == 0, is_end.any(1)


def ends_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    turn: Callable[[PreTrainedTokenizerBase], int | None] = end_of_turn,
) -> list[int]:
    """The tokens that end a text: the tokenizer's, those that the model's own generation stops at, and the one that
    ends an answer in the chat template, as `turn` finds it."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = set(own) if isinstance(own, list | tuple) else {own}
    ends.add(tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id)
    ends.add(turn(tokenizer))
    return sorted(int(end) for end in ends if end is not None)


def refuse(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise DataError or ModelError when `model` cannot write `max_new_tokens` behind one of the prompts."""
    if getattr(model.config, "bidirectional_decoder", False):
        raise ModelError(
            "a decoder with bidirectional_decoder writes all tokens at once (mask-predict), so it cannot be "
            "sampled from token by token"
        )
    if not model.can_generate():
        raise ModelError(f"{type(model).__name__} writes no text; completions need a decoder or an encoder-decoder")
    empty = next((row for row, prompt in enumerate(prompts) if len(prompt) == 0), None)
    if empty is not None:
        raise DataError(
            f"prompt {empty + 1} of {len(prompts)} has no tokens, so there is nothing to continue; leave such rows out"
        )
    positions = positions_for_text(model)
    if positions is None or not prompts:
        return
    longest = max(len(prompt) for prompt in prompts)
    read, written = (longest, max_new_tokens) if model.config.is_encoder_decoder else (longest + max_new_tokens, 0)
    if max(read, written) > positions:
        raise DataError(
            f"prompts of {longest} tokens and completions of {max_new_tokens} do not fit into the model's "
            f"{positions} positions; "
            "lower prompts.max_length or the length of the completions (response_length)"
        )


class _Choosing:
    """A logits processor that chooses: it leaves one token of each row, so that greedy search must take it."""

    def __init__(
        self, seed: int, draws: Sequence[int], length: int, temperature: float, top_p: float, top_k: int
    ) -> None:
        self.chances = torch.from_numpy(uniforms(seed, SAMPLING, list(draws), length))  # (rows, length), in [0, 1)
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores` (rows, vocab) with all but the chosen token at minus infinity."""
        if self.temperature == 0:
            chosen = scores.argmax(-1, keepdim=True)
        else:
            logits = restricted(at_temperature(scores, self.temperature), self.top_p, self.top_k)
            chosen = inverted(logits, self.chances[:, self.step].to(scores.device))
        self.step += 1
        return torch.full_like(scores, float("-inf")).scatter(-1, chosen, 0.0)


def at_temperature(logits: Tensor, temperature: float) -> Tensor:
    """`logits` in float32, divided by a temperature above 0."""
    return logits.float() / max(temperature, COLDEST)


def restricted(logits: Tensor, top_p: float, top_k: int) -> Tensor:
    """`logits` (rows, vocab) with minus infinity outside the `top_k` likeliest tokens and the nucleus of `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        outside = probabilities.cumsum(-1) - probabilities >= top_p  # the likelier ones alone already hold top_p
        outside[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(-1, places, outside), float("-inf"))
    return logits


def inverted(logits: Tensor, chances: Tensor) -> Tensor:
    """The token at which the distribution function of `logits` (rows, vocab) first exceeds `chances` (rows,), as
    (rows, 1)."""
    summed = logits.double().softmax(-1).cumsum(-1)
    tokens = torch.searchsorted(summed, (chances[:, None] * summed[:, -1:]).contiguous(), right=True)
    return tokens.clamp(max=logits.shape[-1] - 1)


@contextmanager
def _asked_plainly(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], pad: int
) -> Iterator[Callable[[Sequence[Sequence[int]], _Choosing, int], Tensor]]:
    """A function that lets the model write behind a batch of prompts, by its own distribution and nothing else.

    While it lives the model is in evaluation mode, and its own generation settings, from which transformers fills
    whatever a call leaves open, are put aside.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    writes_apart = bool(model.config.is_encoder_decoder)
    tokens: dict[str, Any] = {"eos_token_id": list(ends) or None, "pad_token_id": pad}
    if writes_apart:
        tokens["decoder_start_token_id"] = start_token(model, tokenizer)
    own = model.generation_config
    training = model.training
    holders = {
        id(each): each for each in (model, model.get_base_model() if hasattr(model, "get_base_model") else model)
    }.values()

    def generate(prompts: Sequence[Sequence[int]], choose: _Choosing, max_new_tokens: int) -> Tensor:
        ids, real = padded_tensors(prompts, pad, on_the_left=not writes_apart)
        written = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=real.to(model.device),
            generation_config=GenerationConfig(
                **tokens, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens, use_cache=True
            ),
            logits_processor=LogitsProcessorList([choose]),
        )
        new: Tensor = written[:, 1 if writes_apart else ids.shape[1] :]
        return new

    try:
        for holder in holders:
            holder.generation_config = GenerationConfig(**tokens)
        model.eval()
        with torch.no_grad(), packed(model), attention_by_size(model):
            yield generate
    finally:
        model.train(training)
        for holder in holders:
            holder.generation_config = own


SEEDS = 0x5EED
"""The stream of the completions' own seeds."""
MEMORY = 0.4
"""The share of the GPU that the engine takes, its copy of the weights included; training needs the rest."""


class VLLMSampler:
    """`sampler(policy, prompts, draws) -> Rollouts`, as `complete` gives them."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        *,
        seed: int,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        top_k: int,
        longest: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.folder = folder
        self.seed = seed
        self.max_new_tokens = max_new_tokens
        self.how = {"temperature": temperature, "top_p": top_p, "top_k": top_k or -1}
        self.longest = longest
        """Tokens of the longest prompt."""
        self.engine: Any = None

    def __call__(self, policy: PreTrainedModel, prompts: Sequence[Sequence[int]], draws: Sequence[int]) -> Rollouts:
        """One completion of each prompt by the policy as it is now."""
        from vllm import SamplingParams

        refuse(policy, prompts, self.max_new_tokens)
        ends = ends_of(policy, self.tokenizer)
        self._given(policy)
        settings = [
            SamplingParams(**self.how, max_tokens=self.max_new_tokens, seed=each, stop_token_ids=ends, detokenize=False)
            for each in seeds(self.seed, draws)
        ]
        outputs = self.engine.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], settings, use_tqdm=False
        )
        return self._rollouts(prompts, [list(each.outputs[0].token_ids) for each in outputs], ends)

    def _given(self, policy: PreTrainedModel) -> None:
        """The engine with the policy's weights."""
        if self.engine is None:
            self.engine = self._opened(policy)
        model = self.engine.llm_engine.model_executor.driver_worker.model_runner.model
        model.load_weights([(name, weight.detach()) for name, weight in policy.named_parameters()])
        self.engine.reset_prefix_cache()

    def _opened(self, policy: PreTrainedModel) -> Any:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its model is reached in this process
        from vllm import LLM

        shutil.rmtree(self.folder, ignore_errors=True)
        policy.save_pretrained(str(self.folder))
        self.tokenizer.save_pretrained(str(self.folder))
        return LLM(
            model=str(self.folder),
            max_model_len=self.longest + self.max_new_tokens,
            gpu_memory_utilization=MEMORY,
            seed=self.seed,
            generation_config="vllm",
        )

    def _rollouts(
        self, prompts: Sequence[Sequence[int]], written: Sequence[list[int]], ends: Sequence[int]
    ) -> Rollouts:
        longest = max(len(each) for each in written)
        pad = padding_token(self.tokenizer)
        ids = torch.tensor([[*each, *[pad] * (longest - len(each))] for each in written], dtype=torch.int64)
        real = torch.arange(longest)[None, :] < torch.tensor([[len(each)] for each in written])
        mask, _ = until_the_end(ids, ends)
        mask &= real
        ended = (torch.isin(ids, torch.tensor(list(ends))) & mask).any(1)
        ids = ids.masked_fill(~mask, pad)
        return Rollouts(
            ids,
            mask,
            ended,
            texts_behind(self.tokenizer, prompts, [row[own].tolist() for row, own in zip(ids, mask, strict=True)]),
        )


def seeds(seed: int, draws: Sequence[int]) -> list[int]:
    """A seed for each completion, from 0 to 2^31 - 1."""
    return [int(chance * 2**31) for chance in uniforms(seed, SEEDS, list(draws), 1)[:, 0]]


def unfit(model: PreTrainedModel, processes: int, adapts: bool) -> None:
    """Raise Misfit for a policy that the engine cannot be given."""
    why = None
    if model.config.is_encoder_decoder:
        why = "writes for decoders only"
    elif model.config.model_type in architecture_fields.OUR_MODEL_TYPES:
        why = "has no class for models of the finery family"
    elif adapts:
        why = "is given whole weights here, and the tuner is an adapter"
    elif processes > 1:
        why = f"is used on one process here, and there are {processes}"
    elif not torch.cuda.is_available():
        why = "needs a GPU"
    if why is not None:
        raise IncompatibleError(f"rollouts: vllm {why}; leave 'rollouts' out")
