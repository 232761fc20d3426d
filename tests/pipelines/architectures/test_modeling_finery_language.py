"""Heads that predict words, beside what test_modeling_finery says of the masked one, and how they generate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipelines.architectures import (
    FineryForCausalLM,
    FineryForCausalLMWithValueHead,
    FineryForConditionalGeneration,
    FineryForMaskedLM,
    FineryForPreTraining,
)
from pipelines.architectures.modeling_finery_language import least_sure, likely_lengths


def built(head: type, config):
    torch.manual_seed(0)
    return head(config).eval()


@pytest.mark.parametrize(
    ("head", "family", "needed"),
    [
        (FineryForMaskedLM, "decoder", "encoder"),
        (FineryForPreTraining, "encoder-decoder", "encoder"),
        (FineryForCausalLM, "encoder", "decoder"),
        (FineryForCausalLMWithValueHead, "encoder-decoder", "decoder"),
        (FineryForConditionalGeneration, "decoder", "encoder-decoder"),
    ],
)
def test_a_head_on_a_family_that_it_cannot_stand_on_is_refused(tiny, head, family, needed):
    with pytest.raises(ValueError, match=f"{head.__name__} needs family: {needed}, but the config's family is"):
        head(tiny(family=family))


def test_place_t_predicts_the_word_at_t_plus_one(tiny, batch):
    model = built(FineryForCausalLM, tiny(family="decoder"))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    output = model(batch["input_ids"], batch["attention_mask"], labels=labels)
    predicted, asked = output.logits[:, :-1], labels[:, 1:]
    expected = nn.functional.cross_entropy(predicted[asked != -100], asked[asked != -100])
    torch.testing.assert_close(output.loss, expected)
    assert (asked != -100).sum() == 13
    counted = model(batch["input_ids"], batch["attention_mask"], labels=labels, num_items_in_batch=26).loss
    torch.testing.assert_close(counted, expected / 2)


@torch.no_grad()
def test_only_the_logits_asked_for_are_computed(tiny, batch):
    model = built(FineryForCausalLMWithValueHead, tiny(family="decoder"))
    whole = model(batch["input_ids"])
    for kept, places in ((2, [7, 8]), (torch.tensor([1, 4]), [1, 4])):
        part = model(batch["input_ids"], logits_to_keep=kept)
        torch.testing.assert_close(part.logits, whole.logits[:, places])
        torch.testing.assert_close(part.value, whole.value[:, places])


@torch.no_grad()
def test_a_value_stands_beside_each_word_and_changes_none(tiny, batch, tmp_path):
    critic = built(FineryForCausalLMWithValueHead, tiny(family="decoder"))
    policy = FineryForCausalLM(critic.config).eval()
    policy.load_state_dict({name: weight for name, weight in critic.state_dict().items() if "value_head" not in name})
    output = critic(batch["input_ids"])
    assert output.value.shape == (2, 9)
    torch.testing.assert_close(output.logits, policy(batch["input_ids"]).logits)
    states = policy.model(batch["input_ids"]).last_hidden_state
    torch.testing.assert_close(output.value, critic.value_head(states).squeeze(-1))
    policy.save_pretrained(tmp_path)
    loaded, report = FineryForCausalLMWithValueHead.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"value_head.weight", "value_head.bias"}
    torch.testing.assert_close(loaded.eval()(batch["input_ids"]).logits, output.logits)


def test_words_and_sentences_are_learned_together(tiny, batch):
    model = built(FineryForPreTraining, tiny())
    labels = torch.full((2, 9), -100)
    labels[0, [1, 4]], labels[1, 2] = torch.tensor([5, 17]), 9
    follows = torch.tensor([0, 1])
    output = model(**batch, labels=labels, next_sentence_label=follows)
    words = nn.functional.cross_entropy(output.prediction_logits[labels != -100], labels[labels != -100])
    sentences = nn.functional.cross_entropy(output.seq_relationship_logits, follows)
    torch.testing.assert_close(output.loss, words + sentences)
    torch.testing.assert_close(model(**batch, labels=labels).loss, words)
    torch.testing.assert_close(model(**batch, next_sentence_label=follows).loss, sentences)
    half = model(**batch, labels=labels, next_sentence_label=follows, num_items_in_batch=6).loss
    torch.testing.assert_close(half, (words + sentences) / 2)


def test_pretraining_computes_only_the_masked_words_if_configured(tiny, batch):
    dense = built(FineryForPreTraining, tiny())
    sparse = FineryForPreTraining(tiny(sparse_prediction=True)).eval()
    sparse.load_state_dict(dense.state_dict())
    labels = torch.full((2, 9), -100)
    labels[0, [1, 4]] = torch.tensor([5, 17])
    full, part = dense(**batch, labels=labels), sparse(**batch, labels=labels)
    assert part.prediction_logits.shape == (2, 61)
    torch.testing.assert_close(part.loss, full.loss)


@pytest.mark.parametrize("scale_logits", [True, False])
def test_without_a_decoder_input_the_decoder_reads_the_labels_shifted(tiny, batch, scale_logits):
    config = tiny(family="encoder-decoder", decoder_start_token_id=3, num_decoder_layers=2, scale_logits=scale_logits)
    model = built(FineryForConditionalGeneration, config)
    labels = torch.tensor([[7, 8, 9], [6, 5, -100]])
    output = model(batch["input_ids"], batch["attention_mask"], labels=labels)
    read = torch.tensor([[3, 7, 8], [3, 6, 5]])
    given = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=read)
    torch.testing.assert_close(output.logits, given.logits)
    asked = labels != -100
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(given.logits[asked], labels[asked]))
    last = model.model(batch["input_ids"], batch["attention_mask"], read).last_hidden_state
    scale = 24**-0.5 if scale_logits else 1
    torch.testing.assert_close(given.logits, last @ model.lm_head.weight.T * scale)
    assert output.past_key_values is None
    assert given.past_key_values is not None


@torch.no_grad()
def test_a_length_is_read_off_the_mean_of_the_encoders_real_tokens(tiny, batch):
    config = tiny(family="encoder-decoder", bidirectional_decoder=True, length_prediction=True)
    model = built(FineryForConditionalGeneration, config)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    output = model(**inputs, decoder_input_ids=batch["input_ids"])
    assert output.length_logits.shape == (2, 19)
    alone = model.get_encoder()(batch["input_ids"][1:, :6]).last_hidden_state[0].mean(0)
    torch.testing.assert_close(output.length_logits[1], model.length_head(alone), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_bidirectional_decoder_sees_what_comes_after(tiny, batch):
    config = tiny(family="encoder-decoder", bidirectional_decoder=True)
    model = built(FineryForConditionalGeneration, config)
    first, second = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 6, 7, 9]])
    logits = [model(batch["input_ids"][:1], decoder_input_ids=ids) for ids in (first, second)]
    assert ((logits[0].logits - logits[1].logits).abs().amax(-1) > 1e-4).all()
    assert logits[0].past_key_values is None


def test_both_stacks_read_one_matrix_of_words_tied_or_not(tiny, batch, tmp_path):
    for tied in (True, False):
        config = tiny(family="encoder-decoder", tie_word_embeddings=tied)
        model = built(FineryForConditionalGeneration, config)
        words = model.get_input_embeddings().weight
        assert model.model.decoder.embeddings.word_embeddings.weight is words
        assert (model.lm_head.weight is words) is tied
        before = model(batch["input_ids"], decoder_input_ids=batch["input_ids"]).logits
        model.save_pretrained(tmp_path / str(tied))
        loaded, report = FineryForConditionalGeneration.from_pretrained(tmp_path / str(tied), output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert loaded.model.decoder.embeddings.word_embeddings.weight is loaded.get_input_embeddings().weight
        after = loaded.eval()(batch["input_ids"], decoder_input_ids=batch["input_ids"]).logits
        assert torch.equal(after, before)
        model.resize_token_embeddings(70)
        assert model.model.decoder.embeddings.word_embeddings.weight.shape == (70, 24)
        assert model.lm_head.weight.shape == (70, 24)


@torch.no_grad()
def test_narrow_embeddings_are_widened_for_the_stack_and_narrowed_for_the_words(tiny, batch, tmp_path):
    model = built(FineryForMaskedLM, tiny(embedding_size=10))
    assert model.get_input_embeddings().weight.shape == (61, 10)
    assert model.model.embeddings.projection.weight.shape == (24, 10)
    assert model.lm_head.dense.weight.shape == (10, 24)
    assert model.lm_head.decoder.weight is model.get_input_embeddings().weight
    embeddings = model.model.embeddings
    total = embeddings.word_embeddings.weight[5] + embeddings.position_embeddings.weight[0]
    total = total + embeddings.token_type_embeddings.weight[0]
    expected = embeddings.projection(nn.functional.layer_norm(total, (10,), eps=1e-12))
    torch.testing.assert_close(embeddings(torch.tensor([[5]]))[0, 0], expected)


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


MASK, PADDING = 3, 0


def model_of(tiny, **fields) -> FineryForConditionalGeneration:
    torch.manual_seed(4)
    shape = {"family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True, "vocab_size": 30}
    model = FineryForConditionalGeneration(tiny(**{**shape, **fields})).eval()
    with torch.no_grad():
        model.length_head.weight.mul_(5)
        model.lm_head.weight.mul_(3)
    return model


@torch.no_grad()
def slow_mask_predict(model, source, iterations, length_beam, excluded=()):
    """Section 3 of the paper for one text (1, key) without padding; returns the words and the score."""
    mean = model.get_encoder()(source).last_hidden_state[0].mean(0)
    lengths = model.length_head(mean)
    lengths[0] = -torch.inf
    answers = []
    for length in lengths.argsort(descending=True)[:length_beam].tolist():
        words, sureness = [MASK] * length, [0.0] * length
        for done in range(iterations):
            masked = length * (iterations - done) // iterations
            places = sorted(range(length), key=lambda place: (sureness[place], place))[:masked]
            for place in places:
                words[place] = MASK
            logits = model(source, decoder_input_ids=torch.tensor([words])).logits[0]
            logits[:, [MASK, PADDING, *excluded]] = -torch.inf
            for place in places:
                sureness[place], words[place] = (kind.item() for kind in logits[place].log_softmax(-1).max(-1))
        answers.append((sum(sureness) / length, words))
    return max(answers, key=lambda answer: answer[0])[1]


@pytest.mark.parametrize(
    ("iterations", "length_beam"), [(1, 1), (4, 1), (4, 3), (10, 2), pytest.param(10, 5, marks=pytest.mark.long)]
)
def test_each_text_gets_the_answer_of_the_slow_algorithm(tiny, iterations, length_beam):
    model = model_of(tiny)
    sources = [torch.randint(5, 30, (1, length)) for length in (9, 5, 7)]
    expected = [slow_mask_predict(model, source, iterations, length_beam) for source in sources]
    width = max(source.shape[1] for source in sources)
    ids = torch.cat([torch.nn.functional.pad(source, (0, width - source.shape[1])) for source in sources])
    found = model.mask_predict(
        ids, attention_mask=(ids != 0).long(), mask_token_id=MASK, iterations=iterations, length_beam=length_beam
    )
    assert [[word for word in row if word != PADDING] for row in found.tolist()] == expected
    assert len({len(words) for words in expected}) > 1 or length_beam == 1


def test_excluded_words_are_never_predicted(tiny):
    model = model_of(tiny)
    source = torch.randint(5, 30, (1, 6))
    usual = model.mask_predict(source, mask_token_id=MASK, iterations=3, length_beam=2)
    excluded = tuple(set(usual.flatten().tolist()))
    found = model.mask_predict(source, mask_token_id=MASK, iterations=3, length_beam=2, excluded=excluded)
    assert not set(found.flatten().tolist()) & {*excluded, MASK, PADDING}
    assert found[0].tolist() == slow_mask_predict(model, source, 3, 2, excluded)


@given(st.integers(1, 30), st.integers(1, 12))
def test_fewer_words_are_masked_with_each_iteration_and_none_at_the_end(length, iterations):
    """N (T - t) / T words before iteration t, which is all of them before the first."""
    counts = [length * (iterations - done) // iterations for done in range(iterations + 1)]
    assert counts[0] == length
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)


def test_the_least_sure_are_the_real_ones_with_the_lowest_probability():
    sureness = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-5.0, -5.0, -1.0, 0.0]])
    real = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert least_sure(sureness, real, torch.tensor([2, 1])).tolist() == [
        [False, True, True, False],
        [True, False, False, False],
    ]


def test_lengths_are_at_least_one_and_as_many_as_there_are():
    logits = torch.tensor([[9.0, 1.0, 3.0, 2.0]])
    assert likely_lengths(logits, 2).tolist() == [[2, 3]]
    assert likely_lengths(logits, 9).tolist() == [[2, 3, 1]]


@pytest.mark.parametrize("missing", ["bidirectional_decoder", "length_prediction"])
def test_a_model_that_was_not_built_for_it_is_refused(tiny, missing):
    shape = {"family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True, missing: False}
    model = FineryForConditionalGeneration(tiny(**shape))
    with pytest.raises(ValueError, match="built and trained with bidirectional_decoder and length_prediction"):
        model.mask_predict(torch.ones(1, 3, dtype=torch.long), mask_token_id=MASK)


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"length_beam": 0}])
def test_counts_below_one_are_refused(tiny, wrong):
    with pytest.raises(ValueError, match="both must be at least 1"):
        model_of(tiny).mask_predict(torch.ones(1, 3, dtype=torch.long), mask_token_id=MASK, **wrong)
