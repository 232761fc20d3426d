"""The reward stage on models of every family: it learns, says what its scores are like, and computes what TRL computes."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch

from pipelines.core.errors import DataError, IncompatibleError, RecipeError, Stopped
from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.data.reward_inputs import settings_in
from pipelines.objectives.losses import Meter
from pipelines.tasks.preference.task import reads_pairs
from pipelines.tasks.preference.training import pair_loss
from pipelines.tasks.training import training_of
from pipelines.trainers.reward import describe, scores_of
from tests import tiny

WORDS = tiny.WORDS
ROWS = [
    {
        "prompt": f"the {one} saw",
        "chosen": f" a {other} film and it was good",
        "rejected": f" a {other} film and it was bad",
        "margin": 0.5,
    }
    for one, other in zip(WORDS * 2, (WORDS * 2)[5:], strict=False)
]
SHAPE = (
    "hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96"
)
DECODER = f"{{preset: gpt-tiny, {SHAPE}}}"
HEAD = Head("reward")


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("train.jsonl", ROWS[:24]), ("test.jsonl", ROWS[24:])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def loaded(
    folder,
    keys="",
    arguments="max_steps: 4, logging_steps: 2",
    architecture=DECODER,
    data="task: {kind: preference, train: train.jsonl, validation: test.jsonl}",
    before="",
):
    stage = f"{{stage: reward, {data}, max_length: 32, arguments: {{{arguments}}}{keys}}}"
    return loads(
        f"name: x\nmodel: {{architecture: {architecture}}}\nlaunch: {{num_processes: 1}}\nstages:\n{before}  - {stage}\n",
        folder=folder,
    )


def refused(folder, *arguments, **keywords):
    with pytest.raises(RecipeError) as caught:
        loaded(folder, *arguments, **keywords)
    return str(caught.value)


def run(folder, context, *arguments, model_type="finery", name="reward", shape=None, stop=None, **keywords):
    recipe = loaded(folder, *arguments, **keywords)

    def open_model(head, keep_base=None, **_):
        model = tiny.build(model_type, head, **(shape or ({"family": "decoder"} if model_type == "finery" else {})))
        if keep_base is not None:
            model.save_pretrained(str(keep_base))
            model.name_or_path = str(keep_base)
        return model

    given = context(
        name, stage_id="reward", recipe=recipe, open_model=open_model, **({} if stop is None else {"stop": stop})
    )
    recipe.stages[-1].run(given)
    return given


def weights_of(given):
    from safetensors.torch import load_file

    return load_file(given.folder / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("model_type", "shape", "reads"),
    [
        ("finery", {"family": "decoder"}, "text"),
        ("bert", {}, "pair"),
        ("bart", {}, "pair"),
        pytest.param("finery", {"family": "encoder"}, "pair", marks=pytest.mark.long),
        pytest.param("finery", {"family": "encoder-decoder"}, "pair", marks=pytest.mark.long),
        pytest.param("gpt2", {}, "text", marks=pytest.mark.long),
    ],
)
def test_every_family_learns_and_says_how_it_reads(folder, context, model_type, shape, reads):
    given = run(
        folder, context, arguments="max_steps: 2, per_device_train_batch_size: 4", model_type=model_type, shape=shape
    )
    settings = settings_in(given.folder / "model")
    assert settings is not None
    assert (settings.reading.reads, settings.reading.max_length) == (reads, 32)
    assert settings.std > 0
    metrics = json.loads((given.folder / "metrics.json").read_text())
    assert {
        "train_loss",
        "train_runtime",
        "reward_mean",
        "reward_std",
        "train_accuracy",
        "trainable_parameters",
    } <= set(metrics)
    assert json.loads((given.folder / "model" / "head.json").read_text())["kind"] == "reward"


def test_it_learns_which_answer_is_better_and_opens_again_with_its_head(folder, context, events):
    from pipelines.models import opening

    words = "num_train_epochs: 6, global_batch_size: 8, learning_rate: 1e-2, logging_steps: 3, eval_strategy: epoch, center_rewards_coefficient: 0.01"
    given = run(folder, context, arguments=words)
    metrics = json.loads((given.folder / "metrics.json").read_text())
    assert metrics["train_accuracy"] == 1.0
    assert metrics["eval_accuracy"] == 1.0
    told = json.loads((given.folder / "model" / "reward.json").read_text())
    assert told["train"]["accuracy"] == 1.0
    assert (
        sum(told["held_out"]["histogram"]["chosen"]) == told["held_out"]["pairs"] == 2
    )  # a tenth of the rows is set aside
    steps = [each["metrics"] for each in events(given) if each["event"] == "metric" and "margin" in each["metrics"]]
    assert steps[0]["margin"] < steps[-1]["margin"]
    assert {"loss", "accuracy", "mean_reward"} <= set(steps[0])
    again = opening.open_folder(given.folder / "model", HEAD, 0, trained_head=True)
    assert torch.equal(again.classifier.weight, weights_of(given)["classifier.weight"])


@pytest.mark.parametrize("model_type", ["finery", pytest.param("bert", marks=pytest.mark.long)])
def test_an_adapter_learns_the_head_whole_and_is_merged_when_it_is_opened(folder, context, model_type):
    from pipelines.models import opening

    given = run(
        folder, context, ", tuner: {name: lora, r: 2}", "max_steps: 3, learning_rate: 1e-2", model_type=model_type
    )
    assert (given.folder / "model" / "adapter_config.json").is_file()
    model = opening.open_folder(given.folder / "model", HEAD, 0, trained_head=True)
    assert not hasattr(model, "peft_config") or type(model).__name__.startswith(("Finery", "Bert"))
    assert model(**tiny.batch(2)).logits.shape == (2, 1)


def test_a_stopped_stage_goes_on_to_the_same_weights(folder, context):
    words = "max_steps: 5, save_steps: 2, per_device_train_batch_size: 4, disable_dropout: false"
    whole = run(folder, context, arguments=words, shape={"family": "decoder", "dropout": True}, name="whole")
    stop = StopSignal()

    class Stopping(StopSignal):
        @property
        def requested(self):
            self.asked = getattr(self, "asked", 0) + 1
            return self.asked > 3

        @requested.setter
        def requested(self, value):
            pass

    with pytest.raises(Stopped):
        run(
            folder,
            context,
            arguments=words,
            shape={"family": "decoder", "dropout": True},
            name="parts",
            stop=Stopping(),
        )
    resumed = run(
        folder, context, arguments=words, shape={"family": "decoder", "dropout": True}, name="parts", stop=stop
    )
    one, other = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_is_that_of_trl_on_the_same_rows(folder, context, tmp_path, monkeypatch):
    """The ids of both sides, the loss with margins and centring, and the accuracy, from TRL's own trainer on a GPT-2."""
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    model = tiny.build("gpt2", HEAD)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.eos_token = tokenizer.sep_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A", pair="$A $B:1"
    )  # a decoder's puts nothing around a text
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(str(tmp_path / "saved"))
    recipe = loaded(folder, arguments="center_rewards_coefficient: 0.1, per_device_train_batch_size: 4")
    stage = recipe.stages[0]
    given = context("reward", stage_id="reward", recipe=recipe)
    lesson = training_of("preference").prepare(stage, None, given, model, tokenizer, 96)
    config = RewardConfig(
        str(tmp_path / "trl"),
        center_rewards_coefficient=0.1,
        max_length=32,
        bf16=False,
        use_cpu=True,
        report_to="none",
        per_device_train_batch_size=4,
        gradient_checkpointing=False,
    )
    theirs = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "saved")),
        args=config,
        train_dataset=Dataset.from_list(ROWS[:24]),
        processing_class=tokenizer,
    )
    rows = [theirs.train_dataset[at] for at in range(4)]
    assert [row["chosen_ids"] for row in rows] == lesson.examples.chosen.input_ids[:4]
    assert [row["rejected_ids"] for row in rows] == lesson.examples.rejected.input_ids[:4]
    batch = theirs.data_collator(rows)
    theirs.model.eval()
    expected = theirs.compute_loss(theirs.model, dict(batch))
    model.eval()
    meter = Meter()
    inputs = lesson.collate([lesson.examples[at] for at in range(4)])
    assert torch.equal(inputs["margin"], batch["margin"].float())
    sums, _ = pair_loss(model, inputs, centring=0.1, meter=meter)
    assert sums.item() / 4 == pytest.approx(expected.item(), rel=1e-5)


def test_what_fills_a_batch_is_no_pair():
    model = tiny.build("gpt2", HEAD)
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    batch = tiny.batch(4) | {"labels": torch.tensor([0, IGNORED])}
    alone = {name: value[[0, 2]] for name, value in batch.items() if name != "labels"} | {"labels": torch.tensor([0])}
    model.eval()
    assert pair_loss(model, batch)[0].item() == pytest.approx(pair_loss(model, alone)[0].item(), rel=1e-5)
    assert pair_loss(model, batch)[1]["logits"].shape == (2, 2)


def test_scores_are_those_of_each_answer_alone(folder, context):
    recipe = loaded(folder)
    model = tiny.build("finery", HEAD, family="decoder").eval()
    lesson = training_of("preference").prepare(
        recipe.stages[0], None, context("reward", stage_id="reward", recipe=recipe), model, tiny.tokenizer(), 96
    )
    scores = scores_of(model, lesson.examples, lesson.collate)
    for at, (chosen, rejected) in enumerate(
        zip(lesson.examples.chosen.input_ids, lesson.examples.rejected.input_ids, strict=True)
    ):
        alone = [model(input_ids=torch.tensor([ids])).logits.item() for ids in (chosen, rejected)]
        assert scores[at].tolist() == pytest.approx(alone, abs=1e-5)
    told = describe(context("reward", recipe=recipe), model, lesson.collate, lesson.examples, None)
    assert told.mean == pytest.approx(scores.mean())
    assert math.isclose(told.std, scores.std(), rel_tol=1e-6)
    assert "eval_accuracy" not in told.metrics


def test_data_sets_of_its_own_and_bad_rows(folder, context, events):
    bad = {"prompt": "the cat", "chosen": "same", "rejected": "same", "margin": 1.0}
    (folder / "more.jsonl").write_text("\n".join(map(json.dumps, [bad, *ROWS[:6]])))
    data = "datasets: [{path: train.jsonl}, {path: more.jsonl}]"
    with pytest.raises(DataError, match="row 1"):
        run(folder, context, arguments="max_steps: 1", data=data)
    given = run(folder, context, ", skip_bad_rows: true", "max_steps: 1", data=data, name="skipping")
    warnings = [each["message"] for each in events(given) if each["event"] == "warning"]
    assert any("1 of 31 rows are left out" in each and "row 25 has the same text" in each for each in warnings)
    sample = next(each for each in events(given) if each["event"] == "sample")
    assert sample["examples"] == 30


def test_soft_labels_need_a_probability_in_every_row_and_change_the_loss(folder, context):
    with pytest.raises(DataError, match="the rows have no column 'probability'"):
        run(folder, context, ", soft_labels: true", "max_steps: 1")
    (folder / "train.jsonl").write_text(
        "\n".join(json.dumps(row | {"probability": 0.8, "margin": 0.6}) for row in ROWS[:24])
    )
    recipe = loaded(folder, ", soft_labels: true")
    stage, model = recipe.stages[0], tiny.build("finery", HEAD, family="decoder").eval()
    lesson = training_of("preference").prepare(
        stage, None, context("soft", stage_id="reward", recipe=recipe), model, tiny.tokenizer(), 96
    )
    batch = lesson.collate([lesson.examples[at] for at in range(4)])
    assert "margin" not in batch
    found = lesson.loss(model, batch)[0].item()
    del batch["probability"]
    assert found == pytest.approx(pair_loss(model, batch, smoothing=0.2)[0].item(), rel=1e-5)
    assert found != pytest.approx(pair_loss(model, batch)[0].item(), rel=1e-5)
    assert "leave one of the two out" in refused(folder, ", soft_labels: true", "label_smoothing: 0.1")
    assert "use_margins: is true, but soft_labels" in refused(folder, ", soft_labels: true, use_margins: true")


def test_what_cannot_be_is_refused_with_the_recipe(folder):
    assert "needs either 'task' (of the kind preference) or 'datasets'" in refused(folder, data="max_prompt_length: 8")
    assert "is of the kind classification, but this stage learns from pairs" in refused(folder, data="task: glue/rte")
    assert "datasets[0].from: 'feedback' is no earlier stage. No earlier stage does: add {stage: feedback" in refused(
        folder, data="datasets: [{from: feedback}]"
    )
    assert "chat_template: joins a prompt and its answer to one text, but this model is no decoder" in refused(
        folder, ", chat_template: zephyr", architecture=f"{{preset: bert-tiny, {SHAPE}}}"
    )
    assert "max_length: is 32, but the model has max_position_embeddings 16" in refused(
        folder, architecture=DECODER.replace("96", "16")
    )
    assert "unknown key 'beta'" in refused(folder, arguments="beta: 0.1")
    assert "label_smoothing: is 1.0, must be less than 1" in refused(folder, arguments="label_smoothing: 1.0")
    assert "early_stopping_patience: needs" in refused(folder, ", early_stopping_patience: 2")


def test_a_preference_task_is_not_for_supervised_stages(folder):
    text = f"name: x\nmodel: {{architecture: {DECODER}}}\nstages: [{{stage: supervised, task: {{kind: preference, train: train.jsonl}}}}]\n"
    with pytest.raises(RecipeError, match="which the stages reward, dpo, kto learn"):
        loads(text, folder=folder)


def test_a_template_for_a_checkpoint_that_is_no_decoder_is_refused_when_it_is_open(folder, context):
    with pytest.raises(IncompatibleError, match="chat_template joins a prompt"):
        run(folder, context, ", chat_template: zephyr", model_type="bert")


def test_the_stage_stands_on_its_rows_and_its_template(folder):
    stage = loaded(folder).stages[0]
    before = stage.content(None)
    assert set(before) == {"train.told by the columns"}
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS[:20])))
    assert loaded(folder).stages[0].content(None) != before
    assert set(loaded(folder, ", chat_template: zephyr").stages[0].content(None)) == {
        "train.told by the columns",
        "chat_template",
    }
    assert len(list(stage.texts())) == 20 * 3
    assert loaded(folder, ", chat_template: zephyr").stages[0].special_tokens() == (
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
    )


def test_which_models_read_two_texts():
    assert reads_pairs({"model_type": "finery", "family": "encoder"})
    assert not reads_pairs({"model_type": "finery", "family": "decoder"})
    assert not reads_pairs({"model_type": "gpt2"})
    assert reads_pairs({"model_type": "bert"})
    assert reads_pairs({"model_type": "t5", "is_encoder_decoder": True})
