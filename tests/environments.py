"""Virtual environments with packages that the tests themselves do without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def environment(place: Path, given: str, *packages: str, not_compiled: str = "") -> Path:
    """The `bin` of a virtual environment that has these packages on top of what the tests have, in the versions of
    constraints.txt where it pins them. The variable `given` names one that is there. Skips where nothing can be
    installed, and where `not_compiled` has no wheel."""
    if os.environ.get(given):
        return Path(os.environ[given])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    inside = next(place.glob("lib/*/site-packages"))
    here = [path for path in sys.path if path.endswith("site-packages")]
    (inside / "beside.pth").write_text("\n".join(here) + "\n")
    names = {package.split("=")[0].split(">")[0] for package in packages}
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (place / "pins.txt").write_text("\n".join(pin for pin in pins if pin.split("==")[0] in names) + "\n")
    wheels = ["--only-binary", not_compiled] if not_compiled else []
    # not compiled: the few modules that are imported are, as they are
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "bin/python"),
        "install",
        "-q",
        "--no-compile",
        *wheels,
    ]
    command += ["-c", str(place / "pins.txt"), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(
            f"{', '.join(packages)} could not be installed, and {given} names no environment: {done.stderr[-300:]}"
        )
    return place / "bin"
