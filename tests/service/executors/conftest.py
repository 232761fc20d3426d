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
