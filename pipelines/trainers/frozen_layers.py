"""The layers of a model below the first one that learns, and whether their output can stand in for the text.

A *cut* is a number of layers, counted from the lowest: nothing below it learns, neither the embeddings nor these
layers. What decides is which weights learn, not how a tuner is called: adapters of the upper layers (low-rank updates,
scaled vectors, bottlenecks) leave the lower ones frozen, and what an adapter adds to a layer learns even while it is
zero. Virtual tokens stand before the layers, or beside the states of each, so that no layer is frozen with them.

Two things are tried on a few rows before a cut is trusted: that the model answers to the states at the cut as it
answers to the text, and that torch's own graph leads from these states to no weight that learns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.tuners.layer_groups import EMBEDDINGS, HEAD, layer_groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-3
"""Between what the model answers to states at a cut, and to the text itself, as a share of the largest answer."""


class _Enough(Exception):
    """The frozen layers have answered, and the rest of the pass is not needed."""


class FrozenLayers:
    """The one stack of a model, whose lowest layers may hand states on instead of computing them."""

    def __init__(self, model: PreTrainedModel, bare: PreTrainedModel, weights: Sequence[Sequence[str]]) -> None:
        self.model = model
        """What is asked: the model, or the PEFT model around it."""
        self.bare = bare
        """The model itself, by whose parameters' names weights are meant."""
        self.weights = weights
        """Names of the weights of the embeddings, and of each layer from the lowest on."""
        self.layers: list[nn.Module] = []
        self.paths: list[str] = []
        """Full names of the layers in `bare`."""
        self.cut = 0
        """How many layers hand states on."""
        self.current: Tensor | None = None
        """The states at the cut of the batch that is being learnt from (batch, length, dim)."""
        self.outputs = 0
        """Values of the tuple that a layer answers with, states and None; 0 where it answers with states alone."""
        self.dtype, self.dim = torch.float32, 0
        """Of the states, and their width."""

    def learning(self) -> set[str]:
        """Names of the weights that learn now."""
        return {name for name, weight in self.bare.named_parameters() if weight.requires_grad}

    def frozen(self) -> int:
        """How many of the lowest layers do not learn now; 0 where the embeddings do."""
        learning = self.learning()
        count = next((at for at, names in enumerate(self.weights) if learning.intersection(names)), len(self.weights))
        return max(count - 1, 0)

    @contextmanager
    def passing(self, highest: int) -> Iterator[None]:
        """Inside the `with` block the layers below `cut`, which is at most `highest`, hand states on, and the last of
        them answers with `current`. Where there is none, or it is of another batch, they compute as ever."""

        def forward_of(place: int, layer: nn.Module) -> Callable[..., Any]:
            own = layer.forward

            def forward(hidden_states: Tensor, *rest: Any, **words: Any) -> Any:
                current = self.current
                if place >= self.cut or current is None or current.shape[:2] != hidden_states.shape[:2]:
                    return own(hidden_states, *rest, **words)
                states = current if place == self.cut - 1 else hidden_states
                return (states, *[None] * (self.outputs - 1)) if self.outputs else states

            return forward

        with ExitStack() as stack:
            for place, layer in enumerate(self.layers[:highest]):
                layer.forward = forward_of(place, layer)
                stack.callback(vars(layer).pop, "forward")
            yield

    def states(self, inputs: dict[str, Any], cuts: Collection[int]) -> dict[int, Tensor]:
        """What stands at each cut, all of them at least 1, for a batch (batch, length, dim): one pass up to the
        highest."""
        found: dict[int, Tensor] = {}

        def keep_at(cut: int) -> Callable[..., None]:
            def keep(module: nn.Module, given: Any, output: Any) -> None:
                self.outputs = len(output) if isinstance(output, tuple) else 0
                found[cut] = output[0] if self.outputs else output
                self.dtype, self.dim = found[cut].dtype, found[cut].shape[-1]
                if cut == max(cuts):
                    raise _Enough

            return keep

        with ExitStack() as stack:
            for cut in cuts:
                stack.callback(self.layers[cut - 1].register_forward_hook(keep_at(cut)).remove)
            with suppress(_Enough):
                self.model(**inputs)
        return found

    def agrees(self, inputs: dict[str, Any], cuts: Collection[int]) -> bool:
        """Whether the model answers to the states at each cut as it answers to the text."""
        mask = inputs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return False
        with torch.no_grad():
            expected = self.model(**inputs)
            states = self.states(inputs, cuts)
            if any(each.shape[:2] != mask.shape for each in states.values()):
                return False
            try:
                return all(self._same(expected, self._answer(inputs, cut, states[cut]), mask) for cut in cuts)
            except (AttributeError, TypeError, ValueError):  # layers that hand on more than states, as cells do
                return False

    def _answer(self, inputs: dict[str, Any], cut: int, states: Tensor) -> Any:
        """What the model answers when the layers below the cut hand these states on, with 0 for padding."""
        self.current, self.cut = states * inputs["attention_mask"][..., None], cut
        try:
            with self.passing(cut):
                return self.model(**inputs)
        finally:
            self.current, self.cut = None, 0

    @staticmethod
    def _same(expected: Any, found: Any, mask: Tensor) -> bool:
        """Whether two answers have the same logits, those of padding left out."""
        names = [name for name in expected if isinstance(expected[name], Tensor) and name.endswith("logits")]
        for name in names:
            whole, apart = expected[name].float(), (found[name].float() - expected[name].float()).abs()
            if not (apart[mask.bool()] if whole.shape[:2] == mask.shape else apart).max() <= TOLERANCE * (
                whole.abs().max()
            ):
                return False
        return bool(names)

    def read(self, inputs: dict[str, Any], cuts: Collection[int]) -> dict[int, set[str]] | None:
        """Names of the weights from which the states at each cut follow, the weights of its layers among them.

        Every weight is asked for its gradient once, so that none is overlooked whatever its name and value. None where
        torch keeps no graph.
        """
        weights = dict(self.bare.named_parameters())
        learning = {name: weight.requires_grad for name, weight in weights.items()}
        follows: dict[int, set[str]] = {}
        try:
            for weight in weights.values():
                weight.requires_grad_(True)
            with torch.enable_grad():
                states = self.states(inputs, cuts)
                for cut in cuts:
                    total = states[cut].float().sum()
                    gradients = torch.autograd.grad(total, list(weights.values()), retain_graph=True, allow_unused=True)
                    follows[cut] = {name for name, each in zip(weights, gradients, strict=True) if each is not None}
        except RuntimeError:
            return None
        finally:
            for name, weight in weights.items():
                weight.requires_grad_(learning[name])
        return {cut: names.union(*self.weights[: cut + 1]) for cut, names in follows.items()}

    def code(self, cut: int) -> set[str]:
        """Names of the Python modules that compute the states at a cut."""
        above = tuple(f"{path}." for path in self.paths[cut:])
        modules = {
            type(module).__module__
            for name, module in self.bare.named_modules()
            if not f"{name}.".startswith(above or ("\0",))
        }
        return {name for name in modules if not name.startswith(("torch.", "peft."))}


def stack_of(model: PreTrainedModel) -> FrozenLayers | None:
    """The stack of a model; None where there is none or several, and where something learns that is no weight of the
    model itself, such as virtual tokens, or a weight is packed."""
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    own = {id(weight) for weight in bare.parameters()}
    if any(weight.requires_grad and id(weight) not in own for weight in model.parameters()):
        return None
    if not all(weight.is_floating_point() for weight in bare.parameters()):
        return None
    groups = layer_groups(bare)
    stack = [group for group in groups if group.name not in (EMBEDDINGS, HEAD)]
    if not stack or groups[0].name != EMBEDDINGS or len({group.name.rpartition(".")[0] for group in stack}) != 1:
        return None
    layers = FrozenLayers(model, bare, [groups[0].parameters, *(group.parameters for group in stack)])
    try:
        layers.layers = [bare.get_submodule(group.name) for group in stack]
    except AttributeError:  # lists of modules beside each other
        return None
    layers.paths = [group.name for group in stack]
    return layers
