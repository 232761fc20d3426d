import pytest

from pipelines.core.errors import CommandError
from service.client import Place, find


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def config(home, text):
    path = home / ".config" / "finery" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_what_the_command_says_beats_the_environment_and_the_file(home, tmp_path):
    config(tmp_path, 'server = "http://file"\ntoken = "fin_file"\n')
    (tmp_path / "token").write_text("fin_given\n")
    environment = home | {"FINERY_URL": "http://environment", "FINERY_TOKEN": "fin_environment"}
    assert find("http://given/", tmp_path / "token", environment) == Place("http://given", "fin_given")
    assert find(None, None, environment) == Place("http://environment", "fin_environment")
    assert find(None, None, home) == Place("http://file", "fin_file")


def test_the_file_may_name_a_token_file_instead(home, tmp_path):
    (tmp_path / "t").write_text("fin_x")
    config(tmp_path, f'server = "http://file"\ntoken_file = "{tmp_path}/t"\n')
    assert find(None, None, home).token == "fin_x"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (None, "no server is named"),
        ("127.0.0.1:8321", "is no server's address"),
        ("ftp://x", "is no server's address"),
        ("http://a:b@c", "holds a user or a password"),
    ],
)
def test_a_missing_or_wrong_address_is_one_sentence(home, server, message):
    with pytest.raises(CommandError, match=message):
        find(server, None, home | {"FINERY_TOKEN": "x"})


@pytest.mark.parametrize("text", ["", "  \n", "two words", "naïve"])
def test_a_file_without_a_token_is_refused_without_showing_what_it_holds(home, tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(CommandError, match="holds no token") as raised:
        find("http://x", tmp_path / "token", home)
    assert "naïve" not in str(raised.value)


def test_no_token_says_where_the_first_one_lies(home):
    with pytest.raises(CommandError, match=r"admin\.token"):
        find("http://x", None, home)


def test_an_unknown_key_in_the_file_is_named(home, tmp_path):
    config(tmp_path, 'sever = "http://file"\n')
    with pytest.raises(CommandError, match="has 'sever', but may hold the texts server, token, token_file only"):
        find(None, None, home)
