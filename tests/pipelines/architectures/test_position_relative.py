import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from pipelines.architectures.positions import relative_bucket


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 16), (4, 3), (10, 40)])
def test_buckets_are_those_of_t5(bidirectional, buckets, farthest):
    distance = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, farthest)
    assert torch.equal(relative_bucket(distance, bidirectional, buckets, farthest), theirs)


def test_near_distances_have_a_bucket_each_and_far_ones_share_the_last():
    """32 buckets for what lies before: 0 to 15 alone, then ranges that grow to 128, as section 2.1 says."""
    bucket = relative_bucket(-torch.arange(0, 1000), False, 32, 128)
    assert bucket[:16].tolist() == list(range(16))
    assert bucket[128:].eq(31).all()
    assert (bucket.diff() >= 0).all()
    # 16 more for a factor of 128 / 16 = 2^3: a doubling is 16 / 3 buckets
    assert bucket[[16, 32, 64, 127]].tolist() == [16, 21, 26, 31]


def test_what_lies_behind_has_its_own_half_in_an_encoder_and_no_bucket_in_a_decoder():
    behind = torch.arange(1, 200)
    assert relative_bucket(behind, True, 32, 128).ge(16).all()
    assert relative_bucket(-behind, True, 32, 128).lt(16).all()
    assert relative_bucket(behind, False, 32, 128).eq(0).all()
