"""BPE on letters and on bytes: the most frequent neighbours become one piece, again and again.

Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", section 3.2, algorithm 1,
arxiv.org/abs/1508.07909.

`BPE` spells words with letters. Where the paper marks the end of a word, `▁` marks its beginning here, as in
SentencePiece, so that the text comes back with its spaces. Letters that were not kept become [UNK]. The trainer of
`tokenizers` drops rare letters in the order of a hash table when it is told how many to keep. Here the letters are
chosen and numbered before training starts, so nothing is left to chance.

`ByteBPE` can write any text, and every text comes back to the byte, because its alphabet is the 256 bytes; words are
split as GPT-2 does (Radford et al. 2019, section 2.2). The special tokens are wired for encoders, as in BERT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.core.config import Block
from pipelines.data.tokenizers.base import (
    SPECIAL_TOKENS,
    UNKNOWN,
    complete,
    count_words,
    frequent_letters,
    join_like_bert,
    refuse_no_text,
    refuse_small_vocabulary,
    room_for_text,
    special_tokens,
    split_words,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class BPE(Block):
    """The vocabulary of Sennrich's translation models, of GPT and of Llama."""

    name: Literal["bpe"] = "bpe"
    lowercase: bool = False
    """Whether upper case is removed."""
    min_frequency: int = Field(2, ge=1)
    """How often two pieces must be neighbours to be merged."""
    limit_alphabet: int = Field(1000, ge=1)
    """Most different letters that are kept, the most frequent first; others become unknown."""

    def train(self, texts: Iterable[str], vocab_size: int, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens and `extra` ones included. Raises DataError."""
        from tokenizers import Tokenizer, models, trainers

        texts = list(texts)
        room = room_for_text(vocab_size, extra)
        tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
        split_words(tokenizer, self.lowercase)
        refuse_no_text(len(texts) if any(map(str.strip, texts)) else 0)
        letters = frequent_letters(count_words(tokenizer, texts), self.limit_alphabet)
        why = f"{len(SPECIAL_TOKENS)} special tokens and {len(letters)} letters (a smaller limit_alphabet keeps fewer)"
        refuse_small_vocabulary(vocab_size, len(SPECIAL_TOKENS) + len(letters), why, extra)
        tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=room,
                min_frequency=self.min_frequency,
                special_tokens=special_tokens(mask_takes_space=True),
                initial_alphabet=letters,
                limit_alphabet=len(letters),
                show_progress=False,
            ),
        )
        join_like_bert(tokenizer)
        return complete(tokenizer, extra)


class ByteBPE(Block):
    """GPT-2's and RoBERTa's kind of vocabulary."""

    name: Literal["byte_bpe"] = "byte_bpe"
    lowercase: bool = False
    """Whether upper case is removed."""
    min_frequency: int = Field(2, ge=1)
    """How often two pieces must be neighbours to be merged."""
    add_prefix_space: bool = False
    """Whether a text's first word is written as every other word is, with a space before it, which then comes back
    with the text."""

    def train(self, texts: Iterable[str], vocab_size: int, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens and `extra` ones included. Raises DataError."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        room = room_for_text(vocab_size, extra)
        why = f"{len(SPECIAL_TOKENS)} special tokens and {len(letters)} bytes"
        refuse_small_vocabulary(vocab_size, len(SPECIAL_TOKENS) + len(letters), why, extra)
        tokenizer = Tokenizer(models.BPE())
        if self.lowercase:
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
        texts = list(texts)
        refuse_no_text(len(texts) if any(map(str.strip, texts)) else 0)
        tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=room,
                min_frequency=self.min_frequency,
                special_tokens=special_tokens(mask_takes_space=True),
                initial_alphabet=letters,
                limit_alphabet=len(letters),
                show_progress=False,
            ),
        )
        join_like_bert(tokenizer)
        return complete(tokenizer, extra)
