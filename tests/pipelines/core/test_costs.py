from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.costs import LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_GPU, tokens_at_once


@given(st.integers(1, 10**7))
def test_logits_of_a_chunk_keep_to_their_bound(vocab):
    for on_cpu, most in ((True, LOGITS_AT_ONCE), (False, LOGITS_AT_ONCE_ON_GPU)):
        assert vocab <= tokens_at_once(vocab, on_cpu) * vocab <= max(most, vocab)


def test_a_processor_takes_512_tokens_and_more_only_where_words_are_few():
    words = (1_000, 8_192, 30_522, 50_257, 262_144)
    assert [tokens_at_once(vocab, on_cpu=True) for vocab in words] == [4_194, 512, 512, 512, 128]
    assert tokens_at_once(50_257, on_cpu=False) == 2_670
