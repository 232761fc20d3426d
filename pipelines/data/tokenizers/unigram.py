"""Unigram: each piece has a probability of its own, and a word is cut into the most probable pieces.

Kudo 2018, "Subword Regularization", section 3.2, arxiv.org/abs/1804.10959; words are cut and spelled as in
SentencePiece, and letters that were not kept become [UNK]. The vocabulary is learnt from many candidates: their
probabilities by EM, and the least useful dropped round by round, with the choices of the reference implementation
(github.com/google/sentencepiece, unigram_model_trainer.cc): probabilities through the digamma function, candidates
expected less than half a time dropped, and the loss of a piece estimated from its second best spelling.

The trainer of `tokenizers` walks through the words in the order of a hash table and adds up probabilities in as many
parts as there are threads: two runs give two orders of the pieces and two sets of scores. Here the pieces are learnt
on sorted arrays, so nothing is left to chance. All words lie one after another in one array of letters. An edge is a
place where a candidate stands in a word: its first letter, the letter after its last, and its number. Sums over the
ways to spell a word run along the letters, for all words at once: step k reaches the k-th letter of every word that
has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

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
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerFast


Ints: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"

CANDIDATES = 20
"""Candidates a wanted piece, before the first round."""
ROUNDS_OF_EM = 2
"""How often probabilities are estimated before each dropping."""
EXPECTED = 0.5
"""A candidate that is expected less often is dropped."""
OVERHANG = 1.1
"""Dropping ends once this many times the wanted pieces are left; the last choice is by probability."""
DIGITS = 6
"""Decimals of a score: enough to rank pieces, few enough to be written and read back unchanged."""


@dataclass(frozen=True)
class Lattice:
    """Strings, and every place in them where a candidate stands. Edges are in the order of their steps."""

    starts: Ints
    """Where each edge begins, as a number of a gap between letters (edges,)."""
    ends: Ints
    """The gap where it ends (edges,)."""
    pieces: Ints
    """Its candidate (edges,)."""
    heads: Ints
    """The gap before each string's first letter (strings,)."""
    tails: Ints
    """The gap after its last (strings,)."""
    gaps: int
    """How many gaps there are."""

    def only(self, keep: npt.NDArray[np.bool_]) -> Lattice:
        """The same strings with some of the edges."""
        return replace(self, starts=self.starts[keep], ends=self.ends[keep], pieces=self.pieces[keep])

    @property
    def owner(self) -> Ints:
        """The string of each edge."""
        import numpy as np

        return np.searchsorted(self.heads, self.starts, side="right") - 1


def learn(
    words: Mapping[str, int], letters: Sequence[str], size: int, longest: int, shrink: float
) -> list[tuple[str, float]]:
    """At most `size` pieces with the logarithms of their probabilities, the most probable first; all `letters` are
    there."""
    import numpy as np

    sorted_words = sorted(words)
    counts = np.asarray([words[word] for word in sorted_words], dtype=np.int64)
    text, counts, heads, tails = _strings(sorted_words, counts, letters)
    lattice, candidates, frequencies = _candidates(text, counts, heads, tails, letters, size * CANDIDATES, longest)
    names = [_name(text, start, end) for start, end in candidates]
    single = np.asarray([len(name) == 1 for name in names])
    spelled = _spellings(lattice, candidates)
    scores = np.log(frequencies) - np.log(frequencies.sum())
    alive = np.ones(len(names), dtype=np.bool_)
    while True:
        for _ in range(ROUNDS_OF_EM):
            alive, scores = _estimate(lattice.only(alive[lattice.pieces]), counts, alive, single, scores)
        if alive.sum() <= size * OVERHANG:
            break
        wanted = max(int(size * OVERHANG), int(alive.sum() * shrink))
        survivors = _without_the_useless(
            lattice.only(alive[lattice.pieces]),
            spelled.only(alive[spelled.pieces]),
            counts,
            alive,
            single,
            scores,
            wanted,
        )
        if survivors.sum() == alive.sum():
            break
        alive = survivors
    order = sorted(np.flatnonzero(alive).tolist(), key=lambda piece: (not single[piece], -scores[piece], names[piece]))
    lowest = scores[alive].min()
    pieces = {names[piece]: float(scores[piece]) for piece in order[:size]}
    pieces |= {letter: float(lowest) for letter in letters if letter not in pieces}
    rounded = [(name, round(score, DIGITS)) for name, score in pieces.items()]
    return sorted(rounded, key=lambda entry: (-entry[1], entry[0]))[:size]


def _strings(words: Sequence[str], counts: Ints, letters: Sequence[str]) -> tuple[Ints, Ints, Ints, Ints]:
    """The code points of all words, how often each word occurs, and the gaps before and after it.

    Words are cut at letters that are not kept. Between two words lies a gap of its own, so that none touches the next.
    """
    import numpy as np

    joined = "\n".join(words)  # sorts below every letter that is kept inside words; line breaks are cut out below
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
    lengths = np.asarray([len(word) for word in words], dtype=np.int64)
    owner = np.repeat(np.arange(len(words)), lengths + 1)[: len(points)]
    begins = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    between = np.zeros(len(points), dtype=np.bool_)
    between[begins[1:] - 1] = True
    inside = np.isin(points, np.asarray([ord(letter) for letter in letters])) & ~between
    edges = np.diff(inside.astype(np.int8), prepend=0, append=0)
    heads, tails = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return points, counts[owner[heads]], heads, tails


def _name(text: Ints, start: int, end: int) -> str:
    import numpy as np

    return text[start:end].astype(np.uint32).tobytes().decode("utf-32-le", "surrogatepass")


def _candidates(
    text: Ints, counts: Ints, heads: Ints, tails: Ints, letters: Sequence[str], most: int, longest: int
) -> tuple[Lattice, Ints, Floats]:
    """The lattice of all words; a place of each candidate (candidates, 2); how often it occurs.

    Candidates are the letters and the substrings that occur twice or more, those first that cover most letters. The
    substrings of k letters are numbered by those of k - 1 and the letter that follows.
    """
    import numpy as np

    lengths = tails - heads
    word = np.repeat(np.arange(len(heads)), lengths)
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + heads[word]
    weight, room = counts[word], tails[word] - place
    number = np.unique(text[place], return_inverse=True)[1]
    by_length: list[tuple[Ints, Ints, Ints, Ints]] = []
    for length in range(1, longest + 1):
        first = np.unique(number, return_index=True)[1]
        occurs = np.bincount(number, weights=weight, minlength=len(first)).astype(np.int64)
        by_length.append((place, number, occurs, first))
        again = (occurs[number] > 1) & (room > length)
        place, number, weight, room = place[again], number[again], weight[again], room[again]
        if not len(place):
            break
        keys = number * (int(text.max()) + 1) + text[place + length]
        number = np.unique(keys, return_inverse=True)[1]
    worth = np.concatenate([occurs * length for length, (_, _, occurs, _) in enumerate(by_length, start=1)])
    size = np.concatenate([np.full(len(each[2]), length) for length, each in enumerate(by_length, start=1)])
    occurs = np.concatenate([each[2] for each in by_length])
    begins = np.concatenate([each[0][each[3]] for each in by_length])
    eligible = np.flatnonzero((size > 1) & (occurs > 1))
    best = eligible[np.lexsort((eligible, -worth[eligible]))][: max(0, most - len(letters))]
    chosen = np.concatenate([np.flatnonzero(size == 1), np.sort(best)])
    new = np.full(len(size), -1)
    new[chosen] = np.arange(len(chosen))
    offset, starts, ends, pieces = 0, [], [], []
    for length, (place, number, each, _) in enumerate(by_length, start=1):
        piece = new[number + offset]
        offset += len(each)
        starts.append(place[piece >= 0])
        ends.append(place[piece >= 0] + length)
        pieces.append(piece[piece >= 0])
    lattice = _in_steps(
        np.concatenate(starts), np.concatenate(ends), np.concatenate(pieces), heads, tails, len(text) + 1
    )
    candidates = np.stack([begins[chosen], begins[chosen] + size[chosen]], axis=1)
    return lattice, candidates, occurs[chosen].astype(np.float64)


def _in_steps(starts: Ints, ends: Ints, pieces: Ints, heads: Ints, tails: Ints, gaps: int) -> Lattice:
    """Edges sorted by how far from its string's head each one ends, then by their end."""
    import numpy as np

    owner = np.searchsorted(heads, starts, side="right") - 1
    order = np.lexsort((starts, ends, ends - heads[owner]))
    return Lattice(starts[order], ends[order], pieces[order], heads, tails, gaps)


def _spellings(lattice: Lattice, candidates: Ints) -> Lattice:
    """The candidates as strings of their own, spelled by other candidates: every edge inside, without the whole."""
    import numpy as np

    by_start = np.argsort(lattice.starts, kind="stable")
    starts = lattice.starts[by_start]
    low = np.searchsorted(starts, candidates[:, 0])
    high = np.searchsorted(starts, candidates[:, 1])
    string = np.repeat(np.arange(len(candidates)), high - low)
    edge = by_start[np.arange(len(string)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[string]]
    fits = (lattice.ends[edge] <= candidates[string, 1]) & (lattice.pieces[edge] != string)
    string, edge = string[fits], edge[fits]
    lengths = candidates[:, 1] - candidates[:, 0]
    heads = np.cumsum(lengths + 1) - (lengths + 1)
    shift = heads[string] - candidates[string, 0]
    return _in_steps(
        lattice.starts[edge] + shift,
        lattice.ends[edge] + shift,
        lattice.pieces[edge],
        heads,
        heads + lengths,
        int((lengths + 1).sum()),
    )


def _steps(lattice: Lattice) -> list[tuple[slice, Ints, Ints]]:
    """For each step its edges, where the edges with a common end begin among them, and those ends."""
    import numpy as np

    if not len(lattice.starts):
        return []
    distance = lattice.ends - lattice.heads[lattice.owner]
    borders = np.concatenate([[0], np.flatnonzero(np.diff(distance)) + 1, [len(distance)]])
    steps = []
    for low, high in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        ends = lattice.ends[low:high]
        groups = np.concatenate([[0], np.flatnonzero(np.diff(ends)) + 1])
        steps.append((slice(low, high), groups, ends[groups]))
    return steps


def _sums(lattice: Lattice, scores: Floats) -> Floats:
    """The logarithm of the summed probabilities of all spellings from a string's head to each gap (gaps,)."""
    import numpy as np

    reach = np.full(lattice.gaps, -np.inf)
    reach[lattice.heads] = 0.0
    for edges, groups, ends in _steps(lattice):
        values = reach[lattice.starts[edges]] + scores[lattice.pieces[edges]]
        top = np.maximum.reduceat(values, groups)
        top = np.where(np.isfinite(top), top, 0.0)
        sizes = np.diff(np.append(groups, len(values)))
        with np.errstate(divide="ignore"):
            reach[ends] = top + np.log(np.add.reduceat(np.exp(values - np.repeat(top, sizes)), groups))
    return reach


def _turned(lattice: Lattice) -> Lattice:
    """The same strings, read backwards."""
    import numpy as np

    last = lattice.gaps - 1
    return _in_steps(
        last - lattice.ends,
        last - lattice.starts,
        np.arange(len(lattice.pieces)),
        last - lattice.tails[::-1],
        last - lattice.heads[::-1],
        lattice.gaps,
    )


def _expected(lattice: Lattice, counts: Ints, scores: Floats) -> Floats:
    """How often each candidate stands in the text, over all spellings by their probability (candidates,)."""
    import numpy as np

    forward = _sums(lattice, scores)
    turned = _turned(lattice)
    backward = _sums(turned, scores[lattice.pieces])[::-1]
    owner = lattice.owner
    chance = forward[lattice.starts] + scores[lattice.pieces] + backward[lattice.ends] - forward[lattice.tails][owner]
    expected: Floats = np.bincount(
        lattice.pieces, weights=counts[owner] * np.exp(chance), minlength=len(scores)
    ).astype(np.float64)
    return expected


def _estimate(
    lattice: Lattice, counts: Ints, alive: npt.NDArray[np.bool_], single: npt.NDArray[np.bool_], scores: Floats
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """One round of EM: expected counts, and the scores that follow from them. Letters always stay."""
    import numpy as np
    from scipy.special import digamma

    expected = _expected(lattice, counts, scores)
    alive = alive & (single | (expected >= EXPECTED))
    expected = np.where(alive, np.maximum(expected, EXPECTED), 0.0)
    new_scores = np.full(len(scores), -np.inf)
    new_scores[alive] = digamma(expected[alive]) - digamma(expected.sum())
    return alive, new_scores


def _best(lattice: Lattice, scores: Floats) -> tuple[Floats, Ints]:
    """Each string's best spelling: the score at every gap, and the edge that leads there (gaps,); -1 where none
    does."""
    import numpy as np

    reach = np.full(lattice.gaps, -np.inf)
    reach[lattice.heads] = 0.0
    through = np.full(lattice.gaps, -1)
    for edges, groups, ends in _steps(lattice):
        values = reach[lattice.starts[edges]] + scores[lattice.pieces[edges]]
        top = np.maximum.reduceat(values, groups)
        sizes = np.diff(np.append(groups, len(values)))
        hits = np.flatnonzero(values == np.repeat(top, sizes))
        group = np.searchsorted(groups, hits, side="right") - 1
        first = np.unique(group, return_index=True)[1]
        reach[ends] = top
        through[ends] = hits[first] + edges.start
    return reach, through


def _spelled(lattice: Lattice, through: Ints) -> tuple[Ints, Ints]:
    """(string, piece) of every piece in the best spelling of every string, the strings' last pieces first."""
    import numpy as np

    strings = np.flatnonzero(through[lattice.tails] >= 0)
    gaps = lattice.tails[strings]
    pairs: list[tuple[Ints, Ints]] = []
    while len(strings):
        edge = through[gaps]
        pairs.append((strings, lattice.pieces[edge]))
        gaps = lattice.starts[edge]
        going = gaps > lattice.heads[strings]
        strings, gaps = strings[going], gaps[going]
    empty = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([each[0] for each in pairs] or [empty]),
        np.concatenate([each[1] for each in pairs] or [empty]),
    )


def _without_the_useless(
    lattice: Lattice,
    spelled: Lattice,
    counts: Ints,
    alive: npt.NDArray[np.bool_],
    single: npt.NDArray[np.bool_],
    scores: Floats,
    wanted: int,
) -> npt.NDArray[np.bool_]:
    """The candidates without those whose loss changes the text's likelihood least; `wanted` are left, or fewer.

    A candidate whose own best spelling uses others is never used and goes at once. The loss of another is what the
    text's likelihood falls by when the places where it stands are spelled its second best way.
    """
    import numpy as np

    strings, pieces = _spelled(lattice, _best(lattice, scores)[1])
    used = np.bincount(pieces, weights=counts[strings], minlength=len(scores))
    total = used.sum()
    reach, through = _best(spelled, scores)
    second = reach[spelled.tails]
    strings, pieces = _spelled(spelled, through)
    parts = np.bincount(strings, minlength=len(scores))
    log_used = np.log(np.maximum(used, 1e-300))
    log_rest = np.log(np.maximum(total + used * (parts - 1), 1e-300))
    each = np.log(np.maximum(used[pieces] + used[strings], 1e-300)) - log_rest[strings]
    instead = np.bincount(strings, weights=each, minlength=len(scores))
    loss = np.where(used > 0, used / total * (log_used - np.log(total) - instead), 0.0)
    must_stay = alive & (single | ~np.isfinite(second))
    may_stay = np.flatnonzero(alive & ~must_stay & (scores >= second) & (used > 0))
    best = may_stay[np.lexsort((may_stay, -loss[may_stay]))][: max(0, wanted - int(must_stay.sum()))]
    survivors = must_stay.copy()
    survivors[best] = True
    return survivors


class Unigram(Block):
    """The vocabulary of T5, ALBERT and XLNet."""

    name: Literal["unigram"] = "unigram"
    lowercase: bool = False
    """Whether upper case is removed."""
    limit_alphabet: int = Field(1000, ge=1)
    """Most different letters that are kept, the most frequent first; others become unknown."""
    max_piece_length: int = Field(16, ge=1)
    """Letters of the longest piece."""
    shrinking_factor: float = Field(0.75, gt=0, lt=1)
    """The share of the pieces that outlives each round, until as many are left as asked for."""

    def train(self, texts: Iterable[str], vocab_size: int, extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """A tokenizer with at most `vocab_size` entries, special tokens and `extra` ones included. Raises DataError."""
        from tokenizers import Tokenizer, models

        texts = list(texts)
        room = room_for_text(vocab_size, extra)
        cutter = Tokenizer(models.Unigram())
        split_words(cutter, self.lowercase)
        refuse_no_text(len(texts) if any(map(str.strip, texts)) else 0)
        words = count_words(cutter, texts)
        letters = frequent_letters(words, self.limit_alphabet)
        why = f"{len(SPECIAL_TOKENS)} special tokens and {len(letters)} letters (a smaller limit_alphabet keeps fewer)"
        refuse_small_vocabulary(vocab_size, len(SPECIAL_TOKENS) + len(letters), why, extra)
        pieces = learn(words, letters, room - len(SPECIAL_TOKENS), self.max_piece_length, self.shrinking_factor)
        entries = [*((token, 0.0) for token in SPECIAL_TOKENS), *pieces]
        tokenizer = Tokenizer(models.Unigram(entries, unk_id=SPECIAL_TOKENS.index(UNKNOWN), byte_fallback=False))
        split_words(tokenizer, self.lowercase)
        tokenizer.add_special_tokens(special_tokens(mask_takes_space=True))
        join_like_bert(tokenizer)
        return complete(tokenizer, extra)
