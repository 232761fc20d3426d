import math

import torch

from pipelines.architectures.positions import sinusoidal_table


def test_the_table_is_the_papers_formula():
    """Section 3.5, element by element."""
    expected = torch.zeros(50, 12)
    for position in range(50):
        for pair in range(6):
            angle = position / 10000 ** (2 * pair / 12)
            expected[position, 2 * pair] = math.sin(angle)
            expected[position, 2 * pair + 1] = math.cos(angle)
    torch.testing.assert_close(sinusoidal_table(50, 12), expected, rtol=0, atol=1e-7)


def test_position_zero_is_zeros_and_ones():
    assert sinusoidal_table(1, 6).tolist() == [[0, 1, 0, 1, 0, 1]]


def test_a_fixed_offset_is_the_same_rotation_everywhere():
    """The paper's reason for its choice: PE(pos + k) is linear in PE(pos). Each pair turns by k·frequency."""
    table, offset = sinusoidal_table(40, 8), 5
    for pair in range(4):
        turn = offset / 10000 ** (2 * pair / 8)
        rotation = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        waves = table[:, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(waves[offset:], waves[:-offset] @ rotation.T, rtol=0, atol=1e-6)


def test_far_positions_keep_float32_precision():
    exact = [math.sin(100_000), math.cos(100_000)]
    torch.testing.assert_close(sinusoidal_table(100_001, 4)[-1, :2], torch.tensor(exact), rtol=0, atol=1e-7)
