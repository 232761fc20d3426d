"""The model card: metadata that the Hub reads, lines that load, scores with intervals, and honesty about baselines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.results import BenchmarkScores, scores_in
from pipelines.publishing.card import card, evidence
from pipelines.publishing.destinations.destination import destination_of
from pipelines.publishing.integrity import problems
from pipelines.publishing.usage import load
from tests import strangers


def scores(
    metrics: Mapping[str, Mapping[str, float]] | None = None, details: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, BenchmarkScores]:
    """What an evaluate stage left, by benchmark."""
    return {each.benchmark: each for each in scores_in(metrics or {}, details or {}, "evaluate")}


LABELS = ("not_equivalent", "equivalent")
HARDWARE = {
    "platform": "Linux-6.1-x",
    "processor": "EPYC",
    "cores": 2,
    "memory_bytes": 8e9,
    "gpus": [{"name": "H200", "memory_bytes": 141e9}],
}
PROOF = {"rows": 1200, "of": 4000, "flips": 0, "largest_difference": 3e-6, "largest_difference_to_this_process": 2e-6}
RECIPE = """\
name: tiny
seed: 7
model: {architecture: {preset: bert-mini, position: sinusoidal}}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 20, learning_rate: 1e-3}}
  - {stage: supervised, id: mrpc, task: glue/mrpc, tuner: {name: lora, r: 4}, arguments: {num_train_epochs: 3}}
  - {stage: evaluate, benchmarks: [glue/mrpc]}
  - {stage: publish, to: registry/tiny}
"""
SCORED = scores(
    metrics={"glue/mrpc": {"accuracy": 0.7304, "f1": 0.8210}},
    details={
        "glue/mrpc": {
            "examples": {"validation": 408},
            "intervals": {"accuracy": [0.69, 0.77], "f1": [0.79, 0.85]},
            "baselines": {
                "majority": {"accuracy": 0.6838, "f1": 0.8122},
                "naive_bayes": {"accuracy": 0.7402, "f1": 0.8},
            },
        }
    },
)


def write(
    tmp_path: Path,
    to: str = "registry/tiny",
    scored: Mapping[str, BenchmarkScores] = SCORED,
    head: Head | None = None,
    adapter: bool = False,
    own: bool = True,
    text: str = RECIPE,
    sources: Sequence[str] = (),
    **named: Any,
) -> str:
    recipe = loads(text)
    place = tmp_path / "base" if adapter else tmp_path
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "x.Y"}} if own else {}))
    if adapter:
        (tmp_path / "adapter_config.json").write_text("{}")
    head = head or Head("sequence_classification", LABELS)
    trained = {"mrpc": {"train_runtime": 61.4, "trainable_parameters": 1234567}}
    return card(
        recipe,
        recipe.stages[-1],
        head,
        tmp_path,
        destination_of(to),
        scored,
        trained,
        PROOF,
        {"hardware": HARDWARE, "sources": [{"path": each} for each in sources]},
        **named,
    )


def test_the_hub_reads_the_scores_from_the_metadata(tmp_path):
    read = ModelCard(write(tmp_path, license="apache-2.0"))
    data = read.data
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-classification")
    assert data.datasets == ["nyu-mll/glue"]
    assert data.tags == ["finery", "custom_code"]
    assert data.base_model is None
    results = {result.metric_name: result for result in data.eval_results}
    assert {name: result.metric_value for name, result in results.items()} == {"accuracy": 0.7304, "f1": 0.8210}
    assert {
        (result.dataset_type, result.dataset_config, result.task_type, result.metric_type)
        for result in results.values()
    } == {
        ("nyu-mll/glue", "mrpc", "text-classification", "accuracy"),
        ("nyu-mll/glue", "mrpc", "text-classification", "f1"),
    }


def test_the_metadata_is_one_yaml_block_in_the_form_of_the_hubs_specification(tmp_path):
    """Keys and nesting as in the Hub's model card specification, read by a YAML parser of its own."""
    block = yaml.safe_load(write(tmp_path).split("---\n")[1])
    assert "license" not in block
    index = block["model-index"]
    assert [set(entry) for entry in index] == [{"name", "results"}]
    result = index[0]["results"][0]
    assert result["task"] == {"type": "text-classification"}
    assert result["dataset"] == {"name": "glue/mrpc", "type": "nyu-mll/glue", "config": "mrpc"}
    assert result["metrics"][0] == {"type": "accuracy", "value": 0.7304, "name": "accuracy"}


def test_what_is_not_on_the_hub_is_not_named_as_a_data_set_of_the_hub(tmp_path):
    data = ModelCard(
        write(tmp_path, scored=scores({"builtin/python-docs": {"accuracy": 0.6}}, {"builtin/python-docs": {}}))
    ).data
    assert data.datasets is None
    assert data.eval_results[0].dataset_type == "builtin/python-docs"


def test_both_splits_of_mnli_are_told_apart(tmp_path):
    scored = scores(
        {"glue/mnli": {"accuracy": 0.6, "accuracy_mm": 0.61}},
        {"glue/mnli": {"splits": {"": "validation_matched", "_mm": "validation_mismatched"}}},
    )
    results = ModelCard(write(tmp_path, scored=scored)).data.eval_results
    assert [(r.dataset_split, r.metric_type, r.metric_name) for r in results] == [
        ("validation_matched", "accuracy", "accuracy"),
        ("validation_mismatched", "accuracy", "accuracy_mm"),
    ]


def test_the_table_shows_value_interval_and_baselines(tmp_path):
    text = write(tmp_path)
    assert "| Benchmark | Metric | This model | 95 % interval | majority | naive bayes |" in text
    assert "| glue/mrpc | accuracy | 0.7304 | 0.6900 … 0.7700 | 0.6838 | 0.7402 |" in text
    assert "glue/mrpc 408 (validation)" in text


def test_a_guesser_that_is_as_good_is_named(tmp_path):
    text = write(tmp_path)
    assert "Not better than a guesser without a network: glue/mrpc accuracy (0.7304, naive bayes 0.7402)." in text
    assert "majority 0.6838)" not in text


def test_a_score_that_is_not_a_number_is_said_and_kept_out_of_the_metadata(tmp_path):
    scored = scores({"glue/cola": {"matthews_correlation": float("nan")}}, {"glue/cola": {}})
    text = write(tmp_path, scored=scored)
    assert "| undefined | – |" in text
    assert ModelCard(text).data.eval_results is None


def test_without_scores_the_card_says_so_and_stays_valid(tmp_path):
    text = write(tmp_path, scored=scores(), head=Head("masked_lm"))
    assert "Nothing was measured" in text
    data = ModelCard(text).data
    assert (data.pipeline_tag, data.eval_results) == ("fill-mask", None)


def code_blocks(text: str) -> list[str]:
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("to", ["registry/tiny", "hub:ada/tiny", "memory://shelf/tiny"])
@pytest.mark.parametrize(
    "head", [Head("sequence_classification", LABELS), Head("sequence_classification"), Head("masked_lm")]
)
def test_the_lines_are_python_and_ask_for_trust_only_where_the_code_is_ours(tmp_path, adapter, own, to, head):
    text = write(tmp_path, to=to, adapter=adapter, own=own, head=head)
    for block in code_blocks(text):
        compile(block, "card", "exec")
    assert ("trust_remote_code=True" in text) is own
    assert ("PeftModel.from_pretrained(base, folder)" in text) is adapter
    assert ("import fsspec" in text) is ("://" in to)
    folder = {"registry/tiny": '"registry/tiny"', "hub:ada/tiny": '"ada/tiny"', "memory://shelf/tiny": '"tiny"'}[to]
    if adapter and to.startswith("hub:"):  # `owner/name/base` is no repository
        folder = f"snapshot_download({folder})"
    assert f"folder = {folder}\n" in text
    assert ("ForSequenceClassification" in text) is (head.kind == "sequence_classification")


def test_it_says_how_the_model_was_made(tmp_path):
    text = write(tmp_path)
    assert "the shape `bert-mini`, trained from scratch" in text
    assert "1. **pretrain** (pretrain)" in text
    assert "2. **mrpc** (supervised)" in text
    assert "task: `glue/mrpc`" in text
    assert '"max_steps": 20' in text
    assert "training took 61.4 s" in text
    assert "1,234,567 weights learnt" in text
    assert "Hardware: processor EPYC, cores 2, memory 8.0 GB, GPU H200 (141.0 GB)." in text
    assert "computed 1,200 of 4,000 predictions again: no prediction changed" in text
    for command in (
        "(cd registry/tiny && sha256sum -c SHA256SUMS)",
        "finery evaluate registry/tiny --benchmarks glue/mrpc",
        "finery verify registry/tiny  #",
        "finery reproduce registry/tiny  #",
        "finery run registry/tiny/recipe.yaml stages.publish.to=registry/tiny-again  #",
    ):
        assert command in text
    assert "DIR" not in text
    assert "Overlap with the training data was not looked for: glue/mrpc." in text
    assert "hf download" not in text
    assert "hf download ada/tiny --local-dir tiny" in write(tmp_path, to="hub:ada/tiny")


def test_commands_name_the_data_of_the_author_and_where_the_recipe_finds_it(tmp_path):
    text = write(tmp_path, sources=["rows/train.csv", "data/dev.csv"])
    lines = [line.partition("  #")[0] for line in text.partition("```shell\n")[2].partition("```")[0].splitlines()]
    assert lines[-4:] == [
        "finery verify registry/tiny --data DIR",
        "finery reproduce registry/tiny --data DIR",
        "cp registry/tiny/recipe.yaml DIR/tiny-again.yaml",
        "finery run DIR/tiny-again.yaml stages.publish.to=registry/tiny-again",
    ]
    assert "files of its author: `rows/train.csv`, `data/dev.csv`." in text
    on_a_model = write(tmp_path, sources=["model:demo@1", "data/dev.csv"])
    assert "finery reproduce registry/tiny --data DIR" in on_a_model
    assert "finery run" not in on_a_model  # the name means a model on its server alone


def test_a_job_of_a_server_names_the_folder_that_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("FINERY_SECRETS", str(tmp_path))
    text = write(tmp_path, to="published/ft:gpt::1")
    assert 'folder = "ft-gpt--1"' in text
    assert "finery verify ft-gpt--1  #" in text
    assert "published/" not in text


def test_the_picture_of_the_curves_is_linked_beside_the_card(tmp_path):
    assert "![mrpc: down](curves.png)" in write(tmp_path, curves_show="mrpc: down")
    assert "curves.png" not in write(tmp_path)


def test_a_checkpoint_from_the_hub_is_the_base_model_and_a_local_one_is_not(tmp_path):
    text = RECIPE.replace(
        "architecture: {preset: bert-mini, position: sinusoidal}",
        "checkpoint: google-bert/bert-base-uncased, revision: main",
    )
    assert ModelCard(write(tmp_path, text=text)).data.base_model == "google-bert/bert-base-uncased"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    text = write(tmp_path, text=text.replace("google-bert/bert-base-uncased, revision: main", str(tmp_path / "mine")))
    assert ModelCard(text).data.base_model is None
    assert "made from `mine`" in text
    assert str(tmp_path) not in text


def test_a_model_that_a_stage_left_is_called_after_the_stage_and_not_after_its_folder(tmp_path):
    place = tmp_path / "runs/first/stages/01-words/model"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place.parent / "stage.json").write_text('{"id": "words"}')
    text = write(
        tmp_path, text=RECIPE.replace("architecture: {preset: bert-mini, position: sinusoidal}", f"checkpoint: {place}")
    )
    assert "made from the model of stage `words`." in text
    assert "It starts from the model of stage `words`." in text
    assert "`model`" not in text


def test_labels_and_requirements_are_listed(tmp_path):
    text = write(tmp_path, require={"glue/mrpc.f1": ">= 0.8"})
    assert "Labels: 0 `not_equivalent`, 1 `equivalent`." in text
    assert "`glue/mrpc.f1 >= 0.8`" in text


TEXT = scores(
    {
        "builtin/python-docs": {
            "bits_per_byte": 2.5,
            "perplexity": 1234.5,
            "tokens": 900,
            "bytes": 4000,
            "unigram_bits_per_byte": 2.4,
        }
    },
    {
        "builtin/python-docs": {
            "examples": {"validation": 20},
            "splits": {"": "validation"},
            "intervals": {"bits_per_byte": [2.25, 2.75], "perplexity": [1000.0, 1500.0]},
            "baselines": {
                "unigram": {"bits_per_byte": 2.4, "perplexity": 1300.0},
                "bigram": {"bits_per_byte": 2.3, "perplexity": 900.0},
            },
        }
    },
)


def test_held_out_text_stands_beside_models_of_one_and_two_tokens_and_counts_are_no_scores(tmp_path):
    text = write(tmp_path, scored=TEXT, head=Head("causal_lm"))
    assert "| Benchmark | Metric | This model | 95 % interval | unigram | bigram |" in text
    assert "| builtin/python-docs | bits_per_byte | 2.5000 | 2.2500 … 2.7500 | 2.4000 | 2.3000 |" in text
    assert "| builtin/python-docs | perplexity | 1,234.50 | 1,000.00 … 1,500.00 | 1,300.00 | 900.00 |" in text
    assert "| tokens |" not in text
    assert (
        "builtin/python-docs bits_per_byte (2.5000, unigram 2.4000, bigram 2.3000), builtin/python-docs "
        "perplexity (1,234.50, bigram 900.00)." in text
    )
    assert "smaller is better" in text
    results = {result.metric_name: result for result in ModelCard(text).data.eval_results}
    assert {
        name: (result.metric_type, result.metric_value, result.dataset_split) for name, result in results.items()
    } == {"bits_per_byte": ("bits_per_byte", 2.5, "validation"), "perplexity": ("perplexity", 1234.5, "validation")}


def test_written_answers_come_with_the_signatures_of_their_scores(tmp_path):
    scored = scores(
        {"multi30k/en-de": {"bleu": 35.123, "chrf": 60.0}},
        {
            "multi30k/en-de": {
                "signatures": {"bleu": "nrefs:1|version:2", "chrf": "nrefs:1|nc:6"},
                "intervals": {"bleu": [34.0, 36.25]},
            }
        },
    )
    text = write(tmp_path, scored=scored, head=Head("seq2seq_lm"))
    assert "| multi30k/en-de | bleu | 35.12 | 34.00 … 36.25 |" in text
    assert "Signatures: bleu `nrefs:1|version:2`, chrf `nrefs:1|nc:6`." in text
    data = ModelCard(text).data
    assert (data.pipeline_tag, data.datasets, data.eval_results[0].task_type) == (
        "translation",
        ["bentrevett/multi30k"],
        "translation",
    )
    assert "Signatures" not in write(tmp_path)


@pytest.mark.parametrize(
    ("objective", "shown"),
    [
        ("causal_lm", "generate(**inputs, max_new_tokens=30)"),
        ("prefix_lm", "generate(**inputs, prefix_length=inputs.attention_mask.sum(-1), max_new_tokens=30)"),
    ],
)
def test_the_prompt_of_a_prefix_model_is_its_prefix(tmp_path, objective, shown):
    text = RECIPE.split("stages:")[0].replace("bert-mini, position: sinusoidal", "gpt-tiny") + (
        f"stages:\n  - {{stage: pretrain, objective: {objective}, datasets: [{{path: builtin/python-docs}}]}}\n"
        "  - {stage: publish, to: registry/tiny}\n"
    )
    recipe = loads(text)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "finery"}))
    found = card(recipe, recipe.stages[-1], Head("causal_lm"), tmp_path, destination_of("x"), scores(), {}, PROOF, {})
    assert shown in found
    assert "add_special_tokens=False" in found


def test_only_what_was_compared_is_claimed(tmp_path):
    proof = {"rows": 0, "of": 0, "texts": 16, "written": True, "largest_difference_to_this_process": 2e-6}
    recipe = loads(RECIPE)
    (tmp_path / "config.json").write_text("{}")
    for written, said in (
        (True, "its logits on 16 evaluated texts differ"),
        (False, "its logits on fixed sentences differ"),
    ):
        found = card(
            recipe,
            recipe.stages[-1],
            Head("masked_lm"),
            tmp_path,
            destination_of("x"),
            scores(),
            {},
            proof | {"written": written},
            {},
        )
        assert said in " ".join(found.split())


CLEAN = {"run": 13, "examples": 100, "exact": 0, "partly": 0, "seen": 0, "clean": {"examples": 100, "scores": {}}}


def told(about):
    return list(evidence(scores({"glue/mrpc": {"accuracy": 0.8}}, {"glue/mrpc": about})))


def test_overlap_is_told_with_the_score_of_the_others():
    found = CLEAN | {
        "exact": 2,
        "partly": 9,
        "seen": 10,
        "clean": {"examples": 90, "scores": {"accuracy": 0.75}},
        "unknown": "bert-base",
    }
    assert told({"overlap": {"validation": found}}) == [
        "glue/mrpc, validation: 10 of 100 examples overlap with the training data (2 as a whole, 9 in a run of "
        "13 words); the 90 others score accuracy 0.75. "
        "What bert-base was trained on before is not known."
    ]
    assert told({"overlap": {"validation": CLEAN}}) == [
        "glue/mrpc, validation: no example overlaps with the training data, as a whole or in a run of 13 words."
    ]
    assert told({"overlap": {"validation": {"unchecked": "gone"}}}) == [
        "glue/mrpc, validation: overlap with the training data could not be checked."
    ]


def test_calibration_is_told_with_its_temperature():
    assert told({"calibration": {"validation": {"ece": 0.0534, "temperature": 1.0}}}) == [
        "glue/mrpc, validation: expected calibration error 0.053 in 15 bins, at temperature 1."
    ]


def test_scores_without_evidence_have_no_sentence():
    assert told({"model": "mrpc"}) == []


ADAPTER = "{name: adapter, kind: parallel, reduction_factor: 4}"
CARDS = [
    ("finery", ADAPTER, ""),
    ("bert", ADAPTER, ", bake: true"),
    ("bert", "{name: prefix, num_virtual_tokens: 3}", ""),
    ("bert", "{name: p_tuning, num_virtual_tokens: 3}", ""),
    ("bert", "{name: prompt, num_virtual_tokens: 3}", ""),
]
PROBE = """
import torch
inputs = tokenizer("nine trains", return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**inputs).logits.double()
answer["found"] = [logits.sum().item(), logits.abs().max().item()]
"""


def lines_of_card(folder: Path) -> str:
    """The block that loads, as a reader copies it."""
    blocks = [part.split("```")[0] for part in (folder / "README.md").read_text().split("```python\n")[1:]]
    return next(block for block in blocks if "from_pretrained" in block)


def test_adapters_load_by_the_lines_of_their_cards_where_finery_does_not_exist(
    pretrained: Any, quick: None, tmp_path: Path
) -> None:
    """Processes that know nothing of Finery read publications that were moved."""
    codes, expected = [], []
    for number, (model_type, tuner, publish) in enumerate(CARDS):
        made = pretrained(model_type, "masked_lm", tuner=tuner, publish=publish)
        context = made.context()
        made.publish.run(context)
        model = context.open_model(made.recipe.stages[0].objective.head, stage_id="lm", trained_head=True).eval()
        inputs = made.tokenizer("nine trains", return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits.double()
            if tuner == ADAPTER:
                with model.disable_adapter():
                    bare = model(**inputs).logits.double()
                assert not torch.allclose(logits, bare, rtol=1e-3)  # the probe sees the adapter
        expected.append([logits.sum().item(), logits.abs().max().item()])
        published, moved = Path(made.publish.to), tmp_path / f"elsewhere-{number}"
        published.rename(moved)
        made.folder.rename(tmp_path / f"run-{number}")
        codes.append(lines_of_card(moved).replace(json.dumps(str(published)), json.dumps(str(moved))))
        assert ("import finery_bottleneck" in codes[-1]) == (tuner == ADAPTER and not publish)
    for number, (code, wanted) in enumerate(zip(codes, expected, strict=True)):
        found = strangers.run(code + PROBE, tmp_path / f"reader-{number}")["found"]
        assert found == pytest.approx(wanted, rel=1e-5), CARDS[number]
        assert problems(tmp_path / f"elsewhere-{number}") == []  # nothing that Python would run was left there


def test_only_a_method_that_peft_lacks_brings_a_module(tmp_path: Path) -> None:
    place = destination_of(str(tmp_path / "x"))
    assert "sys" not in load("AutoModelForMaskedLM", place, tmp_path, adapter=True, own_code=False)
    (tmp_path / "finery_bottleneck.py").write_text("")
    lines = load("AutoModelForMaskedLM", place, tmp_path, adapter=True, own_code=False).splitlines()
    assert (
        lines.index("import finery_bottleneck  # teaches PEFT the method")
        == lines.index("sys.path.insert(0, folder)") + 1
    )
    assert "sys" not in load("AutoModelForMaskedLM", place, tmp_path, adapter=False, own_code=False)


def test_parts_of_a_repository_are_opened_from_a_snapshot(tmp_path: Path) -> None:
    """`owner/name/base` is no repository."""
    hub = SimpleNamespace(location="hub:ada/tiny", load_from=lambda: "ada/tiny")
    assert 'folder = snapshot_download("ada/tiny")' in load("AutoModel", hub, tmp_path, adapter=True, own_code=False)
    assert 'folder = "ada/tiny"' in load("AutoModel", hub, tmp_path, adapter=False, own_code=False)
