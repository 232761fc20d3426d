"""Principles are drawn, and completions are revised by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.feedback.constitution import Principle, Revise, drawn, revise, row_of
from pipelines.feedback.judges.judge import Judge

RECIPE = """\
name: x
model: {{checkpoint: some/model}}
stages:
  - {{stage: feedback, prompts: {{path: builtin/python-docs}}, judge: {{name: local, checkpoint: some/judge}}, constitution: {given}}}
"""


def load(given: str, folder: Path | None = None):
    return loads(RECIPE.format(given=given), folder=folder).stages[0]


def test_the_default_has_what_every_use_needs() -> None:
    principles = load("default").constitution
    assert len(principles) >= 5
    assert all(each.comparison and each.critique and each.revision for each in principles)


def test_a_file_becomes_part_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("principles:\n  - {id: kind, comparison: Which is kinder?}\n")
    recipe = loads(RECIPE.format(given="own.yaml"), folder=tmp_path)
    assert recipe.stages[0].constitution == (Principle(id="kind", comparison="Which is kinder?"),)
    (tmp_path / "own.yaml").unlink()
    assert loads(recipe.to_yaml()) == recipe


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("missing.yaml", "does not exist"),
        ("defualt", "Did you mean 'default'"),
        ("[]", "must have at least 1"),
        ("[{id: a}]", "says nothing"),
        ("[{id: a, critique: What is wrong?}]", "revision: is missing"),
        ("[{id: a, comparison: x}, {id: a, comparison: y}]", "'a' is the id of an earlier principle"),
        ("[{id: a, comparison: x, wrong: y}]", "unknown key 'wrong'"),
        ("[{id: a, critique: x, revision: y}]", "no principle with a 'comparison'"),
    ],
)
def test_mistakes(given: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load(given)


def test_a_file_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("principle: {id: kind}\n")
    with pytest.raises(RecipeError, match="must hold 'principles"):
        load("own.yaml", tmp_path)
    (tmp_path / "own.yaml").write_text("principles: [\n")
    with pytest.raises(RecipeError, match="no readable YAML"):
        load("own.yaml", tmp_path)


def test_each_comparison_draws_its_own_by_its_number() -> None:
    principles = [Principle(id=name, comparison="x") for name in "abc"] + [
        Principle(id="d", critique="x", revision="y")
    ]
    first = [drawn(principles, "comparison", 1, number, 0, 1).id for number in range(600)]  # type: ignore[union-attr]
    assert first == [drawn(principles, "comparison", 1, number, 0, 1).id for number in range(600)]  # type: ignore[union-attr]
    assert first != [drawn(principles, "comparison", 2, number, 0, 1).id for number in range(600)]  # type: ignore[union-attr]
    counts = Counter(first)
    assert set(counts) == {"a", "b", "c"}
    assert min(counts.values()) > 150
    assert drawn(principles, "critique", 1).id == "d"  # type: ignore[union-attr]
    assert drawn((), "comparison", 1) is None


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
