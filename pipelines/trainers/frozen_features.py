"""What frozen layers make of the training text is computed once, and kept on disk for all epochs, seeds and trials.

Where the embeddings and the layers above them do not learn (the tuner `last_layer`), their output for an example is the
same in every epoch but for dropout, which is left out of them: they are asked in evaluation mode. While the stage
trains, the frozen layers hand these features on instead of computing; the first layer that learns, and all above it,
see what they always see. The file is named by a fingerprint of the frozen weights, their code, the token ids and the
precision, so that another run with the same ones reads it.

This holds for models of one stack whose layers take the states of the layer before them and nothing else; whether a
model is one is found out by asking it both ways. Lee et al. 2019, "What Would Elsa Do?", arxiv.org/abs/1911.03090,
freeze so; that frozen features can be computed once is an old observation (Peters et al. 2019, "To Tune or Not to
Tune?", arxiv.org/abs/1903.05987, section 3).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.core.files import whole_file
from pipelines.tuners.layer_groups import EMBEDDINGS, HEAD, layer_groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context
    from pipelines.trainers.model_selection import Examples

FEATURES = "frozen_states"
"""The key of a batch that holds the features (batch, length, dim), and of an example that holds its own."""
MOST_BYTES = 8 * 2**30
"""A larger file is not written: the layers are then computed in each step."""
AT_ONCE = 64
"""Examples whose features are computed together."""
TOLERANCE = 1e-3
"""Between what the model answers to features, and to the text itself, as a share of the largest answer."""


class _Enough(Exception):
    """The frozen layers have answered, and the rest of the pass is not needed."""


class FrozenLayers:
    """The layers of a model below the first one that learns."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[nn.Module]) -> None:
        self.model = model
        self.layers = layers
        self.current: Tensor | None = None
        """The features of the batch that is being learnt from."""
        self.as_tuple = False
        """Whether a layer answers with a tuple, whose first is the states."""

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside the `with` block the layers hand states on, and the last of them answers with `current`."""
        last = self.layers[-1]

        def forward_of(layer: nn.Module) -> Callable[..., Any]:
            def forward(hidden_states: Tensor, *rest: Any, **words: Any) -> Any:
                states = self.current if layer is last else hidden_states
                return (states,) if self.as_tuple else states

            return forward

        with ExitStack() as stack:
            for layer in self.layers:
                layer.forward = forward_of(layer)
                stack.callback(vars(layer).pop, "forward")
            yield

    def states(self, inputs: dict[str, Any]) -> Tensor:
        """What the last of the layers answers to a batch (batch, length, dim)."""
        found: list[Tensor] = []

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            self.as_tuple = isinstance(output, tuple)
            found.append(output[0] if self.as_tuple else output)
            raise _Enough

        handle = self.layers[-1].register_forward_hook(keep)
        try:
            self.model(**inputs)
        except _Enough:
            pass
        finally:
            handle.remove()
        return found[0]


def frozen_layers(model: PreTrainedModel) -> FrozenLayers | None:
    """The layers that do not learn, with the embeddings below them; None where the lowest weights learn."""
    if hasattr(model, "peft_config"):  # what an adapter adds may stand anywhere, and do nothing at its start
        return None
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    groups = layer_groups(model)
    if not groups or groups[0].name != EMBEDDINGS or learning.intersection(groups[0].parameters):
        return None
    layers: list[nn.Module] = []
    for group in groups[1:]:
        if group.name == HEAD or learning.intersection(group.parameters):
            break
        try:
            layers.append(model.get_submodule(group.name))
        except AttributeError:  # lists of modules beside each other
            return None
    single = len({group.name.rpartition(".")[0] for group in groups[1:] if group.name != HEAD}) == 1
    return FrozenLayers(model, layers) if layers and single else None


class WithFeatures:
    """Examples that bring the features of their tokens along."""

    def __init__(self, examples: Examples, features: np.ndarray, starts: np.ndarray) -> None:
        self.examples = examples
        self.features = features
        """Of all tokens of all examples (tokens, dim)."""
        self.starts = starts
        """Where each example's tokens begin (examples + 1,)."""

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        own = self.features[self.starts[position] : self.starts[position + 1]]
        return {**self.examples[position], FEATURES: own}


Collate = Callable[[list[dict[str, Any]]], dict[str, Any]]


def with_features(collate: Collate) -> Collate:
    """`collate` for examples that bring features: they are laid out as the tokens are, with 0 for padding."""

    def together(examples: list[dict[str, Any]]) -> dict[str, Any]:
        features = [example.pop(FEATURES) for example in examples]
        batch = collate(examples)
        mask = batch["attention_mask"].bool()
        laid = torch.zeros(*mask.shape, features[0].shape[1])
        laid[mask] = torch.from_numpy(np.concatenate(features))
        return batch | {FEATURES: laid}

    return together


class FrozenFeatures:
    """What a training loop needs: its examples, batches and loss with the frozen layers asked beforehand."""

    def __init__(self, layers: FrozenLayers, collate: Collate, loss: Callable[..., Any]) -> None:
        self.layers = layers
        self.collate = with_features(collate)
        self._loss = loss

    def loss(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """The loss of a batch that holds features."""
        self.layers.current = inputs.pop(FEATURES)
        return self._loss(model, inputs)


def compute_once(
    context: Context,
    model: PreTrainedModel,
    collate: Collate,
    loss: Callable[..., Any],
    asked: int | None,
    *read: Examples | None,
) -> tuple[FrozenFeatures, list[WithFeatures | None]] | None:
    """The features of the examples that are read, computed or found on disk.

    `asked` is how many examples all steps see together, where that is known. None where nothing is frozen, where the
    model's layers need more than states, or where asking beforehand would not be less work.
    """
    layers = frozen_layers(model)
    sets = [each for each in read if each is not None]
    rows = sum(map(len, sets))
    if layers is None or not rows or (asked is not None and asked < rows):
        return None
    ids = [np.asarray(each[at]["input_ids"]) for each in sets for at in range(len(each))]
    if any(row.ndim != 1 for row in ids):
        return None
    starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    file = _computed(context, layers, collate, sets, ids, starts) if context.world.is_main else None
    file = context.gather(file)[0]  # the other processes may have no weights yet to decide by
    if file is None:
        return None
    features = np.load(file, mmap_mode="r")
    parts, begin = [], 0
    for each in read:
        count = 0 if each is None else len(each)
        own = starts[begin : begin + count + 1]
        parts.append(None if each is None else WithFeatures(each, features, own))
        begin += count
    return FrozenFeatures(layers, collate, loss), parts


def _computed(
    context: Context,
    layers: FrozenLayers,
    collate: Collate,
    sets: Sequence[Examples],
    ids: Sequence[np.ndarray],
    starts: np.ndarray,
) -> Path | None:
    """The file with the features of all examples; None where the model's layers need more than states, or the disk has
    no room."""
    model, rows = layers.model, len(ids)
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    rounded = torch.autocast(device.type, torch.bfloat16, enabled=context.precision == "bf16")

    def batch_of(positions: Sequence[int]) -> dict[str, Any]:
        inputs = collate([dict(_example(sets, at)) for at in positions])
        return {name: value.to(device) for name, value in inputs.items() if name not in ("labels", "draw")}

    try:
        with torch.inference_mode(), rounded:
            if not _agrees(layers, batch_of(list(range(min(AT_ONCE // 8, rows))))):
                return None
            dim = layers.states(batch_of([0])).shape[-1]
            context.cache.mkdir(parents=True, exist_ok=True)
            size = int(starts[-1]) * dim * 4
            if size > min(MOST_BYTES, shutil.disk_usage(context.cache).free // 2):
                return None
            file = context.cache / f"features-{_fingerprint(context, layers, sets, ids)}.npy"
            if not file.is_file():
                context.events.emit("progress", what="computing what frozen layers make of the text")
                _write(file, layers, batch_of, starts, dim)
            return file
    finally:
        model.train(training)


def _example(sets: Sequence[Examples], position: int) -> dict[str, Any]:
    for each in sets:
        if position < len(each):
            return each[position]
        position -= len(each)
    raise IndexError(position)


def _agrees(layers: FrozenLayers, inputs: dict[str, Any]) -> bool:
    """Whether the model answers to features as it answers to the text."""
    mask = inputs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return False
    expected = layers.model(**inputs)
    layers.current = layers.states(inputs) * mask[..., None]
    try:
        with layers.passing():
            found = layers.model(**inputs)
    except ValueError:  # a layer that hands on more than states, as one of recurrent cells does, was not unpacked
        return False
    names = [name for name in expected if isinstance(expected[name], Tensor) and name.endswith("logits")]
    close = [
        (found[name].float() - expected[name].float()).abs().max() <= TOLERANCE * expected[name].float().abs().max()
        if expected[name].shape[:2] != mask.shape
        else ((found[name].float() - expected[name].float()).abs()[mask.bool()]).max()
        <= TOLERANCE * expected[name].float().abs().max()
        for name in names
    ]
    return bool(close) and all(map(bool, close))


def _write(
    file: Path, layers: FrozenLayers, batch_of: Callable[[Sequence[int]], dict[str, Any]], starts: np.ndarray, dim: int
) -> None:
    """Compute the features of every example, those of similar length together, the longest first."""
    lengths = np.diff(starts)
    order = np.argsort(-lengths, kind="stable")
    with whole_file(file) as temporary:
        features = np.lib.format.open_memmap(temporary, "w+", np.float32, (int(starts[-1]), dim))
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would be a SIGBUS below
            with open(temporary, "rb+") as mapped:
                os.posix_fallocate(mapped.fileno(), 0, temporary.stat().st_size)
        for begin in range(0, len(order), AT_ONCE):
            positions = order[begin : begin + AT_ONCE].tolist()
            inputs = batch_of(positions)
            states, mask = layers.states(inputs).float().cpu(), inputs["attention_mask"].bool().cpu()
            for row, position in enumerate(positions):
                features[starts[position] : starts[position + 1]] = states[row][mask[row]].numpy()
        features.flush()
        del features


def _fingerprint(context: Context, layers: FrozenLayers, sets: Sequence[Examples], ids: Sequence[np.ndarray]) -> str:
    """Of whatever the features depend on: the frozen weights and their code, the ids and segments, the precision."""
    import transformers

    digest = hashlib.sha256(f"{torch.__version__} {transformers.__version__} {context.precision}".encode())
    config = layers.model.config
    digest.update(f"{config.to_json_string()} {config._attn_implementation} {len(layers.layers)}".encode())
    for name, weight in layers.model.named_parameters():
        if not weight.requires_grad:
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().contiguous().numpy().data)
    modules = {type(module).__module__ for module in layers.model.modules()}
    for name in sorted(each for each in modules if not each.startswith("torch.")):
        path = getattr(sys.modules.get(name), "__file__", None)
        digest.update(name.encode() + (Path(path).read_bytes() if path else b""))
    for row in ids:
        digest.update(len(row).to_bytes(4, "little") + row.astype(np.int32).tobytes())
    for each in sets:
        for at in range(len(each)):
            segments = each[at].get("token_type_ids")
            digest.update(b"" if segments is None else np.asarray(segments, np.int8).tobytes())
    return digest.hexdigest()[:32]
