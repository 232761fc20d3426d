"""Token buckets and the length of bodies."""

from service.api.limits import MOST_BUCKETS, RateLimiter


def test_a_bucket_fills_at_its_rate():
    now = [0.0]
    limiter = RateLimiter(rate=2.0, burst=2, clock=lambda: now[0])
    assert [limiter.take("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    now[0] = 0.5
    assert limiter.take("a") == 0.0
    assert limiter.take("a") == 0.5
    now[0] = 100.0
    assert [limiter.take("a") for _ in range(3)] == [0.0, 0.0, 0.5], "no more than the burst is saved up"


def test_a_million_keys_need_no_more_memory_than_the_limit():
    now = [0.0]
    limiter = RateLimiter(rate=1.0, burst=1, clock=lambda: now[0])
    for number in range(MOST_BUCKETS + 50):
        limiter.take(str(number))
        now[0] += 0.001
    assert len(limiter._buckets) <= MOST_BUCKETS


def test_a_body_that_announces_too_much_is_refused_before_it_is_read(served):
    answer = served.submitter.post(
        "/api/v1/validate", content=b"x", headers={"Content-Type": "application/yaml", "Content-Length": str(3 << 20)}
    )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_of_unknown_length_is_refused_while_it_arrives(served):
    def endless():
        for _ in range(100):
            yield b"x" * (1 << 16)

    answer = served.submitter.post("/api/v1/validate", content=endless(), headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 413


def test_openai_clients_get_their_own_envelope(served):
    answer = served.submitter.post(
        "/v1/fine_tuning/jobs",
        content=b"x",
        headers={"Content-Type": "application/json", "Content-Length": str(3 << 20)},
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"
