"""Openings of film reviews as pairs of what stands first and what follows, for the encoder-decoder of `rlhf-imdb-encoder-decoder`.

Each review of IMDB gives one row: `prompt`, its first words, and `completion`, the words behind them with the space before each, so that the
two put together are the text. Line breaks written as HTML become spaces, and reviews that are too short are left out. The rows of `train`
and `test` keep their split and are put into a fixed random order.

    FINERY_DATA=<mirror> python benchmarks/imdb_openings.py --out imdb-openings [--words 6 18]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from pipelines.data.sources import find

SEED = 20_260_101
"""Of the order of the rows: the files of IMDB hold one class after the other."""


def opening(text: str, first: int, following: int) -> dict[str, str] | None:
    """The first `first` words and the `following` ones behind them, or None for a shorter text."""
    words = text.replace("<br />", " ").split()
    if len(words) < first + following:
        return None
    return {
        "prompt": " ".join(words[:first]),
        "completion": "".join(f" {word}" for word in words[first : first + following]),
    }


def main() -> None:
    """Write `train.jsonl` and `test.jsonl`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--words", type=int, nargs=2, default=(6, 18), help="words of a prompt, and of what follows")
    arguments = parser.parse_args()
    first, following = arguments.words
    arguments.out.mkdir(parents=True, exist_ok=True)
    source = find("stanfordnlp/imdb", "plain_text")
    for split in ("train", "test"):
        rows = [row for text in source.load(split)["text"][:] if (row := opening(text, first, following)) is not None]
        random.Random(SEED).shuffle(rows)
        (arguments.out / f"{split}.jsonl").write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
        print(f"{split}: {len(rows)} rows")


if __name__ == "__main__":
    main()
