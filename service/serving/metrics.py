"""What is counted of questions to served models, for Prometheus.

No label has a value that a client or a model's process can choose: what a question wanted, how it ended, and why it was
refused are words of the program. Models have no label, because a project may publish as many as it likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Literal

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from service.api.problems import Problem
from service.serving.questions import Question

KINDS = ("chat", "complete", "embed", "predict", "try")
"""What questions want."""
Outcome = Literal["answered", "refused", "failed", "left"]
"""`left`: the client went away. `refused` has a status below 500, `failed` one above."""
OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "failed", "left")
REASONS = (
    "context_length_exceeded", "engine_error", "internal", "invalid_request", "model_not_ready", "model_not_served",
    "model_process_ended", "not_served", "quota_exceeded", "rate_limited", "template_limit", "timeout",
)  # fmt: skip
"""Codes of errors that have a series of their own; all others are `other`."""
STATES = ("opening", "answering", "idle")
FIRST_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ANSWER_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OPENING_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
MOST_TOKENS = 1 << 40
"""Of one answer. A process that says more is not believed."""


class ServingMetrics:
    """A collector for Prometheus, of one server's processes."""

    def __init__(self, states: Callable[[], Mapping[str, int]]) -> None:
        """`states` counts the processes by their state."""
        self._states = states
        self._questions = Counter(
            "finery_model_questions", "Questions to models by how they ended.", ["do", "outcome"], registry=None
        )
        self._refusals = Counter(
            "finery_model_refusals", "Questions that were refused or failed, by reason.", ["reason"], registry=None
        )
        self._tokens = Counter(
            "finery_model_tokens", "Tokens of answers that were completed.", ["direction"], registry=None
        )
        self._first = Histogram(
            "finery_model_first_token_seconds",
            "From a question to an open model to the first token of its answer.",
            ["do"],
            buckets=FIRST_BUCKETS,
            registry=None,
        )
        self._answers = Histogram(
            "finery_model_answer_seconds",
            "From a question to an open model to the end of its answer.",
            ["do"],
            buckets=ANSWER_BUCKETS,
            registry=None,
        )
        self._openings = Histogram(
            "finery_model_opening_seconds",
            "From the start of a process to its model being open, or to its failure.",
            ["outcome"],
            buckets=OPENING_BUCKETS,
            registry=None,
        )
        for do in KINDS:
            for outcome in OUTCOMES:
                self._questions.labels(do, outcome)
            self._answers.labels(do)
        for reason in (*REASONS, "other"):
            self._refusals.labels(reason)
        for direction in ("in", "out"):
            self._tokens.labels(direction)

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        states = self._states()
        processes = GaugeMetricFamily("finery_model_processes", "Processes that serve models.", labels=["state"])
        for state in STATES:
            processes.add_metric([state], states.get(state, 0))
        yield processes
        for each in (self._questions, self._refusals, self._tokens, self._first, self._answers, self._openings):
            yield from each.collect()

    def ended(self, do: str, question: Question) -> None:
        """A question was left, whether or not its answer was complete."""
        if question.first_seconds is not None:
            self._first.labels(do).observe(question.first_seconds)
        if question.problem is not None:
            self.refused(do, question.problem)
            return
        self._questions.labels(do, "left" if question.end is None else "answered").inc()
        if question.end is None:
            return
        self._answers.labels(do).observe(question.seconds)
        for direction, key in (("in", "prompt_tokens"), ("out", "completion_tokens")):
            count: Any = question.end.get(key)
            if isinstance(count, int) and 0 <= count < MOST_TOKENS:
                self._tokens.labels(direction).inc(count)

    def refused(self, do: str, problem: Problem) -> None:
        """A question was answered with an error."""
        self._questions.labels(do, "refused" if problem.status < 500 else "failed").inc()
        self._refusals.labels(problem.code if problem.code in REASONS else "other").inc()

    def left(self, do: str) -> None:
        """A client went away before its question was asked."""
        self._questions.labels(do, "left").inc()

    def opening(self, ready: Future[dict[str, Any]]) -> None:
        """A process was started."""
        begun = time.monotonic()

        def done(future: Future[dict[str, Any]]) -> None:
            outcome = "opened" if future.exception() is None else "failed"
            self._openings.labels(outcome).observe(time.monotonic() - begun)

        ready.add_done_callback(done)
