"""Critique, then revision, by principles drawn anew; nothing written is nothing learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.feedback.constitution import Principle, Revise, revise, row_of
from pipelines.feedback.judges.judge import Judge

PRINCIPLES = [Principle(id=name, critique=f"Critique by {name}.", revision=f"Revise by {name}.") for name in "abc"]


class Writer(Judge):
    """Answers with the request it was given, and a count."""

    def __init__(self, silent: bool = False) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.silent = silent

    def write(self, conversations: Sequence[Sequence[Mapping[str, str]]], length: int, draw: int = 0) -> list[str]:
        texts = [messages[-1]["content"] for messages in conversations]
        self.asked += texts
        return [
            "" if self.silent and "Revise" in text else f"{text.splitlines()[-1]} #{len(self.asked)}" for text in texts
        ]


def test_a_round_is_a_critique_and_a_revision_by_one_principle() -> None:
    writer = Writer()
    done = revise(writer, ["p", "q"], ["one", "two"], PRINCIPLES, Revise(), 0, [0, 1])
    assert [len(rounds) for rounds in done] == [1, 1]
    for (only,), completion in zip(done, ("one", "two"), strict=True):
        assert only.critique.startswith(f"Critique by {only.principle}.")
        assert only.revision.startswith(f"Revise by {only.principle}.")
        assert any(completion in text for text in writer.asked)
    assert done == revise(Writer(), ["p", "q"], ["one", "two"], PRINCIPLES, Revise(), 0, [0, 1])


def test_each_round_works_on_what_the_one_before_wrote() -> None:
    writer = Writer()
    ((first, second, third),) = revise(writer, ["p"], ["one"], PRINCIPLES, Revise(rounds=3), 0, [5])
    assert first.revision in writer.asked[2]
    assert second.revision in writer.asked[4]
    assert len({first.principle, second.principle, third.principle}) > 1
    row = row_of("p", "one", [first, second, third])
    assert row is not None
    assert (row["prompt"], row["completion"], row["original"], row["principle"]) == (
        "p",
        third.revision,
        "one",
        third.principle,
    )
    assert len(row["rounds"]) == 3


def test_a_revision_that_says_nothing_is_left_out() -> None:
    assert revise(Writer(silent=True), ["p"], ["one"], PRINCIPLES, Revise(rounds=2), 0, [0]) == [[]]
    assert row_of("p", "one", []) is None
