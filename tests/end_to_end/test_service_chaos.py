"""Parts of a working service are killed; nothing is lost, doubled or left behind. `benchmarks/chaos.py` does it by the hundred."""

import pytest

from tests.service.chaos.databases import Postgresql, Sqlite
from tests.service.chaos.harness import Chaos
from tests.service.chaos.recipes import REAL, TINY
from tests.service.chaos.verdict import verdict


def torment(folder, database, seed, kills, recipe=TINY, workload="stand-in", **more):
    with Chaos(folder, database, seed, recipe, workload) as chaos:
        chaos.torment(more.pop("jobs", 2), kills, **more)
        found = verdict(chaos)
    assert found.clean, (found, (folder / "server.log").read_text()[-4000:])
    assert sum(found.kills.values()) == kills
    return found


def test_three_kills_cost_nothing(tmp_path):
    found = torment(tmp_path, Sqlite(), seed=11, kills=3, recipe=TINY.replace("60", "25"), seconds=120)
    assert found.jobs >= 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [21, 22])
def test_forty_kills_on_sqlite_cost_nothing(tmp_path, seed):
    found = torment(tmp_path, Sqlite(), seed=seed, kills=40, seconds=900)
    assert {"server", "launcher", "run"} <= set(found.kills)
    assert found.resumed > 0


@pytest.mark.long
def test_forty_kills_with_a_database_that_crashes_too_cost_nothing(tmp_path):
    if (why := Postgresql.missing()) is not None:
        pytest.skip(why)
    found = torment(tmp_path, Postgresql(), seed=31, kills=40, seconds=900)
    assert {"server", "launcher", "run", "database"} <= set(found.kills)


@pytest.mark.long
def test_real_runs_on_two_ranks_survive_kills(tmp_path):
    found = torment(
        tmp_path,
        Sqlite(),
        seed=41,
        kills=4,
        recipe=REAL,
        workload="pipelines",
        jobs=1,
        pause=(2.0, 15.0),
        seconds=1800,
    )
    assert found.resumed > 0
