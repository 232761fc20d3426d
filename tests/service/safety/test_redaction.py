"""Secrets are told by shape and by value."""

import pytest

from service.safety.redaction import HIDDEN, Redactor, holds_secret, of_environment
from service.store.projects import new_token

SHAPES = [
    "hf_" + "A" * 34,
    "sk-proj-" + "a1" * 20,
    "ghp_" + "a" * 36,
    "AKIA" + "A" * 16,
    "xoxb-1234567890-abc",
    "-----BEGIN RSA PRIVATE KEY-----",
    "https://user:secret@example.org/x",
]


@pytest.mark.parametrize("text", SHAPES)
def test_a_secret_is_known_by_its_shape_and_hidden(text):
    assert holds_secret(f"before {text} after")
    shown = Redactor().text(f"before {text} after")
    assert HIDDEN in shown
    assert not holds_secret(shown)


def test_our_own_tokens_have_a_known_shape():
    text = new_token().text
    assert holds_secret(text)
    assert Redactor().text(text) == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "hf_dataset",
        "sk-learn",
        "task: risk-assessment of something",
        "https://example.org:443/x",
        "fin_short_x",
        "my-model",
    ],
)
def test_ordinary_words_are_no_secrets(text):
    assert not holds_secret(text)


def test_values_are_hidden_wherever_they_stand_the_longer_first():
    redactor = Redactor(["correct-horse", "correct-horse-battery", "abc"])
    assert redactor.plain({"a": ["xcorrect-horse-batteryx", 1], "correct-horse": "abc"}) == {
        "a": [f"x{HIDDEN}x", 1],
        HIDDEN: "abc",
    }


def test_only_variables_that_are_secrets_are_taken_from_the_environment():
    assert of_environment(
        {"HF_TOKEN": "0123456789", "PATH": "/usr/bin:/bin", "DB_PASSWORD": "hunter2hunter2", "MY_TOKEN": "short"}
    ) == ("0123456789", "hunter2hunter2")


def test_paths_below_the_servers_folders_become_relative():
    assert Redactor((), ["/srv/finery", "/"]).text("in /srv/finery/jobs/x and /etc") == "in jobs/x and /etc"


def test_paths_below_a_jobs_folder_are_relative_to_it_and_a_folder_alone_is_a_dot():
    redactor = Redactor((), ["/srv/finery", "/srv/finery/cache", "/srv/data"])
    job = "/srv/finery/jobs/job-01k0a1b2c3d4e5f6g7h8j9k0m1"
    assert redactor.text(f"{job}/runs/demo/events.jsonl, {job}: no space") == "runs/demo/events.jsonl, .: no space"
    assert redactor.text("/srv/finery/cache/stages/abc in /srv/finery; /srv/data/glue") == "stages/abc in .; glue"
    assert (
        redactor.text("/srv/finery2/x, /srv/finery.db and x/srv/finery-old")
        == "/srv/finery2/x, /srv/finery.db and x/srv/finery-old"
    )
    assert redactor.plain({"path": f"{job}/runs/demo", "at": ["'/srv/data'"]}) == {"path": "runs/demo", "at": ["'.'"]}
