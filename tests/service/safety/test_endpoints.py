"""A recipe from the network asks public judges only, unless the administrator says otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.errors import RecipeError
from service.safety.network_recipes import Known, check, unfit_endpoint

RECIPE = """\
name: demo
model: {{checkpoint: some/model}}
stages:
  - stage: feedback
    prompts: {{path: builtin/python-docs}}
    judge: {{name: endpoint, base_url: "{url}", model: m}}
"""
PRIVATE = [
    "http://127.0.0.1:8000/v1",
    "http://localhost/v1",
    "http://10.0.0.7/v1",
    "https://169.254.169.254/latest",
    "http://[::1]:8000/v1",
    "http://judge/v1",
    "http://judge.internal/v1",
    "http://0x7f000001/v1",
    "http://2130706433/v1",
    "http://[::ffff:10.0.0.1]/v1",
    "http://localhost./v1",
    "http://127.1/v1",
]


@pytest.mark.parametrize("url", PRIVATE)
def test_private_networks_are_refused(url: str) -> None:
    with pytest.raises(RecipeError, match="private network") as refused:
        check(RECIPE.format(url=url))
    assert [(each.line, each.key) for each in refused.value.mistakes] == [(6, "stages.feedback.judge.base_url")]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://localhost/v1",
        "http://10.0.0.7/v1",
        "http://[::1]:8000/v1",
        "http://judge.internal/v1",
    ],
)
def test_an_administrator_may_allow_them(url: str) -> None:
    assert check(RECIPE.format(url=url), known=Known(private_endpoints=True)).recipe.stages[0].judge.base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/v1",
        "http://0x7f000001/v1",
        "http://[::ffff:169.254.169.254]/v1",
    ],
)
def test_metadata_and_odd_spellings_are_refused_even_then(url: str) -> None:
    assert unfit_endpoint(url, private=True) is not None


def test_public_ones_are_accepted() -> None:
    for url in ("https://api.example.com/v1", "http://8.8.8.8:8000/v1"):
        assert check(RECIPE.format(url=url)).recipe.stages[0].judge.base_url == url


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "api.example.com", "http://", "http://[bad/v1", "ftp://api.example.com/v1"]
)
def test_other_things_are_no_addresses(url: str) -> None:
    assert unfit_endpoint(url) is not None
    assert unfit_endpoint(url, private=True) is not None


def test_an_overriden_address_is_checked_too() -> None:
    with pytest.raises(RecipeError, match="private network"):
        check(RECIPE.format(url="https://api.example.com/v1"), ("stages.feedback.judge.base_url=http://127.0.0.1/v1",))


def test_the_job_itself_looks_at_what_a_name_resolves_to() -> None:
    from service.attempts.environment import environment_of
    from service.settings import Settings

    job: Any = SimpleNamespace(id="job-1", project="acme", request=SimpleNamespace(secrets=()))
    attempt: Any = SimpleNamespace(resources=SimpleNamespace(cpus=1))
    assert environment_of(Settings(), job, attempt, {})["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "1"
    assert environment_of(Settings(private_endpoints=True), job, attempt, {})["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "0"
