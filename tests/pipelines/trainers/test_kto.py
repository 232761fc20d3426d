"""KTO: its step against TRL's trainer, and that the stage learns what it should from single answers."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from pipelines.core.errors import Diverged, RecipeError, Stopped
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.models import opening
from pipelines.tasks.preference.pairs import PreferenceCollator
from pipelines.trainers.kto import KTOArguments, answers_for, others
from pipelines.trainers.kto_step import STORED, WANTED, AnswerStep
from pipelines.trainers.reference import FrozenCopy
from tests import tiny
from tests.pipelines.trainers.test_dpo_step import moved

WORDS = tiny.WORDS
PAIRS = [
    {"prompt": f"the {one} saw", "chosen": f" a {other} film", "rejected": f" a {one} book" + " or a dog" * (at % 2)}
    for at, (one, other) in enumerate(zip(WORDS, WORDS[5:], strict=False))
]
SINGLE = [
    {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
    for row in PAIRS
    for side in ("chosen", "rejected")
]
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
ENCODER_DECODER = "{family: encoder-decoder, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("pairs.jsonl", PAIRS), ("single.jsonl", SINGLE)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def loaded(folder, arguments="max_steps: 2", keys="", architecture=DECODER, rows="pairs"):
    size = "" if "batch_size" in arguments else "per_device_train_batch_size: 4, "
    words = (
        f"{{stage: kto, datasets: [{{path: {rows}.jsonl}}], max_length: 32, arguments: {{{size}{arguments}}}{keys}}}"
    )
    text = f"name: x\nmodel: {{architecture: {architecture}}}\nlaunch: {{num_processes: 1}}\nstages:\n  - {words}\n"
    return loads(text, folder=folder)


def given_to(context, recipe, name="kto", **fields):
    """A context whose model always begins alike."""
    family = "encoder-decoder" if "encoder-decoder" in str(recipe.model.architecture) else "decoder"

    def open_model(head, keep_base=None, **_):
        model = tiny.build("finery", head, family=family, max_position_embeddings=96)
        if keep_base is not None:
            model.save_pretrained(str(keep_base))
            model.name_or_path = str(keep_base)
        return model

    return context(name, **{"stage_id": recipe.stages[0].id, "recipe": recipe, "open_model": open_model, **fields})


def trained(folder, context, events, *arguments, name="kto", fields=None, **keywords):
    recipe = loaded(folder, *arguments, **keywords)
    given = given_to(context, recipe, name, **(fields or {}))
    recipe.stages[0].run(given)
    logged = [each["metrics"] for each in events(given) if each["event"] == "metric"]
    return given, logged, json.loads((given.folder / "metrics.json").read_text())


def losses(logged):
    return [each["loss"] for each in logged if "loss" in each]


# -- the step -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trl_step(tmp_path_factory):
    """`trl_step(model, reference, rows, **settings)`: (TRL's loss of a batch of `rows`, its metrics)."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    class KTOTrainer(trl.KTOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    def step(model, reference, rows, **settings):
        tokenizer = copy.deepcopy(tiny.tokenizer())
        tokenizer.pad_token, tokenizer.eos_token = tokenizer.pad_token or "[PAD]", tokenizer.sep_token
        given = {"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "report_to": "none", "beta": 0.3}
        arguments = trl.KTOConfig(output_dir=str(tmp_path_factory.mktemp("trl")), **given, **settings)
        dataset = Dataset.from_list(rows)
        trainer = KTOTrainer(
            model=model, ref_model=reference, args=arguments, train_dataset=dataset, processing_class=tokenizer
        )
        loss = trainer._compute_loss(model, trainer.data_collator(list(dataset)), False)
        return loss, {name: values[0] for name, values in trainer._metrics["train"].items()}

    return step


ROWS = [
    {
        "prompt_ids": [3 + at, 9, 7][: 1 + at % 3],
        "completion_ids": [5, 6 + at, 8, 11 + at][: 2 + at % 3],
        "label": at % 3 > 0,
    }
    for at in range(6)
]


def beside_the_last(rows):
    """Each row with the answer of the one before it, as TRL makes them of a batch."""
    return [
        {**row, "KL_completion_ids": other["completion_ids"]}
        for row, other in zip(rows, rows[-1:] + rows[:-1], strict=True)
    ]


def examples_of(rows):
    examples = []
    for row in rows:
        example = {WANTED: row["label"]}
        for side, answer in (("chosen", row["completion_ids"]), ("rejected", row["KL_completion_ids"])):
            example[side] = [*row["prompt_ids"], *answer]
            example[f"{side}_labels"] = [-100] * len(row["prompt_ids"]) + answer
        examples.append(example)
    return examples


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_losses_gradients_and_rewards_are_those_of_trl(loss_type, trl_step, context):
    reference = tiny.build("gpt2", Head("causal_lm"))
    policy = moved(reference)  # in this order the KL of these rows is above 0
    theirs = copy.deepcopy(policy)
    settings = {"loss_type": loss_type, "desirable_weight": 1.5, "undesirable_weight": 0.5}
    rows = beside_the_last(ROWS)
    expected, metrics = trl_step(theirs, copy.deepcopy(reference), rows, **settings)
    expected.backward()

    step = AnswerStep(KTOArguments(beta=0.3, **settings), FrozenCopy(reference), context())
    batch = step.collated(PreferenceCollator(tiny.tokenizer().pad_token_id))(examples_of(rows))
    with torch.no_grad():
        step.before_step(policy, [batch])
    total, _ = step(policy, batch)
    loss = total / len(rows)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5, rel=1e-5)
    gradients = dict(theirs.named_parameters())
    for where, weight in policy.named_parameters():
        assert torch.allclose(weight.grad, gradients[where].grad, atol=1e-5, rtol=1e-4), where
    means = step.meter.take(True)
    assert ("kl" in means) == (loss_type == "kto")
    for name, value in means.items():
        assert value == pytest.approx(metrics[name], abs=1e-5, rel=1e-4), name
    assert loss_type != "kto" or means["kl"] > 1e-3  # or the comparison would say little


def test_stored_numbers_of_the_reference_are_as_good_as_the_reference(context):
    policy = tiny.build("gpt2", Head("causal_lm"))
    reference = FrozenCopy(moved(policy))
    together = PreferenceCollator(0)
    asked = AnswerStep(KTOArguments(beta=0.3), reference, context())
    stored = AnswerStep(KTOArguments(beta=0.3), None, context())
    from pipelines.trainers.reference import answers

    examples = examples_of(beside_the_last(ROWS))
    numbers = answers(reference.model, together([dict(each) for each in examples]), torch.device("cpu"))
    totals = []
    for step, rows in (
        (asked, examples),
        (stored, [{**one, STORED: two} for one, two in zip(examples, numbers, strict=True)]),
    ):
        batch = step.collated(together)([dict(each) for each in rows])
        with torch.no_grad():
            step.before_step(policy, [batch])
            totals.append(float(step(policy, batch)[0]))
    assert totals[0] == pytest.approx(totals[1], abs=1e-5)
    assert asked.divergence == pytest.approx(stored.divergence, abs=1e-5)


def test_what_fills_up_a_batch_is_neither_learnt_nor_counted(context):
    policy = tiny.build("gpt2", Head("causal_lm"))
    step = AnswerStep(KTOArguments(beta=0.3), FrozenCopy(moved(policy)), context())
    collate = step.collated(PreferenceCollator(0))
    rows = examples_of(beside_the_last(ROWS))
    found = []
    for examples in (rows[:4], rows):
        batch = collate([dict(each) for each in examples])
        batch["answers"][4:] = -100
        with torch.no_grad():
            step.before_step(policy, [batch])
            found.append((float(step(policy, batch)[0]), step.divergence, step.meter.take(False)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-5)
    assert found[0][2] == pytest.approx(found[1][2], abs=1e-5)


@drawn(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2), min_size=1, max_size=12), st.randoms())
def test_every_answer_has_one_of_another_prompt_beside_it(prompts, random):
    order = list(range(len(prompts)))
    random.shuffle(order)
    partners = others(order, prompts)
    if len({tuple(each) for each in prompts}) > 1:
        assert all(prompts[place] != prompts[partner] for place, partner in enumerate(partners))
    else:
        assert sorted(partners) == sorted(order)


# -- the stage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [DECODER, ENCODER_DECODER])
def test_wanted_answers_become_likelier(folder, context, events, architecture):
    arguments = "max_steps: 8, logging_steps: 4, learning_rate: 1e-2"
    _, logged, metrics = trained(folder, context, events, arguments, architecture=architecture)
    assert logged[-1]["rewards/margins"] > max(logged[0]["rewards/margins"], 0.02)
    assert {"kl", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"} <= set(logged[0])
    assert {"train_runtime", "trainable_parameters", "peak_memory_bytes", "train_steps"} <= set(metrics)


def test_the_first_loss_is_a_half_for_the_policy_is_its_own_reference(folder, context, events):
    _, logged, _ = trained(folder, context, events, "max_steps: 1, logging_steps: 1")
    assert logged[0]["loss"] == pytest.approx(0.5, abs=1e-6)
    assert logged[0]["kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    "tuner",
    [
        "lora",
        "{name: lora, bias: all}",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("prefix", "ia3", "adapter", "full")),
    ],
)
def test_every_tuner_is_held_to_the_model_at_the_start(folder, context, events, tuner):
    """Whether the reference is asked in each step or before the first one, the losses are the same."""
    logged = {
        way: trained(
            folder,
            context,
            events,
            f"max_steps: 3, logging_steps: 1, learning_rate: 2e-2, disable_dropout: true{setting}",
            f", tuner: {tuner}",
            name=way,
        )[1]
        for way, setting in {"asked": "", "stored": ", precompute_ref_log_probs: true"}.items()
    }
    assert losses(logged["asked"]) == pytest.approx(losses(logged["stored"]), abs=1e-5)
    assert losses(logged["asked"])[-1] != pytest.approx(0.5, abs=1e-6)


def test_micro_batches_make_the_step_of_the_whole_batch(folder, context, events):
    """The KL is that of the whole step, however it is cut."""
    common = "learning_rate: 2e-2, max_steps: 3, logging_steps: 1, global_batch_size: 8"
    runs = [
        trained(folder, context, events, f"{common}, per_device_train_batch_size: {size}", name=f"by-{size}")[1]
        for size in (8, 1)
    ]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), rel=1e-4)
    assert runs[1][2]["kl"] == pytest.approx(runs[0][2]["kl"], rel=1e-3)
    assert runs[0][2]["kl"] > 0.01


@pytest.mark.parametrize(
    ("tuner", "more"), [("lora", ""), pytest.param("full", ", precompute_ref_log_probs: true", marks=pytest.mark.long)]
)
def test_a_stopped_run_goes_on_to_the_same_weights_to_the_bit(folder, context, events, tuner, more):
    arguments = f"max_steps: 4, logging_steps: 4, save_steps: 2, learning_rate: 1e-2{more}"
    straight, logged, _ = trained(folder, context, events, arguments, f", tuner: {tuner}", name="straight")
    recipe = loaded(folder, arguments, f", tuner: {tuner}")
    stop = StopSignal()
    given = given_to(context, recipe, "broken", stop=stop)
    seen = given.events.emit

    def stopping(event, **fields):
        stop.requested = stop.requested or (event == "checkpoint" and fields["step"] == 2)
        return seen(event, **fields)

    given.events.emit = stopping
    with pytest.raises(Stopped):
        recipe.stages[0].run(given)
    again = given_to(context, recipe, "broken")
    recipe.stages[0].run(again)
    name = "adapter_model.safetensors" if tuner == "lora" else "model.safetensors"
    assert (again.folder / "model" / name).read_bytes() == (straight.folder / "model" / name).read_bytes()
    continued = [each["metrics"] for each in events(again) if each["event"] == "metric" and each["step"] == 4]
    assert continued[-1] == next(each for each in logged if "loss" in each) | {"epoch": continued[-1]["epoch"]}


def test_an_evaluation_after_a_resume_has_the_last_steps_divergence(folder, context):
    given = context("loss")
    step = AnswerStep(loaded(folder).stages[0].arguments, None, given)
    step.divergence = 0.25
    other = AnswerStep(step.arguments, None, given)
    other.restore(json.loads(json.dumps(step.state())))
    assert other.divergence == 0.25


def test_models_are_selected_by_the_loss_on_rows_set_aside(folder, context, events):
    arguments = "max_steps: 4, eval_strategy: steps, eval_steps: 2, save_steps: 2, load_best_model_at_end: true, learning_rate: 1e-2"
    _, logged, _ = trained(folder, context, events, arguments)
    evaluated = [each for each in logged if "eval_loss" in each]
    assert len(evaluated) == 2
    assert "eval_rewards/margins" in evaluated[0]


def test_single_answers_are_learnt_as_they_are_and_pairs_in_two(folder, context):
    rows = {}
    for name in ("pairs", "single"):
        recipe = loaded(folder, rows=name)
        given = given_to(context, recipe, name)
        examples, _ = answers_for(
            recipe.stages[0], given, given.open_model(Head("causal_lm")), given.open_tokenizer(), None
        )
        rows[name] = [
            (each["chosen"], each["chosen_labels"], each[WANTED])
            for each in (examples[at] for at in range(len(examples)))
        ]
    assert rows["pairs"] == rows["single"]
    assert len(rows["single"]) == len(SINGLE)


@pytest.mark.parametrize("architecture", [DECODER, ENCODER_DECODER])
def test_rows_are_cut_to_the_limit_and_answers_end_with_the_end_of_texts(folder, context, architecture):
    recipe = loaded(folder, architecture=architecture)
    given = given_to(context, recipe)
    tokenizer, stage = given.open_tokenizer(), recipe.stages[0]
    model = given.open_model(Head("seq2seq_lm" if "encoder-decoder" in architecture else "causal_lm"))
    examples, _ = answers_for(stage, given, model, tokenizer, None)
    learnt = [
        [token for token in each["chosen_labels"] if token != -100]
        for each in (examples[at] for at in range(len(examples)))
    ]
    assert all(answer[-1] == tokenizer.sep_token_id for answer in learnt)
    short, _ = answers_for(stage.model_copy(update={"max_length": 6}), given, model, tokenizer, None)
    sides = [short[at][side] for at in range(len(short)) for side in ("chosen", "rejected")]
    assert max(map(len, sides)) == 6
    assert all(np.array(short[at]["chosen_labels"]).max() != -100 for at in range(len(short)))


def test_trl_prepares_single_rows_as_we_do(folder, context):
    """TRL's own preparation of plain texts, with a tokenizer that adds nothing, gives the same tokens, and no prompt holds
    the end of a text."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    recipe = loaded(folder, rows="single")
    given = given_to(context, recipe)
    tokenizer, model = copy.deepcopy(given.open_tokenizer()), given.open_model(Head("causal_lm"))
    examples, _ = answers_for(recipe.stages[0], given, model, tokenizer, None)
    ours = []
    for example in (examples[at] for at in range(len(examples))):
        prompt = example["chosen_labels"].count(-100)
        ours.append((example["chosen"][:prompt], example["chosen"][prompt:], example[WANTED]))
    assert not any(tokenizer.sep_token_id in prompt for prompt, *_ in ours)
    tokenizer.eos_token, tokenizer.backend_tokenizer.post_processor = tokenizer.sep_token, None
    arguments = trl.KTOConfig(
        output_dir=str(folder / "trl"), bf16=False, use_cpu=True, gradient_checkpointing=False, report_to="none"
    )
    trainer = trl.KTOTrainer(
        model=tiny.build("gpt2", Head("causal_lm")),
        ref_model=tiny.build("gpt2", Head("causal_lm")),
        args=arguments,
        train_dataset=Dataset.from_list(SINGLE),
        processing_class=tokenizer,
    )
    theirs = [(row["prompt_ids"], row["completion_ids"], row["label"]) for row in trainer.train_dataset]
    assert sorted(theirs) == sorted(ours)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_a_stage_leaves_a_model_that_opens(folder, context, events, tuner):
    given, _, metrics = trained(folder, context, events, "max_steps: 1", f", tuner: {tuner}")
    model = given.folder / "model"
    assert json.loads((model / "head.json").read_text())["kind"] == "causal_lm"
    assert not list(model.rglob("*.bin"))
    opened = opening.open_folder(model, Head("causal_lm"), 0, trained_head=True)
    assert opened(input_ids=torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, opened.config.vocab_size)
    assert (given.folder / "base").exists() == (model / "adapter_model.safetensors").exists() == (tuner == "lora")
    assert (metrics["trainable_parameters"] < metrics["all_parameters"] / 2) == (tuner == "lora")


def test_a_loss_that_is_no_number_ends_the_stage(folder, context, events):
    with pytest.raises(Diverged):
        trained(folder, context, events, "max_steps: 6, learning_rate: 1e12, max_grad_norm: 0")


def test_bf16_learns_too(folder, context, events):
    arguments = "max_steps: 4, learning_rate: 1e-2, logging_steps: 2"
    _, logged, _ = trained(folder, context, events, arguments, fields={"precision": "bf16"})
    assert logged[-1]["rewards/margins"] > 0


@pytest.mark.parametrize(
    ("arguments", "keys", "sentence"),
    [
        ("precompute_ref_batch_size: 2", "", "is for precompute_ref_log_probs: true"),
        ("temperature: 0", "", "must be greater than 0"),
        ("loss_type: bco", "", "must be one of kto, apo_zero_unpaired"),
        ("max_steps: 1", ", early_stopping_patience: 1", "needs arguments.eval_strategy"),
    ],
)
def test_what_cannot_go_together_is_said_before_anything_loads(folder, arguments, keys, sentence):
    with pytest.raises(RecipeError) as caught:
        loaded(folder, arguments, keys)
    assert sentence in str(caught.value)


def test_an_encoder_cannot_be_a_policy(folder):
    with pytest.raises(RecipeError, match="which learns from answers that a model writes token by token"):
        loaded(folder, architecture="{preset: bert-tiny}")
