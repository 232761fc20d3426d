"""Writes the weights, tokenizer and code of a publication: the merged model, an adapter beside its base, or a baked
one.

To bake is to make an adapter a part of the model's own code, so that one `from_pretrained` loads both. A bottleneck
adapter cannot be merged into the weights of its base. Instead the folder gets a subclass of the base's class that
puts the adapter in place before the weights are read, and `auto_map` names it. The weights hold base and adapter; the
price is a copy of the base in every publication, and that `peft` must be installed where it is loaded.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Context, Head
from pipelines.core.model_abilities import REWARD
from pipelines.data.chat_templates import end_of_turn
from pipelines.models.heads import HEAD_CLASSES
from pipelines.publishing import foreign_code

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
BASE = "base"
CHAT_TEMPLATE = "chat_template.jinja"
"""Where transformers keeps a tokenizer's chat template."""
BESIDE = (CHAT_TEMPLATE, REWARD)
"""What a stage leaves beside weights and tokenizer: what the model was taught to answer to, and how it scores."""
BAKED_FILE = "modeling_with_adapter.py"
KEY = "finery_adapter"
"""Where the model's config keeps the adapter's."""
BESIDE_THE_WEIGHTS = (
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "modules_to_save",
    "peft_version",
    "revision",
    "task_type",
)
"""What an adapter's config says about its folder, and not about how it computes."""

SOURCE = '''\
"""{base} with the adapter that was trained on it. Needs `peft`, whose method `{module}` teaches."""

from peft import inject_adapter_in_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
{imports}

from .{module} import register

register(replace=False)


class {config}WithAdapter({config}):
    """Another model type than the base's: without this file the weights must not be taken for the base's alone."""

    model_type = "{model_type}-with-adapter"


class {base}WithAdapter({base}):
    """The base, with the adapter that `config.{key}` describes."""

    config_class = {config}WithAdapter

    def __init__(self, config):
        super().__init__(config)
        said = dict(config.{key})
        inject_adapter_in_model(PEFT_TYPE_TO_CONFIG_MAPPING[said["peft_type"]](**said), self)
'''


def read_head(model_folder: Path) -> Head:
    """The head that a trained stage wrote down in `head.json`. Raises ModelError."""
    try:
        record = json.loads((model_folder / "head.json").read_text(encoding="utf-8"))
        kind, labels = record["kind"], tuple(record["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(
            f"'{model_folder}' holds no readable head.json; run the stage that trained the model again"
        ) from None
    if kind not in HEAD_CLASSES:
        raise ModelError(
            f"models with the head '{kind}' cannot be published yet; those that can: {', '.join(HEAD_CLASSES)}"
        )
    return Head(kind, labels)


def is_adapter(model_folder: Path) -> bool:
    """Whether the folder holds a PEFT adapter instead of a whole model."""
    return (model_folder / "adapter_config.json").is_file()


def assemble(
    context: Context, head: Head, stage_id: str, folder: Path, adapter: bool, baked: bool = False
) -> dict[str, str]:
    """Fill `folder` with everything that `from_pretrained` needs; returns the code in it, relative path -> SHA-256."""
    folder.mkdir(parents=True)
    model = context.open_model(head, stage_id=stage_id, merge=not (adapter or baked), trained_head=True)
    tokenizer = context.open_tokenizer(stage_id)
    end_answers(model, tokenizer)
    trained = context.stage_folders[stage_id] / "model"
    written: dict[str, bytes] = {}
    if baked:
        written = bake(model, trained, folder, HEAD_CLASSES[head.kind].auto_class)
    elif adapter:
        _adapter(trained, folder)
        _save(_base_of(model), folder / BASE)
    else:
        _save(model, folder)
    tokenizer.save_pretrained(str(folder))
    for name in BESIDE:
        if (trained / name).is_file():
            shutil.copyfile(trained / name, folder / name)
    return foreign_code.settled(folder, written, leave=context.recipe.model.trust_remote_code)


def end_answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let every program that generates with a chat model stop at the token that ends an answer in its template."""
    from pipelines.models.sampling import ends_of

    if model.can_generate() and end_of_turn(tokenizer) not in (None, tokenizer.eos_token_id):
        model.generation_config.eos_token_id = ends_of(model, tokenizer)


def _save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(str(folder), max_shard_size="5GB")


PEFT_SETS = ("target_modules", "exclude_modules", "feedforward_modules")
"""Names that PEFT keeps as a set, and writes in another order in each process."""


def _adapter(trained: Path, folder: Path) -> None:
    """The trained stage's own bytes; only the base gets a name that stays true when the folder moves."""
    for name in ADAPTER_FILES:
        shutil.copyfile(trained / name, folder / name)
    for name, content in foreign_code.adapter_modules(trained).items():
        (folder / name).write_bytes(content)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": BASE, "revision": None}
    for key in PEFT_SETS:
        if isinstance(config.get(key), list):
            config[key].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _base_of(model: PreTrainedModel) -> Any:
    """The model as it was before the adapter. PEFT's own `unload` would leave the wholly trained modules in it."""
    from peft.utils import ModulesToSaveWrapper

    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            before = module.original_module.state_dict()
            for trained in module.modules_to_save.values():
                trained.load_state_dict(before)
    return model.unload()


def bake(tuned: PeftModel, trained: Path, folder: Path, auto_class: str) -> dict[str, bytes]:
    """Write a PEFT model into `folder` as one model; returns the code that was made for it. `trained` holds its
    adapter. Raises ModelError."""
    modules = foreign_code.adapter_modules(trained)
    if len(modules) != 1:
        raise ModelError(
            f"the adapter in '{trained}' is one of PEFT's own methods, which cannot be baked; leave bake out"
        )
    settings = json.loads((trained / "adapter_config.json").read_text(encoding="utf-8"))
    model = _without_wrappers(tuned)
    setattr(model.config, KEY, {key: value for key, value in settings.items() if key not in BESIDE_THE_WEIGHTS})
    model.save_pretrained(str(folder), max_shard_size="5GB")
    ((name, content),) = modules.items()
    (folder / name).write_bytes(content)
    source = _source(type(model), type(model.config), name.removesuffix(".py"), folder).encode()
    (folder / BAKED_FILE).write_bytes(source)
    _name_the_classes(folder / "config.json", type(model), type(model.config), auto_class)
    return {BAKED_FILE: source}


def _without_wrappers(tuned: PeftModel) -> PreTrainedModel:
    """The base with the adapters in place, and what was trained whole as plain modules."""
    from peft.utils import ModulesToSaveWrapper

    model = tuned.get_base_model()
    for name, wrapper in list(model.named_modules()):
        if isinstance(wrapper, ModulesToSaveWrapper):
            model.set_submodule(name, wrapper.modules_to_save[tuned.active_adapter])
    return model


def _source(model: type, config: type, module: str, folder: Path) -> str:
    imports = []
    for kind in sorted({model, config}, key=lambda each: each.__name__):
        file = kind.__module__.rpartition(".")[2]
        if kind.__module__.startswith("transformers."):
            imports.append(f"from transformers import {kind.__name__}")
        elif (folder / f"{file}.py").is_file():
            imports.append(f"from .{file} import {kind.__name__}")
        else:
            raise ModelError(
                f"the code of {kind.__name__} is not saved with the model, so no adapter can be baked into it; "
                "leave bake out"
            )
    return SOURCE.format(
        base=model.__name__,
        config=config.__name__,
        model_type=getattr(config, "model_type", ""),
        module=module,
        key=KEY,
        imports="\n".join(imports),
    )


def _name_the_classes(path: Path, model: type, config: type, auto_class: str) -> None:
    """In config.json, where loading begins."""
    settings, file = json.loads(path.read_text(encoding="utf-8")), BAKED_FILE.removesuffix(".py")
    settings["architectures"] = [f"{model.__name__}WithAdapter"]
    settings["auto_map"] = {
        "AutoConfig": f"{file}.{config.__name__}WithAdapter",
        auto_class: f"{file}.{model.__name__}WithAdapter",
    }
    settings["model_type"] += "-with-adapter"
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
