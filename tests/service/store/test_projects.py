"""Tokens: random, hashed, compared in constant time, ordered by role, and kept with their limits."""

import base64
import hashlib
import time
from dataclasses import replace

import pytest

from service.store.errors import NotFound
from service.store.projects import ROLES, Project, digest, matches, may, new_token, parts


def test_a_token_is_found_by_its_prefix_and_ends_when_it_is_revoked(store):
    token = store.add_token("abc", "0" * 64, project="p", role="submitter", name="ci")
    assert store.token_by_prefix("abc") == token
    assert store.token_by_prefix("abd") is None
    assert token.valid(time.time())
    revoked = store.revoke_token(token.id, "p")
    assert not revoked.valid(time.time())
    assert store.revoke_token(token.id) == revoked == store.token_by_prefix("abc")


def test_a_token_ends_when_it_expires(store):
    token = store.add_token("abc", "0" * 64, project="p", role="viewer", expires=100.0)
    assert token.valid(99.0)
    assert not token.valid(100.0)


def test_tokens_of_another_project_are_not_found(store):
    token = store.add_token("abc", "0" * 64, project="p", role="admin")
    other = store.add_token("abd", "0" * 64, project="q", role="viewer")
    assert store.tokens("p") == [token]
    assert store.tokens() == [token, other]
    with pytest.raises(NotFound):
        store.revoke_token(token.id, "q")


def test_a_role_is_one_of_three(store):
    with pytest.raises(ValueError, match="role is 'root', must be one of viewer, submitter, admin"):
        store.add_token("abc", "0" * 64, project="p", role="root")


def test_the_last_use_is_written_at_most_once_a_minute(store):
    token = store.add_token("abc", "0" * 64, project="p", role="viewer")
    store.touch_token(token)
    used = store.token_by_prefix("abc")
    assert abs(used.last_used - time.time()) < 30
    store.touch_token(used)
    assert store.token_by_prefix("abc") == used
    store.touch_token(replace(used, last_used=used.last_used - 61))
    assert store.token_by_prefix("abc").last_used > used.last_used


def test_a_project_is_made_once_and_its_limits_change(store):
    made = store.ensure_project("p")
    assert made == store.ensure_project("p") == store.project("p")
    assert replace(made, created=0.0) == Project("p")
    changed = store.set_project("p", weight=2.0, max_gpus=8, settings={"remote_code": ["a/b@c"]})
    assert (changed.weight, changed.max_gpus, changed.max_running, changed.settings) == (
        2.0,
        8,
        None,
        {"remote_code": ["a/b@c"]},
    )
    assert [project.name for project in store.projects()] == ["p"]
    with pytest.raises(ValueError, match="weight is 0, must be above 0"):
        store.set_project("p", weight=0)
    with pytest.raises(TypeError, match="a project has no colour"):
        store.set_project("p", colour="red")
    with pytest.raises(NotFound):
        store.project("q")


def test_a_token_has_256_random_bits_and_its_hash_is_sha256():
    made = new_token()
    prefix, secret = parts(made.text)
    assert prefix == made.prefix
    assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    assert made.sha256 == hashlib.sha256(secret.encode()).hexdigest() == digest(secret)
    assert len({new_token().text for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fin__",
        "fin_0123456789ab_",
        "fin_0123456789ab_" + "a" * 42,
        "fin_0123456789ab_" + "a" * 44,
        "FIN_0123456789ab_" + "a" * 43,
        "fin_0123456789ab_" + "é" * 43,
        "fin_0123456789ab_" + "a" * 43 + "\n",
    ],
)
def test_what_is_no_token_has_no_parts(text):
    assert parts(text) is None


def test_only_the_right_secret_matches_and_an_unknown_prefix_never_does():
    assert matches("secret", digest("secret"))
    assert not matches("secre", digest("secret"))
    assert not matches("secret", None)
    assert not matches("", None)


def test_each_role_may_what_those_before_it_may():
    assert [[may(role, needed) for needed in ROLES] for role in ROLES] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert not may("root", "viewer")
