"""The recipe's model as it stands, frozen: hidden states of one layer, or of all of them mixed, pooled over a text.

ELMo's features are the mixture of a bidirectional language model's layers (Peters et al. 2018, section 3.2,
arxiv.org/abs/1802.05365). Which pooling serves best is asked by Reimers and Gurevych 2019, "Sentence-BERT", section 6,
arxiv.org/abs/1908.10084. Special tokens count as tokens, as there.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, WithJsonSchema

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue, ConfigIssues, show
from pipelines.core.errors import IncompatibleError, ModelError
from pipelines.core.files import made_once, whole_file
from pipelines.core.interfaces import Head, Rows
from pipelines.core.recipe import START
from pipelines.evaluation.features.base import Features, Reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import HeadKind
    from pipelines.core.recipe import Recipe

MIX = "mix"


def _layer(value: object) -> Any:
    if value == MIX or (isinstance(value, int) and not isinstance(value, bool) and value >= -1):
        return value
    problem = f"is {show(value)}, must be the number of a layer (0: the word embeddings), -1 (the last) or mix"
    raise ConfigIssues([((), problem)])


Layer = Annotated[
    int | Literal["mix"],
    BeforeValidator(_layer),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -1}, {"const": MIX}]}),
]


class EncoderFeatures(Features):
    """Hidden states of the recipe's model, which is not trained and drops nothing out."""

    name: Literal["encoder"] = "encoder"
    pooling: Literal["mean", "first", "last"] = "mean"
    """The mean of a text's tokens, its first token, or its last one."""
    layer: Layer = -1
    """The layer that is read: `-1` is the last, `0` the table of word embeddings alone, a vector a word piece wherever
    it stands. `mix`: all hidden states by weights that are learnt with the classifier."""

    reads_model: ClassVar[bool] = True

    @property
    def mixes(self) -> bool:
        return self.layer == MIX

    def issues(self, recipe: Recipe, model: str) -> Iterable[ConfigIssue]:
        layers = (recipe.model.words() or {}).get("num_hidden_layers")
        if self.layer == MIX:
            return
        if isinstance(layers, int) and int(self.layer) > layers:
            yield ("layer",), f"is {self.layer}, but the model has {layers} layers; 0 to {layers}, -1 or mix"

    def open(self, reading: Reading, needed: Iterable[str]) -> HiddenStates:
        """The model, in evaluation mode."""
        context = reading.context
        head, trained = body_head(context.recipe, reading.model, context.stage_folders)
        model = context.open_model(head, stage_id=reading.model, trained_head=trained)
        if hasattr(model, "peft_config"):
            raise ModelError(
                f"the adapter of '{reading.model}' cannot be merged into its base, whose layers would be read without "
                "it; name the model that it was trained on, or one that was tuned in another way"
            )
        return HiddenStates(self, model, reading)


def body_head(recipe: Recipe, source: str, folders: Mapping[str, Path]) -> tuple[Head, bool]:
    """A head that the model which `source` names can be opened with, and whether it was trained: a stage's own, else
    that of a classifier, which nearly every family has. Only the body below it is read."""
    from pipelines.models.heads import saved_head

    if source != START and (own := saved_head(folders[source] / "model")) is not None:
        return own, True
    kinds = () if recipe.model.architecture is None else architecture_fields.heads(recipe.model.architecture)
    if source == START and kinds and "sequence_classification" not in kinds:
        return Head(cast("HeadKind", kinds[0])), False
    return Head("sequence_classification"), False


class HiddenStates:
    """A model that is asked for hidden states."""

    def __init__(self, block: EncoderFeatures, model: PreTrainedModel, reading: Reading) -> None:
        from pipelines.models.predict import usable_length

        self.block = block
        self.model = model
        self.reading = reading
        self.tokenizer = reading.context.open_tokenizer(None if reading.model == START else reading.model)
        self.length = usable_length(model, self.tokenizer, reading.max_length)
        self.layers = 0
        self.known = _digest(model, self.tokenizer)
        self.cut: dict[str, float] = {}
        """By part of the data: the share of texts that lost their end."""

    def vectors(self, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """(layers, texts, width)."""
        import numpy as np

        from pipelines.data.encoding import collate, encode
        from pipelines.models.predict import answers

        path = self._cached(texts)

        def load() -> Mapping[str, Any] | None:
            kept = _read(path)
            return kept if kept is not None and kept["array"].shape[1] == len(texts) else None

        def make() -> None:
            examples = encode(self.tokenizer, Rows(texts, None, None, range(len(texts))), self.length)
            put_together = partial(collate, self.tokenizer)

            def answer(positions: list[int], device: Any) -> NDArray[np.float32]:
                inputs = put_together([examples[place] for place in positions])
                return self._pooled({key: value.to(device) for key, value in inputs.items()})

            found = answers(self.model, examples.lengths.tolist(), answer, fills=True, **self.reading.running)
            array = np.ascontiguousarray(np.stack(found).astype(np.float32).swapaxes(0, 1))
            with whole_file(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, array=array, cut=examples.truncated / max(1, len(texts)), layers=self.layers)

        kept = made_once(path, load, make)
        self.cut[name], self.layers = float(kept["cut"]), int(kept["layers"])
        array: NDArray[np.float32] = kept["array"]
        return array

    def _cached(self, texts: Sequence[str]) -> Path:
        """The file of these features, named by everything that they depend on: seeds and trials share it."""
        name = hashlib.sha256(self.known)
        name.update(json.dumps([self.block.plain(), self.length, str(self.reading.running.get("precision"))]).encode())
        for text in texts:
            name.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        return self.reading.context.cache / f"features-{name.hexdigest()[:32]}.npz"

    def _pooled(self, inputs: dict[str, Tensor]) -> NDArray[np.float32]:
        """(batch, layers, width)."""
        import torch

        real = inputs["attention_mask"].bool()
        states = torch.stack([self._over_tokens(layer.float(), real) for layer in self._states(inputs)], dim=1)
        pooled: NDArray[np.float32] = states.cpu().numpy()
        return pooled

    def _over_tokens(self, states: Tensor, real: Tensor) -> Tensor:
        """(batch, length, width) and the mask of real tokens to (batch, width)."""
        import torch

        if self.block.pooling == "mean":
            return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        places = torch.arange(real.shape[1], device=real.device).expand_as(real)
        if self.block.pooling == "first":
            chosen = places.masked_fill(~real, real.shape[1] - 1).amin(1)
        else:
            chosen = places.masked_fill(~real, 0).amax(1)
        return states[torch.arange(len(states), device=real.device), chosen]

    def _states(self, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        """The chosen layer's states, or those of every layer, all of one width. Raises IncompatibleError."""
        import torch

        from pipelines.models.checkpoint import known_inputs

        body = self.model.base_model
        body = body.get_encoder() if getattr(body.config, "is_encoder_decoder", False) else body
        if self.block.layer == 0:
            return [body.get_input_embeddings()(inputs["input_ids"])]
        outputs = body(**known_inputs(body, inputs), output_hidden_states=True)
        hidden = getattr(outputs, "hidden_states", None)
        if hidden is None and self.block.layer == -1:
            return [outputs.last_hidden_state]
        if hidden is None:
            problem = "tells its last layer's states alone; use layer: -1"
            raise IncompatibleError(f"features.layer is {self.block.layer}, but {type(body).__name__} {problem}")
        self.layers = len(hidden) - 1
        if self.block.layer == MIX:
            width = max(layer.shape[-1] for layer in hidden)
            if any(width % layer.shape[-1] for layer in hidden):
                widths = sorted({layer.shape[-1] for layer in hidden})
                raise IncompatibleError(
                    f"features.layer is mix, but the layers have widths of {widths}; name one layer"
                )
            # ELMo's embeddings are half as wide as both directions together, and stand there twice.
            return [torch.cat([layer] * (width // layer.shape[-1]), dim=-1) for layer in hidden]
        if int(self.block.layer) > self.layers:
            raise IncompatibleError(
                f"features.layer is {self.block.layer}, but the model has {self.layers} layers; 0 to {self.layers}, "
                "-1 or mix"
            )
        return [hidden[int(self.block.layer)]]

    def details(self) -> dict[str, Any]:
        """Which model, and how many texts were cut."""
        return {"model": self.reading.model, "cut": self.cut, **({"layers": self.layers} if self.layers else {})}


def _digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """What a model and its tokenizer are: the body's weights, its config, its code, and the vocabulary."""
    import inspect

    import torch
    import transformers

    body = model.base_model
    digest = hashlib.sha256()
    for name, weight in body.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    facts = [
        json.dumps(body.config.to_dict(), sort_keys=True, default=str),
        str(tokenizer.get_vocab()) if backend is None else backend.to_str(),
        inspect.getsource(sys.modules[type(body).__module__]),
        inspect.getsource(sys.modules[__name__]),
        torch.__version__,
        transformers.__version__,
    ]
    digest.update(json.dumps(facts).encode())
    return digest.digest()


def _read(path: Path) -> Mapping[str, Any] | None:
    """What is in a complete file; None where there is none."""
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in ("array", "cut", "layers")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
