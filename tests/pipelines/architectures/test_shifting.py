import pytest
import torch

from pipelines.architectures.layers import shifted_right, start_token


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ({"decoder_start_token_id": 5, "bos_token_id": 3, "pad_token_id": 0}, 5),
        ({"bos_token_id": 3, "pad_token_id": 0}, 3),
        ({"pad_token_id": 0}, 0),
        ({"pad_token_id": None}, None),
    ],
)
def test_a_decoder_starts_from_the_first_of_three_tokens_that_there_is(tiny, tokens, start):
    assert start_token(tiny(family="encoder-decoder", **tokens)) == start


def test_labels_move_one_place_and_ignored_ones_become_padding(tiny):
    config = tiny(family="encoder-decoder", decoder_start_token_id=5, pad_token_id=0)
    labels = torch.tensor([[7, 8, 9], [7, -100, -100]])
    assert shifted_right(labels, config).tolist() == [[5, 7, 8], [5, 7, 0]]
    assert labels.tolist() == [[7, 8, 9], [7, -100, -100]]


def test_the_start_stands_before_the_first_token_that_is_no_padding(tiny):
    config = tiny(family="encoder-decoder", decoder_start_token_id=5, pad_token_id=0)
    left = torch.tensor([[0, 0, 7, 8]]), torch.tensor([[0, 0, 1, 1]])
    right = torch.tensor([[7, 8, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    assert shifted_right(left[0], config, left[1]).tolist() == [[0, 0, 5, 7]]
    assert shifted_right(right[0], config, right[1]).tolist() == [[5, 7, 0, 0]]


def test_a_vocabulary_without_any_first_token_is_refused(tiny):
    with pytest.raises(ValueError, match="decoder_start_token_id is null, so the decoder has no first token"):
        shifted_right(torch.ones(1, 2), tiny(family="encoder-decoder", pad_token_id=None))
