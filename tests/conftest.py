"""Fixtures that every test may use. Nothing here reaches a network or the user's own caches."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from itertools import count
from pathlib import Path

import hypothesis
import pytest

from tests.covering import LONG

gc.disable()  # until all tests are collected: what is imported stays
# How long an example takes is the machine's matter; a usual run has time for fewer, and the long tests take 100.
hypothesis.settings.register_profile("any-machine", deadline=None, max_examples=30)
hypothesis.settings.register_profile("long", deadline=None, max_examples=100)
hypothesis.settings.load_profile("any-machine")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("FINERY_WARM", "0")  # the seconds of importing ahead would be lost: most servers do one job
# jsonschema imports it where it finds it, for a format that no schema here has: it compiles grammars for 1.3 seconds
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
if "HF_MODULES_CACHE" not in os.environ:  # code of checkpoints: each worker's own, or one reads what another half wrote
    os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="finery-modules-")
    atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["HF_MODULES_CACHE"] += "/" + os.environ["PYTEST_XDIST_WORKER"]  # what it has from who started it
    # two workers on two cores: one thread each is the fastest
    os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Tell modules, which are imported later, whether the long tests run."""
    if "not long" not in config.option.markexpr:
        os.environ[LONG] = "yes"
        hypothesis.settings.load_profile("long")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest alone: at the end one worker would wait for the other."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


def pytest_collection_finish() -> None:
    """Look for garbage seldom, as the processes that touch weights do: after 50,000 new objects. Until now nothing was
    collected: a fifth of the time that importing takes.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Behind each file: what its tests imported stays."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        keep_out_of_collections()
    return result


def keep_out_of_collections() -> None:
    """Take what there is by now out of garbage collection: each training run collects, and walking over a million
    objects of torch and transformers took half of a small run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return REPOSITORY


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The first FINERY_DATA root, with real data sets in it."""
    roots = [Path(root) for root in os.environ.get("FINERY_DATA", "").split(os.pathsep) if root]
    found = next((root for root in roots if (root / "glue" / "mrpc").is_dir()), None)
    if found is None:
        if os.environ.get("FINERY_REQUIRE_MIRROR"):
            pytest.fail("FINERY_REQUIRE_MIRROR is set, but no FINERY_DATA root holds glue/mrpc")
        pytest.skip("needs FINERY_DATA=<mirror>")
    return found


HOMES = count()


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FINERY_HOME of the test's own. Numbered here: `mktemp` lists all folders of the session to find a number."""
    folder = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))
    folder.mkdir(parents=True)
    monkeypatch.setenv("FINERY_HOME", str(folder))
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)  # a verb that an earlier test called here sets it
    return folder
