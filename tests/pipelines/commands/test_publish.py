"""Publishing a finished run gives what its publish stage would have given."""

from __future__ import annotations

import json

import pytest

from pipelines.commands.publish import answer
from pipelines.core.errors import CommandError, PublishError, RecipeError
from tests.clean_process import forked_proofs
from tests.finished_run import finished, inside

STAGE = "runs/finished/stages/01-para"


@pytest.fixture(autouse=True)
def _there():
    with inside(finished().root), forked_proofs():
        yield


def test_a_stage_is_published_as_the_run_published_it(tmp_path):
    told = answer({"source": STAGE, "to": str(tmp_path / "again"), "require": {"glue/mrpc.accuracy": ">= 0"}})
    assert told["location"] == str(tmp_path / "again")
    assert told["model"] == "para"
    here, there = (
        json.loads((folder / "publication.json").read_text())
        for folder in (tmp_path / "again", finished().root / "published")
    )
    assert here["complete"]
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert here["checksums"][name] == there["checksums"][name]
    assert here["verification"]["rows"] == there["verification"]["rows"] == 16
    card = (tmp_path / "again" / "README.md").read_text()
    assert f"{finished().scores['glue/mrpc']['accuracy']:.3f}" in card
    again = answer({"source": STAGE, "to": str(tmp_path / "again"), "require": {"glue/mrpc.accuracy": ">= 0"}})
    assert again["location"] == told["location"]
    assert json.loads((tmp_path / "again" / "publication.json").read_text()) == here  # it lay there already


def test_a_requirement_that_is_not_met_publishes_nothing(tmp_path):
    with pytest.raises(
        PublishError, match=r"nothing was published, because glue/mrpc.accuracy is .*, must be >= 0.999"
    ):
        answer({"source": STAGE, "to": str(tmp_path / "no"), "require": {"glue/mrpc.accuracy": ">= 0.999"}})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"source": "runs/gone"}, "neither a finished run nor one of its stages"),
        ({"source": "published"}, "is published already"),
        ({"source": "runs/finished/stages/06-evaluate"}, "'evaluate' is no stage that trains a model"),
        (
            {"source": "runs/finished/stages/04-several"},
            "leaves a model for each task; name one: several/rte, several/stsb",
        ),
        ({"require": {"glue/mrpc.f2": ">= 0"}}, "--require glue/mrpc.f2 unknown metric 'f2'"),
        ({"require": {"glue/sst2.accuracy": ">= 0"}}, "no earlier evaluate stage scores 'glue/sst2'"),
        ({"require": {"glue/mrpc.f1": "0.8"}}, "write an operator and a number"),
        ({"to": ""}, "--to"),
    ],
)
def test_what_cannot_be_published_is_one_sentence(tmp_path, request_, sentence):
    with pytest.raises((CommandError, RecipeError), match=sentence) as refused:
        answer({"source": STAGE, "to": str(tmp_path / "x")} | request_)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_run_that_is_not_finished_is_one_sentence(tmp_path):
    run = tmp_path / "runs" / "half"
    (run / "stages").mkdir(parents=True)
    (run / "recipe.yaml").write_bytes((finished().run / "recipe.yaml").read_bytes())
    with pytest.raises(CommandError, match="is not finished: 'tokenizer' is not complete; finish it: finery resume"):
        answer({"source": str(run), "to": str(tmp_path / "x")})
