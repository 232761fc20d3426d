"""WordPiece: words are cut into the longest known pieces, `##` marks a continuing piece.

Schuster and Nakajima 2012, "Japanese and Korean Voice Search"; text is cleaned and split as for BERT (Devlin et al.
2019, appendix A.2, arxiv.org/abs/1810.04805). Pieces are learnt by merging the most frequent neighbours, as the library
`tokenizers` does.

The trainer of `tokenizers` numbers its `##` letters in the order of a hash table, and the numbers break ties between
equally frequent merges: two runs give two vocabularies. Here every letter that can continue a word is numbered before
training starts, so nothing is left to chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.core.config import Block
from pipelines.data.tokenizers.base import (
    SPECIAL_TOKENS,
    UNKNOWN,
    complete,
    join_like_bert,
    refuse_no_text,
    refuse_small_vocabulary,
    room_for_text,
    special_tokens,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

CONTINUES = "##"


class WordPiece(Block):
    """BERT's kind of vocabulary."""

    name: Literal["wordpiece"] = "wordpiece"
    lowercase: bool = True
    """Whether upper case and accents are removed, as in BERT's uncased models."""
    min_frequency: int = Field(2, ge=1)
    """How often two pieces must be neighbours to be merged."""
    limit_alphabet: int = Field(1000, ge=1)
    """Most different letters that are kept, the most frequent first; words with others become unknown."""

    def train(self, texts: Iterable[str], vocab_size: int, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens and `extra` ones included. Raises DataError."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        texts = list(texts)
        room = room_for_text(vocab_size, extra)
        learner = Tokenizer(models.WordPiece(unk_token=UNKNOWN, continuing_subword_prefix=CONTINUES))
        learner.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        letters = self._letters(learner, texts)
        refuse_no_text(len(letters))
        continuing = [CONTINUES + letter for letter in letters if _continues(learner, letter)]
        refuse_small_vocabulary(
            vocab_size,
            len(SPECIAL_TOKENS) + len(letters) + len(continuing),
            f"{len(SPECIAL_TOKENS)} special tokens, {len(letters)} letters and {len(continuing)} of them inside words "
            "(a smaller limit_alphabet keeps fewer)",
            extra,
        )
        first = [*SPECIAL_TOKENS, *letters, *continuing]
        learner.train_from_iterator(
            texts,
            trainers.WordPieceTrainer(
                vocab_size=room,
                min_frequency=self.min_frequency,
                special_tokens=first,
                initial_alphabet=letters,
                limit_alphabet=len(letters),
                continuing_subword_prefix=CONTINUES,
                show_progress=False,
            ),
        )
        tokenizer = Tokenizer(
            models.WordPiece(learner.get_vocab(), unk_token=UNKNOWN, continuing_subword_prefix=CONTINUES)
        )
        tokenizer.normalizer = learner.normalizer
        tokenizer.pre_tokenizer = learner.pre_tokenizer
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES)
        tokenizer.add_special_tokens(special_tokens(mask_takes_space=False))
        join_like_bert(tokenizer)
        return complete(tokenizer, extra)

    def _letters(self, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """The most frequent letters of the cleaned text, in the order of their code points."""
        raw: Counter[str] = Counter()
        for text in texts:
            raw.update(text)
        counts: Counter[str] = Counter()
        for character, count in raw.items():  # cleaning works letter by letter, so each different one is cleaned once
            for letter in tokenizer.normalizer.normalize_str(character):
                counts[letter] += count
        letters = (letter for letter in counts if not letter.isspace())
        ranked = sorted(letters, key=lambda letter: (-counts[letter], letter))
        return sorted(ranked[: self.limit_alphabet])


def _continues(tokenizer: Tokenizer, letter: str) -> bool:
    """Whether a letter can stand inside a word: punctuation is always a word of its own."""
    word = tokenizer.normalizer.normalize_str(f"a{letter}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1
