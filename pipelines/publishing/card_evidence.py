"""What stands behind the scores of a card, in a sentence or two a benchmark: overlap with training, and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.publishing.scores import Scored


def evidence(scored: Scored) -> Iterator[str]:
    """One sentence a split that was checked for overlap, and one that says how sure the model may be believed to be."""
    for benchmark, about in scored.details.items():
        if not isinstance(about, Mapping):
            continue
        for split, found in (about.get("overlap") or {}).items():
            yield f"{benchmark}, {split}: {_overlap(found)}"
        for split, found in (about.get("calibration") or {}).items():
            yield f"{benchmark}, {split}: expected calibration error {found['ece']:.3f} in 15 bins, at temperature {found['temperature']:g}."


def _overlap(found: Mapping[str, Any]) -> str:
    if "unchecked" in found:
        return "overlap with the training data could not be checked."
    before = f" What {found['unknown']} was trained on before is not known." if found.get("unknown") else ""
    if not found["seen"]:
        return f"no example overlaps with the training data, as a whole or in a run of {found['run']} words.{before}"
    clean = ", ".join(f"{name} {value:.4g}" for name, value in found["clean"]["scores"].items())
    others = f"; the {found['clean']['examples']:,} others score {clean}" if clean else ""
    return (
        f"{found['seen']:,} of {found['examples']:,} examples overlap with the training data ({found['exact']:,} as a whole, "
        f"{found['partly']:,} in a run of {found['run']} words){others}.{before}"
    )
