"""`finery attention`: attention weights of one text by layer and head, with their entropies and distances.

The weights are the model's own, from its eager kernel, in evaluation mode. Two numbers sum a head up: the entropy of
its rows (Clark et al. 2019, "What Does BERT Look At?", section 3.3, arxiv.org/abs/1906.04341) and the mean distance
between the token that looks and those it looks at (Vig and Belinkov 2019, "Analyzing the Structure of Attention in a
Transformer Language Model", section 4.3, arxiv.org/abs/1906.04284).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError, DiskFull, ModelError, StageError
from pipelines.core.interfaces import Head
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.checkpoint import Checkpoint
from pipelines.models.heads import Family

PAGE, PICTURE = "attention.html", "attention.png"
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
class Request:
    """What `finery attention` was asked."""

    model: str
    text: str
    pair: str | None = None
    target: str | None = None
    """The text that an encoder-decoder's decoder reads."""
    out: str = "."
    layer: int | None = None
    """Counted from 1; all layers without it."""
    head: int | None = None
    limit: int = 64
    """Tokens shown of each text."""


@dataclass(frozen=True)
class Section:
    """The maps of one kind of attention."""

    name: str
    """`encoder`, `decoder` or `cross`."""
    title: str
    queries: tuple[str, ...]
    """The tokens that look: the rows of every map."""
    keys: tuple[str, ...]
    """The tokens looked at: the columns."""
    weights: Any
    """(layers, heads, query, key), a float32 array whose rows sum to 1."""
    layers: tuple[int, ...]
    """Numbers of the layers, counted from 1."""
    heads: tuple[int, ...]

    def entropies(self) -> Any:
        """(layers, heads): bits, the mean over the rows. 0 looks at one token; log2(keys) at all of them alike."""
        import numpy as np

        weights = np.asarray(self.weights, dtype=np.float64)
        logs = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
        return -(weights * logs).sum(-1).mean(-1)

    def distances(self) -> Any | None:
        """(layers, heads): tokens, the mean over the rows; None across two texts, which share no places."""
        import numpy as np

        if self.name == "cross":
            return None
        weights = np.asarray(self.weights, dtype=np.float64)
        places = np.arange(weights.shape[-1])
        return (weights * np.abs(places[:, None] - places[None, :])).sum(-1).mean(-1)

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
class Maps:
    """Everything that is shown."""

    model: str
    family: Family
    text: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the maps, write the page and the picture, and say where they lie. Raises FineryError."""
    asked = Request(**request)
    out = Path(asked.out)
    if out.exists() and not out.is_dir():
        raise CommandError(f"--out '{out}' is a file; name a folder")
    maps = attend(asked)
    written = write(maps, out)
    return {
        "model": maps.model,
        "family": maps.family,
        **{kind: str(path) for kind, path in written.items()},
        "notes": list(maps.notes),
        "sections": [section.summary() for section in maps.sections],
    }


def attend(asked: Request) -> Maps:
    """The attention of a model over a text. Raises CommandError for what cannot be asked, ModelError for the
    model's part."""
    if not asked.text.strip():
        raise CommandError("the text is empty; give a sentence")
    checkpoint = checkpoints.find(asked.model)
    config = checkpoints.config_of(checkpoint)
    family = heads.family_of(config)
    if asked.target is not None and family != "encoder-decoder":
        lacks = "decoder" if family == "encoder" else "encoder"
        raise CommandError(
            f"--target is what the decoder of an encoder-decoder reads, but '{asked.model}' has no {lacks}; leave it out"
        )
    model, has_words = _open(checkpoint, family)
    tokenizer = _tokenizer(checkpoint)
    notes: list[str] = []
    inputs = _inputs(asked, model, tokenizer, family == "decoder" and not _decides(config), notes)
    if family == "encoder-decoder":
        inputs["decoder_input_ids"] = _decoder_ids(asked, model, tokenizer, inputs, has_words, notes)
    found = _forward(model, inputs, asked.model)
    read = _pieces(tokenizer, inputs["input_ids"][0].tolist())
    said = _pieces(tokenizer, inputs["decoder_input_ids"][0].tolist()) if family == "encoder-decoder" else read
    named = {
        "encoder": ("encoder_attentions" if family == "encoder-decoder" else "attentions", read, read),
        "decoder": ("decoder_attentions" if family == "encoder-decoder" else "attentions", said, said),
        "cross": ("cross_attentions", said, read),
    }
    wanted = {"encoder": ("encoder",), "decoder": ("decoder",), "encoder-decoder": ("encoder", "decoder", "cross")}[
        family
    ]
    sections = tuple(
        _section(name, *named[name][1:], found.get(named[name][0]), asked, model, notes) for name in wanted
    )
    if (total := sum(section.weights.size for section in sections)) > MOST_WEIGHTS:
        raise CommandError(
            f"the maps hold {total:,} weights, more than the {MOST_WEIGHTS:,} that a page can show: lower --limit, or choose with "
            "--layer and --head"
        )
    return Maps(asked.model, family, asked.text, sections, tuple(dict.fromkeys(notes)))


def write(maps: Maps, out: Path) -> dict[str, Path]:
    """Write page and picture, each complete or not at all. Raises StageError."""
    from pipelines.commands import attention_files

    made: dict[Path, Path] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, make in ((PAGE, attention_files.write), (PICTURE, attention_files.write_attention_picture)):
            temporary = out / f".{name}.tmp"
            made[temporary] = out / name
            make(maps, temporary)
        for temporary, path in made.items():
            temporary.replace(path)
    except OSError as error:
        kind = DiskFull if error.errno == 28 else StageError
        raise kind(f"'{out}' cannot be written: {error.strerror or error}; name another folder with --out") from None
    finally:
        for temporary in made:
            temporary.unlink(missing_ok=True)
    return {"html": out / PAGE, "png": out / PICTURE}


def _open(checkpoint: Checkpoint, family: Family) -> tuple[Any, bool]:
    """The model with its weights kept, and whether it can write text itself."""
    head, has_words = heads.FAMILY_HEADS[family], family == "encoder-decoder"
    if has_words:
        try:
            model = checkpoints.open_checkpoint(checkpoint, head, trained_head=True)
        except ModelError:  # fine-tuned to decide: it has no words of its own
            has_words = False
    if not has_words:
        model = checkpoints.open_checkpoint(checkpoint, _head(checkpoint, family), trained_head=False)
    try:
        model.set_attn_implementation("eager")
    except (ValueError, ImportError, AttributeError) as error:
        raise ModelError(
            f"'{checkpoint.given}' cannot show its attention: {' '.join(str(error).split())[:300]}"
        ) from error
    return model, has_words


def _head(checkpoint: Checkpoint, family: Family) -> Head:
    """The head does not change the maps, but an adapter opens with its own only."""

    saved = heads.saved_head(Path(checkpoint.source))
    return saved if saved is not None and saved.kind in heads.HEAD_CLASSES else heads.FAMILY_HEADS[family]


def _tokenizer(checkpoint: Checkpoint) -> Any:
    from pipelines.models.tokenizer import open_tokenizer

    return open_tokenizer(checkpoint.tokenizer)


def _decides(config: Any) -> bool:
    """Whether the checkpoint was fine-tuned to decide about whole texts, and not to continue them."""
    decisions = ("Classification", "QuestionAnswering", "MultipleChoice", "Reward")
    return any(decision in head for head in getattr(config, "architectures", None) or () for decision in decisions)


def _inputs(asked: Request, model: Any, tokenizer: Any, stays_open: bool, notes: list[str]) -> dict[str, Any]:
    """The text as the model learnt to read it, its special tokens among it: (1, tokens) tensors."""
    limit = min(asked.limit, checkpoints.positions_of(model, tokenizer) or asked.limit)
    plain = (
        stays_open
        and asked.pair is None
        and checkpoints.text_ids(tokenizer, asked.text, True) != tokenizer(asked.text)["input_ids"]
    )
    whole = len(tokenizer(asked.text, asked.pair, add_special_tokens=not plain)["input_ids"])
    if whole > limit:
        notes.append(
            f"The text has {whole} tokens; {limit} are shown{' (--limit shows more)' if limit == asked.limit else ', as many as the model has positions for'}."
        )
    encoded = tokenizer(
        asked.text, asked.pair, add_special_tokens=not plain, truncation=True, max_length=limit, return_tensors="pt"
    )
    if encoded["input_ids"].shape[1] == 0:
        raise CommandError("nothing of the text is left after its tokenization; give a sentence with words")
    return checkpoints.known_inputs(model, encoded)


def _decoder_ids(
    asked: Request, model: Any, tokenizer: Any, inputs: Mapping[str, Any], has_words: bool, notes: list[str]
) -> Any:
    """(1, tokens): what the decoder reads: the target as in training, or the model's own greedy words."""
    import torch

    at_once = getattr(model.config, "bidirectional_decoder", False)
    limit = min(asked.limit, checkpoints.positions_of(model, tokenizer) or asked.limit)
    start = checkpoints.start_token(model, tokenizer)
    if asked.target is None and has_words:
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
    if asked.target is None:
        notes.append("No --target was given and the model writes no text: its decoder reads the encoder's text.")
    text = asked.text if asked.target is None else asked.target
    if not text.strip():
        raise CommandError("--target is empty; give the text that the decoder reads, or leave it out")
    labels = tokenizer(text_target=text, add_special_tokens=not at_once)["input_ids"]
    if len(labels) > limit:
        notes.append(f"The decoder's text has {len(labels)} tokens; {limit} are shown.")
    # moved one place to the right behind the start: what comes last is only ever predicted
    ids = labels if at_once else [start, *(labels[1:] if labels[0] == start else labels)[:-1]]
    return torch.tensor([ids[:limit]], device=model.device)


def _forward(model: Any, inputs: Mapping[str, Any], given: str) -> dict[str, Any]:
    import torch

    try:
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
    except (IndexError, ValueError, TypeError) as error:
        raise ModelError(f"'{given}' cannot read this text: {' '.join(str(error).split())[:300]}") from error
    return dict(outputs.items())


def _section(
    name: str, queries: Sequence[str], keys: Sequence[str], found: Any, asked: Request, model: Any, notes: list[str]
) -> Section:
    """The chosen layers and heads of one kind of attention. Raises ModelError when the model gives none."""
    import torch

    layers = [layer for layer in found or () if layer is not None]
    fitting = [layer for layer in layers if layer.ndim == 4 and tuple(layer.shape[-2:]) == (len(queries), len(keys))]
    if not fitting:
        raise ModelError(
            f"'{asked.model}' gives no attention weights (its {model.config.model_type} attention never forms the "
            f"{len(queries)} x {len(keys)} map, as linear attention does not); choose a model with full or windowed attention"
        )
    if len({layer.shape[1] for layer in fitting}) > 1:
        raise ModelError(f"'{asked.model}' has layers with different numbers of heads, which one grid cannot show")
    count = getattr(model.config, "num_hidden_layers", None)
    if (
        name in ("encoder", "decoder")
        and count is not None
        and len(fitting) < count
        and not model.config.is_encoder_decoder
    ):
        notes.append(f"{len(fitting)} of the {count} layers form attention maps; these are counted here.")
    weights = torch.stack([layer[0].float().cpu() for layer in fitting])  # (layers, heads, query, key)
    layer_numbers = _chosen(asked.layer, weights.shape[0], "layer", name)
    head_numbers = _chosen(asked.head, weights.shape[1], "head", name)
    weights = weights[[number - 1 for number in layer_numbers]][:, [number - 1 for number in head_numbers]]
    title = (
        "Decoder: each token looks at the decoder's text"
        if name == "decoder" and getattr(model.config, "bidirectional_decoder", False)
        else TITLES[name]
    )
    return Section(name, title, tuple(queries), tuple(keys), weights.numpy(), tuple(layer_numbers), tuple(head_numbers))


def _chosen(number: int | None, count: int, what: str, section: str) -> list[int]:
    if number is None:
        return list(range(1, count + 1))
    if not 1 <= number <= count:
        raise CommandError(f"--{what} is {number}, but the {section} attention has {what}s 1 to {count}")
    return [number]


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
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
