"""`finery generate`: continuations of a prompt, decoded in several ways and measured alike; fill-ins for encoders.

Greedy; beam search; samples with temperature, from the k likeliest words (Fan et al. 2018, "Hierarchical Neural Story
Generation", section 5.3, arxiv.org/abs/1805.04833) and from the nucleus that holds probability p (Holtzman et al.
2020, "The Curious Case of Neural Text Degeneration", section 3.1, arxiv.org/abs/1904.09751). Whatever the way, the
log-probability is the model's own: of the whole distribution at temperature 1. Repetition is distinct-2 (Li et al.
2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", section 5, arxiv.org/abs/1510.03055),
as the share of different pairs among all pairs of neighbouring tokens.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject, lines_of
from pipelines.data.chat_prompts import bounded_end_of_turn, prompt_text
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.heads import Family
from pipelines.models.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FILL_INS = 5
"""Candidates shown for each mask."""
USED = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
"""What of a checkpoint's own generation settings is kept: its tokens. Its penalties and lengths are not."""


@dataclass(frozen=True)
class GenerateRequest:
    """What `finery generate` was asked."""

    model: str
    prompt: str | None = None
    prompts: str | None = None
    """A file with one prompt a line, or `.jsonl` with objects that have a `prompt`."""
    max_new_tokens: int = 64
    num_beams: int = 4
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.95
    samples: int = 3
    seed: int = 42
    plain: bool = False
    """Whether a decoder with a chat template continues the prompt as it stands, instead of answering it as a
    user's message."""


@dataclass(frozen=True)
class TextGenerator:
    """A model that continues texts."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    family: Family
    request: GenerateRequest
    tokens: JSONObject
    """The special tokens that decoding begins, ends and fills up with."""


def answer(fields: JSONObject) -> JSONObject:
    """What the model makes of every prompt, as plain data. Raises FineryError."""
    request = GenerateRequest(**fields)
    prompts = prompts_of(request)
    checkpoint = checkpoints.find(request.model)
    config = checkpoints.config_of(checkpoint)
    family = heads.family_of(config)
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    if family == "encoder":
        _need_masks(request.model, prompts, tokenizer)
    model = checkpoints.open_checkpoint(checkpoint, heads.FAMILY_HEADS[family], trained_head=True)
    writer = TextGenerator(model, tokenizer, family, request, special_tokens(model, tokenizer))
    about: dict[str, Any] = {"model": request.model, "family": family}
    if family == "encoder":
        return about | {"method": "fill_mask", "prompts": [fill_in(writer, prompt) for prompt in prompts]}
    notes: list[str] = []
    if chats(writer):
        notes.append(
            "The prompts are asked as a user's messages, in the model's chat template; --plain continues them as texts."
        )
    way = mask_predict if getattr(config, "bidirectional_decoder", False) else autoregressive
    continued = [way(writer, prompt, notes) for prompt in prompts]
    return about | {
        "method": way.__name__,
        "seed": request.seed,
        "notes": list(dict.fromkeys(notes)),
        "prompts": continued,
        "settings": {
            name: getattr(request, name)
            for name in ("max_new_tokens", "num_beams", "temperature", "top_k", "top_p", "samples")
        },
    }


def prompts_of(request: GenerateRequest) -> list[str]:
    """The prompt, or those of the file. Raises CommandError when there is nothing to continue."""
    if request.prompts is None:
        prompts = [request.prompt or ""]
        if not prompts[0].strip():
            raise CommandError("the prompt is empty; give the beginning of a text")
        return prompts
    path = Path(request.prompts)
    try:
        lines = lines_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise CommandError(f"--prompts '{path}' {reason}; give a text file with one prompt a line") from None
    if path.suffix == ".jsonl":
        lines = [_prompt_in(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise CommandError(f"--prompts '{path}' holds no prompt; write one a line")
    return prompts


def _prompt_in(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise CommandError(
            f'--prompts \'{path}\', line {number}: must be an object such as {{"prompt": "Once upon a time"}}'
        )
    return str(row["prompt"])


def autoregressive(writer: TextGenerator, prompt: str, notes: list[str]) -> JSONObject:
    """Greedy, beam search and samples, one after another."""
    from pipelines.models.sampling import COLDEST

    request = writer.request
    inputs = _inputs(writer, prompt)
    ways: list[tuple[str, dict[str, Any], int]] = [("greedy", {"do_sample": False, "num_beams": 1}, request.seed)]
    if request.num_beams > 1:
        ways.append((f"beam {request.num_beams}", {"do_sample": False, "num_beams": request.num_beams}, request.seed))
    drawn = {
        "do_sample": True,
        "num_beams": 1,
        "temperature": max(request.temperature, COLDEST),
        "top_k": request.top_k,
        "top_p": request.top_p,
    }
    ways += [(f"sample {number}", drawn, request.seed + number - 1) for number in range(1, request.samples + 1)]
    room = _room(writer, inputs, notes)
    _generate(writer, inputs, ways[0][1], 1, request.seed)  # the first call of all pays for what later ones find ready
    return {
        "prompt": prompt,
        "continuations": [_continuation(writer, inputs, name, how, room, seed) for name, how, seed in ways],
    }


def mask_predict(writer: TextGenerator, prompt: str, notes: list[str]) -> JSONObject:
    """All words at once, the least certain ones again and again: the way of a decoder that sees both sides.

    Such a model gives no probability to a text from left to right. Each word's is the one given all the others
    (pseudo-log-likelihood, Salazar et al. 2020, "Masked Language Model Scoring", section 2, arxiv.org/abs/1910.14659).
    """
    import torch

    notes.append(
        "This model writes all words at once (mask-predict): beams, temperature and samples do not apply, and log p is "
        "of each word given all others."
    )
    inputs = _inputs(writer, prompt)
    mask = writer.tokenizer.mask_token_id
    started = time.perf_counter()
    words = checkpoints.written_at_once(writer.model, writer.tokenizer, inputs)[0]  # (tokens,)
    ids: list[int] = words.tolist()
    seconds = time.perf_counter() - started
    hidden = torch.eye(len(ids), dtype=torch.bool, device=words.device)  # each row hides one word
    with torch.no_grad():
        # (rows, tokens, vocab)
        logits = writer.model(
            **{name: values.expand(len(ids), -1) for name, values in inputs.items()},
            decoder_input_ids=words.expand(len(ids), -1).masked_fill(hidden, mask),
        ).logits
    chances = logits.diagonal(dim1=0, dim2=1).T.float().log_softmax(-1).gather(-1, words[:, None])[:, 0]
    return {"prompt": prompt, "continuations": [_measured(writer, "mask-predict", ids, chances.tolist(), seconds)]}


def fill_in(writer: TextGenerator, prompt: str) -> JSONObject:
    """The likeliest words for each mask of a prompt, each as if the other masks stayed."""
    import torch

    tokenizer = writer.tokenizer
    inputs = _inputs(writer, prompt)
    with torch.no_grad():
        logits = writer.model(**inputs).logits[0].float()  # (tokens, vocab)
    ids = inputs["input_ids"][0]
    masks = (ids == tokenizer.mask_token_id).nonzero()[:, 0]
    best = logits[masks].softmax(-1).topk(min(FILL_INS, logits.shape[-1]))  # (masks, FILL_INS)
    filled = ids.clone()
    filled[masks] = best.indices[:, 0]
    return {
        "prompt": prompt,
        "masks": [
            {
                "mask": number,
                "position": place,
                "candidates": [
                    {"token": _word(tokenizer, token), "id": token, "probability": round(chance, 6)}
                    for token, chance in zip(tokens, chances, strict=True)
                ],
            }
            for number, (place, tokens, chances) in enumerate(
                zip(masks.tolist(), best.indices.tolist(), best.values.tolist(), strict=True), start=1
            )
        ],
        "text": tokenizer.decode(filled, skip_special_tokens=True),
    }


def distinct_2(ids: Sequence[int]) -> float | None:
    """The share of different pairs among all pairs of neighbours: 1 where nothing repeats; None without a pair."""
    pairs = list(itertools.pairwise(ids))
    return len(set(pairs)) / len(pairs) if pairs else None


def chats(writer: TextGenerator) -> bool:
    """Whether prompts are put into a chat template: that of a decoder that has one, unless plain texts are asked
    for."""
    return writer.family == "decoder" and not writer.request.plain and bool(writer.tokenizer.chat_template)


def _inputs(writer: TextGenerator, prompt: str) -> JSONObject:
    """(1, tokens) tensors. Raises CommandError for prompts that are too long or come to nothing."""
    import torch

    if chats(writer):
        request = prompt_text(writer.tokenizer, [{"role": "user", "content": prompt}])
        ids: list[int] = writer.tokenizer(request, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        ids = checkpoints.text_ids(writer.tokenizer, prompt, stays_open=writer.family == "decoder")
    if not ids:
        raise CommandError(f"nothing of the prompt '{prompt}' is left after its tokenization; give a text with words")
    limit = checkpoints.positions_of(writer.model, writer.tokenizer)
    if limit is not None and len(ids) > limit - (writer.family == "decoder"):
        raise CommandError(
            f"the prompt has {len(ids)} tokens, but '{writer.request.model}' has positions for {limit}; shorten it"
        )
    device = writer.model.device
    return {
        "input_ids": torch.tensor([ids], device=device),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long, device=device),
    }


def _room(writer: TextGenerator, inputs: JSONObject, notes: list[str]) -> int:
    """How many tokens can be added before the positions end."""
    wanted = writer.request.max_new_tokens
    limit = checkpoints.positions_of(writer.model, writer.tokenizer)
    if limit is None:
        return wanted
    left = limit - (inputs["input_ids"].shape[1] if writer.family == "decoder" else 1)
    if left < wanted:
        notes.append(f"The model has positions for {limit} tokens: at most {left} instead of {wanted} are added.")
    return min(wanted, left)


def special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> JSONObject:
    """The tokens of the checkpoint's generation settings, and the one that ends an answer in the chat template; the
    settings themselves are emptied, penalties and all."""
    own = getattr(model, "generation_config", None)
    tokens = {name: getattr(own, name, None) for name in USED}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if tokens[name] is None:
            tokens[name] = getattr(tokenizer, name)
    turn, end = bounded_end_of_turn(tokenizer), tokens["eos_token_id"]
    ends = end if isinstance(end, list) else [] if end is None else [end]
    if turn is not None and turn not in ends:
        tokens["eos_token_id"] = [*ends, turn]
    if getattr(model.config, "is_encoder_decoder", False):
        tokens["decoder_start_token_id"] = checkpoints.start_token(model, tokenizer)
    if tokens["pad_token_id"] is None:
        end = tokens["eos_token_id"]
        tokens["pad_token_id"] = end[0] if isinstance(end, list) else end or 0
    if own is not None:
        model.generation_config = type(own)()  # transformers fills from it whatever a call leaves open
    return tokens


def _generate(writer: TextGenerator, inputs: JSONObject, how: JSONObject, room: int, seed: int) -> Any:
    """(tokens,): the whole sequence, a decoder's prompt or an encoder-decoder's start token among it."""
    import torch
    from accelerate.utils import set_seed
    from transformers import GenerationConfig

    set_seed(seed)
    settings = GenerationConfig(**writer.tokens, **how, max_new_tokens=room)
    with torch.no_grad():
        return writer.model.generate(**inputs, generation_config=settings)[0]


def _continuation(
    writer: TextGenerator, inputs: JSONObject, name: str, how: JSONObject, room: int, seed: int
) -> JSONObject:
    started = time.perf_counter()
    whole = _generate(writer, inputs, how, room, seed)
    new = whole[inputs["input_ids"].shape[1] if writer.family == "decoder" else 1 :].tolist()
    seconds = time.perf_counter() - started
    return _measured(writer, name, new, log_probabilities(writer, inputs, whole)[-len(new) :] if new else [], seconds)


def log_probabilities(writer: TextGenerator, inputs: JSONObject, whole: Any) -> list[float]:
    """Of a whole sequence (tokens,), (tokens - 1): natural logarithms of tokens after the first, given those before."""
    import torch

    with torch.no_grad():
        if writer.family == "decoder":
            logits = writer.model(input_ids=whole[None, :-1]).logits
        else:
            logits = writer.model(**inputs, decoder_input_ids=whole[None, :-1]).logits
    chances = logits[0].float().log_softmax(-1)  # (tokens - 1, vocab)
    values: list[float] = chances.gather(-1, whole[1:, None])[:, 0].tolist()
    return values


def _measured(
    writer: TextGenerator, name: str, ids: Sequence[int], chances: Sequence[float], seconds: float
) -> JSONObject:
    """A continuation with its numbers. The end token counts as a token of the text, but not for its repetition."""
    ends = writer.tokens["eos_token_id"]
    ends = set(ends) if isinstance(ends, list) else {ends}
    words = [token for token in ids if token not in ends]
    repeated = distinct_2(words)
    return {
        "method": name,
        "text": writer.tokenizer.decode(words, skip_special_tokens=True),
        "tokens": len(ids),
        "ended": len(words) < len(ids),
        "ids": list(ids),
        "log_probability_per_token": round(sum(chances) / len(chances), 5) if chances else None,
        "log_probabilities": [round(chance, 5) for chance in chances],
        "distinct_2": None if repeated is None else round(repeated, 4),
        "seconds": round(seconds, 4),
        "tokens_per_second": round(len(ids) / seconds, 1),
    }


def _word(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as people read it, with the mark that says whether it goes on a word."""
    text = str(tokenizer.convert_ids_to_tokens(token))
    return text if text.startswith("##") else tokenizer.decode([token]).strip() or text


def _need_masks(given: str, prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """An encoder fills in: each prompt must hold a mask. Raises CommandError."""
    mask = tokenizer.mask_token
    if mask is None:
        raise CommandError(
            f"'{given}' is an encoder, which continues no text, and its tokenizer has no mask to fill in; use a decoder"
        )
    for prompt in prompts:
        if tokenizer.mask_token_id not in tokenizer(prompt)["input_ids"]:
            raise CommandError(
                f"'{given}' is an encoder, which continues no text: put its mask token {mask} where a word is missing "
                f'("The {mask} sat down."), or use a decoder or an encoder-decoder'
            )
