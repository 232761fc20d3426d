"""A licence is what somebody states, and nothing else: a README's header, a card of the Hub, or nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from pipelines.core.load import loads
from pipelines.data.licences import licence_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def in_cache(cache: Path, kind: str, name: str, text: str) -> None:
    """A card as the client keeps it."""
    place = cache / f"{kind}s--{name.replace('/', '--')}"
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    (place / "snapshots" / COMMIT / "README.md").write_text(text)
    (place / "refs").mkdir()
    (place / "refs/main").write_text(COMMIT)


def test_cards_of_the_hub_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("FINERY_DATA", raising=False)
    in_cache(tmp_path, "dataset", "ada/rows", "---\nlicense: [CC-BY-4.0, mit]\n---\n")
    in_cache(tmp_path, "model", "ada/rows", "---\nlicense: apache-2.0\n---\n")
    in_cache(tmp_path, "dataset", "ada/silent", "---\nlicense: unknown\n---\n")
    assert licence_of("ada/rows") == ("cc-by-4.0, mit", "its card on the Hub")
    assert licence_of("ada/rows", kind="model") == ("apache-2.0", "its card on the Hub")
    assert licence_of("ada/silent") == ("unknown", "its card on the Hub does not say")
    assert licence_of("ada/absent") == ("unknown", "its card on the Hub could not be read")


def test_a_copy_in_finery_data_and_a_folder_say_it_in_their_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, header in (("rows", "license: cc0-1.0"), ("plain", "title: x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text('{"text": "a"}\n')
        (tmp_path / name / "README.md").write_text(f"---\n{header}\n---\n")
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    assert licence_of("ada/rows") == ("cc0-1.0", "its local copy's README")
    assert licence_of(str(tmp_path / "rows/train.jsonl")) == ("cc0-1.0", "the README beside it")
    assert licence_of(str(tmp_path / "plain")) == ("unknown", "no README beside it says")
    assert licence_of("builtin/python-docs") == ("psf-2.0", "Python")


def test_a_stated_licence_is_no_part_of_a_stage_s_identity() -> None:
    text = "name: t\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages: [{{stage: pretrain, datasets: [{}]}}]\n"
    stated, silent = (
        loads(text.format(each)).stages[0]
        for each in ("{path: builtin/python-docs, license: psf-2.0}", "{path: builtin/python-docs}")
    )
    assert stated.plain() != silent.plain()
    assert stated.identity() == silent.identity()
