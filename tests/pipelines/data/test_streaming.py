"""An example of a stream is a function of its number: whoever asks, in whatever order, after whatever kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import DataError
from pipelines.data.packing import pack
from pipelines.data.references import DatasetReference
from pipelines.data.streaming import StreamedExamples
from pipelines.data.text_reader import JoinedTexts
from tests import tiny

SENTENCES = [". ".join(word.capitalize() for word in (*text.split(" on "), text)) for text in tiny.TEXTS]


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., StreamedExamples]:
    """`stream(folder)`: the texts of two files in windows of seven documents."""
    for name, texts in (("a", SENTENCES[:25]), ("b", SENTENCES[25:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    references = [DatasetReference(path=str(tmp_path / f"{name}.jsonl")) for name in ("a", "b")]
    openers: Any = [lambda start, each=each: each.texts(start=start) for each in references]

    def build(folder: str = "stream", layout: Any = "blocks", **words: Any) -> StreamedExamples:
        given = {"seed": 3, "buffer_size": 7} | words
        return StreamedExamples(
            lambda start: JoinedTexts(openers, start), tiny.tokenizer(), layout, 14, tmp_path / folder, **given
        )

    return build


def ids(examples: Any, numbers: Any) -> list[list[int]]:
    return [examples[number]["input_ids"].tolist() for number in numbers]


@pytest.mark.parametrize("layout", ["blocks", "stream", "sentences"])
def test_every_example_is_there_once_a_pass_in_another_order(layout: str, stream: Any, tmp_path: Path) -> None:
    streamed = stream(layout=layout)
    per_pass = next(number for number in range(1, 10_000) if streamed.epochs(number) >= 1)
    seen = ids(streamed, range(2 * per_pass))
    if layout == "sentences":  # windows hold whole documents: each pass has the same spans
        assert sorted(seen[:per_pass]) == sorted(seen[per_pass:])
        assert streamed.tokens(per_pass) == sum(map(len, seen[:per_pass]))
        assert streamed.tokens(2 * per_pass - 3) == sum(map(len, seen[: 2 * per_pass - 3]))
    else:
        both = list(pack(tiny.tokenizer(), SENTENCES * 3, 16 if layout == "blocks" else 14, tmp_path, "k", layout))
        assert sorted(seen[:per_pass]) == sorted(each.tolist() for each in both[:per_pass])  # nothing lost, none twice
        assert seen[:per_pass] != [each.tolist() for each in both[:per_pass]]
        assert streamed.tokens(per_pass) == 14 * per_pass
    assert seen[:per_pass] != seen[per_pass:]
    streamed.close()


@pytest.mark.parametrize("layout", ["blocks", "sentences"])
def test_a_killed_reader_goes_on_where_it_was(layout: str, stream: Any, tmp_path: Path) -> None:
    whole = ids(stream("whole", layout), range(120))
    for stopped in (0, 11, 50, 90):
        folder = f"killed-{stopped}"
        first = stream(folder, layout)
        assert ids(first, range(stopped)) == whole[:stopped]
        index = tmp_path / folder / "windows.jsonl"
        before = index.read_bytes() if index.exists() else b""
        if before:
            index.write_bytes(before + b'{"first": 99, "posi')  # torn by the kill
        again, written = stream(folder, layout), []
        inner = again._write
        again._write = lambda at, start, inner=inner, written=written: (written.append(at), inner(at, start))[1]
        assert ids(again, range(stopped, 120)) == whole[stopped:]
        assert written == list(range(before.count(b"\n"), written[-1] + 1))  # nothing is tokenised again


def test_without_its_notes_it_gives_the_same(stream: Any) -> None:
    whole = ids(stream("whole"), range(100))
    assert ids(stream("fresh"), range(60, 100)) == whole[60:]
    assert ids(stream("backwards"), [80, 3, 60]) == [whole[80], whole[3], whole[60]]


def test_ranks_that_share_a_folder_tokenise_once(stream: Any) -> None:
    whole = ids(stream("whole"), range(64))
    ranks = [stream("shared") for _ in range(2)]
    written: list[int] = []
    for rank in ranks:
        inner = rank._write
        rank._write = lambda at, start, inner=inner: (written.append(at), inner(at, start))[1]
    rows = [ids(ranks[number // 4 % 2], [number])[0] for number in range(64)]
    assert rows == whole
    assert written == sorted(set(written))


@pytest.mark.parametrize(("layout", "ahead"), [("blocks", True), ("sentences", False)])
def test_what_is_behind_is_removed_while_the_next_window_is_made(
    layout: str, ahead: bool, stream: Any, tmp_path: Path
) -> None:
    streamed = stream("ahead", layout, ahead=ahead)
    (tmp_path / "ahead").mkdir()
    (tmp_path / "ahead" / "window-0000000001.npy.99.tmp").write_text("left by a kill")
    expected = ids(stream("whole", layout), range(200))
    assert ids(streamed, range(200)) == expected
    last = streamed._window_of(199).number
    streamed.close()
    kept = sorted({int(path.name[7:17]) for path in (tmp_path / "ahead").glob("window-*")})
    assert last > 6
    assert kept[0] == last - 2
    assert last in kept


def test_epochs_and_documents_are_counted(stream: Any) -> None:
    streamed = stream()
    per_pass = next(number for number in range(1, 10_000) if streamed.epochs(number) >= 1)
    epochs = [streamed.epochs(number) for number in range(3 * per_pass)]
    assert epochs == sorted(epochs)
    assert epochs[0] == 0
    assert epochs[per_pass // 2] == pytest.approx(0.5, abs=0.2)
    assert 2 < epochs[-1] <= 3
    assert 0 < streamed.documents(3) <= 14
    assert streamed.documents(2 * per_pass) is None


def test_a_text_without_an_example_is_refused(stream: Any, tmp_path: Path) -> None:
    streamed = stream("long", "stream")
    streamed._length = 1000
    with pytest.raises(DataError, match=r"holds \d+ tokens, too few for one block of 1000"):
        streamed[0]
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "film"}\n' * 9)
    short = stream("short", "sentences")
    with pytest.raises(DataError, match="no document of two sentences that fit into 14 tokens"):
        short[0]


def test_the_seed_changes_the_order_and_nothing_else(stream: Any) -> None:
    one, two = stream("one"), stream("two", seed=4)
    first = [window.number for window in (one._window_of(0), one._window_of(1))]
    assert first == [0, 0]
    count = one._start(1).first
    assert ids(one, range(count)) != ids(two, range(count))
    assert sorted(ids(one, range(count))) == sorted(ids(two, range(count)))
    assert np.array_equal(one._window_of(0).order, stream("three")._window_of(0).order)
