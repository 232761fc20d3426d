"""The maps are the model's own attention, named by the tokens that it read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.errors import CommandError, ModelError
from pipelines.models import attention_maps
from pipelines.models.attention_maps import AttentionMaps, AttentionRequest, AttentionSection, attend
from tests import writers
from tests.writers import TEXT


def maps(kind: str, text: str = TEXT, **asked: Any) -> AttentionMaps:
    return attend(AttentionRequest(str(writers.folder(kind)), text, **asked))


def section(weights: Any, name: str = "encoder") -> AttentionSection:
    weights = np.asarray(weights, dtype=np.float32)[None, None]
    rows, columns = weights.shape[-2:]
    return AttentionSection(
        name, name, tuple(map(str, range(rows))), tuple(map(str, range(columns))), weights, (1,), (1,)
    )


def test_an_encoders_first_layer_is_softmax_of_queries_and_keys() -> None:
    found = maps("bert").sections[0]
    model = writers.model("bert").bert
    ids = torch.tensor([writers.tokenizer()(TEXT)["input_ids"]])
    with torch.no_grad():
        states = model.embeddings(ids)[0]
        layer = model.encoder.layer[0].attention.self
        query, key = ((part(states)).view(len(states), 2, 8).transpose(0, 1) for part in (layer.query, layer.key))
        expected = (query @ key.transpose(1, 2) / math.sqrt(8)).softmax(-1)
    assert found.queries == found.keys == ("[CLS]", *TEXT.split(), "[SEP]")
    assert found.weights.shape == (2, 2, 8, 8)
    np.testing.assert_allclose(found.weights[0], expected.numpy(), atol=1e-5)
    assert expected.std() > 0.02  # the weights differ, so that the comparison means something


@pytest.mark.parametrize("kind", ["bert", "bert-classifier", "gpt2", "t5"])
def test_every_row_shares_out_the_whole_attention(kind: str) -> None:
    for each in maps(kind).sections:
        np.testing.assert_allclose(each.weights.sum(-1), 1.0, atol=1e-5)
        assert (each.weights >= 0).all()


def test_a_decoder_reads_the_bare_text_and_looks_back_only() -> None:
    found = maps("gpt2")
    assert found.family == "decoder"
    assert found.sections[0].queries == tuple(TEXT.split())
    assert found.sections[0].weights.shape == (3, 2, 6, 6)
    assert not np.triu(found.sections[0].weights, 1).any()


def test_an_encoder_decoder_has_three_kinds_of_attention() -> None:
    target = "the dog runs"
    found = maps("t5", target=target)
    encoder, decoder, cross = found.sections
    read, said = ("[CLS]", *TEXT.split(), "[SEP]"), ("[PAD]", "[CLS]", *target.split())  # begins with T5's start token
    assert [each.name for each in found.sections] == ["encoder", "decoder", "cross"]
    assert (encoder.queries, encoder.keys) == (read, read)
    assert (decoder.queries, decoder.keys) == (said, said)
    assert (cross.queries, cross.keys) == (said, read)
    assert not np.triu(decoder.weights, 1).any()
    assert np.triu(encoder.weights, 1).any()
    model = writers.model("t5")
    model.set_attn_implementation("eager")
    ids = torch.tensor([writers.tokenizer()(TEXT)["input_ids"]])
    labels = writers.tokenizer()(target, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        shifted = model._shift_right(labels)
        expected = model(input_ids=ids, decoder_input_ids=shifted, output_attentions=True).cross_attentions[1][0]
    np.testing.assert_allclose(cross.weights[1], expected.numpy(), atol=1e-6)


def test_without_a_target_the_decoder_reads_the_models_own_greedy_answer() -> None:
    found = maps("t5")
    ids = torch.tensor([writers.tokenizer()(TEXT)["input_ids"]])
    own = (
        writers.model("t5")
        .generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)[0]
        .tolist()
    )
    own = own[:-1] if own[-1] == writers.tokenizer().eos_token_id else own
    assert list(found.sections[1].queries) == writers.tokenizer().convert_ids_to_tokens(own)
    assert "the model's own answer" in found.notes[0]


def test_two_texts_are_read_together() -> None:
    assert maps("bert", pair="the dog").sections[0].keys == ("[CLS]", *TEXT.split(), "[SEP]", "the", "dog", "[SEP]")


def test_one_layer_and_head_of_all_keep_their_numbers() -> None:
    whole, one = maps("gpt2").sections[0], maps("gpt2", layer=3, head=2).sections[0]
    assert (one.layers, one.heads) == ((3,), (2,))
    assert np.array_equal(one.weights[0, 0], whole.weights[2, 1])
    assert [(each["layer"], each["head"]) for each in one.summary()["maps"]] == [(3, 2)]
    assert one.summary()["maps"][0] == whole.summary()["maps"][5]


def test_a_long_text_is_cut_with_a_note() -> None:
    found = maps("bert", " ".join(["cat"] * 30), limit=10)
    assert len(found.sections[0].keys) == 10
    assert found.sections[0].keys[-1] == "[SEP]"
    assert found.notes == ("The text has 32 tokens; 10 are shown (--limit shows more).",)


def test_a_text_longer_than_the_model_is_cut_where_its_positions_end() -> None:
    found = maps("bert", " ".join(["cat"] * 90), limit=64)
    assert len(found.sections[0].keys) == 40
    assert "as many as the model has positions for" in found.notes[0]


def test_entropy_and_distance_of_maps_worked_out_by_hand() -> None:
    half = section([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]])
    # bits: 1, 0, 2, 0; distances: 0.5, 0, (2 + 1 + 0 + 1) / 4, 3
    assert half.entropies().tolist() == [[pytest.approx(0.75)]]
    distances = half.distances()
    assert distances is not None
    assert distances.tolist() == [[pytest.approx((0.5 + 0 + 1 + 3) / 4)]]
    assert section([[1.0, 0.0]], "cross").distances() is None


def test_bytes_of_a_byte_level_vocabulary_are_shown_as_letters() -> None:
    from pipelines.data.tokenizers.bpe import BPE

    tokenizer = BPE(min_frequency=1).train(["ein schönes Haus für Käthe"] * 3, 400)
    ids = tokenizer("ein schönes Haus")["input_ids"]
    assert attention_maps._pieces(tokenizer, ids) == ["[CLS]", "▁ein", "▁schönes", "▁Haus", "[SEP]"]


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("bert", {"text": " "}, "the text is empty"),
        ("bert", {"target": "x"}, "has no decoder; leave it out"),
        ("gpt2", {"target": "x"}, "has no encoder"),
        ("bert", {"layer": 3}, "--layer is 3, but the encoder attention has layers 1 to 2"),
        ("gpt2", {"head": 9}, "has heads 1 to 2"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(kind: str, asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        maps(kind, **{"text": TEXT} | asked)


@pytest.mark.parametrize("kind", ["mamba", "fnet"])
def test_a_model_that_forms_no_map_is_refused(kind: str, tmp_path: Path) -> None:
    import transformers as hf

    size = len(writers.tokenizer())
    if kind == "mamba":
        made: Any = hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, state_size=4)
        )
    else:
        made = hf.FNetForMaskedLM(
            hf.FNetConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, intermediate_size=16)
        )
    writers.saved(made, tmp_path)
    with pytest.raises(ModelError, match="gives no attention weights"):
        attend(AttentionRequest(str(tmp_path), TEXT))


def test_more_than_a_page_can_show_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_maps, "MOST_WEIGHTS", 2 * 2 * 8 * 8 - 1)
    with pytest.raises(
        CommandError, match="the maps hold 256 weights, more than the 255 that a page can show: lower --limit"
    ):
        maps("bert")
    assert maps("bert", layer=1).sections[0].weights.size == 128


@pytest.mark.parametrize(
    ("head", "words", "names"),
    [
        ("masked_lm", {}, ["encoder"]),
        ("masked_lm", {"position": "alibi", "attention_pattern": "sliding_window", "sliding_window": 2}, ["encoder"]),
        ("causal_lm", {"position": "rotary", "num_key_value_heads": 1}, ["decoder"]),
        ("seq2seq_lm", {}, ["encoder", "decoder", "cross"]),
        ("seq2seq_lm", {"bidirectional_decoder": True, "length_prediction": True}, ["encoder", "decoder", "cross"]),
    ],
)
def test_our_own_family_shows_its_attention(head: str, words: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    place = writers.saved(writers.finery(head, **words), tmp_path)
    found = attend(AttentionRequest(str(place), TEXT))
    assert [each.name for each in found.sections] == names
    for each in found.sections:
        assert each.weights.shape == (2, 2, len(each.queries), len(each.keys))
        np.testing.assert_allclose(each.weights.sum(-1), 1.0, atol=1e-5)
        looks_ahead = np.triu(each.weights, 1).any()
        assert looks_ahead or each.name == "decoder"
        if each.name == "decoder":
            assert looks_ahead == bool(words.get("bidirectional_decoder"))
        if "sliding_window" in words:
            assert not np.triu(each.weights, 3).any()
            assert np.triu(each.weights, 2).any()


def test_linear_attention_is_refused(tmp_path: Path) -> None:
    place = writers.saved(writers.finery("causal_lm", attention_pattern="linear"), tmp_path)
    with pytest.raises(ModelError, match=r"gives no attention weights .* as linear attention does not"):
        attend(AttentionRequest(str(place), TEXT))


def test_a_decoder_that_sees_both_sides_reads_the_bare_target(tmp_path: Path) -> None:
    place = writers.saved(writers.finery("seq2seq_lm", bidirectional_decoder=True, length_prediction=True), tmp_path)
    decoder = attend(AttentionRequest(str(place), TEXT, target="the dog runs")).sections[1]
    assert decoder.queries == ("the", "dog", "runs")
    assert decoder.title == "Decoder: each token looks at the decoder's text"


@pytest.mark.parametrize("family", ["rnn", "cnn"])
def test_of_a_model_without_self_attention_the_alignment_alone_is_shown(family: str, tmp_path: Path) -> None:
    from pipelines.architectures import (
        FineryCnnConfig,
        FineryCnnForConditionalGeneration,
        FineryRnnConfig,
        FineryRnnForConditionalGeneration,
    )

    words = writers.tokenizer()
    shape = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": words.pad_token_id}
    shape |= {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id, "initializer_range": 1.0}
    torch.manual_seed(1)
    made: Any = (
        FineryRnnForConditionalGeneration(FineryRnnConfig(**shape))
        if family == "rnn"
        else FineryCnnForConditionalGeneration(FineryCnnConfig(**shape))
    ).eval()
    found = attend(AttentionRequest(str(writers.saved(made, tmp_path)), TEXT, target="the dog runs"))
    (cross,) = found.sections
    assert (cross.name, found.family) == ("cross", "encoder-decoder")
    assert cross.weights.shape == (1 if family == "rnn" else 2, 1, 4, 8)
    np.testing.assert_allclose(cross.weights.sum(-1), 1.0, atol=1e-5)
    ids = torch.tensor([words(TEXT)["input_ids"]])
    target = torch.tensor([[words.bos_token_id, *words("the dog runs", add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        own = made(ids, decoder_input_ids=target, output_attentions=True).cross_attentions
    np.testing.assert_allclose(cross.weights[:, 0], torch.stack(own)[:, 0, 0].numpy(), atol=1e-6)


def test_a_recurrent_network_without_attention_says_that_it_has_none(tmp_path: Path) -> None:
    from pipelines.architectures import FineryRnnConfig, FineryRnnForConditionalGeneration

    words = writers.tokenizer()
    config = FineryRnnConfig(vocab_size=len(words), hidden_size=8, attention_scoring="none", bos_token_id=2)
    folder = writers.saved(FineryRnnForConditionalGeneration(config), tmp_path)
    with pytest.raises(CommandError, match="is a recurrent network without attention"):
        attend(AttentionRequest(str(folder), TEXT))
