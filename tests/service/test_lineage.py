"""Where a version comes from, as its publication tells it, whatever a job wrote there."""

import json

import pytest

from service.lineage import lineage_of
from service.store.models import PublishedModel
from service.store.store import Store

RECIPE = """\
name: demo
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: {name: wordpiece}, vocab_size: 2000}
stages:
- {stage: pretrain, id: pretrain, objective: {name: masked_lm}, datasets: [{path: novels}, {path: wiki, name: en}]}
- {stage: supervised, id: mrpc, task: glue/mrpc, tuner: {name: lora, r: 2}}
- {stage: ppo, id: ppo, reward: {name: model, checkpoint: "model:judge@4"}, prompts: {path: "file:file-1"}}
- {stage: evaluate, id: evaluate}
- {stage: publish, id: publish, to: demo}
"""
STAGES = [
    {"id": "pretrain", "stage": "pretrain", "fingerprint": "1", "inputs": ["t"], "data": {"a": "aa" * 32, "b": "bb" * 32}},
    {"id": "mrpc", "stage": "supervised", "fingerprint": "2", "inputs": ["t", "1"], "data": {"train": "cc" * 32}},
    {"id": "ppo", "stage": "ppo", "fingerprint": "3", "inputs": ["t", "2"], "data": {}},
    {"id": "evaluate", "stage": "evaluate", "fingerprint": "4", "inputs": ["3"]},
]  # fmt: skip


@pytest.fixture
def store(migrated_sqlite):
    opened = Store(f"sqlite:///{migrated_sqlite}")
    yield opened
    opened.close()


def written(tmp_path, manifest, recipe=RECIPE):
    (tmp_path / "manifest.json").write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    (tmp_path / "recipe.yaml").write_text(recipe)
    return PublishedModel("model-1", "p", "demo", "f", "job-1", str(tmp_path), scores={"glue/mrpc": {"f1": 0.8}})


def test_data_tokenizer_stages_and_parents_stand_before_what_was_made_from_them(store, tmp_path):
    found = lineage_of(store, written(tmp_path, {"model": {"stage": "ppo"}, "stages": STAGES}))
    assert [(each.id, each.kind, each.detail, each.reads) for each in found.nodes] == [
        ("data:novels", "data", "content aaaaaaaaaaaa", ()),
        ("data:wiki/en", "data", "content bbbbbbbbbbbb", ()),
        ("data:glue/mrpc", "data", "content cccccccccccc", ()),
        ("data:file:file-1", "data", "data", ()),
        ("model:judge@4", "start", "model of the project, deleted", ()),
        ("start", "start", "weights from scratch", ()),
        ("tokenizer", "tokenizer", "2000 entries", ("data:novels", "data:wiki/en")),
        ("stage:pretrain", "stage", "pretrain · masked_lm", ("data:novels", "data:wiki/en", "start", "tokenizer")),
        ("stage:mrpc", "stage", "supervised · lora", ("data:glue/mrpc", "stage:pretrain")),
        ("stage:ppo", "stage", "ppo", ("data:file:file-1", "stage:mrpc", "model:judge@4")),
        ("model", "model", "glue/mrpc f1 0.8", ("stage:ppo",)),
    ]


@pytest.mark.parametrize(
    ("manifest", "recipe"),
    [
        ("[" * 100_000, RECIPE),
        ([1, 2], "- 1\n- 2\n"),
        ({"model": [], "stages": [3, {"id": {}, "stage": [], "inputs": 7, "data": [1]}]}, "a: &a [*a]\n"),
        ({"stages": [{"id": "x", "fingerprint": "1", "inputs": ["1", "1"]}] * 3}, RECIPE),
        ({"stages": [{"id": f"s{at}\u202e\x1b[31m" + "x" * 9000, "stage": "\n"} for at in range(900)]}, "{" * 5000),
        ({"stages": STAGES}, "stages: 4\nmodel: 5\ntokenizer: [6]\n"),
        (
            {"stages": STAGES},
            "model: {checkpoint: [1]}\nstages: [{id: mrpc, task: {train: {}}, tuner: 4, datasets: {}}]\n",
        ),
    ],
)
def test_odd_publications_are_drawn_as_far_as_they_go(store, tmp_path, manifest, recipe):
    model = written(tmp_path, manifest, recipe)
    nodes = lineage_of(store, model).nodes
    assert nodes[-1].title == "demo@1"
    assert len(nodes) <= 200
    identifiers = {each.id for each in nodes}
    assert len(identifiers) == len(nodes)
    assert all(set(each.reads) <= identifiers for each in nodes)
    assert all(text.isprintable() and len(text) <= 120 for each in nodes for text in (each.title, each.detail))


def test_a_folder_that_tells_nothing_leaves_the_model_and_what_it_began_with(store, tmp_path):
    model = PublishedModel("model-1", "p", "demo", "f", "job-1", str(tmp_path / "gone"), base="model:other@2")
    assert [(each.kind, each.title) for each in lineage_of(store, model).nodes] == [
        ("start", "other@2"),
        ("model", "demo@1"),
    ]
