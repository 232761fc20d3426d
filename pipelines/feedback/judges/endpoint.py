"""A judge behind any OpenAI-compatible chat endpoint: a company's, or a server of one's own.

Where the server gives the probabilities of tokens, P(A) is read from those of A and B; elsewhere the letter is read
from the text. What cannot be read is an abstention. A server that goes away ends the run as a signal would, with exit
code 75: `finery resume` asks only what was not answered.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from pipelines.core import egress as outgoing
from pipelines.core import secrets
from pipelines.core.config import Block
from pipelines.core.errors import StageError, Stopped
from pipelines.feedback.judges import questions
from pipelines.feedback.judges.judge import Judge, JudgeBlock, Rating, Verdict, both_orders, one_order

if TYPE_CHECKING:
    import httpx

    from pipelines.core.interfaces import Context
    from pipelines.core.signals import StopSignal
    from pipelines.feedback.judges.endpoint_client import ChatCompletion, Client

PUBLIC_ONLY = "FINERY_PUBLIC_ENDPOINTS_ONLY"
"""Set to 1 by whoever runs recipes of others: endpoints in private networks are then refused."""
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
PATIENCE = ("concurrency", "retries", "timeout", "api_key_env")
"""Keys that change how long an answer takes, not what it is."""
THOUGHT_TOKENS = 256
LETTER_TOKENS = 8


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{value}' is no address such as https://api.example.com/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("holds more than an address; give a key by the name of its variable, with api_key_env")
    return value.rstrip("/")


def _variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable in capitals, such as OPENAI_API_KEY; the key itself "
            "never stands in a recipe"
        )
    return value


class Prices(Block):
    """What a million tokens cost, in any one currency."""

    prompt: float = Field(0.0, ge=0)
    """A million tokens that are read."""
    completion: float = Field(0.0, ge=0)
    """A million tokens that are written."""


class EndpointJudgeBlock(JudgeBlock):
    """A chat model that is asked over HTTP: `{name: endpoint, base_url: https://…/v1, model: NAME, api_key_env:
    OPENAI_API_KEY}`."""

    name: Literal["endpoint"] = "endpoint"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: endpoint, base_url: 'https://api.example.com/v1', model: m}",
        "{name: endpoint, base_url: 'http://127.0.0.1:8000/v1', model: m, api_key_env: KEY, "
        "temperature: 0.5, prices: {completion: 2.5}}",
    )
    base_url: Annotated[str, AfterValidator(_url)]
    """Where the API begins: what stands before `/chat/completions`."""
    model: str = Field(min_length=1)
    """The model's name there."""
    api_key_env: Annotated[str, AfterValidator(_variable)] | None = None
    """Name of the secret that holds the key: an environment variable, or on a server a secret of the project.
    Default: no key is sent."""
    question: str | None = Field(None, min_length=1)
    """What is judged by, in words, where no constitution says. Default: a good completion is helpful, honest,
    harmless and well written."""
    thought: bool = False
    """Whether the judge writes down its reasons before it answers."""
    both_orders: bool = True
    """Whether each pair is shown in both orders, for twice the price: a judge's liking for a place is then taken
    out."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Of the judge's own sampling; 0 takes its likeliest answer."""
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Sent along, for servers that know it."""
    logprobs: bool = True
    """Whether the probabilities of tokens are asked for; a server without them is asked without."""
    concurrency: int = Field(8, ge=1, le=256)
    """Questions under way at once."""
    timeout: float = Field(60.0, gt=0, le=3600)
    """Seconds that one answer may take."""
    retries: int = Field(5, ge=0, le=20)
    """Further tries of a question that failed in a way that may pass, after pauses that grow from half a second to
    thirty."""
    prices: Prices = Prices()
    """What the tokens cost: `{prompt: 0.15, completion: 0.6}` a million; the metrics then tell the cost."""

    writes: ClassVar[bool] = True
    reads_principles: ClassVar[bool] = True

    @property
    def chance(self) -> bool:
        return self.temperature > 0

    def content(self) -> dict[str, str]:
        return {"templates": questions.content()}

    def identity(self) -> dict[str, Any]:
        return {key: value for key, value in super().identity().items() if key not in PATIENCE}

    def open(self, context: Context) -> Judge:
        from pipelines.feedback.judges.endpoint_client import Client
        from pipelines.feedback.judges.verdict_cache import VerdictCache

        key = self._key()
        place = hashlib.sha256(f"{self.base_url} {self.model}".encode()).hexdigest()[:16]
        client = Client(
            self.base_url,
            key,
            VerdictCache(context.cache / "feedback" / f"answers-{place}.jsonl"),
            self.timeout,
            self.retries,
            self.concurrency,
            stopping=lambda: context.stop.requested,
            connector=connector(),
        )
        return EndpointJudge(self, client, context.stop)

    def _key(self) -> str | None:
        """The key to send. Raises StageError where there is none, or where this host may not see it."""
        if self.api_key_env is None:
            return None
        key = secrets.secret(self.api_key_env)
        if not key:
            how = (
                "keep it as a secret of the project and name it under `secrets` of the job"
                if secrets.served()
                else "set it in the environment of the run"
            )
            raise StageError(f"{self.api_key_env}, which holds the key of the judge, is not set; {how}")
        if not secrets.may_see(self.api_key_env, self.base_url):
            raise StageError(
                f"the secret {self.api_key_env} may not be sent to {self.base_url}, which is none of the "
                "hosts that it was kept for; name one of those"
            )
        return key


def connector() -> Callable[[int], httpx.AsyncBaseTransport] | None:
    """What questions go through: the proxy or the checked connections of a server; None for the user's own
    command, which asks whom it likes."""
    public, egress = os.environ.get(PUBLIC_ONLY) == "1", os.environ.get(outgoing.EGRESS)
    if not (public or egress or secrets.served()):
        return None
    from pipelines.feedback.judges.endpoint_client import transport

    allowed = outgoing.is_public if public else outgoing.may_be_private
    return lambda connections: transport(allowed, connections, egress=egress)


class EndpointJudge(Judge):
    """The opened endpoint."""

    def __init__(self, block: EndpointJudgeBlock, client: Client, stop: StopSignal) -> None:
        super().__init__()
        self.block = block
        self.client = client
        self.stop = stop

    def compare(
        self,
        prompts: Sequence[str],
        first: Sequence[str],
        second: Sequence[str],
        principles: Sequence[str | None] | None = None,
        draw: int = 0,
    ) -> list[Verdict]:
        block, count = self.block, len(prompts)
        rules = [each or block.question for each in principles or [None] * count]
        queries = [
            questions.comparison(*texts, block.thought) for texts in zip(prompts, first, second, rules, strict=True)
        ]
        if block.both_orders:
            queries += [
                questions.comparison(*texts, block.thought) for texts in zip(prompts, second, first, rules, strict=True)
            ]
        read = [
            (_probability(answer), answer.text.strip())
            for answer in self._ask(queries, draw, 20 if block.logprobs else 0)
        ]
        verdicts = []
        for at in range(count):
            one, text = read[at]
            reason = text if block.thought else ""
            if block.both_orders:
                two = read[at + count][0]
                verdicts.append(both_orders(one, None if two is None else 1 - two, reason))
            else:
                verdicts.append(one_order(one, reason))
        return verdicts

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        queries = [
            questions.rating(prompt, completion, self.block.question, self.block.thought)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        ratings = []
        for answer in self._ask(queries, 0, 20 if self.block.logprobs else 0):
            score = (
                questions.expected_score(answer.places, answer.text) if answer.places else questions.number(answer.text)
            )
            ratings.append(
                Rating(
                    None if score is None else questions.scaled(score),
                    answer.text.strip() if self.block.thought else "",
                )
            )
        return ratings

    def write(self, conversations: Sequence[Sequence[Mapping[str, str]]], length: int, draw: int = 0) -> list[str]:
        bodies = [self._body(list(messages), length, draw) for messages in conversations]
        return [answer.text.strip() for answer in self._answers(bodies)]

    def _ask(self, texts: Sequence[str], draw: int, top: int) -> list[ChatCompletion]:
        length = THOUGHT_TOKENS if self.block.thought else LETTER_TOKENS
        bodies = [self._body([{"role": "user", "content": text}], length, draw) for text in texts]
        if top:
            bodies = [{**body, "logprobs": True, "top_logprobs": top} for body in bodies]
        return self._answers(bodies)

    def _body(self, messages: Sequence[Mapping[str, str]], length: int, draw: int) -> dict[str, object]:
        body: dict[str, Any] = {
            "model": self.block.model,
            "messages": list(messages),
            "max_tokens": length,
            "temperature": self.block.temperature,
            "stream": False,
        }
        if self.block.seed is not None:
            body["seed"] = self.block.seed + draw
        return body | ({"draw": draw} if draw else {})

    def _answers(self, bodies: Sequence[Mapping[str, object]]) -> list[ChatCompletion]:
        """The answers, counted. Raises Stopped where the rest can be asked later."""
        from pipelines.feedback.judges.endpoint_client import EndpointUnreachable, StopAsked

        try:
            with self.stop.deferred():
                answers = self.client.ask(bodies)
        except EndpointUnreachable as error:
            raise Stopped(
                f"the judge at {self.block.base_url} does not answer any more ({error}); what it said is "
                "kept: when it is back, `finery resume` asks only the rest"
            ) from error
        except StopAsked:
            raise Stopped("stopped while the judge was asked; what it said is kept") from None
        for answer in answers:
            self.spent.add(
                {
                    "questions": 1,
                    "prompt_tokens": answer.prompt_tokens,
                    "completion_tokens": answer.completion_tokens,
                    "cost": (
                        answer.prompt_tokens * self.block.prices.prompt
                        + answer.completion_tokens * self.block.prices.completion
                    )
                    / 1e6,
                }
            )
        return answers


def _probability(answer: ChatCompletion) -> float | None:
    """P(A): from the probabilities of tokens where there are some, else 1 or 0 by the letter; None where nothing
    can be read."""
    if answer.places and (probability := questions.probability_of_a(answer.places, answer.text)) is not None:
        return probability
    letter = questions.letter(answer.text)
    return None if letter is None else float(letter == "A")
