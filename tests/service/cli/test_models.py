"""`finery models` against a service on a real port."""

import json
import shutil

import pytest

from service.cli.__main__ import main
from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served, listening, published


@pytest.fixture(scope="module")
def site(migrated_sqlite, tmp_path_factory):
    """Three versions of demo-model, and a client for them: the exit code and what was printed."""
    home = tmp_path_factory.mktemp("models")
    shutil.copy(migrated_sqlite, home / "finery.db")
    settings = read_settings({}, home=home, burst=10_000)
    store = Store(settings.url)
    served = Served(settings, store)
    attempt = served.started(served.job())
    for version, f1 in enumerate((0.7, 0.9, 0.8), start=1):
        published(served, attempt, fingerprint=f"{version:08d}", f1=f1)
    token = home / "token"
    token.write_text(served.token("submitter"))
    with listening(served) as address:
        yield ("--server", address, "--token-file", str(token))
    store.close()


@pytest.fixture
def models(site, capsys):
    def call(*words):
        code = main(("models", *words, *site))
        return code, *capsys.readouterr()

    return call


def test_every_command_answers_in_words_and_as_json(models):
    code, out, _ = models("list", "demo-model")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["demo-model@3", "latest"],
        ["demo-model@2", "best"],
        ["demo-model@1", "glue/mrpc"],
    ]
    assert json.loads(models("list", "--json")[1])["models"][1]["aliases"] == ["best"]
    assert models("alias", "demo-model@1", "staging")[1].splitlines()[2] == "demo-model@staging  version 1"
    assert "@best goes by" in models("show", "demo-model@staging")[1]
    assert "best goes by glue/mrpc.f1" in models("alias", "demo-model", "best", "--on", "glue/mrpc.f1")[1]
    assert models("promote", "demo-model@1")[:2] == (0, "demo-model@production names version 1, its first.\n")
    moved = json.loads(models("promote", "demo-model", "--force", "rollback", "--json")[1])
    assert (moved["before"], moved["model"]["version"], "untested" in moved["sentence"]) == (1, 3, True)
    assert models("lineage", "demo-model@2")[1].splitlines()[-1].split()[:2] == ["model", "demo-model@2"]
    assert "deleted" in models("delete", "demo-model@2")[1]
    assert models("list", "--deleted")[1].splitlines()[1].startswith("demo-model@2")
    assert models("restore", "demo-model@2")[1] == "demo-model@2  restored\n"
    assert "staging" not in models("alias", "demo-model", "staging", "--remove")[1]


def test_what_was_done_before_one_of_several_was_refused_is_told(models):
    models("promote", "demo-model@1")
    code, _, told = models("delete", "demo-model@2", "nothing@1")
    assert (code, "there is no model 'nothing@1'" in told, "deleted" in told) == (2, True, False)
    code, _, told = models("delete", "demo-model@2", "demo-model@production")
    assert (code, told.splitlines()[0]) == (2, "deleted before that: demo-model@2")
    code, _, told = models("restore", "demo-model@2", "demo-model@9")
    assert (code, told.splitlines()[0]) == (2, "restored before that: demo-model@2")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("show", "nothing"), 2, "there is no model 'nothing'"),
        (("delete", "demo-model@production"), 2, "is what 'demo-model@production' names; promote another version"),
        (("promote", "demo-model@2", "--force", " "), 2, "--force needs a reason, which the audit trail keeps"),
        (("alias", "demo-model@2", "latest"), 2, "'@latest' sets itself"),
        (("alias", "demo-model@2", "staging", "--on", "glue/mrpc.f1"), 2, "--on names the score that best goes by"),
        (("compare", "demo-model@2", "1"), 2, "was published without its outcomes on each example"),
        (("restore", "demo-model@9"), 2, "there is no deleted model 'demo-model@9'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_an_exit_code(models, words, code, sentence):
    models("promote", "demo-model@1")
    told = models(*words)
    assert (told[0], sentence in told[2]) == (code, True), told
