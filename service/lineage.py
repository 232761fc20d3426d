"""Where a version of a model comes from: data, tokenizer, the model it began with, the stages that made it.

It is read from what the publication says of itself, `recipe.yaml` and `manifest.json`: edges between stages are the
fingerprints of their inputs, data carries the digest of its content. Models of the project that a recipe names with
their version are links; so are, the other way, the versions that were made from this one. A job wrote both files, so
they are read with bounds, and nothing in them is taken for more than text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import read_yaml_text
from service.attempts.folders import read_regular
from service.safety.network_recipes import too_costly
from service.safety.references import VERSION, parsed, references
from service.store.errors import NotFound
from service.store.models import PublishedModel, main_score, score_of
from service.store.store import Store

Kind = Literal["data", "tokenizer", "start", "stage", "model"]
START, TOKENIZER, RESULT = "start", "tokenizer", "model"
LARGEST_MANIFEST = 16 << 20
LARGEST_RECIPE = 1 << 18
LONGEST = 120
"""Characters of a text."""
MOST_NODES = 200
MOST_CHILDREN = 50
DIGITS = 12
"""Of a digest."""
DATA_KEYS = ("path", "train")


@dataclass(frozen=True)
class LineageNode:
    """One thing that a model comes from, or the model."""

    id: str
    kind: Kind
    title: str
    detail: str = ""
    reads: tuple[str, ...] = ()
    """Ids of what it was made from."""
    model: str = ""
    """Id of the version of the project's model that it is; empty for anything else."""


@dataclass(frozen=True)
class Lineage:
    """Everything that led to a version, what is read before what reads it, and what was made from it."""

    nodes: tuple[LineageNode, ...]
    children: tuple[PublishedModel, ...] = field(default=())


def lineage_of(store: Store, model: PublishedModel) -> Lineage:
    """The lineage of a version, as far as its publication tells it."""
    folder = Path(model.path)
    nodes = {each.id: each for each in _nodes(folder, model)[-MOST_NODES:]}  # two stages of one id are one
    shown = [
        replace(
            each,
            title=_short(each.title),
            detail=_short(each.detail),
            reads=tuple(dict.fromkeys(read for read in each.reads if read in nodes and read != each.id)),
        )
        for each in nodes.values()
    ]
    children = store.models(model.project, base=f"model:{model.reference}", limit=MOST_CHILDREN)
    return Lineage(tuple(_linked(store, model.project, each) for each in shown), tuple(children))


def _nodes(folder: Path, model: PublishedModel) -> list[LineageNode]:
    manifest, recipe = _manifest(folder), _recipe(folder)
    stages = [each for each in _listed(manifest.get("stages")) if each.get("stage") not in ("evaluate", "publish")]
    blocks = {str(each.get("id") or each.get("stage")): each for each in _listed(recipe.get("stages"))}
    of_fingerprint = {str(each.get("fingerprint")): str(each.get("id")) for each in stages}
    data: dict[str, LineageNode] = {}
    named: dict[str, LineageNode] = {}
    made: list[LineageNode] = []
    for each in stages:
        identifier = str(each.get("id"))
        block = blocks.get(identifier, {})
        own = list(_data(block, each.get("data")))
        data |= {node.id: data.get(node.id, node) for node in own}
        inputs = each.get("inputs")
        before = (
            [of_fingerprint[text] for text in map(str, inputs) if text in of_fingerprint] if _is_list(inputs) else []
        )
        others = [_reference(str(reference)) for reference in references(block) if reference.kind != "file"]
        named |= {node.id: node for node in others}
        reads = [*(node.id for node in own), *(f"stage:{name}" for name in before), *(node.id for node in others)]
        made.append(LineageNode(f"stage:{identifier}", "stage", identifier, _did(block, each), tuple(reads)))
    start, tokenizer = _start(recipe, manifest, model), _tokenizer(recipe)
    roots = [START, *([TOKENIZER] if tokenizer is not None else [])]
    stage_ids = {node.id for node in made}
    made = [node if stage_ids & set(node.reads) else replace(node, reads=(*node.reads, *roots)) for node in made]
    if tokenizer is not None and tokenizer.reads:
        first = next((node for node in made if any(read in data for read in node.reads)), None)
        learnt = () if first is None else tuple(read for read in first.reads if read in data)
        tokenizer = replace(tokenizer, reads=learnt)
    last = str(_mapping(manifest.get("model")).get("stage") or "").partition("/")[0]
    source = f"stage:{last}" if f"stage:{last}" in stage_ids else made[-1].id if made else START
    result = LineageNode(RESULT, "model", model.reference, _scored(model), (source,), model.id)
    return [*data.values(), *named.values(), start, *filter(None, [tokenizer]), *made, result]


def _start(recipe: Mapping[str, Any], manifest: Mapping[str, Any], model: PublishedModel) -> LineageNode:
    """The model that the recipe begins with."""
    words = _mapping(recipe.get("model"))
    about = _mapping(manifest.get("model"))
    checkpoint = str(words.get("checkpoint") or about.get("checkpoint") or "") or model.base
    if checkpoint:
        node = _reference(checkpoint)
        revision = str(about.get("revision") or "")[:DIGITS]
        return replace(node, id=START, detail=f"commit {revision}" if revision else node.detail)
    architecture = _mapping(words.get("architecture"))
    what = str(architecture.get("preset") or architecture.get("model_type") or "from scratch")
    return LineageNode(START, "start", what, "weights from scratch")


def _reference(text: str) -> LineageNode:
    kind, _, name = text.partition(":")
    if kind == "model" and name:
        version = "" if VERSION.fullmatch(parsed(name)[1]) else "model of the project, version not recorded"
        return LineageNode(text, "start", name, version or "model of the project")
    if kind == "job" and name:
        return LineageNode(text, "start", name, "model that this job left")
    return LineageNode(text, "start", text, "checkpoint")


def _tokenizer(recipe: Mapping[str, Any]) -> LineageNode | None:
    """The vocabulary that was learnt or taken; None where the checkpoint's own was used."""
    words = _mapping(recipe.get("tokenizer"))
    if (pretrained := words.get("pretrained")) is not None:
        return LineageNode(TOKENIZER, "tokenizer", str(pretrained), "pretrained tokenizer")
    train = words.get("train")
    if train is None:
        return None
    algorithm = train if isinstance(train, str) else str(_mapping(train).get("name") or "vocabulary")
    return LineageNode(TOKENIZER, "tokenizer", algorithm, f"{words.get('vocab_size', 8192)} entries", ("data",))


def _data(block: Mapping[str, Any], digests: object) -> Iterator[LineageNode]:
    """The data sets that a stage's block names; where there is one, with the digest of its content."""
    names = list(dict.fromkeys(_data_names(block)))
    known = [str(each) for each in _mapping(digests).values()]
    for at, name in enumerate(names):
        digest = known[0] if known and len(names) == 1 else known[at] if len(known) == len(names) else ""
        yield LineageNode(f"data:{name}", "data", name, f"content {digest[:DIGITS]}" if digest else "data")


def _data_names(block: Mapping[str, Any]) -> Iterator[str]:
    for key in ("task", "tasks", "datasets", "prompts"):
        value = block.get(key)
        for each in value if _is_list(value) else [value]:
            each = _mapping(each).get("task", each) if key == "tasks" else each
            if isinstance(each, str):
                yield each
            else:
                named = _mapping(each)
                path = next((str(named[word]) for word in DATA_KEYS if named.get(word)), "")
                name = named.get("name")
                if path:
                    yield f"{path}/{name}" if isinstance(name, str) and key == "datasets" else path


def _did(block: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    """`supervised · lora`, `pretrain · masked_lm`."""
    parts = [str(stage.get("stage") or "")]
    for key in ("objective", "tuner"):
        value = block.get(key)
        name = value if isinstance(value, str) else _mapping(value).get("name")
        if isinstance(name, str) and name != "full":
            parts.append(name)
    return " · ".join(parts)


def _scored(model: PublishedModel) -> str:
    benchmark, metric = main_score(model)
    value = score_of(model, benchmark, metric) if benchmark else None
    return "" if value is None else f"{benchmark} {metric} {value:.4g}"


def _linked(store: Store, project: str, node: LineageNode) -> LineageNode:
    """A model of the project, by its version, with the id of that version where it is there."""
    name, selector = parsed(node.title)
    if node.kind != "start" or VERSION.fullmatch(selector) is None:
        return node
    try:
        return replace(node, model=store.model(project, f"{name}@{selector}").id)
    except NotFound:
        return replace(node, detail="model of the project, deleted")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(folder / "manifest.json", folder, LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        text = read_regular(folder / "recipe.yaml", folder, LARGEST_RECIPE).decode()
        data = None if too_costly(text) else read_yaml_text(text)[0]
    except (RecipeError, OSError, ValueError, TypeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if _is_list(value) else []


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"
