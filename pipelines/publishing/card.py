"""The model card: what the checkpoint is, how to load it, what it scores and how it was made.

Its metadata block is that of `hub_metadata`. What it says of data, energy and costs stands in the manifest as well.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.files import JSONObject, read_json
from pipelines.core.interfaces import Head
from pipelines.core.model_abilities import REWARD
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.registry import TASKS
from pipelines.core.results import BenchmarkScores
from pipelines.core.scores import better
from pipelines.models.heads import HEAD_CLASSES
from pipelines.publishing import curves, footprint, learnt_data, provenance
from pipelines.publishing.clean_room import beside
from pipelines.publishing.destinations.destination import Destination
from pipelines.publishing.hub_metadata import Scores, kind_of_metric, metadata
from pipelines.publishing.sources import REFERENCE
from pipelines.publishing.usage import fetch, lines_of_use, load

if TYPE_CHECKING:
    from jinja2 import Template


def card(
    recipe: Recipe,
    stage: Stage,
    head: Head,
    folder: Path,
    destination: Destination,
    scores: Scores,
    trained: Mapping[str, JSONObject],
    proof: JSONObject | None,
    manifest: JSONObject,
    license: str | None = None,
    require: Mapping[str, str] | None = None,
    curves_show: str = "",
) -> str:
    """README.md of the publication in `folder`. `trained` holds the metrics of each stage that led to the model,
    `manifest` its `data` and `footprint`; `curves_show` says what the picture of the curves shows, where there is one.
    """
    from pipelines.data.reward_inputs import settings_in  # numpy, which checks of recipes do without
    from pipelines.tasks.preference.scores import meaning

    adapter = (folder / "adapter_config.json").is_file()
    config = json.loads(((folder / "base" if adapter else folder) / "config.json").read_text(encoding="utf-8"))
    own_code = bool(config.get("auto_map"))
    use = HEAD_CLASSES[head.kind]
    baselines = list(dict.fromkeys(name for each in scores.values() for name in each.baselines))
    scored = settings_in(folder)
    files = [str(each["path"]) for each in manifest.get("sources") or ()]
    return _template().render(
        metadata=metadata(
            recipe,
            head,
            scores,
            _method(made_by(recipe, stage)) if adapter else None,
            own_code,
            license,
            learnt_data.on_the_hub(manifest.get("data") or ()),
        )
        .to_yaml()
        .strip(),
        name=recipe.name,
        summary=_summary(recipe, head, use.description),
        adapter=adapter,
        own_code=own_code,
        module=", ".join(f"`{name}.py`" for name in beside(str(folder))),
        baked=bool(config.get("finery_adapter")),
        fetch=fetch(destination),
        load=load(use.auto_class, destination, folder, adapter, own_code),
        use=lines_of_use(
            head,
            recipe,
            stage,
            config,
            (folder / "chat_template.jinja").is_file(),
            None if scored is None else scored.reading,
        ),
        meaning=[] if scored is None else meaning(read_json(folder / REWARD)),
        labels=head.labels,
        scores=list(rows_of(scores, baselines)),
        baselines=[name.replace("_", " ") for name in baselines],
        behind=", ".join(_behind(scores)),
        evidence=list(evidence(scores)),
        unlooked=", ".join(name for name, each in scores.items() if not {"overlap", "policy"} & each.details.keys()),
        examples=", ".join(_examples(scores)),
        signatures=list(_signatures(scores)),
        text_scores=_text_scores(scores),
        verified=_verified(proof),
        origin=_origin(recipe),
        steps=[_step(each, trained.get(each.id, {})) for each in made_by(recipe, stage)],
        seed=recipe.seed,
        version=_version(),
        hardware=_hardware(manifest),
        data=learnt_data.rows(manifest.get("data") or ()),
        curves=curves.FILE if curves_show else "",
        curves_show=curves_show,
        footprint=footprint.sentences(manifest["footprint"]) if "footprint" in manifest else [],
        exports=list(export_rows(manifest.get("exports") or ())),
        place=_place(destination),
        download=_download(destination),
        asked=",".join(name for name in scores if name in TASKS),
        data_folder=" --data DIR" if files else "",
        again=_again(recipe, stage, destination, files),
        local_data=", ".join(f"`{each}`" for each in files),
        chosen=", ".join(f"`{path} {comparison}`" for path, comparison in (require or {}).items()),
    )


@cache
def _template() -> Template:
    """The card's, compiled once."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files(__package__ or "").joinpath("templates/card.md.jinja").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False).from_string(text)


def rows_of(scores: Scores, baselines: Sequence[str]) -> Iterable[dict[str, Any]]:
    for benchmark, scored in scores.items():
        for metric, value in scored.metrics.items():
            ends = scored.intervals.get(metric)
            beside = [scored.baselines.get(name, {}).get(metric) for name in baselines]
            yield {
                "benchmark": benchmark,
                "metric": metric,
                "value": _number(value, metric, scored),
                "interval": " … ".join(_number(end, metric, scored) for end in ends) if ends else "–",
                "baselines": ["–" if each is None else _number(each, metric, scored) for each in beside],
            }


LARGE = ("bleu", "chrf", "perplexity")
"""Metrics that are no fractions: two decimals say enough."""


def _number(value: float, metric: str, scored: BenchmarkScores) -> str:
    if not math.isfinite(value):
        return "undefined"
    large = kind_of_metric(metric) in LARGE or kind_of_metric(metric) in scored.details.get("percent", ())
    return f"{value:,.2f}" if large else f"{value:.4f}"


def _behind(scores: Scores) -> Iterable[str]:
    """Where a baseline is at least as good: said aloud, in the card too."""
    for benchmark, scored in scores.items():
        for metric, value in scored.metrics.items():
            ahead = [
                f"{name.replace('_', ' ')} {_number(baseline[metric], metric, scored)}"
                for name, baseline in scored.baselines.items()
                if metric in baseline and not better(metric, value, baseline[metric])
            ]
            if ahead:
                yield f"{benchmark} {metric} ({_number(value, metric, scored)}, {', '.join(ahead)})"


def _examples(scores: Scores) -> Iterable[str]:
    for benchmark, scored in scores.items():
        counts = scored.details.get("examples")
        if isinstance(counts, Mapping):
            each = [f"{count:,} ({split})" if split else f"{count:,}" for split, count in counts.items()]
            yield f"{benchmark} {', '.join(each)}"
        elif isinstance(counts, int):
            yield f"{benchmark} {counts:,}"


def _signatures(scores: Scores) -> Iterable[str]:
    """How metrics of texts were computed, as publications state it."""
    every = [scored.details.get("signatures", {}) for scored in scores.values()]
    for metric in dict.fromkeys(metric for signatures in every for metric in signatures):
        for signature in dict.fromkeys(signatures[metric] for signatures in every if metric in signatures):
            yield f"{metric} `{signature}`"


def evidence(scores: Scores) -> Iterator[str]:
    """One sentence a split that was checked for overlap, and one that says how sure the model may be believed to be."""
    for benchmark, scored in scores.items():
        for split, overlap in (scored.details.get("overlap") or {}).items():
            yield f"{benchmark}, {split}: {_overlap(overlap)}"
        for split, calibration in (scored.details.get("calibration") or {}).items():
            error, temperature = calibration["ece"], calibration["temperature"]
            yield (
                f"{benchmark}, {split}: expected calibration error {error:.3f} in 15 bins, "
                f"at temperature {temperature:g}."
            )


def _overlap(overlap: JSONObject) -> str:
    if "unchecked" in overlap:
        return "overlap with the training data could not be checked."
    before = f" What {overlap['unknown']} was trained on before is not known." if overlap.get("unknown") else ""
    if not overlap["seen"]:
        return f"no example overlaps with the training data, as a whole or in a run of {overlap['run']} words.{before}"
    clean = ", ".join(f"{name} {value:.4g}" for name, value in overlap["clean"]["scores"].items())
    others = f"; the {overlap['clean']['examples']:,} others score {clean}" if clean else ""
    return (
        f"{overlap['seen']:,} of {overlap['examples']:,} examples overlap with the training data "
        f"({overlap['exact']:,} as a whole, "
        f"{overlap['partly']:,} in a run of {overlap['run']} words){others}.{before}"
    )


EXPLAINED = {
    "bits_per_byte": "`bits_per_byte` is the negative log-likelihood of the predicted text in bits, over its "
    "bytes: smaller "
    "is better, whatever the vocabulary",
    "hidden_bits_per_byte": "`hidden_bits_per_byte` judges each hidden token by itself and is no likelihood of "
    "the text: "
    "smaller is better; `accuracy` is the share of these tokens that are named exactly",
    "perplexity": "`perplexity` is per token: smaller is better, and only models with the same vocabulary compare",
    "pair_accuracy": "`pair_accuracy` is the share of pairs judged rightly, of which a coin gets half",
    "reward": "`reward` is the mean score of the model's own completions by the reward of the recipe, which is "
    "no scale of its own",
    "win_rate": "`win_rate` is the share of prompts whose completion scores higher than that of the model in "
    "`against`, ties counted half",
    "kl": "`kl` and `kl_k3` estimate the KL divergence from that model in nats a completion: smaller is nearer",
}
"""Scores of held-out text and of completions that are easily misread."""


def _text_scores(scores: Scores) -> str:
    """What the scores of held-out text mean."""
    named = dict.fromkeys(metric for each in scores.values() for metric in each.metrics)
    return " ".join(f"{EXPLAINED[metric]}." for metric in named if metric in EXPLAINED)


def _verified(proof: JSONObject | None) -> str:
    if proof is None:
        return ""
    if not proof["rows"]:
        texts = f"{proof['texts']} evaluated texts" if proof.get("written") else "fixed sentences"
        return (
            f"Before publication these files were loaded in a process without Finery; its logits on {texts} "
            f"differ from the trained model's by at most {proof['largest_difference_to_this_process']:.1e}."
        )
    flips = proof["flips"]
    changed = (
        "no prediction changed" if not flips else f"{flips} predictions changed, because the evaluation rounded more"
    )
    return (
        f"Before publication these files were loaded in a process without Finery, which computed {proof['rows']:,} of "
        f"{proof['of']:,} predictions again: {changed}, "
        f"the largest difference of a logit is {proof['largest_difference']:.1e}."
    )


def _summary(recipe: Recipe, head: Head, words: str) -> str:
    architecture = recipe.model.architecture or {}
    shape = next((architecture[key] for key in ("preset", "model_type", "family") if architecture.get(key)), "encoder")
    body = (
        f"the shape `{shape}`, trained from scratch"
        if recipe.model.architecture
        else provenance.described(recipe.model.checkpoint or "")
    )
    if head.kind == "sequence_classification" and not head.labels:
        words = "a model that gives each text a number"
    return f"{words[0].upper()}{words[1:]}, made from {body}."


def _origin(recipe: Recipe) -> str:
    if recipe.model.checkpoint:
        revision = f" at revision `{recipe.model.revision}`" if recipe.model.revision else ""
        return (
            f"It starts from {provenance.described(recipe.model.checkpoint)}{revision}. The complete recipe is in "
            "`recipe.yaml`."
        )
    shape = ", ".join(f"{key} {value}" for key, value in (recipe.model.architecture or {}).items())
    return f"It starts from random weights ({shape}). The complete recipe is in `recipe.yaml`."


def made_by(recipe: Recipe, stage: Stage) -> list[Stage]:
    """The stages that led to the model of `stage`, the first first; those whose adapters it builds on stand before
    it."""
    stages: dict[str, Stage] = {}
    for each in reversed([*recipe.lineage(stage)]):
        members = getattr(getattr(each, "tuner", None), "stages", ())
        stages |= {name: recipe.stage(name) for name in members} | {each.id: each}
    return [*stages.values()]


def _method(stages: list[Stage]) -> str:
    """The name of the tuner that made the adapter."""
    return str(getattr(getattr(stages[-1], "tuner", None), "name", "adapter"))


def _step(stage: Stage, metrics: JSONObject) -> dict[str, Any]:
    plain = {
        key: value for key, value in provenance.public(stage.plain()).items() if key not in ("stage", "id", "from")
    }
    facts = [f"{key}: `{_short(value)}`" for key, value in plain.items()]
    words = {
        "train_runtime": "training took {:,.1f} s",
        "trainable_parameters": "{:,.0f} weights learnt",
        "all_parameters": "{:,.0f} weights in all",
    }
    facts += [text.format(metrics[key]) for key, text in words.items() if isinstance(metrics.get(key), int | float)]
    if isinstance(metrics.get("peak_memory_bytes"), int | float):
        facts.append(f"peak memory {_size(metrics['peak_memory_bytes'])}")
    return {"id": stage.id, "kind": stage.stage, "facts": facts}


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("`", "'").replace("\n", " ")
    return text if len(text) <= 300 else text[:297] + "..."


def _hardware(manifest: JSONObject) -> str:
    """Processor, memory and devices; the rest of it stands in the manifest."""
    hardware = manifest.get("hardware")
    if not isinstance(hardware, Mapping):
        return ""
    facts = []
    for key, value in hardware.items():
        if key in ("platform", "threads") or value in (None, "", [], {}):
            continue
        if key.endswith("_bytes"):
            facts.append(f"{key.removesuffix('_bytes').replace('_', ' ')} {_size(value)}")
        elif key == "gpus":
            facts += [f"GPU {gpu.get('name')} ({_size(gpu.get('memory_bytes', 0))})" for gpu in value]
        else:
            facts.append(f"{key.replace('_', ' ')} {_short(value)}")
    return ", ".join(facts)


def export_rows(exports: Sequence[JSONObject]) -> Iterator[dict[str, Any]]:
    """A line for each score of each form, and one for a form without any."""
    for each in exports:
        agreement = each["agreement"]
        form = {
            "form": each["form"],
            "size": f"{each['bytes'] / 1e6:,.1f} MB",
            "difference": f"{agreement['largest_difference']:.1e}",
            "same": f"{agreement['same_best']:.0%} of {agreement['rows']:,}",
        }
        empty = {"benchmark": "–", "metric": "–", "published": None, "exported": None}
        for score in each["scores"] or [empty]:
            values = {key: "–" if score[key] is None else f"{score[key]:.4f}" for key in ("published", "exported")}
            yield {**form, "benchmark": score["benchmark"], "metric": score["metric"], **values}
        for note in each["notes"]:
            yield {"form": each["form"], "note": note}


def _place(destination: Destination) -> str:
    """What the commands on the card call the folder."""
    return shlex.quote(
        destination.load_from().rpartition("/")[2] if _download(destination) else destination.load_from()
    )


def _download(destination: Destination) -> str:
    """The command that fetches a publication of the Hub; empty where it is a folder, or fetched by the lines above."""
    if not destination.location.startswith("hub:"):
        return ""
    name = destination.load_from()
    return f"hf download {name} --local-dir {name.rpartition('/')[2]}"


def _again(recipe: Recipe, stage: Stage, destination: Destination, files: Sequence[str]) -> list[str]:
    """The commands that run the recipe as somebody's own run, which publishes elsewhere. `files` are paths relative to
    the recipe, which is copied beside them; none lead there where one is a model of a server."""
    if any(REFERENCE.match(each) for each in files):
        return []
    published = f"{_place(destination)}/recipe.yaml"
    mine = {each.id: f"-{each.id}" for each in recipe.stages if each.stage == "publish"} | {stage.id: ""}
    to = " ".join(f"stages.{name}.to=registry/{recipe.name}{ending}-again" for name, ending in mine.items())
    if not files:
        return [f"finery run {published} {to}"]
    copy = f"DIR/{recipe.name}-again.yaml"
    return [f"cp {published} {copy}", f"finery run {copy} {to}"]


def _version() -> str:
    try:
        return version("finery")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "from source"
