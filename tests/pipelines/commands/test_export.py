"""An export is compared with the published model, scored on its data, and kept only whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

from pipelines.commands import publish
from pipelines.commands.export import answer, unmeasured
from pipelines.core.errors import CommandError, PublishError, RecipeError
from pipelines.core.load import loads
from pipelines.core.registry import EXPORTS
from pipelines.publishing.destinations.destination import sha256_of
from pipelines.publishing.exports.export import RECORD, ExportedModel
from pipelines.publishing.integrity import problems
from tests.clean_process import forked_proofs
from tests.finished_run import finished, inside


@pytest.fixture(autouse=True)
def _there() -> Iterator[None]:
    with inside(finished().root), forked_proofs():
        yield


@pytest.fixture
def patch(_there: None) -> Iterator[pytest.MonkeyPatch]:
    """Changes that are undone before the run's folder is left."""
    with pytest.MonkeyPatch.context() as changes:
        yield changes


class Same:
    """Writes the model as it is; answers with its logits plus `change`."""

    name, tolerance = "same", 1e-4
    packages, extra = (), "export"
    change = 0.0

    @staticmethod
    def misfit(words: Any, vocabulary: str | None) -> None:
        return None

    @classmethod
    def write(cls, original: Any, out: Path) -> ExportedModel:
        original.model.save_pretrained(out)
        model = type(original.model).from_pretrained(out, attn_implementation="eager").eval()
        forward = model.forward

        def changed(self: Any, **given: Any) -> Any:
            answers = forward(**given)
            answers.logits[:, 0] += cls.change
            return answers

        model.forward = MethodType(changed, model)
        return ExportedModel(model, "lines", {"bits": 32}, ("transformers",))


@pytest.fixture
def form(patch: pytest.MonkeyPatch) -> type[Same]:
    """A form that needs no library."""
    kind = type("Form", (Same,), {})
    patch.setattr(EXPORTS, "load", lambda name: kind)
    return kind


def exported(out: Path, **fields: Any) -> dict[str, Any]:
    return dict(answer({"folder": "published", "to": "onnx", "out": str(out), **fields}))


def test_what_is_written_is_compared_scored_and_recorded(form, tmp_path):
    told = exported(tmp_path / "out")
    assert told["agreement"]["largest_difference"] < 1e-6
    assert {each["metric"]: each["exported"] for each in told["scores"]} == finished().scores["glue/mrpc"]
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["files"]["model.safetensors"] == sha256_of(tmp_path / "out/model.safetensors")
    assert record["bytes"] == (tmp_path / "out/model.safetensors").stat().st_size
    card = (tmp_path / "out/README.md").read_text()
    for each in told["scores"]:
        assert f"| glue/mrpc | {each['metric']} | {each['published']:.4f} | {each['exported']:.4f} |" in card
    assert exported(tmp_path / "out")["out"] == str(tmp_path / "out")  # an older export is replaced


def test_the_scores_are_those_of_the_export(form, tmp_path):
    form.change, form.tolerance = 100.0, None  # always the first class
    told = exported(tmp_path / "out")
    assert told["agreement"]["largest_difference"] == pytest.approx(100, abs=1e-3)
    f1 = next(each for each in told["scores"] if each["metric"] == "f1")
    assert f1["exported"] == 0.0


def test_one_that_answers_otherwise_is_not_kept(form, tmp_path):
    form.change = 0.1
    with pytest.raises(Exception, match="the same export answers otherwise"):
        exported(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_data_it_is_written_and_that_is_said(form, tmp_path, patch):
    folder = finished().root / "published"
    patch.chdir(tmp_path)
    told = exported(tmp_path / "out", folder=str(folder))
    assert told["scores"] == []
    assert told["notes"][0] == "its scores were not measured"
    assert "its scores were not measured." in (tmp_path / "out/README.md").read_text()


def test_a_form_that_cannot_be_scored_says_so_also_of_the_text_that_was_given(form, tmp_path, patch):
    written = form.write

    def unscored(original: Any, out: Path) -> ExportedModel:
        return replace(written(original, out), unscored="a graph writes no texts")

    patch.setattr(form, "write", unscored)
    assert exported(tmp_path / "out")["notes"] == ["its scores were not measured: a graph writes no texts"]
    assert unmeasured("a graph writes no texts", "my/held.txt") == (
        "neither its scores nor 'held.txt' (--text) were measured, the logits alone were compared: "
        "a graph writes no texts"
    )


def test_what_is_no_longer_as_published_is_not_exported(form, tmp_path):
    copy = Path(shutil.copytree("published", tmp_path / "copy"))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(PublishError, match=r"is not as published, so it is not exported: 'tokenizer.json' is missing"):
        exported(tmp_path / "out", folder=str(copy))


def test_a_held_out_text_is_for_models_that_continue_texts(form, tmp_path):
    (tmp_path / "held.txt").write_text("some words")
    with pytest.raises(CommandError, match="--text measures models that continue texts, and this one does not"):
        exported(tmp_path / "out", text=str(tmp_path / "held.txt"))
    (tmp_path / "held.txt").write_text(" \n")
    for name, why in (("held.txt", "is empty"), ("none.txt", "cannot be read as UTF-8")):
        with pytest.raises(CommandError, match=why):
            exported(tmp_path / "out", text=str(tmp_path / name))
    assert not (tmp_path / "out").exists()


def test_a_wrong_command_is_one_sentence(tmp_path):
    with pytest.raises(CommandError, match=r"unknown format 'onx'. Did you mean 'onnx'"):
        exported(tmp_path / "out", to="onx")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("")
    (tmp_path / "full/file").write_text("")
    for out, sentence in (
        ("full", r"holds something else than an export \(file\)"),
        ("full/mine", "is a file; give a folder that is new"),
        ("full/mine/out", "cannot be written: Not a directory; give another folder"),
        ("published", "lies in the published folder, which is only read"),
        ("published/deep/out", "lies in the published folder, which is only read"),
        ("link/out", "lies in the published folder, which is only read"),
    ):
        shutil.rmtree(tmp_path / "published", ignore_errors=True)
        folder = Path(shutil.copytree("published", tmp_path / "published"))
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(folder)
        with pytest.raises(CommandError, match=sentence):
            exported(tmp_path / out, folder=str(folder))
        assert not problems(folder)


def test_an_export_replaces_an_export_and_nothing_else(form, tmp_path, patch):
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "place")
    assert exported(tmp_path / "link")["out"] == str(tmp_path / "link")
    assert (tmp_path / "place" / RECORD).is_file()
    (tmp_path / "place/mine.txt").write_text("")
    with pytest.raises(CommandError, match=r"holds something else than an export \(mine.txt\)"):
        exported(tmp_path / "place")
    assert (tmp_path / "place/mine.txt").exists()
    folder = finished().root / "published"
    (tmp_path / "empty").mkdir()
    patch.chdir(tmp_path / "empty")
    with pytest.raises(CommandError, match="is the working folder, which an export would replace"):
        exported(Path("."), folder=str(folder))


@pytest.mark.long
@pytest.mark.parametrize("form", ["onnx", "int8"])
def test_a_published_model_scores_the_same_in_its_other_form(form, tmp_path):
    pytest.importorskip("onnxruntime" if form == "onnx" else "bitsandbytes")
    told = exported(tmp_path / "out", to=form)
    for each in told["scores"]:
        assert each["exported"] == pytest.approx(each["published"], abs=0 if form == "onnx" else 0.2)


def published(to: Path, **settings: Any) -> dict[str, Any]:
    request = {"source": str(finished().run / "stages/01-para"), "to": str(to), "settings": settings}
    return dict(publish.answer(request))


def test_a_publication_holds_the_exports_that_its_stage_names(form, tmp_path):
    place = tmp_path / "model"
    published(place, export=["onnx"], merge=False)  # an adapter, which is merged in the export
    record = json.loads((place / "onnx" / RECORD).read_text())
    assert record["agreement"]["largest_difference"] < 1e-6
    assert {each["metric"]: each["exported"] for each in record["scores"]} == finished().scores["glue/mrpc"]
    assert record["bytes_before"] == sum(
        (place / name).stat().st_size for name in ("adapter_model.safetensors", "base/model.safetensors")
    )
    assert json.loads((place / "manifest.json").read_text())["exports"][0]["scores"] == record["scores"]
    card = (place / "README.md").read_text()
    for each in record["scores"]:
        row = f"| glue/mrpc | {each['metric']} | {each['published']:.4f} | {each['exported']:.4f} |"
        assert f"{row}\n" in card.partition("## In other forms")[2]
    assert not problems(place)  # its checksums cover the exports, and its table is not taken for the model's own
    assert "onnx/model.safetensors" in json.loads((place / "publication.json").read_text())["checksums"]


def test_nothing_is_published_with_an_export_that_answers_otherwise(form, tmp_path):
    form.change = 0.1
    with pytest.raises(PublishError, match="nothing was published, because its export onnx failed: the same export"):
        published(tmp_path / "model", export=["onnx"])
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_exported_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr("pipelines.publishing.exports.export.find_spec", lambda name: None)
    text = "name: t\nmodel: {architecture: {preset: bert-tiny, hidden_size: 96}}\nstages:\n  - {stage: supervised, task: glue/mrpc%s}\n"
    publish = "  - {stage: publish, to: x, export: [%s]}\n"
    for tuner, names, mistake in (
        ("", "onnx", "needs onnx, which is not installed: pip install 'finery[export]'"),
        ("", "onyx", "unknown format 'onyx'. Did you mean 'onnx'?"),
        ("", "int8, int8", "'int8' stands there twice"),
        (", tuner: adapter", "int8", "cannot be merged, and exports hold one model"),
        ("", "int4", "is int4, which comes in blocks of 64 weights, and hidden_size is 96; write int8"),
        ("", "gguf", "which is for decoders that continue texts"),
    ):
        with pytest.raises(RecipeError) as raised:
            loads(text % tuner + publish % names)
        assert mistake in " ".join(each.message for each in raised.value.mistakes)
    assert len(raised.value.mistakes) == 1  # not that a library for what cannot be done is absent


@pytest.mark.parametrize(
    ("shape", "vocabulary", "mistake"),
    [
        ("preset: llama-tiny, norm_position: post", "byte_bpe", "nearest architecture of llama.cpp (llama), norm_posi"),
        (
            "preset: llama-tiny",
            "wordpiece",
            "holds byte-level BPE alone (tokenizer: {train: byte_bpe}), and this one is",
        ),
        ("model_type: mistral", "byte_bpe", "is for what llama.cpp computes as llama or gpt2, and this is mistral"),
        ("preset: llama-tiny", "byte_bpe", None),
        ("model_type: gpt2", "byte_bpe", None),
    ],
)
def test_a_decoder_that_gguf_cannot_hold_is_refused_before_anything_runs(shape, vocabulary, mistake, monkeypatch):
    monkeypatch.setattr("pipelines.publishing.exports.export.find_spec", lambda name: name)
    text = (
        f"name: t\nmodel: {{architecture: {{{shape}}}}}\ntokenizer: {{train: {vocabulary}}}\nstages:\n"
        "  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}]}\n"
        "  - {stage: publish, to: x, export: [gguf]}\n"
    )
    if mistake is None:
        loads(text)
        return
    with pytest.raises(RecipeError) as raised:
        loads(text)
    (issue,) = raised.value.mistakes
    assert mistake in issue.message
