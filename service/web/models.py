"""The models that the project has published, each with its card, and the leaderboard of their scores.

A card is a model's README.md as HTML that cannot do anything: no raw HTML, no scripts, no images but the PNG files
beside it. A leaderboard is the scores on one benchmark, best first.
"""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query, Request
from markupsafe import Markup, escape
from starlette.responses import Response

from pipelines.core.scores import COUNTS, PEERS, smaller_is_better
from service.api.context import apart
from service.attempts.folders import Unfit, open_regular, read_regular
from service.store.errors import NotFound
from service.web.access import Seen, new_router, service_of
from service.web.registry import registry_view
from service.web.rendering import page

LARGEST = 400_000
"""Characters of a card that are shown."""
LARGEST_PICTURE = 1_000_000
"""Bytes of a picture of a card that is shown."""
LINKS = ("http://", "https://", "mailto:", "#")
PICTURE = re.compile(r"[\w-][\w.-]{0,100}\.png")
"""The name of a picture beside a card."""


@lru_cache(maxsize=1)
def _parser() -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 20}).enable("table")
    parser.validateLink = _may_link  # type: ignore[method-assign, assignment]
    parser.add_render_rule("heading_open", _one_level_lower)
    parser.add_render_rule("heading_close", _one_level_lower)
    parser.add_render_rule("link_open", _elsewhere)
    parser.add_render_rule("image", _picture)
    parser.add_render_rule(
        "table_open", lambda *_: '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>\n'
    )
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("td_open", _aligned)
    parser.add_render_rule("th_open", _aligned)
    return parser


def rendered(text: str, folder: Path | None = None) -> Markup:
    """Markdown as HTML: the YAML front matter left out, headings a level lower, tags shown as text, pictures of
    `folder` drawn."""
    return Markup(_parser().render(without_front_matter(text[:LARGEST]), {"folder": folder}))


def without_front_matter(text: str) -> str:
    """The text behind `---` … `---` at its start."""
    if not text.startswith("---\n"):
        return text
    end = text.find("\n---", 3)
    line = text.find("\n", end + 1) if end >= 0 else -1
    return text[line + 1 :] if line >= 0 else text


def read_card(folder: Path) -> str | None:
    """The README.md of a published model, or None when it has none that can be read."""
    try:
        with open_regular(folder / "README.md", folder) as file:
            return file.read(4 * LARGEST).decode(errors="replace")[: LARGEST + 1]
    except OSError:
        return None


def _may_link(address: str) -> bool:
    return address.strip().lower().startswith(LINKS) or PICTURE.fullmatch(address) is not None


def _one_level_lower(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    tokens[place].tag = f"h{min(6, int(tokens[place].tag[1]) + 1)}"
    return str(self.renderToken(tokens, place, options, env))


def _elsewhere(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    address = tokens[place].attrGet("href") or "#"  # `[text]()` is not checked by the parser
    tokens[place].attrSet("href", "#" if PICTURE.fullmatch(address) else address)
    tokens[place].attrSet("rel", "noopener noreferrer nofollow")
    return str(self.renderToken(tokens, place, options, env))


def _picture(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    """A picture beside the card as part of the page, which loads nothing from elsewhere: a link in place of another."""
    token = tokens[place]
    source = str(token.attrs["src"])
    if PICTURE.fullmatch(source):
        drawn = _of_folder(env.get("folder"), source)
        shown = escape(token.content)
        return f'<img class="picture" src="{drawn}" alt="{shown}">' if drawn else f"picture: {shown}"
    return (
        f'<a href="{escape(token.attrs["src"])}" rel="noopener noreferrer nofollow">picture: '
        f"{escape(token.content or token.attrs['src'])}</a>"
    )


def _of_folder(folder: Path | None, name: str) -> str:
    """A PNG file of a model's folder as an address that holds it; empty where there is none that can be shown."""
    content = b""
    if folder is not None:
        with suppress(OSError, Unfit):
            content = read_regular(folder / name, folder, LARGEST_PICTURE)
    return f"data:image/png;base64,{b64encode(content).decode()}" if content.startswith(b"\x89PNG\r\n") else ""


def _aligned(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    """Alignment as a class: the content security policy forbids `style`."""
    style = tokens[place].attrs.pop("style", "")
    if "right" in style or "center" in style:
        tokens[place].attrSet("class", "number" if "right" in style else "centre")
    return str(self.renderToken(tokens, place, options, env))


router = new_router()
PAGE_SIZE = 50


@router.get("/models")
def models(
    request: Request,
    visitor: Seen,
    after: Annotated[str, Query(max_length=64)] = "",
    deleted: Annotated[str, Query(max_length=5)] = "",
) -> Response:
    """All published models, newest first; with `deleted` those that can be restored."""
    service = service_of(request)
    models = service.store.models(visitor.project, after=after or None, deleted=bool(deleted), limit=PAGE_SIZE + 1)
    named: dict[str, list[str]] = {}
    for about in service.store.model_names(models[:PAGE_SIZE]).values():
        for alias in about.aliases:
            named.setdefault(alias.model, []).append(alias.alias)
    return page(
        request,
        "models.html.jinja",
        visitor,
        models=models[:PAGE_SIZE],
        more=len(models) > PAGE_SIZE,
        named=named,
        deleted=bool(deleted),
        grace=service.settings.model_grace_days * 86_400,
    )


@apart("readings", router.get("/models/{model_id}"))
def model(request: Request, visitor: Seen, model_id: str) -> Response:
    """One version by its id, or by a reference such as `demo@production`; the newest of a name."""
    service = service_of(request)
    try:
        model = service.store.model_by_id(model_id, visitor.project)
    except NotFound:
        model = service.store.model(visitor.project, model_id)
    try:
        job = service.store.job(model.job, visitor.project)
    except NotFound:  # a model stays when its job is deleted
        job = None
    text = read_card(Path(model.path))
    card = None if text is None else rendered(service.redactor.text(text), Path(model.path))
    registry = registry_view(service, model)
    return page(request, "model.html.jinja", visitor, model=model, job=job, card=card, registry=registry, done="")


FIRST = ("f1", "accuracy", "matthews_correlation", "exact_match", "pearson", "perplexity")
"""Which metric is shown when none was chosen."""


@router.get("/leaderboard")
def leaderboard(
    request: Request,
    visitor: Seen,
    benchmark: Annotated[str, Query(max_length=200)] = "",
    metric: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """All scores on a benchmark; without a name, on the one with the most."""
    store = service_of(request).store
    benchmarks: dict[str, dict[str, int]] = {}
    for name, measure, count in store.benchmarks(visitor.project):
        if measure not in COUNTS and not measure.startswith(tuple(f"{peer}_" for peer in PEERS)):
            benchmarks.setdefault(name, {})[measure] = count
    if not benchmark and benchmarks:
        benchmark = max(benchmarks, key=lambda name: max(benchmarks[name].values()))
    metrics = benchmarks.get(benchmark, {})
    if metric not in metrics:
        metric = next((each for each in FIRST if each in metrics), next(iter(metrics), ""))
    rows = store.leaderboard(visitor.project, benchmark, metric) if metric else []
    values = [row.value for row in rows]
    return page(
        request,
        "leaderboard.html.jinja",
        visitor,
        benchmarks=benchmarks,
        benchmark=benchmark,
        metric=metric,
        metrics=metrics,
        rows=rows,
        lower=smaller_is_better(metric),
        low=min([0.0, *values]),
        high=max([*values, 0.0]),
    )
