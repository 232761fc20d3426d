"""Virtual environments with packages that the tests themselves do without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.core.files import lock


def environment(place: Path, given: str, *packages: str, not_compiled: str = "") -> Path:
    """The `bin` of a virtual environment that has these packages on top of what the tests have, in the versions of
    constraints.txt where it pins them. The variable `given` names one that is there; else it is made once for all tests of a
    run. Skips where nothing can be installed, and where `not_compiled` has no wheel."""
    if os.environ.get(given):
        return Path(os.environ[given])
    run = next((each for each in place.parents if each.parent.name.startswith("pytest-of-")), place)
    place = run / "environments" / given
    with lock(place.with_suffix(".lock")):
        if not (place / "ready").is_file():
            shutil.rmtree(place, ignore_errors=True)
            if reason := _fill(place, packages, not_compiled):
                pytest.skip(
                    f"{', '.join(packages)} could not be installed, and {given} names no environment: {reason[-300:]}"
                )
            (place / "ready").touch()
    return place / "bin"


def _fill(place: Path, packages: tuple[str, ...], not_compiled: str) -> str:
    """Make an environment of its own. Returns why it could not be made."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    inside = next(place.glob("lib/*/site-packages"))
    here = [path for path in sys.path if path.endswith("site-packages")]
    (inside / "beside.pth").write_text("\n".join(here) + "\n")
    names = {package.split("=")[0].split(">")[0] for package in packages}
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (place / "pins.txt").write_text("\n".join(pin for pin in pins if pin.split("==")[0] in names) + "\n")
    wheels = ["--only-binary", not_compiled] if not_compiled else []
    # not compiled: the few modules that are imported are, as they are
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "-q", "--no-compile"]
    command += [*wheels, "-c", str(place / "pins.txt"), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr if done.returncode else ""
