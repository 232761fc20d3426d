"""Tokens: random, hashed, compared in constant time, and ordered by role."""

import base64
import hashlib

import pytest

from service.store.tokens import ROLES, digest, matches, may, new_token, parts


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
