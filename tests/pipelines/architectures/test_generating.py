import pytest
import torch

from pipelines.architectures import FineryForCausalLM, FineryForConditionalGeneration


def decoder(tiny, **fields) -> FineryForCausalLM:
    torch.manual_seed(0)
    return FineryForCausalLM(tiny(family="decoder", max_position_embeddings=24, **fields)).eval()


def encoder_decoder(tiny, **fields) -> FineryForConditionalGeneration:
    torch.manual_seed(0)
    return FineryForConditionalGeneration(tiny(family="encoder-decoder", **fields)).eval()


def prompt(rows: int = 2) -> torch.Tensor:
    return torch.randint(1, 61, (rows, 5), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def greedy_without_cache(model, ids: torch.Tensor, steps: int, **inputs) -> torch.Tensor:
    for _ in range(steps):
        ids = torch.cat([ids, model(ids, use_cache=False, **inputs).logits[:, -1:].argmax(-1)], 1)
    return ids


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("prefixed", [True, False])
def test_greedy_search_is_the_most_likely_word_again_and_again(tiny, use_cache, prefixed):
    """A prefix that sees both ways is read once; what it wrote to the cache stays as it is."""
    model = decoder(tiny, num_hidden_layers=2)
    inputs = {"prefix_length": torch.tensor([5, 3])} if prefixed else {}
    found = model.generate(prompt(), max_new_tokens=6, do_sample=False, use_cache=use_cache, **inputs)
    assert torch.equal(found, greedy_without_cache(model, prompt(), 6, **inputs))


def test_a_prefix_that_sees_both_ways_changes_what_comes_after_it(tiny):
    model = decoder(tiny)
    with torch.no_grad():
        usual, prefixed = (model(prompt(), **more).logits for more in ({}, {"prefix_length": torch.tensor([5, 5])}))
    assert not torch.allclose(usual, prefixed, atol=1e-3)


def test_beams_of_prefixes_are_repeated_with_their_prompts(tiny):
    model = decoder(tiny)
    beams = model.generate(prompt(), max_new_tokens=4, num_beams=3, prefix_length=torch.tensor([5, 0]))
    alone = [
        model.generate(prompt()[row : row + 1], max_new_tokens=4, num_beams=3, prefix_length=torch.tensor([length]))
        for row, length in enumerate((5, 0))
    ]
    assert torch.equal(beams, torch.cat(alone))


def test_an_encoder_decoder_starts_from_the_token_that_training_starts_from(tiny):
    model = encoder_decoder(tiny, bos_token_id=7)
    found = model.generate(prompt(), max_new_tokens=5, do_sample=False)
    assert found[:, 0].tolist() == [7, 7]
    assert model.prepare_decoder_input_ids_from_labels(torch.tensor([[9, 8]])).tolist() == [[7, 9]]
    ids = torch.full((2, 1), 7)
    with torch.no_grad():
        for _ in range(5):
            ids = torch.cat([ids, model(prompt(), decoder_input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, ids)


def test_contrastive_search_is_refused_with_what_there_is_instead(tiny):
    for asked in ({"penalty_alpha": 0.6, "top_k": 4}, {"generation_config": contrastive(tiny)}):
        with pytest.raises(ValueError, match=r"contrastive search; it is not built in.*use greedy search, num_beams"):
            decoder(tiny).generate(prompt(), max_new_tokens=2, **asked)


def contrastive(tiny):
    config = decoder(tiny).generation_config
    config.penalty_alpha, config.top_k = 0.6, 4
    return config


def test_a_decoder_that_sees_both_sides_is_not_asked_for_the_next_word(tiny):
    with pytest.raises(ValueError, match="use mask_predict"):
        encoder_decoder(tiny, bidirectional_decoder=True).generate(prompt(), max_new_tokens=2)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary"])
def test_a_text_beyond_the_last_position_is_refused_with_the_limit(tiny, position):
    with pytest.raises(ValueError, match="is 25 tokens long, but max_position_embeddings is 24"):
        decoder(tiny, position=position).generate(prompt(), max_new_tokens=30)


def test_padding_does_not_count_as_a_position(tiny):
    model = decoder(tiny)
    ids = torch.cat([torch.zeros(2, 6, dtype=torch.long), prompt()], 1)
    mask = (torch.arange(11) >= 6).long().expand(2, -1)
    padded = model.generate(ids, attention_mask=mask, max_new_tokens=19, do_sample=False)
    alone = model.generate(prompt(), attention_mask=torch.ones_like(prompt()), max_new_tokens=19, do_sample=False)
    assert torch.equal(padded[:, 6:], alone)


@pytest.mark.parametrize("position", ["alibi", "relative", "none"])
def test_positions_without_a_table_write_on_beyond_the_longest_sequence_of_training(tiny, position):
    assert decoder(tiny, position=position).generate(prompt(), max_new_tokens=30).shape == (2, 35)
