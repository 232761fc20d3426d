"""Pairs of texts without an order of their own are read in both orders, each on its own.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.3, "Similarity": "we modify the
input sequence to contain both possible sentence orderings (with a delimiter in between) and process each independently to
produce two sequence representations which are added element-wise before being fed into the linear output layer".
"""

from torch import Tensor, arange


def exchange(input_ids: Tensor, start: int, delimiter: int, extract: int) -> tuple[Tensor, Tensor]:
    """Rows `start A delimiter B extract` with A and B exchanged; rows without these tokens stay as they are.

    `input_ids` are (batch, length), padded on either side. Returns: the new ids (batch, length), and which rows are pairs (batch,).
    """
    place = arange(input_ids.shape[1], device=input_ids.device)[None, :]  # (1, length)
    first, middle, last = (_place_of(input_ids, token) for token in (start, delimiter, extract))  # (batch, 1)
    pairs = (first < middle) & (middle < last)
    size_a, size_b = middle - first - 1, last - middle - 1
    in_b = (place > first) & (place <= first + size_b)
    in_a = (place > first + size_b + 1) & (place < last)
    source = (place + size_a + 1).where(in_b, place)  # which token comes to stand at each place
    source = (place - size_b - 1).where(in_a, source)
    source = middle.where(place == first + size_b + 1, source)
    return input_ids.gather(1, source.where(pairs, place)), pairs[:, 0]


def behind(input_ids: Tensor, delimiter: int) -> Tensor:
    """Segments (batch, length) of such rows: 1 behind the delimiter, else 0."""
    there = (input_ids == delimiter).long()
    return (there.cumsum(1) - there).clamp(max=1)


def _place_of(input_ids: Tensor, token: int) -> Tensor:
    """Where the token stands first in each row (batch, 1); -1 where it does not."""
    found = input_ids == token
    return found.long().argmax(1, keepdim=True).where(found.any(1, keepdim=True), -1)
