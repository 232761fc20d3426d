"""The image is built without an engine and does its work: a recipe runs in it, and `serve` answers.

`buildah` builds in a chroot with the vfs driver, on a base made by `debootstrap` that holds this machine's certificates. Where the
packages come from is what pip says on this machine; folders of wheels are mounted. Takes some minutes and root.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("buildah", "debootstrap")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
lacking = [tool for tool in TOOLS if shutil.which(tool) is None] + ([] if os.geteuid() == 0 else ["root"])
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(lacking), reason=f"building the image needs {', '.join(lacking)}"),
]


def settled(name):
    """What pip is told here by a variable or a file."""
    if given := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return given
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


class Builder:
    """buildah with a store of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.words = ["buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs"]

    def __call__(self, *words, **keywords):
        done = subprocess.run(
            [*map(str, self.words), *map(str, words)], capture_output=True, text=True, check=False, **keywords
        )
        assert done.returncode == 0, f"buildah {words[0]}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    """(buildah, a container of the built image)"""
    folder = tmp_path_factory.mktemp("image")
    build = Builder(folder)
    root = folder / "base"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True, capture_output=True)
    (root / CERTIFICATES.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    try:
        empty = build("from", "scratch")
        build("copy", empty, root, "/")
        build("commit", "--rm", empty, "localhost/base")
        words = [
            "bud",
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--build-arg",
            "VARIANT=cpu",
            "--build-arg",
            "CPU_BASE=localhost/base",
            "--build-arg",
            "CUDA_BASE=localhost/base",
            "--tag",
            "localhost/finery",
        ]
        words += ["--build-arg", f"PIP_CERT={CERTIFICATES}"]
        for name in ("find-links", "index-url", "extra-index-url"):
            if value := settled(name):
                words += ["--build-arg", f"PIP_{name.upper().replace('-', '_')}={value}"]
                places = [Path(place.removeprefix("file://")) for place in value.split()]
                places = [
                    place if name == "find-links" else place.parent for place in places if place.is_dir()
                ]  # an index points beside itself
                words += [part for place in dict.fromkeys(places) for part in ("--volume", f"{place}:{place}:ro")]
        build(*words, REPOSITORY)
        name = build("from", "localhost/finery")
        yield build, name
    finally:
        subprocess.run([*map(str, build.words), "rm", "--all"], capture_output=True, check=False)
        subprocess.run([*map(str, build.words), "rmi", "--all", "--force"], capture_output=True, check=False)


def test_a_recipe_runs_in_the_image_as_a_user_who_is_not_root(container):
    build, name = container
    shutil.copyfile(REPOSITORY / "configs/smoke/encoder-full.yaml", build.folder / "recipe.yaml")
    build("copy", "--chown", "finery:finery", name, build.folder / "recipe.yaml", "/work/recipe.yaml")
    said = build(
        "run", "--isolation", "chroot", name, "sh", "-c", "id -u && finery --version && finery run recipe.yaml --json"
    )
    user, version, *rest = said.splitlines()
    assert user == "10001"
    assert version.startswith("finery 0")
    assert '"exit_code": 0' in rest[-1] or '"status": "done"' in rest[-1]


def test_the_image_serves(container):
    build, name = container
    script = (
        "finery serve --port 8099 --home /data/service > /tmp/log 2>&1 & "
        "for n in $(seq 60); do python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8099/healthz\").status)' 2>/dev/null && break; sleep 1; done; "
        "cat /tmp/log >&2; kill $!; wait"
    )
    assert build("run", "--isolation", "chroot", name, "sh", "-c", script).splitlines()[0] == "200"


def test_the_image_keeps_nothing_of_the_build(container):
    build, name = container
    described = build("inspect", "--type", "image", "localhost/finery")
    config = described[described.index('"Docker"') :]
    assert '"User": "finery"' in config
    assert "/livez" in config
    assert "PIP_" not in build("run", "--isolation", "chroot", name, "env")
