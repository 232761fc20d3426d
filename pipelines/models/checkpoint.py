"""The checkpoint that a user names: a published folder, a stage's or a run's folder, or a Hub id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, ModelError
from pipelines.core.files import RECORD
from pipelines.core.interfaces import Head
from pipelines.core.model_types import usable_positions
from pipelines.core.shared_bases import base_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

UNBOUNDED = ("alibi", "relative", "none")
"""Positions of our own family that go on for any length."""
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Checkpoint:
    """Where a model and its tokenizer lie."""

    given: str
    """As the user named it."""
    source: str
    """The folder with the weights, or the Hub id."""
    tokenizer: str

    @property
    def adapter_base(self) -> Path | None:
        """The base of a published adapter, which lies in its own folder."""
        folder = Path(self.source)
        return folder / "base" if (folder / "adapter_config.json").is_file() and (folder / "base").is_dir() else None


def find(given: str) -> Checkpoint:
    """The checkpoint behind a name. Raises CommandError when there is none."""
    if not given.strip():
        raise CommandError(
            "the model's name is empty; give a folder with a checkpoint, a run folder such as runs/NAME, or a Hub id"
        )
    folder = Path(given).expanduser()
    if folder.is_dir():
        model = _model_in(folder)
        return Checkpoint(given, str(model), str(_tokenizer_of(model, folder)))
    if folder.exists():
        raise CommandError(f"'{given}' is a file; give the folder that holds the checkpoint")
    run = Path("runs") / given
    if run.is_dir():
        raise CommandError(f"there is no folder '{given}'; the run of that name is '{run}'")
    if (
        folder.is_absolute()
        or given.startswith((".", "~"))
        or not HUB_ID.fullmatch(given)
        or Path(given).parts[0] in ("runs", "registry")
    ):
        raise CommandError(
            f"there is no folder '{given}'; give a folder with a checkpoint, a run folder such as runs/NAME, "
            "or a Hub id"
        )
    return Checkpoint(given, given, given)


def _model_in(folder: Path) -> Path:
    """The folder with the weights: this one, that of a stage, or that of a run's last stage that trained one."""
    if _holds_model(folder):
        return folder
    if _holds_model(folder / "model"):
        return folder / "model"
    if (folder / "stages").is_dir():
        stages = sorted((stage for stage in (folder / "stages").iterdir() if (stage / RECORD).is_file()), reverse=True)
        for stage in stages:
            if _holds_model(stage / "model"):
                return stage / "model"
        raise CommandError(
            f"the run '{folder}' has no complete stage with a model yet; finish it: finery resume {folder}"
        )
    if (folder / "cells").is_dir():
        raise CommandError(f"'{folder}' is a study of several runs; name one of them, such as {folder}/cells/01")
    if (folder / RECORD).is_file() or folder.parent.name == "stages":
        raise CommandError(f"the stage '{folder}' left no model; name a stage that trained one, or the run's folder")
    raise CommandError(f"'{folder}' holds no checkpoint: neither config.json, nor model/, nor stages/")


def _holds_model(folder: Path) -> bool:
    """A tokenizer's folder has a config of another name."""
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _tokenizer_of(model: Path, given: Path) -> Path:
    """The folder with the tokenizer: beside the weights, or the run's own."""
    for place in (model, given / "tokenizer" / "model", given.parent.parent / "tokenizer" / "model", model / "base"):
        if (place / "tokenizer.json").is_file() or (place / "tokenizer_config.json").is_file():
            return place
    return model  # transformers says what it misses there


def config_of(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The model's config; that of its base when it is an adapter. Raises ModelError."""
    from transformers import AutoConfig

    from pipelines.architectures.registration import register

    register()
    folder = Path(checkpoint.source)
    try:
        return AutoConfig.from_pretrained(base_of(folder) or checkpoint.source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        sentence = " ".join(str(error).split())
        if not folder.is_dir():
            raise ModelError(
                f"there is no folder '{checkpoint.given}', and the Hub gives no such model: {sentence[:300]}"
            ) from error
        raise ModelError(f"'{checkpoint.given}' has no readable config: {sentence[:300]}") from error


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, stays_open: bool) -> list[int]:
    """A text's tokens. One that `stays_open` is to be continued: nothing that a tokenizer for encoders adds is around
    it.

    What stands before the text only (Llama's beginning of text) is kept: such a tokenizer is made for decoders.
    """
    whole: list[int] = tokenizer(text)["input_ids"]
    if not stays_open or not whole or whole[-1] not in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        return whole
    plain: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return whole if whole[-len(plain) :] == plain else plain


def open_checkpoint(checkpoint: Checkpoint, head: Head, trained_head: bool, seed: int = 0) -> PreTrainedModel:
    """The model in evaluation mode, on the accelerator if there is one; an adapter is merged into its base. Raises
    ModelError."""
    import torch

    from pipelines.models.opening import open_folder

    model = open_folder(checkpoint.source, head, seed, trained_head=trained_head)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def known_inputs(model: PreTrainedModel, encoded: Mapping[str, Any]) -> dict[str, Any]:
    """What the model takes of an encoded text, on its device: not every model has segments."""
    import inspect

    parameters = inspect.signature(model.forward).parameters
    return {name: values.to(model.device) for name, values in encoded.items() if name in parameters}


def positions_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """How many tokens the model can read at once; None where nothing in it ends."""
    config = model.config
    limits = [None if getattr(config, "position", None) in UNBOUNDED else usable_positions(config)]
    if tokenizer.model_max_length < 10**6:  # else the tokenizer knows none
        limits.append(int(tokenizer.model_max_length))
    return min((limit for limit in limits if limit), default=None)


def start_token(model: PreTrainedModel | PreTrainedConfig | None, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that a decoder beside an encoder begins with, of a model or by its config alone. Raises ModelError."""
    config, generation = getattr(model, "config", model), getattr(model, "generation_config", None)
    named = (
        getattr(config, "decoder_start_token_id", None),
        getattr(generation, "decoder_start_token_id", None),
        getattr(config, "bos_token_id", None),
    )
    start = next((token for token in named if token is not None), None)
    start = tokenizer.pad_token_id if start is None else start
    if start is None:
        raise ModelError(
            "the model has no decoder_start_token_id and the tokenizer no padding token, so the decoder cannot begin; "
            "set decoder_start_token_id in the model's config"
        )
    return int(start)


def written_at_once(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: Mapping[str, Any]) -> Any:
    """(1, tokens): what a model with a decoder that sees both sides writes, by mask-predict. Raises ModelError."""
    if tokenizer.mask_token_id is None:
        raise ModelError(
            "the tokenizer has no mask token, without which mask-predict cannot decode; use the model's own tokenizer"
        )
    try:
        return model.mask_predict(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            mask_token_id=tokenizer.mask_token_id,
            excluded=tuple(tokenizer.all_special_ids),
        )
    except ValueError as error:
        raise ModelError(f"the model cannot write: {' '.join(str(error).split())}") from error
