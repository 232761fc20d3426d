"""The publish stage as a whole: what it refuses, what it leaves behind, and when it does nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import PublishError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.models.heads import HEAD_CLASSES
from tests.clean_process import forked_proofs
from tests.covering import LONG, covering

HEAD = "name: t\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
MRPC = "  - {stage: supervised, id: mrpc, task: glue/mrpc, arguments: {}}\n"
COLA = "  - {stage: supervised, id: cola, task: glue/cola, from: model, arguments: {}}\n"
EVALUATE = "  - {stage: evaluate}\n"


def mistakes(text: str) -> list[str]:
    with pytest.raises(RecipeError) as raised:
        loads(HEAD + text)
    return [f"{each.key}: {each.message}" for each in raised.value.mistakes]


@pytest.mark.wider
@pytest.mark.parametrize(
    ("kind", "publish"),
    [
        ("finery-lora", ", merge: false"),
        pytest.param("finery", "", marks=pytest.mark.long),
        pytest.param("bert-lora", "", marks=pytest.mark.long),
    ],
)
def test_a_published_folder_is_complete_verified_and_marked(job, kind, publish, tmp_path):
    made = job(kind, publish=publish)
    context = made.context()
    # long tests prove it in a process that starts anew
    with nullcontext() if os.environ.get(LONG) else forked_proofs():
        made.publish.run(context)
    folder = tmp_path / "registry" / "tiny"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    weights = (
        {"adapter_model.safetensors", "adapter_config.json", "base/model.safetensors", "base/config.json"}
        if publish
        else {"model.safetensors", "config.json"}
    )
    assert names >= weights | {
        "tokenizer.json",
        "README.md",
        "recipe.yaml",
        "manifest.json",
        "SHA256SUMS",
        "publication.json",
    }
    if kind.startswith("finery"):
        assert any(name.endswith("modeling_finery.py") for name in names)
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)

    marker = json.loads((folder / "publication.json").read_text())
    assert marker["complete"] is True
    assert set(marker["checksums"]) == names - {"publication.json"}
    proof = marker["verification"]
    assert (proof["rows"], proof["of"], proof["flips"]) == (7, 7, 0)
    assert proof["largest_difference"] < 1e-4
    assert (proof["largest_difference_by_merging"] is None) == (not kind.endswith("lora"))
    assert json.loads((context.folder / "publication.json").read_text())["location"] == str(folder)
    assert sorted(path.name for path in context.folder.iterdir()) == ["publication.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tiny"]  # nothing half-written beside it
    assert made.publish.still_there(context.folder)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    assert str(made.folder) not in "".join(
        (folder / name).read_text()
        for name in names
        if name.endswith((".json", ".yaml", ".md")) and name != "publication.json" and name != "recipe.yaml"
    )
    card, manifest = (folder / "README.md").read_text(), json.loads((folder / "manifest.json").read_text())
    assert "| `nyu-mll/glue` (mrpc) | mrpc, evaluate | other | Finery's file of the benchmark |" in card
    assert manifest["data"][0]["license"] == "other"
    assert manifest["footprint"]["hours"] == pytest.approx(12.5 / 3600)  # the runtime in the stage's metrics
    assert ".eval_results/finery.yaml" in names
    metrics = [event for event in read_events(context.events.path) if event["event"] == "metric"]
    assert metrics[0]["metrics"]["verification.rows"] == 7


def test_the_recipe_in_the_publication_is_the_recipe(job, quick, tmp_path):
    made = job()
    made.publish.run(made.context())
    text = (tmp_path / "registry/tiny/recipe.yaml").read_text()
    assert loads(text) == made.recipe


def test_a_score_below_its_threshold_is_refused_by_name_and_leaves_nothing(job, tmp_path):
    made = job(publish=", require: {glue/mrpc.f1: '>= 0.9', glue/mrpc.accuracy: '> 0.75'}")
    context = made.context()
    with pytest.raises(PublishError) as raised:
        made.publish.run(context)
    assert "glue/mrpc.f1 is 0.8125, must be >= 0.9" in raised.value.message
    assert "glue/mrpc.accuracy is 0.75, must be > 0.75" in raised.value.message
    assert not (tmp_path / "registry").exists()
    assert list(context.folder.iterdir()) == []


def test_scores_that_meet_their_thresholds_are_published(job, quick, tmp_path):
    made = job(publish=", require: {glue/mrpc.f1: '>= 0.8125'}")
    made.publish.run(made.context())
    assert (tmp_path / "registry/tiny/publication.json").exists()


def test_scores_of_another_model_do_not_count(job):
    made = job(publish=", require: {glue/mrpc.f1: '>= 0.5'}")
    details = made.folder / "stages/evaluate/details.json"
    record = json.loads(details.read_text())
    record["glue/mrpc"]["model"] = "somebody-else"
    details.write_text(json.dumps(record))
    with pytest.raises(PublishError, match="was not scored"):
        made.publish.run(made.context())


def test_the_same_fingerprint_is_not_published_twice(job, quick, tmp_path, monkeypatch):
    made = job()
    made.publish.run(made.context())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "registry").rglob("*")}
    shutil.rmtree(made.context().folder)
    context = made.context(open_model=None)  # would fail if anything were assembled
    made.publish.run(context)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "registry").rglob("*")} == before
    assert made.publish.still_there(context.folder)


def test_a_publication_that_was_deleted_or_changed_is_made_again(job, quick, tmp_path):
    made = job()
    context = made.context()
    made.publish.run(context)
    folder = tmp_path / "registry/tiny"
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"?")
    assert not made.publish.still_there(context.folder)
    made.publish.run(context)
    assert (folder / "model.safetensors").read_bytes() == weights
    shutil.rmtree(folder)
    assert not made.publish.still_there(context.folder)
    made.publish.run(context)
    assert made.publish.still_there(context.folder)


def test_another_working_folder_means_another_place(job, quick, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    made = job(to="registry/tiny")
    context = made.context()
    monkeypatch.chdir(tmp_path / "here")
    made.publish.run(context)
    assert made.publish.still_there(context.folder)
    monkeypatch.chdir(tmp_path / "there")
    assert not made.publish.still_there(context.folder)


def test_the_older_publication_stays_when_the_newer_cannot_be_verified(job, quick, tmp_path):
    made = job()
    made.publish.run(made.context("0" * 32))
    folder = tmp_path / "registry/tiny"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = made.folder / "stages/evaluate/predictions.parquet"
    table = pq.read_table(path)
    logits = table["logits"].to_pylist()
    logits[3][0] += 0.01
    pq.write_table(table.set_column(5, "logits", pa.array(logits, pa.list_(pa.float32()))), path)
    with pytest.raises(
        PublishError, match=r"does not reproduce its evaluation: a logit of 'glue/mrpc validation' differs by 0\.01"
    ):
        made.publish.run(made.context("1" * 32))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_publishing_twice_to_one_place_replaces_the_older(job, quick, tmp_path):
    made = job()
    made.publish.run(made.context("0" * 32))
    made.publish.run(made.context("1" * 32))
    assert json.loads((tmp_path / "registry/tiny/publication.json").read_text())["fingerprint"] == "1" * 32


def test_to_a_url(job, quick):
    import fsspec

    made = job(to="memory://shelf/tiny")
    context = made.context()
    made.publish.run(context)
    assert made.publish.still_there(context.folder)
    files = fsspec.filesystem("memory")
    assert json.loads(files.cat_file("/shelf/tiny/publication.json"))["complete"] is True
    files.rm("/shelf", recursive=True)
    assert not made.publish.still_there(context.folder)


def test_to_the_hub(job, hub, quick):
    made = job("bert", to="hub:ada/tiny", publish=", license: apache-2.0")
    context = made.context()
    made.publish.run(context)
    repository = hub.repositories["ada/tiny"]
    assert repository.private
    assert [len(names) > 5 for names in repository.commits] == [False, True, False]  # created; all files; the marker
    assert repository.commits[-1] == ["publication.json"]
    assert repository.large == {"model.safetensors"}
    assert made.publish.still_there(context.folder)
    del hub.repositories["ada/tiny"]
    assert not made.publish.still_there(context.folder)


def test_an_unreachable_hub_does_not_make_a_complete_stage_incomplete(job, quick, hub, monkeypatch):
    made = job(to="hub:ada/tiny")
    context = made.context()
    made.publish.run(context)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert made.publish.still_there(context.folder)


@pytest.mark.long
def test_a_published_checkpoint_loads_from_the_hub_by_the_two_lines_of_its_card(job, hub, tmp_path):
    """A real download in a process of its own, which has neither Finery nor any file of this run."""
    made = job("finery", to="hub:ada/tiny")
    made.publish.run(made.context())
    card = hub.repositories["ada/tiny"].files["README.md"].decode()
    code = card.split("```python\n")[1].split("```")[0]
    assert 'folder = "ada/tiny"' in code
    assert "modeling_finery.py" in hub.repositories["ada/tiny"].files
    script = (
        "import sys\nsys.modules['pipelines'] = None\n" + code + "print(type(model).__name__, model.config.id2label)\n"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": _token(),
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "FineryForSequenceClassification {0: 'not_equivalent', 1: 'equivalent'}" in done.stdout


def _token() -> str:
    return "hf_" + "stand" + "in" * 10


def test_a_pretrained_language_model_is_verified_on_fixed_sentences(language_model, quick, tmp_path):
    language_model.publish.run(language_model.context())
    proof = json.loads((tmp_path / "lm/publication.json").read_text())["verification"]
    assert proof["rows"] == 0
    assert proof["largest_difference_to_this_process"] < 1e-4
    text = (tmp_path / "lm/README.md").read_text()
    assert "AutoModelForMaskedLM" in text
    assert "its logits on fixed sentences differ" in text


def test_a_full_disk_is_one_sentence_and_leaves_nothing(job, quick, tmp_path, monkeypatch):
    import errno

    from pipelines.core.errors import DiskFull
    from pipelines.publishing import publish

    def no_space(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(publish, "write_sums", no_space)
    made = job()
    context = made.context()
    with pytest.raises(DiskFull, match="free some space"):
        made.publish.run(context)
    assert not (tmp_path / "registry").exists()
    assert list(context.folder.iterdir()) == []


def test_nothing_trained_before_is_a_mistake():
    assert mistakes("  - {stage: publish, to: x}\n") == [
        "stages.publish: has nothing to publish: no earlier stage trains a model; add a pretrain or supervised "
        "stage before it"
    ]


def test_a_reward_model_is_published_and_not_as_gguf():
    reward = "  - {stage: reward, from: model, datasets: [{path: builtin/python-docs, name: preferences}]}\n"
    loads(HEAD + MRPC + reward + "  - {stage: publish, to: x, from: reward}\n")
    found = mistakes(MRPC + reward + "  - {stage: publish, to: x, from: reward, export: [gguf]}\n")
    assert any("leaves a model with the head reward; write onnx, int8 or int4" in each for each in found)


def test_from_a_stage_that_trains_nothing_is_a_mistake():
    assert "Allowed: mrpc" in mistakes(MRPC + EVALUATE + "  - {stage: publish, to: x, from: evaluate}\n")[0]
    assert "Allowed: mrpc" in mistakes(MRPC + "  - {stage: publish, to: x, from: model}\n")[0]


def test_an_adapter_that_is_none_is_a_mistake():
    assert "trains every weight" in mistakes(MRPC + "  - {stage: publish, to: x, merge: false}\n")[0]


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ("{glue/mrpc.f1: 0.8}", "must be a comparison"),
        ("{glue/mrpc.f1: '=> 0.8'}", "allowed: >=, <=, ==, >, <"),
        ("{glue/mrpc.f1: '>= high'}", "'high' is not a number"),
        ("{glue/mrpc.f1: '>= 80'}", "write 0.8 for 80 %"),
        ("{f1: '>= 0.8'}", "write BENCHMARK.METRIC"),
        ("{glue/mrpc.acuracy: '>= 0.8'}", "Did you mean 'accuracy'?"),
        ("{glue/mrpc.spearmanr: '>= 0.8'}", "It has: accuracy, f1"),
        ("{glue/cola.matthews_correlation: '>= 0.8'}", "no earlier evaluate stage scores 'glue/cola'"),
        ("[glue/mrpc.f1]", "must be a mapping"),
    ],
)
def test_a_requirement_that_could_never_hold_is_found_before_anything_runs(require, words):
    found = mistakes(MRPC + EVALUATE + f"  - {{stage: publish, to: x, require: {require}}}\n")
    assert len(found) == 1
    assert words in found[0]
    assert found[0].startswith("stages.publish.require")


@pytest.mark.parametrize(
    ("task", "require", "words"),
    [
        ("kind: classification, columns: [text], label: label", "own.accuracy: '>= 80'", "write 0.8 for 80 %"),
        ("kind: qa", "own.f1: '>= 0.8'", "lie between 0 and 100; write 80"),
        ("kind: classification, columns: [text], label: label", "own.accuracy: '>= 0.8'", None),
        ("kind: qa", "own.f1: '>= 80'", None),
    ],
)
def test_the_units_of_a_task_in_place_are_known_too(tmp_path, task, require, words):
    (tmp_path / "rows.csv").write_text("text,label\na,0\nb,1\n")
    own = f"  - {{stage: supervised, id: own, from: model, task: {{{task}, train: {tmp_path / 'rows.csv'}}}}}\n"
    text = own + EVALUATE + f"  - {{stage: publish, to: x, from: own, require: {{{require}}}}}\n"
    if words is None:
        loads(HEAD + text)
    else:
        (found,) = mistakes(text)
        assert words in found


def test_every_bad_requirement_is_named_at_once():
    found = mistakes(MRPC + EVALUATE + "  - {stage: publish, to: 'x://', require: {glue/mrpc.f1: '? 1', f1: '> 1'}}\n")
    assert len(found) == 2


def test_a_requirement_on_the_other_model_is_a_mistake():
    found = mistakes(MRPC + COLA + EVALUATE + "  - {stage: publish, to: x, require: {glue/mrpc.f1: '>= 0.8'}}\n")
    assert "scored on the model of mrpc, but this stage publishes the model of 'cola'" in found[0]


def test_a_stage_reads_its_model_first_and_every_evaluation():
    recipe = loads(HEAD + MRPC + EVALUATE + COLA + EVALUATE + "  - {stage: publish, to: x, from: mrpc}\n")
    assert recipe.stages[-1].reads(recipe) == ("mrpc", "evaluate", "evaluate-2")


def test_validation_imports_neither_torch_nor_a_client():
    code = (
        "import sys\nfrom pipelines.core.load import loads\n"
        f"loads({HEAD + MRPC + EVALUATE + '  - {stage: publish, to: x}'!r})\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'fsspec', 'jinja2', 'pyarrow') if "
        "name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.strip() == "[]"


MASKS = {"family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True}
LEARNT: list[tuple[str, str, dict[str, Any]]] = [
    ("finery", "masked_lm", {}),
    ("finery", "next_sentence", {}),
    ("finery", "replaced_token_detection", {}),
    ("finery", "causal_lm", {"family": "decoder", "position": "alibi"}),
    ("finery", "prefix_lm", {"family": "decoder"}),
    ("finery", "span_corruption", {"family": "encoder-decoder", "position": "relative"}),
    ("finery", "mask_predict", MASKS),
    ("gpt2", "causal_lm", {}),
    ("llama", "causal_lm", {}),
    ("xlnet", "permutation_lm", {}),
    ("bert", "sentence_order", {}),
    ("albert", "sentence_order", {}),
    ("electra", "replaced_token_detection", {}),
    ("t5", "span_corruption", {}),
    ("bart", "denoising", {}),
    ("bart", "seq2seq", {}),
]


@pytest.mark.parametrize(
    ("model_type", "objective", "words"),
    covering(LEARNT, name=lambda model_type, objective, _: f"{model_type}-{objective}"),
)
def test_what_an_objective_leaves_is_published_and_runs_by_the_lines_of_its_card(
    pretrained, quick, capsys, monkeypatch, model_type, objective, words
):
    made = pretrained(model_type, objective, **words)
    context = made.context()
    made.publish.run(context)
    folder = Path(made.publish.to)
    record = json.loads((folder / "publication.json").read_text())
    assert record["verification"]["largest_difference_to_this_process"] <= 1e-4
    assert (record["verification"]["texts"], record["verification"]["written"]) == (5, False)
    text = (folder / "README.md").read_text()
    assert f"pipeline_tag: {HEAD_CLASSES[context.recipe.stages[0].objective.head.kind].pipeline_tag}" in text
    assert ("trust_remote_code=True" in text) == (model_type == "finery")
    names: dict[str, Any] = {}
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), names)
    assert capsys.readouterr().out.strip() or "written" in names
    here = context.open_model(Head(made.recipe.stages[0].objective.head.kind), trained_head=True)
    assert {name: weight.shape for name, weight in names["model"].named_parameters()} == {
        name: weight.shape for name, weight in here.named_parameters()
    }


@pytest.mark.parametrize(
    ("model_type", "objective", "merge"), [("gpt2", "causal_lm", True), ("t5", "span_corruption", False)]
)
def test_an_adapter_on_a_language_model_is_published_both_ways(pretrained, quick, model_type, objective, merge):
    made = pretrained(model_type, objective, "{name: lora, r: 2}", "" if merge else ", merge: false")
    made.publish.run(made.context())
    record = json.loads((Path(made.publish.to) / "publication.json").read_text())
    assert 0 <= record["verification"]["largest_difference_by_merging"] < 1e-4
    assert (Path(made.publish.to) / "base/config.json").is_file() != merge


@pytest.mark.parametrize(
    ("model_type", "objective", "output"),
    [
        ("t5", "span_corruption", "decoder.final_layer_norm.weight"),
        ("bert", "next_sentence", "cls.seq_relationship.bias"),
        ("finery", "mask_predict", "lm_head.weight"),
    ],
)
def test_weights_that_were_saved_wrong_are_noticed_behind_every_output(
    pretrained, quick, monkeypatch, model_type, objective, output
):
    from pipelines.publishing import assemble

    save = assemble._save

    def spoilt(model: Any, folder: Path) -> None:
        dict(model.named_parameters(remove_duplicate=False))[output].data += 0.05
        save(model, folder)

    monkeypatch.setattr(assemble, "_save", spoilt)
    made = pretrained(model_type, objective, **(MASKS if objective == "mask_predict" else {}))
    with pytest.raises(PublishError, match="changed when it was saved"):
        made.publish.run(made.context())
    assert not Path(made.publish.to).exists()


def test_with_a_key_it_is_signed_and_an_unsigned_one_is_made_again(job, quick, tmp_path, monkeypatch):
    minisign = pytest.importorskip("minisign")
    from pipelines.publishing import signature

    made = job()
    made.publish.run(made.context())
    place = tmp_path / "registry/tiny"
    assert not (place / signature.SIGNATURE).exists()
    pair = minisign.KeyPair.generate()
    (tmp_path / "key.pub").write_bytes(bytes(pair.public_key))
    key = pair.secret_key
    key.encrypt("open")
    (tmp_path / "secret.key").write_bytes(bytes(key))
    monkeypatch.setenv(signature.KEY, str(tmp_path / "secret.key"))
    with pytest.raises(PublishError, match="has a password; give it in FINERY_SIGNING_PASSWORD"):
        made.publish.run(made.context())
    monkeypatch.setenv(signature.PASSWORD, "wrong")
    with pytest.raises(PublishError, match="FINERY_SIGNING_PASSWORD does not open the key"):
        made.publish.run(made.context())
    assert not (place / signature.SIGNATURE).exists()
    monkeypatch.setenv(signature.PASSWORD, "open")
    made.publish.run(made.context())
    assert signature.mistake(place, signature.public_key(str(tmp_path / "key.pub"))) is None
    assert signature.SIGNATURE in json.loads((place / "publication.json").read_text())["checksums"]
    before = (place / "publication.json").stat().st_mtime_ns
    made.publish.run(made.context())
    assert (place / "publication.json").stat().st_mtime_ns == before
    assert made.publish.still_there(made.context().folder)
    other = minisign.KeyPair.generate()
    (tmp_path / "other.key").write_bytes(bytes(other.secret_key))
    monkeypatch.setenv(signature.KEY, str(tmp_path / "other.key"))
    assert not made.publish.still_there(made.context().folder)
    made.publish.run(made.context())
    assert signature.mistake(place, other.public_key) is None
    assert signature.mistake(place, pair.public_key) is not None
    monkeypatch.setenv(signature.KEY, str(tmp_path / "key.pub"))
    for ask in (
        lambda: signature.sign(place / "SHA256SUMS"),
        lambda: made.publish.still_there(made.context().folder),
        lambda: made.publish.run(made.context()),
    ):
        with pytest.raises(PublishError, match="is no readable secret key of minisign"):
            ask()
    assert signature.mistake(place, other.public_key) is None


def test_an_older_publication_is_completed(job, quick, tmp_path):
    made = job()
    made.publish.run(made.context())
    marker = tmp_path / "registry/tiny/publication.json"
    record = json.loads(marker.read_text())
    del record["contents"]
    marker.write_text(json.dumps(record))
    made.publish.run(made.context())
    assert json.loads(marker.read_text())["contents"] == 3
