"""Which head a model writes with: that of a decoder or that of an encoder-decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import remote_code
from pipelines.checkpoints import family_of
from pipelines.errors import ModelError
from pipelines.fields import architectures
from pipelines.models import saved_head
from pipelines.protocols import Head
from pipelines.recipe import START

if TYPE_CHECKING:
    from pipelines.recipe import Model, Recipe

HEADS = {"decoder": Head("causal_lm"), "encoder-decoder": Head("seq2seq_lm")}


def read_by(recipe: Recipe, source: str, folders: Mapping[str, Path]) -> Head:
    """That of the model which `source` names: a stage, whose folder is among `folders`, or `model`. Raises ModelError."""
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
        raise ModelError(f"the model of '{stage_id}' writes no texts, its head is for {left.kind.replace('_', ' ')}; name a stage that leaves a language model")
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
        raise ModelError(remote_code.refusal(source, error) or f"'{source}' has no readable config: {sentence[:300]}") from error
    head = HEADS.get(family_of(config))
    if head is None:
        raise ModelError(f"'{source}' is an encoder, which writes no texts; name a decoder or an encoder-decoder")
    if getattr(config, "bidirectional_decoder", False):
        raise ModelError(f"'{source}' writes all words at once (mask_predict), not one after another; name another model")
    return head


def of_architecture(architecture: Mapping[str, object]) -> Head:
    """That of a model from scratch. `architecture` is as it stands in the recipe. Raises ModelError."""
    known = architectures.heads(architecture)
    head = next((head for head in HEADS.values() if head.kind in known), None)
    if head is None:
        raise ModelError(f"model.architecture writes no texts (it has heads for {', '.join(known)}); choose a decoder or an encoder-decoder")
    return head
