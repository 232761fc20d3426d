"""Structured outputs: answers that are JSON, or JSON of a schema.

A grammar is read beside the text: at each place it says which tokens may come, the others are not chosen, and the text
ends where it is complete. What is left to choose is the model's: its log-probabilities are told as they are. llguidance
compiles the schema and knows which tokens of the vocabulary a text may go on with, whatever characters they join
(Koo et al. 2024, "Automata-based constraints for language model decoding", arxiv.org/abs/2407.08103, has the idea).
No white space stands between the parts of a document: where a grammar allows it, a model that has learnt no JSON writes
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.core.errors import CommandError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

MISSING = "structured outputs need the package llguidance where the service runs: pip install 'finery[structured]'"


class Grammar:
    """What one text may go on with, token by token."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, logits: Tensor) -> Tensor:
        """The logits (vocab,), those of tokens that may not come next at minus infinity."""
        import torch

        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        kept = torch.from_numpy(bits[: len(logits)].astype(np.bool_)).to(logits.device)
        return logits.masked_fill(~kept, float("-inf"))

    def take(self, token: int) -> bool:
        """Go on behind the next token; whether the text is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class GrammarCompiler:
    """Grammars for the tokens of one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], rows: int) -> None:
        """`ends` are the tokens that end a text, `rows` the tokens that the model has logits of."""
        self._tokenizer, self._ends, self._rows = tokenizer, list(ends), rows

    @cached_property
    def _vocabulary(self) -> Any:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise CommandError(MISSING) from None
        try:
            return from_tokenizer(
                self._tokenizer, n_vocab=max(self._rows, len(self._tokenizer)), eos_token=self._ends or None
            )
        except ValueError as error:
            raise CommandError(
                f"this model cannot be held to a schema, since its tokens are no pieces of text: {error}"
            ) from None

    def compile_json_schema(self, schema: str) -> Grammar:
        """JSON that this schema, as JSON, allows. Raises CommandError where it cannot be followed."""
        vocabulary = self._vocabulary
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
            matcher = LLMatcher(vocabulary, grammar, log_level=0)
            problem = matcher.get_error() if matcher.is_error() else ""
        except ValueError as error:
            problem = str(error)
        if problem:
            raise CommandError(f"the schema of 'response_format' cannot be followed: {' '.join(problem.split())[:300]}")
        return Grammar(matcher)
