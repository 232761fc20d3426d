import time

import pytest

from service.settings import read_settings
from service.store.projects import new_token
from service.store.store import open_store
from service.web import sessions
from service.web.sessions import Sessions


@pytest.fixture
def store(tmp_path):
    opened = open_store(read_settings({}, home=tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def token(store):
    made = new_token()
    return store.add_token(made.prefix, made.sha256, project="team", role="submitter")


def test_a_cookie_stands_for_its_token_on_every_server_with_the_same_home(store, token, tmp_path):
    cookie, _ = Sessions(store, tmp_path).make(token)
    assert Sessions(store, tmp_path).read(cookie).token.id == token.id


def test_the_cookie_does_not_hold_what_opens_the_api(store, tmp_path):
    made = new_token()
    kept = store.add_token(made.prefix, made.sha256, project="team", role="viewer")
    cookie, _ = Sessions(store, tmp_path).make(kept)
    assert made.text.split("_", 2)[2] not in cookie  # the secret itself may hold underscores
    assert made.sha256 not in cookie


@pytest.mark.parametrize("part", range(4))
def test_a_cookie_with_any_part_changed_is_worth_nothing(store, token, tmp_path, part):
    here = Sessions(store, tmp_path)
    parts = here.make(token)[0].split(".")
    parts[part] = {0: "abcdefabcdef", 1: f"{time.time() + 1e7:.0f}", 2: "another", 3: "0" * 64}[part]
    assert here.read(".".join(parts)) is None


def test_a_session_ends_with_its_token(store, token, tmp_path):
    here = Sessions(store, tmp_path)
    cookie, _ = here.make(token)
    store.revoke_token(token.id)
    assert here.read(cookie) is None


def test_a_session_ends_in_time(store, token, tmp_path, monkeypatch):
    here = Sessions(store, tmp_path)
    monkeypatch.setattr(sessions, "LIFETIME", -1.0)
    cookie, _ = here.make(token)
    assert here.read(cookie) is None


@pytest.mark.parametrize(
    "cookie", [None, "", "...", "a.b.c", "a.b.c.d", "ä.1e9999.x.y", "." * 500, "x.99999999999.y.\udcff"]
)
def test_nonsense_is_no_session(store, tmp_path, cookie):
    assert Sessions(store, tmp_path).read(cookie) is None


def test_two_visitors_have_different_form_tokens(store, token, tmp_path):
    here = Sessions(store, tmp_path)
    assert here.make(token)[1].csrf != here.make(token)[1].csrf


def test_the_signing_key_is_for_the_service_alone(store, tmp_path):
    Sessions(store, tmp_path)
    assert (tmp_path / "web.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("web.key*")] == ["web.key"]
