"""Pretraining learns from packed text alone, and refuses settings that cannot work."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core import architecture_fields
from pipelines.core.errors import IncompatibleError, ModelError, RecipeError
from pipelines.core.interfaces import Context, Head
from pipelines.core.load import loads
from pipelines.core.training_arguments import TrainingArguments
from pipelines.models import heads, opening, varlen
from pipelines.trainers import pretrain, tuning
from tests import tiny

RECIPE = """\
name: inline
model: {{architecture: {{preset: bert-tiny}}}}
stages:
  - stage: pretrain
    datasets: [{{path: novel.jsonl, text: text}}, {{path: poem.jsonl, text: text}}]
    {keys}
"""


RECIPE_DATASETS = "datasets: [{path: novel.jsonl, text: text}, {path: poem.jsonl, text: text}]"


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    """`recipe(keys)`: one pretraining stage on two files of text in `recipe.folder`."""

    def build(keys: str, architecture: str = "{preset: bert-tiny}", sentences: bool = False) -> Any:
        for name, texts in (("novel", tiny.TEXTS), ("poem", tiny.TEXTS[::-1])):
            rows = (
                [". ".join(word.capitalize() for word in (*text.split(" on "), text)) for text in texts]
                if sentences
                else texts
            )
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        return loads(RECIPE.format(keys=keys).replace("{preset: bert-tiny}", architecture), folder=tmp_path)

    build.folder = tmp_path  # type: ignore[attr-defined]
    return build


def open_model(head: Any, keep_base: Path | None = None, **_: Any) -> Any:
    model = tiny.build("finery", head, seed=7)
    if keep_base is not None:
        model.save_pretrained(keep_base)
        model.name_or_path = str(keep_base)
    return model


@pytest.mark.parametrize(("tuner", "epochs"), [("full", 5), ("lora", 3)])
def test_a_whole_stage_learns_and_leaves_its_result(
    tuner: str, epochs: int, recipe: Any, context: Callable[..., Context], events: Any
) -> None:
    written = recipe(
        f"tuner: {tuner}\n    block_size: 24\n    arguments: {{num_train_epochs: {epochs}, learning_rate: 1e-2, global_batch_size: 8, "
        "logging_steps: 5, save_strategy: 'no'}"
    )
    place = context(recipe=written, open_model=open_model)
    written.stages[0].run(place)
    metrics = json.loads((place.folder / "metrics.json").read_text())
    required = {
        "train_runtime",
        "train_samples_per_second",
        "trainable_parameters",
        "all_parameters",
        "peak_memory_bytes",
    }
    assert required <= metrics.keys()
    tokens = sum(
        len(tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]) + 1
        for text in (*tiny.TEXTS, *tiny.TEXTS[::-1])
    )
    blocks = tokens // 22  # each block has two special tokens of its own
    assert metrics["train_tokens"] == epochs * blocks * 24
    assert metrics["train_steps"] == epochs * -(-blocks // 8)
    losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
    assert losses[-1] < (0.9 if tuner == "full" else 1) * losses[0]  # an adapter on a random body learns little
    assert heads.saved_head(place.folder / "model") == tiny.MASKED
    assert opening.open_folder(place.folder / "model", tiny.MASKED, seed=0).finery_new_modules == []
    assert opening.open_folder(place.folder / "model", tiny.TWO, seed=0).finery_new_modules == [
        "classifier",
        "model.pooler.dense",
    ]


def test_a_stage_tells_how_much_of_its_text_is_tokenised(
    recipe: Any, context: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrain, "PROGRESS_EVERY", 0.0)
    monkeypatch.setattr(pretrain, "MEGABYTE", 1)
    written = recipe("block_size: 24\n    arguments: {max_steps: 1, save_strategy: 'no'}")
    place = context(recipe=written, open_model=open_model)
    written.stages[0].run(place)
    told = [event for event in events(place) if event["event"] == "progress" and "tokenis" in event.get("what", "")]
    assert told[0]["what"] == "tokenising"
    assert {event["what"] for event in told[1:]} == {"MB tokenised"}
    steps = [event["step"] for event in told[1:]]
    assert len(steps) == 2 * len(tiny.TEXTS)
    assert steps == sorted(steps)
    everything = sum((recipe.folder / f"{name}.jsonl").stat().st_size for name in ("novel", "poem"))
    assert {event["total"] for event in told[1:]} == {everything}
    assert steps[-1] == everything


DECODER = "{model_type: gpt2, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 48}"
XLNET = "{model_type: xlnet, d_model: 16, n_layer: 2, n_head: 2, d_inner: 24}"
OURS = "{family: decoder, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24, max_position_embeddings: 48}"
SEQ2SEQ = "{family: encoder-decoder, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24, max_position_embeddings: 48}"
ENCODER = "{hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24, max_position_embeddings: 48}"


@pytest.mark.parametrize(
    ("objective", "architecture", "apart"),
    [
        pytest.param("masked_lm", ENCODER, False, marks=pytest.mark.long),  # quick as a whole stage above
        ("causal_lm", DECODER, True),
        ("prefix_lm", OURS, False),
        pytest.param("causal_lm", OURS, False, marks=pytest.mark.long),
        pytest.param("prefix_lm", OURS, True, marks=pytest.mark.long),
        pytest.param("prefix_lm", DECODER, False, marks=pytest.mark.long),
        ("permutation_lm", XLNET, True),
        pytest.param("next_sentence", ENCODER, True, marks=pytest.mark.long),  # quick from a stream below
        ("sentence_order", ENCODER, True),
    ],
)
def test_every_objective_on_text_learns(
    objective: str, architecture: str, apart: bool, recipe: Any, context: Callable[..., Context], events: Any
) -> None:
    written = recipe(
        f"objective: {objective}\n    block_size: 24\n    cross_document_attention: {str(apart).lower()}\n    arguments: {{max_steps: 20, "
        "learning_rate: 1e-2, global_batch_size: 8, logging_steps: 5, save_strategy: 'no'}",
        architecture=architecture,
        sentences=True,
    )
    words = dict(architecture_fields.resolve(written.model.architecture))

    def open_model(head: Any, **_: Any) -> Any:
        return opening.build(words, head, tiny.tokenizer(), seed=7)

    place = context(recipe=written, open_model=open_model)
    written.stages[0].run(place)
    losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
    assert len(losses) == 4
    assert losses[-1] < 0.95 * losses[0]
    metrics = json.loads((place.folder / "metrics.json").read_text())
    assert 0 < metrics["train_tokens"] <= 20 * 8 * 24
    assert heads.saved_head(place.folder / "model") == written.stages[0].objective.head
    again = opening.open_folder(place.folder / "model", written.stages[0].objective.head, seed=0, trained_head=True)
    assert again.finery_new_modules == []


@pytest.mark.parametrize(
    ("objective", "architecture", "tuner"),
    [
        ("masked_lm", ENCODER, "lora"),
        ("causal_lm", DECODER, "full"),
        pytest.param("masked_lm", ENCODER, "full", marks=pytest.mark.long),
        pytest.param("causal_lm", DECODER, "lora", marks=pytest.mark.long),
    ],
)
def test_documents_kept_apart_by_sequences_teach_what_masks_teach(
    objective: str,
    architecture: str,
    tuner: str,
    recipe: Any,
    context: Callable[..., Context],
    events: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = "attention_probs_dropout_prob: 0.0" if objective == "masked_lm" else "attn_pdrop: 0.0"
    written = recipe(
        f"objective: {objective}\n    tuner: {tuner}\n    block_size: 24\n    cross_document_attention: false\n    arguments: "
        "{max_steps: 4, learning_rate: 1e-2, global_batch_size: 8, logging_steps: 1, save_strategy: 'no'}",
        architecture=architecture.replace("}", f", {silent}}}"),
    )
    words = dict(architecture_fields.resolve(written.model.architecture))
    opened = []

    def open_model(head: Any, keep_base: Path | None = None, **_: Any) -> Any:
        model = opening.build(words, head, tiny.tokenizer(), seed=7)
        if keep_base is not None:
            model.save_pretrained(keep_base)
            model.name_or_path = str(keep_base)
        opened.append(model)
        return model

    losses = []
    for name, shortest in (("masks", 1024), ("sequences", 8)):
        monkeypatch.setattr(varlen, "WITHOUT_KERNEL", shortest)
        place = context(name, recipe=written, open_model=open_model)
        written.stages[0].run(place)
        losses.append([event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"])
        assert varlen.names_sequences(opened[-1].config) == (name == "sequences")
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_stage_on_a_gpu_says_how_documents_are_kept_apart(
    compiled: bool, monkeypatch: pytest.MonkeyPatch, context: Callable[..., Context], events: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    model, place = tiny.build("llama", Head("causal_lm")), context(precision="bf16")
    varlen.adopt_where_it_serves(place, model, TrainingArguments(torch_compile=compiled), 24)
    (event,) = (event for event in events(place) if event["event"] == "progress")
    assert varlen.names_sequences(model.config) != compiled
    assert event["message"] == "sequences of a block are kept apart " + (
        "by masks: finery_varlen is not compiled, but arguments.torch_compile is true"
        if compiled
        else "by finery_varlen"
    )


def test_virtual_tokens_keep_masks(
    recipe: Any, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "WITHOUT_KERNEL", 8)
    asked = []
    monkeypatch.setattr(varlen, "adopt_where_it_serves", lambda *given: asked.append(given))
    monkeypatch.setattr(tuning, "adapted", lambda *_: (_ for _ in ()).throw(InterruptedError))
    for tuner, expected in (("full", 1), ("prefix", 1), ("{name: prompt, num_virtual_tokens: 2}", 1)):
        written = recipe(f"tuner: {tuner}\n    block_size: 24\n    cross_document_attention: false")
        with pytest.raises(InterruptedError):
            written.stages[0].run(context(recipe=written, open_model=open_model))
        assert len(asked) == expected


MIXED = """datasets: [{path: novel.jsonl, weight: 3, streaming: true}, {path: poem.jsonl, weight: 1}]
    buffer_size: 9
    block_size: 24"""


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [
        ("masked_lm", ENCODER),
        ("next_sentence", ENCODER),
        pytest.param("causal_lm", DECODER, marks=pytest.mark.long),
        pytest.param("prefix_lm", OURS, marks=pytest.mark.long),
        pytest.param("permutation_lm", XLNET, marks=pytest.mark.long),
        pytest.param("sentence_order", ENCODER, marks=pytest.mark.long),
        pytest.param("{name: denoising, permute_sentences: false}", SEQ2SEQ, marks=pytest.mark.long),
        pytest.param("span_corruption", SEQ2SEQ, marks=pytest.mark.long),
        pytest.param("replaced_token_detection", ENCODER, marks=pytest.mark.long),
    ],
)
def test_every_objective_learns_from_a_mixture_with_a_stream(
    objective: str, architecture: str, recipe: Any, context: Callable[..., Context], events: Any
) -> None:
    recipe("block_size: 24", sentences=True)
    keys = f"objective: {objective}\n    {MIXED}\n    arguments: {{max_steps: 32, learning_rate: 1e-2, "
    keys += "global_batch_size: 8, logging_steps: 8, save_strategy: 'no'}"
    text = RECIPE.format(keys=keys).replace(RECIPE_DATASETS, "").replace("{preset: bert-tiny}", architecture)
    written = loads(text, folder=recipe.folder)
    stage = written.stages[0]
    extra = stage.special_tokens()

    def open_tokenizer(*_: Any) -> Any:
        made = tiny.tokenizer()
        made.add_special_tokens({"extra_special_tokens": list(extra)})
        return made

    def open_model(head: Any, **_: Any) -> Any:
        return opening.build(
            dict(architecture_fields.resolve(written.model.architecture)), head, open_tokenizer(), seed=7
        )

    place = context(recipe=written, open_model=open_model, open_tokenizer=open_tokenizer)
    stage.run(place)
    losses = [event["metrics"]["loss"] for event in events(place) if "loss" in event.get("metrics", {})]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    metrics = json.loads((place.folder / "metrics.json").read_text())
    novel, poem = (metrics["datasets"][f"{name}.jsonl"] for name in ("novel", "poem"))
    assert (novel["examples"], poem["examples"]) == (pytest.approx(192, abs=12), pytest.approx(64, abs=12))
    assert novel["examples"] + poem["examples"] == 256
    assert novel["tokens"] + poem["tokens"] == metrics["train_tokens"] <= 256 * 24
    assert novel["share"] == pytest.approx(0.75, abs=0.05)
    assert min(novel["epochs"], poem["epochs"]) > 1
    told = next(event for event in events(place) if event.get("what") == "tokens drawn")
    assert told["datasets"] == metrics["datasets"]
    assert "tokens of novel.jsonl" in told["message"]
    assert not (place.folder / "streams").exists()


@pytest.mark.long
def test_workers_that_load_batches_read_the_same_stream(
    recipe: Any, context: Callable[..., Context], events: Any
) -> None:
    recipe("block_size: 24", sentences=True)
    losses = []
    for workers in (0, 2):
        keys = f"{MIXED}\n    dataset_num_proc: 2\n    arguments: {{max_steps: 12, global_batch_size: 8, logging_steps: 1, "
        keys += f"save_strategy: 'no', dataloader_num_workers: {workers}}}"
        written = loads(RECIPE.format(keys=keys).replace(RECIPE_DATASETS, ""), folder=recipe.folder)
        place = context(f"{workers}", recipe=written, open_model=open_model)
        written.stages[0].run(place)
        losses.append([each["metrics"]["loss"] for each in events(place) if "loss" in each.get("metrics", {})])
    assert len(losses[0]) == 12
    assert losses[0] == losses[1]


def test_what_was_not_read_of_a_stream_was_not_learnt_from(recipe: Any, context: Callable[..., Context]) -> None:
    recipe("block_size: 24")
    streams = "datasets: [{path: novel.jsonl, streaming: true}, {path: poem.jsonl, streaming: true}]\n    block_size: 8"
    keys = f"{streams}\n    buffer_size: 5\n    arguments: {{max_steps: 2, global_batch_size: 2, save_strategy: 'no'}}"
    written = loads(RECIPE.format(keys=keys).replace(RECIPE_DATASETS, ""), folder=recipe.folder)
    place = context(recipe=written, open_model=open_model)
    stage = written.stages[0]
    assert list(stage.learnt_texts(None)) == list(stage.texts()) == [*tiny.TEXTS, *tiny.TEXTS[::-1]]
    stage.run(place)
    rows = stage.learnt_rows(place.folder)
    assert 0 < rows[0] <= 10
    assert list(stage.learnt_texts(place.folder)) == tiny.TEXTS[: rows[0]]
    assert json.loads((place.folder / "metrics.json").read_text())["epoch"] < 0.3


def test_a_vocabulary_is_learnt_from_the_beginning_of_a_stream(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain, "VOCABULARY_SAMPLES", 3)
    recipe("block_size: 24")
    keys = "datasets: [{path: novel.jsonl, streaming: true}, {path: poem.jsonl, streaming: true}]"
    text = RECIPE.format(keys=f"{keys}\n    arguments: {{max_steps: 2}}").replace(RECIPE_DATASETS, "")
    stage = loads(text, folder=recipe.folder).stages[0]
    assert list(stage.vocabulary_texts(None)) == [*tiny.TEXTS[:3], *tiny.TEXTS[::-1][:3]]
    assert list(stage.vocabulary_texts(5)) == [*tiny.TEXTS[:5], *tiny.TEXTS[::-1][:5]]
    assert stage.vocabulary_rows() == 3
    assert "dataset_num_proc" not in stage.identity()


def test_sentences_are_packed_once_for_every_block_size(recipe: Any, context: Callable[..., Context]) -> None:
    for block_size in (16, 24):
        written = recipe(
            f"objective: sentence_order\n    block_size: {block_size}\n    arguments: {{max_steps: 1, save_strategy: 'no'}}",
            architecture=ENCODER,
            sentences=True,
        )
        place = context(f"{block_size}", recipe=written, open_model=open_model)
        written.stages[0].run(place)
    assert len(list(place.cache.glob("sentences-*"))) == 1


def test_an_open_model_that_cannot_learn_it_is_refused(recipe: Any, context: Callable[..., Context]) -> None:
    """A checkpoint shows its shape only when it is open."""
    written = recipe("objective: causal_lm\n    block_size: 24", architecture=DECODER)
    with pytest.raises(
        ModelError, match="objective is causal_lm, which needs a model that sees only what comes before"
    ):
        written.stages[0].run(context(recipe=written, open_model=lambda head, **_: tiny.build("bert", head)))


def test_the_other_model_of_an_objective_has_the_recipes_shape(recipe: Any, context: Callable[..., Context]) -> None:
    written = recipe("block_size: 24", architecture=ENCODER)
    place = context(recipe=written)
    built = pretrain._another(place, tiny.build("finery", tiny.MASKED), tiny.MASKED, hidden_size=8)
    assert (built.config.hidden_size, built.config.num_hidden_layers, built.config.vocab_size) == (
        8,
        2,
        len(tiny.tokenizer()),
    )
    checkpoint = tiny.build("bert", tiny.MASKED)
    recipe_of_checkpoint = types.SimpleNamespace(model=types.SimpleNamespace(architecture=None))
    again = pretrain._another(context(recipe=recipe_of_checkpoint), checkpoint, tiny.MASKED, num_hidden_layers=1)
    assert (again.config.model_type, again.config.hidden_size, again.config.num_hidden_layers) == ("bert", 32, 1)


def test_the_other_model_has_the_vocabulary_of_the_first_whatever_the_preset_names(
    recipe: Any, context: Callable[..., Context]
) -> None:
    written = recipe("block_size: 24")  # the preset names 30,522 words
    first = tiny.build("finery", tiny.MASKED)
    built = pretrain._another(
        context(recipe=written), first, tiny.MASKED, hidden_size=8, num_attention_heads=2, num_hidden_layers=1
    )
    assert built.config.vocab_size == first.config.vocab_size == len(tiny.tokenizer())
    assert built.get_input_embeddings().weight.shape == (len(tiny.tokenizer()), 8)


def test_texts_come_in_the_order_of_the_recipe_each_set_cut_by_itself(recipe: Any) -> None:
    stage = recipe("max_train_samples: 2").stages[0]
    assert list(stage.texts()) == [*tiny.TEXTS[:2], *tiny.TEXTS[::-1][:2]]
    assert {key.partition(".")[0] for key in stage.content(None)} == {"datasets[0]", "datasets[1]"}


@pytest.mark.parametrize(
    ("objective", "apart", "why"),
    [
        ("causal_lm", True, "cross_document_attention is false, which needs a mask for each pair of 24 tokens"),
        ("prefix_lm", False, "objective is prefix_lm, which needs a mask for each pair of 24 tokens"),
        ("causal_lm", False, ""),
    ],
)
def test_a_window_that_a_ready_mask_would_lose_is_refused_when_the_model_is_open(
    objective: str, apart: bool, why: str, recipe: Any, context: Callable[..., Context]
) -> None:
    windowed = (
        "{model_type: qwen2, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
        "num_key_value_heads: 2, use_sliding_window: true, sliding_window: 8, max_window_layers: 1, attention_dropout: 0.1}"
    )
    written = recipe(
        f"objective: {objective}\n    block_size: 24\n    cross_document_attention: {str(not apart).lower()}\n    "
        "arguments: {max_steps: 1, save_strategy: 'no'}",
        architecture=windowed,
    )
    words = dict(architecture_fields.resolve(written.model.architecture))
    place = context(recipe=written, open_model=lambda head, **_: opening.build(words, head, tiny.tokenizer(), seed=7))
    with pytest.raises(IncompatibleError, match=why) if why else nullcontext():
        written.stages[0].run(place)


def test_a_block_longer_than_the_model_is_refused_when_the_model_is_open(
    recipe: Any, context: Callable[..., Context]
) -> None:
    written = recipe("block_size: 64")
    with pytest.raises(ModelError, match=r"block_size is 64, but the model has .* 48.*; lower it"):
        written.stages[0].run(context(recipe=written, open_model=open_model))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("block_size: 1024", "block_size: is 1024, but the model has max_position_embeddings 512"),
        (
            "arguments: {eval_strategy: epoch}",
            "arguments.eval_strategy: is not offered here: pretraining holds no rows back",
        ),
        (
            "arguments: {evaluation_strategy: epoch}",
            "arguments.eval.*strategy: is not offered here: pretraining holds no rows back",
        ),
        ("objective: {name: masked_lm, probability: 2.0}", "objective.probability: is 2.0"),
        ("arguments: {deepspeed: x.json}", "arguments.deepspeed: "),
        (
            "objective: causal_lm",
            "objective: is causal_lm, which needs a model that sees only what comes before: family decoder, not encoder",
        ),
        (
            "objective: permutation_lm",
            "objective: is permutation_lm, which needs attention in two streams, which finery has not; use model_type: xlnet",
        ),
        (
            "objective: seq2seq",
            "objective: is seq2seq, which learns from pairs and not from text; use a supervised stage",
        ),
        (
            "objective: {name: span_corruption, sentinels: 2}\n    block_size: 64",
            "block_size: is 64, but span_corruption hides 3 spans in such a block, and sentinels is 2; lower block_size, raise mean_span_length",
        ),
        (
            "objective: next_sentence\n    cross_document_attention: false",
            "cross_document_attention: is false, but next_sentence cannot keep documents apart",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_loads(keys: str, sentence: str, recipe: Any) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(keys)


@pytest.mark.parametrize(
    ("first", "second", "keys", "sentence"),
    [
        ("weight: 1", "", "", r"datasets\[1\]\.weight: is missing, but other data sets have one"),
        ("weight: 0", "weight: 1", "", r"datasets\[0\]\.weight: is 0.*greater than 0"),
        ("weight: .inf", "weight: 1", "", r"datasets\[0\]\.weight: .*finite"),
        (
            "streaming: true",
            "",
            "arguments: {max_steps: 5}",
            r"datasets\[1\]\.streaming: is false, but it is true for oth",
        ),
        ("streaming: true", "streaming: true", "", r"arguments\.max_steps: is missing: the length of streamed text"),
        ("weight: 1", "weight: 1", "buffer_size: 5", r"buffer_size: belongs to data sets with streaming: true"),
        ("weight: 1", "weight: 1", "dataset_num_proc: 0", r"dataset_num_proc: is 0"),
    ],
)
def test_weights_and_streams_that_do_not_go_together_are_refused(
    first: str, second: str, keys: str, sentence: str, recipe: Any
) -> None:
    recipe("block_size: 24")
    datasets = f"datasets: [{{path: novel.jsonl, {first}}}, {{path: poem.jsonl{', ' if second else ''}{second}}}]"
    text = RECIPE.format(keys=f"{datasets}\n    {keys}").replace(RECIPE_DATASETS, "")
    with pytest.raises(RecipeError, match=sentence):
        loads(text, folder=recipe.folder)


@pytest.mark.parametrize(
    ("architecture", "objective", "sentence"),
    [
        (
            "{family: decoder, attention_pattern: linear}",
            "causal_lm",
            "cross_document_attention: is false, which needs attention that takes a mask",
        ),
        (
            "{model_type: mamba}",
            "causal_lm",
            "cross_document_attention: is false, which needs attention that takes a mask .* mamba is not known for",
        ),
        (
            "{model_type: electra}",
            "next_sentence",
            "objective: is next_sentence, which needs a model with a head for pairs",
        ),
    ],
)
def test_what_a_model_cannot_learn_is_refused_before_anything_loads(
    architecture: str, objective: str, sentence: str, recipe: Any
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(f"objective: {objective}\n    cross_document_attention: false", architecture=architecture)


def test_documents_that_cannot_be_kept_apart_are_one_mistake(recipe: Any) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe("objective: permutation_lm\n    cross_document_attention: false", architecture=XLNET)
    (mistake,) = refused.value.mistakes
    assert "permutation_lm cannot keep documents apart" in mistake.message


def test_a_model_without_the_objectives_head_is_refused() -> None:
    text = "name: x\nmodel: {architecture: {model_type: gpt2}}\nstages: [{stage: pretrain, datasets: [{path: builtin/python-docs}]}]\n"
    with pytest.raises(RecipeError, match="objective: is masked_lm, whose head this architecture does not have"):
        loads(text)
