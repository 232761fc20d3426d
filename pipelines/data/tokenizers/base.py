"""What every trained tokenizer has: five special tokens, BERT's way to join texts, and a deterministic vocabulary.

A trainer is a block of the TOKENIZERS table with one verb, `train(texts, vocab_size, extra=())`. Its result is an
ordinary transformers tokenizer: saved with `save_pretrained`, loaded by `AutoTokenizer`. The same texts in the same
order give the same vocabulary, byte for byte, on every run.

[CLS] and [SEP] are also the tokens that a text begins and ends with (`bos_token`, `eos_token`), so that a decoder made
with the tokenizer knows where to stop. Further special tokens (`extra`), such as the sentinels of span corruption,
come last: the ids before them are those of the same tokenizer with a smaller vocabulary.

Vocabularies of characters cut text into words so that the space before a word is the word's own first letter. Kudo and
Richardson 2018, "SentencePiece", section 3.1, arxiv.org/abs/1808.06226: the space becomes `▁` (U+2581), so that
joining the pieces gives the text back. Punctuation and line breaks are words of their own, and no piece crosses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNKNOWN, START, END, MASK)
"""In the order of their ids, so that padding is 0."""


def join_like_bert(tokenizer: Tokenizer) -> None:
    """`[CLS] A [SEP]`, and for pairs `[CLS] A [SEP] B [SEP]` with 1 as the type of B and its end.

    Devlin et al. 2019, "BERT", section 3 and figure 2, arxiv.org/abs/1810.04805.
    """
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} $B:1 {END}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (START, END)],
    )


def complete(tokenizer: Tokenizer, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """The trained tokenizer as one of transformers, which knows its special tokens and that its model has segments.

    Those of `extra` that it does not hold yet get the ids after its last.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in extra])
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=START,
        eos_token=END,
        cls_token=START,
        sep_token=END,
        mask_token=MASK,
        **({"extra_special_tokens": list(extra)} if extra else {}),
        model_input_names=names,
        padding_side="right",
        truncation_side="right",
        clean_up_tokenization_spaces=False,
    )


def room_for_text(vocab_size: int, extra: Sequence[str]) -> int:
    """Entries that are left beside the `extra` tokens. Raises DataError where one of them cannot be added."""
    taken = [token for token in extra if token in SPECIAL_TOKENS]
    if taken or len(set(extra)) < len(extra):
        twice = taken or sorted({token for token in extra if list(extra).count(token) > 1})
        raise DataError(f"the extra special tokens name {', '.join(twice)} a second time; each token has one entry")
    if not all(token.strip() == token and token for token in extra):
        raise DataError(
            "an extra special token is empty or has white space around it; name visible tokens such as <extra_id_0>"
        )
    return vocab_size - len(extra)


def special_tokens(mask_takes_space: bool) -> list[Any]:
    """The special tokens as they are added to a vocabulary.

    Where a word includes the space before it, the mask that stands for a word must take that space too.
    """
    from tokenizers import AddedToken

    return [
        AddedToken(token, special=True, normalized=False, lstrip=mask_takes_space and token == MASK)
        for token in SPECIAL_TOKENS
    ]


def refuse_small_vocabulary(vocab_size: int, smallest: int, why: str, extra: Sequence[str] = ()) -> None:
    """Raise DataError when the vocabulary has no room for what it must hold, the `extra` tokens included."""
    if vocab_size < smallest + len(extra):
        beside = f", and {len(extra)} tokens that the objectives need" if extra else ""
        raise DataError(
            f"vocab_size is {vocab_size}, must be at least {smallest + len(extra)} for this text: {why}{beside}"
        )


def refuse_no_text(count: int) -> None:
    """Raise DataError when there was nothing to learn from."""
    if count == 0:
        raise DataError("the text to train the tokenizer on is empty; give a data set with text in it")


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
    """How often each word occurs, in the tokenizer's own way of cutting; each different stretch without a space is
    cut once."""
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
    letters = [*ready, *sorted(counts.keys() - set(ready), key=lambda letter: (-counts[letter], letter))]
    return sorted(letters[: max(limit, len(ready))])
