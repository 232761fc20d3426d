"""Recurrent models against torch's own cells and the papers' arithmetic, and what all of their shapes promise."""

import pytest
import torch
from torch import nn

from pipelines.architectures import (
    FineryRnnConfig,
    FineryRnnForCausalLM,
    FineryRnnForConditionalGeneration,
    FineryRnnForSequenceClassification,
    FineryRnnModel,
)
from pipelines.architectures.recurrent_rules import CELLS, SCORINGS
from tests.covering import covering

SHAPE = {
    "vocab_size": 37,
    "hidden_size": 16,
    "embedding_size": 12,
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.8,  # large enough that a wrong path changes the output visibly
}
CLOSE = {"rtol": 0, "atol": 3e-5}


def translator(**words):
    torch.manual_seed(5)
    return FineryRnnForConditionalGeneration(FineryRnnConfig(**SHAPE, **words)).eval()


@pytest.fixture
def sentences():
    """Three sources of 7 tokens, the second padded on the right, the third on the left, and targets of 5."""
    generator = torch.Generator().manual_seed(3)
    ids, mask = torch.randint(3, 37, (3, 7), generator=generator), torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    mask[2, :2] = 0
    target = torch.randint(3, 37, (3, 5), generator=generator)
    target[:, 0] = 1
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "decoder_input_ids": target}


every_design = pytest.mark.parametrize(
    ("cell", "scoring", "feeding"),
    covering(
        [(c, s, f) for c in CELLS for s in SCORINGS for f in (None, False)],
        drop=False,
    ),
)


# ---- against other code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "own"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)])
@torch.no_grad()
def test_an_encoder_of_two_directions_is_torchs_own(cell, own):
    model = FineryRnnModel(FineryRnnConfig(**SHAPE, stack="encoder", cell=cell)).eval()
    reference = own(12, 8, num_layers=2, batch_first=True, bidirectional=True)
    for index, layer in enumerate(model.layers):
        for name, weight in layer.rnn.named_parameters():
            getattr(reference, name.replace("_l0", f"_l{index}")).copy_(weight)
    ids = torch.randint(3, 37, (2, 6))
    states, last = reference(model.embeddings(ids))
    output = model(ids)
    torch.testing.assert_close(output.last_hidden_state, states, **CLOSE)
    last = last[0] if cell == "lstm" else last
    torch.testing.assert_close(output.pooler_output, torch.cat([last[-2], last[-1]], dim=-1), **CLOSE)


def lstm_step(rnn, token, state, cell):
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000: torch's order i, f, g, o."""
    both = rnn.weight_ih_l0 @ token + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ state + rnn.bias_hh_l0
    i, f, g, o = both.chunk(4)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def score_of(attention, scoring, state, key):
    """One number for one pair, as the papers write it."""
    if scoring == "additive":  # Bahdanau et al. 2015, A.1.2
        return attention.score.weight[0] @ torch.tanh(attention.query.weight @ state + attention.key.weight @ key)
    if scoring == "general":  # Luong et al. 2015, equation 8
        return state @ (attention.key.weight @ key)
    return state @ key


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("scoring", ["additive", "dot_product", "general"])
@torch.no_grad()
def test_an_lstm_with_attention_is_the_papers_arithmetic_token_by_token(scoring, feeding, sentences):
    model = translator(attention_scoring=scoring, input_feeding=feeding, num_decoder_layers=1)
    decoder = model.model.decoder
    output = model(**sentences, output_attentions=True)
    for row in range(3):
        real = sentences["attention_mask"][row].bool()
        encoded = model.get_encoder()(sentences["input_ids"][row][real][None])
        memory = encoded.last_hidden_state[0]
        state, cell = encoded.final_state[0, -1]  # one layer: it begins where the encoder's last one ended
        fed = torch.zeros(16)
        for place, word in enumerate(sentences["decoder_input_ids"][row]):
            token = decoder.embeddings.weight[word]
            token = torch.cat([token, fed]) if feeding else token
            state, cell = lstm_step(decoder.layers[0].rnn, token, state, cell)
            weights = torch.stack([score_of(decoder.attention, scoring, state, key) for key in memory]).softmax(0)
            context = (weights[:, None] * memory).sum(0)
            fed = torch.tanh(decoder.attention.output.weight @ torch.cat([context, state]))
            logits = model.lm_head.weight @ (model.projection.weight @ fed)
            torch.testing.assert_close(output.logits[row, place], logits, **CLOSE)
            torch.testing.assert_close(output.cross_attentions[0][row, 0, place][real], weights, **CLOSE)


@torch.no_grad()
def test_without_attention_the_decoder_knows_the_source_by_the_state_it_begins_from(sentences):
    model = translator(attention_scoring="none", bidirectional=False)
    ids, target = sentences["input_ids"][:1], sentences["decoder_input_ids"][:1]
    reference = [nn.LSTM(12, 16, num_layers=2, batch_first=True) for _ in range(2)]
    for stack, layers in zip(reference, (model.model.encoder.layers, model.model.decoder.layers), strict=True):
        for index, layer in enumerate(layers):
            for name, weight in layer.rnn.named_parameters():
                getattr(stack, name.replace("_l0", f"_l{index}")).copy_(weight)
    words = model.get_input_embeddings()
    _, last = reference[0](words(ids))
    states, _ = reference[1](words(target), last)
    torch.testing.assert_close(
        model(ids, decoder_input_ids=target).logits, states @ model.projection.weight.T @ words.weight.T, **CLOSE
    )


def test_a_deeper_decoder_begins_at_the_encoders_lowest_state_and_a_shallower_one_at_its_highest():
    final = torch.arange(2.0)[None, :, None, None].expand(1, 2, 2, 16)  # layer 0 holds zeros, layer 1 ones
    for depth, begun in ((3, [0, 0, 1]), (1, [1]), (2, [0, 1])):
        decoder = translator(num_decoder_layers=depth).model.decoder
        assert [int(state[0][0, 0, 0]) for state in decoder._begin(final)] == begun


# ---- what every design promises -------------------------------------------------------------------------------------


@every_design
@torch.no_grad()
def test_padding_changes_nothing_wherever_it_stands(cell, scoring, feeding, sentences):
    model = translator(cell=cell, attention_scoring=scoring, input_feeding=feeding)
    together = model(**sentences).logits
    for row in range(3):
        real = sentences["attention_mask"][row].bool()
        alone = model(
            sentences["input_ids"][row][real][None], decoder_input_ids=sentences["decoder_input_ids"][row : row + 1]
        )
        torch.testing.assert_close(together[row], alone.logits[0], **CLOSE)


@every_design
@torch.no_grad()
def test_padding_of_the_target_changes_nothing_either(cell, scoring, feeding, sentences):
    model = translator(cell=cell, attention_scoring=scoring, input_feeding=feeding)
    expected = model(**sentences, use_cache=True)
    ids = sentences["decoder_input_ids"]
    for side, padded in (
        ("left", torch.cat([ids.new_zeros(3, 2), ids], 1)),
        ("right", torch.cat([ids, ids.new_zeros(3, 2)], 1)),
    ):
        mask = torch.ones_like(padded)
        mask[:, :2] = side == "right"
        mask[:, -2:] = side == "left"
        wide = model(**sentences | {"decoder_input_ids": padded, "decoder_attention_mask": mask}, use_cache=True)
        torch.testing.assert_close(wide.logits[mask.bool()], expected.logits.flatten(0, 1), **CLOSE)
        for name, tensor in expected.past_key_values.tensors.items():  # nor what the next token begins from
            torch.testing.assert_close(wide.past_key_values.tensors[name], tensor, **CLOSE)


@every_design
@torch.no_grad()
def test_token_by_token_from_what_is_kept_is_the_whole_pass_at_a_cost_that_does_not_grow(
    cell, scoring, feeding, sentences
):
    model = translator(cell=cell, attention_scoring=scoring, input_feeding=feeding)
    whole = model(**sentences).logits
    encoded = model.get_encoder()(sentences["input_ids"], sentences["attention_mask"])
    past, steps, sizes = None, [], set()
    for token in sentences["decoder_input_ids"].split(1, dim=1):
        output = model(
            attention_mask=sentences["attention_mask"],
            encoder_outputs=encoded,
            decoder_input_ids=token,
            past_key_values=past,
            use_cache=True,
        )
        past = output.past_key_values
        steps.append(output.logits)
        sizes.add(sum(tensor.numel() for tensor in past.tensors.values()))
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, **CLOSE)
    assert past.get_seq_length() == 5
    assert len(sizes) == 1


@every_design
@torch.no_grad()
def test_what_is_written_greedily_is_the_best_word_at_each_place_of_the_teacher_forced_pass(
    cell, scoring, feeding, sentences
):
    model = translator(cell=cell, attention_scoring=scoring, input_feeding=feeding)
    source = {name: sentences[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**source, max_new_tokens=6, do_sample=False, num_beams=1, eos_token_id=None)
    best = model(**source, decoder_input_ids=written[:, :-1]).logits.argmax(-1)
    assert torch.equal(best, written[:, 1:])


@pytest.mark.parametrize("scoring", ["none", "additive"])
@torch.no_grad()
def test_beams_with_states_are_beams_that_read_everything_again(scoring, sentences):
    model = translator(attention_scoring=scoring)
    source = {name: sentences[name] for name in ("input_ids", "attention_mask")}
    choices = {"max_new_tokens": 6, "num_beams": 4, "num_return_sequences": 3, "do_sample": False}
    kept, again = (model.generate(**source, **choices, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(kept, again)
    assert len({tuple(row) for row in kept[:3].tolist()}) == 3


@every_design
def test_every_weight_learns(cell, scoring, feeding, sentences):
    model = translator(cell=cell, attention_scoring=scoring, input_feeding=feeding).train()
    model(sentences["input_ids"], sentences["attention_mask"], labels=sentences["decoder_input_ids"]).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def copies(generator, rows=12):
    """Sources of 4 tokens, which are their own targets, ended by token 2."""
    ids = torch.randint(3, 9, (rows, 4), generator=generator)
    return ids, torch.cat([ids, torch.full((rows, 1), 2)], dim=1)


@pytest.mark.parametrize(("cell", "scoring"), [("lstm", "additive"), ("gru", "general"), ("rnn", "dot_product")])
def test_it_learns_to_copy_and_writes_what_it_has_learnt(cell, scoring):
    torch.manual_seed(1)
    words = {"vocab_size": 9, "hidden_size": 32, "num_hidden_layers": 1, "bos_token_id": 1, "eos_token_id": 2}
    model = FineryRnnForConditionalGeneration(
        FineryRnnConfig(**words, cell=cell, attention_scoring=scoring, hidden_dropout_prob=0.0)
    )
    optimizer, generator = torch.optim.Adam(model.parameters(), 3e-2), torch.Generator().manual_seed(1)
    ids, labels = copies(generator)
    for _ in range(70):  # 50 are enough for each
        model(ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.eval().generate(ids, max_new_tokens=5)[:, 1:], labels)


# ---- a stack alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def language_model():
    torch.manual_seed(5)
    return FineryRnnForCausalLM(FineryRnnConfig(**SHAPE, stack="decoder")).eval()


@torch.no_grad()
def test_a_language_model_sees_nothing_of_what_follows_and_ignores_padding(language_model, sentences):
    ids, mask = sentences["input_ids"], sentences["attention_mask"]
    together = language_model(ids, mask).logits
    for row in range(3):
        real = mask[row].bool()
        torch.testing.assert_close(together[row][real], language_model(ids[row][real][None]).logits[0], **CLOSE)
    torch.testing.assert_close(language_model(ids[:1, :3]).logits, language_model(ids[:1]).logits[:, :3], **CLOSE)


@torch.no_grad()
def test_a_language_model_continues_padded_prompts_as_it_continues_each_alone(language_model):
    prompts = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    choices = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    together = language_model.generate(prompts, attention_mask=(prompts != 0).long(), **choices)
    for row, prompt in enumerate((prompts[:1, 2:], prompts[1:])):
        alone = language_model.generate(prompt, **choices)
        assert together[row, 5:].tolist() == alone[0, prompt.shape[1] :].tolist()


@torch.no_grad()
def test_the_loss_of_a_language_model_is_about_the_next_word(language_model):
    ids = torch.randint(3, 37, (2, 6))
    logits = language_model(ids).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(language_model(ids, labels=ids).loss, expected)
    torch.testing.assert_close(language_model(ids, labels=ids, num_items_in_batch=5).loss, expected * 2)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@torch.no_grad()
def test_a_classifier_reads_the_last_state_the_greatest_and_the_mean(stack, sentences):
    model = FineryRnnForSequenceClassification(FineryRnnConfig(**SHAPE, stack=stack, num_labels=3)).eval()
    ids, mask = sentences["input_ids"], sentences["attention_mask"]
    logits = model(ids, mask).logits
    for row in range(3):
        read = model.model(ids[row][mask[row].bool()][None])
        states = read.last_hidden_state[0]
        summary = torch.cat([read.pooler_output[0], states.max(0).values, states.mean(0)])
        torch.testing.assert_close(logits[row], model.classifier.weight @ summary + model.classifier.bias, **CLOSE)
    backward_part = model.model(ids[:1]).last_hidden_state[0, 0, 8:]  # of the first token: where that direction ends
    pooled_end = model.model(ids[:1]).pooler_output[0, 8:]
    assert torch.allclose(backward_part, pooled_end) == (stack == "encoder")


def test_a_head_that_cannot_stand_on_a_stack_says_so():
    with pytest.raises(
        ValueError, match="FineryRnnForCausalLM needs stack: decoder, but the config's stack is 'encoder'"
    ):
        FineryRnnForCausalLM(FineryRnnConfig(**SHAPE, stack="encoder"))
    with pytest.raises(ValueError, match="needs stack: encoder or decoder"):
        FineryRnnForSequenceClassification(FineryRnnConfig(**SHAPE))
    with pytest.raises(ValueError, match="begins where its encoder ended"):
        translator()(encoder_outputs=(torch.zeros(1, 3, 16),), decoder_input_ids=torch.ones(1, 2, dtype=torch.long))


# ---- AWD-LSTM -------------------------------------------------------------------------------------------------------


def test_dropped_weights_are_one_draw_a_sequence_and_nothing_outside_training():
    model = FineryRnnModel(FineryRnnConfig(**SHAPE, stack="decoder", weight_dropout_prob=0.5, hidden_dropout_prob=0.0))
    layer, inputs = model.layers[0], torch.randn(1, 6, 12)
    dropped = layer.train().dropped()
    assert set(dropped) == {"weight_hh_l0"}
    factor = dropped["weight_hh_l0"] / layer.rnn.weight_hh_l0
    assert {round(each, 4) for each in factor.unique().tolist()} == {0.0, 2.0}
    reference = nn.LSTM(12, 16, batch_first=True)
    reference.load_state_dict(layer.rnn.state_dict() | {name: weight.detach() for name, weight in dropped.items()})
    torch.testing.assert_close(layer(inputs, None, None, dropped)[0], reference(inputs)[0], **CLOSE)
    state = tuple(torch.zeros(1, 1, 16) for _ in range(2))
    for place in range(6):
        state = layer.step(inputs[:, place], state, dropped)
    torch.testing.assert_close(state[0][:, 0], reference(inputs)[0][:, -1], **CLOSE)
    assert layer.eval().dropped() == {}


def test_variational_dropout_hides_the_same_of_every_token_and_ordinary_dropout_does_not():
    for variational in (True, False):
        config = FineryRnnConfig(**SHAPE, stack="decoder", variational_dropout=variational, hidden_dropout_prob=0.5)
        seen = FineryRnnModel(config).train().dropout(torch.ones(4, 50, 16))
        assert {round(each, 4) for each in seen.unique().tolist()} == {0.0, 2.0}
        assert bool((seen == seen[:, :1]).all()) == variational
        assert not torch.equal(seen[0], seen[1])


def test_word_dropout_takes_every_occurrence_of_a_word():
    config = FineryRnnConfig(**SHAPE, stack="decoder", word_dropout_prob=0.5, hidden_dropout_prob=0.0)
    model = FineryRnnModel(config).train()
    ids = torch.arange(3, 37).repeat(2)[None]
    kept = model.words(ids, None, model.embeddings)[0] / model.embeddings.weight[ids[0]]
    assert {round(each, 4) for each in kept.unique().tolist()} == {0.0, 2.0}
    assert torch.equal(kept[:34], kept[34:])
    assert torch.equal(kept, kept[:, :1].expand_as(kept))


# ---- weights --------------------------------------------------------------------------------------------------------


def test_cells_begin_as_torch_begins_them_and_the_rest_within_its_range():
    model = FineryRnnForConditionalGeneration(FineryRnnConfig(vocab_size=99, hidden_size=64, initializer_range=0.2))
    for name, weight in model.named_parameters():
        if ".rnn." in name:
            bound = (32 if "encoder" in name else 64) ** -0.5
        else:
            bound = 0.2
        assert 0.8 * bound < weight.abs().max() <= bound, name
    assert not model.get_input_embeddings().weight[0].any()


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_comes_back_tied_as_it_was(tied, tmp_path, sentences):
    model = translator(tie_word_embeddings=tied)
    embeddings = model.model.encoder.embeddings.weight
    assert model.model.decoder.embeddings.weight is embeddings
    assert (model.lm_head.weight is embeddings) == tied
    model.save_pretrained(tmp_path)
    again = FineryRnnForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert again.config.to_dict() | {"_name_or_path": ""} == model.config.to_dict() | {"_name_or_path": ""}
    assert again.model.decoder.embeddings.weight is again.model.encoder.embeddings.weight
    assert (again.lm_head.weight is again.model.encoder.embeddings.weight) == tied
    assert torch.equal(again(**sentences).logits, model(**sentences).logits)
