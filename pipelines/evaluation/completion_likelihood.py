"""How likely a decoder finds the right answers, given what is asked.

The bits of an answer include those of the end of the text behind it: they are what it costs to say it, and that it is over.
Over its bytes they compare whatever the tokenizer; over its tokens, as perplexity, they are what training minimises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import Together, encode_completions, padding_token
from pipelines.evaluation.predict import Running, answers
from pipelines.evaluation.tallies import Tally

MOST_LOGITS = 2**26
"""Numbers of a batch's output, so that long answers and large vocabularies fit into memory."""
IGNORED = -100


def likelihoods(
    model: Any, tokenizer: Any, dialogues: Sequence[Dialogue], max_length: int, **running: Unpack[Running]
) -> Tally:
    """Bits, tokens and bytes of the answers of each row that has any within `max_length` tokens, on every process. fp32."""
    import torch

    examples = encode_completions(tokenizer, dialogues, range(len(dialogues)), max_length)
    together = Together(padding_token(tokenizer))
    lengths = examples.lengths.tolist()
    fitting = MOST_LOGITS // (max(lengths, default=1) * model.config.get_text_config().vocab_size)
    running["batch_size"] = max(1, min(running.get("batch_size", 32), fitting))

    def answer(positions: list[int], device: Any) -> list[tuple[float, float]]:
        """Bits and tokens of each."""
        inputs = {name: value.to(device) for name, value in together([examples[at] for at in positions]).items()}
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.float()
        nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        bits = nats.double().sum(1).cpu().numpy() / np.log(2.0)
        return list(zip(bits, (labels != IGNORED).sum(1).cpu().numpy(), strict=True))

    bits, tokens = np.asarray(answers(model, lengths, answer, **running), dtype=np.float64).T
    return Tally.of(np.asarray(examples.index), {"bits": bits, "tokens": tokens, "bytes": examples.sizes.astype(np.float64)})
