"""`finery export`: writes a published model in another form, and says how far that form is from it.

Each form is opened from its own files, asked the same texts as the published model, and scored once more on the data
of the publication's evaluate stages where that is at hand; a language model also on a text that is given.
`export.json` and a card stand beside it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.commands.verify import (
    OLDER,
    Published,
    folder_of_data,
    looking_in,
    measure,
    needs_its_code,
    recipe_in,
)
from pipelines.core.errors import CommandError, FineryError, PublishError
from pipelines.core.files import JSONObject, read_json
from pipelines.core.interfaces import Head
from pipelines.core.registry import EXPORTS
from pipelines.core.results import MARKER
from pipelines.publishing import sources
from pipelines.publishing.exports.export import ExportedModel, Original, compare, files_of, finish, weights_of
from pipelines.publishing.integrity import RECIPE, problems, published
from pipelines.publishing.manifest import MANIFEST, stated_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LONGEST_WINDOW = 1024
"""Tokens of a held-out text that are read at once."""


@dataclass(frozen=True)
class ExportRequest:
    """What `finery export` was asked."""

    folder: str
    to: str
    out: str
    data: str | None = None
    text: str | None = None
    """A file of held-out text that the model and the export are measured on."""
    trust_remote_code: bool = False


def answer(fields: JSONObject) -> JSONObject:
    """Where the export lies, how it compares, and its scores, as plain data. Raises FineryError."""
    request = ExportRequest(**fields)
    if request.to not in EXPORTS:
        raise CommandError(f"--to {request.to}: {EXPORTS.unknown(request.to)}")
    folder, data = published(request.folder), folder_of_data(request.data)
    text = None if request.text is None else held_out_text(request.text)
    out = place_of(request.out, folder)
    if found := problems(folder):
        raise PublishError(f"'{request.folder}' is not as published, so it is not exported: {found[0]}")
    manifest = read_json(folder / MANIFEST)
    if "head" not in manifest.get("model", {}):
        raise PublishError(f"'{request.folder}' {OLDER}")
    if needs_its_code(folder) and not request.trust_remote_code:
        raise CommandError(
            f"'{request.folder}' opens only with Python code of its own; read it, then give --trust-remote-code"
        )
    incoming = out.with_name(f".{out.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    try:
        incoming.mkdir(parents=True)
    except OSError as error:
        raise CommandError(f"'{request.out}' cannot be written: {error.strerror}; give another folder") from None
    try:
        results = _write(request, folder, data, text, manifest, incoming)
        shutil.rmtree(out, ignore_errors=True)
        incoming.rename(out)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return {"folder": str(folder), "out": str(Path(request.out).expanduser()), **results}


def place_of(given: str, folder: Path) -> Path:
    """Where the export of a published folder goes: a new folder, an empty one, or that of an export, which it
    replaces. Raises CommandError."""
    out = Path(given).expanduser().resolve()
    if out.is_relative_to(folder.resolve()):
        raise CommandError(f"'{given}' lies in the published folder, which is only read; give a folder outside of it")
    if out.exists() and not out.is_dir():
        raise CommandError(f"'{given}' is a file; give a folder that is new")
    if out == Path.cwd():
        raise CommandError(f"'{given}' is the working folder, which an export would replace; give one inside it")
    strange = sorted({path.name for path in out.iterdir()} - files_of(out)) if out.is_dir() else []
    if strange:
        raise CommandError(f"'{given}' holds something else than an export ({strange[0]}); give a folder that is new")
    return out


def _write(
    request: ExportRequest, folder: Path, data: Path | None, text: str | None, manifest: JSONObject, out: Path
) -> JSONObject:
    about = manifest["model"]
    head = Head(about["head"], tuple(about["labels"]))
    if text is not None and head.kind != "causal_lm":
        raise CommandError("--text measures models that continue texts, and this one does not; leave it out")
    opener = Published(folder, str(about["stage"]), 0, request.trust_remote_code)
    original = Original(folder, head, opener.open_model(head, trained_head=True).eval(), opener.open_tokenizer())
    form: Any = EXPORTS.load(request.to)
    exported: ExportedModel = form.write(original, out)
    agreement = exported.agreement or compare(original, exported, form.name, form.tolerance)
    scores: list[JSONObject] = []
    notes: list[str] = []
    if exported.model is None or exported.unscored:
        notes = [unmeasured(exported.unscored, request.text)]
    else:
        scores, notes = rescored(folder, data, manifest, exported.model, opener)
        if text is not None:
            scores += on_text(str(request.text), text, original, exported.model)
    before = sum(path.stat().st_size for path in weights_of(folder))
    fingerprint = str(read_json(folder / MARKER)["fingerprint"])
    return finish(out, str(manifest["name"]), fingerprint, form.name, before, exported, agreement, scores, notes)


def unmeasured(why: str, text: str | None) -> str:
    """The note on a form that cannot be asked for scores, nor for those of the text that was given."""
    if text is None:
        return f"its scores were not measured: {why}"
    return f"neither its scores nor '{Path(text).name}' (--text) were measured, the logits alone were compared: {why}"


def held_out_text(path: str) -> str:
    """The text of a file. Raises CommandError."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--text {path} cannot be read as UTF-8: {error}") from None
    if not text.strip():
        raise CommandError(f"--text {path} is empty")
    return text


def on_text(name: str, text: str, original: Original, model: PreTrainedModel) -> list[JSONObject]:
    """Bits per byte and perplexity of a text, by the model as published and by the export."""
    from pipelines.core.interfaces import World
    from pipelines.evaluation.language_modeling import MASK_SEED, HeldOutModel, measure
    from pipelines.models.checkpoint import positions_of
    from pipelines.models.predict import device
    from pipelines.objectives.causal_lm import CausalLM

    objective, tokenizer = CausalLM(), original.tokenizer
    length = min(LONGEST_WINDOW, positions_of(original.model, tokenizer) or LONGEST_WINDOW)
    collate = objective.collate(tokenizer, MASK_SEED)
    before, after = (
        measure(
            HeldOutModel(each, tokenizer, objective, collate, length, length, 8, device(), World(), lambda one: [one]),
            [text],
            None,
            Path(),  # documents in windows keep nothing between runs
            "",
            0,
        ).metrics
        for each in (original.model, model)
    )
    return [
        {"benchmark": Path(name).name, "metric": metric, "published": before[metric], "exported": after[metric]}
        for metric in ("bits_per_byte", "perplexity")
    ]


class ExportOpener(Published):
    """Opens the export in place of the published model."""

    def __init__(self, opener: Published, model: PreTrainedModel) -> None:
        self.__dict__.update(opener.__dict__)
        self.export = model

    def open_model(  # type: ignore[override]
        self, head: Head | None, stage_id: str | None = None, **words: Any
    ) -> PreTrainedModel:
        """As `ModelOpener` promises."""
        if words.get("checkpoint"):
            return super().open_model(head, stage_id, **words)
        self._folder_of(stage_id)
        return self.export


def rescored(
    folder: Path, data: Path | None, manifest: JSONObject, model: PreTrainedModel, opener: Published
) -> tuple[list[JSONObject], list[str]]:
    """(each stated score beside the export's, why some have none)."""
    stated = stated_scores(manifest)
    if not stated:
        return [], ["no scores are stated, so none were measured"]
    found = sources.find(manifest["sources"], data)
    if found.missing:
        return [], ["its scores were not measured", *found.missing]
    scores: list[JSONObject] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="export-") as place, looking_in(data):
        try:
            names = found.place(manifest["sources"], Path(place), (RECIPE, "scores"))
            recipe = recipe_in(folder, Path(place), names, manifest["model"])
            export_opener = ExportOpener(opener, model)
            export_opener.seed = recipe.seed
            for stage_id in dict.fromkeys(each.stage for each in stated.values()):
                mine = {name: each for name, each in stated.items() if each.stage == stage_id}
                measured = measure(Path(place), recipe, manifest, stage_id, mine, export_opener)
                for name, each in mine.items():
                    again = measured[name].metrics if name in measured else {}
                    scores += [
                        {"benchmark": name, "metric": metric, "published": value, "exported": again.get(metric)}
                        for metric, value in each.metrics.items()
                    ]
        except FineryError as error:
            first = str(error).splitlines()[0]
            notes.append(f"{'some of ' if scores else ''}its scores were not measured: {first}")
    return scores, notes
