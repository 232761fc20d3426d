"""Writing the weights and the tokenizer that will be published: the merged model, or an adapter with its base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pipelines.protocols import Context, Head
from pipelines.publishing import foreign_code
from pipelines.publishing.bake import bake
from pipelines.publishing.heads import USES

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
BASE = "base"
CHAT_TEMPLATE = "chat_template.jinja"
"""Where transformers keeps a tokenizer's chat template."""


def assemble(context: Context, head: Head, stage_id: str, folder: Path, adapter: bool, baked: bool = False) -> dict[str, str]:
    """Fill `folder` with everything that `from_pretrained` needs; returns the code in it, relative path -> SHA-256."""
    folder.mkdir(parents=True)
    model = context.open_model(head, stage_id=stage_id, merge=not (adapter or baked), trained_head=True)
    trained = context.stage_folders[stage_id] / "model"
    written: dict[str, bytes] = {}
    if baked:
        written = bake(model, trained, folder, USES[head.kind].auto_class)
    elif adapter:
        _adapter(trained, folder)
        _save(_base_of(model), folder / BASE)
    else:
        _save(model, folder)
    context.open_tokenizer(stage_id).save_pretrained(str(folder))
    if (trained / CHAT_TEMPLATE).is_file():  # what the model was taught to answer to
        shutil.copyfile(trained / CHAT_TEMPLATE, folder / CHAT_TEMPLATE)
    return foreign_code.settled(folder, written, leave=context.recipe.model.trust_remote_code)


def _save(model: Any, folder: Path) -> None:
    model.save_pretrained(str(folder), max_shard_size="5GB")


def _adapter(trained: Path, folder: Path) -> None:
    """The trained stage's own bytes; only the base gets a name that stays true when the folder moves."""
    for name in ADAPTER_FILES:
        shutil.copyfile(trained / name, folder / name)
    for name, content in foreign_code.adapter_modules(trained).items():
        (folder / name).write_bytes(content)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": BASE, "revision": None}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _base_of(model: Any) -> Any:
    """The model as it was before the adapter. PEFT's own `unload` would leave the wholly trained modules in it."""
    from peft.utils import ModulesToSaveWrapper

    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            before = module.original_module.state_dict()
            for trained in module.modules_to_save.values():
                trained.load_state_dict(before)
    return model.unload()
