"""Only what the head reads: past attention, an encoder's last layer runs for the first token alone.

A head that decides about a text reads the first token of the last layer (Devlin et al. 2019, section 3.2). What stands
behind the attention of that layer (its projection, norms and feed-forward network) looks at one place at a time, so the
other places need none of it, in training and in evaluation. Keys and values, and what goes into them, are those of all
tokens. Served are the layers of BERT and its kin, which hand both summands to `attention.output`, and our family's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.models.log_probabilities import tried, without_wrappers


@contextmanager
def first_token_only(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[None]:
    """Within the block, what `model` says of `inputs` costs less and is the same, where that is so.

    Whether its head reads the first token alone is tried once on a few rows, and remembered. Hidden states of the last
    layer are those of the first token then. Models that recompute activations, and compiled ones, run as they are.
    """
    bare = without_wrappers(model)
    layer = last_layer(bare)
    compiled = hasattr(model, "_orig_mod") or hasattr(getattr(model, "module", None), "_orig_mod")
    if layer is None or compiled or bare.is_activation_checkpointing or not reads_first_token(bare, layer, inputs):
        yield
        return
    with cut(layer):
        yield


def last_layer(bare: nn.Module) -> nn.Module | None:
    """The last layer of an encoder, if it is of a kind that can be cut."""
    body: Any = getattr(bare, "base_model", None)
    layers = getattr(body, "layers", None)
    if layers is None:
        layers = getattr(getattr(body, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return None
    layer: Any = layers[-1]
    own = hasattr(layer, "_transform") and hasattr(layer, "feed_forward")
    return layer if own or isinstance(getattr(getattr(layer, "attention", None), "output", None), nn.Module) else None


@contextmanager
def cut(layer: Any) -> Iterator[None]:
    """What follows the attention of `layer` sees the first place of (batch, query, dim) and no other."""
    if hasattr(layer, "_transform"):
        transform: Callable[[Tensor], Tensor] = layer._transform
        layer._transform = lambda states: transform(states[:, :1])
        try:
            yield
        finally:
            del layer._transform
        return

    def first(value: Any) -> Any:
        return value[:, :1] if isinstance(value, Tensor) and value.ndim == 3 else value

    def narrow(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return tuple(first(each) for each in given), {name: first(each) for name, each in named.items()}

    hook = layer.attention.output.register_forward_pre_hook(narrow, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def reads_first_token(bare: Any, layer: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether the logits of `bare` depend on no other place of the last layer, and are the same without it."""
    remembered: bool | None = getattr(bare, "finery_reads_first_token", None)
    if remembered is not None:
        return remembered
    some = {name: value[:2] for name, value in inputs.items()}
    length = next(value.shape[1] for value in some.values() if value.ndim > 1)
    if length < 2:
        return False
    said: list[Tensor] = []

    def keep(module: nn.Module, given: Any, output: Any) -> Any:
        states = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_()
        said.append(states)
        return (states, *output[1:]) if isinstance(output, tuple) else states

    hook = layer.register_forward_hook(keep)
    try:
        with tried(bare, next(iter(some.values())).device), torch.inference_mode(False):
            some = {name: value.clone() for name, value in some.items()}
            with torch.enable_grad():
                whole = bare(**some).logits
                (gradient,) = torch.autograd.grad(whole.square().sum(), said[0])
            hook.remove()
            with cut(layer):
                narrow = bare(**some).logits
        elsewhere = gradient.abs().amax((0, 2))[1:]
        same = whole.shape == narrow.shape and bool((whole - narrow).abs().max() <= 0.02 * whole.abs().max())
        alone = gradient.shape[1] == length and not elsewhere.any() and bool(gradient[:, 0].any())
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        same = alone = False
    finally:
        hook.remove()
    bare.finery_reads_first_token = same and alone
    return same and alone
