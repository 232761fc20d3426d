"""What every form of a published model can do: say what it cannot hold, be written, and be asked again.

An export is opened from its own files before it is kept, and held against the published model: its logits on the same
texts, and its scores on the same data (`pipelines.commands.export`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pipelines.core.errors import ModelError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import Head
from pipelines.publishing import clean_room
from pipelines.publishing.verify import SENTENCES, largest, largest_difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Original:
    """A published model as it is opened, in fp32 on the CPU, an adapter merged."""

    folder: Path
    head: Head
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass
class Exported:
    """A written export, opened again."""

    model: PreTrainedModel | None
    """Answers as the export does, by the class of the original; None where another library asks it."""
    lines: str
    """Python that opens it."""
    facts: JSONObject = field(default_factory=dict)
    """What else was found out about it."""
    needs: tuple[str, ...] = ()
    """Packages that open it."""
    unscored: str = ""
    """Why its scores cannot be measured; empty where they can."""
    agreement: JSONObject | None = None
    """As `compare` says it, where `model` is None."""


class Export(Protocol):
    """One form."""

    name: ClassVar[str]
    tolerance: ClassVar[float | None]
    """Largest difference of a logit, as a part of the largest; None for forms that round on purpose."""

    @staticmethod
    def write(original: Original, out: Path) -> Exported:
        """Write the files into `out` and open them again. Raises ModelError where this form cannot hold the model."""


def lacking(package: str) -> ModelError:
    """The error where a library of an optional extra is absent."""
    return ModelError(f"the export needs {package}, which is not installed: pip install 'finery[export]'")


def question(original: Original) -> JSONObject:
    """What every form is asked: fixed sentences; options of a question, where the model chooses among some."""
    texts = list(SENTENCES)
    choices = 2 if original.head.kind == "multiple_choice" else None
    if choices:
        return {
            "texts": [text for text in texts for _ in range(2)],
            "pairs": ["It was so.", "No."] * len(texts),
            "choices": 2,
        }
    limits = (64, original.tokenizer.model_max_length, getattr(original.model.config, "max_position_embeddings", None))
    return {"texts": texts, "max_length": min(limit for limit in limits if isinstance(limit, int) and limit > 0)}


def logits_of(model: PreTrainedModel, original: Original) -> NDArray[np.float32]:
    """(rows, outputs): the answers to the question."""
    answers: NDArray[np.float32] = clean_room.answer(model, original.tokenizer, **question(original)).numpy()
    return answers


def compare(original: Original, exported: Exported, name: str, tolerance: float | None) -> JSONObject:
    """How far the export's logits are from the original's. Raises ModelError where it is too far for its form."""
    assert exported.model is not None
    before, after = {name: logits_of(original.model, original)}, {name: logits_of(exported.model, original)}
    difference, allowed = largest_difference(before, after), (tolerance or 0.0) * largest(before)
    if tolerance is not None and not difference <= allowed:
        raise ModelError(
            f"the {name} export answers otherwise: a logit differs by {difference:.3g}, allowed are {allowed:.3g}"
        )
    same = before[name].argmax(axis=-1) == after[name].argmax(axis=-1)
    return {
        "texts": len(question(original)["texts"]),
        "rows": len(same),
        "largest_difference": difference,
        "largest_logit": largest(before),
        "same_best": float(same.mean()),
    }
