"""Only what is read: past attention, a model's last layer runs for the places that somebody reads.

A head that decides about a text reads one place of the last layer: an encoder's the first token (Devlin et al. 2019,
"BERT", section 3.2), a decoder's the last one (Radford et al. 2018, section 3.2). A language model is asked about the
places that have a label. What stands behind the attention of that layer (norms and feed-forward network, in BERT the
projection too) looks at one place at a time, so the other places need none of it, in training and in evaluation. Keys
and values, and what goes into them, are those of all tokens.

A layer is cut between two of its modules: the first is handed the read places only, (1, read, dim), and what the
second gives is put back where it came from, (batch, query, dim), with zeros elsewhere. That is done where a trial has
shown that nothing else is read and that logits and gradients stay; every other model runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from pipelines.core.costs import DENSEST
from pipelines.models.layer_compilation import as_written, is_compiled
from pipelines.models.read_queries import first_queries

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NORMS = ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2")
"""What a decoder layer calls the norm before its feed-forward network: Gemma 2, Llama and its kin, GPT-2."""
TOLERANCE = 0.02
"""Between logits of the whole layer and of the cut one, as a share of the largest; products of another size round
differently in lower precisions, and a wrong place is wrong by whole logits."""

Rule = Literal["first", "last of the mask", "last token"]
"""Which place of a text a head reads: the first one, the last one whose attention mask is 1, or the last one whose
token is not the config's padding token."""
RULES: tuple[Rule, ...] = ("first", "last of the mask", "last token")
ANSWERS = ("wanted", "wanted and first")
"""What is read of a last layer when a head is handed the wanted places; an encoder's pooler reads the first one too."""
NOTHING = ""
"""What is remembered where neither a rule nor an answer fits."""
TEXT, WANTED = "finery_text_place", "finery_wanted_places"
"""The attributes of a model that remember what was found."""
RECOMPUTING = "finery_recomputing"
"""And the one that remembers which of its modules say whether they compute activations twice."""


# -- what a caller asks for --------------------------------------------------------------------------------------------


@contextmanager
def text_alone(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[None]:
    """Within the block, the logits that the head of `model` gives of whole texts cost less and are the same, where that
    is so.

    inputs: `input_ids` and the like (batch, length), or (batch, choices, length). Nobody but the head may read the
    hidden states of the last layer: they are zero at other places then.
    """
    bare = without_wrappers(model)
    layer = last_layer(bare)
    rule = text_rule(bare, layer, inputs) if layer is not None and can_be_cut(model, layer) else None
    places = None if rule is None else ReadPlaces.of_texts(rule, bare, inputs)
    if places is None:
        yield
        return
    with cut(layer, places):
        yield


@contextmanager
def only_positions(model: nn.Module, wanted: Tensor, inputs: dict[str, Tensor] | None = None) -> Iterator[None]:
    """Let the body of `model` hand only the `wanted` (batch, query) positions to its head, as (1, wanted, dim).

    With `inputs`, what the model is going to be asked, its last layer runs for few more than these, where a trial says
    that nothing else is read.
    """

    def narrow(module: nn.Module, arguments: Any, output: Any) -> Any:
        hidden = output[0][wanted].unsqueeze(0)
        if isinstance(output, tuple):
            return (hidden, *output[1:])
        output["last_hidden_state"] = hidden
        return output

    bare = without_wrappers(model)
    places = None if inputs is None else _wanted_places(model, bare, inputs, wanted)
    hook = bare.base_model.register_forward_hook(narrow)
    try:
        if places is None:
            yield
        else:
            with cut(last_layer(bare), places):
                yield
    finally:
        hook.remove()


def _wanted_places(
    model: nn.Module, bare: PreTrainedModel, inputs: dict[str, Tensor], wanted: Tensor
) -> ReadPlaces | None:
    read = int(wanted.sum())
    layer = last_layer(bare)
    if read == 0 or read > DENSEST * wanted.numel() or layer is None or not can_be_cut(model, layer):
        return None
    answer = wanted_rule(bare, layer, inputs, wanted)
    return ReadPlaces.of_mask(beside(answer, wanted)) if answer else None


# -- the places --------------------------------------------------------------------------------------------------------


class ReadPlaces:
    """Which places of a batch are read."""

    def __init__(self, numbers: Tensor | None = None, shape: torch.Size | None = None) -> None:
        """`numbers` (read,) are those of the places among (batch, query), `shape`; without them it is the first place
        of each row, however long the rows are."""
        self.numbers, self.shape = numbers, shape

    @classmethod
    def of_mask(cls, mask: Tensor) -> ReadPlaces:
        """The places where `mask` (batch, query), boolean, is true."""
        return cls(mask.flatten().nonzero().squeeze(1), mask.shape)

    @classmethod
    def of_texts(cls, rule: Rule, bare: PreTrainedModel, inputs: dict[str, Tensor]) -> ReadPlaces | None:
        """The place that a rule names in each row; None where the inputs do not say which."""
        if rule == "first":
            return cls()
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if ids is None or mask is None or ids.shape != mask.shape:
            return None
        if rule == "last of the mask":
            real = mask != 0
        elif bare.config.pad_token_id is None:
            return None
        else:
            real = ids != bare.config.pad_token_id
        real = real.flatten(0, -2)  # (rows, length)
        rows, length = real.shape
        last = (real * torch.arange(length, device=real.device)).argmax(-1)
        return cls(last + length * torch.arange(rows, device=real.device), real.shape)

    def of(self, states: Tensor) -> Tensor | None:
        """Numbers of the places (read,) among those of `states` (batch, query, dim), row after row; None for states of
        other rows, such as those before which virtual tokens stand."""
        if states.ndim != 3:
            return None
        if self.shape is None:
            return torch.arange(len(states), device=states.device) * states.shape[1]
        return self.numbers if states.shape[:2] == self.shape else None


def narrowed(states: Tensor, numbers: Tensor) -> Tensor:
    """(batch, query, dim) -> (1, read, dim)."""
    return states.flatten(0, 1).index_select(0, numbers).unsqueeze(0)


def spread(states: Tensor, numbers: Tensor, batch: int, query: int) -> Tensor:
    """(1, read, dim) -> (batch, query, dim), zero at places that nobody reads. Raises ValueError for other states."""
    if states.ndim != 3 or states.shape[:2] != (1, len(numbers)):
        raise ValueError(f"expected states of (1, {len(numbers)}, dim), got {tuple(states.shape)}")
    flat = states.new_zeros(batch * query, states.shape[2])
    return flat.index_copy(0, numbers, states[0]).view(batch, query, -1)


# -- the cut -----------------------------------------------------------------------------------------------------------


def last_layer(bare: PreTrainedModel) -> nn.Module | None:
    """The last layer of an encoder or a decoder, if it is of a kind that can be cut."""
    body: Any = getattr(bare, "base_model", None)
    if getattr(getattr(bare, "config", None), "is_encoder_decoder", False):
        body = getattr(body, "decoder", None)
    encoder = getattr(body, "encoder", None)
    stacks = (getattr(body, "layers", None), getattr(body, "h", None), getattr(encoder, "layer", None))
    layers = next((stack for stack in stacks if isinstance(stack, nn.ModuleList)), None)
    layer = layers[-1] if layers else None
    return layer if hasattr(layer, "_transform") or ends(layer) is not None else None


def ends(layer: Any) -> tuple[nn.Module, nn.Module] | None:
    """The module that is handed read places only, and the one whose output is put back.

    BERT and its kin hand both summands of the residual sum to `attention.output`, so that all that follows is narrow.
    A decoder adds the feed-forward network to states that it holds itself: these stay whole, and only the network with
    the norm before it is narrow.
    """
    output = getattr(getattr(layer, "attention", None), "output", None)
    if isinstance(output, nn.Module) and isinstance(getattr(layer, "intermediate", None), nn.Module):
        return output, layer
    network = getattr(layer, "mlp", None)
    norm = next((getattr(layer, name) for name in NORMS if hasattr(layer, name)), None)
    return (norm, network) if isinstance(norm, nn.Module) and isinstance(network, nn.Module) else None


def can_be_cut(model: nn.Module, layer: Any) -> bool:
    """Whether hooks reach the pass, and only it: not in compiled models, nor where activations are computed again when
    the hooks are gone, nor where a layer is cut into chunks of a length that must divide the places."""
    compiled = is_compiled(model) or is_compiled(layer)
    chunks = getattr(layer, "chunk_size", 0) or getattr(layer, "chunk_size_feed_forward", 0)
    return not (compiled or chunks or _recomputes(without_wrappers(model)))


def _recomputes(bare: PreTrainedModel) -> bool:
    """Whether activation checkpointing is on. As transformers' property, without a walk of all modules each time."""
    places: tuple[Any, ...] | None = getattr(bare, RECOMPUTING, None)
    if places is None:
        places = tuple(module for module in bare.modules() if hasattr(module, "gradient_checkpointing"))
        setattr(bare, RECOMPUTING, places)
    return any(place.gradient_checkpointing for place in places)


@contextmanager
def cut(layer: Any, places: ReadPlaces) -> Iterator[None]:
    """What follows the attention of `layer` sees the places that are read and no other, and neither do queries where
    the first place of each row is read."""
    attention = getattr(layer, "attention", None)
    attention = getattr(attention, "self", attention)
    first = places.shape is None and isinstance(attention, nn.Module)
    with first_queries(attention) if first else nullcontext(), _cut_behind_attention(layer, places):
        yield


@contextmanager
def _cut_behind_attention(layer: Any, places: ReadPlaces) -> Iterator[None]:
    if hasattr(layer, "_transform"):
        transform: Callable[[Tensor], Tensor] = layer._transform

        def read(states: Tensor) -> Tensor:
            numbers = places.of(states)
            if numbers is None:
                return transform(states)
            return spread(transform(narrowed(states, numbers)), numbers, *states.shape[:2])

        layer._transform = read
        try:
            yield
        finally:
            del layer._transform
        return
    pair = ends(layer)
    assert pair is not None
    first, last = pair
    cuts: list[tuple[Tensor, int, int]] = []

    def enter(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cuts.clear()
        states = next((each for each in (*given, *named.values()) if isinstance(each, Tensor)), None)
        numbers = None if states is None else places.of(states)
        if states is None or numbers is None:
            return given, named
        whole = states.shape
        cuts.append((numbers, *whole[:2]))

        def narrow(value: Any) -> Any:
            fits = isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == whole[:2]
            return narrowed(value, numbers) if fits else value

        return tuple(narrow(each) for each in given), {name: narrow(each) for name, each in named.items()}

    def leave(module: nn.Module, given: Any, output: Any) -> Any:
        if not cuts:
            return output
        where = cuts.pop()
        if isinstance(output, tuple):
            return (spread(output[0], *where), *output[1:])
        return spread(output, *where)

    hooks = [first.register_forward_pre_hook(enter, with_kwargs=True), last.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# -- the trial ---------------------------------------------------------------------------------------------------------


def text_rule(bare: PreTrainedModel, layer: nn.Module, inputs: dict[str, Tensor]) -> Rule | None:
    """The place that the head of `bare` reads of each text, if it reads one alone; tried once, then remembered.

    Tried on two rows of `inputs`, and on four that tell the rules apart: padded on the right and on the left, one that
    ends with padding tokens that the mask does not hide, and one whose mask hides tokens that are no padding.
    """
    remembered: str | None = getattr(bare, TEXT, None)
    if remembered is not None:
        return next((rule for rule in RULES if rule == remembered), None)
    if is_divided(layer):
        return None
    with torch.inference_mode(False):
        some = _telling_rows(inputs, bare.config.pad_token_id)
        if some is None:
            return None
        read: Rule | None = None
        for rule in RULES:
            places = ReadPlaces.of_texts(rule, bare, some)
            if places is not None and _is_exact(bare, layer, places, lambda: [bare(**some).logits]):
                read = rule
                break
    setattr(bare, TEXT, read or NOTHING)
    return read


def wanted_rule(bare: PreTrainedModel, layer: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> str:
    """What `bare` reads of its last layer when its head is handed the `wanted` places: these, or the first of each
    row too, or more (""); tried once on two rows, then remembered."""
    remembered: str | None = getattr(bare, WANTED, None)
    if remembered is not None:
        return remembered
    if is_divided(layer):
        return NOTHING
    rows = wanted.any(dim=1).nonzero().squeeze(1)[:2]
    chosen = wanted[rows].clone()
    if not len(rows) or chosen.numel() == 1:
        return NOTHING
    if chosen.all():
        chosen.view(-1)[-1] = False
    with torch.inference_mode(False):
        some, chosen = {name: value[rows].clone() for name, value in inputs.items()}, chosen.clone()

        def ask() -> list[Tensor]:
            with only_positions(bare, chosen):
                outputs = bare(**some)
            return [each for each in outputs.values() if isinstance(each, Tensor) and each.is_floating_point()]

        answers = (each for each in ANSWERS if _is_exact(bare, layer, ReadPlaces.of_mask(beside(each, chosen)), ask))
        answer = next(answers, NOTHING)
    setattr(bare, WANTED, answer)
    return answer


def is_divided(layer: nn.Module) -> bool:
    """Whether processes share the weights, so that one of them cannot try alone what it is not asked for."""
    return any(hasattr(weight, "device_mesh") or hasattr(weight, "ds_id") for weight in layer.parameters())


def beside(answer: str, wanted: Tensor) -> Tensor:
    """The places that are read (batch, query) where the head is handed the `wanted` ones."""
    if answer == ANSWERS[0]:
        return wanted
    first = torch.zeros_like(wanted)
    first[:, 0] = True
    return wanted | first


def _telling_rows(inputs: dict[str, Tensor], padding: int | None) -> dict[str, Tensor] | None:
    """Two rows of the inputs, and four of the tokens of the fullest one, as `text_rule` says; of multiple choice, six
    options of one question. None where the texts are too short to tell."""
    ids = inputs.get("input_ids")
    if ids is None or ids.shape[-1] < 3 or any(value.shape[: ids.ndim] != ids.shape for value in inputs.values()):
        return None
    rows = {name: value.flatten(0, ids.ndim - 2) for name, value in inputs.items()}
    mask = rows.get("attention_mask", torch.ones_like(rows["input_ids"]))
    fullest = int(mask.sum(1).argmax())
    real = rows["input_ids"][fullest][mask[fullest] != 0]
    if padding is not None:
        real = real[real != padding]
    if not len(real):
        return None
    some = {name: value[[0, -1, *[fullest] * 4]].clone() for name, value in rows.items()}
    length = mask.shape[1]
    part = length // 3
    tokens, seen = some["input_ids"], mask[[0, -1, *[fullest] * 4]].clone()
    tokens[2:] = real.repeat(length // len(real) + 1)[:length]
    seen[2:] = 1
    filling = int(real[0]) if padding is None else padding
    tokens[2, -part:], seen[2, -part:] = filling, 0
    tokens[3, :part], seen[3, :part] = filling, 0
    tokens[4, -part:] = filling
    seen[5, -part:] = 0
    if "attention_mask" in some:
        some["attention_mask"] = seen
    return {name: value.unsqueeze(0) for name, value in some.items()} if ids.ndim == 3 else some


def _is_exact(bare: PreTrainedModel, layer: nn.Module, places: ReadPlaces, ask: Callable[[], list[Tensor]]) -> bool:
    """Whether what `ask` gives depends on no other place of the layer's output, and stays when the layer is cut, with
    its gradients."""
    entered: list[Tensor] = []
    left: list[Tensor] = []

    def enter(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        entered.append(given[0].detach().requires_grad_())
        return (entered[-1], *given[1:])

    def leave(module: nn.Module, given: Any, output: Any) -> None:
        left.append(output[0] if isinstance(output, tuple) else output)

    def answers_and_gradients(to: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        for states in (entered, left):
            states.clear()
        answers = ask()
        total = torch.stack([each.float().square().sum() for each in answers]).sum()
        return answers, torch.autograd.grad(total, [*entered, *to])

    hooks = [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        device = next(layer.parameters()).device
        with tried(bare, device), torch.inference_mode(False), torch.enable_grad():
            whole, gradients = answers_and_gradients(left)
            calls = len(entered)
            for states, gradient in zip(left, gradients[calls:], strict=True):
                numbers = places.of(states)
                if numbers is None or not _lies_in(gradient, numbers):
                    return False
            with cut(layer, places):
                narrow, narrow_gradients = answers_and_gradients([])
            pairs = zip((*whole, *gradients[:calls]), (*narrow, *narrow_gradients), strict=True)
            return all(_are_alike(one, other) for one, other in pairs)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        return False
    finally:
        for hook in hooks:
            hook.remove()


def _lies_in(gradient: Tensor, numbers: Tensor) -> bool:
    """Whether a gradient (batch, query, dim) is zero outside of the numbered places, and at none of them."""
    touched = gradient.flatten(0, 1).any(-1)
    inside = touched[numbers]
    return bool(inside.all()) and int(touched.sum()) == len(numbers)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * one.abs().max())


@contextmanager
def tried(bare: PreTrainedModel, device: torch.device) -> Iterator[None]:
    """Passes that only look: without dropout, gradients or random numbers."""
    modes = {module: module.training for module in bare.modules()}
    bare.eval()
    try:
        with as_written(), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def without_wrappers(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside DistributedDataParallel, torch.compile and PEFT."""
    bare: Any = model.module if hasattr(model, "module") else model
    bare = getattr(bare, "_orig_mod", bare)
    bare = bare.module if isinstance(bare, nn.parallel.DistributedDataParallel) else bare
    return bare.get_base_model() if hasattr(bare, "get_base_model") else bare
