"""The whole application against its own OpenAPI document: no request is answered with a 500, and none outside the document."""

import shutil
from contextlib import suppress
from itertools import cycle

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.api.health import PROBES
from service.settings import read_settings
from service.store.store import Store
from tests.service.conftest import emptied
from tests.service.databases import missing
from tests.service.served import Served, application, published

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", application())
OPERATIONS = [result.ok() for result in schema.get_all_operations()]
FIXED = {operation.path for operation in OPERATIONS if "{" not in operation.path}
"""What is another route, as `jobs/counts` is none of `jobs/{job_id}`, although `counts` is a text like any id."""


@pytest.fixture(scope="module")
def database(request):
    """PostgreSQL where one answers, because it refuses texts and numbers that SQLite takes; else SQLite."""
    if missing() is None:
        return emptied(request.getfixturevalue("migrated_postgresql"))
    copy = request.getfixturevalue("tmp_path_factory").mktemp("copy") / "finery.db"
    shutil.copy(request.getfixturevalue("migrated_sqlite"), copy)
    return f"sqlite:///{copy}"


@pytest.fixture(scope="module")
def filled(database, tmp_path_factory):
    """An application with one of everything."""
    given = read_settings(
        {}, home=tmp_path_factory.mktemp("fuzzed"), database_url=database, requests_per_second=1e6, burst=10**9
    )
    store = Store(given.url)
    served = Served(given, store)
    attempt = served.started(served.job())
    served.written(
        attempt, [{"event": "started"}, {"event": "metric", "stage": "supervised", "step": 1, "metrics": {"loss": 1.0}}]
    )
    published(served, attempt)
    served.succeeded(attempt)
    file = served.submitter.post("/api/v1/files/upload", params={"filename": "a.csv"}, content=b"a,b\n1,2\n").json()[
        "id"
    ]
    served.known = {
        "job_id": attempt.job,
        "other_id": attempt.job,
        "file_id": file,
        "name": "demo-model",
        "model": "demo-model",
        "path": "README.md",
    }
    yield served
    store.close()


@pytest.fixture
def again(filled):
    """The same application for each test: others equip it differently in between."""
    filled.app.state.service = filled.service
    return filled


def fuzz(served, operation, examples, mode=GenerationMode.POSITIVE):
    """Every second request is about something that is there: made-up ids all end at the same 404. Of two requests the
    first is the smallest that there is, and the other a random one."""
    headers = served.admin.headers
    strategy = operation.as_strategy(generation_mode=mode)
    turns = cycle([True, False])

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=examples < 20,
    )
    @given(strategy)
    def tried(case):
        known = next(turns)
        if known and case.path_parameters:
            case.path_parameters = {name: served.known.get(name, value) for name, value in case.path_parameters.items()}
        assume(case.formatted_path not in FIXED or "{" not in operation.path)
        case.call_and_validate(headers={"Authorization": headers["Authorization"]}, checks=CHECKS)

    tried()


def name_of(operation):
    return f"{operation.method.upper()} {operation.path}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_no_request_breaks_a_route(again, operation):
    fuzz(again, operation, 2)


@pytest.mark.long
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_no_request_of_hundreds_breaks_a_route(again, operation, mode):
    """Requests as the document allows them, and requests that it forbids."""
    with suppress(Unsatisfiable):  # nothing can be wrong with a request that takes nothing
        fuzz(again, operation, 60, mode)


def test_every_route_is_described(again):
    document = again.app.openapi()
    assert "HTTPValidationError" not in str(document)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or operation.get("summary"), (method, path)
            wrong = set(operation["responses"]) & {"401", "403", "422"}
            assert path in (*PROBES, "/metrics") or len(wrong) == 3, (method, path)


def test_answers_tell_browsers_not_to_guess_and_not_to_frame(again):
    headers = again.viewer.get("/api/v1/me").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


def test_an_error_that_nobody_foresaw_tells_nothing(again, monkeypatch):
    monkeypatch.setattr(again.store, "jobs", lambda *given, **named: 1 / 0)
    answer = again.viewer.get("/api/v1/jobs")
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert answer.json()["code"] == "internal"
