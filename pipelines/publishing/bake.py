"""Baking: an adapter becomes part of the model's own code, so that one `from_pretrained` loads both.

A bottleneck adapter cannot be merged into the weights of its base. Instead the folder gets a subclass of the base's class
that puts the adapter in place before the weights are read, and `auto_map` names it. The weights hold base and adapter; the
price is a copy of the base in every publication, and that `peft` must be installed where it is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.errors import ModelError
from pipelines.publishing import foreign_code

FILE = "modeling_with_adapter.py"
KEY = "finery_adapter"
"""Where the model's config keeps the adapter's."""
BESIDE_THE_WEIGHTS = ("auto_mapping", "base_model_name_or_path", "inference_mode", "modules_to_save", "peft_version", "revision", "task_type")
"""What an adapter's config says about its folder, and not about how it computes."""

SOURCE = '''\
"""{base} with the adapter that was trained on it. Needs `peft`, whose method `{module}` teaches."""

from peft import inject_adapter_in_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
{imports}

from .{module} import register

register(replace=False)


class {config}WithAdapter({config}):
    """Another model type than the base's: without this file the weights must not be taken for those of the base alone."""

    model_type = "{model_type}-with-adapter"


class {base}WithAdapter({base}):
    """The base, with the adapter that `config.{key}` describes."""

    config_class = {config}WithAdapter

    def __init__(self, config):
        super().__init__(config)
        said = dict(config.{key})
        inject_adapter_in_model(PEFT_TYPE_TO_CONFIG_MAPPING[said["peft_type"]](**said), self)
'''


def bake(tuned: Any, trained: Path, folder: Path, auto_class: str) -> dict[str, bytes]:
    """Write a PEFT model into `folder` as one model; returns the code that was made for it. `trained` holds its adapter. Raises ModelError."""
    modules = foreign_code.adapter_modules(trained)
    if len(modules) != 1:
        raise ModelError(f"the adapter in '{trained}' is one of PEFT's own methods, which cannot be baked; leave bake out")
    said = json.loads((trained / "adapter_config.json").read_text(encoding="utf-8"))
    model = _without_wrappers(tuned)
    setattr(model.config, KEY, {key: value for key, value in said.items() if key not in BESIDE_THE_WEIGHTS})
    model.save_pretrained(str(folder), max_shard_size="5GB")
    ((name, content),) = modules.items()
    (folder / name).write_bytes(content)
    source = _source(type(model), type(model.config), name.removesuffix(".py"), folder).encode()
    (folder / FILE).write_bytes(source)
    _name_the_classes(folder / "config.json", type(model), type(model.config), auto_class)
    return {FILE: source}


def _without_wrappers(tuned: Any) -> Any:
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
            raise ModelError(f"the code of {kind.__name__} is not saved with the model, so no adapter can be baked into it; leave bake out")
    return SOURCE.format(
        base=model.__name__, config=config.__name__, model_type=getattr(config, "model_type", ""), module=module, key=KEY, imports="\n".join(imports)
    )


def _name_the_classes(path: Path, model: type, config: type, auto_class: str) -> None:
    """In config.json, where loading begins."""
    said, file = json.loads(path.read_text(encoding="utf-8")), FILE.removesuffix(".py")
    said["architectures"] = [f"{model.__name__}WithAdapter"]
    said["auto_map"] = {"AutoConfig": f"{file}.{config.__name__}WithAdapter", auto_class: f"{file}.{model.__name__}WithAdapter"}
    said["model_type"] += "-with-adapter"
    path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
