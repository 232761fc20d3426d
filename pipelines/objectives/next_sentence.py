"""Masked LM and next-sentence prediction: does the second segment follow the first?

Devlin et al. 2019, "BERT", section 3.1, task 2, arxiv.org/abs/1810.04805: half of the time the second segment is the
text that follows, half of the time it comes from another document. The loss is the sum of both mean likelihoods
(appendix A.2). Labels as in the reference implementation: 0 follows, 1 does not.
"""

from __future__ import annotations

from typing import Literal

from pipelines.objectives.sentence_pairs import SentencePairs


class NextSentence(SentencePairs):
    """Name the hidden tokens, and tell whether the second segment follows the first."""

    name: Literal["next_sentence"] = "next_sentence"
