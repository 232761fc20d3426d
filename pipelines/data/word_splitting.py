"""How text is cut into words for vocabularies of characters: the space before a word is the word's own first letter.

Kudo and Richardson 2018, "SentencePiece", section 3.1, arxiv.org/abs/1808.06226: the space becomes `▁` (U+2581), so that
joining the pieces gives the text back. Punctuation and line breaks are words of their own, and no piece crosses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"
"""What stands for a space inside pieces."""


def split_words(tokenizer: Tokenizer, lowercase: bool) -> None:
    """Give a tokenizer this way to cut text, and to put it together again."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    if lowercase:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first"),
            pre_tokenizers.Split(Regex(r"[\r\n\t]+"), "isolated"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="first")


def count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, in the tokenizer's own way of cutting; each different stretch without a space is cut once."""
    stretches: Counter[str] = Counter()
    for text in texts:
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        first, *others = text.replace(SPACE, " ").split(" ")
        stretches.update(others)
        if first:  # a text that begins with a space is given no other
            stretches[first] += 1
    words: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(SPACE + stretch):
            words[word] += count
    return words


def frequent_letters(words: Counter[str], limit: int, ready: Sequence[str] = (SPACE,)) -> list[str]:
    """The `limit` most frequent letters, in the order of their code points; those of `ready` are always among them."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    known = [*ready, *sorted(counts.keys() - set(ready), key=lambda letter: (-counts[letter], letter))]
    return sorted(known[: max(limit, len(ready))])
