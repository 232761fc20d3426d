"""Errors in OpenAI's envelope: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any

from service.api.problems import Problem

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {"no_token": "invalid_api_key", "bad_token": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}


def status_of(problem: Problem) -> int:
    """OpenAI answers 400 to content that is wrong."""
    return 400 if problem.status == 422 else problem.status


def envelope(problem: Problem) -> dict[str, Any]:
    """The body of an answer. Every mistake stands in the message, which is all that clients show."""
    lines = []
    for each in problem.errors:
        place = f"line {each.line}: " if each.line is not None and not each.key else ""
        lines.append(f"{place}{each.key}: {each.message}" if each.key else f"{place}{each.message}")
    kind = "server_error" if problem.status >= 500 else TYPES.get(problem.status, "invalid_request_error")
    param = problem.param or (problem.errors[0].key if problem.errors and problem.errors[0].key else None)
    code = CODES.get(problem.code, problem.code) or None
    return {"error": {"message": "\n".join([problem.detail, *lines]), "type": kind, "param": param, "code": code}}
