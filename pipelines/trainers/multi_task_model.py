"""One body under several heads: MT-DNN's shape, for any architecture. Liu et al. 2019, arxiv.org/abs/1901.11504.

Every task has an ordinary transformers model; their bodies are one and the same module. What is saved is an ordinary
checkpoint a task, whose weights of the body are one file on the disk under several names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from pipelines.tuners.tuner import TunerBlock

WEIGHTS = "model.safetensors"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
"""The weights of the body, and those of the head."""


class SharedBody(nn.Module):
    """Several models that share their body. `forward(task, **inputs)` asks one of them.

    `models` are opened alike, so that the body of the first can stand in all of them; a tuner is applied to the first.
    """

    def __init__(self, models: Sequence[PreTrainedModel], tuner: TunerBlock, ids: Sequence[str]) -> None:
        super().__init__()
        self.ids = list(ids)
        first = models[0]
        self.prefix = str(first.base_model_prefix)
        self.config = first.config
        self.log_variances: nn.Parameter | None = None
        self.is_one = all(model is first for model in models)
        """Whether the tasks differ in their texts only: then nothing is divided, and the body is all that is tuned."""
        if self.is_one:
            self.body = tuner.apply(first)
            self._models = (self.body,) * len(models)
            self.heads = nn.ModuleList()
            return
        for model in models:
            if (
                not self.prefix
                or not isinstance(getattr(model, self.prefix, None), nn.Module)
                or model.base_model_prefix != self.prefix
            ):
                raise ModelError(f"{type(model).__name__} has no body of its own that other tasks could share")
        body = getattr(first, self.prefix)
        fresh = sorted({name for model in models for name in getattr(model, "finery_new_modules", ())})
        for model in models[1:]:
            setattr(model, self.prefix, body)
        first.finery_new_modules = [
            name for name in fresh if name.startswith(f"{self.prefix}.") or name in dict(first.named_modules())
        ]
        tuned = tuner.apply(first)
        self._models = (tuned, *models[1:])  # a tuple is no submodule: what they share would be counted again
        self.body = getattr(first, self.prefix)
        self.heads = nn.ModuleList(nn.ModuleDict(_heads(model, self.prefix)) for model in (first, *models[1:]))

    def weigh_by_uncertainty(self) -> None:
        """Give every task a learnt log variance, which begins at 0."""
        self.log_variances = nn.Parameter(torch.zeros(len(self.ids)))

    def model(self, task: int) -> PreTrainedModel:
        """The task's model: tuned, so the first may be a PEFT model."""
        return self._models[task]

    @property
    def sharing(self) -> tuple[PreTrainedModel, ...]:
        """The models of all tasks, tuned."""
        return self._models

    def bare(self, task: int) -> PreTrainedModel:
        """The task's transformers model."""
        model = self._models[task]
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def forward(self, task: int, **inputs: Tensor) -> ModelOutput:
        """What the model of a task says."""
        outputs = self._models[task](**inputs)
        if self.log_variances is not None and torch.is_grad_enabled():
            # DistributedDataParallel takes a weight that no output comes from for unused, and refuses the gradient
            # that the loss gives it
            first = next(iter(outputs))
            outputs[first] = outputs[first] + 0.0 * self.log_variances.sum()
        return outputs

    def train(self, mode: bool = True) -> SharedBody:
        """As for any module; the models themselves are told as well."""
        super().train(mode)
        for model in self._models:
            model.train(mode)
        return self

    def gradient_checkpointing_enable(self, **keywords: object) -> None:
        """Recompute the body's activations in the backward pass."""
        self.bare(0).gradient_checkpointing_enable(**keywords)

    def once(self) -> dict[str, Tensor]:
        """The state dict without second names of the same weights."""
        weights: dict[str, Tensor] = {}
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for name, weight in self.state_dict().items():
            place = weight.data_ptr(), tuple(weight.shape)
            if weight.numel() and place in seen:
                continue
            seen.add(place)
            weights[name] = weight
        return weights


def _heads(model: PreTrainedModel, prefix: str) -> dict[str, nn.Module]:
    own = [name for name, _ in model.named_parameters(recurse=False)]
    if own:
        raise ModelError(
            f"{type(model).__name__} keeps the weights {', '.join(own)} outside its body and its head, which "
            "cannot be shared"
        )
    return {name: module for name, module in model.named_children() if name != prefix}


class TaskView:
    """The model of one task as a loss sees it: called through the whole, so that DistributedDataParallel takes part."""

    def __init__(self, whole: nn.Module, task: int) -> None:
        bare = whole.module if hasattr(whole, "module") else whole
        self.whole = whole
        self.task = task
        self.module = getattr(bare, "_orig_mod", bare).model(task)

    def __call__(self, **inputs: Tensor) -> ModelOutput:
        return self.whole(task=self.task, **inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class OfTheFirst:
    """The tuner as the loop asks it about the whole: answers are about the first model, in the whole's names."""

    def __init__(self, tuner: TunerBlock, shared: SharedBody) -> None:
        self.tuner = tuner
        self.shared = shared
        self.name = tuner.name

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """What the learning rate is multiplied by; heads of other tasks learn as fast as the first one's."""
        first = self.shared.model(0)
        by_weight = {id(weight): name for name, weight in first.named_parameters()}
        rates = self.tuner.rates(first)
        heads = {
            name: rate for name, rate in rates.items() if ".heads." not in name and f"{self.shared.prefix}." not in name
        }
        usual = max(heads.values(), default=1.0)
        rates_by_name = {}
        for name, weight in self.shared.named_parameters():
            here = by_weight.get(id(weight))
            rate = rates.get(here, 1.0) if here is not None else usual
            if rate != 1.0:
                rates_by_name[name] = rate
        return rates_by_name

    def unfreeze(self, model: PreTrainedModel, epoch: int) -> None:
        """Choose the trainable weights of the body and of the first head."""
        self.tuner.unfreeze(self.shared.model(0), epoch)

    def never_unfrozen(self, model: PreTrainedModel, epochs: int) -> str | None:
        """What of the body and of the first head never learns."""
        warning: str | None = self.tuner.never_unfrozen(self.shared.model(0), epochs)
        return warning

    def penalty(self, model: PreTrainedModel) -> Tensor | None:
        """What the tuned first model adds to the loss."""
        return self.tuner.penalty(self.shared.model(0))

    def factor(self, step: int, steps: int) -> float | None:
        """The tuner's own schedule."""
        factor: float | None = self.tuner.factor(step, steps)
        return factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tuner, name)


def save_tasks(shared: SharedBody, tuner: TunerBlock, folder: Path, finish: Callable[[Path, int], None]) -> None:
    """An ordinary checkpoint or adapter a task in `folder/<id>/model`; `finish(place, task)` adds what belongs
    beside it."""
    before: Path | None = None
    for task, name in enumerate(shared.ids):
        place = folder / name / "model"
        place.parent.mkdir(parents=True, exist_ok=True)
        if tuner.adapts:
            with _HeadOf(shared, task):
                tuner.save(shared.model(0), place)
        elif shared.is_one and before is not None:
            shutil.copytree(before, place, copy_function=linked)
        else:
            shared.bare(task).save_pretrained(str(place))
            before = place if shared.is_one else _divide(place, shared.prefix, before)
        finish(place, task)


def save_body(shared: SharedBody, tuner: TunerBlock, folder: Path) -> None:
    """The body alone, without any head: what later stages give other heads to. An adapter is merged into it."""
    if not tuner.adapts:
        shared.body.save_pretrained(str(folder))
        return
    merged = shared.model(0).merge_and_unload()
    getattr(merged, shared.prefix).save_pretrained(str(folder))


def _divide(folder: Path, prefix: str, body: Path | None) -> Path:
    """Split the weights into those of the body and those of the head; the body's become a link to those in `body`."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    one = folder / WEIGHTS
    if not one.exists():  # so large that it was divided already
        return body or folder
    with safe_open(str(one), framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inner = {name: weight for name, weight in weights.items() if name.startswith(f"{prefix}.")}
    outer = {name: weight for name, weight in weights.items() if name not in inner}
    if not inner or not outer:
        return body or folder
    if body is not None and _same(body / SHARDS[0], inner):
        linked(body / SHARDS[0], folder / SHARDS[0])
    else:
        save_file(inner, str(folder / SHARDS[0]), metadata={"format": "pt"})
    save_file(outer, str(folder / SHARDS[1]), metadata={"format": "pt"})
    places = dict.fromkeys(inner, SHARDS[0]) | dict.fromkeys(outer, SHARDS[1])
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index, indent=2))
    one.unlink()
    return body or folder


def _same(path: Path, weights: Mapping[str, Tensor]) -> bool:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return set(file.keys()) == set(weights) and all(
            torch.equal(file.get_tensor(name), weight) for name, weight in weights.items()
        )


def linked(source: str | Path, target: str | Path) -> None:
    """Give a file a second name; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


class _HeadOf:
    """Inside the `with` block the first model, which carries the adapter, has the head of `task`."""

    def __init__(self, shared: SharedBody, task: int) -> None:
        self.shared = shared
        self.task = task

    def _swap(self) -> None:
        for wrapper, active, mine in self._wrappers():
            self.before.append((wrapper, active, wrapper.modules_to_save[active]))
            wrapper.modules_to_save[active] = mine

    def _wrappers(self) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        from peft.utils import ModulesToSaveWrapper

        other = self.shared.bare(self.task)
        for name, module in self.shared.bare(0).named_modules():
            if isinstance(module, ModulesToSaveWrapper) and not name.startswith(f"{self.shared.prefix}."):
                yield module, next(iter(module.modules_to_save)), other.get_submodule(name)

    def __enter__(self) -> None:
        self.before: list[tuple[nn.Module, str, nn.Module]] = []
        if self.task and not self.shared.is_one:
            self._swap()

    def __exit__(self, *exception: object) -> None:
        for wrapper, active, module in self.before:
            wrapper.modules_to_save[active] = module
