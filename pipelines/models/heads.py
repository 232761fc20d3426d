"""Heads: which one answers which kind of task, its Auto class and config, and which one an architecture writes with.

The head that gives a text one number: our family's own class, and everywhere else a classifier with one output.

The head with which an architecture writes texts, told by a recipe alone: a decoder's or an encoder-decoder's.

Which head a model writes with: that of a decoder or that of an encoder-decoder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.model_types import looks_back_only
from pipelines.core.recipe import START
from pipelines.models import remote_code
from pipelines.models.checkpoint import family_of
from pipelines.models.opening import saved_head

if TYPE_CHECKING:
    from pipelines.core.recipe import Model, Recipe


WHERE = ("revision", "trust_remote_code", "code_revision")
"""What Auto classes are told about where a checkpoint and its code lie."""


class RewardHead:
    """Stands where transformers has an Auto class, which it has not for rewards: TRL and others use the same
    classifier."""

    @staticmethod
    def from_config(config: Any, **keywords: Any) -> Any:
        """A model with random weights."""
        if config.model_type == "finery":
            return _ours()._from_config(config, **_plain(keywords))
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_config(config, **keywords)

    @staticmethod
    def from_pretrained(source: str, **keywords: Any) -> Any:
        """The model in a folder or on the Hub."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        where = {key: keywords[key] for key in WHERE if key in keywords}
        config = AutoConfig.from_pretrained(source, **where)
        if config.model_type == "finery":
            return _ours().from_pretrained(source, **_plain(keywords))
        return AutoModelForSequenceClassification.from_pretrained(source, **keywords)


def _plain(keywords: dict[str, Any]) -> dict[str, Any]:
    """What the class itself takes: whose code it is was decided already."""
    return {key: value for key, value in keywords.items() if key not in WHERE[1:]}


def _ours() -> Any:
    from pipelines.architectures.modeling_finery_classification import FineryForReward

    return FineryForReward


WRITERS = ("causal_lm", "seq2seq_lm")


def of_shape(architecture: Mapping[str, Any]) -> Head | None:
    """The head with which an architecture of a recipe writes token by token; None where it cannot."""
    words, heads = architecture_fields.resolve(architecture), architecture_fields.heads(architecture)
    if looks_back_only(words) and "causal_lm" in heads:
        return Head("causal_lm")
    if "seq2seq_lm" in heads and not words.get("bidirectional_decoder"):
        return Head("seq2seq_lm")
    return None


HEADS = {"decoder": Head("causal_lm"), "encoder-decoder": Head("seq2seq_lm")}


def read_by(recipe: Recipe, source: str, folders: Mapping[str, Path]) -> Head:
    """That of the model which `source` names: a stage, whose folder is among `folders`, or `model`. Raises
    ModelError."""
    own = recipe.model
    if source != START:
        return of_stage(folders[source] / "model", source, own)
    if own.checkpoint is not None:
        return of_checkpoint(own.checkpoint, own.revision, own)
    return of_architecture(own.architecture or {})


def of_stage(folder: Path, stage_id: str, start: Model | None = None) -> Head:
    """That of the model which a stage left in `folder`. Raises ModelError where it writes no texts."""
    left = saved_head(folder)
    if left is None:
        return of_checkpoint(str(folder), start=start)
    if left not in HEADS.values():
        raise ModelError(
            f"the model of '{stage_id}' writes no texts, its head is for {left.kind.replace('_', ' ')}; name a stage that leaves a language model"
        )
    return left


def of_checkpoint(source: str, revision: str | None = None, start: Model | None = None) -> Head:
    """That of a folder or a Hub name; of an adapter, its base's. Raises ModelError."""
    from transformers import AutoConfig

    from pipelines.architectures.registration import register

    register()
    folder = Path(source)
    try:
        if (folder / "adapter_config.json").is_file():
            beside = next((place for place in (folder / "base", folder.parent / "base") if place.is_dir()), None)
            said = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            return of_checkpoint(str(beside or said["base_model_name_or_path"]), said.get("revision"), start)
        config = AutoConfig.from_pretrained(source, **remote_code.opening(source, revision, start))
    except (OSError, ValueError, KeyError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(
            remote_code.refusal(source, error) or f"'{source}' has no readable config: {sentence[:300]}"
        ) from error
    head = HEADS.get(family_of(config))
    if head is None:
        raise ModelError(f"'{source}' is an encoder, which writes no texts; name a decoder or an encoder-decoder")
    if getattr(config, "bidirectional_decoder", False):
        raise ModelError(
            f"'{source}' writes all words at once (mask_predict), not one after another; name another model"
        )
    return head


def of_architecture(architecture: Mapping[str, object]) -> Head:
    """That of a model from scratch. `architecture` is as it stands in the recipe. Raises ModelError."""
    known = architecture_fields.heads(architecture)
    head = next((head for head in HEADS.values() if head.kind in known), None)
    if head is None:
        raise ModelError(
            f"model.architecture writes no texts (it has heads for {', '.join(known)}); choose a decoder or an encoder-decoder"
        )
    return head
