import copy

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.evaluation.few_shot.encoders import MaskReader
from pipelines.evaluation.few_shot.likelihood import Continuation
from tests import tiny


def reader(model_type="finery", **options):
    model = tiny.build(model_type, Head("masked_lm")).eval()
    tiny.disturb(model)
    return MaskReader(model, copy.deepcopy(tiny.tokenizer()), **options)


def by_hand(asked, encoded):
    """Each token of the answer hidden by itself, the others shown. Salazar et al. 2020, equation 1."""
    nats = 0.0
    whole = [*encoded.context, *encoded.answer, *encoded.rest]
    for place in range(len(encoded.context), len(encoded.context) + len(encoded.answer)):
        hidden = list(whole)
        hidden[place] = asked.tokenizer.mask_token_id
        with torch.no_grad():
            logits = asked.model(input_ids=torch.tensor([hidden])).logits[0, place]
        nats += logits.double().log_softmax(-1)[whole[place]].item()
    return nats


@pytest.mark.parametrize("model_type", ["finery", pytest.param("bert", marks=pytest.mark.long)])
def test_answers_in_any_place_weigh_what_hiding_them_token_by_token_gives(model_type):
    asked = reader(model_type)
    given = [
        Continuation(f"{text} it was", f" {answer}", rest)
        for text in tiny.TEXTS[:4]
        for answer in ("good", "not very bad")
        for rest in ("", " and the dog sleeps")
    ]
    encoded = [asked.encode(each) for each in given]
    assert [len(each.answer) for each in encoded[:4]] == [1, 1, 3, 3]
    assert (
        list(encoded[1].context + encoded[1].answer + encoded[1].rest)
        == asked.tokenizer(given[1].context + given[1].answer + given[1].rest)["input_ids"]
    )
    found = asked.likelihoods(encoded, batch_size=5)
    assert [each.nats for each in found] == pytest.approx([by_hand(asked, each) for each in encoded], rel=1e-4)


def test_words_of_one_token_share_one_pass():
    asked, seen = reader(), []
    requests = [asked.encode(Continuation("the film was", f" {word}")) for word in ("good", "bad", "dull")]
    asked.likelihoods(requests)  # the first call tries whether the head may see one place alone
    forward = asked.model.forward
    asked.model.forward = lambda *given, **words: (seen.append(len(words["input_ids"])), forward(*given, **words))[1]
    asked.likelihoods(requests)
    assert seen == [1]


def test_what_is_too_long_loses_its_beginning_but_not_the_mark_that_it_begins_with():
    asked = reader(limit=8)
    encoded = asked.encode(Continuation(" ".join(tiny.WORDS[:12]), " good"))
    assert asked.excess(encoded) == 1 + 12 + 1 + 1 - 8
    shortened = asked._within(encoded)
    assert shortened.context == (asked.tokenizer.cls_token_id, *encoded.context[-5:])
    assert asked.likelihoods([encoded])[0].nats == pytest.approx(by_hand(asked, shortened), rel=1e-4)


def test_a_tokenizer_without_a_mask_is_refused():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.mask_token = None
    with pytest.raises(ModelError, match="no mask token"):
        MaskReader(tiny.build("finery", Head("masked_lm")), tokenizer)
