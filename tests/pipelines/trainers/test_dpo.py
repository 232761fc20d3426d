from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from pipelines.core.errors import RecipeError, Stopped
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.trainers import dpo, dpo_step
from pipelines.trainers.dpo_settings import DPOArguments, sampled_at
from tests import tiny

WORDS = tiny.WORDS
ROWS = [
    {
        "prompt": f"the {one} saw",
        "chosen": f" a {other} film and it was good",
        "rejected": f" a {one} book" + (" or a dog" if at % 3 else ""),
    }
    for at, (one, other) in enumerate(zip(WORDS * 2, (WORDS * 2)[5:], strict=False))
]
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
ENCODER_DECODER = "{family: encoder-decoder, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
TOLD = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("train.jsonl", ROWS[:24]), ("test.jsonl", ROWS[24:])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def loaded(folder, keys="", arguments="max_steps: 4, logging_steps: 2", architecture=DECODER, before=""):
    stage = f"{{stage: dpo, task: {{kind: preference, train: train.jsonl, validation: test.jsonl}}, max_length: 32, arguments: {{{arguments}}}{keys}}}"
    text = f"name: x\nmodel: {{architecture: {architecture}}}\nlaunch: {{num_processes: 1}}\nstages:\n{before}  - {stage}\n"
    return loads(text, folder=folder)


def refused(folder, *arguments, **keywords):
    with pytest.raises(RecipeError) as caught:
        loaded(folder, *arguments, **keywords)
    return str(caught.value)


def given_to(context, recipe, name="dpo", model_type="finery", **fields):
    """A context for the last stage, whose model is always the same."""
    head = Head("seq2seq_lm" if "encoder-decoder" in str(recipe.model.architecture) else "causal_lm")
    family = "encoder-decoder" if head.kind == "seq2seq_lm" else "decoder"

    def open_model(wanted, keep_base=None, **_):
        model = tiny.build(model_type, wanted, family=family, max_position_embeddings=96)
        if keep_base is not None:
            model.save_pretrained(str(keep_base))
            model.name_or_path = str(keep_base)
        return model

    return context(name, **{"stage_id": recipe.stages[-1].id, "recipe": recipe, "open_model": open_model, **fields})


def trained(folder, context, events, *arguments, name="dpo", fields=None, **keywords):
    recipe = loaded(folder, *arguments, **keywords)
    given = given_to(context, recipe, name, **(fields or {}))
    recipe.stages[-1].run(given)
    logged = [each["metrics"] for each in events(given) if each["event"] == "metric"]
    return given, logged, json.loads((given.folder / "metrics.json").read_text())


@pytest.mark.parametrize("architecture", [DECODER, ENCODER_DECODER])
def test_a_policy_learns_to_prefer_what_is_chosen(folder, context, events, architecture):
    _, logged, metrics = trained(
        folder,
        context,
        events,
        arguments="max_steps: 8, learning_rate: 1e-2, logging_steps: 4",
        architecture=architecture,
    )
    assert all(name in logged[0] for name in TOLD)
    assert logged[-1]["rewards/margins"] > max(logged[0]["rewards/margins"], 0)
    assert logged[-1]["loss"] < np.log(2) < logged[0]["loss"] + 0.7
    assert metrics["eval_rewards/accuracies"] > 0.8
    assert (
        metrics["eval_rewards/accuracies_low"]
        <= metrics["eval_rewards/accuracies"]
        <= metrics["eval_rewards/accuracies_high"]
    )
    assert metrics["eval_pairs"] == len(ROWS) - 24
    assert 0 <= metrics["eval_longer_accuracy"] <= 1
    assert {
        "train_runtime",
        "train_samples_per_second",
        "trainable_parameters",
        "all_parameters",
        "peak_memory_bytes",
    } <= set(metrics)


@pytest.mark.parametrize(
    ("precision", "tuner"), [pytest.param("no", "full", marks=pytest.mark.long), ("bf16", "full"), ("bf16", "lora")]
)
def test_the_first_loss_is_log_two_for_the_policy_is_its_own_reference(folder, context, events, precision, tuner):
    """In the precision of the training too: a reference in another one is further away than a step."""
    arguments = "max_steps: 1, logging_steps: 1, learning_rate: 1e-3"
    given = {"precision": precision}
    _, logged, _ = trained(folder, context, events, f", tuner: {tuner}", arguments, fields=given)
    assert logged[0]["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert logged[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "tuner",
    [
        "prefix",
        "{name: lora, bias: all}",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("bitfit", "{name: lora, init_lora_weights: pissa}", "lora", "ia3", "adapter")
        ),
    ],
)
def test_every_reference_is_the_model_at_the_start(folder, context, events, tuner):
    """With the numbers of the model before the tuner touched it, or with a copy, or with the adapter switched off: the same losses."""
    more = f", tuner: {tuner}"
    runs = {
        way: trained(
            folder,
            context,
            events,
            more,
            f"max_steps: 2, logging_steps: 1, learning_rate: 1e-2{setting}",
            name=f"{way}",
        )[1]
        for way, setting in {"asked": "", "stored": ", precompute_ref_log_probs: true"}.items()
    }
    losses = {way: [each["loss"] for each in logged if "loss" in each] for way, logged in runs.items()}
    assert losses["asked"] == pytest.approx(losses["stored"], abs=1e-5)
    assert losses["asked"][-1] != pytest.approx(np.log(2), abs=1e-6)


def test_another_stage_may_be_the_reference(folder, context, events):
    before = "  - {stage: pretrain, id: first, objective: causal_lm, datasets: [{path: train.jsonl, text: prompt}], block_size: 32, arguments: {max_steps: 1}}\n"
    recipe = loaded(folder, ", reference: {from: first}", before=before)
    assert recipe.stages[-1].reads(recipe) == ("first",)
    asked = []
    given = given_to(context, recipe)
    (given.folder / "model").mkdir()
    (given.folder / "model" / "head.json").write_text('{"kind": "causal_lm", "labels": []}')
    own = given.open_model
    fields = {
        "stage_folders": {"first": given.folder},
        "open_model": lambda head, **words: (asked.append(words.get("stage_id")), own(head, **words))[1],
    }
    recipe.stages[-1].run(context("dpo", stage_id="dpo", recipe=recipe, **fields))
    assert asked == [None, "first"]


def test_without_a_reference_none_is_opened_or_asked(folder, context, events):
    for setting in ("reference_free: true", "loss_type: simpo, beta: 2.0", "loss_type: [orpo]"):
        name = setting[:9].strip()
        given, logged, metrics = trained(
            folder, context, events, arguments=f"max_steps: 1, logging_steps: 1, {setting}", name=name
        )
        assert np.isfinite(logged[0]["loss"])
        assert "eval_reference_accuracy" not in metrics
        assert not list(given.folder.glob("reference*"))


def test_micro_batches_make_the_step_of_the_whole_batch(folder, context, events):
    """Pairs and the likelihood of tokens are both counted over the whole step."""
    losses = "loss_type: [sigmoid, sft], loss_weights: [1.0, 0.3], learning_rate: 1e-2, max_steps: 2, logging_steps: 1, global_batch_size: 6"
    whole = trained(folder, context, events, arguments=losses, name="whole")[1]
    parts = trained(folder, context, events, arguments=f"{losses}, per_device_train_batch_size: 2", name="parts")[1]
    assert [each["loss"] for each in parts if "loss" in each] == pytest.approx(
        [each["loss"] for each in whole if "loss" in each], rel=1e-5
    )
    assert parts[-1]["rewards/margins"] == pytest.approx(whole[-1]["rewards/margins"], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("tuner", "more"),
    [("lora", ""), ("full", ", precompute_ref_log_probs: true"), pytest.param("full", "", marks=pytest.mark.long)],
)
def test_a_stopped_run_goes_on_to_the_same_weights_to_the_bit(folder, context, events, tuner, more):
    arguments = f"max_steps: 4, logging_steps: 4, learning_rate: 1e-2, save_steps: 2{more}"
    keys = f", tuner: {tuner}"
    straight, logged, _ = trained(folder, context, events, keys, arguments, name="straight")

    recipe = loaded(folder, keys, arguments)
    stop = StopSignal()
    given = given_to(context, recipe, "broken", stop=stop)
    seen = given.events.emit

    def stopping(event, **fields):
        stop.requested = stop.requested or (event == "checkpoint" and fields["step"] == 2)
        return seen(event, **fields)

    given.events.emit = stopping
    with pytest.raises(Stopped):
        recipe.stages[-1].run(given)
    again = given_to(context, recipe, "broken")
    recipe.stages[-1].run(again)
    name = "adapter_model.safetensors" if tuner == "lora" else "model.safetensors"
    assert (again.folder / "model" / name).read_bytes() == (straight.folder / "model" / name).read_bytes()
    told = [each["metrics"] for each in events(again) if each["event"] == "metric" and each["step"] == 4]
    assert told[-1] == next(each for each in logged if "loss" in each) | {"epoch": told[-1]["epoch"]}


def test_models_are_selected_by_the_order_of_rewards(folder, context, events):
    arguments = "max_steps: 4, eval_strategy: steps, eval_steps: 2, save_steps: 2, load_best_model_at_end: true, learning_rate: 1e-2"
    _, logged, metrics = trained(folder, context, events, arguments=arguments)
    evaluated = [each for each in logged if "eval_loss" in each]
    assert len(evaluated) == 2
    assert all(f"eval_{name}" in evaluated[0] for name in TOLD)
    assert metrics["eval_pairs"] == len(ROWS) - 24  # the held-out rows of the task, not those set aside


def test_bf16_learns_too(folder, context, events):
    _, logged, _ = trained(
        folder,
        context,
        events,
        arguments="max_steps: 4, learning_rate: 5e-3, logging_steps: 2",
        fields={"precision": "bf16"},
    )
    assert logged[0]["loss"] < np.log(2) + 0.05
    assert logged[1]["rewards/margins"] > 0


def test_weights_and_references_of_settings():
    arguments = DPOArguments(loss_type=["sigmoid", "sft"], loss_weights=[1, 0.5])
    assert arguments.weighted_losses == {"sigmoid": 1.0, "sft": 0.5}
    assert arguments.needs_reference
    assert not DPOArguments(loss_type=["sigmoid", "sft"], reference_free=True).needs_reference
    assert not DPOArguments(loss_type="simpo").needs_reference


FEEDBACK = (
    "  - {{stage: feedback, id: {0}, from: model, prompts: {{path: builtin/python-docs, max_length: 8}}, "
    "judge: {{name: rule, prefer: {{name: length}}}}, response_length: 8, temperature: {1}}}\n"
)


def of_feedback(folder, *temperatures, arguments="max_steps: 1"):
    before = "".join(FEEDBACK.format(f"f{at}", each) for at, each in enumerate(temperatures))
    sources = ", ".join(f"{{from: f{at}}}" for at in range(len(temperatures)))
    stage = f"  - {{stage: dpo, from: model, datasets: [{sources}], max_length: 32, arguments: {{{arguments}}}}}\n"
    text = f"name: x\nmodel: {{architecture: {DECODER}}}\nlaunch: {{num_processes: 1}}\nstages:\n{before}{stage}"
    return loads(text, folder=folder)


def test_what_was_sampled_is_learnt_at_its_temperature(folder):
    recipe = of_feedback(folder, 0.7, 0.7)
    assert sampled_at(recipe.stages[-1], recipe) == {0.7}
    assert sampled_at(loaded(folder).stages[-1], loaded(folder)) == set()
    with pytest.raises(RecipeError, match=r"sampled at 0\.5, 0\.7; name the one"):
        of_feedback(folder, 0.7, 0.5)
    of_feedback(folder, 0.7, 0.5, arguments="temperature: 0.6")


@pytest.mark.parametrize(
    ("keys", "arguments", "sentence"),
    [
        ("", "temperature: 0", "must be greater than 0"),
        ("", "loss_type: sigmoid, loss_weights: [1, 2]", "has 2 weights for 1 losses"),
        ("", "loss_type: hinge, label_smoothing: 0.1", "changes the losses sigmoid"),
        ("", "loss_type: exo_pair", "must be above 0 for loss_type exo_pair"),
        ("", "loss_type: sigmoid, simpo_gamma: 1", "is the margin of loss_type simpo"),
        ("", "loss_type: simpo, reference_free: true", "says nothing new"),
        (
            "",
            "loss_type: orpo, precompute_ref_log_probs: true",
            "asks a reference, but loss_type orpo looks at no reference",
        ),
        ("", "precompute_ref_batch_size: 4", "is for precompute_ref_log_probs: true"),
        ("", "loss_type: [sigmoid, sigmoid]", "names a loss twice"),
        ("", "loss_type: sigmod", "Did you mean 'sigmoid'?"),
        ("", "label_smoothing: 0.5", "must be less than 0.5"),
        ("", "beta: 0", "must be greater than 0"),
        ("", "load_best_model_at_end: true", "compares evaluations"),
        (", early_stopping_patience: 1", "max_steps: 1", "needs arguments.eval_strategy"),
        (", reference: {from: model}", "max_steps: 1", "is no earlier stage"),
        (", reference: {from: sft}", "reference_free: true", "is given, but reference_free is true"),
    ],
)
def test_what_cannot_go_together_is_said_before_anything_loads(folder, keys, arguments, sentence):
    assert sentence in refused(folder, keys, arguments)


def test_an_encoder_cannot_be_a_policy(folder):
    assert "use a decoder or an encoder-decoder" in refused(
        folder, architecture=DECODER.replace("gpt-tiny", "bert-tiny")
    )


def test_the_scores_by_hand():
    told = {
        "rewards": np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 1.0]]),
        "per_token": np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0], [1.0, 1.0]]),
        "reference": np.array([[-5.0, -4.0], [-3.0, -4.0], [-5.0, -6.0], [-5.0, -6.0]]),
        "lengths": np.array([[5.0, 4.0], [3.0, 6.0], [2.0, 6.0], [4.0, 1.0]]),
    }
    found = dpo_step.scores(told, seed=1)
    assert found["eval_rewards/accuracies"] == pytest.approx(2.5 / 4)
    assert found["eval_rewards/accuracies_per_token"] == pytest.approx(3.5 / 4)
    assert found["eval_longer_accuracy"] == pytest.approx(2 / 4)
    assert found["eval_over_length"] == pytest.approx(0.5 / 4)
    assert found["eval_shorter_accuracy"] == pytest.approx(2 / 4)
    assert found["eval_reference_accuracy"] == pytest.approx(3 / 4)
    assert found["eval_rewards/margins"] == pytest.approx((1 - 2 + 2 + 0) / 4)
    assert found["eval_over_length_low"] <= found["eval_over_length"] <= found["eval_over_length_high"]


def test_the_length_baseline_sees_the_whole_answers():
    told = {name: np.array([[1.0, 0.0], [0.0, 2.0]]) for name in ("rewards", "per_token", "reference", "lengths")}
    assert dpo_step.scores(told, 1, [(900, 10), (20, 5)])["eval_longer_accuracy"] == 1.0


def test_the_length_baseline_guesses_in_the_direction_that_is_right_more_often():
    told = {
        "rewards": np.array([[1.0, 0.0], [0.0, 2.0]]),
        "per_token": np.zeros((2, 2)),
        "reference": np.zeros((2, 2)),
        "lengths": np.array([[1.0, 5.0], [2.0, 6.0]]),
    }
    found = dpo_step.scores(told, 1)
    assert (found["eval_longer_accuracy"], found["eval_shorter_accuracy"]) == (0.0, 1.0)
    assert found["eval_over_length"] == pytest.approx(-0.5)
    assert "eval_reference_accuracy" not in found


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_held_out_scores_are_those_of_the_events_whatever_the_batches(folder, context, events, loss):
    recipe = loaded(folder)
    given = given_to(context, recipe)
    from pipelines.objectives.losses import Meter
    from pipelines.trainers.dpo_step import PreferenceStep
    from pipelines.trainers.preferences import held_out_for
    from pipelines.trainers.reference import FrozenCopy

    model = given.open_model(Head("causal_lm"))
    other = tiny.build("finery", Head("causal_lm"), seed=5, family="decoder", max_position_embeddings=96)
    tokenizer = given.open_tokenizer()
    examples, characters = held_out_for(recipe.stages[-1], model, tokenizer, None, 7)
    assert characters[0] == (len(ROWS[24]["chosen"]), len(ROWS[24]["rejected"]))
    from pipelines.tasks.preference.pairs import PreferenceCollator

    step = PreferenceStep({loss: 1.0}, DPOArguments(), FrozenCopy(other), Meter())
    together = step.collated(PreferenceCollator(0))
    few, many = (dpo_step.ask(given, model, step, examples, together, size) for size in (2, 7))
    assert len(examples) == 7
    for name in few:
        assert np.allclose(few[name], many[name], atol=1e-4)
    step(model.eval(), together([dict(each) for each in examples]))
    logged, scores = step.meter.take(False), dpo_step.scores(many, seed=1)
    for name in ("accuracies", "chosen", "rejected", "margins"):
        assert scores[f"eval_rewards/{name}"] == pytest.approx(logged[f"rewards/{name}"], abs=1e-4)
    assert ("eval_rewards/accuracies_per_token" in scores) == (loss == "ipo")


def test_the_stage_imports_without_torch():
    import subprocess
    import sys

    code = f"import sys, {dpo.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_reference_is_not_drawn_anew_by_dropout(folder, context, events):
    """The policy's own dropout is off while it learns: the first loss of a model with dropout is log 2 too."""
    recipe = loaded(folder, arguments="max_steps: 1, logging_steps: 1")
    given = given_to(context, recipe, open_model=lambda head, **_: tiny.build("gpt2", head, dropout=True))
    recipe.stages[-1].run(given)
    assert next(each["metrics"]["loss"] for each in events(given) if each["event"] == "metric") == pytest.approx(
        np.log(2), abs=1e-6
    )
    assert torch.is_grad_enabled()
