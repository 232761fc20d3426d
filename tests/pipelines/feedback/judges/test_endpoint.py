"""The endpoint judge: what it sends, what it reads, what it costs, and how it ends when the server does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pipelines.core.errors import RecipeError, StageError, Stopped
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.feedback.judges import endpoint_client
from pipelines.feedback.judges.endpoint import EndpointJudge, EndpointJudgeBlock

RECIPE = """\
name: x
model: {{checkpoint: some/model}}
stages:
  - {{stage: feedback, prompts: {{path: builtin/python-docs}}, judge: {{name: endpoint, base_url: {url}, model: m{more}}}}}
"""


def context(tmp_path: Path) -> Any:
    return SimpleNamespace(cache=tmp_path, stop=StopSignal())


def opened(block: EndpointJudgeBlock, tmp_path: Path, handler: Any) -> EndpointJudge:
    judge = block.open(context(tmp_path))
    assert isinstance(judge, EndpointJudge)
    judge.client.connector = lambda connections: httpx.MockTransport(handler)
    return judge


def answering(reader: Any) -> Any:
    """A server whose answer is `reader(the question)`: a text, or a text with the places of its tokens."""

    def handler(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        found = reader(asked["messages"][-1]["content"])
        text, places = found if isinstance(found, tuple) else (found, None)
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        if places is not None and asked.get("logprobs"):
            choice["logprobs"] = {"content": places}
        return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 1}})

    return handler


def shown(question: str) -> tuple[str, str]:
    """The completions that stand as A and as B in a question."""
    parts = [question.partition(f"completion {letter} begins]\n")[2].partition("\n[")[0] for letter in "AB"]
    return parts[0], parts[1]


def likes_long(question: str) -> str:
    first, second = shown(question)
    return "A" if len(first) > len(second) else "B"


BLOCK = {"base_url": "http://judge.test/v1", "model": "m"}


def test_both_orders_are_asked_and_averaged(tmp_path: Path) -> None:
    judge = opened(EndpointJudgeBlock(**BLOCK), tmp_path, answering(likes_long))
    found = judge.compare(["p", "p"], ["long text", "x"], ["short", "longest text"])
    assert [each.probability for each in found] == [1.0, 0.0]
    assert all(each.consistent for each in found)
    assert judge.spent.questions == 4
    always_a = opened(EndpointJudgeBlock(**BLOCK), tmp_path / "other", answering(lambda question: "A"))
    (verdict,) = always_a.compare(["p"], ["one"], ["two"])
    assert (verdict.probability, verdict.consistent, verdict.decided) == (0.5, False, False)
    once = opened(EndpointJudgeBlock(**BLOCK, both_orders=False), tmp_path / "third", answering(lambda question: "A"))
    (verdict,) = once.compare(["p"], ["one"], ["two"])
    assert (verdict.probability, verdict.consistent) == (1.0, None)


def test_probabilities_of_tokens_are_used_where_there_are_some(tmp_path: Path) -> None:
    places = [
        {
            "token": "A",
            "logprob": -0.1,
            "top_logprobs": [{"token": "A", "logprob": -0.2231435513}, {"token": "B", "logprob": -1.609437912}],
        }
    ]
    judge = opened(EndpointJudgeBlock(**BLOCK), tmp_path, answering(lambda question: ("A", places)))
    (verdict,) = judge.compare(["p"], ["one"], ["two"])
    assert (verdict.shown_first, verdict.shown_second) == (pytest.approx(0.8), pytest.approx(0.2))
    odd = opened(EndpointJudgeBlock(**BLOCK), tmp_path / "odd", answering(lambda question: ("A", ["Yes", None])))
    (verdict,) = odd.compare(["p"], ["one"], ["two"])
    assert verdict.shown_first == 1.0
    without = opened(
        EndpointJudgeBlock(**BLOCK, logprobs=False), tmp_path / "other", answering(lambda question: ("A", places))
    )
    (verdict,) = without.compare(["p"], ["one"], ["two"])
    assert verdict.shown_first == 1.0


def test_what_cannot_be_read_is_an_abstention(tmp_path: Path) -> None:
    judge = opened(EndpointJudgeBlock(**BLOCK), tmp_path, answering(lambda question: "I would rather not say."))
    (verdict,) = judge.compare(["p"], ["one"], ["two"])
    assert verdict.abstained
    assert judge.rate(["p"], ["one"])[0].score is None
    assert judge.scores(["p"], ["one"]) == [0.0]


def test_reasons_are_kept_as_text(tmp_path: Path) -> None:
    judge = opened(
        EndpointJudgeBlock(**BLOCK, thought=True),
        tmp_path,
        answering(lambda question: "<b>Both</b> are short.\nAnswer: B"),
    )
    (verdict,) = judge.compare(["p"], ["one"], ["two"])
    assert verdict.reason.startswith("<b>Both</b>")
    assert verdict.shown_first == 0.0


def test_ratings_are_read_and_centred(tmp_path: Path) -> None:
    judge = opened(EndpointJudgeBlock(**BLOCK), tmp_path, answering(lambda question: "10"))
    assert judge.scores(["p"], ["one"]) == [1.0]


def test_principles_stand_in_the_question(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(question: str) -> str:
        seen.append(question.splitlines()[0])
        return "A"

    judge = opened(EndpointJudgeBlock(**BLOCK, question="Which is shorter?"), tmp_path, answering(note))
    judge.compare(["p", "p"], ["a", "b"], ["c", "d"], ["Which is kinder?", None])
    assert sorted(set(seen)) == ["Which is kinder?", "Which is shorter?"]


def test_tokens_and_cost_are_counted_kept_answers_included(tmp_path: Path) -> None:
    block = EndpointJudgeBlock.model_validate(
        {**BLOCK, "name": "endpoint", "prices": {"prompt": 2.0, "completion": 10.0}}
    )
    for _ in range(2):
        judge = opened(block, tmp_path, answering(likes_long))
        judge.compare(["p"], ["long text"], ["short"])
        assert judge.spent.taken() == {
            "questions": 2,
            "prompt_tokens": 200,
            "completion_tokens": 2,
            "cost": pytest.approx(200 * 2e-6 + 2 * 1e-5),
        }
        assert judge.spent.questions == 0


def test_a_server_that_goes_away_ends_the_run_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE", 0.01)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    judge = opened(EndpointJudgeBlock(**BLOCK, retries=1), tmp_path, gone)
    with pytest.raises(Stopped, match="finery resume") as caught:
        judge.compare(["p"], ["one"], ["two"])
    assert caught.value.exit_code == 75
    judge.stop.requested = True
    with pytest.raises(Stopped):
        judge.compare(["p"], ["one"], ["two"])


def test_a_key_that_is_not_there_is_told_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(StageError, match="NO_SUCH_KEY"):
        EndpointJudgeBlock(**BLOCK, api_key_env="NO_SUCH_KEY").open(context(tmp_path))
    monkeypatch.setenv("NO_SUCH_KEY", "sk-1")
    judge = EndpointJudgeBlock(**BLOCK, api_key_env="NO_SUCH_KEY").open(context(tmp_path))
    assert isinstance(judge, EndpointJudge)
    assert judge.client.key == "sk-1"


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("api.example.com/v1", "", "no address"),
        ("ftp://api.example.com", "", "no address"),
        ("'https://user:word@api.example.com/v1'", "", "more than an address"),
        ("'https://api.example.com/v1?key=1'", "", "more than an address"),
        ("https://api.example.com/v1", ", api_key_env: sk-abc", "never stands in a recipe"),
        ("https://api.example.com/v1", ", api_key: abc", "unknown key 'api_key'. Did you mean"),
        ("https://api.example.com/v1", ", concurrency: 0", "at least 1"),
    ],
)
def test_mistakes(url: str, more: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        loads(RECIPE.format(url=url, more=more))


def test_patience_is_no_part_of_what_is_asked() -> None:
    one = loads(RECIPE.format(url="https://api.example.com/v1/", more="")).stages[0]
    two = loads(
        RECIPE.format(
            url="https://api.example.com/v1", more=", concurrency: 2, timeout: 5.0, retries: 1, api_key_env: KEY"
        )
    ).stages[0]
    three = loads(RECIPE.format(url="https://api.example.com/v1", more=", temperature: 0.5")).stages[0]
    assert one.identity() == two.identity()
    assert one.identity() != three.identity()
    assert (one.judge.chance, three.judge.chance) == (False, True)
