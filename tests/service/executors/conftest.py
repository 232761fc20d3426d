import os

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="session")
def ray_cluster():
    """A real Ray cluster of two nodes on this machine, for as long as the session."""
    pytest.importorskip("ray", reason="needs the extra `ray`")
    from tests.service.executors.worlds import RayCluster

    before = dict(os.environ)
    os.environ |= {
        "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(REPOSITORY),
    }
    cluster = RayCluster()
    yield cluster
    cluster.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def slurm_daemons_of_the_session():
    from tests.service.executors.slurm_daemons import started

    daemons = started()
    yield daemons
    daemons.close()


@pytest.fixture
def slurm_daemons(slurm_daemons_of_the_session, monkeypatch):
    """A real Slurm cluster of two nodes on this machine, for as long as the session; Slurm's commands find it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_daemons_of_the_session.configuration))
    return slurm_daemons_of_the_session


@pytest.fixture
def own_slurm_daemons(monkeypatch):
    """A Slurm cluster to be broken."""
    from tests.service.executors.slurm_daemons import started

    daemons = started()
    monkeypatch.setenv("SLURM_CONF", str(daemons.configuration))
    yield daemons
    daemons.close()
