import torch

from pipelines.architectures.attention import norm


def test_a_layer_norm_has_a_bias_if_configured(tiny):
    assert {name for name, _ in norm(tiny(), 5).named_parameters()} == {"weight", "bias"}
    assert {name for name, _ in norm(tiny(norm_bias=False), 5).named_parameters()} == {"weight"}


def test_an_rms_norm_divides_by_the_root_of_the_mean_square(tiny):
    normalise = norm(tiny(norm_type="rms_norm", layer_norm_eps=0.5), 3)
    with torch.no_grad():
        normalise.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    # mean square (1 + 4 + 4) / 3 = 3, and 0.5 is added to it
    expected = torch.tensor([1.0, 2 * 2.0, -3 * 2.0]) / 3.5**0.5
    torch.testing.assert_close(normalise(torch.tensor([1.0, 2.0, -2.0])), expected)
    assert {name for name, _ in normalise.named_parameters()} == {"weight"}


def test_an_rms_norm_of_a_lower_precision_is_rounded_once_and_warns_of_nothing(tiny, recwarn):
    normalise = norm(tiny(norm_type="rms_norm"), 64)
    states = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = normalise(states.bfloat16())
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed, normalise(states.bfloat16().float()).bfloat16(), rtol=0, atol=0)
    assert not recwarn.list
