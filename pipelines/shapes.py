"""A recipe's model as formulas see it: how many weights, how many operations, which layers LoRA finds.

Our own family is arithmetic on its config. Any other model is built by transformers on the meta device, which has
shapes but no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipelines import costs
from pipelines.architectures import arithmetic
from pipelines.fields import architectures as architecture_fields
from pipelines.protocols import Head
from pipelines.recipe import Recipe

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
"""The words that the memory formula needs."""
DEFAULT_VOCABULARY = 8192
"""Entries of the WordPiece vocabulary that a model from scratch gets when its recipe names no tokenizer."""


class Shape(Protocol):
    """What a plan asks of a model."""

    def counts(self, head: Head) -> Mapping[str, int]:
        """Weights by module, and their `total`."""

    def forward(self, head: Head, length: int, predicted: int) -> int:
        """Operations of one sequence; `predicted` of its tokens get logits over the vocabulary."""

    def sizes(self, head: Head) -> dict[str, int] | None:
        """SIZES by name; None when the config does not have them."""

    def adapter(self, tuner: Any, head: Head, fresh: Sequence[str]) -> costs.Adapter:
        """What LoRA adds; `fresh` modules learn whole."""


def shape_of(recipe: Recipe) -> tuple[Shape | None, list[str]]:
    """The recipe's model, and what had to be assumed; None when it cannot be looked at."""
    words, notes = _words(recipe)
    if words is None:
        return None, notes
    return (OwnShape(words) if words["model_type"] == architecture_fields.OURS else ForeignShape(words)), notes


class OwnShape:
    """A model of our own family."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        self.words: dict[str, Any] = {key: words.get(key, value) for key, value in arithmetic.DEFAULTS.items()}

    def counts(self, head: Head) -> Mapping[str, int]:
        return arithmetic.parameter_count(self.words, head.kind, outputs(head))

    def forward(self, head: Head, length: int, predicted: int) -> int:
        asked = predicted if head.kind == "masked_lm" else None
        flops = arithmetic.forward_flops(self.words, head.kind, length, outputs(head), predicted_tokens=asked)
        return flops["total"]

    def sizes(self, head: Head) -> dict[str, int] | None:
        return {key: self.words[key] for key in SIZES}

    def adapter(self, tuner: Any, head: Head, fresh: Sequence[str]) -> costs.Adapter:
        layers = costs.linear_layers(self.words, head.kind, outputs(head))
        norms = self.counts(head)["norms"] // 2
        if head.kind == "masked_lm":  # its norm, and the bias of the output matrix
            norms += self.words["hidden_size"] + self.words["vocab_size"]
        return costs.lora(
            layers,
            r=tuner.r,
            target_modules=tuner.target_modules,
            whole=[*fresh, *tuner.modules_to_save],
            use_dora=tuner.use_dora,
            bias=tuner.bias,
            all_biases=sum(layer.outputs for layer in layers) + norms,
        )


class ForeignShape:
    """Any transformers model, without weights. Raises what transformers raises when it cannot be built."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        decided_by_head = ("architectures", "auto_map", "id2label", "label2id", "num_labels", "problem_type")
        self.words = {key: value for key, value in words.items() if key not in decided_by_head}
        self._built: dict[Head, Any] = {}

    def counts(self, head: Head) -> Mapping[str, int]:
        model = self._model(head)
        embedding = model.get_input_embeddings()
        counts: dict[str, int] = {}
        seen: set[int] = set()
        for name, module in model.named_modules():
            part = "embeddings" if module is embedding else name.partition(".")[0]
            for weight in module.parameters(recurse=False):
                if id(weight) not in seen:  # a tied matrix is one
                    seen.add(id(weight))
                    counts[part] = counts.get(part, 0) + weight.numel()
        return {**counts, "total": sum(counts.values())}

    def forward(self, head: Head, length: int, predicted: int) -> int:
        """As torch counts them; the output matrix only for the tokens that get logits."""
        flops = self._counted(head, length)
        return flops - 2 * self._output_matrix(head) * (length - predicted) if head.kind == "masked_lm" else flops

    def _counted(self, head: Head, length: int) -> int:
        """A forward pass without numbers; where a model needs some, two operations for each weight but embeddings."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        model = self._model(head)
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                model(input_ids=torch.zeros(1, length, dtype=torch.long, device="meta"))
            return int(counter.get_total_flops())
        except Exception:  # Kaplan et al. 2020, section 2.1, table 1
            counts, output = self.counts(head), model.get_output_embeddings()
            tied = output is not None and output.weight is model.get_input_embeddings().weight
            outside = counts["total"] - counts.get("embeddings", 0) + (self._output_matrix(head) if tied else 0)
            return 2 * outside * length

    def _output_matrix(self, head: Head) -> int:
        output = self._model(head).get_output_embeddings()
        return 0 if output is None else int(output.weight.numel())

    def sizes(self, head: Head) -> dict[str, int] | None:
        config = self._model(head).config
        found = {key: getattr(config, key, None) for key in SIZES}
        if found["intermediate_size"] is None and found["hidden_size"] is not None:
            named = ("ffn_dim", "encoder_ffn_dim", "d_ff", "d_inner", "n_inner", "hidden_dim")
            inner = next((size for name in named if (size := getattr(config, name, None))), None)
            found["intermediate_size"] = inner or 4 * found["hidden_size"]
        known = {key: size for key, size in found.items() if isinstance(size, int)}
        return known if len(known) == len(SIZES) else None

    def adapter(self, tuner: Any, head: Head, fresh: Sequence[str]) -> costs.Adapter:
        """By applying the tuner where nothing has weights."""
        import torch

        before = self.counts(head)["total"]
        with torch.device("meta"):
            tuned = tuner.apply(self._new(head))
        weights = dict(tuned.named_parameters())
        learnt = sum(weight.numel() for weight in weights.values() if weight.requires_grad)
        updates = sum(weight.numel() for name, weight in weights.items() if "lora_" in name)
        return costs.Adapter(learnt, sum(weight.numel() for weight in weights.values()) - before, 2 * updates)

    def _model(self, head: Head) -> Any:
        if head not in self._built:
            self._built[head] = self._new(head)
        return self._built[head]

    def _new(self, head: Head) -> Any:
        import torch
        from transformers import AutoConfig

        from pipelines.models import _fresh_modules, auto_class, head_settings

        words = {key: value for key, value in self.words.items() if key != "model_type"}
        config = AutoConfig.for_model(self.words["model_type"], **words, **head_settings(head))
        with torch.device("meta"):
            model = auto_class(head).from_config(config, attn_implementation="eager").eval()
        model.finery_new_modules = _fresh_modules(model)
        return model


def outputs(head: Head) -> int:
    """Columns of a classification head; one for a regression."""
    return len(head.labels) or 1


def _words(recipe: Recipe) -> tuple[dict[str, Any] | None, list[str]]:
    """The config's words of the recipe's model, and what had to be assumed."""
    if recipe.model.architecture is not None:
        words = architecture_fields.resolve(recipe.model.architecture)
        if recipe.model.architecture.get("vocab_size"):
            return words, []
        size, notes = _vocabulary(recipe)
        return (words if size is None else {**words, "vocab_size": size}), notes
    source = str(recipe.model.checkpoint)
    local = Path(source) / "config.json"
    try:
        if local.is_file():
            found: dict[str, Any] = json.loads(local.read_text(encoding="utf-8"))
            return {**found, "model_type": found["model_type"]}, []  # a KeyError says that it is no config
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(source, revision=recipe.model.revision).to_dict()
        return found, []
    except (OSError, ValueError, KeyError) as error:
        return None, [f"the checkpoint '{source}' could not be looked at: {first_line(error)}"]


def _vocabulary(recipe: Recipe) -> tuple[int | None, list[str]]:
    """How many entries the recipe's tokenizer will have, and what is uncertain about it."""
    tokenizer = recipe.tokenizer
    if tokenizer is None or tokenizer.pretrained is None:
        return (DEFAULT_VOCABULARY if tokenizer is None else tokenizer.vocab_size), []
    file = Path(tokenizer.pretrained) / "tokenizer.json"
    try:
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            vocabulary = content["model"]["vocab"]
            ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
            return 1 + max([*ids, *(token["id"] for token in content.get("added_tokens", ()))]), []
        from pipelines.tokenizers import open_tokenizer

        return len(open_tokenizer(tokenizer.pretrained)), []
    except Exception as error:  # whatever is wrong with it, the run itself says it in full
        reason = first_line(error)
        return None, [f"the tokenizer could not be looked at, so the config's own vocabulary is counted: {reason}"]


def first_line(error: Exception) -> str:
    """The beginning of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0][:160]
