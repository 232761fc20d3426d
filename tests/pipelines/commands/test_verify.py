"""A published folder that was touched is told from one that was not, by checksums, by its card, and by its scores."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.verify import answer
from pipelines.core.errors import CommandError
from pipelines.core.results import MARKER
from pipelines.publishing import signature
from pipelines.publishing.destinations.destination import SUMS, checksums_of, sha256_of
from pipelines.publishing.hub_metadata import EVAL_RESULTS
from tests.clean_process import forked_proofs
from tests.covering import LONG
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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the run's publication that may be changed."""
    return Path(shutil.copytree(finished().root / "published", tmp_path / "copy"))


def verified(folder: Path, **fields: Any) -> dict[str, Any]:
    return dict(answer({"folder": str(folder), **fields}))


def write_sums_again(folder: Path) -> None:
    """What somebody does who changes a file and knows how checksums work."""
    marker = json.loads((folder / MARKER).read_text())
    (folder / SUMS).unlink()
    sums = checksums_of(folder)
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    marker["checksums"] = sums | {SUMS: sha256_of(folder / SUMS)}
    (folder / MARKER).write_text(json.dumps(marker))


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_a_publication_as_it_was_published_scores_what_it_says(copy):
    told = verified(copy)
    assert told["problems"] == []
    assert told["verified"]
    stated = finished().scores["glue/mrpc"]
    assert {(each["benchmark"], each["metric"]): each["measured"] for each in told["scores"]} == {
        ("glue/mrpc", metric): value for metric, value in stated.items()
    }
    assert told["differences"] == []  # so every digit had to be the same
    assert any("prove integrity, not origin" in note for note in told["notes"])
    assert not told["signed"]


def test_without_its_data_the_checksums_are_checked_and_that_is_said(copy, tmp_path, patch):
    patch.chdir(tmp_path)
    patch.delenv("FINERY_DATA")
    told = verified(copy)
    assert told["verified"]
    assert told["scores"] == []
    assert told["notes"][1:2] == ["the scores were not measured again"]
    assert told["notes"][2].startswith("mine.csv (SHA-256 ")
    assert "its data is not at hand: data set 'nyu-mll/glue' was not found" in told["notes"][3]


@pytest.mark.parametrize("named", [True, False])
def test_what_no_score_reads_may_be_missing_and_data_sets_lie_in_the_folder_of_data_too(copy, tmp_path, patch, named):
    """Not `mine.csv`, which another stage learnt from."""
    patch.chdir(tmp_path)
    if named:
        patch.delenv("FINERY_DATA")
    told = verified(copy, data=str(finished().root / "data") if named else None)
    assert (told["problems"], len(told["scores"])) == ([], 2)


def test_other_data_than_was_read_is_not_scored(copy, tmp_path, patch):
    shutil.copytree(finished().root / "data", tmp_path / "data")
    file = next((tmp_path / "data").rglob("*mrpc*/validation*"))
    file.write_bytes(next((tmp_path / "data").rglob("*mrpc*/train*")).read_bytes())
    patch.setenv("FINERY_DATA", str(tmp_path / "data"))
    told = verified(copy)
    assert told["scores"] == []
    assert "its data is missing here, or is not the data that was read (glue/mrpc:validation)" in told["notes"][-1]


def a_byte(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def in_the_card(folder: Path) -> None:
    value = json.loads((folder / "manifest.json").read_text())["scores"][0]["metrics"]["accuracy"]
    replace(folder / "README.md", f"| accuracy | {value:.4f} |", "| accuracy | 0.9990 |")


def in_the_metadata(folder: Path) -> None:
    value = json.loads((folder / "manifest.json").read_text())["scores"][0]["metrics"]["accuracy"]
    replace(folder / "README.md", f"value: {value}\n      name: accuracy", "value: 0.999\n      name: accuracy")


def in_eval_results(folder: Path) -> None:
    value = json.loads((folder / "manifest.json").read_text())["scores"][0]["metrics"]["accuracy"]
    replace(folder / EVAL_RESULTS, f"value: {value}", "value: 0.999")


def in_the_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def everywhere(folder: Path) -> None:
    for change in (in_the_card, in_the_metadata, in_eval_results):
        change(folder)
    in_the_manifest(folder, lambda manifest: manifest["scores"][0]["metrics"].update(accuracy=0.999))


def another_row(before: str) -> Callable[[Path], None]:
    """A row of the card that says more than was measured, in front of what stands there."""
    return lambda folder: replace(folder / "README.md", before, f"| glue/mrpc | f1 | 0.9990 | – |\n{before}")


def another_result(folder: Path) -> None:
    more = "model-index:\n- name: more\n  results:\n  - dataset: {name: glue/sst2}\n    metrics: [{name: accuracy, value: 0.999}]\n"
    replace(folder / "README.md", "model-index:\n", more)


def not_a_number(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: tensor * float("nan") for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])


@pytest.mark.parametrize(
    ("change", "again", "sentence"),
    [
        (a_byte, False, "'model.safetensors' was changed: its SHA-256 is not the published one"),
        (lambda folder: (folder / "tokenizer.json").unlink(), False, "'tokenizer.json' is missing"),
        (lambda folder: (folder / MARKER).unlink(), False, f"'{MARKER}' is missing"),
        (lambda folder: (folder / SUMS).unlink(), False, f"'{SUMS}' is missing"),
        (
            lambda folder: (folder / "sitecustomize.py").write_text("raise SystemExit"),
            False,
            "'sitecustomize.py' lies in the folder and was not published, and Python would import it",
        ),
        (in_the_card, False, "'README.md' was changed: its SHA-256 is not the published one"),
        (in_the_card, True, "'README.md' states 0.9990 for accuracy of glue/mrpc, 'manifest.json' 0."),
        (
            in_the_metadata,
            True,
            "the metadata of 'README.md' states 0.999 for accuracy of glue/mrpc, 'manifest.json' 0.",
        ),
        (in_eval_results, True, f"'{EVAL_RESULTS}' states other scores than 'manifest.json'"),
        (lambda folder: (folder / EVAL_RESULTS).unlink(), True, f"'{EVAL_RESULTS}' states other scores"),
        (another_row("| glue/mrpc | f1 |"), True, "'README.md' states f1 of glue/mrpc 2 times"),
        (
            another_row("## How to use it"),
            True,
            "'README.md' has a row of figures outside of its tables of scores: glue",
        ),
        (
            another_result,
            True,
            "the metadata of 'README.md' states 0.999 for accuracy of glue/sst2, 'manifest.json' nothing",
        ),
        (
            lambda folder: in_the_manifest(folder, lambda manifest: manifest.update(scores=[])),
            True,
            "'README.md' states 0.",
        ),
        (lambda folder: (folder / "README.md").unlink(), True, "'README.md' is missing, which every publication holds"),
        (
            lambda folder: (folder / "manifest.json").unlink(),
            True,
            "'manifest.json' is missing, which every publication",
        ),
        (
            lambda folder: (folder / "recipe.yaml").write_text("[a"),
            True,
            "'recipe.yaml' cannot be read: is not valid YAML",
        ),
        (
            lambda folder: replace(folder / "recipe.yaml", "stage: evaluate", "stage: evaluates"),
            True,
            "'recipe.yaml' cannot be run, so no score can be measured again: ",
        ),
        (cut, True, "what 'evaluate' measured cannot be measured again: "),
        (not_a_number, True, "what 'evaluate' measured cannot be measured again: the model gives NaN or infinity"),
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            True,
            "what 'evaluate' measured cannot be measured again: no tokenizer could be opened",
        ),
        (
            lambda folder: (folder / "config.json").write_text("{}"),
            True,
            "what 'evaluate' measured cannot be measured again: ",
        ),
        (
            lambda folder: in_the_manifest(folder, lambda manifest: manifest["scores"][0].update(stage="gone")),
            True,
            "what 'gone' measured cannot be measured again: 'recipe.yaml' has no such evaluate stage",
        ),
        (everywhere, True, "accuracy of glue/mrpc is stated as 0.999, and measured again it is 0."),
        (
            lambda folder: (folder / "manifest.json").write_text('{"scores": [7], "sources": []}'),
            True,
            "'manifest.json' is not as Finery writes it",
        ),
    ],
)
def test_whatever_was_changed_is_one_sentence(copy, change, again, sentence):
    change(copy)
    if again:
        write_sums_again(copy)
    told = verified(copy)
    assert not told["verified"]
    assert [each for each in told["problems"] if each.startswith(sentence)], told["problems"]


def test_what_the_hubs_client_leaves_is_no_change(copy):
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (copy / ".cache/huggingface").mkdir(parents=True)
    (copy / ".cache/huggingface/x.metadata").write_text("x")
    assert verified(copy)["verified"]


def test_a_link_is_no_published_file(copy, tmp_path):
    (tmp_path / "other").mkdir()
    (copy / "more").symlink_to(tmp_path / "other")
    assert verified(copy)["problems"] == ["'more' lies in the folder and was not published"]


def test_an_older_publication_has_its_checksums_checked(copy):
    make_older(copy)
    told = verified(copy)
    assert told["verified"]
    assert "publish the run again" in told["notes"][-1]


def make_older(folder: Path) -> None:
    """As Finery published before scores and sources stood in manifests."""
    in_the_manifest(folder, lambda manifest: [manifest.pop(key) for key in ("scores", "sources", "model")])
    marker = json.loads((folder / MARKER).read_text())
    del marker["contents"]
    (folder / MARKER).write_text(json.dumps(marker))
    write_sums_again(folder)


def test_a_publication_of_today_is_not_taken_for_an_older_one(copy):
    in_the_manifest(copy, lambda manifest: [manifest.pop(key) for key in ("scores", "sources", "model")])
    write_sums_again(copy)
    assert verified(copy)["problems"] == ["'manifest.json' is not as Finery writes it: model: Field required"]


def test_scores_of_exports_are_the_same_in_card_manifest_and_folder(copy):
    score = {"benchmark": "glue/mrpc", "metric": "f1", "published": 0.5, "exported": 0.25}
    about = {"largest_difference": 0.1, "same_best": 1.0, "rows": 8}
    record = {"form": "int8", "bytes": 10, "agreement": about, "scores": [score], "notes": []}
    in_the_manifest(copy, lambda manifest: manifest["exports"].append({"folder": "int8", **record}))
    (copy / "int8").mkdir()
    (copy / "int8/export.json").write_text(json.dumps(record))
    (copy / "int8/README.md").write_text("| glue/mrpc | f1 | 0.5000 | 0.2500 |\n")
    row = "| int8 | 0.0 MB | 1.0e-01 | 100% of 8 | glue/mrpc | f1 | 0.5000 | 0.2500 |"
    replace(copy / "README.md", "## How it was made", f"## In other forms\n\n{row}\n\n## How it was made")
    write_sums_again(copy)
    told = verified(copy)
    assert told["problems"] == []
    assert told["notes"][-1] == "the scores of its exports (int8) were not measured again"
    replace(
        copy / "README.md",
        "100% of 8 | glue/mrpc | f1 | 0.5000 | 0.2500 |",
        "100% of 8 | glue/mrpc | f1 | 0.5000 | 0.5000 |",
    )
    replace(copy / "int8/README.md", "0.2500", "0.5000")
    write_sums_again(copy)
    assert verified(copy)["problems"] == [
        "'README.md' states other scores of its exports than 'manifest.json'",
        "the export in 'int8' states other scores than 'manifest.json'",
    ]


@pytest.mark.parametrize(
    "source",
    [
        {"path": "zzz", "kind": "pattern", "files": {"a": {"sha256": "0" * 64, "bytes": 1}}},
        {"path": "/zzz", "kind": "file", "files": {}},
        {"path": "a", "kind": "folder", "files": {"../b": {"sha256": "0" * 64, "bytes": 1}}},
        {"path": "a", "kind": "folder", "files": {"b": {"sha256": "0" * 64, "bytes": -1}}},
        {"path": 7, "kind": "file", "files": {}},
    ],
)
def test_sources_that_finery_does_not_write_are_one_sentence(copy, source):
    in_the_manifest(copy, lambda manifest: manifest["sources"].append(source))
    write_sums_again(copy)
    (sentence,) = verified(copy)["problems"]
    assert sentence.startswith("'manifest.json' is not as Finery writes it: sources.1")


@pytest.mark.wider
def test_whatever_stands_at_a_key_of_the_manifest_is_one_sentence_and_no_crash(copy, patch):
    """Values of wrong types in place of each part; nothing is scored for them."""
    from pipelines.commands import verify

    def not_done(*words: object) -> None:
        raise CommandError("not done")

    patch.setattr(verify, "measure", not_done)
    before = json.loads((copy / "manifest.json").read_text())
    drawn = random.Random(3)
    places = [place for place in places_in(before) if place and place[0] not in ("versions", "environment")]
    values = (
        None,
        True,
        -1,
        10**400,
        1.5,
        float("nan"),
        "",
        "*",
        "x" * 300,
        "\ud800",
        [],
        [1],
        [[]],
        {},
        {"": {}},
        {"a": 1},
    )
    for place in drawn.sample(places, 80)[: None if os.environ.get(LONG) else 16]:
        manifest = json.loads(json.dumps(before))
        part = manifest
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = drawn.choice(values)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        write_sums_again(copy)
        told = verified(copy)
        assert all(len(each.splitlines()) == 1 for each in told["problems"])
        json.dumps(told, ensure_ascii=False).encode()


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each part of plain data."""
    yield place
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(each, (*place, key))


def test_a_signal_stops_and_is_no_verdict(copy, patch):
    from pipelines.commands import verify
    from pipelines.core.errors import Stopped

    def stopped(*words: object) -> None:
        raise Stopped("stopped by SIGINT")

    patch.setattr(verify, "measure", stopped)
    with pytest.raises(Stopped):
        verified(copy)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"folder": "nowhere"}, "is no folder"),
        ({"folder": "runs/finished"}, "is no publication of Finery: it has neither"),
        ({"data": "nowhere"}, "--data 'nowhere' is no folder"),
    ],
)
def test_a_wrong_command_is_one_sentence(fields, sentence, copy):
    with pytest.raises(CommandError, match=sentence) as refused:
        answer({"folder": str(copy)} | fields)
    assert refused.value.exit_code == 2


def test_code_of_the_folder_runs_only_where_that_is_said(copy, patch):
    from transformers import CONFIG_MAPPING

    config = json.loads((copy / "config.json").read_text())
    (copy / "modeling_theirs.py").write_text("raise SystemExit('it ran')\n")
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "modeling_theirs.Theirs"}}
    (copy / "config.json").write_text(json.dumps(config))
    write_sums_again(copy)
    assert "theirs" not in CONFIG_MAPPING
    told = verified(copy)
    assert told["scores"] == []
    assert "read it, then give --trust-remote-code" in told["notes"][-1]
    with pytest.raises(SystemExit, match="it ran"):
        verified(copy, trust_remote_code=True)


def test_a_signature_is_of_one_key_and_of_every_file(copy, tmp_path, patch):
    minisign = pytest.importorskip("minisign")
    pair, other = minisign.KeyPair.generate(), minisign.KeyPair.generate()
    (tmp_path / "secret.key").write_bytes(bytes(pair.secret_key))
    (tmp_path / "key.pub").write_bytes(bytes(pair.public_key))
    key = str(tmp_path / "key.pub")
    assert verified(copy, public_key=key)["problems"] == [f"it is not signed: there is no {signature.SIGNATURE}"]
    patch.setenv(signature.KEY, str(tmp_path / "secret.key"))
    marker = json.loads((copy / MARKER).read_text())
    marker["checksums"] |= signature.sign(copy / SUMS)
    (copy / MARKER).write_text(json.dumps(marker))
    told = verified(copy, public_key=key)
    assert (told["problems"], told["signed"]) == ([], True)
    line = (tmp_path / "key.pub").read_text().splitlines()[1]
    assert verified(copy, public_key=line)["signed"]
    assert any("was not checked" in note for note in verified(copy)["notes"])
    wrong = verified(copy, public_key=other.public_key.to_base64().decode())
    assert wrong["problems"] == [f"{signature.SIGNATURE} is no signature of {SUMS} by this key"]
    kept = (copy / signature.SIGNATURE).read_bytes()
    a_byte(copy)
    (copy / signature.SIGNATURE).unlink()
    write_sums_again(copy)
    (copy / signature.SIGNATURE).write_bytes(kept)  # checksums are right, and no longer what was signed
    marker = json.loads((copy / MARKER).read_text())
    marker["checksums"][signature.SIGNATURE] = sha256_of(copy / signature.SIGNATURE)
    (copy / MARKER).write_text(json.dumps(marker))
    assert verified(copy, public_key=key)["problems"] == wrong["problems"]


def test_a_key_that_is_none_is_a_wrong_command(copy):
    pytest.importorskip("minisign")
    with pytest.raises(CommandError, match="is neither a file with a public key"):
        verified(copy, public_key="nonsense")


def test_without_the_library_that_is_said(copy, patch):
    patch.setitem(sys.modules, "minisign", None)
    with pytest.raises(CommandError, match="pip install 'finery\\[sign\\]'"):
        verified(copy, public_key="RW")
