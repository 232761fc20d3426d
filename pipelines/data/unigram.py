"""Unigram: each piece has a probability of its own, and a word is cut into the most probable pieces.

Kudo 2018, "Subword Regularization", section 3.2, arxiv.org/abs/1804.10959; words are cut and spelled as in
SentencePiece (see `word_splitting`). Letters that were not kept become [UNK].

The trainer of `tokenizers` walks through the words in the order of a hash table and adds up probabilities in as many
parts as there are threads: two runs give two orders of the pieces and two sets of scores. Here the pieces are learnt by
`unigram_learning`, which works on sorted arrays, so nothing is left to chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.blocks import Block
from pipelines.data.tokenizers import (
    SPECIAL_TOKENS,
    UNKNOWN,
    complete,
    join_like_bert,
    refuse_no_text,
    refuse_small_vocabulary,
    room_for_text,
    special_tokens,
)
from pipelines.data.word_splitting import count_words, frequent_letters, split_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Unigram(Block):
    """The vocabulary of T5, ALBERT and XLNet."""

    name: Literal["unigram"] = "unigram"
    lowercase: bool = False
    """Whether upper case is removed."""
    limit_alphabet: int = Field(1000, ge=1)
    """Most different letters that are kept, the most frequent first; others become unknown."""
    max_piece_length: int = Field(16, ge=1)
    """Letters of the longest piece."""
    shrinking_factor: float = Field(0.75, gt=0, lt=1)
    """The share of the pieces that outlives each round, until as many are left as asked for."""

    def train(self, texts: Iterable[str], vocab_size: int, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens and `extra` ones included. Raises DataError."""
        from tokenizers import Tokenizer, models

        from pipelines.data.unigram_learning import learn

        texts = list(texts)
        room = room_for_text(vocab_size, extra)
        cutter = Tokenizer(models.Unigram())
        split_words(cutter, self.lowercase)
        refuse_no_text(len(texts) if any(map(str.strip, texts)) else 0)
        words = count_words(cutter, texts)
        letters = frequent_letters(words, self.limit_alphabet)
        why = f"{len(SPECIAL_TOKENS)} special tokens and {len(letters)} letters (a smaller limit_alphabet keeps fewer)"
        refuse_small_vocabulary(vocab_size, len(SPECIAL_TOKENS) + len(letters), why, extra)
        pieces = learn(words, letters, room - len(SPECIAL_TOKENS), self.max_piece_length, self.shrinking_factor)
        entries = [*((token, 0.0) for token in SPECIAL_TOKENS), *pieces]
        tokenizer = Tokenizer(models.Unigram(entries, unk_id=SPECIAL_TOKENS.index(UNKNOWN), byte_fallback=False))
        split_words(tokenizer, self.lowercase)
        tokenizer.add_special_tokens(special_tokens(mask_takes_space=True))
        join_like_bert(tokenizer)
        return complete(tokenizer, extra)
