"""What frozen layers make of the training text is computed once, and kept on disk for all epochs, seeds and trials.

Where the embeddings and the layers above them do not learn (the tuner `last_layer`, adapters of the upper layers,
weights that are frozen by name), their output for an example is the same in every epoch but for dropout, which is left
out of them: they are asked in evaluation mode. While the stage trains, the frozen layers hand these features on instead
of computing; the first layer that learns, and all above it, see what they always see.

Under gradual unfreezing the first layer that learns is another one from phase to phase. The layers below it are as they
were at the start until their own phase begins, and one pass through all of them gives the features of every phase: L
layers that wake one after another cost L passes through a layer for each example, and not 1 + 2 + … + L.

A file is named by a fingerprint of the weights that its features follow from, their code, the rows and the precision,
so that every run with the same ones reads it, whatever its tuner, its seed and the rows that it sets aside. Equal rows
lie there once, in an order of their own.

Lee et al. 2019, "What Would Elsa Do?", arxiv.org/abs/1911.03090, freeze so; that frozen features can be computed once
is an old observation (Peters et al. 2019, "To Tune or Not to Tune?", arxiv.org/abs/1903.05987, section 3). Howard and
Ruder 2018, arxiv.org/abs/1801.06146, unfreeze gradually, with dropout in the frozen layers too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipelines.core.files import lock, whole_file
from pipelines.trainers.frozen_layers import FrozenLayers, stack_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context
    from pipelines.trainers.model_selection import Examples
    from pipelines.tuners.tuner import Tuner

FEATURES = "frozen_states"
"""The key of a batch that holds the features (batch, length, dim), and of an example that holds its own."""
MOST_BYTES = 8 * 2**30
"""Files of one stage that would be larger together are not written, those of the lowest cuts first."""
AT_ONCE = 64
"""Examples whose features are computed together."""
TRIED = 8
"""Examples by which the layers are tried."""
NOT_READ = ("labels", "draw", "index")
"""What an example, or a batch, says beside what the layers read."""

Collate = Callable[[list[dict[str, Any]]], dict[str, Any]]


class DistinctTexts:
    """The different rows of several sets of examples, as a model reads them."""

    def __init__(self, sets: Sequence[Examples]) -> None:
        self.sets = sets
        keys = [_key(each[at]) for each in sets for at in range(len(each))]
        self.keys, self.first, self.text_of = np.unique(np.array(keys), return_index=True, return_inverse=True)
        """Hash of each text (texts,) in ascending order, a row that has it, and the text of each row (rows,)."""
        lengths = [len(self.example(at)["input_ids"]) for at in range(len(self.keys))]
        self.starts = np.concatenate([[0], np.cumsum(lengths)])
        """Where each text's tokens begin (texts + 1,)."""

    def example(self, text: int) -> dict[str, Any]:
        """A row that has this text."""
        row = int(self.first[text])
        for each in self.sets:
            if row < len(each):
                return dict(each[row])
            row -= len(each)
        raise IndexError(text)


def _key(example: Mapping[str, Any]) -> str:
    """Of whatever of an example the layers may read."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(example) - {*NOT_READ}):
        digest.update(f"{name} {json.dumps(example[name], default=lambda array: array.tolist())} ".encode())
    return digest.hexdigest()


class WithFeatures:
    """Examples that bring the features of their tokens along, while there are any."""

    def __init__(self, frozen: FrozenFeatures, examples: Examples, texts: np.ndarray) -> None:
        self.frozen = frozen
        self.examples = examples
        self.texts = texts
        """The text of each example (examples,)."""

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example, features = self.examples[position], self.frozen.of_text(int(self.texts[position]))
        return example if features is None else {**example, FEATURES: features}


def with_features(collate: Collate) -> Collate:
    """`collate` for examples that may bring features: they are laid out as the tokens are, with 0 for padding."""

    def together(examples: list[dict[str, Any]]) -> dict[str, Any]:
        features = [example.pop(FEATURES) for example in examples if FEATURES in example]
        batch = collate(examples)
        if not features:
            return batch
        mask = batch["attention_mask"].bool()
        laid = torch.zeros(*mask.shape, features[0].shape[1])
        laid[mask] = torch.from_numpy(np.concatenate(features))
        return batch | {FEATURES: laid}

    return together


class FrozenFeatures:
    """What a training loop needs: its examples, batches and loss with the frozen layers asked beforehand."""

    def __init__(
        self,
        layers: FrozenLayers,
        files: Mapping[int, Path],
        starts: np.ndarray,
        collate: Collate,
        loss: Callable[..., Any],
    ) -> None:
        self.layers = layers
        self.starts = starts
        self.features = {cut: np.load(path, mmap_mode="r") for cut, path in files.items()}
        """Of all tokens of all texts (tokens, dim), by cut."""
        self.collate = with_features(collate)
        self._loss = loss
        self.examples: list[Any] = []
        """Of each set of examples that is read."""

    def of_text(self, text: int) -> np.ndarray | None:
        """The features of a text's tokens (tokens, dim)."""
        features = self.features.get(self.layers.cut)
        return None if features is None else features[self.starts[text] : self.starts[text + 1]]

    def follow(self) -> None:
        """Read the features that belong to the layers which are frozen now. Called as each epoch begins, before the
        processes that load its examples do."""
        cut = self.layers.frozen()
        self.layers.cut = cut if cut in self.features else 0

    def passing(self) -> AbstractContextManager[None]:
        """Inside the `with` block the layers hand features on."""
        return self.layers.passing(max(self.features))

    def loss(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """The loss of a batch that may hold features."""
        features = inputs.get(FEATURES)
        self.layers.current = None if features is None else features.to(self.layers.dtype)
        return self._loss(model, {name: value for name, value in inputs.items() if name != FEATURES})


def compute_once(
    context: Context,
    model: PreTrainedModel,
    tuner: Tuner | None,
    epochs: int,
    collate: Collate,
    loss: Callable[..., Any],
    asked: int | None,
    device: torch.device,
    *read: Examples | None,
) -> FrozenFeatures | None:
    """The features of the examples that are read, of each cut of the stage, computed or found on disk.

    `epochs` is how many the stage has, and `asked` how many examples all steps see together, where that is known.
    `device` is the one that the model will learn on. None where nothing is frozen, where the model's layers need more
    than states, or where asking beforehand would not be less work.
    """
    layers, sets = stack_of(model), [each for each in read if each is not None]
    rows = sum(map(len, sets))
    if layers is None or not rows or (asked is not None and asked < rows):
        return None
    learning = _cuts(layers, tuner, epochs)
    if not learning or any(_of_several_texts(each[0]) for each in sets):
        return None
    texts = DistinctTexts(sets)
    files: dict[int, Path] = {}
    if context.world.is_main:
        files = _Asked(context, layers, collate, texts, device).files(learning)
    # the other processes may have no weights yet to decide by
    files, layers.outputs, layers.dtype = context.gather((files, layers.outputs, layers.dtype))[0]
    seen = context.gather(all(path.is_file() for path in files.values()))  # a cache may belong to one host
    if not files or not all(seen):
        return None
    frozen, begin = FrozenFeatures(layers, files, texts.starts, collate, loss), 0
    for each in read:
        count = 0 if each is None else len(each)
        frozen.examples.append(
            None if each is None else WithFeatures(frozen, each, texts.text_of[begin : begin + count])
        )
        begin += count
    if tuner is None or not tuner.unfreezes:
        frozen.follow()
    return frozen


def _of_several_texts(example: Mapping[str, Any]) -> bool:
    """Whether an example holds several texts: the options of a question, or the dialogues of a packed block."""
    return "input_ids" not in example or isinstance(example["input_ids"][0], Sequence | np.ndarray)


def _cuts(layers: FrozenLayers, tuner: Tuner | None, epochs: int) -> dict[int, set[str]]:
    """The cuts of all epochs that leave layers frozen, and the names of the weights that learn at each."""
    if tuner is None or not tuner.unfreezes:
        return {layers.frozen(): layers.learning()} if layers.frozen() else {}
    before, found = layers.learning(), dict[int, set[str]]()
    for epoch in range(epochs):
        tuner.unfreeze(layers.model, epoch)
        if not (cut := layers.frozen()):
            break
        found[cut] = found.get(cut, set()) | layers.learning()
    for name, weight in layers.bare.named_parameters():
        weight.requires_grad_(name in before)
    return found


class _Asked:
    """The frozen layers of a stage while their features are computed, on the main process."""

    def __init__(
        self, context: Context, layers: FrozenLayers, collate: Collate, texts: DistinctTexts, device: torch.device
    ) -> None:
        self.context, self.layers, self.collate, self.texts = context, layers, collate, texts
        if context.world.profile in ("single", "ddp"):  # else each process moves its own part
            layers.model.to(device)
        self.device = next(layers.model.parameters()).device

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Inside the `with` block the model answers without dropout, in the precision of the stage."""
        training = self.layers.model.training
        self.layers.model.eval()
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.context.precision == "bf16"):
                yield
        finally:
            self.layers.model.train(training)

    def _batch(self, texts: Sequence[int]) -> dict[str, Any]:
        inputs = self.collate([self.texts.example(text) for text in texts])
        return {name: value.to(self.device) for name, value in inputs.items() if name not in NOT_READ}

    def files(self, learning: Mapping[int, set[str]]) -> dict[int, Path]:
        """The files of the cuts at which these weights learn; none where the model's layers need more than states, and
        not those for which the disk has no room."""
        with self._quiet():
            return self._files(learning)

    def _files(self, learning: Mapping[int, set[str]]) -> dict[int, Path]:
        cuts, some = sorted(learning, reverse=True), self._batch(range(min(TRIED, len(self.texts.keys))))
        if not self.layers.agrees(some, cuts):
            return {}
        read = self.layers.read(self._batch(range(1)), cuts)
        cuts = [cut for cut in cuts if read is not None and not read[cut] & learning[cut]]
        size = int(self.texts.starts[-1]) * self.layers.dim * 4
        paths = {cut: self._path(cut, read[cut]) for cut in cuts[: MOST_BYTES // size]} if read else {}
        missing = {cut: path for cut, path in paths.items() if not path.is_file()}
        try:
            self.context.cache.mkdir(parents=True, exist_ok=True)
            if len(missing) * size > shutil.disk_usage(self.context.cache).free // 2:
                raise OSError(f"no room for {len(missing) * size:,} bytes")
            if missing:
                self.context.events.emit("progress", what="computing what frozen layers make of the text")
                with lock(next(iter(missing.values())).with_suffix(".lock"), remove=True):  # another run may be at it
                    if left := {cut: path for cut, path in missing.items() if not path.is_file()}:
                        self._write(left)
        except OSError as error:
            message = f"frozen layers are computed in each step, with their dropout: {self.context.cache}: {error}"
            self.context.events.emit("warning", message=message)
        return {cut: path for cut, path in paths.items() if path.is_file()}

    def _write(self, paths: Mapping[int, Path]) -> None:
        """Compute the features of every text at each cut, those of similar length together, the longest first."""
        starts = self.texts.starts
        order = np.argsort(-np.diff(starts), kind="stable")
        with ExitStack() as stack, torch.no_grad():
            features = {
                cut: _mapped(stack.enter_context(whole_file(path)), (int(starts[-1]), self.layers.dim))
                for cut, path in paths.items()
            }
            for begin in range(0, len(order), AT_ONCE):
                texts = order[begin : begin + AT_ONCE].tolist()
                inputs = self._batch(texts)
                mask = inputs["attention_mask"].bool().cpu()
                for cut, states in self.layers.states(inputs, paths).items():
                    own = states.float().cpu()
                    for row, text in enumerate(texts):
                        features[cut][starts[text] : starts[text + 1]] = own[row][mask[row]].numpy()
            for each in features.values():
                each.flush()
            features.clear()

    def _path(self, cut: int, read: set[str]) -> Path:
        """Named by whatever the features depend on: weights and their code, texts, precision, device."""
        import transformers

        digest = hashlib.sha256(f"{torch.__version__} {transformers.__version__} {self.context.precision}".encode())
        config = self.layers.bare.config
        words = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
        digest.update(json.dumps(words, sort_keys=True, default=str).encode())
        digest.update(f"{config._attn_implementation} {cut} {self.device.type}".encode())
        for name, weight in self.layers.bare.named_parameters():
            if name in read:
                digest.update(name.encode())
                digest.update(weight.detach().float().cpu().contiguous().numpy().data)
        for name in sorted(self.layers.code(cut)):
            path = getattr(sys.modules.get(name), "__file__", None)
            digest.update(name.encode() + (Path(path).read_bytes() if path else b""))
        digest.update("".join(self.texts.keys).encode())
        return self.context.cache / f"features-{digest.hexdigest()[:32]}.npy"


def _mapped(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """A new file of float32 in memory. Raises OSError where the disk has no room for it."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would be a SIGBUS later
        with open(path, "rb+") as mapped:
            os.posix_fallocate(mapped.fileno(), 0, path.stat().st_size)
    return array
