"""DPO's step against TRL's trainer on a decoder, and against one sequence at a time on encoder-decoders."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.objectives.losses import Meter
from pipelines.tasks.preference.pairs import PreferenceCollator
from pipelines.trainers.dpo_settings import NAMES, DPOArguments
from pipelines.trainers.dpo_step import CHOSEN, PreferenceStep
from pipelines.trainers.reference import FrozenCopy
from tests import tiny

ROWS = [
    {"prompt": "the cat saw a", "chosen": " good film", "rejected": " dull book and it was bad"},
    {"prompt": "a dog reads", "chosen": " not very fine", "rejected": " the cat"},
    {"prompt": "is the film good or bad in it", "chosen": " good", "rejected": " bad or fine or dull"},
    {"prompt": "it runs", "chosen": " and sleeps on the book", "rejected": " on a fine cat"},
]
TOLD = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")
SHARED_WITH_TRL = [name for name in NAMES if name not in ("simpo", "orpo")]


def step_of(names, reference, strength=None, meter=None):
    weights = names if isinstance(names, dict) else {names: 1.0}
    return PreferenceStep(
        weights,
        strength
        or DPOArguments(beta=0.3, label_smoothing=0.1 if "robust" in weights or "exo_pair" in weights else 0.0),
        reference,
        meter or Meter(),
    )


def moved(model, seed=1):
    """A copy that is a little elsewhere."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def trl_trainer(tmp_path_factory):
    """`trl_trainer(model, reference, **settings)`: TRL's DPOTrainer on the rows above, whose tokens are made once."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    folder = tmp_path_factory.mktemp("trl")
    prepared = []

    class DPOTrainer(trl.DPOTrainer):
        def _prepare_dataset(self, *arguments):
            if not prepared:
                prepared.append(super()._prepare_dataset(*arguments))
            return prepared[0]

    def build(model, reference, **settings):
        tokenizer = copy.deepcopy(tiny.tokenizer())
        tokenizer.pad_token, tokenizer.eos_token = tokenizer.pad_token or "[PAD]", tokenizer.sep_token
        given = {
            "output_dir": str(folder),
            "bf16": False,
            "use_cpu": True,
            "gradient_checkpointing": False,
            "report_to": "none",
            "beta": 0.3,
        }
        arguments = trl.DPOConfig(**{**given, **settings})
        return DPOTrainer(
            model=model,
            ref_model=reference,
            args=arguments,
            train_dataset=Dataset.from_list(ROWS),
            processing_class=tokenizer,
        )

    return build


def ours_from(trl_dataset, pad):
    """TRL's own tokens, put together by our collator."""
    examples = []
    for row in trl_dataset:
        example = {}
        for side in ("chosen", "rejected"):
            example[side] = [*row["prompt_ids"], *row[f"{side}_ids"]]
            example[f"{side}_labels"] = [-100] * len(row["prompt_ids"]) + list(row[f"{side}_ids"])
        examples.append(example)
    return examples, PreferenceCollator(pad)


def mean_loss(step, model, batch):
    """What the training loop makes of the sums."""
    sums, _ = step(model, batch)
    items = [(batch[name] != -100).sum() for name in step.label_names]
    return sum(
        weight * total / count for weight, total, count in zip(step.label_names.values(), sums, items, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        *((name, "gpt2") for name in SHARED_WITH_TRL),
        ("sigmoid", "llama"),
        pytest.param("ipo", "llama", marks=pytest.mark.long),
    ],
)
def test_losses_gradients_and_rewards_are_those_of_trl(name, model_type, trl_trainer):
    policy = tiny.build(model_type, Head("causal_lm"))
    reference, theirs = moved(policy), copy.deepcopy(policy)
    smoothing = 0.1 if name in ("robust", "exo_pair") else 0.0
    trainer = trl_trainer(theirs, copy.deepcopy(reference), loss_type=[name], label_smoothing=smoothing)
    expected = trainer._compute_loss(theirs, trainer.data_collator(list(trainer.train_dataset)), False)
    expected.backward()

    step = step_of(name, FrozenCopy(reference))
    examples, together = ours_from(trainer.train_dataset, trainer._tokenizer.pad_token_id)
    loss = mean_loss(step, policy, step.collated(together)(examples))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5, rel=1e-5)
    gradients = dict(theirs.named_parameters())
    for where, weight in policy.named_parameters():
        assert torch.allclose(weight.grad, gradients[where].grad, atol=1e-5, rtol=1e-4), where
    told = step.meter.take(True)
    for metric in TOLD:
        if name != "sft" or not metric.startswith("rewards"):  # TRL asks a reference for sft too, and we do not
            assert told[metric] == pytest.approx(trainer._metrics["train"][metric][0], abs=1e-5, rel=1e-5), metric


def test_losses_are_combined_as_trl_combines_them(trl_trainer):
    policy = tiny.build("gpt2", Head("causal_lm"))
    reference, theirs = moved(policy), copy.deepcopy(policy)
    weights = {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}
    trainer = trl_trainer(
        theirs, copy.deepcopy(reference), loss_type=list(weights), loss_weights=list(weights.values())
    )
    expected = trainer._compute_loss(theirs, trainer.data_collator(list(trainer.train_dataset)), False)
    step = step_of(weights, FrozenCopy(reference))
    examples, together = ours_from(trainer.train_dataset, trainer._tokenizer.pad_token_id)
    assert mean_loss(step, policy, step.collated(together)(examples)).item() == pytest.approx(expected.item(), abs=1e-5)


SOURCES = [[6, 7, 8, 9, 10], [11, 12], [13, 14, 15], [16, 17, 18, 19]]
ANSWERS = [([20, 21, 3], [22, 3]), ([23, 3], [24, 25, 26, 3]), ([27, 28, 3], [29, 3]), ([30, 3], [31, 32, 3])]


def targets_of(sources=SOURCES, answers=ANSWERS):
    return [
        {"source": source, "chosen": chosen, "rejected": rejected, "chosen_labels": chosen, "rejected_labels": rejected}
        for source, (chosen, rejected) in zip(sources, answers, strict=True)
    ]


@torch.no_grad()
def log_probability(model, source, target, start):
    """One sequence, token by token."""
    total, written = 0.0, [start]
    for token in target:
        logits = (
            model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written])).logits[0, -1].double()
        )
        total += logits.log_softmax(-1)[token].item()
        written.append(token)
    return total


@pytest.mark.parametrize("model_type", ["t5", "bart", "finery"])
def test_encoder_decoders_are_asked_like_one_sequence_at_a_time(model_type):
    more = {"family": "encoder-decoder"} if model_type == "finery" else {}
    policy = tiny.build(model_type, Head("seq2seq_lm"), **more)
    reference, start = moved(policy), 2
    policy.eval()
    step = step_of("sigmoid", FrozenCopy(reference))
    batch = step.collated(PreferenceCollator(0, start))(targets_of())
    loss = mean_loss(step, policy, batch)
    expected = 0.0
    for source, answers in zip(SOURCES, ANSWERS, strict=True):
        ratios = [
            log_probability(policy, source, each, start) - log_probability(reference, source, each, start)
            for each in answers
        ]
        expected += -torch.nn.functional.logsigmoid(torch.tensor(0.3 * (ratios[0] - ratios[1]))).item() / len(SOURCES)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_a_pair_does_not_depend_on_what_it_is_batched_with():
    policy = tiny.build("bart", Head("seq2seq_lm")).eval()
    step = step_of("ipo", FrozenCopy(moved(policy)))
    together = step.collated(PreferenceCollator(0, 2))
    whole = step(policy, together(targets_of()))[0].item()
    assert sum(step(policy, together([each]))[0].item() for each in targets_of()) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("names", [{"sigmoid": 1.0}, {"sigmoid": 1.0, "sft": 0.5}, {"orpo": 1.0}])
def test_what_only_fills_a_batch_is_neither_learnt_nor_told(names):
    from pipelines.trainers.trainer import without_padding

    policy = tiny.build("bart", Head("seq2seq_lm")).eval()
    step = step_of(names, FrozenCopy(moved(policy)))
    together = without_padding(step.collated(PreferenceCollator(0, 2)), step.label_names)
    alone = together(targets_of()[:2])
    filled = together([*targets_of()[:2], {**targets_of()[2], "padding": True}])
    expected, found = mean_loss(step, policy, alone), mean_loss(step, policy, filled)
    first, again = step_of(names, step.reference), step_of(names, step.reference)
    mean_loss(first, policy, alone)
    mean_loss(again, policy, filled)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert first.meter.take(False) == pytest.approx(again.meter.take(False), rel=1e-4)


def test_policy_and_reference_are_asked_at_the_temperature_of_sampling():
    policy = tiny.build("bart", Head("seq2seq_lm")).eval()
    reference = moved(policy).eval()
    step = replace(step_of("sigmoid", FrozenCopy(reference)), temperature=0.7)
    batch = step.collated(PreferenceCollator(0, 2))(targets_of())
    labels = batch["labels"]
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}

    def likelihoods(model):
        logits = model(**inputs).logits / 0.7
        each = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return (each * (labels != -100)).sum(1).reshape(2, -1)

    with torch.no_grad():
        ratios = likelihoods(policy) - likelihoods(reference)
        expected = -torch.nn.functional.logsigmoid(step.arguments.beta * (ratios[0] - ratios[1])).mean()
        assert mean_loss(step, policy, batch).item() == pytest.approx(expected.item(), rel=1e-5)
        assert mean_loss(replace(step, temperature=1.0), policy, batch).item() != pytest.approx(
            expected.item(), rel=1e-4
        )


def test_stored_numbers_stand_for_the_reference():
    policy = tiny.build("bart", Head("seq2seq_lm")).eval()
    asked = step_of("sigmoid", FrozenCopy(moved(policy)))
    batch = asked.collated(PreferenceCollator(0, 2))(targets_of())
    numbers = asked.reference_answers(policy, batch).reshape(2, -1).T.numpy()
    stored = step_of("sigmoid", None)
    examples = [{**example, "reference": numbers[place]} for place, example in enumerate(targets_of())]
    assert mean_loss(stored, policy, stored.collated(PreferenceCollator(0, 2))(examples)).item() == pytest.approx(
        mean_loss(asked, policy, batch).item(), rel=1e-6
    )


def test_the_likelihood_is_counted_by_the_tokens_of_the_chosen_answers():
    step = step_of({"sft": 1.0}, None)
    batch = step.collated(PreferenceCollator(0, 2))(targets_of())
    policy = tiny.build("bart", Head("seq2seq_lm")).eval()
    with torch.no_grad():
        rows = len(SOURCES)
        logits = policy(
            **{name: batch[name][:rows] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
        ).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:rows].flatten())
    assert mean_loss(step, policy, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    assert (batch[CHOSEN] != -100).sum() == sum(len(chosen) for chosen, _ in ANSWERS)
