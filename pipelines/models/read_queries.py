"""Queries of the places that are read alone: what the last attention of an encoder need not compute.

What attention gives a place depends on that place's query, and on the keys and values of all. Where the last layer is
read at the first place of each text (`models.read_places`), the other queries, their scores and what they attend to
are not asked for. Behind it stand zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

from torch import Tensor, nn

ATTENTIONS = ("eager", "sdpa", "finery_training")
"""Those that take fewer queries than keys, and a mask of each."""


@contextmanager
def first_queries(attention: nn.Module) -> Iterator[None]:
    """Inside the `with` block `attention` attends for the first place of each text alone, where it is BERT's or
    Finery's own. Other modules, and calls that are not understood, do as before."""
    before = vars(attention).get("forward")
    attend_of = _first_of_bert if is_of_bert(attention) else _first_of_finery if _is_of_finery(attention) else None
    if attend_of is None:
        yield
        return
    attention.forward = attending_to_itself(attention, attend_of(attention))
    try:
        yield
    finally:
        del attention.forward
        if before is not None:
            attention.forward = before


def is_of_bert(module: nn.Module) -> bool:
    """Whether it computes what the self-attention of BERT does: some families of transformers have the same code."""
    return type(module).__name__.endswith("SelfAttention") and _is_bert_code(type(module).forward)


@cache
def _is_bert_code(forward: Callable[..., Any]) -> bool:
    from transformers.models.bert.modeling_bert import BertSelfAttention

    return _reads(forward) == _reads(BertSelfAttention.forward)


def _reads(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a function does, wherever it stands."""
    code: CodeType = function.__code__
    return code.co_code, code.co_names, code.co_consts, code.co_varnames


def _is_of_finery(module: Any) -> bool:
    from pipelines.architectures.attention import FineryAttention

    return type(module) is FineryAttention and module.scoring.kind != "additive" and not module.is_causal


Forward = Callable[..., tuple[Tensor, Tensor | None]]
Attend = Callable[[Tensor, Tensor | None, Any, dict[str, Any]], Tensor | None]
"""`attend(states, mask, rotation, other words)`: what the module gives, or None where it is to do so itself."""


def attending_to_itself(module: Any, attend: Attend) -> Forward:
    """A `forward` for BERT's attention or Finery's that asks `attend` wherever states attend to themselves alone."""
    plain: Forward = module.forward

    def of_bert(
        hidden_states: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        attended = attend(hidden_states, attention_mask, None, named) if past_key_values is None else None
        if attended is None:
            return plain(hidden_states, attention_mask, past_key_values, **named)
        return attended, None

    def of_finery(
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        rotation: Any = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        itself = key_value_states is None and past_key_values is None
        attended = attend(hidden_states, attention_mask, rotation, named) if itself else None
        if attended is None:
            return plain(hidden_states, attention_mask, key_value_states, past_key_values, rotation, **named)
        return attended, None

    return of_bert if is_of_bert(module) else of_finery


def _first_of_bert(module: Any) -> Attend:
    def by_head(layer: nn.Module, states: Tensor) -> Tensor:
        made: Tensor = layer(states)
        return made.view(*states.shape[:2], -1, module.attention_head_size).transpose(1, 2)

    def attend(states: Tensor, mask: Tensor | None, _: Any, named: dict[str, Any]) -> Tensor | None:
        if not _is_served(module, states, mask, named):
            return None
        query = by_head(module.query, states[:, :1])
        key, value = by_head(module.key, states), by_head(module.value, states)
        return _spread(_attend(module, query, key, value, mask, module.dropout.p, named).flatten(2), states.shape[1])

    return attend


def _first_of_finery(module: Any) -> Attend:
    from pipelines.architectures.positions import rotate

    def attend(states: Tensor, mask: Tensor | None, rotation: Any, named: dict[str, Any]) -> Tensor | None:
        if not _is_served(module, states, mask, named):
            return None
        query = module._by_head(module.query, states[:, :1])
        query = module.scoring.of_query(query if module.query_norm is None else module.query_norm(query))
        if rotation is not None:
            query = rotate(query, (rotation[0][..., :1, :], rotation[1][..., :1, :]))
        key, value = module._keys_and_values(states, rotation)
        attended = _attend(module, query, key, value, mask, module.attention_dropout, named)
        return _spread(module.output(attended.flatten(2)), states.shape[1])

    return attend


def _is_served(module: Any, states: Tensor, mask: Tensor | None, named: dict[str, Any]) -> bool:
    """Whether a call is one of those that are understood: all of each text at once, in one of the known attentions."""
    shown = named.get("output_attentions") or module.config.output_attentions
    fits = mask is None or (isinstance(mask, Tensor) and mask.ndim == 4)
    biased = any(named.get(name) is not None for name in ("position_bias", "cu_seq_lens_q"))
    known = module.config._attn_implementation in ATTENTIONS
    return known and fits and not shown and not biased and states.ndim == 3 and states.shape[1] > 1


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    named: dict[str, Any],
) -> Tensor:
    """Of one query a text (batch, heads, 1, head_dim) -> (batch, 1, heads, head_dim)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from pipelines.architectures.attention import eager_attention

    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_attention)
    attended: Tensor = attend(
        module,
        query,
        key,
        value,
        None if mask is None else mask[:, :, :1],
        dropout=dropout if module.training else 0.0,
        scaling=module.scaling,
        **named,
    )[0]
    return attended


def _spread(first: Tensor, length: int) -> Tensor:
    """(batch, 1, dim) -> (batch, length, dim), zero behind the first place."""
    return nn.functional.pad(first, (0, 0, 0, length - 1))
