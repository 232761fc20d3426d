"""Health and Prometheus metrics."""

from prometheus_client.parser import text_string_to_metric_families


def samples(served):
    text = served.nobody.get("/metrics").text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_is_200_and_503_without_a_database(served, monkeypatch):
    assert served.nobody.get("/healthz").json()["status"] == "ok"
    monkeypatch.setattr(served.store, "healthy", lambda: False)
    assert served.nobody.get("/healthz").status_code == 503


def test_jobs_are_counted_by_state_and_requests_by_route(served):
    job = served.job()
    served.viewer.get(f"/api/v1/jobs/{job}")
    served.viewer.get("/api/v1/jobs/x")
    found = samples(served)
    assert found["finery_jobs", ("state", "queued")] == 1
    route = ("route", "/api/v1/jobs/{job_id}")
    assert found["finery_http_requests_total", ("method", "GET"), route, ("status", "200")] == 1
    assert found["finery_http_requests_total", ("method", "GET"), route, ("status", "404")] == 1
    assert not any(job in str(key) or "acme" in str(key) for key in found), "numbers, no names"
