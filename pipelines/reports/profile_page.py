"""`profile.html` of a run that was profiled: where the time of each training stage goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.core.files import JSONObject, read_json, write_text
from pipelines.core.pages import count, render
from pipelines.core.recipe import Recipe
from pipelines.core.results import stage_folders


def write_profile_page(folder: Path, recipe: Recipe) -> None:
    """Write the page where a stage of the run has a `profile.json`."""
    places = stage_folders(folder, [stage.id for stage in recipe.stages])
    profiles = {stage: read_json(place / "profile.json") for stage, place in places.items()}
    stages = [_section(stage, f"stages/{places[stage].name}", each) for stage, each in profiles.items() if each]
    if stages:
        write_text(folder / "profile.html", render(__package__, "profile.html.jinja", name=recipe.name, stages=stages))


def _section(stage: str, place: str, profile: JSONObject) -> dict[str, Any]:
    step: float = profile["seconds_per_step"]
    return {
        "id": stage,
        "trace": f"{place}/trace.json.gz",
        "sentence": f"{step * 1000:,.1f} ms a step, the mean of {profile['steps']}, on {profile['device']} in "
        f"{'float32' if profile['precision'] == 'no' else profile['precision']}. Matrix products: "
        f"{count(profile['flops_per_step'])}FLOP a step, {profile['utilisation']:.0%} of the "
        f"{count(profile['matrix_rate'])}FLOP/s that products of large square matrices reach here.",
        "kinds": [
            (kind, f"{seconds * 1000:,.2f}", f"{seconds / step:.1%}", round(240 * seconds / step))
            for kind, seconds in profile["kinds"].items()
        ],
        "operations": [
            (
                each["name"],
                each["kind"],
                f"{each['calls']:,.0f}",
                f"{each['seconds'] * 1000:,.2f}",
                f"{each['seconds'] / step:.1%}",
            )
            for each in profile["operations"]
        ],
    }
