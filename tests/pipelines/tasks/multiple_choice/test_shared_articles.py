"""An article that is read once gives the logits of an article that is read for each option."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.models.predict import forward
from pipelines.tasks.multiple_choice import shared_articles
from pipelines.tasks.multiple_choice.shared_articles import articles_of, can_share, pays, read_articles
from pipelines.tasks.multiple_choice.task import ChoiceRows
from pipelines.tasks.multiple_choice.training import collate_choices, encode_choices
from tests import tiny

CHOICE = Head("multiple_choice")
VARIANTS = {
    "learned": {}, "rotary": {"position": "rotary"}, "alibi": {"position": "alibi"}, "relative": {"position": "relative"},
    "sinusoidal": {"position": "sinusoidal"}, "pre": {"norm_position": "pre"}, "linear": {"attention_pattern": "linear"},
    "window": {"attention_pattern": "sliding_window", "sliding_window": 8}, "grouped": {"num_key_value_heads": 1},
}  # fmt: skip


def rows(long: int = 18) -> ChoiceRows:
    """Five questions on three articles of different lengths, not in order."""
    words = tiny.WORDS
    articles = [" ".join(words[(at * step + step) % len(words)] for at in range(long - 3 * step)) for step in range(3)]
    texts = [articles[at] for at in (0, 1, 0, 2, 1)]
    options = [
        [" ".join(words[question + option : question + 2 * option + 2]) for option in range(4)] for question in range(5)
    ]
    return ChoiceRows(texts, None, [0, 1, 2, 3, 0], range(5), options)


def plainly(model, examples):
    tokenizer = tiny.tokenizer()
    return np.stack(
        forward(
            model,
            examples,
            partial(collate_choices, tokenizer),
            lambda said, _: said.logits.float().numpy(),
            batch_size=2,
        )
    )


def decoder(**words):
    model = tiny.build("finery", CHOICE, family="decoder", **words).eval()
    tiny.disturb(model, by=0.2)
    return model


def without_segments(examples):
    return type(examples)(**{**vars(examples), "token_type_ids": None})


@pytest.mark.parametrize("words", list(VARIANTS.values()), ids=list(VARIANTS))
def test_the_logits_are_the_same(words):
    model, given = decoder(**words), rows()
    examples = without_segments(encode_choices(tiny.tokenizer(), given, 44))
    articles = articles_of(given.texts, examples)
    assert can_share(model)
    assert pays(articles, model)
    assert len({len(each.prefix) for each in articles}) == 3  # so that prefixes are filled up in a batch
    for batch_size in (1, 64):
        found, shared = read_articles(model, articles, 4, tiny.tokenizer().pad_token_id, batch_size=batch_size)
        assert shared
        np.testing.assert_allclose(np.stack(found), plainly(model, examples), atol=1e-5)
    with torch.inference_mode():  # the first batch above was read the plain way
        np.testing.assert_allclose(
            *(
                np.concatenate(way(model, articles, 0, "cpu"))
                for way in (shared_articles._shared, shared_articles._plain)
            ),
            atol=1e-5,
        )


def test_what_was_kept_of_the_article_decides_too():
    """The comparison proves nothing if the article had no part in the logits."""
    model = decoder()
    examples = without_segments(encode_choices(tiny.tokenizer(), rows(), 44))
    articles = articles_of(rows().texts, examples)
    other = [replace(each, prefix=np.where(each.prefix > 20, 20, each.prefix)) for each in articles]
    with torch.inference_mode():
        one, two = (np.concatenate(shared_articles._shared(model, each, 0, "cpu")) for each in (articles, other))
    assert np.abs(one - two).max() > 1e-3


def test_a_model_that_goes_on_otherwise_is_read_the_plain_way(monkeypatch):
    """What the first batch shows is believed."""
    model = decoder()
    examples = without_segments(encode_choices(tiny.tokenizer(), rows(), 44))
    articles = articles_of(rows().texts, examples)
    monkeypatch.setattr(
        shared_articles,
        "_shared",
        lambda model, batch, padding, device: [
            each + 1 for each in shared_articles._plain(model, batch, padding, device)
        ],
    )
    found, shared = read_articles(model, articles, 4, 0, batch_size=1)
    assert not shared
    np.testing.assert_allclose(np.stack(found), plainly(model, examples), atol=1e-5)


def test_a_gpu_shares_articles_where_it_has_more_to_do_than_to_wait(monkeypatch):
    model, given = decoder(), rows()
    examples = without_segments(encode_choices(tiny.tokenizer(), given, 44))
    articles = articles_of(given.texts, examples)
    whole = sum(len(sequence) for question in examples.input_ids for sequence in question)
    sequences = sum(map(len, examples.input_ids))
    exact = 2 * model.num_parameters(exclude_embeddings=True) * 32 * whole / sequences
    for least, expected in ((exact * 0.99, True), (exact * 1.01, False)):
        monkeypatch.setattr(shared_articles, "LEAST_OPERATIONS", {"no": least, "bf16": 0.0})
        assert pays(articles, model, device="cuda") == expected
        assert pays(articles, model, device="cuda", precision="bf16")
        assert pays(articles, model, device="cpu")


@pytest.mark.parametrize("family", ["encoder", "encoder-decoder"])
def test_where_every_token_sees_the_option_nothing_is_shared(family):
    assert not can_share(tiny.build("finery", CHOICE, family=family))


def test_sequences_keep_a_token_of_their_own_and_the_longest_common_beginning():
    sequences = [np.array(each) for each in ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 5, 6])]
    assert shared_articles._common(sequences) == 2
    assert shared_articles._common([np.array([1, 2, 9]), np.array([1, 3, 9, 9])]) == 1
    assert shared_articles._common([np.array([4]), np.array([5, 6])]) == 0
