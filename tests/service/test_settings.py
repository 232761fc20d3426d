from pathlib import Path

import pytest

from pipelines.core.errors import CommandError
from service.settings import default_home, read_settings


def test_an_argument_wins_over_a_variable_and_that_over_the_default(tmp_path):
    environment = {"FINERY_PORT": "9000", "FINERY_LEASE_SECONDS": "5"}
    settings = read_settings(environment, home=tmp_path, port=9001, host=None)
    assert (settings.port, settings.lease_seconds, settings.host) == (9001, 5.0, "127.0.0.1")


def test_the_database_lies_in_the_home_unless_one_is_named(tmp_path):
    assert read_settings({}, home=tmp_path).url == f"sqlite:///{tmp_path}/finery.db"
    for written in ("postgres://u@h/d", "postgresql://u@h/d", "postgresql+psycopg://u@h/d"):
        assert read_settings({"FINERY_DATABASE_URL": written}).url == "postgresql+psycopg://u@h/d"


def test_every_wrong_setting_is_named_where_it_was_given():
    with pytest.raises(CommandError) as caught:
        read_settings({"FINERY_PORT": "70000", "FINERY_EXECUTOR": "kubernetes"}, max_queued=0)
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["FINERY_PORT", "FINERY_EXECUTOR", "--max-queued"]


def test_allowed_code_is_a_list_of_repositories_at_full_commits():
    one, two = f"a/b@{'0' * 40}", f"c/d@{'1' * 40}"
    assert read_settings({}).allow_remote_code == ()
    assert read_settings({"FINERY_ALLOW_REMOTE_CODE": f"{one}, {two}"}).allow_remote_code == (one, two)
    assert read_settings({"FINERY_ALLOW_REMOTE_CODE": two}, allow_remote_code=(one,)).allow_remote_code == (one,)
    with pytest.raises(
        CommandError,
        match=r"^FINERY_ALLOW_REMOTE_CODE is 'a/b@main': 'a/b@main' must be owner/name@COMMIT, the commit with all 40",
    ):
        read_settings({"FINERY_ALLOW_REMOTE_CODE": "a/b@main"})


def test_a_home_is_absolute_and_lies_beside_the_stages_or_with_the_users_data(monkeypatch):
    assert read_settings({"FINERY_SERVICE_HOME": "here"}).home == Path.cwd() / "here"
    monkeypatch.setenv("FINERY_HOME", "/somewhere")
    assert default_home() == Path("/somewhere/service")
    monkeypatch.delenv("FINERY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/finery")
