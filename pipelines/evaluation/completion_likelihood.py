"""How likely a decoder finds the right answers, given what is asked.

The bits of an answer include those of the end of the text behind it: they are what it costs to say it, and that it is over.
Over its bytes they compare whatever the tokenizer; over its tokens, as perplexity, they are what training minimises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import Together, encode_completions, padding_token
from pipelines.evaluation.predict import Progress, batched_by_length
from pipelines.evaluation.tallies import Tally
from pipelines.protocols import World

MOST_LOGITS = 2**26
"""Numbers of a batch's output, so that long answers and large vocabularies fit into memory."""
IGNORED = -100


def likelihoods(
    model: Any,
    tokenizer: Any,
    dialogues: Sequence[Dialogue],
    max_length: int,
    *,
    world: World | None = None,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
    device: Any = "cpu",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Tally:
    """Bits, tokens and bytes of the answers of each row that has any within `max_length` tokens, on every process. fp32."""
    import torch

    world = world or World()
    examples = encode_completions(tokenizer, dialogues, range(len(dialogues)), max_length)
    together = Together(padding_token(tokenizer))
    lengths = examples.lengths.tolist()
    at_once = max(1, min(batch_size, MOST_LOGITS // (max(lengths) * model.config.get_text_config().vocab_size)))
    batches = batched_by_length(lengths, at_once)
    model = model.to(device=device, dtype=torch.float32).eval()
    mine, done = [], 0
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            done += len(batch)
            if number % world.size == world.rank:
                inputs = {name: value.to(device) for name, value in together([examples[at] for at in batch]).items()}
                labels = inputs.pop("labels")
                logits = model(**inputs).logits.float()
                nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
                mine.append((nats.double().sum(1).cpu().numpy() / np.log(2.0), (labels != IGNORED).sum(1).cpu().numpy()))
                if progress is not None:
                    progress(done, len(examples))
    by_rank = gather(mine)
    bits, tokens = np.empty(len(examples)), np.empty(len(examples))
    for number, batch in enumerate(batches):
        bits[batch], tokens[batch] = by_rank[number % len(by_rank)][number // len(by_rank)]
    return Tally.of(np.asarray(examples.index), {"bits": bits, "tokens": tokens, "bytes": examples.sizes.astype(np.float64)})
