"""What every form of a published model can do: say what it cannot hold, be written, and be asked again.

An export is opened from its own files before it is kept, and held against the published model: its logits on the same
texts, and its scores on the same data: by `finery export` (`pipelines.commands.export`), or by the publish stage that
writes it beside the model (`beside`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipelines.core.errors import ModelError
from pipelines.core.files import JSONObject, read_json, write_json, write_text
from pipelines.core.interfaces import Head
from pipelines.publishing import clean_room
from pipelines.publishing.destinations.destination import sha256_of
from pipelines.publishing.verify import SENTENCES, largest, largest_difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


RECORD = "export.json"
WEIGHTS = (".safetensors", ".onnx", ".gguf")
"""Endings of files that hold weights."""
CARD = """\
# {name}, as {form}

Made from the publication `{name}` ({fingerprint}) by Finery. {size}

```python
{lines}
```

Needs {needs}.

{agreement}

{scores}
"""


@dataclass(frozen=True)
class Original:
    """A published model as it is opened, in fp32 on the CPU, an adapter merged."""

    folder: Path
    head: Head
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass
class ExportedModel:
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
    packages: ClassVar[tuple[str, ...]]
    """Modules that writing it needs."""
    extra: ClassVar[str]
    """The extra of Finery that installs them."""
    tolerance: ClassVar[float | None]
    """Largest difference of a logit, as a part of the largest; None for forms that round on purpose."""

    @staticmethod
    def misfit(words: Mapping[str, Any], vocabulary: str | None) -> str | None:
        """Why this form cannot hold a model of these resolved config words, as a sentence without its subject; None
        where it can, or where that shows only when the model is there. `vocabulary` is how its tokens are learnt."""

    @staticmethod
    def write(original: Original, out: Path) -> ExportedModel:
        """Write the files into `out` and open them again. Raises ModelError where this form cannot hold the model."""


def missing(form: type[Export]) -> str | None:
    """What writing this form needs that is not installed here, as a sentence; None where all of it is."""
    absent = next((package for package in form.packages if find_spec(package) is None), None)
    if absent is None:
        return None
    return f"the export needs {absent}, which is not installed: pip install 'finery[{form.extra}]'"


def refuse_missing(form: type[Export]) -> None:
    """Raise ModelError where a library is absent."""
    if (sentence := missing(form)) is not None:
        raise ModelError(sentence)


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


def compare(original: Original, exported: ExportedModel, name: str, tolerance: float | None) -> JSONObject:
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


def weights_of(folder: Path) -> Iterator[Path]:
    """The files of weights of a published model: not those of exports beside it."""
    exports = [record.parent for record in folder.rglob(RECORD)]
    for path in folder.rglob("*.safetensors"):
        if not any(path.is_relative_to(each) for each in exports):
            yield path


def finish(
    out: Path,
    name: str,
    fingerprint: str,
    form: str,
    bytes_before: int,
    exported: ExportedModel,
    agreement: JSONObject,
    scores: Sequence[JSONObject],
    notes: Sequence[str],
) -> JSONObject:
    """Write the card and `export.json` of an export in `out`; returns what it says, without the checksums.

    `scores` are `{benchmark, metric, published, exported}`, `notes` say what was not measured.
    """
    files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
    record = {
        "form": form,
        "name": name,
        "of": fingerprint,
        "bytes": sum(each.stat().st_size for each in files.values() if each.suffix in WEIGHTS),
        "bytes_before": bytes_before,
        "versions": {package: found for package in exported.needs if (found := _version(package))},
        "agreement": agreement,
        "facts": exported.facts,
        "scores": [{key: _or_none(value) for key, value in each.items()} for each in scores],
        "notes": list(notes),
    }
    write_text(out / "README.md", card(record, exported))
    write_json(out / RECORD, {**record, "files": {name: sha256_of(path) for name, path in files.items()}})
    return record


def files_of(out: Path) -> set[str]:
    """Names of what `finish` leaves in the folder of an export; none where it is not one."""
    record = read_json(out / RECORD)
    files = record.get("files")
    return {name.partition("/")[0] for name in files} | {"README.md", RECORD} if isinstance(files, dict) else set()


def _or_none(value: object) -> object:
    """None for a score that is infinite or undefined, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def card(record: Mapping[str, Any], exported: ExportedModel) -> str:
    """README.md of the export."""
    agreement = record["agreement"]
    facts = "\n".join(f"- {key}: {value}" for key, value in record["facts"].items())
    words = (
        f"On {agreement['texts']} fixed texts its logits differ from the published model's by at most "
        f"{agreement['largest_difference']:.1e} (the largest logit is {agreement['largest_logit']:.3g}); "
        f"{agreement['same_best']:.1%} of {agreement['rows']:,} best outputs are the same.\n\n{facts}"
    )
    rows = score_rows(record["scores"])
    table = ["| Benchmark | Metric | Published | This export |", "|---|---|---:|---:|", *rows] if rows else []
    notes = [f"{note}." for note in record["notes"]]
    return CARD.format(
        name=record["name"],
        form=record["form"],
        fingerprint=record["of"],
        size=f"Its weights take {record['bytes']:,} bytes, the published ones {record['bytes_before']:,}.",
        lines=exported.lines,
        needs=" and ".join(f"`{package}`" for package in exported.needs),
        agreement=words,
        scores="\n".join([*table, *([""] if table and notes else []), *notes]),
    )


def score_rows(scores: Sequence[JSONObject]) -> list[str]:
    """The rows of the card's table."""
    return [
        f"| {each['benchmark']} | {each['metric']} | {_number(each['published'])} | {_number(each['exported'])} |"
        for each in scores
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
