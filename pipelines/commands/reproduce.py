"""`finery reproduce`: makes a published model again from its folder and its data, and compares score by score.

`runs/reproduce-NAME` becomes a working folder of its own: the recipe of the publication, links to its files at the
paths that the recipe names, a fresh FINERY_HOME in `home/`, the run in `runs/NAME`, its publication in
`registry/NAME`, and what came out in `reproduction.json`. Another publication of that name gets a folder beside it,
`runs/reproduce-NAME-12345678`. With `environment` the run has a virtual environment with the versions of the manifest
too. The published folder is only read. Trackers and exports are left out: they would need the author's packages and
report to the account of whoever runs this, and no score of the model depends on them. A reproduction that was stopped
goes on where it stood when the command is given again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pipelines.commands.verify import OLDER, folder_of_data, roots_with
from pipelines.core.errors import EXIT_DONE, EXIT_STOPPED, CommandError, PublishError, Stopped
from pipelines.core.files import JSONObject, configs_folder, read_json, write_json, write_text
from pipelines.core.results import MARKER, read_scores, stage_folders
from pipelines.core.signals import StopSignal, stop_on_signals
from pipelines.core.yaml_positions import read_yaml, write_yaml
from pipelines.publishing import sources
from pipelines.publishing.agreement import Agreement, compare, differences_from
from pipelines.publishing.destinations.destination import SUMS, sha256_of
from pipelines.publishing.integrity import RECIPE, problems, published
from pipelines.publishing.manifest import MANIFEST, older, stated_scores
from pipelines.publishing.signature import KEY

STATE = "reproduction.json"
REGISTRY = "registry"
LOG = "console.log"
KEPT = (RECIPE, STATE, LOG, "home", "environment")
"""What the working folder holds beside the files that the recipe reads."""
OTHERS = ("FINERY_SHARED_STAGES", "FINERY_REFERENCES", "FINERY_JOB_ID", KEY, "PYTHONPATH")
"""Variables that would lead a run out of its folder."""
WHEELS = "https://download.pytorch.org/whl"
"""Where torch's wheels with a local version lie, such as 2.13.0+cpu."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ReproduceRequest:
    """What `finery reproduce` was asked."""

    folder: str
    data: str | None = None
    environment: bool = False
    trust_remote_code: bool = False


def answer(fields: JSONObject) -> JSONObject:
    """What came out, score by score, as plain data. Raises FineryError."""
    request = ReproduceRequest(**fields)
    folder = published(request.folder)
    data = folder_of_data(request.data)
    runs = Path("runs")
    if runs.resolve().is_relative_to(folder.resolve()):
        raise CommandError(
            f"the run would be written into '{request.folder}', which is only read; give the command in another "
            "working folder"
        )
    if found := problems(folder):
        return _nothing(folder, runs / f"reproduce-{_name(folder)}", found)
    place = place_of(folder, runs)
    if older(folder):
        return _nothing(folder, place, [f"it cannot be made again: '{folder}' {OLDER}"])
    return _again(request, folder, data, place)


def _name(folder: Path) -> str:
    name = read_json(folder / MARKER).get("name")
    fit = isinstance(name, str) and len(name) < 100 and name.replace("-", "").replace("_", "").isalnum()
    return str(name) if fit else folder.name


def place_of(folder: Path, runs: Path) -> Path:
    """The folder of a publication's reproduction: not one that holds that of another publication."""
    mine = _identity(folder)
    first = runs / f"reproduce-{_name(folder)}"
    second = first.with_name(f"{first.name}-{mine[:8]}")
    taken = read_json(first / STATE).get("of", mine) != mine
    return second if taken or read_json(second / STATE).get("of") == mine else first


def _identity(folder: Path) -> str:
    """What tells publications apart: the checksum of all their checksums."""
    return sha256_of(folder / SUMS)


def _again(request: ReproduceRequest, folder: Path, data: Path | None, place: Path) -> JSONObject:
    manifest = read_json(folder / MANIFEST)
    recipe, _ = read_yaml(folder / RECIPE)
    if recipe["model"].get("trust_remote_code") and not request.trust_remote_code:
        raise CommandError(
            f"the recipe runs Python code of the checkpoint {recipe['model'].get('checkpoint')}; read it, then give "
            "--trust-remote-code"
        )
    if manifest["model"]["publish"] not in [stage["id"] for stage in recipe["stages"]]:
        return _nothing(folder, place, [f"'{RECIPE}' has no stage '{manifest['model']['publish']}' that publishes it"])
    found = sources.find(manifest["sources"], data)
    if found.missing:
        return _nothing(folder, place, found.missing)
    identity = _identity(folder)
    try:
        recipe_again(recipe, {}, manifest)
        notes = left_out(recipe, manifest["model"]["publish"])
    except (TypeError, AttributeError, ValueError):  # somebody else wrote it
        return _nothing(folder, place, [f"'{RECIPE}' is not as Finery writes it"])
    try:
        if begin(place, identity):
            kept = (*KEPT, f"runs/{recipe['name']}", f"{REGISTRY}/{recipe['name']}")
            names = found.place(manifest["sources"], place, kept)
            write_text(place / RECIPE, write_yaml(recipe_again(recipe, names, manifest)))
        python = environment(place, manifest["environment"]) if request.environment else sys.executable
        work(place, python, data)
    except Stopped:
        raise Stopped(f"Stopped; the same command goes on in {place}.") from None
    results = {**outcome(folder, place, manifest), "notes": notes}
    write_json(place / STATE, {"of": identity, "complete": True, **results})
    return results


def begin(place: Path, identity: str) -> bool:
    """Make the folder, or go on in the one that the same reproduction was stopped in; says whether it is to be filled.
    Raises CommandError."""
    state = read_json(place / STATE)
    if place.exists() and not state:
        raise CommandError(f"'{place}' is no reproduction of finery reproduce; move it away")
    if state.get("of", identity) != identity:
        raise CommandError(f"'{place}' holds the reproduction of another publication; move it away")
    if state.get("complete") is False and (place / RECIPE).is_file():  # which is written last
        return False
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    write_json(place / STATE, {"of": identity, "complete": False})
    return True


def recipe_again(recipe: JSONObject, names: Mapping[str, str], manifest: JSONObject) -> dict[str, Any]:
    """The recipe up to its publish stage, which publishes into this working folder, requires nothing and exports
    nothing; without trackers."""
    data: dict[str, Any] = sources.renamed(recipe, names)
    publish = manifest["model"]["publish"]
    stages = []
    for stage in data["stages"]:
        if stage.get("stage") != "publish":
            arguments = {key: value for key, value in (stage.get("arguments") or {}).items() if key != "report_to"}
            stages.append(stage | {"arguments": arguments} if "arguments" in stage else stage)
        elif stage["id"] == publish:
            kept = {key: value for key, value in stage.items() if key not in ("require", "private", "export")}
            stages.append(kept | {"to": f"{REGISTRY}/{data['name']}"})
            break
    commit = manifest["model"].get("revision")
    if commit and data["model"].get("checkpoint") == manifest["model"].get("checkpoint"):
        data["model"] = {**data["model"], "revision": commit}
    return data | {"stages": stages}


def left_out(recipe: JSONObject, publish: str) -> list[str]:
    """What the run did without, one sentence each."""
    named = [(stage.get("arguments") or {}).get("report_to", "none") for stage in recipe["stages"]]
    trackers = dict.fromkeys(name for each in named for name in ([each] if isinstance(each, str) else each))
    notes = []
    if told := [name for name in trackers if name != "none"]:
        notes.append(f"nothing was reported to {', '.join(told)}: no score depends on it")
    if forms := [form for stage in recipe["stages"] if stage["id"] == publish for form in stage.get("export") or ()]:
        listed = f"the exports ({', '.join(forms)})"
        notes.append(f"{listed} were not made again, nor their scores: finery export makes and scores one")
    return notes


def work(place: Path, python: str, data: Path | None) -> None:
    """Run the recipe in its folder. Raises StageError with the run's own sentence, or Stopped."""
    variables = {name: value for name, value in os.environ.items() if name not in OTHERS} | {
        "FINERY_HOME": str((place / "home").absolute()),
        "FINERY_DATA": roots_with(data),
        "FINERY_PARENT_PID": str(os.getpid()),
        "PYTHONSAFEPATH": "1",
    }
    if python == sys.executable and "PYTHONPATH" in os.environ:
        variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
    stop = StopSignal()
    with stop_on_signals(stop), stop.deferred(), open(place / LOG, "ab") as log:  # the run is stopped and waited for
        command = [python, "-m", "pipelines", "run", RECIPE]
        run = subprocess.Popen(
            command, cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        told = False
        while run.poll() is None:
            if stop.requested and not told:
                run.terminate()
                told = True
            time.sleep(POLL_SECONDS)
    if run.returncode == EXIT_STOPPED or told:
        raise Stopped("the run was stopped")
    if run.returncode != EXIT_DONE:
        lines = [line for line in (place / LOG).read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("finery: ") if lines else f"exit code {run.returncode}"
        raise PublishError(f"the run in {place} did not come to its end: {last}")


def outcome(folder: Path, place: Path, manifest: JSONObject) -> JSONObject:
    """What the finished run measured, held against what the publication states."""
    recipe, _ = read_yaml(place / RECIPE)
    own = place / REGISTRY / recipe["name"]
    again = read_json(own / MANIFEST)
    run = place / "runs" / recipe["name"]
    folders = stage_folders(run, [stage["id"] for stage in recipe["stages"]])
    differences = differences_from(manifest, again.get("hardware", {}), again.get("versions", {}))
    differences += _other_stages(manifest, again)
    agreements: list[Agreement] = []
    stated = stated_scores(manifest)
    measured = {
        (stage, each.benchmark): each.metrics
        for stage in dict.fromkeys(each.stage for each in stated.values())
        for each in read_scores(folders[stage], stage)
    }
    for name, each in stated.items():
        agreements += compare(each, measured.get((each.stage, name), {}), exact=not differences, by_interval=True)
    same = weights_of(folder) == weights_of(own)
    failed = [each.sentence() for each in agreements if not each.holds]
    if not stated and not same:
        failed = ["no scores are stated, and the weights came out otherwise"]
    return {
        "folder": str(folder),
        "reproduced": not failed,
        "place": str(place),
        "scores": [each.plain() for each in agreements],
        "same_weights": same,
        "differences": differences,
        "problems": failed,
    }


def _other_stages(manifest: JSONObject, again: JSONObject) -> list[str]:
    """What the stages computed with otherwise, in words."""
    before = {stage["id"]: stage for stage in manifest["stages"]}
    found = []
    for stage in again.get("stages", ()):
        there = before.get(stage["id"], {})
        read = [name for name, digest in (there.get("data") or {}).items() if stage.get("data", {}).get(name) != digest]
        if read:
            found.append(f"'{stage['id']}' read other data ({', '.join(read)})")
        if there.get("code") != stage.get("code"):
            found.append(f"Finery's code of '{stage['id']}' is another")
    launch: Mapping[str, Any] = manifest.get("launch") or {}
    found += [
        f"{key} is {again.get('launch', {}).get(key)}, there it was {value}"
        for key, value in launch.items()
        if again.get("launch", {}).get(key) != value
    ]
    return found


def weights_of(folder: Path) -> dict[str, str]:
    """File -> SHA-256, of a publication's weights: not those of its exports, which are not made again."""
    sums = read_json(folder / MARKER).get("checksums", {})
    exports = tuple(f"{each['folder']}/" for each in read_json(folder / MANIFEST).get("exports") or ())
    return {
        name: digest for name, digest in sums.items() if name.endswith(".safetensors") and not name.startswith(exports)
    }


def _nothing(folder: Path, place: Path, why: Sequence[str]) -> JSONObject:
    """The answer where nothing was run."""
    return {
        "folder": str(folder),
        "reproduced": False,
        "place": str(place),
        "scores": [],
        "same_weights": None,
        "differences": [],
        "problems": list(why),
        "notes": [],
    }


def environment(place: Path, versions: Mapping[str, str]) -> str:
    """The Python of a virtual environment with these versions and this Finery, made once. Raises PublishError."""
    folder = (place / "environment").absolute()
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.is_file():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    wanted = {name: f"{name}=={version}" for name, version in sorted(versions.items()) if name != "finery"}
    labels = {
        name: version.partition("+")[2] for name, version in versions.items() if name in wanted and "+" in version
    }
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    install += ["--no-compile"]  # compiling takes most of the time, and few of the modules are imported
    # apart, since pip asks every index for every package, and again and again one that it does not reach
    labelled = [[*install, "--extra-index-url", f"{WHEELS}/{label}", wanted[name]] for name, label in labels.items()]
    plain = [each for name, each in wanted.items() if name not in labels]
    others = [[*install, *plain]] if plain else []
    for command in ([sys.executable, "-m", "venv", str(folder)], *labelled, *others):
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
            raise PublishError(
                f"the environment in {folder} cannot be made: {errors[0] if errors else 'no reason was given'}"
            )
    bring_finery(next((folder / "lib").glob("python*/site-packages")))
    ready.write_text("")
    return str(python)


def bring_finery(packages: Path) -> None:
    """Copy the Finery that runs here, with what says its version, beside other packages."""
    root = Path(__file__).resolve().parents[2]
    left_out = shutil.ignore_patterns("__pycache__", "configs")
    for name in ("pipelines", "service"):
        shutil.copytree(root / name, packages / name, ignore=left_out)
    shutil.copytree(configs_folder(), packages / "pipelines" / "configs")
    try:
        files = distribution("finery").files or ()
    except PackageNotFoundError:
        return
    for file in files:
        if file.parent.name.endswith(".dist-info") and file.name in ("METADATA", "entry_points.txt"):
            (packages / file.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(str(file.locate()), packages / file.parent.name / file.name)
