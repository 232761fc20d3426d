"""The image is built without an engine and does its work: a recipe runs in it, and `serve` answers.

`buildah` builds in a chroot with the vfs driver, on a base made by `debootstrap` that holds this machine's certificates. Where the
packages come from is what pip says on this machine; folders of wheels are mounted. Takes some minutes and root.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.service.databases import fresh_postgresql, missing

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
    """(buildah, a container of the built image); of `FINERY_TEST_IMAGE`, a store of buildah's, where that is set."""
    if given := os.environ.get("FINERY_TEST_IMAGE"):
        build = Builder(Path(given))
        name = build("from", "localhost/finery")
        yield build, name
        build("rm", name)
        return
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


def test_what_the_image_consists_of_is_written_down_and_valid(container, tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    build, name = container
    text = inside(build, name, "cat /opt/finery/share/finery/sbom.cdx.json")
    document = json.loads(text)
    version = SchemaVersion.from_version(document["specVersion"])
    assert JsonStrictValidator(version).validate_str(text) is None
    there = {re.sub("[-_.]+", "-", each["name"]).lower(): each["version"] for each in document["components"]}
    pins = dict(
        line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line[:1].isalpha()
    )
    for package in ("torch", "transformers", "pyarrow", "ray", "sqlalchemy"):
        assert there[package].partition("+")[0] == pins[package]
    installed = json.loads(inside(build, name, f"python3 -c '{LISTED}'", path="/opt/finery/bin"))
    assert set(installed) - {"finery"} <= set(there), "the list is not whole"
    assert "cyclonedx-bom" not in there


LISTED = (
    "import importlib.metadata as m, json, re; "
    'print(json.dumps([re.sub("[-_.]+", "-", d.name).lower() for d in m.distributions()]))'
)


def inside(build, name, script, path="", **variables):
    """What a shell prints in the container."""
    words = [part for key, value in variables.items() for part in ("--env", f"{key}={value}")]
    script = f"export PATH={path}:$PATH; {script}" if path else script
    return build("run", "--isolation", "chroot", *words, name, "sh", "-c", script)


def test_nothing_that_builds_is_left_in_the_image(container):
    build, name = container
    script = (
        "for each in pip pip3 gcc cc make git curl; do command -v $each; done; ls -d /opt/s* /var/lib/apt/lists/* 2>&1"
    )
    said = inside(build, name, f"{script} || true; id -u").splitlines()
    assert said[-1] == "10001"
    assert all("No such file" in line for line in said[:-1]), said
    assert inside(build, name, "python3 -c 'import pip' 2>&1 || true").endswith("No module named 'pip'")


def services():
    """The services of compose.yaml that are this image."""
    document = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
    return {name: each for name, each in document["services"].items() if "build" in each}


@contextmanager
def running(build, name, service, network=None, **variables):
    """A service of compose.yaml in a container of its own, by the image's own entry point; on a `network` with an address
    of its own. On one, what fails is begun again, as compose does: Ray gives a node 30 s to start, and busy cores may not."""
    own = build("from", "localhost/finery")
    words = [*([] if network is None else network.within(name)), *map(str, build.words)]
    environment = {key: value for key, value in service.get("environment", {}).items() if "$" not in str(value)}
    words += ["run", "--isolation", "chroot", "--workingdir", service["working_dir"]]
    words += ["--volume", f"{build.folder}/compose:/data"]
    for key, value in {**environment, **variables}.items():
        words += ["--env", f"{key}={value}"]
    words += [own, "tini", "-s", "--", "entrypoint", *service["command"]]
    if network is not None:
        assert service["restart"] == "unless-stopped"
        words = ["sh", "-c", 'trap "stopped=yes" TERM; until "$@" || [ "$stopped" ]; do sleep 1; done', "sh", *words]
    with open(build.folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            yield own
        finally:
            inner = psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)
            for each in inner:  # buildah takes nothing with it but its own child, `tini`
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            build("rm", own)


class Network:
    """What compose gives its services: a bridge, and for each a network namespace with an address on it."""

    prefix = "10.213.77"

    def __init__(self, names):
        self.mark = f"fy{os.getpid() % 100_000}"
        self.names = list(names)

    def __enter__(self):
        if (
            shutil.which("ip") is None
            or subprocess.run(["ip", "link", "add", self.mark, "type", "bridge"], check=False).returncode
        ):
            pytest.skip("no bridge between networks can be made here")
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self):
        self._ip("address", "add", f"{self.prefix}.1/24", "dev", self.mark)
        self._ip("link", "set", self.mark, "up")
        for place, name in enumerate(self.names):
            outer, inner = f"{self.mark}o{place}", f"{self.mark}i{place}"
            self._ip("netns", "add", f"{self.mark}-{name}")
            self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", f"{self.mark}-{name}")
            self._ip("link", "set", outer, "master", self.mark, "up")
            inside = ("-n", f"{self.mark}-{name}")
            self._ip(*inside, "address", "add", f"{self.address(name)}/24", "dev", inner)
            self._ip(*inside, "link", "set", inner, "up")
            self._ip(*inside, "link", "set", "lo", "up")
            self._ip(*inside, "route", "add", "default", "via", f"{self.prefix}.1")  # by it Ray finds its own address

    def __exit__(self, *failure):
        for place, name in enumerate(self.names):
            left = subprocess.run(
                ["ip", "netns", "pids", f"{self.mark}-{name}"], capture_output=True, text=True, check=False
            )
            for pid in map(int, left.stdout.split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "link", "del", f"{self.mark}o{place}"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", f"{self.mark}-{name}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.mark], capture_output=True, check=False)

    def _ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"

    def address(self, name):
        return f"{self.prefix}.{10 + self.names.index(name)}"

    def within(self, name):
        return ["ip", "netns", "exec", f"{self.mark}-{name}"]


def test_the_ray_services_of_compose_work_a_job_off(container):
    """Head, worker and service by their own commands, each with an address of its own, as compose has them."""
    build, _ = container
    shutil.rmtree(build.folder / "compose", ignore_errors=True)
    (build.folder / "compose").mkdir()
    os.chown(build.folder / "compose", 10001, 10001)
    offered = services()
    shutil.copyfile(REPOSITORY / "configs/smoke/encoder-full.yaml", build.folder / "compose" / "recipe.yaml")
    names = ("ray-head", "ray-worker", "finery-ray")
    with Network(names) as network, ExitStack() as started:
        address = f"{network.address('ray-head')}:6379"  # there is nobody to ask for names
        shared = {"RAY_AUTH_TOKEN": "5f" * 16, "FINERY_WARM": "0", "FINERY_RAY_ADDRESS": address}
        for name in names:
            own = started.enter_context(running(build, name, offered[name], network, **shared))
        asked = "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"
        script = (
            f'until python3 -c "{asked}" 2> /dev/null; do sleep 1; done; export FINERY_TOKEN=$(cat /data/admin.token); '
            "finery submit /data/recipe.yaml --server http://127.0.0.1:8080 --follow; echo ended $?"
        )
        words = [*network.within("finery-ray"), *map(str, build.words), "run", "--isolation", "chroot"]
        words += ["--volume", f"{build.folder}/compose:/data", own, "timeout", "300", "sh", "-c", script]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        logs = "".join(f"\n{name}: {(build.folder / f'{name}.log').read_text()[-1500:]}" for name in names)
        assert "ended 0" in said.stdout, said.stdout[-3000:] + said.stderr[-2000:] + logs


def ready(build, name, seconds=180):
    """Until the service of this log answers on its port."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        with suppress(OSError, ValueError), urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=4) as answer:
            return answer.status
        time.sleep(1)
    raise AssertionError((build.folder / f"{name}.log").read_text()[-3000:])


def test_the_service_of_compose_runs_on_postgresql_and_writes_only_where_it_may(container):
    """By its own entry point, command and environment, as the image's user."""
    if reason := missing():
        pytest.skip(reason)
    build, _ = container
    (build.folder / "compose").mkdir(exist_ok=True)
    os.chown(build.folder / "compose", 10001, 10001)
    offered = services()
    with fresh_postgresql() as url:
        began = int(time.time())
        shared = {"FINERY_DATABASE_URL": url, "FINERY_LOG_LEVEL": "warning", "FINERY_WARM": "0"}
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=4)
        with running(build, "finery", offered["finery"], **shared) as own:
            assert ready(build, "finery") == 200
            script = (
                "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /home/finery -o -path "
                "/data -o -path /cache -o -path /work -o -path /run -o -path /etc \\) -prune -o -type f "
                f"-newermt @{began} -print 2> /dev/null || true"
            )
            assert inside(build, own, script) == "", "it writes where a read-only root would refuse it"


@pytest.mark.parametrize("word", ["worker", "head"])
def test_a_cluster_without_a_token_is_refused(container, word):
    build, name = container
    said = inside(build, name, f"entrypoint {word} 2>&1 || true", FINERY_RAY_ADDRESS="127.0.0.1:6379")
    assert "set RAY_AUTH_TOKEN to the token of the cluster" in said


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
    assert '"User": "10001:10001"' in config
    assert "/livez" in config
    assert "PIP_" not in build("run", "--isolation", "chroot", name, "env")
