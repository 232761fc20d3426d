"""The wheel holds everything that runs: installed alone into a fresh environment, it validates, plans and shows its schema."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

RECIPE = """\
name: from-the-wheel
model: {architecture: {preset: bert-mini}}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 2}}
"""


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, as a release is."""
    source, out = tmp_path_factory.mktemp("source") / "finery", tmp_path_factory.mktemp("wheel")
    made_here = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
    outputs = shutil.ignore_patterns("runs", "registry", "dist")  # of the checkout itself: `pipelines/runs` is a room

    def left_out(folder: str, names: list[str]) -> set[str]:
        return made_here(folder, names) | (outputs(folder, names) if Path(folder) == repository else set())

    shutil.copytree(repository, source, ignore=left_out)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--disable-pip-version-check",
        "-w",
        str(out),
        str(source),
    ]
    try:
        import hatchling  # noqa: F401

        command.insert(5, "--no-build-isolation")
    except ImportError:
        pass  # pip fetches the build backend from its package index
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and "hatchling" in done.stderr and "No matching distribution" in done.stderr + done.stdout:
        pytest.skip("hatchling is not installed and no package index can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("finery-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and the dependencies of the running one; returns its `bin`."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False)
    packages = next(root.glob("lib/python*/site-packages"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(root / "bin" / "python"),
            "install",
            "--no-deps",
            "--no-index",
            "--quiet",
            "--disable-pip-version-check",
            str(wheel),
        ],
        check=True,
    )
    # A .pth adds the folder itself, and does not process the .pth files in it: the editable install stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root / "bin"


def test_configs_templates_and_tables_are_in_it(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in filter(Path.is_file, (repository / "configs").rglob("*")):
        assert f"pipelines/configs/{path.relative_to(repository / 'configs')}" in names
    for folder in ("pipelines", "service"):
        for path in (repository / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                assert str(path.relative_to(repository)) in names
    assert {"pipelines/publishing/templates/card.md.jinja", "pipelines/core/model_types.json"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def finery(installed: Path, folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "FINERY_HOME": str(folder / "home")
    }
    done = subprocess.run(
        [str(installed / "finery"), *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_command_works_without_its_sources(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    asked = "import pipelines, service, torch; print(pipelines.__file__, service.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [str(installed / "python"), "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert all(place.startswith(str(installed.parent)) for place in found.stdout.split())
    assert "fine (1 stage)" in finery(installed, tmp_path, "validate", "recipe.yaml")
    assert json.loads(finery(installed, tmp_path, "schema"))["type"] == "object"
    plan = json.loads(finery(installed, tmp_path, "plan", "recipe.yaml", "--json"))
    assert plan["stages"][0]["id"] == "pretrain"
    assert finery(installed, tmp_path, "--version").startswith("finery 0.")
