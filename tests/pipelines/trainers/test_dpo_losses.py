from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from pipelines.trainers import dpo_losses as losses
from pipelines.trainers.dpo_losses import LOSSES, PairLikelihoods, implicit_rewards, per_token_rewards, weighed
from pipelines.trainers.dpo_settings import LIKELIHOOD, NAMES, SMOOTHED, WITHOUT_REFERENCE, DPOArguments


def pair(
    chosen=-6.0, rejected=-8.0, reference_chosen=-7.0, reference_rejected=-6.0, chosen_length=4, rejected_length=2
):
    """One pair: log ratios 1 and -2, difference 3, of which per token 0.25 and -1, difference 1.25."""
    numbers = (chosen, rejected, reference_chosen, reference_rejected)
    return PairLikelihoods(
        *(torch.tensor([each], dtype=torch.float64) for each in numbers),
        torch.tensor([chosen_length]),
        torch.tensor([rejected_length]),
    )


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


BY_HAND = {
    # name: (strength, value); beta 0.5 makes beta h = 1.5
    "sigmoid": (DPOArguments(beta=0.5), math.log(1 + math.exp(-1.5))),
    "sigmoid_norm": (DPOArguments(beta=0.5), math.log(1 + math.exp(-0.625))),
    "hinge": (DPOArguments(beta=0.2), 1 - 0.6),
    "ipo": (DPOArguments(beta=0.5), (1.25 - 1) ** 2),
    "robust": (DPOArguments(beta=0.5, label_smoothing=0.1), (0.9 * math.log(1 + math.exp(-1.5)) - 0.1 * math.log(1 + math.exp(1.5))) / 0.8),
    "exo_pair": (
        DPOArguments(beta=0.5, label_smoothing=0.1), sigmoid(1.5) * math.log(sigmoid(1.5) / 0.9) + sigmoid(-1.5) * math.log(sigmoid(-1.5) / 0.1),
    ),
    "nca_pair": (DPOArguments(beta=0.5), -math.log(sigmoid(0.5)) - 0.5 * math.log(sigmoid(-0.5)) - 0.5 * math.log(sigmoid(1.0))),
    "bco_pair": (DPOArguments(beta=0.5), -math.log(sigmoid(0.5)) - math.log(sigmoid(1.0))),
    "sppo_hard": (DPOArguments(beta=0.5), (1 - 1) ** 2 + (-2 + 1) ** 2),
    "apo_zero": (DPOArguments(beta=0.5), 1 - sigmoid(0.5) + sigmoid(-1.0)),
    "apo_down": (DPOArguments(beta=0.5), sigmoid(0.5) + 1 - sigmoid(1.5)),
    # per token -1.5 and -4
    "simpo": (DPOArguments(beta=2.0, simpo_gamma=1.0), -math.log(sigmoid(2.0 * 2.5 - 1.0))),
    "orpo": (
        DPOArguments(beta=0.5),
        -0.5 * math.log(sigmoid(math.log(math.exp(-1.5) / (1 - math.exp(-1.5))) - math.log(math.exp(-4) / (1 - math.exp(-4))))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LOSSES))
def test_by_hand(name):
    strength, expected = BY_HAND[name]
    assert LOSSES[name](pair(), strength).item() == pytest.approx(expected, rel=1e-6)


def test_label_smoothing_makes_it_conservative():
    found = losses.sigmoid(pair(), DPOArguments(beta=0.5, label_smoothing=0.2)).item()
    assert found == pytest.approx(0.8 * math.log(1 + math.exp(-1.5)) + 0.2 * math.log(1 + math.exp(1.5)))


def test_the_first_step_of_dpo_begins_at_log_two():
    start = pair(-5.0, -9.0, -5.0, -9.0)
    assert losses.sigmoid(start, DPOArguments(beta=0.1)).item() == pytest.approx(math.log(2))


def test_without_a_reference_the_ratio_is_the_likelihood():
    free = PairLikelihoods.of(torch.tensor([-6.0, -8.0]), torch.tensor([4, 2]))
    assert (free.chosen_ratio.item(), free.rejected_ratio.item()) == (-6.0, -8.0)


def test_chosen_rows_come_first():
    found = PairLikelihoods.of(
        torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 2, 3, 4]), torch.tensor([5.0, 6.0, 7.0, 8.0])
    )
    assert (found.chosen.tolist(), found.rejected.tolist()) == ([1, 2], [3, 4])
    assert (found.reference_rejected.tolist(), found.rejected_length.tolist()) == ([7, 8], [3, 4])


numbers = some.floats(-60, 0)


@given(
    numbers,
    numbers,
    numbers,
    numbers,
    some.integers(1, 50),
    some.integers(1, 50),
    some.floats(0.01, 2),
    some.floats(0.05, 0.45),
)
def test_robust_is_unbiased_under_flips(
    chosen, rejected, reference_chosen, reference_rejected, one, other, beta, flipped
):
    """The expectation over flipped labels is the sigmoid loss of the true label (Chowdhury et al., lemma 3.1)."""
    there = pair(chosen, rejected, reference_chosen, reference_rejected, one, other)
    back = pair(rejected, chosen, reference_rejected, reference_chosen, other, one)
    to = DPOArguments(beta=beta, label_smoothing=flipped)
    expected = (1 - flipped) * losses.robust(there, to) + flipped * losses.robust(back, to)
    assert expected.item() == pytest.approx(losses.sigmoid(there, DPOArguments(beta=beta)).item(), rel=1e-6, abs=1e-8)


@given(
    numbers, numbers, numbers, numbers, some.integers(1, 50), some.integers(1, 50), some.sampled_from(sorted(LOSSES))
)
def test_every_loss_is_finite_and_a_better_chosen_answer_never_costs_more_than_a_worse_pair(
    chosen, rejected, a, b, one, other, name
):
    value = LOSSES[name](pair(chosen, rejected, a, b, one, other), DPOArguments(beta=0.1, label_smoothing=0.1))
    assert torch.isfinite(value).all()


@pytest.mark.parametrize("name", ["sigmoid", "sigmoid_norm", "robust", "hinge", "simpo", "orpo"])
def test_gradients_raise_the_chosen_and_lower_the_rejected(name):
    rows = torch.tensor([-6.0, -8.0], dtype=torch.float64, requires_grad=True)
    compared = PairLikelihoods.of(rows, torch.tensor([4, 2]), torch.tensor([-7.0, -6.0]))
    (chosen, rejected) = torch.autograd.grad(
        LOSSES[name](compared, DPOArguments(beta=0.1, label_smoothing=0.1)).sum(), rows
    )[0].tolist()
    assert chosen < 0 < rejected


def test_the_gradient_of_dpo_is_weighed_by_how_wrong_the_rewards_are():
    """Rafailov et al. 2023, section 4: beta s(r_rejected - r_chosen)."""
    rows = torch.tensor([-6.0, -8.0], dtype=torch.float64, requires_grad=True)
    compared = PairLikelihoods.of(rows, torch.tensor([4, 2]), torch.tensor([-7.0, -6.0]))
    gradient = torch.autograd.grad(losses.sigmoid(compared, DPOArguments(beta=0.5)).sum(), rows)[0]
    assert gradient.tolist() == pytest.approx([-0.5 * sigmoid(-1.5), 0.5 * sigmoid(-1.5)])


def test_several_losses_add_up_with_their_weights():
    to = DPOArguments(beta=0.5)
    assert torch.equal(
        weighed(pair(), to, {"sigmoid": 0.7, "hinge": 0.3}),
        0.7 * losses.sigmoid(pair(), to) + 0.3 * losses.hinge(pair(), to),
    )


def test_implicit_rewards_are_the_scaled_log_ratios():
    chosen, rejected = implicit_rewards(pair(), 0.5)
    assert (chosen.item(), rejected.item()) == (0.5, -1.0)


def test_losses_without_a_reference_have_rewards_without_one():
    chosen, rejected = implicit_rewards(pair(), 2.0, ("simpo",))
    assert (chosen.item(), rejected.item()) == (-3.0, -8.0)
    assert implicit_rewards(pair(), 2.0, ("simpo", "sigmoid"))[0].item() == 2.0


@pytest.mark.parametrize("name", WITHOUT_REFERENCE[:2])
def test_losses_without_a_reference_do_not_look_at_it(name):
    far = pair(reference_chosen=-100.0, reference_rejected=-1.0)
    assert torch.equal(LOSSES[name](far, DPOArguments()), LOSSES[name](pair(), DPOArguments()))


@pytest.mark.parametrize("name", list(LOSSES))
def test_smoothing_changes_exactly_the_losses_that_say_so(name):
    changed = not torch.equal(
        LOSSES[name](pair(), DPOArguments(beta=0.5, label_smoothing=0.2)),
        LOSSES[name](pair(), DPOArguments(beta=0.5, label_smoothing=0.1)),
    )
    assert changed == (name in SMOOTHED)


def test_orpo_brings_the_likelihood_along():
    assert losses.likelihood_weight({"orpo": 1.0}) == 1.0
    assert losses.likelihood_weight({"sigmoid": 1.0}) == 0.0
    assert losses.likelihood_weight({"sigmoid": 1.0, "sft": 0.2}) == 0.2


def test_orpo_keeps_its_digits_when_an_answer_is_all_but_certain():
    rows = torch.tensor([-1e-6, -1.0], dtype=torch.float64, requires_grad=True)
    loss = losses.orpo(PairLikelihoods.of(rows, torch.tensor([1, 1])), DPOArguments(beta=1.0)).sum()
    assert torch.isfinite(torch.autograd.grad(loss, rows)[0]).all()


def test_every_name_is_a_loss():
    assert set(NAMES) == {*LOSSES, LIKELIHOOD}


def test_rewards_per_token_are_told_where_the_losses_compare_them_so():
    """A longer answer with the larger sum may have the smaller mean."""
    pairs = PairLikelihoods.of(torch.tensor([-8.0, -10.0]), torch.tensor([2, 12]), torch.tensor([-9.0, -14.0]))
    for names in (("sigmoid_norm",), ("ipo",), ("sigmoid_norm", "sft")):
        chosen, rejected = per_token_rewards(pairs, 6.0, names)
        assert (chosen.item(), rejected.item()) == (3.0, 2.0)
    for names in (("sigmoid",), ("sigmoid", "sigmoid_norm"), ("simpo",), ("sft",)):
        assert per_token_rewards(pairs, 6.0, names) is None
