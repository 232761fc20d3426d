"""A published folder that was touched is told from one that was not, by checksums, by its card, and by its scores."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.verify import answer
from pipelines.core.errors import CommandError
from pipelines.publishing import signature
from pipelines.publishing.destinations.destination import MARKER, SUMS, checksums_of, sha256_of
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
    told = verified(copy)
    assert told["verified"]
    assert told["scores"] == []
    assert told["notes"][1:2] == ["the scores were not measured again"]
    assert told["notes"][2].startswith("mine.csv (SHA-256 ")
    given = verified(copy, data=str(finished().root))
    assert {each["metric"] for each in given["scores"]} == {"accuracy", "f1"}


def test_other_data_than_was_read_is_not_scored(copy, tmp_path, patch):
    shutil.copytree(finished().root / "data", tmp_path / "data")
    file = next((tmp_path / "data").rglob("*mrpc*/validation*"))
    file.write_bytes(next((tmp_path / "data").rglob("*mrpc*/train*")).read_bytes())
    patch.setenv("FINERY_DATA", str(tmp_path / "data"))
    told = verified(copy)
    assert told["scores"] == []
    assert "its data here is not the data that was read (glue/mrpc:validation)" in told["notes"][-1]


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


def in_card_and_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    value = manifest["scores"][0]["metrics"]["accuracy"]
    in_the_card(folder)
    in_the_metadata(folder)
    manifest["scores"][0]["metrics"]["accuracy"] = 0.999
    assert value != 0.999
    (folder / "manifest.json").write_text(json.dumps(manifest))


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
        (in_card_and_manifest, True, "accuracy of glue/mrpc is stated as 0.999, and measured again it is 0."),
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
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["scores"], manifest["sources"], manifest["model"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    write_sums_again(copy)
    told = verified(copy)
    assert told["verified"]
    assert "publish the run again" in told["notes"][-1]


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
