import copy

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.evaluation.few_shot.encoder_decoders import EncoderDecoderReader
from pipelines.evaluation.few_shot.likelihood import Continuation
from tests import tiny


def reader(model_type, **options):
    model = tiny.build(
        model_type, Head("seq2seq_lm"), **({"family": "encoder-decoder"} if model_type == "finery" else {})
    ).eval()
    tiny.disturb(model)
    return EncoderDecoderReader(model, copy.deepcopy(tiny.tokenizer()), **options)


@pytest.mark.parametrize(
    "model_type", ["finery", pytest.param("t5", marks=pytest.mark.long), pytest.param("bart", marks=pytest.mark.long)]
)
def test_likelihoods_are_those_of_asking_token_by_token(model_type):
    asked = reader(model_type)
    encoded = [
        asked.encode(Continuation(text, f" {answer}"))
        for text in tiny.TEXTS[:5]
        for answer in ("good", "bad", "not very bad")
    ]
    expected = []
    for each in encoded:
        read, nats = [asked.start()], 0.0
        for token in each.answer:
            with torch.no_grad():
                logits = asked.model(
                    input_ids=torch.tensor([each.context]), decoder_input_ids=torch.tensor([read])
                ).logits[0, -1]
            nats += logits.double().log_softmax(-1)[token].item()
            read.append(token)
        expected.append(nats)
    assert [each.nats for each in asked.likelihoods(encoded, batch_size=2)] == pytest.approx(expected, rel=1e-4)


def test_the_encoder_reads_each_context_once():
    asked, seen = reader("t5"), []
    encoder = asked.model.get_encoder()
    forward = encoder.forward
    encoder.forward = lambda *given, **words: (seen.append(len(words["input_ids"])), forward(*given, **words))[1]
    asked.likelihoods([asked.encode(Continuation("the film was", f" {word}")) for word in ("good", "bad", "not dull")])
    assert seen == [1]


def test_an_answer_longer_than_the_decoder_is_refused():
    asked = reader("finery", limit=4)
    with pytest.raises(ModelError, match="an answer of 6 tokens does not fit into the 4 tokens"):
        asked.likelihoods([asked.encode(Continuation("the", " good bad good bad good bad"))])


def test_a_decoder_that_sees_both_sides_is_refused():
    model = tiny.build("finery", Head("seq2seq_lm"), family="encoder-decoder", bidirectional_decoder=True)
    with pytest.raises(ModelError, match="no likelihood from left to right"):
        EncoderDecoderReader(model, tiny.tokenizer())
