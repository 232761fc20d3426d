"""Attention over sequences that stand one after another, each of which sees itself alone: `finery_varlen`.

Packed documents, and batches without padding, are told to the kernel by where each sequence begins, instead of by a
mask of every token against every other: work and memory grow with the squares of the sequences' lengths and not with
that of the block (Dao 2023, "FlashAttention-2", arxiv.org/abs/2307.08691; `torch.nn.attention.varlen` of torch 2.13).
The arguments are those of transformers' batches without padding: `cu_seq_lens_q` and `cu_seq_lens_k` (sequences + 1,),
int32, where each begins and the last one ends; `max_length_q` and `max_length_k`, the longest.

On a GPU in half precision `varlen_attn` computes it; everywhere else, and where a weight is dropped out, torch's scaled
dot products do, one sequence after another. A batch that names no sequences gets what `sdpa` of transformers gives it,
mask and all, so that a model may keep this attention while it generates or reads padded batches.

The attention is registered with transformers by name. A model of `pipelines.architectures` asks transformers' table
for it and carries no code of it: a published checkpoint opens with the attention that is usual where it is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import varlen
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelines.core.model_types import takes_sequences
from pipelines.models.read_places import without_wrappers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from pipelines.core.interfaces import Context, Precision
    from pipelines.core.training_arguments import TrainingArguments

NAME = "finery_varlen"
"""What transformers' tables of attentions and of masks call it."""
HALF = (torch.float16, torch.bfloat16)
"""Types that the kernel computes in."""
LARGEST_HEAD, HEADS_IN = 256, 8
"""The kernel's heads have at most so many dimensions, in whole eights."""
OLDEST = (8, 0)
"""The oldest compute capability that the kernel runs on: Ampere."""
WITHOUT_KERNEL = 1024
"""Tokens of the shortest block of which sequences are faster than a mask on a processor, where there is no kernel."""
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some models change scores by, for which sequences have no place."""
CACHES = ("past_key_values", "encoder_hidden_states")
"""What a model sees beside its own tokens."""


def register() -> None:
    """Make the name known to transformers; again without effect."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, varlen_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)  # of batches that name no sequences


def unavailable(config: PreTrainedConfig, precision: Precision, block: int) -> str | None:
    """Why a model does not attend by sequences here to blocks of so many tokens, as a sentence without its subject;
    None if it does."""
    if (why := takes_sequences({"model_type": config.model_type, **config.to_dict()})) is not None:
        return why
    if not torch.cuda.is_available() and block >= WITHOUT_KERNEL:
        return None
    if not torch.cuda.is_available():
        fast = f"is faster on a processor from blocks of {WITHOUT_KERNEL} tokens on"
        return f"{fast}, torch finds no GPU, and these have {block}"
    if torch.version.cuda is None:
        return "runs on NVIDIA GPUs, and those of torch are others"
    if torch.cuda.get_device_capability() < OLDEST:
        return f"needs a GPU of compute capability {OLDEST[0]}.{OLDEST[1]} or newer"
    if precision not in ("bf16", "fp16"):
        return "computes in bf16 or fp16, but launch.mixed_precision is no"
    size = head_size(config)
    if size % HEADS_IN or size > LARGEST_HEAD:
        return (
            f"has heads of at most {LARGEST_HEAD} dimensions, in whole {HEADS_IN}s, but those of the model have {size}"
        )
    return None


def head_size(config: PreTrainedConfig) -> int:
    """Dimensions of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def names_sequences(config: PreTrainedConfig) -> bool:
    """Whether a model of this live config is told where sequences begin by its positions, and takes no mask for it."""
    return bool(config._attn_implementation == NAME)


def adopt(model: PreTrainedModel) -> None:
    """Let a model attend by sequences: where `position_ids` begin anew, unless a batch has a mask.

    Raises ValueError where the model's attention cannot.
    """
    if (why := takes_sequences({"model_type": model.config.model_type, **model.config.to_dict()})) is not None:
        raise ValueError(f"{NAME} {why}")
    register()
    model.set_attn_implementation(NAME)
    body = without_wrappers(model).base_model
    body.register_forward_pre_hook(_with_sequences, with_kwargs=True)


def adopt_where_it_serves(context: Context, model: PreTrainedModel, arguments: TrainingArguments, block: int) -> None:
    """`adopt` for blocks of so many tokens where that is the faster way here, and say which it is on a GPU."""
    why = unavailable(model.config, context.precision, block)
    if arguments.torch_compile and why is None:
        why = "is not compiled, but arguments.torch_compile is true"
    if why is None:
        adopt(model)
    if torch.cuda.is_available() and context.world.is_main:
        told = f"by {NAME}" if why is None else f"by masks: {NAME} {why}"
        context.events.emit("progress", what="attention", message=f"sequences of a block are kept apart {told}")


def _with_sequences(
    body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The call of a model's body with its sequences named; None, which changes nothing, where it has a mask or a cache.

    The mask that goes with them is a single True. Models hand masks of four dimensions on as they come, and so none is
    made of every token against every other.
    """
    if not names_sequences(body.config) or any(kwargs.get(name) is not None for name in ("attention_mask", *CACHES)):
        return None
    if (named := kwargs.get("cu_seq_lens_q")) is not None:
        return args, kwargs | {"attention_mask": nothing_hidden(named.device)}
    if (positions := kwargs.get("position_ids")) is None:
        return None
    given = (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
    rows = next(each for each in given if each is not None).shape[0]
    named = sequences_of(positions.expand(rows, -1))
    return args, kwargs | named | {"attention_mask": nothing_hidden(positions.device)}


def nothing_hidden(device: torch.device) -> Tensor:
    """The mask of a batch whose sequences are named: (1, 1, 1, 1)."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def sequences_of(position_ids: Tensor) -> dict[str, Any]:
    """The keywords that name the sequences of `position_ids` (batch, length), whose rows are laid end to end.

    One begins with each row, and wherever a position is not the one after that before it, as transformers reads them.
    """
    begins = torch.ones_like(position_ids, dtype=torch.bool)
    begins[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    starts = begins.flatten().nonzero().squeeze(1)
    bounds = functional.pad(starts, (0, 1), value=position_ids.numel()).to(torch.int32)
    longest = int(bounds.diff().max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """softmax(q kᵀ · scaling) v within each sequence, in the form that transformers' models call.

    query (batch, heads, length, head_dim); key and value (batch, key-value heads, length, head_dim). `sliding_window`
    is how many tokens, its own among them, a token sees on a side.

    Returns: (batch, length, heads, head_dim), and no weights. Raises ValueError for what it cannot compute.
    """
    alone = attention_mask is None or attention_mask.shape == (1, 1, 1, 1)
    if cu_seq_lens_q is None:
        if attention_mask is not None and alone and key.shape[2] > 1:
            raise ValueError(
                f"{NAME} was not told where sequences begin: the attention of {type(module).__name__} does not hand on "
                "the arguments of its model"
            )
        words = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **words)
        return attended
    _refuse(module, query, key, not alone, kwargs)
    if cu_seq_lens_k is None or max_length_q is None or max_length_k is None:
        raise ValueError(f"{NAME} needs cu_seq_lens_k, max_length_q and max_length_k beside cu_seq_lens_q")
    batch, heads, length, dim = query.shape
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    beside = -1 if sliding_window is None else sliding_window - 1
    q, k, v = (each.transpose(1, 2).reshape(batch * length, -1, dim) for each in _of_one_type(query, key, value))
    scale = dim**-0.5 if scaling is None else scaling
    window, shared = (beside, 0 if causal else beside), key.shape[1] != heads
    bounds = cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k
    if on_kernel(q, dropout):
        flat = varlen.varlen_attn(q, k, v, *bounds, scale=scale, window_size=window, enable_gqa=shared)
    else:
        flat = one_by_one(q, k, v, *bounds, scale=scale, window_size=window, enable_gqa=shared, dropout=dropout)
    return flat.reshape(batch, length, heads, dim), None


def _refuse(module: nn.Module, query: Tensor, key: Tensor, masked: bool, kwargs: dict[str, Any]) -> None:
    """Raise ValueError for what does not go with sequences."""
    name = type(module).__name__
    if odd := [each for each in UNSUPPORTED if kwargs.get(each) is not None]:
        raise ValueError(f"{NAME} has no {odd[0]}, which {name} asks for: use eager or sdpa")
    if masked:
        raise ValueError(
            f"{NAME} has no place for a mask beside the sequences of a batch, which {name} was given: leave "
            "attention_mask out, and let `adopt` open the model"
        )
    if key.shape[2] != query.shape[2]:
        raise ValueError(
            f"{NAME} was told where {query.shape[2]} queries begin, but {name} has {key.shape[2]} keys: sequences go "
            "with no cache and no prefix"
        )


def _of_one_type(*states: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that autocast computes products in, where it is on."""
    kind = states[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states[0].dtype
    return tuple(each.to(dtype) for each in states)


def on_kernel(query: Tensor, dropout: float) -> bool:
    """Whether `varlen_attn` computes this: query (tokens, heads, head_dim)."""
    fits = query.shape[-1] % HEADS_IN == 0 and query.shape[-1] <= LARGEST_HEAD
    return query.is_cuda and query.dtype in HALF and fits and dropout == 0


def one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """What `varlen_attn` computes, by torch's scaled dot products of one sequence after another, on any device.

    query (tokens, heads, head_dim); key and value (tokens, key-value heads, head_dim); `window_size` is how many keys
    before and after its own a query sees, -1 for all. Keys and queries of a sequence are equally many.
    Returns: (tokens, heads, head_dim).
    """
    lengths = cu_seq_q.diff().tolist()
    attended = []
    for each in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in each)  # (1, heads, tokens of the sequence, head_dim)
        causal = window_size == (-1, 0)
        mask = None if causal else within(q.shape[2], window_size, query.device)
        said = functional.scaled_dot_product_attention(
            q, k, v, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
        )
        attended.append(said[0].transpose(0, 1))
    return torch.cat(attended)


def within(length: int, window_size: tuple[int, int], device: torch.device) -> Tensor | None:
    """Which keys lie in the window of each query of a sequence: (query, key) booleans, None if all do."""
    before, after = (length if side < 0 else side for side in window_size)
    if before >= length - 1 and after >= length - 1:
        return None
    place = torch.arange(length, device=device)
    away = place[None, :] - place[:, None]
    return (away >= -before) & (away <= after)
