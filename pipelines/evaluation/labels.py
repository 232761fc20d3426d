"""The model's outputs in the task's order: class names are compared before a score is believed.

A checkpoint names its outputs in `config.id2label`. Many are fine-tuned with the classes in another order than the
data set's (an MNLI checkpoint may count contradiction as 0 where GLUE counts entailment); scored column by column,
such a model looks worse than chance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipelines.errors import ModelError


def columns(classes: Sequence[str], config: Any, task: str, model: str) -> list[int] | None:
    """The model's output for each class of the task, in the task's order; None where they agree already.

    Unnamed outputs (`LABEL_0`, `LABEL_1`, …) are taken in the task's order. Raises ModelError where the outputs are
    not those of the task.
    """
    outputs = int(config.num_labels)
    needed = len(classes) or 1
    if outputs != needed:
        raise ModelError(
            f"the model '{model}' has {outputs} output{'s' * (outputs != 1)}, but '{task}' needs {needed} "
            f"({_listed(classes) if classes else 'it is a regression'}); name a model that was fine-tuned on it"
        )
    if not classes:
        return None
    names = [str(config.id2label[position]) for position in range(outputs)]
    if all(re.fullmatch(r"LABEL_\d+|\d+", name) for name in names):
        return None
    wanted, given = [plain(name) for name in classes], [plain(name) for name in names]
    if wanted == given:
        return None
    if not same_classes(classes, names) or len(set(given)) < outputs:
        raise ModelError(
            f"the model '{model}' tells {_listed(names)} apart, but '{task}' needs {_listed(classes)}; "
            "name a model that was fine-tuned on it"
        )
    return [given.index(name) for name in wanted]


def same_classes(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists name the same classes, in any order."""
    return sorted(map(plain, one)) == sorted(map(plain, other))


def plain(name: str) -> str:
    """Letter case, spaces, `_` and `-` make no difference between names of one class."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … ({len(names)} classes)" if len(names) > 6 else "")
