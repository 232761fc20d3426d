"""The page on which a published model is tried: forms for what it can be asked, its answers, and what its card says.

Which forms there are and what an answer consists of is told by the process that serves the model, in the parts of
`pipelines.core.presentation`; this room draws them and knows no kind of task. What it tells is not trusted: shape and
size are checked, and the templates escape all of it. The same page stands in a service and, by `finery try`, before
one folder: a `TryHost` says who may ask, and which model.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import shlex
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol
from urllib.parse import quote

from fastapi import Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sse_starlette import ServerSentEvent
from starlette.responses import Response

from pipelines.core.files import archive_name
from pipelines.core.model_abilities import DESCRIPTIONS, abilities_of
from pipelines.core.presentation import AttentionHead, AttentionView, Form, FormField, Marked, PageAnswer
from service.api.context import Service, refuse_without_isolation
from service.api.problems import Problem, problem_of
from service.serving.asking import last_word, while_heard
from service.serving.processes import ModelProcesses, ServingState
from service.store.errors import NotFound
from service.store.models import PublishedModel
from service.web.access import new_router, signed_in, with_form
from service.web.models import read_card, rendered, without_front_matter
from service.web.rendering import HEADERS, page, partial
from service.web.sessions import Visitor
from service.web.streams import message, respond

PREFIX = "v."
"""Of the names of fields, so that a column may be called as anything of the page's own."""
MOST_TURNS = 200
LONGEST = 200_000
"""Characters of what is filled in, all together."""
MOST_TEXTS = 20
"""Boxes of one field of several texts."""
SHORT = 40
"""Letters of an example's name."""
TONES = 7
"""Colours that marks are told apart by, over and again."""
STEPS = 20
"""Shades of a map of attention."""
STILL_SECONDS = 5.0
"""How often a stream asks whether its visitor may still look."""
Filled = dict[str, str | list[str]]


class TryHost(Protocol):
    """Where models are tried: a service, or one folder."""

    local: bool
    """Whether the models lie in folders of the visitor's own, and no token is needed."""

    @property
    def served(self) -> ModelProcesses: ...

    def looking(self, request: Request) -> Visitor:
        """Who looks at the page. Raises SignInNeeded or Problem."""

    async def sending(self, request: Request) -> Visitor:
        """Who sends a form that carries their CSRF token. Raises SignInNeeded or Problem."""

    def model(self, visitor: Visitor, model_id: str) -> PublishedModel:
        """A model by its id, else the newest of a name. Raises NotFound."""

    def refusal(self, visitor: Visitor, model: PublishedModel) -> str:
        """Why this visitor may not ask the model, in one sentence; empty where they may."""

    def token(self, visitor: Visitor) -> str:
        """Whose questions they are."""

    def redacted(self, text: str) -> str:
        """A text without secrets."""


def host_of(request: Request) -> TryHost:
    """Where the models of this application are tried."""
    host: TryHost = request.app.state.try_host
    return host


def _looking(request: Request) -> Visitor:
    return host_of(request).looking(request)


async def _sending(request: Request) -> Visitor:
    return await host_of(request).sending(request)


Looking = Annotated[Visitor, Depends(_looking)]
Sending = Annotated[Visitor, Depends(_sending)]
router = new_router()


# ---- what the page consists of ---------------------------------------------------------------------------------------


def unaskable(model: PublishedModel) -> str:
    """Why nobody can try a model, by its files; empty where one can."""
    folder = Path(model.path)
    if not folder.is_dir():
        return "The files of this model are gone."
    abilities = abilities_of(folder)
    if abilities is None:
        return "The files of this model do not say what kind of model it is, so it cannot be tried."
    if not abilities.can:
        return (
            f"This model {DESCRIPTIONS[abilities.kind]} in a way that no process here answers, so it cannot be tried."
        )
    return ""


def card_sections(text: str, folder: Path | None = None) -> list[tuple[str, Any, bool]]:
    """(heading, its text as HTML, whether it is open) of each part of a card; those with code are closed. Pictures are
    those of `folder`."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    fenced = False
    for line in without_front_matter(text).splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            parts.append((line[3:].strip(), []))
        elif not (line.startswith("# ") and not fenced):
            parts[-1][1].append(line)
    return [
        (heading, rendered(body, folder), "```" not in body)
        for heading, lines in parts
        if (body := "\n".join(lines).strip()) or heading
    ]


def forms_of(about: Mapping[str, Any]) -> list[Form]:
    """The forms that a process offers. Raises Problem for what is none."""
    try:
        return [Form.model_validate(each) for each in list(about.get("forms") or ())[:8]]
    except (ValidationError, TypeError):
        raise Problem(500, "The model's process says what this page cannot show.", "internal") from None


def form_of(about: Mapping[str, Any], name: str) -> Form:
    """One of them. Raises Problem."""
    forms = {form.name: form for form in forms_of(about)}
    for known, form in forms.items():
        if known == name:
            return form
    raise Problem(404, f"This model has no form '{name[:40]}'; it has {', '.join(forms) or 'none'}.", "not_found")


def answer_of(end: Mapping[str, Any]) -> PageAnswer:
    """What a process answers. Raises Problem for what is no answer."""
    try:
        return PageAnswer.model_validate(end)
    except ValidationError:
        raise Problem(500, "The model's process answered with what this page cannot show.", "internal") from None


async def filled_in(request: Request, form: Form) -> Filled:
    """What was filled in: texts, or lists of them. Raises Problem."""
    given = await request.form()
    values: Filled = {}
    size = 0
    for field in (*form.fields, *form.settings):
        texts = [str(each).replace("\r\n", "\n") for each in given.getlist(PREFIX + field.name)]
        size += sum(map(len, texts))
        values[field.name] = _value(field, texts)
    if size > LONGEST:
        raise Problem(413, f"That is {size:,} characters, more than the {LONGEST:,} of one question.", "too_large")
    return values


def _value(field: FormField, texts: Sequence[str]) -> str | list[str]:
    last = texts[-1] if texts else ""
    if field.control == "words":
        return last.split()
    if field.control == "lines":
        return [line.strip() for line in last.split("\n") if line.strip()]
    if field.control == "texts":
        return [text for text in texts if text.strip()][: boxes(field)]
    if field.control == "number" and field.whole:
        return _whole_number(last)
    if field.control == "ways":
        return list(texts)
    if field.control == "dialogue":
        return list(texts)[-MOST_TURNS:]
    return last


def _whole_number(text: str) -> str:
    """`64.0` and `1e2` as commands and clients take them; what is no whole number as it was written."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def sent(form: Form, values: Filled) -> Filled:
    """What the process is asked: optional fields of the task that are empty are left out. Raises Problem."""
    for field in form.fields:
        if field.needed and not "".join(values[field.name]).strip():
            raise Problem(400, f"'{field.label}' is empty; write something there.", "empty_input", param=field.name)
        if field.control == "texts" and len(values[field.name]) < (field.low or 0):
            least = f"{field.low:g}"
            raise Problem(400, f"'{field.label}' needs at least {least} texts.", "too_few", param=field.name)
    optional = {field.name for field in form.fields if not field.needed}
    return {name: value for name, value in values.items() if value or name not in optional}


def boxes(field: FormField) -> int:
    """How many texts a field of several has room for."""
    return min(MOST_TEXTS, max(1, int(field.high or 1)))


def shown_in(field: FormField, values: Mapping[str, str | Sequence[str]]) -> str:
    """What stands in a field, as its control shows it."""
    value = values.get(field.name, field.value)
    if isinstance(value, str):
        return value
    return {"words": " ", "ways": ","}.get(field.control, "\n").join(value)


def beginning(example: Mapping[str, str | Sequence[str]]) -> str:
    """What an example is called: how its first two values begin."""
    values = list(example.values())[:2]
    most = SHORT // max(1, len(values))
    texts = [" ".join(each.split() if isinstance(each, str) else each) for each in values]
    return " / ".join(text if len(text) <= most else f"{text[: most - 1].rstrip()}…" for text in texts)


def gone_on(form: Form, given: Mapping[str, Any], values: Filled) -> Filled:
    """A dialogue that goes on with one of the answers: what was said and answered becomes a part of it."""
    dialogue_field = next((field.name for field in form.fields if field.control == "dialogue"), None)
    new = next((field.name for field in form.fields if field.control == "text"), "")
    if dialogue_field is None:
        return values
    dialogue = [*values[dialogue_field], str(given.get("said", "")), str(given.get("chosen", ""))]
    return {**values, dialogue_field: dialogue[-MOST_TURNS:], new: ""}


def tones(part: Marked) -> dict[str, int]:
    """A colour for each mark of a text, in the order in which they come."""
    marks = dict.fromkeys(piece.mark for piece in part.pieces if piece.mark)
    return {mark: number % TONES for number, mark in enumerate(marks)}


def shade(weight: float, row: Sequence[float]) -> int:
    """The shade of one weight among those of its row, from 0."""
    return round(STEPS * weight / max(*row, 1e-9))


def small_picture(head: AttentionHead, view: AttentionView) -> str:
    """A small map as an address with a PNG in it: a colour that is the thicker the larger the weight. Empty where the
    process sent no map of this size."""
    try:
        weights = b64decode(head.picture, validate=True)
    except (binascii.Error, ValueError):
        return ""
    width, height = len(view.keys), len(view.queries)
    if not weights or len(weights) != width * height:
        return ""
    lines = b"".join(b"\0" + weights[row * width : (row + 1) * width] for row in range(height))

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    palette = bytes(value for _ in range(256) for value in (58, 126, 214))  # legible on light and on dark paper
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 3, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", palette) + chunk(b"tRNS", bytes(range(256)))
    png += chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(png).decode('ascii')}"


# ---- the same answer elsewhere ---------------------------------------------------------------------------------------


def same_answer(form: Form, values: Filled, model: PublishedModel, address: str, local: bool) -> list[tuple[str, str]]:
    """(title, code) of what gives the same answer without this page. Made of what the visitor wrote alone. A command
    names the model's folder; that of a service's model is the one in its download."""
    filled = {name: value for name, value in values.items() if value and name in {each.name for each in form.fields}}
    place = model.path if local else archive_name(model.name)
    title = "Command" if local else "Command, beside the unpacked download of the model"
    snippets = [(title, command)] if (command := _command(form, filled, values, place)) else []
    request = None if local else _request(form, filled, values, model.reference)
    if request is None:
        return snippets
    path, body = request
    text = json.dumps(body, ensure_ascii=False)
    curl = (
        f'curl -s {shlex.quote(address + path)} \\\n  -H "Authorization: Bearer $FINERY_TOKEN" '
        f"-H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)}"
    )
    return [("curl", curl), ("Python", _python(path, body, address)), *snippets]


def _command(form: Form, filled: Filled, values: Filled, place: str) -> str:
    words = [str(each) for each in filled.values() if isinstance(each, str)]
    if form.name == "predict":
        return f"echo {shlex.quote(json.dumps(filled, ensure_ascii=False))} | finery predict {shlex.quote(place)} -"
    if form.name == "attention":
        options = [item for name in ("pair", "target") if name in filled for item in (f"--{name}", str(filled[name]))]
        layer, _, head = str(values.get("head") or "").partition(":")[2].partition(".")
        options += ["--layer", layer] if layer else []
        options += ["--head", head] if head not in ("", "0") else []
        return shlex.join(["finery", "attention", place, str(filled.get("text", "")), *options])
    if form.name == "fill_mask":
        return shlex.join(["finery", "generate", place, words[0].replace("___", form.gap)]) if words else ""
    if form.name in ("complete", "chat") and words and not (filled.get("dialogue") or values.get("system")):
        return shlex.join(["finery", "generate", place, words[-1], *_decoding(values)])
    return ""


def _decoding(values: Filled) -> list[str]:
    names = {
        "max_tokens": "--max-new-tokens",
        "num_beams": "--num-beams",
        "temperature": "--temperature",
        "top_p": "--top-p",
        "seed": "--seed",
    }
    given = [item for name, option in names.items() if values.get(name) for item in (option, str(values[name]))]
    return [*given, "--top-k", "0", "--samples", "1"]


def _request(form: Form, filled: Filled, values: Filled, name: str) -> tuple[str, dict[str, Any]] | None:
    """(path, body) of the route that answers this; None where none does."""
    greedy = {"temperature": 0, "max_tokens": int(str(values.get("max_tokens") or "64"))}
    if form.name == "predict":
        return f"/api/v1/models/{quote(name, safe='')}/predict", {"inputs": [filled]}
    if form.name == "similarity":
        return "/v1/embeddings", {"model": name, "input": list(filled.values())}
    if form.name == "complete":
        return "/v1/completions", {"model": name, "prompt": filled.get("text", ""), **greedy}
    if form.name == "chat":
        turns = [*(filled.get("dialogue") or []), str(filled.get("message", ""))]
        system = [{"role": "system", "content": values["system"]}] if values.get("system") else []
        messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
        return "/v1/chat/completions", {"model": name, "messages": [*system, *messages], **greedy}
    return None


def _python(path: str, body: Mapping[str, Any], address: str) -> str:
    resource = {"/v1/chat/completions": "chat.completions", "/v1/completions": "completions"}.get(path)
    key = 'os.environ["FINERY_TOKEN"]'
    if resource is None:
        return (
            f"import os\n\nimport httpx\n\nanswer = httpx.post(\n    {address + path!r},\n"
            f'    headers={{"Authorization": f"Bearer {{{key.replace(chr(34), chr(39))}}}"}},\n    json={body!r},\n'
            "    timeout=300,\n)\nprint(answer.json())"
        )
    words = ", ".join(f"{name}={value!r}" for name, value in body.items())
    return (
        f"import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url={address + '/v1'!r}, api_key={key})\n"
        f"print(client.{resource}.create({words}))"
    )


# ---- the routes ------------------------------------------------------------------------------------------------------


def _context(request: Request, visitor: Visitor, model: PublishedModel, state: ServingState) -> dict[str, Any]:
    """What every part of the page is drawn from."""
    host = host_of(request)
    unable = unaskable(model)
    return {
        "model": model,
        "base": f"/models/{model.id}/try",
        "state": state,
        "unable": unable,
        "refusal": "" if unable else host.refusal(visitor, model),
        "forms": forms_of(state.about) if state.name == "ready" else [],
        "local": host.local,
        "visitor": visitor,
        "values": {},
        "prefix": PREFIX,
        "shown_in": shown_in,
        "boxes": boxes,
        "beginning": beginning,
    }


def drawn_answer(form: Form, values: Filled, answer: PageAnswer, same: Sequence[tuple[str, str]]) -> str:
    """An answer as a part of the page."""
    return partial(
        "parts/try_answer.html.jinja",
        form=form,
        values=values,
        answer=answer,
        same=same,
        prefix=PREFIX,
        tones=tones,
        shade=shade,
        small_picture=small_picture,
    )


def _drawn(request: Request, model: PublishedModel, form: Form, values: Filled, answer: PageAnswer) -> str:
    address, local = str(request.base_url).rstrip("/"), host_of(request).local
    return drawn_answer(form, values, answer, same_answer(form, values, model, address, local))


def _whole(
    request: Request, visitor: Visitor, model: PublishedModel, state: ServingState, status: int = 200, **more: Any
) -> Response:
    host = host_of(request)
    text = read_card(Path(model.path))
    sections = [] if text is None else card_sections(host.redacted(text), Path(model.path))
    context = _context(request, visitor, model, state) | {"card": sections, "answers": {}, "problem": None} | more
    context.pop("visitor")
    return page(request, "try.html.jinja", visitor, status, **context)


@router.get("/models/{model_id}/try")
def try_page(
    request: Request,
    visitor: Looking,
    model_id: str,
    form: Annotated[str, Query(max_length=40)] = "",
    example: Annotated[int | None, Query(ge=0, lt=12)] = None,
) -> Response:
    """The page; with `form` and `example` that form is filled in with one of its examples."""
    host = host_of(request)
    model = host.model(visitor, model_id)
    state = host.served.state(model)
    values: dict[str, Any] = {}
    for each in forms_of(state.about) if state.name == "ready" else ():
        if each.name == form and example is not None and example < len(each.examples):
            values[form] = each.examples[example]
    return _whole(request, visitor, model, state, values=values)


@router.get("/models/{model_id}/try/state")
def try_state(request: Request, visitor: Looking, model_id: str) -> Response:
    """The part of the page that waits for the process, or has its forms."""
    host = host_of(request)
    model = host.model(visitor, model_id)
    context = _context(request, visitor, model, host.served.state(model)) | {"answers": {}}
    return Response(partial("parts/try_body.html.jinja", **context), media_type="text/html", headers=HEADERS)


def _asked(request: Request, visitor: Visitor, model_id: str) -> PublishedModel:
    """The model that is asked something. Raises NotFound or Problem."""
    host = host_of(request)
    model = host.model(visitor, model_id)
    if why := unaskable(model):
        raise Problem(400, why, "unservable_model")
    if why := host.refusal(visitor, model):
        raise Problem(403, why, "forbidden")
    return model


@router.post("/models/{model_id}/try/start")
def try_start(request: Request, visitor: Sending, model_id: str) -> Response:
    """Start the model's process."""
    model = _asked(request, visitor, model_id)
    host = host_of(request)
    try:
        host.served.begin(model)
    except Problem as problem:
        if "hx-request" not in request.headers:
            raise
        text = partial("parts/error.html.jinja", problem=problem, title="")
        return Response(text, media_type="text/html", headers=HEADERS)
    if "hx-request" in request.headers:
        return try_state(request, visitor, model_id)
    return RedirectResponse(f"/models/{model.id}/try", 303, HEADERS)


@router.post("/models/{model_id}/try/{name}")
async def try_form(request: Request, visitor: Sending, model_id: str, name: str) -> Response:
    """The answer to a form, as a part of the page or as a page of its own."""
    host = host_of(request)
    model = await run_in_threadpool(_asked, request, visitor, model_id)
    about = await while_heard(request, host.served.about(model))
    form = form_of(about, name)
    swapped = "hx-request" in request.headers
    values = await filled_in(request, form)
    given = await request.form()
    state = ServingState("ready", about=about)
    if "chosen" in given:
        return _whole(request, visitor, model, state, values={name: gone_on(form, given, values)})
    html, problem, status = "", None, 200
    try:
        question = {"form": name, "values": sent(form, values)}
        end = await while_heard(request, last_word(host.served, host.token(visitor), model, "try", question))
        html = _drawn(request, model, form, values, answer_of(end))
    except Problem as error:
        problem, status = error, error.status
        html = partial("parts/error.html.jinja", problem=error, title="")
    if swapped:
        return Response(
            html, status, media_type="text/html", headers={**HEADERS, **(problem.headers if problem else {})}
        )
    return _whole(request, visitor, model, state, status, values={name: values}, answers={name: html})


@router.post("/models/{model_id}/try/{name}/stream")
async def try_stream(request: Request, visitor: Sending, model_id: str, name: str) -> Response:
    """The answer to a form while it is written: server-sent events."""
    host = host_of(request)
    model = await run_in_threadpool(_asked, request, visitor, model_id)
    about = await while_heard(request, host.served.about(model))
    form = form_of(about, name)
    values = await filled_in(request, form)
    return respond(_told(request, visitor, model, form, values))


async def _told(
    request: Request, visitor: Visitor, model: PublishedModel, form: Form, values: Filled
) -> AsyncIterator[ServerSentEvent]:
    """`texts` with their titles, then `piece` and `replace` while they are written, last `answer` or `problem`."""
    host = host_of(request)
    looked = time.monotonic()
    try:
        question = {"form": form.name, "values": sent(form, values)}
        async with host.served.question(host.token(visitor), model, "try", question) as opened:
            async for part in opened.parts(host.served.seconds):
                for kind in ("texts", "piece", "replace", "finished"):
                    if kind in part:
                        yield message(kind, part[kind])
                if "end" in part:
                    answer = answer_of(part["end"])
                    yield message("answer", await asyncio.to_thread(_drawn, request, model, form, values, answer))
                if time.monotonic() - looked > STILL_SECONDS:
                    looked = time.monotonic()
                    await run_in_threadpool(host.looking, request)
    except Exception as error:
        problem = problem_of(error)
        yield message("problem", partial("parts/error.html.jinja", problem=problem, title="It could not be answered."))


@dataclass(frozen=True)
class ServiceHost:
    """The published models of a service, under its roles and limits."""

    service: Service
    local: ClassVar[bool] = False

    @property
    def served(self) -> ModelProcesses:
        return self.service.served

    def looking(self, request: Request) -> Visitor:
        return signed_in(request)

    async def sending(self, request: Request) -> Visitor:
        return await with_form(request)

    def model(self, visitor: Visitor, model_id: str) -> PublishedModel:
        store = self.service.store
        try:
            return store.model_by_id(model_id, visitor.project)
        except NotFound:
            return store.model(visitor.project, model_id)

    def refusal(self, visitor: Visitor, model: PublishedModel) -> str:
        if not visitor.may_submit:
            return "Your token is a viewer's: it may read what the card says, but not ask the model."
        if self.service.settings.serve_models == 0:
            return "This server serves no models (FINERY_SERVE_MODELS=0)."
        try:
            refuse_without_isolation(self.service, visitor.caller)
        except Problem as problem:
            return problem.detail
        return ""

    def token(self, visitor: Visitor) -> str:
        return visitor.caller.token

    def redacted(self, text: str) -> str:
        return self.service.redactor.text(text)
