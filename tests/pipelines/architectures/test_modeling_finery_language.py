"""Heads that predict words, beside what test_modeling_finery says of the masked one."""

import pytest
import torch
from torch import nn

from pipelines.architectures import (
    FineryForCausalLM,
    FineryForCausalLMWithValueHead,
    FineryForConditionalGeneration,
    FineryForMaskedLM,
    FineryForPreTraining,
)


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
