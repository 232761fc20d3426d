"""P-tuning: the network that writes the prompt."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from pipelines.tuners.p_tuning import PTuning
from tests import tiny


@pytest.mark.parametrize("kind", ["MLP", "LSTM"])
def test_the_prompt_is_what_the_network_writes(kind: str) -> None:
    tuned = PTuning(num_virtual_tokens=3, encoder_reparameterization_type=kind, encoder_hidden_size=6).apply(
        tiny.build("bert", tiny.THREE)
    )
    encoder = tuned.prompt_encoder["default"]
    weights = dict(encoder.named_parameters())
    states = weights["embedding.weight"][None]
    if kind == "LSTM":
        network = nn.LSTM(32, 6, num_layers=2, bidirectional=True, batch_first=True)
        network.load_state_dict(
            {name.removeprefix("lstm_head."): weight for name, weight in weights.items() if "lstm" in name}
        )
        states = network(states)[0]
    linear = [
        (weights[f"mlp_head.{index}.weight"], weights[f"mlp_head.{index}.bias"])
        for index in range(0, 5, 2)
        if f"mlp_head.{index}.bias" in weights
    ]
    for index, (weight, bias) in enumerate(linear):
        states = states @ weight.T + bias
        states = states.relu() if index < len(linear) - 1 else states
    assert len(linear) == (2 if kind == "LSTM" else 3)
    torch.testing.assert_close(tuned.get_prompt_embedding_to_save("default"), states[0].detach())


def test_dropout_is_for_training_and_not_for_what_is_saved() -> None:
    tuned = (
        PTuning(encoder_reparameterization_type="LSTM", encoder_dropout=0.5)
        .apply(tiny.build("bert", tiny.THREE))
        .train()
    )
    once, twice = (tuned.get_prompt_embedding_to_save("default") for _ in range(2))
    assert torch.equal(once, twice)
    assert tuned.prompt_encoder["default"].training
    assert not torch.equal(tuned.prompt_encoder["default"].read(), tuned.prompt_encoder["default"].read())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"encoder_num_layers": 3}, "is for an LSTM, but encoder_reparameterization_type is MLP"),
        ({"encoder_dropout": 0.1}, "is for an LSTM"),
        (
            {"encoder_reparameterization_type": "LSTM", "encoder_num_layers": 1, "encoder_dropout": 0.1},
            "encoder_num_layers is 1",
        ),
        ({"encoder_reparameterization_type": "GRU"}, "must be one of MLP, LSTM"),
    ],
)
def test_what_does_not_fit_is_said(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        PTuning(**given)
