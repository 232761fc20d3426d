"""Every data set that led to a model, whoever names it in whatever way, with its licence."""

from __future__ import annotations

from pathlib import Path

from pipelines.core.load import loads
from pipelines.publishing.learnt_data import data_of, on_the_hub, rows


def test_data_sets_of_texts_tasks_and_benchmarks_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    recipe = loads(
        f"""name: t
model: {{architecture: {{preset: bert-tiny}}}}
stages:
  - {{stage: pretrain, datasets: [{{path: builtin/python-docs}}, {{path: ada/novels, license: cc0-1.0}}]}}
  - {{stage: supervised, id: mrpc, task: glue/mrpc}}
  - stage: supervised
    id: mine
    task: {{kind: classification, columns: [text], label: label, train: {tmp_path}/train.csv, license: mit}}
  - {{stage: evaluate, benchmarks: [mine]}}
"""
    )
    found = data_of(recipe, recipe.stages, ["mine", "glue/mrpc", "squad"])
    assert [(each["path"], each["name"], each["stages"], each["license"]) for each in found] == [
        ("builtin/python-docs", None, ["pretrain"], "psf-2.0"),
        ("ada/novels", None, ["pretrain"], "cc0-1.0"),
        ("nyu-mll/glue", "mrpc", ["mrpc", "evaluate"], "other"),
        (f"{tmp_path}/train.csv", None, ["mine"], "mit"),
        ("rajpurkar/squad", "plain_text", ["evaluate"], "cc-by-sa-4.0"),
    ]
    assert [each["stated_by"] for each in found][:3] == ["Python", "the recipe", "Finery's file of the benchmark"]
    published = [{**each, "path": each["path"].replace(f"{tmp_path}/", "r/")} for each in found]
    assert published[3]["path"] == "r/train.csv"  # which looks like an id of the Hub
    assert on_the_hub(published) == ["ada/novels", "nyu-mll/glue", "rajpurkar/squad"]
    assert rows(found)[2]["data"] == "`nyu-mll/glue` (mrpc)"


def test_prompts_people_and_passages_are_data_too() -> None:
    recipe = loads(
        """name: t
model: {checkpoint: ada/tiny}
stages:
  - stage: feedback
    prompts: {path: ada/questions, license: mit}
    judge: {name: rule, prefer: {name: length}}
    human: {path: ada/people, license: cc0-1.0}
  - {stage: evaluate, benchmarks: [squad], retrieval: {name: bm25, passages: {path: ada/passages, license: pddl}}}
"""
    )
    found = data_of(recipe, recipe.stages, [])[1:]
    assert [(each["path"], each["license"]) for each in found if each["stages"] != ["evaluate"]] == [
        ("ada/questions", "mit"),
        ("ada/people", "cc0-1.0"),
    ]
    assert ("ada/passages", "pddl") in [(each["path"], each["license"]) for each in found]


def test_the_checkpoint_that_it_began_with_has_a_licence_too(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "bert"}')
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    recipe = loads(f"name: t\nmodel: {{checkpoint: {base}}}\nstages: [{{stage: supervised, task: glue/mrpc}}]\n")
    start = data_of(recipe, recipe.stages, [])[0]
    assert (start["role"], start["license"], start["stated_by"]) == ("checkpoint", "apache-2.0", "the README beside it")
    assert rows([start])[0] == {
        "data": "`base`", "stages": "the start", "license": "apache-2.0", "stated_by": "the README beside it"
    }  # fmt: skip
