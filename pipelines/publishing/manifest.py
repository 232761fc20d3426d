"""`manifest.json` as it is read: somebody else wrote it, so every part that is used is held to its type first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipelines.core.files import JSONObject, read_json
from pipelines.core.results import MARKER, BenchmarkScores

MANIFEST = "manifest.json"
NEWER = ("scores", "sources", "model")
"""What publications whose marker says no `contents` may lack: Finery did not write it then."""


class _ManifestBlock(BaseModel):
    """A mapping whose named keys are used; others are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Model(_ManifestBlock):
    stage: str
    publish: str
    checkpoint: str | None = None
    revision: str | None = None
    head: str | None = None
    labels: list[str] = []


class _Score(_ManifestBlock):
    benchmark: str
    stage: str
    metrics: dict[str, float | None]
    intervals: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]]
    examples: int | dict[str, int] | None = None
    percent: list[str] = []


def _inside(name: str) -> str:
    if not name or "\0" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"'{name}' lies outside of its source")
    return name


class _File(_ManifestBlock):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class _Source(_ManifestBlock):
    path: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")
    kind: Literal["file", "folder", "pattern"]
    files: dict[Annotated[str, AfterValidator(_inside)], _File]

    @model_validator(mode="after")
    def _fits(self) -> _Source:
        if self.kind == "file" and len(self.files) != 1:
            raise ValueError(f"is a file and lists {len(self.files)}")
        if self.kind == "pattern" and not any(mark in self.path for mark in "*?["):
            raise ValueError(f"is a pattern, and '{self.path}' is none")
        return self


class _Stage(_ManifestBlock):
    id: str
    data: dict[str, str] | None = None


class _Hardware(_ManifestBlock):
    gpus: list[dict[str, Any]] | None = None


class _Agreement(_ManifestBlock):
    largest_difference: float
    same_best: float
    rows: int


class _ExportScore(_ManifestBlock):
    benchmark: str
    metric: str
    published: float | None
    exported: float | None


class _Export(_ManifestBlock):
    folder: Annotated[str, AfterValidator(_inside)]
    form: str
    bytes: int
    agreement: _Agreement
    scores: list[_ExportScore]
    notes: list[str]


class _Manifest(_ManifestBlock):
    name: str
    model: _Model
    scores: list[_Score]
    sources: list[_Source]
    stages: list[_Stage]
    versions: dict[str, str]
    environment: dict[str, str] = {}
    hardware: _Hardware | None = None
    launch: dict[str, Any] | None = None
    exports: list[_Export] = []


def older(folder: Path) -> bool:
    """Whether a publication comes from a Finery that wrote neither scores nor sources into its manifest."""
    manifest = read_json(folder / MANIFEST)
    return "contents" not in read_json(folder / MARKER) and "stages" in manifest and not {*NEWER} & {*manifest}


def mistake_in(manifest: JSONObject) -> str | None:
    """The first thing in a manifest that is not as Finery writes it, as a sentence; None where nothing is."""
    try:
        _Manifest.model_validate(manifest)
        names = [each["benchmark"] for each in manifest["scores"]]
        if len(names) == len({*names}):
            return None
        what = "its scores name a benchmark twice"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    except OverflowError:
        what = "it holds a number too large"
    return f"'{MANIFEST}' is not as Finery writes it: {what}"


def stated_scores(manifest: JSONObject) -> dict[str, BenchmarkScores]:
    """The scores of a publication by benchmark, as its manifest states them; of an older publication none."""
    every: dict[str, BenchmarkScores] = {}
    about = manifest.get("model")
    model = str(about.get("stage", "")) if isinstance(about, Mapping) else ""
    for each in manifest.get("scores") or ():
        metrics = {name: math.nan if value is None else float(value) for name, value in each["metrics"].items()}
        intervals = {name: (float(low), float(high)) for name, (low, high) in each["intervals"].items()}
        details = {"percent": each.get("percent", []), "examples": each.get("examples")}
        every[each["benchmark"]] = BenchmarkScores(
            each["benchmark"], each["stage"], model, metrics, intervals, details=details
        )
    return every
