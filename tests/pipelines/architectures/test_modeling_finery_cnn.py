"""Convolutional models against the paper's arithmetic, and what they promise."""

import pytest
import torch
from torch import nn

from pipelines.architectures import FineryCnnConfig, FineryCnnForConditionalGeneration

SHAPE = {
    "vocab_size": 37,
    "hidden_size": 16,
    "embedding_size": 12,
    "num_hidden_layers": 3,
    "num_decoder_layers": 2,
    "max_position_embeddings": 19,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.8,
}
CLOSE = {"rtol": 0, "atol": 3e-5}


def translator(**words):
    torch.manual_seed(5)
    return FineryCnnForConditionalGeneration(FineryCnnConfig(**SHAPE | words)).eval()


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


def window(convolution, states, place, first):
    """What the kernel makes of its window, whose first token is `first`: Gehring et al. 2017, section 3.2, W X + b, and
    the gate v([A B]) = A ⊗ σ(B)."""
    total = convolution.bias.clone()
    for offset in range(convolution.kernel_size[0]):
        if 0 <= first + offset < len(states):
            total = total + convolution.weight[:, :, offset] @ states[first + offset]
    a, b = total.chunk(2)
    return a * b.sigmoid()


@pytest.mark.parametrize("kernel", [3, 5])
@torch.no_grad()
def test_it_is_the_papers_arithmetic_place_by_place(kernel, sentences):
    model = translator(kernel_size=kernel)
    encoder, decoder, half = model.model.encoder, model.model.decoder, 0.5**0.5
    output = model(**sentences, output_attentions=True)
    for row in range(3):
        real = sentences["attention_mask"][row].bool()
        ids = sentences["input_ids"][row][real]
        e = encoder.embeddings.weight[ids] + encoder.position_embeddings.weight[: len(ids)]
        states = encoder.widen(e)
        for layer in encoder.layers:
            gated = [window(layer.convolution, states, place, place - kernel // 2) for place in range(len(ids))]
            states = (torch.stack(gated) + states) * half
        z = encoder.narrow(states)
        target = sentences["decoder_input_ids"][row]
        g = decoder.embeddings.weight[target] + decoder.position_embeddings.weight[: len(target)]
        h = decoder.widen(g)
        for index, layer in enumerate(decoder.layers):
            following = []
            for place in range(len(target)):
                gated = window(layer.convolution, h, place, place - kernel + 1)
                d = (layer.attention.query.weight @ gated + layer.attention.query.bias + g[place]) * half  # equation 1
                a = (z @ d).softmax(0)
                c = (a[:, None] * (z + e) * half).sum(0) * len(ids) * (1 / len(ids)) ** 0.5  # equation 2, section 3.4
                attended = (gated + layer.attention.output(c)) * half
                following.append((attended + h[place]) * half)
                torch.testing.assert_close(output.cross_attentions[index][row, 0, place][real], a, **CLOSE)
            h = torch.stack(following)
        torch.testing.assert_close(output.logits[row], decoder.narrow(h) @ decoder.embeddings.weight.T, **CLOSE)


@torch.no_grad()
def test_padding_changes_nothing_wherever_it_stands(sentences):
    model = translator()
    together = model(**sentences).logits
    for row in range(3):
        ids = sentences["input_ids"][row][sentences["attention_mask"][row].bool()][None]
        alone = model(ids, decoder_input_ids=sentences["decoder_input_ids"][row : row + 1]).logits
        torch.testing.assert_close(together[row], alone[0], **CLOSE)


@torch.no_grad()
def test_padding_of_the_target_changes_nothing_either(sentences):
    model, ids = translator(), sentences["decoder_input_ids"]
    expected = model(**sentences).logits.flatten(0, 1)
    for blanks in ((2, 0), (0, 2)):
        padded = nn.functional.pad(ids, blanks)
        mask = nn.functional.pad(torch.ones_like(ids), blanks)
        wide = model(**sentences | {"decoder_input_ids": padded, "decoder_attention_mask": mask}).logits
        torch.testing.assert_close(wide[mask.bool()], expected, **CLOSE)


@torch.no_grad()
def test_no_place_sees_what_follows(sentences):
    model = translator()
    short = sentences | {"decoder_input_ids": sentences["decoder_input_ids"][:, :3]}
    torch.testing.assert_close(model(**short).logits, model(**sentences).logits[:, :3], **CLOSE)


@torch.no_grad()
def test_token_by_token_from_what_is_kept_is_the_whole_pass_at_a_cost_that_does_not_grow(sentences):
    model = translator(kernel_size=5)
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
    torch.testing.assert_close(torch.cat(steps, dim=1), model(**sentences).logits, **CLOSE)
    assert past.get_seq_length() == 5
    assert sizes == {2 * 3 * 4 * 16}  # two layers, three sentences, the four tokens before


@torch.no_grad()
def test_what_is_written_greedily_is_the_best_word_at_each_place_of_the_teacher_forced_pass(sentences):
    model = translator()
    source = {name: sentences[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**source, max_new_tokens=6, do_sample=False, num_beams=1, eos_token_id=None)
    best = model(**source, decoder_input_ids=written[:, :-1]).logits.argmax(-1)
    assert torch.equal(best, written[:, 1:])
    choices = {"max_new_tokens": 6, "num_beams": 4, "num_return_sequences": 3, "do_sample": False}
    kept, again = (model.generate(**source, **choices, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(kept, again)


def test_the_encoder_learns_by_the_share_of_the_decoders_attentions(sentences):
    """Section 3.4. The embeddings of its words are left out of it."""
    gradients = []
    for layers in (1, 2):
        model = translator(num_decoder_layers=2)
        model.config.num_decoder_layers = layers  # what the gradients are divided by, twice
        model(**sentences).logits.sum().backward()
        gradients.append(model.model.encoder.narrow.weight.grad)
    torch.testing.assert_close(gradients[0], 2 * gradients[1])


def test_every_weight_learns(sentences):
    model = translator().train()
    model(sentences["input_ids"], sentences["attention_mask"], labels=sentences["decoder_input_ids"]).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_it_learns_to_copy_and_writes_what_it_has_learnt():
    torch.manual_seed(1)
    words = {"vocab_size": 9, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
    model = FineryCnnForConditionalGeneration(FineryCnnConfig(**words, hidden_dropout_prob=0.0))
    optimizer = torch.optim.Adam(model.parameters(), 6e-3)
    ids = torch.randint(3, 9, (32, 4), generator=torch.Generator().manual_seed(1))
    labels = torch.cat([ids, torch.full((32, 1), 2)], dim=1)
    for _ in range(50):  # 25 are enough
        model(ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.eval().generate(ids, max_new_tokens=5)[:, 1:], labels)


def test_variances_stay_what_they_are_through_the_layers():
    """What the initialisation is for (section 3.5): the states neither vanish nor grow."""
    torch.manual_seed(2)
    shape = {
        "hidden_size": 64,
        "embedding_size": 64,
        "num_hidden_layers": 6,
        "vocab_size": 400,
        "hidden_dropout_prob": 0.0,
    }
    encoder = FineryCnnForConditionalGeneration(FineryCnnConfig(**shape)).get_encoder().eval()
    with torch.no_grad():
        states = encoder.widen(encoder._embedded(torch.randint(1, 400, (8, 60)), None, None))
        first = states.std()
        for layer in encoder.layers:
            states = (states + layer.gated(states, None, None)[0]) * 0.5**0.5
    assert 0.8 < states.std() / first < 1.25


def test_a_text_beyond_the_positions_is_refused_and_padding_is_no_text():
    model = translator()
    with pytest.raises(ValueError, match="20 tokens long, but max_position_embeddings is 19"):
        model(torch.ones(1, 20, dtype=torch.long), decoder_input_ids=torch.ones(1, 2, dtype=torch.long))
    mask = torch.ones(1, 20, dtype=torch.long)
    mask[0, :1] = 0
    model(torch.ones(1, 20, dtype=torch.long), mask, decoder_input_ids=torch.ones(1, 2, dtype=torch.long))


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_comes_back_tied_as_it_was(tied, tmp_path, sentences):
    model = translator(tie_word_embeddings=tied)
    embeddings = model.model.encoder.embeddings.weight
    assert model.model.decoder.embeddings.weight is embeddings
    assert (model.lm_head.weight is embeddings) == tied
    model.save_pretrained(tmp_path)
    again = FineryCnnForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert again.model.decoder.embeddings.weight is again.model.encoder.embeddings.weight
    assert (again.lm_head.weight is again.model.encoder.embeddings.weight) == tied
    assert torch.equal(again(**sentences).logits, model(**sentences).logits)
