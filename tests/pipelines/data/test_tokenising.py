"""Tokens are the same whether one process makes them or several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import psutil
import pytest

from pipelines.core.errors import ProcessLost
from pipelines.data import tokenising
from pipelines.data.tokenising import Tokenising, chunks, tokenised, tokens_of
from tests import tiny

TEXTS = [f"{'. '.join(part.capitalize() for part in text.split(' on '))}." for text in tiny.TEXTS] + ["", "?\n\nWhat"]


def flat(parts: Any) -> list[Any]:
    return [np.concatenate(each).tolist() for each in zip(*parts, strict=True)]


@pytest.mark.parametrize("sentences", [False, True])
def test_several_processes_make_what_one_makes(sentences: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = flat(tokenised(tiny.tokenizer(), TEXTS, 1, sentences))
    monkeypatch.setattr(tokenising, "CHUNK", 7)
    with_specials = tiny.tokenizer()
    with_specials(["a b"], padding="max_length", max_length=5, truncation=True)  # a state that must not be taken along
    assert flat(tokenised(with_specials, TEXTS, 2, sentences)) == expected
    assert flat(tokenised(tiny.tokenizer(), TEXTS, 1, sentences)) == expected


@pytest.mark.parametrize("sentences", [False, True])
def test_a_text_that_stands_in_the_data_many_times_is_tokenised_once(sentences: bool) -> None:
    encode, asked = tokenising._encoder(tiny.tokenizer()), []

    def asking(texts: list[str], offsets: bool) -> Any:
        asked.extend(texts)
        return encode(texts, offsets)

    texts = [TEXTS[0], "", TEXTS[1], TEXTS[0], TEXTS[0], "", TEXTS[-1], TEXTS[1]]
    found = tokens_of(asking, texts, sentences)
    assert asked == [TEXTS[0], "", TEXTS[1], TEXTS[-1]]
    assert flat([found]) == flat([tokens_of(encode, [text], sentences) for text in texts])


def test_other_processes_are_started_only_where_there_is_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "cores", lambda: 64)
    work = Tokenising(tiny.tokenizer())
    assert sum(len(each.documents) for each in work(TEXTS)) == len(TEXTS) - 1
    assert work._pool is None
    monkeypatch.setattr(tokenising, "WORTH", 10)
    assert [Tokenising(tiny.tokenizer())._processes() for _ in range(2)] == [1, 1]
    work._letters = 10
    assert work._processes() == 64


def test_long_texts_make_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "CHUNK_LETTERS", 10)
    texts = ["a" * 4, "b" * 7, "c" * 30, "d", "e"]
    assert list(chunks(texts)) == [texts[:2], texts[2:3], texts[3:]]


def test_a_killed_process_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "CHUNK", 1)
    others = psutil.Process().children(recursive=True)  # of other tests, some of them ended already
    work = Tokenising(tiny.tokenizer(), 1 + 1)
    made = work(TEXTS)
    next(made)
    for child in set(psutil.Process().children(recursive=True)) - set(others):
        if "spawn_main" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    with pytest.raises(ProcessLost, match=r"tokenises was killed.*lower dataset_num_proc"):
        list(made)
    work.close()


@pytest.mark.long
def test_nothing_outlives_a_process_that_is_killed() -> None:
    code = (
        "from tests import tiny; from pipelines.data.tokenising import Tokenising; import time\n"
        "if __name__ == '__main__':\n"
        "    work = Tokenising(tiny.tokenizer(), 2); made = work(tiny.TEXTS * 3000); next(made)\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        workers = psutil.Process(child.pid).children(recursive=True)
        assert len(workers) >= 2
        child.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not [each for each in alive if "spawn_main" in " ".join(each.cmdline())]
