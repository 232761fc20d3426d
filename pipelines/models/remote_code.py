"""Code that lies beside a checkpoint: whether opening it may run any, and which.

transformers asks on the terminal when it is not told, so every Auto class is told. Without leave the classes of
transformers and of Finery are used, or the checkpoint is refused. With leave (`model.trust_remote_code`) code of that
checkpoint's own repository runs, at the commit that the recipe names, and of the folders that stages make of it,
which hold a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError

if TYPE_CHECKING:
    from pipelines.core.recipe import Model

NO_CODE = {"trust_remote_code": False}
NAMES_OF_CODE = ("auto_map", "custom_pipelines", "custom_generate")
"""Entries of a checkpoint's JSON that name code, which transformers keeps and saves again."""


def allowed(source: str, model: Model | None) -> bool:
    """Whether code beside `source` may run: `model` is the recipe's, where `source` is that or was made of it."""
    return model is not None and model.trust_remote_code and (source == model.checkpoint or Path(source).is_dir())


def opening(source: str, revision: str | None, model: Model | None) -> dict[str, Any]:
    """What `from_pretrained` of an Auto class is told about revision and code. Raises ModelError where the code
    lies elsewhere."""
    if model is None or not allowed(source, model):
        return {"revision": revision, **NO_CODE}
    refuse_elsewhere(source, revision, str(model.checkpoint))
    return {"revision": revision, "trust_remote_code": True, "code_revision": model.revision}


def refuse_elsewhere(source: str, revision: str | None, own: str) -> None:
    """Raise ModelError when a checkpoint names code of another repository than `own`, which the commit says
    nothing about."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    readers: tuple[Callable[[], Any], ...] = (
        lambda: PreTrainedConfig.get_config_dict(source, revision=revision)[0],
        lambda: get_tokenizer_config(source, revision=revision),
    )
    for read in readers:
        try:
            config = read()
        except (OSError, ValueError):  # opening it says so
            continue
        for target in named(config.get("auto_map")):
            owner = target.partition("--")[0] if "--" in target else source
            if owner not in (source, own):
                raise ModelError(
                    f"'{source}' names code of another repository, '{owner}', which trust_remote_code does not cover; "
                    "copy the code beside the checkpoint, or name a repository that holds its own"
                )


def forget_named(opened: Any, where: Mapping[str, Any]) -> Any:
    """What was opened, without the names of code that its files hold: saved again, it must not lead anybody to that
    code.

    Where the code was allowed (`where`, as `opening` gave it) it is saved beside, and stays named.
    """
    if where.get("trust_remote_code"):
        return opened
    if isinstance(init := getattr(opened, "init_kwargs", None), dict):  # a tokenizer
        for key in NAMES_OF_CODE:
            init.pop(key, None)
            opened.__dict__.pop(f"_{key}", None)
        return opened
    waiting = [opened.config]
    while waiting:
        config = waiting.pop()
        if (
            getattr(config, "model_type", None) in architecture_fields.OUR_MODEL_TYPES
        ):  # it names its own files whenever it is saved
            continue
        for key in NAMES_OF_CODE:
            config.__dict__.pop(key, None)
        waiting += [each for each in vars(config).values() if hasattr(each, "model_type")]
    return opened


def named(auto_map: Any) -> list[str]:
    """The classes that an `auto_map` names, `repository--module.Class` or `module.Class`; a tokenizer's has a slow
    and a fast one."""
    values = auto_map.values() if isinstance(auto_map, Mapping) else [auto_map]
    flat = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    return [each for each in flat if isinstance(each, str)]


def refusal(source: str, error: Exception) -> str | None:
    """The sentence for a checkpoint that cannot be opened without its own code; None where something else is wrong."""
    if not str(error).startswith("The repository") or "custom code" not in str(error):
        return None
    return (
        f"'{source}' can only be opened with Python code of its own, which runs only where the recipe says "
        "so: read the code, then write "
        "model: {checkpoint: …, trust_remote_code: true}, for the Hub with the full commit as revision"
    )


__all__ = ["NO_CODE", "allowed", "forget_named", "named", "opening", "refusal", "refuse_elsewhere"]
