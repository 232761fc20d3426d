"""A tiny shape that every test of the family starts from, and the variants that the family's contract runs over."""

from collections.abc import Callable

import pytest
import torch

from pipelines.architectures import FineryConfig

VARIANTS = [(position, norm) for position in ("learned", "sinusoidal", "rotary") for norm in ("post", "pre")]


@pytest.fixture
def tiny() -> Callable[..., FineryConfig]:
    """A config with every size different, so that swapped dimensions cannot go unnoticed. Overrides by keyword."""

    def build(**overrides: object) -> FineryConfig:
        fields = {
            "vocab_size": 61,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "max_position_embeddings": 19,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "initializer_range": 0.2,  # large enough that a wrong path changes the output visibly
        }
        return FineryConfig(**{**fields, **overrides})

    return build


@pytest.fixture(params=VARIANTS, ids="-".join)
def variant(request: pytest.FixtureRequest) -> dict[str, str]:
    """Each combination of position and norm position, as overrides for `tiny`."""
    return dict(zip(("position", "norm_position"), request.param, strict=True))


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Two sequences of 9 and 6 tokens, the second padded on the right, each with two segments."""
    generator = torch.Generator().manual_seed(7)
    input_ids = torch.randint(1, 61, (2, 9), generator=generator)
    attention_mask = torch.ones(2, 9, dtype=torch.long)
    attention_mask[1, 6:] = 0
    input_ids[1, 6:] = 0
    token_type_ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0]])
    return {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
