"""`finery audit` against a served application: filters, JSON, and times as people write them."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from pipelines.core.errors import CommandError, FineryError
from service.cli.administration import _moment, audit
from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served, listening


@pytest.fixture
def place(migrated_sqlite, tmp_path):
    """(the application, its URL, a file with an admin's token, one with a submitter's)."""
    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    store = Store(read_settings({}, home=tmp_path).url)
    served = Served(read_settings({}, home=tmp_path), store)
    paths = []
    for role in ("admin", "submitter"):
        path = tmp_path / f"{role}.token"
        path.write_text(served.token(role))
        path.chmod(0o600)
        paths.append(path)
    with listening(served) as url:
        yield served, url, *paths
    store.close()


def test_it_shows_who_did_what(place, capsys):
    served, url, token, _ = place
    jobs = [served.job() for _ in range(3)]
    assert audit("job.submit", None, None, None, "1h", 2, url, token, True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["thing"] for row in told["audit"]] == jobs[:0:-1]
    assert told["more"] is True
    assert audit(None, None, None, jobs[0], None, 50, url, token, False) == 0
    printed = capsys.readouterr().out
    assert "job.submit" in printed
    assert jobs[0] in printed.replace("\n", "")
    assert audit("job.cancel", None, None, None, None, 50, url, token, False) == 0
    assert capsys.readouterr().out == "Nothing of that kind is in the trail.\n"


def test_it_is_for_admins_and_an_unknown_action_is_a_sentence(place):
    _, url, token, submitters = place
    with pytest.raises(FineryError, match="needs the role admin"):
        audit(None, None, None, None, None, 50, url, submitters, False)
    with pytest.raises(FineryError, match="action"):
        audit("job.invented", None, None, None, None, 50, url, token, False)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_an_age_is_a_time_before_now(text, ago):
    assert abs(datetime.now(UTC) - ago - datetime.fromisoformat(_moment(text))) < timedelta(seconds=5)


def test_a_time_without_a_zone_is_this_machines_and_nonsense_is_refused():
    assert datetime.fromisoformat(_moment("2026-11-21T22:00:00")).tzinfo is not None
    assert _moment("2026-11-21T22:00:00+00:00") == "2026-11-21T22:00:00+00:00"
    assert _moment(None) is None
    for text in ("", "soon", "h", "-3h", "9999999d", "٣h"):
        with pytest.raises(CommandError, match="must be an age such as"):
            _moment(text)
