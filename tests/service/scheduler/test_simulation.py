"""The replay of `benchmarks/simulate_scheduling.py`, small: its own assertions see that nothing is given twice or left."""

import sys
from argparse import Namespace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def simulation():
    place = Path(__file__).resolve().parents[3] / "benchmarks" / "simulate_scheduling.py"
    spec = spec_from_file_location("simulate_scheduling", place)
    module = module_from_spec(spec)
    sys.modules["simulate_scheduling"] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["simulate_scheduling"]


def replayed(simulation, jobs, hosts, backfill=True, tick=10.0):
    return simulation.replay(Namespace(jobs=jobs, hosts=hosts, load=1.2, seed=1, tick=tick), backfill)


def test_every_job_of_an_overloaded_cluster_ends_and_higher_priorities_wait_less(simulation):
    found = replayed(simulation, 400, 16, tick=30.0)
    assert found["jobs"] == 400
    waits = found["wait_by_priority"]
    assert waits[2]["p90"] <= waits[0]["p90"]
    assert 0 < found["utilisation"] <= 1


@pytest.mark.long
def test_back_filling_shortens_the_mean_wait(simulation):
    assert replayed(simulation, 8000, 64)["mean_wait"] < replayed(simulation, 8000, 64, backfill=False)["mean_wait"]
