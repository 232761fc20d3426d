"""The names of the losses over pairs of answers, for what must not import torch. `preference_losses` says what each is."""

from __future__ import annotations

LIKELIHOOD = "sft"
"""The loss of the chosen answers' tokens, counted by tokens and not by pairs."""
NAMES = (
    "sigmoid", "sigmoid_norm", "robust", "hinge", "ipo", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down",
    "simpo", "orpo", LIKELIHOOD,
)  # fmt: skip
"""What `loss_type` may say."""
WITHOUT_REFERENCE = ("simpo", "orpo", LIKELIHOOD)
"""Losses that look at no reference."""
PER_TOKEN = ("sigmoid_norm", "ipo")
"""Losses that divide the log ratio of an answer by its tokens."""
SMOOTHED = ("sigmoid", "sigmoid_norm", "robust", "exo_pair", "simpo")
"""Losses that `label_smoothing` changes."""
