"""Attention maps: the attention weights of one text by layer and head, with their entropies and distances.

The weights are the model's own, from its eager kernel, in evaluation mode. Two numbers sum a head up: the entropy of
its rows (Clark et al. 2019, "What Does BERT Look At?", section 3.3, arxiv.org/abs/1906.04341) and the mean distance
between the token that looks and those it looks at (Vig and Belinkov 2019, "Analyzing the Structure of Attention in a
Transformer Language Model", section 4.3, arxiv.org/abs/1906.04284).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core import architecture_fields
from pipelines.core.errors import CommandError, ModelError
from pipelines.core.interfaces import Head
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.checkpoint import Checkpoint
from pipelines.models.heads import Family

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

OWN_WORDS = 32
"""How many tokens an encoder-decoder writes itself when it is given no text for its decoder."""
MOST_WEIGHTS = 12_000_000
"""Of all maps together: a page of 32 MB."""
TITLES = {
    "encoder": "Encoder: each token looks at the text",
    "decoder": "Decoder: each token looks at those before it",
    "cross": "Cross-attention: the decoder looks at the encoder's text",
}


@dataclass(frozen=True)
class AttentionRequest:
    """Whose attention is asked for, over what, and which part of it."""

    model: str
    text: str
    pair: str | None = None
    target: str | None = None
    """The text that an encoder-decoder's decoder reads."""
    layer: int | None = None
    """Counted from 1; all layers without it."""
    head: int | None = None
    limit: int = 64
    """Tokens shown of each text."""
    hints: bool = True
    """Whether notes name the options of the command that would change them."""


@dataclass(frozen=True)
class OpenedModel:
    """A model that is open already, with its tokenizer. Its attention is computed by the eager kernel."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    has_words: bool
    """Whether it is an encoder-decoder that writes text itself."""


@dataclass(frozen=True)
class AttentionSection:
    """The maps of one kind of attention."""

    name: str
    """`encoder`, `decoder` or `cross`."""
    title: str
    queries: tuple[str, ...]
    """The tokens that look: the rows of every map."""
    keys: tuple[str, ...]
    """The tokens looked at: the columns."""
    weights: NDArray[np.float32]
    """(layers, heads, query, key), a float32 array whose rows sum to 1."""
    layers: tuple[int, ...]
    """Numbers of the layers, counted from 1."""
    heads: tuple[int, ...]

    def entropies(self) -> NDArray[np.float64]:
        """(layers, heads): bits, the mean over the rows. 0 looks at one token; log2(keys) at all of them alike."""
        import numpy as np

        weights = np.asarray(self.weights, dtype=np.float64)
        logs = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
        entropies: NDArray[np.float64] = -(weights * logs).sum(-1).mean(-1)
        return entropies

    def distances(self) -> NDArray[np.float64] | None:
        """(layers, heads): tokens, the mean over the rows; None across two texts, which share no places."""
        import numpy as np

        if self.name == "cross":
            return None
        weights = np.asarray(self.weights, dtype=np.float64)
        places = np.arange(weights.shape[-1])
        apart = np.abs(places[:, None] - places[None, :])
        distances: NDArray[np.float64] = (weights * apart).sum(-1).mean(-1)
        return distances

    def summary(self) -> dict[str, Any]:
        """Plain data, without the maps."""
        entropies, distances = self.entropies(), self.distances()
        return {
            "name": self.name,
            "title": self.title,
            "queries": list(self.queries),
            "keys": list(self.keys),
            "maps": [
                {
                    "layer": layer,
                    "head": head,
                    "entropy": round(float(entropies[row, column]), 4),
                    "mean_distance": None if distances is None else round(float(distances[row, column]), 4),
                }
                for row, layer in enumerate(self.layers)
                for column, head in enumerate(self.heads)
            ],
        }


@dataclass(frozen=True)
class AttentionMaps:
    """Everything that is shown."""

    model: str
    family: Family
    text: str
    sections: tuple[AttentionSection, ...]
    notes: tuple[str, ...] = ()


def attend(request: AttentionRequest, opened: OpenedModel | None = None) -> AttentionMaps:
    """The attention of a model over a text; of `opened`, where the model is open already. Raises CommandError for what
    cannot be asked, ModelError for the model's part."""
    if not request.text.strip():
        raise CommandError("the text is empty; give a sentence")
    checkpoint = None if opened is not None else checkpoints.find(request.model)
    config = opened.model.config if opened is not None else checkpoints.config_of(checkpoint)  # type: ignore[arg-type]
    family = heads.family_of(config)
    if (
        config.model_type in architecture_fields.BASELINE_RULES
        and getattr(config, "attention_scoring", "none") == "none"
    ):
        raise CommandError(f"'{request.model}' is a recurrent network without attention; choose a model that has some")
    if request.target is not None and family != "encoder-decoder":
        lacks = "decoder" if family == "encoder" else "encoder"
        raise CommandError(
            f"--target is what the decoder of an encoder-decoder reads, but '{request.model}' has no {lacks}; "
            "leave it out"
        )
    if checkpoint is None:
        assert opened is not None
        model, tokenizer, has_words = opened.model, opened.tokenizer, opened.has_words
        eager(model, request.model)
    else:
        model, has_words = _open(checkpoint, family)
        tokenizer = _tokenizer(checkpoint)
    notes: list[str] = []
    inputs = _inputs(request, model, tokenizer, family == "decoder" and not _decides(config), notes)
    if family == "encoder-decoder":
        inputs["decoder_input_ids"] = _decoder_ids(request, model, tokenizer, inputs, has_words, notes)
    outputs = _forward(model, inputs, request.model)
    source = _pieces(tokenizer, inputs["input_ids"][0].tolist())
    target = _pieces(tokenizer, inputs["decoder_input_ids"][0].tolist()) if family == "encoder-decoder" else source
    named = {
        "encoder": ("encoder_attentions" if family == "encoder-decoder" else "attentions", source, source),
        "decoder": ("decoder_attentions" if family == "encoder-decoder" else "attentions", target, target),
        "cross": ("cross_attentions", target, source),
    }
    wanted = {"encoder": ("encoder",), "decoder": ("decoder",), "encoder-decoder": ("encoder", "decoder", "cross")}[
        family
    ]
    if config.model_type in architecture_fields.BASELINE_RULES:  # cells and convolutions stand in for the others
        wanted = ("cross",)
    sections = tuple(
        _section(name, *named[name][1:], outputs.get(named[name][0]), request, model, notes) for name in wanted
    )
    if (total := sum(section.weights.size for section in sections)) > MOST_WEIGHTS:
        raise CommandError(
            f"the maps hold {total:,} weights, more than the {MOST_WEIGHTS:,} that a page can show: lower "
            "--limit, or choose with "
            "--layer and --head"
        )
    return AttentionMaps(request.model, family, request.text, sections, tuple(dict.fromkeys(notes)))


def _open(checkpoint: Checkpoint, family: Family) -> tuple[PreTrainedModel, bool]:
    """The model with its weights kept, and whether it can write text itself."""
    head, has_words = heads.FAMILY_HEADS[family], family == "encoder-decoder"
    if has_words:
        try:
            model = checkpoints.open_checkpoint(checkpoint, head, trained_head=True)
        except ModelError:  # fine-tuned to decide: it has no words of its own
            has_words = False
    if not has_words:
        model = checkpoints.open_checkpoint(checkpoint, _head(checkpoint, family), trained_head=False)
    eager(model, checkpoint.given)
    return model, has_words


def eager(model: PreTrainedModel, given: str) -> None:
    """Have the model compute its attention by the kernel that tells the weights. Raises ModelError."""
    try:
        model.set_attn_implementation("eager")
    except (ValueError, ImportError, AttributeError) as error:
        raise ModelError(f"'{given}' cannot show its attention: {' '.join(str(error).split())[:300]}") from error


def _head(checkpoint: Checkpoint, family: Family) -> Head:
    """The head does not change the maps, but an adapter opens with its own only."""
    saved = heads.saved_head(Path(checkpoint.source))
    return saved if saved is not None and saved.kind in heads.HEAD_CLASSES else heads.FAMILY_HEADS[family]


def _tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    from pipelines.models.tokenizer import open_tokenizer

    return open_tokenizer(checkpoint.tokenizer)


def _decides(config: PretrainedConfig) -> bool:
    """Whether the checkpoint was fine-tuned to decide about whole texts, and not to continue them."""
    decisions = ("Classification", "QuestionAnswering", "MultipleChoice", "Reward")
    return any(decision in head for head in getattr(config, "architectures", None) or () for decision in decisions)


def _inputs(
    request: AttentionRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stays_open: bool,
    notes: list[str],
) -> dict[str, Any]:
    """The text as the model learnt to read it, its special tokens among it: (1, tokens) tensors."""
    limit = min(request.limit, checkpoints.positions_of(model, tokenizer) or request.limit)
    plain = (
        stays_open
        and request.pair is None
        and checkpoints.text_ids(tokenizer, request.text, True) != tokenizer(request.text)["input_ids"]
    )
    whole = len(tokenizer(request.text, request.pair, add_special_tokens=not plain)["input_ids"])
    if whole > limit:
        more = " (--limit shows more)" if request.hints else ""
        why = more if limit == request.limit else ", as many as the model has positions for"
        notes.append(f"The text has {whole} tokens; {limit} are shown{why}.")
    encoded = tokenizer(
        request.text, request.pair, add_special_tokens=not plain, truncation=True, max_length=limit, return_tensors="pt"
    )
    if encoded["input_ids"].shape[1] == 0:
        raise CommandError("nothing of the text is left after its tokenization; give a sentence with words")
    return checkpoints.known_inputs(model, encoded)


def _decoder_ids(
    request: AttentionRequest,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    has_words: bool,
    notes: list[str],
) -> Tensor:
    """(1, tokens): what the decoder reads: the target as in training, or the model's own greedy words."""
    import torch

    at_once = getattr(model.config, "bidirectional_decoder", False)
    limit = min(request.limit, checkpoints.positions_of(model, tokenizer) or request.limit)
    start = checkpoints.start_token(model, tokenizer)
    if request.target is None and has_words:
        if request.hints:
            notes.append("No --target was given: the decoder reads the model's own answer.")
        with torch.no_grad():
            if at_once:
                return checkpoints.written_at_once(model, tokenizer, inputs)[:, :limit]
            own = model.generate(
                **inputs,
                do_sample=False,
                num_beams=1,
                max_new_tokens=min(OWN_WORDS, limit),
                max_length=None,
                decoder_start_token_id=start,
                pad_token_id=start if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            )
        ended = own.shape[1] > 1 and own[0, -1].item() == tokenizer.eos_token_id
        return own[:, : min(own.shape[1] - ended, limit)]
    if request.target is None:
        given = "No --target was given" if request.hints else "No text was given for the decoder"
        notes.append(f"{given} and the model writes no text: its decoder reads the encoder's text.")
    text = request.text if request.target is None else request.target
    if not text.strip():
        raise CommandError("--target is empty; give the text that the decoder reads, or leave it out")
    labels = tokenizer(text_target=text, add_special_tokens=not at_once)["input_ids"]
    if len(labels) > limit:
        notes.append(f"The decoder's text has {len(labels)} tokens; {limit} are shown.")
    # moved one place to the right behind the start: what comes last is only ever predicted
    ids = labels if at_once else [start, *(labels[1:] if labels[0] == start else labels)[:-1]]
    return torch.tensor([ids[:limit]], device=model.device)


def _forward(model: PreTrainedModel, inputs: Mapping[str, Tensor], given: str) -> dict[str, Any]:
    import torch

    try:
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
    except (IndexError, ValueError, TypeError) as error:
        raise ModelError(f"'{given}' cannot read this text: {' '.join(str(error).split())[:300]}") from error
    return dict(outputs.items())


def _section(
    name: str,
    queries: Sequence[str],
    keys: Sequence[str],
    attentions: Any,
    request: AttentionRequest,
    model: PreTrainedModel,
    notes: list[str],
) -> AttentionSection:
    """The chosen layers and heads of one kind of attention. Raises ModelError when the model gives none."""
    import torch

    layers = [layer for layer in attentions or () if layer is not None]
    fitting = [layer for layer in layers if layer.ndim == 4 and tuple(layer.shape[-2:]) == (len(queries), len(keys))]
    if not fitting:
        raise ModelError(
            f"'{request.model}' gives no attention weights (its {model.config.model_type} attention never forms the "
            f"{len(queries)} x {len(keys)} map, as linear attention does not); choose a model with full or "
            "windowed attention"
        )
    if len({layer.shape[1] for layer in fitting}) > 1:
        raise ModelError(f"'{request.model}' has layers with different numbers of heads, which one grid cannot show")
    count = getattr(model.config, "num_hidden_layers", None)
    if (
        name in ("encoder", "decoder")
        and count is not None
        and len(fitting) < count
        and not model.config.is_encoder_decoder
    ):
        notes.append(f"{len(fitting)} of the {count} layers form attention maps; these are counted here.")
    weights = torch.stack([layer[0].float().cpu() for layer in fitting])  # (layers, heads, query, key)
    layer_numbers = _chosen(request.layer, weights.shape[0], "layer", name)
    head_numbers = _chosen(request.head, weights.shape[1], "head", name)
    weights = weights[[number - 1 for number in layer_numbers]][:, [number - 1 for number in head_numbers]]
    title = (
        "Decoder: each token looks at the decoder's text"
        if name == "decoder" and getattr(model.config, "bidirectional_decoder", False)
        else TITLES[name]
    )
    return AttentionSection(
        name, title, tuple(queries), tuple(keys), weights.numpy(), tuple(layer_numbers), tuple(head_numbers)
    )


def _chosen(number: int | None, count: int, what: str, section: str) -> list[int]:
    if number is None:
        return list(range(1, count + 1))
    if not 1 <= number <= count:
        raise CommandError(f"--{what} is {number}, but the {section} attention has {what}s 1 to {count}")
    return [number]


def _pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them: bytes of byte-level vocabularies as letters, a leading space as ▁."""
    from tokenizers.decoders import ByteLevel

    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    if not isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return [str(token) for token in tokens]
    special = set(tokenizer.all_special_ids)
    return [
        str(token)
        if number in special
        else _readable(tokenizer.decode([number], clean_up_tokenization_spaces=False), str(token))
        for number, token in zip(ids, tokens, strict=True)
    ]


def _readable(text: str, token: str) -> str:
    """The decoded piece; the raw token where it is a part of a letter only."""
    return token if "�" in text or not text else text.replace(" ", "▁").replace("\n", "↵")
