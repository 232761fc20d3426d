"""A recipe's model as formulas see it: how many weights, how many operations, what a tuner makes learn.

Our own family is arithmetic on its config, and so is LoRA on it (Hu et al. 2021, section 4.1,
arxiv.org/abs/2106.09685). Any other model, and any other tuner, is built by transformers on the meta device, which has
shapes but no weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pipelines.architectures import arithmetic
from pipelines.architectures.arithmetic import LinearLayer
from pipelines.core import architecture_fields
from pipelines.core.costs import ModelSize, SecondModel
from pipelines.core.interfaces import Head
from pipelines.core.model_types import model_types
from pipelines.core.recipe import Recipe

BESIDE = "prompt_encoder."
"""How the names of the weights begin that PEFT puts beside a model."""
PREFIXES = ("base_model.model.", "base_model.", "")
"""What PEFT puts before a model's own names: the first where it changes layers, the second where it stands beside."""


@dataclass(frozen=True)
class TunedWeights:
    """What a tuner adds to a model, and what of it learns."""

    learnt: int
    """Weights that learn: what was added, modules that are trained whole, and those of the model itself that are
    chosen."""
    added: int
    """Weights that the model has more than before: the updates, and copies of the modules that are trained whole."""
    flops_per_token: int
    """Forward operations of the updates."""
    by_layer: Mapping[str, int] = field(default_factory=dict)
    """Weights that learn, by the linear layer they belong to; empty where that is not known."""
    reaches_body: bool = True
    """Whether gradients must pass through the body: not when only the head learns."""
    packed: int = 0
    """Frozen weights that are kept in few bits."""

    def passes(self, parameters: int) -> float:
        """What a training step costs, in forward passes, on a model of so many `parameters` before.

        One forward; one for the gradients of the inputs, where they are needed; one for those of all weights, of which
        only the share that learns is computed.
        """
        return 1 + self.reaches_body + max(0, self.learnt - self.added) / parameters


def lora(
    layers: Sequence[LinearLayer],
    *,
    r: int,
    target_modules: Sequence[str] | str = "all-linear",
    whole: Sequence[str] = (),
    use_dora: bool = False,
    bias: str = "none",
    other_biases: int = 0,
) -> TunedWeights:
    """Two matrices for each target, and the modules named by `whole`.

    `other_biases` is how many the model has outside `layers`: those of norms and of the output matrix.
    """

    def named(layer: LinearLayer, names: Sequence[str]) -> bool:
        return any(layer.name == name or layer.name.endswith(f".{name}") for name in names)

    trained_whole = [layer for layer in layers if named(layer, whole)]
    free = [layer for layer in layers if layer not in trained_whole]
    if isinstance(target_modules, str):
        targets = [layer for layer in free if layer.name.startswith("model.")]
    else:
        targets = [layer for layer in free if named(layer, target_modules)]
    by_layer = {layer.name: r * (layer.inputs + layer.outputs) for layer in targets}
    products = sum(by_layer.values())
    updates = products + (sum(layer.outputs for layer in targets) if use_dora else 0)
    copies = sum(layer.parameters for layer in trained_whole)
    with_bias = {"none": [], "lora_only": targets, "all": free}[bias]
    biases = sum(layer.outputs for layer in with_bias if layer.bias) + (other_biases if bias == "all" else 0)
    by_layer |= {layer.name: layer.parameters for layer in trained_whole}
    return TunedWeights(updates + copies + biases, updates + copies, 2 * products, by_layer)


def of_tuned(before: Mapping[str, int], tuned: Any, body: str) -> TunedWeights:
    """What a tuner added to a built model, seen by comparing: `before` are its weights by name, `tuned` is what
    `apply` returned.

    A matrix that was added inside the model multiplies every token; what stands beside the model (virtual tokens and
    what makes them) is computed once. `body` is the name of the model without its head.
    """
    weights = {_own_name(name, before): weight for name, weight in tuned.named_parameters()}
    learnt = {name: weight.numel() for name, weight in weights.items() if weight.requires_grad}
    updates = {
        name: weight for name, weight in weights.items() if name not in before and ".modules_to_save." not in name
    }
    products = sum(
        weight.numel() for name, weight in updates.items() if weight.ndim > 1 and not name.startswith(BESIDE)
    )
    head = [
        name  # a pooler stands on the body, under its name
        for name in learnt
        if ".modules_to_save." in name
        or (name in before and (f".{body}." not in f".{name}" or "pooler" in name.split(".")))
    ]
    added = sum(weight.numel() for weight in weights.values()) - sum(before.values())
    return TunedWeights(sum(learnt.values()), added, 2 * products, reaches_body=len(head) < len(learnt))


def _own_name(name: str, parameters: Mapping[str, int]) -> str:
    """A parameter's name in the model without PEFT's wrappers; a name that the model does not know stays as it is."""
    bare = name.replace(".base_layer.", ".").replace(".original_module.", ".")
    return next((own for prefix in PREFIXES if (own := bare.removeprefix(prefix)) in parameters), name)


DEFAULT_VOCABULARY = 8192
"""Entries of the WordPiece vocabulary that a model from scratch gets when its recipe names no tokenizer."""
PLAIN_HEADS = {"encoder": Head("masked_lm"), "decoder": Head("causal_lm"), "encoder-decoder": Head("seq2seq_lm")}
"""The language model of each family: what a checkpoint is taken to be, whose weights a stage starts from."""

SHARED = tuple(f"{name}_embeddings.weight" for name in ("word", "position", "token_type"))
"""How the names of the weights end that a second model takes from the first (`pipelines.objectives.generator`)."""

CUT = ("bert", "roberta", "electra", "deberta-v2", "gpt2", "llama", "mistral")
"""Types of transformers whose last layer is known to run for the places that are read alone."""


class Shape(ModelSize, Protocol):
    """What a plan asks of a model."""

    def counts(self, head: Head) -> Mapping[str, int]:
        """Weights by module, and their `total`."""

    def cuts_last_layer(self, head: Head) -> bool:
        """Whether the last layer can run for the places that are read alone; False where that is not known."""

    def lacking(self, head: Head, before: Head) -> list[str]:
        """Modules of the model with `head` that a checkpoint with the head `before` has no weights for."""

    def adapter(self, tuner: object, head: Head, fresh: Sequence[str]) -> TunedWeights:
        """What a tuner adds and makes learn; `fresh` modules learn whole. Raises what the tuner raises when it
        does not fit."""

    def second(self, model: SecondModel) -> tuple[Shape, int]:
        """The model that learns beside this one, and how many of its weights are this one's embeddings."""


def shape_of(recipe: Recipe) -> tuple[Shape | None, list[str]]:
    """The recipe's model, and what had to be assumed; None when it cannot be looked at."""
    words, notes = _words(recipe)
    if words is None:
        return None, notes
    if words["model_type"] in architecture_fields.BASELINE_RULES:
        from pipelines.runs.planning.baseline_size import BaselineShape

        return BaselineShape(words), notes
    if words["model_type"] == architecture_fields.OURS:
        return OwnShape(words), notes
    return _foreign(json.dumps(words, sort_keys=True, default=str)), notes


@lru_cache(maxsize=16)
def _foreign(config: str) -> ForeignShape:
    """The shape of a model of transformers, kept for the other cells of a study and the other batches of a search."""
    return ForeignShape(json.loads(config))


class OwnShape:
    """A model of our own family."""

    def __init__(self, words: Mapping[str, object]) -> None:
        self.config: dict[str, Any] = {
            key: words.get(key, value) for key, value in architecture_fields.DEFAULTS.items()
        }
        self.family = str(self.config["family"])
        self.chunks = bool(words.get("chunk_size_feed_forward"))

    @property
    def plain_head(self) -> Head:
        return PLAIN_HEADS[self.family]

    def counts(self, head: Head) -> Mapping[str, int]:
        return arithmetic.parameter_count(self.words(head), head.kind, outputs(head))

    def outside_body(self, head: Head) -> int:
        return self.counts(head)["head"]

    def forward(self, head: Head, length: int, target: int, predicted: int) -> int:
        flops = arithmetic.forward_flops(self.words(head), head.kind, length, outputs(head), predicted, target)
        return flops["total"]

    def words(self, head: Head) -> dict[str, Any]:
        return self.config if head.pooling is None else {**self.config, "classifier_pooling": head.pooling}

    def second(self, model: SecondModel) -> tuple[Shape, int]:
        words = {**self.config, **model.words(self.config)}
        layers = arithmetic.linear_layers(words, model.head.kind, outputs(model.head))
        projections = sum(layer.parameters for layer in layers if layer.part == "embeddings")
        shape = OwnShape(words)
        return shape, shape.counts(model.head)["embeddings"] - projections

    def cuts_last_layer(self, head: Head) -> bool:
        return not self.chunks and not (
            head.kind in arithmetic.POOLED_HEADS and arithmetic.pools_mean(self.words(head))
        )

    def lacking(self, head: Head, before: Head) -> list[str]:
        return [name for name, shape in self._own(head).items() if self._own(before).get(name) != shape]

    def _own(self, head: Head) -> dict[str, tuple[int, int]]:
        """The linear layers that belong to the head, and their sizes."""
        layers = arithmetic.linear_layers(self.words(head), head.kind, outputs(head))
        return {layer.name: (layer.inputs, layer.outputs) for layer in layers if layer.part in ("pooler", "head")}

    def adapter(self, tuner: Any, head: Head, fresh: Sequence[str]) -> TunedWeights:
        if not tuner.counted_by_formula():
            from pipelines.architectures.registration import register

            register()
            return applied({"model_type": architecture_fields.OURS, **self.words(head)}, tuner, head, fresh)
        layers = arithmetic.linear_layers(self.words(head), head.kind, outputs(head))
        adapter = lora(
            layers,
            r=tuner.r,
            target_modules=tuner.target_modules,
            whole=[*fresh, *tuner.modules_to_save],
            use_dora=tuner.use_dora,
            bias=tuner.bias,
            other_biases=arithmetic.other_biases(self.words(head), head.kind),
        )
        if tuner.quantization is None:
            return adapter
        body = [layer for layer in layers if layer.name.startswith("model.") and layer.part not in ("pooler", "head")]
        return replace(adapter, packed=sum(layer.inputs * layer.outputs for layer in body))


class ForeignShape:
    """Any transformers model, without weights. Raises what transformers raises when it cannot be built."""

    def __init__(self, words: Mapping[str, object]) -> None:
        decided_by_head = ("architectures", "auto_map", "id2label", "label2id", "num_labels", "problem_type")
        self.config = {key: value for key, value in words.items() if key not in decided_by_head}
        self.family = _family_of(self.config)
        self._built: dict[Head, Any] = {}
        self._flops: dict[tuple[Head, int, int], int] = {}

    @property
    def plain_head(self) -> Head:
        return PLAIN_HEADS[self.family]

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

    def outside_body(self, head: Head) -> int:
        prefix = f"{self._model(head).base_model_prefix}."
        weights = self._model(head).named_parameters()
        return sum(weight.numel() for name, weight in weights if not name.startswith(prefix))

    def forward(self, head: Head, length: int, target: int, predicted: int) -> int:
        """As torch counts them; the output matrix only for the tokens that get logits."""
        flops = self._flops.get((head, length, target))
        if flops is None:
            flops = self._flops[head, length, target] = self._counted(head, length, target)
        last = target if self.family == "encoder-decoder" else length
        unasked = last - predicted if head.kind in arithmetic.WORD_HEADS else 0
        return flops - 2 * self._output_matrix(head) * unasked

    def _counted(self, head: Head, length: int, target: int) -> int:
        """A forward pass without numbers; where a model needs some, two operations for each weight but embeddings."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        model = self._model(head)
        counter = FlopCounterMode(display=False)
        shape = (1, 1, length) if head.kind == "multiple_choice" else (1, length)
        inputs = {"input_ids": torch.zeros(*shape, dtype=torch.long, device="meta")}
        if head.kind == "seq2seq_lm":
            inputs["decoder_input_ids"] = torch.zeros(1, target, dtype=torch.long, device="meta")
        try:
            with counter, torch.no_grad():
                model(**inputs)
            return int(counter.get_total_flops())
        except Exception:  # Kaplan et al. 2020, section 2.1, table 1
            counts, output = self.counts(head), model.get_output_embeddings()
            tied = output is not None and output.weight is model.get_input_embeddings().weight
            outside = counts["total"] - counts.get("embeddings", 0) + (self._output_matrix(head) if tied else 0)
            return 2 * outside * (max(length, target) if self.family == "encoder-decoder" else length)

    def _output_matrix(self, head: Head) -> int:
        output = self._model(head).get_output_embeddings()
        return 0 if output is None else int(output.weight.numel())

    def words(self, head: Head) -> dict[str, Any] | None:
        if (
            head.kind not in architecture_fields.HEADS[self.family]
        ):  # such as the decoder of a BART, or a BERT made causal
            return None
        return _our_words(self._model(head), self.family)

    def cuts_last_layer(self, head: Head) -> bool:
        from pipelines.models.read_places import can_be_cut, last_layer

        model = self._model(head)
        layer = last_layer(model) if model.config.model_type in CUT else None
        return layer is not None and can_be_cut(model, layer)

    def lacking(self, head: Head, before: Head) -> list[str]:
        from pipelines.models.opening import outermost

        prefix = f"{self._model(head).base_model_prefix}."
        weights = {name: weight.shape for name, weight in self._model(head).named_parameters()}
        try:  # the body has a name of its own in some classes of a family only
            before = replace(before, pooling=head.pooling)  # a body that moves into our family has other names there
            brought = {
                name.removeprefix(prefix): weight.shape for name, weight in self._model(before).named_parameters()
            }
        except ValueError:  # a family without that head
            brought = {name.removeprefix(prefix): shape for name, shape in weights.items() if name.startswith(prefix)}
        return outermost(name for name, shape in weights.items() if brought.get(name.removeprefix(prefix)) != shape)

    def adapter(self, tuner: object, head: Head, fresh: Sequence[str]) -> TunedWeights:
        return applied(self.config, tuner, head, fresh)

    def second(self, model: SecondModel) -> tuple[Shape, int]:
        shape = ForeignShape({**self.config, **model.words(self._model(self.plain_head).config.to_dict())})
        weights = dict(shape._model(model.head).named_parameters())
        return shape, sum(weight.numel() for name, weight in weights.items() if name.endswith(SHARED))

    def _model(self, head: Head) -> Any:
        if head not in self._built:
            self._built[head] = self._new(head)
        return self._built[head]

    def _new(self, head: Head) -> Any:
        return without_weights(self.config, head)


def without_weights(words: Mapping[str, object], head: Head) -> Any:
    """A model on the meta device. Raises what transformers raises when it cannot be built."""
    import torch
    from transformers import AutoConfig

    from pipelines.models.heads import auto_class, head_settings
    from pipelines.models.pooling import settled

    settings = {key: value for key, value in words.items() if key != "model_type"}
    kind = auto_class(head)
    config = settled(AutoConfig.for_model(words["model_type"], **settings, **head_settings(head)), head)
    with torch.device("meta"):
        return kind.from_config(config, attn_implementation="eager").eval()


def applied(words: Mapping[str, Any], tuner: Any, head: Head, fresh: Sequence[str]) -> TunedWeights:
    """What a tuner adds and makes learn, by applying it where nothing has weights."""
    import torch

    from pipelines.models.quantization import kept_whole
    from pipelines.tuners.target_modules import inside, layers, sizes

    model = without_weights(words, head)
    model.finery_new_modules = list(fresh)
    before = {name: weight.numel() for name, weight in model.named_parameters()}
    packed = 0
    if tuner.quantization is not None:
        whole = kept_whole(model)
        packed = sum(math.prod(sizes(layer)) for name, layer in layers(model).items() if not inside(name, whole))
    body = model.base_model_prefix
    with torch.device("meta"):
        tuned = tuner.apply(model)
    return replace(of_tuned(before, tuned, body), packed=packed)


def _family_of(words: Mapping[str, object]) -> str:
    """The family that a transformers model belongs to, by the heads that transformers has for it."""
    model_type = model_types().get(str(words["model_type"]))
    heads = () if model_type is None else model_type.heads
    if words.get("is_encoder_decoder") or "seq2seq_lm" in heads:
        return "encoder-decoder"
    return "encoder" if "masked_lm" in heads else "decoder"


INNER = (
    "intermediate_size",
    "ffn_dim",
    "encoder_ffn_dim",
    "d_ff",
    "d_inner",
    "n_inner",
    "hidden_dim",
    "ffn_hidden_size",
)
"""What configs call the width inside the feed-forward network."""


def _our_words(model: Any, family: str) -> dict[str, Any] | None:
    """A foreign model's sizes in FineryConfig's words. Where a config does not tell a choice, the usual one stands."""
    config = model.config

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    width, heads, layers = first("hidden_size"), first("num_attention_heads"), first("num_hidden_layers")
    vocab = first("vocab_size")
    if not all(isinstance(each, int) for each in (width, heads, layers, vocab)):
        return None
    inner = first(*INNER) or 4 * width
    head_dim = first("head_dim", "d_kv", "d_head")
    linears = [module for module in model.modules() if hasattr(module, "out_features")]
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    gated = bool(names & {"gate_proj", "wi_1"}) or any(each.out_features == 2 * inner for each in linears)
    groups = first("num_key_value_heads")
    longest = first("max_position_embeddings", "n_positions")
    dropout = first("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "dropout_rate", "dropout")
    return {
        "family": family,
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        **(
            {"num_decoder_layers": first("num_decoder_layers", "decoder_layers")} if family == "encoder-decoder" else {}
        ),
        "num_attention_heads": heads,
        "num_key_value_heads": groups if isinstance(groups, int) and groups and heads % groups == 0 else None,
        "head_dim": head_dim or max(1, width // heads),
        "intermediate_size": inner,
        "max_position_embeddings": longest if isinstance(longest, int) and longest > 0 else 512,
        "is_gated_act": gated,
        "norm_position": "post" if family == "encoder" and not gated else "pre",
        "tie_word_embeddings": bool(first("tie_word_embeddings")),
        "hidden_dropout_prob": float(dropout or 0.0),
        "attention_probs_dropout_prob": float(
            first("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop", "dropout_rate") or 0.0
        ),
    }


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
            return architecture_fields.saved_words(local.parent), []
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(source, revision=recipe.model.revision, trust_remote_code=False).to_dict()
        return config, []
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
        from pipelines.models.tokenizer import open_tokenizer

        return len(open_tokenizer(tokenizer.pretrained)), []
    except Exception as error:  # whatever is wrong with it, the run itself says it in full
        reason = first_line(error)
        return None, [f"the tokenizer could not be looked at, so the config's own vocabulary is counted: {reason}"]


def first_line(error: Exception) -> str:
    """The beginning of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0][:160]
