"""The models and tokenizers that a stage of a run may open: what stands behind `Context.open_model`."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.interfaces import Head, Precision, World
from pipelines.core.recipe import START, TOKENIZER, Model, Recipe, Stage
from pipelines.models import heads, opening, quantization, tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class StageModels:
    """The recipe's own model, those of earlier stages, and checkpoints from elsewhere."""

    recipe: Recipe
    stage: Stage
    start: Model
    """The recipe's model at one commit."""
    folders: Mapping[str, Path]
    """Folders of the complete stages, by id."""
    precision: Precision
    world: World
    barrier: Callable[[], None]

    def open_model(
        self,
        head: Head | None,
        stage_id: str | None = None,
        merge: bool = True,
        trained_head: bool = False,
        keep_base: Path | None = None,
        checkpoint: str | None = None,
    ) -> PreTrainedModel:
        """As `ModelOpener` promises."""
        _keep_out_of_collections()
        seed, source = self.recipe.seed_of(self.stage), stage_id or self.recipe.model_of(self.stage)
        if head is None:
            head = heads.of_checkpoint(checkpoint) if checkpoint else heads.read_by(self.recipe, source, self.folders)
        if checkpoint is not None:
            return opening.open_folder(checkpoint, head, seed, merge=merge, trained_head=trained_head)
        tuner = getattr(self.stage, "tuner", None)
        packed = quantization.settled(getattr(tuner, "quantization", None), self.precision) if keep_base else None
        start = self.start
        if source != START:
            folder = self.folders[source] / "model"
            model = opening.open_folder(
                folder, head, seed, merge=merge, trained_head=trained_head, quantization=packed, start=start
            )
        elif start.checkpoint is None:
            model = opening.build(start.shape(), head, self.open_tokenizer(), seed)
        else:
            model = opening.open_folder(
                start.checkpoint,
                head,
                seed,
                revision=start.revision,
                trained_head=trained_head,
                quantization=packed,
                start=start,
            )
        opening.check_vocabulary(model, self.open_tokenizer())
        if keep_base is not None and not model.name_or_path:
            self._save_base(model, keep_base)
            if packed is not None:  # it is in a folder only now
                fresh = model.finery_new_modules
                model = opening.open_folder(keep_base, head, seed, quantization=packed, start=start)
                model.finery_new_modules = fresh
        return model

    def open_tokenizer(self, stage_id: str | None = None, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
        """As `TokenizerOpener` promises."""
        return open_tokenizer(self.folders, self.start, stage_id, checkpoint)

    def _save_base(self, model: PreTrainedModel, folder: Path) -> None:
        if self.world.is_main:
            shutil.rmtree(folder, ignore_errors=True)
            model.save_pretrained(str(folder))
        if not self.world.is_sharded:  # then the others may not be here: `open_once`
            self.barrier()
        model.name_or_path = str(folder)


@cache
def _keep_out_of_collections() -> None:
    """Take what is imported before the first model is there out of garbage collection, for the life of the process:
    each training run collects, and walks over a million objects of torch and transformers. Once: a model among them
    would never be let go, whose wrapped `forward` stands in a circle with it."""
    gc.freeze()


def open_tokenizer(
    folders: Mapping[str, Path], start: Model, stage_id: str | None = None, checkpoint: str | None = None
) -> PreTrainedTokenizerBase:
    """The run's tokenizer; that of a stage as the stage left it, with its chat template; that of a checkpoint."""
    if checkpoint is not None:
        return tokenizer.open_tokenizer(checkpoint)
    own = folders[TOKENIZER] / "model"
    if (
        stage_id is not None
        and stage_id in folders
        and (folders[stage_id] / "model" / "tokenizer_config.json").is_file()
    ):
        own = folders[stage_id] / "model"
    return tokenizer.open_tokenizer(str(own), start=start)
