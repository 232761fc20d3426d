import pytest
import torch
from torch import nn

from pipelines.architectures.configuration_rules import POSITIONS
from pipelines.architectures.layers import BOUNDED, FineryEmbeddings
from pipelines.architectures.positions import sinusoidal_table


def test_learned_embeddings_are_a_normalised_sum_of_three_rows(tiny, batch):
    embeddings = FineryEmbeddings(tiny()).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = (
        embeddings.word_embeddings.weight[batch["input_ids"][0, 4]]
        + embeddings.position_embeddings.weight[4]
        + embeddings.token_type_embeddings.weight[1]
    )
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))


def test_sinusoidal_embeddings_scale_the_word_by_the_root_of_the_width(tiny, batch):
    embeddings = FineryEmbeddings(tiny(position="sinusoidal")).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = (
        embeddings.word_embeddings.weight[batch["input_ids"][0, 4]] * 24**0.5
        + sinusoidal_table(19, 24)[4]
        + embeddings.token_type_embeddings.weight[1]
    )
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))


def test_rotary_embeddings_have_no_term_for_the_position(tiny, batch):
    embeddings = FineryEmbeddings(tiny(position="rotary")).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = embeddings.word_embeddings.weight[batch["input_ids"][0, 4]] + embeddings.token_type_embeddings.weight[1]
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))
    assert not any("position" in name for name, _ in embeddings.named_parameters())


@pytest.mark.parametrize("position", POSITIONS)
def test_embedded_words_give_what_their_ids_give(tiny, batch, position):
    embeddings = FineryEmbeddings(tiny(position=position)).eval()
    words = embeddings.word_embeddings(batch["input_ids"])
    assert torch.equal(embeddings(inputs_embeds=words), embeddings(batch["input_ids"]))


def test_without_segments_every_token_is_of_the_first(tiny, batch):
    embeddings = FineryEmbeddings(tiny()).eval()
    first = torch.zeros_like(batch["input_ids"])
    assert torch.equal(embeddings(batch["input_ids"]), embeddings(batch["input_ids"], first))


@pytest.mark.parametrize("position", BOUNDED)
def test_a_sequence_that_is_too_long_is_refused_with_the_limit(tiny, position):
    embeddings = FineryEmbeddings(tiny(position=position))
    with pytest.raises(ValueError, match="ends at position 20, but max_position_embeddings is 19"):
        embeddings(torch.ones(1, 20, dtype=torch.long))
