"""What every trained tokenizer has: five special tokens, BERT's way to join texts, and a deterministic vocabulary.

A trainer is a block of the TOKENIZERS table with one verb, `train(texts, vocab_size)`. Its result is an ordinary
transformers tokenizer: saved with `save_pretrained`, loaded by `AutoTokenizer`. The same texts in the same order give
the same vocabulary, byte for byte, on every run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNKNOWN, START, END, MASK)
"""In the order of their ids, so that padding is 0."""


class TokenizerTrainer(Protocol):
    """A block that learns a vocabulary."""

    name: str

    def train(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens included. Raises DataError."""


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


def complete(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The trained tokenizer as one of transformers, which knows its special tokens and that its model has segments."""
    from transformers import PreTrainedTokenizerFast

    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, cls_token=START, sep_token=END, mask_token=MASK,
        model_input_names=names, padding_side="right", truncation_side="right", clean_up_tokenization_spaces=False,
    )


def special_tokens(mask_takes_space: bool) -> list[Any]:
    """The special tokens as they are added to a vocabulary.

    Where a word includes the space before it, the mask that stands for a word must take that space too.
    """
    from tokenizers import AddedToken

    return [
        AddedToken(token, special=True, normalized=False, lstrip=mask_takes_space and token == MASK)
        for token in SPECIAL_TOKENS
    ]


def refuse_small_vocabulary(vocab_size: int, smallest: int, why: str) -> None:
    """Raise DataError when the vocabulary has no room for what it must hold."""
    if vocab_size < smallest:
        raise DataError(f"vocab_size is {vocab_size}, must be at least {smallest} for this text: {why}")


def refuse_no_text(found: int) -> None:
    """Raise DataError when there was nothing to learn from."""
    if found == 0:
        raise DataError("the text to train the tokenizer on is empty; give a data set with text in it")
