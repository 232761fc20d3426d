"""The manifests, alerts and dashboard of configs/deploy: valid by Kubernetes' own schemas, and about what the service really tells."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from shutil import which

import check_jsonschema
import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from service.settings import Settings, read_settings, variable_of
from tests.service.test_deploy import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
DOCUMENTS = [(path.relative_to(DEPLOY), each) for path in FILES for each in yaml.safe_load_all(path.read_text())]


def pods(documents=DOCUMENTS):
    """Every pod's template, with a name for it."""
    for path, document in documents:
        name = f"{path} {document['metadata']['name']}"
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield name, document["spec"]["template"]["spec"]
        elif document["kind"] == "RayCluster":
            groups = [document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]]
            yield from ((f"{name} {at}", group["template"]["spec"]) for at, group in enumerate(groups))


def closed(required, **fields):
    """An object of these fields and no others."""
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
GROUP = {"rayStartParams": TEXTS, "template": closed(["spec"], metadata={"type": "object"}, spec={"type": "object"})}
HEAD = {"serviceType": TEXT, "headService": {"type": "object"}, "enableIngress": FLAG}
SCALE = {"workersToDelete": {"type": "array", "items": TEXT}}
WORKERS = {"groupName": TEXT, "numOfHosts": NUMBER, "scaleStrategy": closed([], **SCALE)}
REPLICAS = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), NUMBER)
RAY_CLUSTER = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata={"type": "object"},
    spec=closed(
        ["headGroupSpec"],
        headGroupSpec=closed(["rayStartParams", "template"], **HEAD, **GROUP),
        workerGroupSpecs={
            "type": "array",
            "items": closed(
                ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                **WORKERS, **REPLICAS, **GROUP,
            ),
        },
        rayVersion=TEXT, enableInTreeAutoscaling=FLAG, autoscalerOptions={"type": "object"}, suspend=FLAG,
        headServiceAnnotations=TEXTS,
    ),
)  # fmt: skip
"""The fields of `RayClusterSpec` and their types, as KubeRay's raycluster_types.go of the API `ray.io/v1` has them."""


@pytest.mark.parametrize(
    ("path", "document"), [pytest.param(*each, id=f"{each[0]} {each[1]['kind']}") for each in DOCUMENTS]
)
def test_every_manifest_is_valid(path, document):
    valid(document, pods([(path, document)]))


@pytest.mark.parametrize(("name", "spec"), [pytest.param(*each, id=each[0]) for each in pods()])
def test_no_pod_runs_as_root_or_may_become_it(name, spec):
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def valid(document, pods_of):
    import kubernetes_validate  # here, or every worker would read the grammars that it brings

    if document["kind"] != "RayCluster":
        kubernetes_validate.validate(document, "1.37", strict=True)
        return
    jsonschema.validate(document, RAY_CLUSTER)  # KubeRay's own kind: its pods are Kubernetes'
    for _, spec in pods_of:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, "1.37", strict=True)


def test_kustomizations_name_what_is_there_and_what_they_patch():
    kinds = {(document["kind"], document["metadata"]["name"]) for _, document in DOCUMENTS}
    listed = []
    for path in KUBERNETES.rglob("kustomization.yaml"):
        words = yaml.safe_load(path.read_text())
        named = [path.parent / each for each in (*words.get("resources", ()), *words.get("components", ()))]
        assert all(each.is_file() or (each / "kustomization.yaml").is_file() for each in named)
        assert not any(path.is_relative_to(each.resolve()) for each in named), "kustomize refuses a circle"
        listed += [each for each in named if each.is_file()]
        for patch in words.get("patches", ()):
            assert (patch["target"]["kind"], patch["target"]["name"]) in kinds
            assert all(each["op"] in ("add", "replace") for each in yaml.safe_load(patch["patch"]))
    assert sorted(listed) == sorted(FILES)


@pytest.mark.skipif(which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("variant", [".", "ray"])
def test_what_kubectl_builds_is_valid_and_has_the_pushed_image_everywhere(variant):
    command = ["kubectl", "kustomize", str(KUBERNETES / variant)]
    built = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    there = list(pods([(variant, each) for each in built]))
    for document in built:
        assert document["metadata"]["namespace"] == "finery"
        valid(document, pods([(variant, document)]))
    images = [each["image"] for _, spec in there for each in spec["containers"]]
    [pushed] = yaml.safe_load((KUBERNETES / "image" / "kustomization.yaml").read_text())["images"]
    assert images.count(f"{pushed['newName']}:{pushed['newTag']}") == len(images) - 1, "all but PostgreSQL's"
    assert any(document["kind"] == "RayCluster" for document in built) is (variant == "ray")


def test_the_pod_is_asked_by_its_service_by_its_own_address_and_through_a_forwarded_port():
    (container,) = next(spec for name, spec in pods() if name.endswith("finery.yaml finery"))["containers"]
    names = {each["name"]: each for each in container["env"]}
    assert names["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    value = names["FINERY_ALLOWED_HOSTS"]["value"].replace("$(POD_IP)", "10.244.0.17")
    settings = read_settings({"FINERY_ALLOWED_HOSTS": value}, host=container["args"][2])
    assert {"finery", "finery.finery.svc", "localhost", "127.0.0.1", "10.244.0.17"} <= settings.host_names


def test_the_server_takes_the_variables_and_arguments_of_its_pod():
    spec = next(spec for name, spec in pods() if name.endswith("finery.yaml finery"))
    (container,) = spec["containers"]
    known = {f"FINERY_{name.upper()}" for name in Settings.model_fields} | {"FINERY_HOME"}
    patch = yaml.safe_load((KUBERNETES / "ray" / "kustomization.yaml").read_text())["patches"][1]["patch"]
    names = [each["name"] for each in container["env"]] + [
        each["value"]["name"] for each in yaml.safe_load(patch) if each["path"].endswith("/env/-")
    ]
    assert {name for name in names if name.startswith("FINERY_")} <= known
    assert container["args"][0] == "serve"
    claims = {document["metadata"]["name"] for _, document in DOCUMENTS if document["kind"] == "PersistentVolumeClaim"}
    assert {
        each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"] if "persistentVolumeClaim" in each
    } <= claims


# --- compose.yaml and the image's entry point

COMPOSE = DEPLOY.parents[1] / "compose.yaml"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
OWN = {name: each for name, each in SERVICES.items() if "build" in each}


def test_compose_is_valid_by_its_specification():
    """By the schema of compose-spec that check-jsonschema carries."""
    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", "vendor.compose-spec", str(COMPOSE)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", OWN)
def test_each_service_of_compose_has_no_more_than_it_needs(name):
    service = OWN[name]
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {each.partition(":")[0] for each in service["tmpfs"]} == {"/tmp", "/home/finery"}
    assert {each.partition(":")[2] for each in service["volumes"]} == {"/data", "/cache"}
    assert all(each.startswith("127.0.0.1:") for each in service.get("ports", ()))
    known = {variable_of(field) for field in Settings.model_fields}
    others = {"HF_TOKEN", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    assert set(service["environment"]) <= known | others
    assert service["command"][0] in {"serve", "head", "worker"}


def test_each_profile_of_compose_has_one_service_at_the_port():
    """And a database and a cluster where it needs one."""
    for profile in ("cpu", "gpu", "ray"):
        there = {name for name, each in SERVICES.items() if profile in each.get("profiles", [profile])}
        assert sum("ports" in SERVICES[name] for name in there) == 1, profile
        assert all(needed in there for name in there for needed in SERVICES[name].get("depends_on", ())), profile
    assert SERVICES["ray-gpu-worker"]["profiles"] == ["ray-gpu"]
    assert {name for name, each in SERVICES.items() if "deploy" in each} == {"finery-gpu", "ray-gpu-worker"}


@pytest.mark.parametrize(
    ("words", "environment", "started"),
    [
        (["run", "x.yaml"], {}, "finery run x.yaml"),
        ([], {}, "finery"),
        (["chat", "registry/x"], {}, "finery chat registry/x"),
        (
            ["worker", "--num-gpus", "2"],
            {"FINERY_RAY_ADDRESS": "head:6379", "RAY_AUTH_TOKEN": "t"},
            "ray start --block --disable-usage-stats --address head:6379 --num-gpus 2",
        ),
        (
            ["head"],
            {"RAY_AUTH_TOKEN": "t"},
            "ray start --block --disable-usage-stats --head --port 6379 --include-dashboard false",
        ),
    ],
)
def test_the_entry_point_starts_what_its_word_says(tmp_path, words, environment, started):
    assert entered(tmp_path, words, environment, 'echo finery "$@"').strip() == started


def test_a_service_on_a_ray_cluster_is_a_node_of_it_that_runs_no_jobs_and_joins_again(tmp_path):
    """Ray is spoken to through a node on the same machine: without one the agent of the executor finds no cluster."""
    environment = {"FINERY_EXECUTOR": "ray", "FINERY_RAY_ADDRESS": "head:6379"}
    told = f'until [ "$(grep -c . {tmp_path}/joins)" -ge 4 ]; do :; done; echo finery "$@"'
    place = tmp_path / "node"
    environment["RAY_TMPDIR"] = str(place)
    (place / "ray").mkdir(parents=True)
    (place / "ray" / "ray_current_cluster").write_text("of an earlier life")
    assert entered(tmp_path, ["serve"], {**environment, "RAY_AUTH_TOKEN": "t"}, told).strip() == "finery serve"
    joins = (tmp_path / "joins").read_text().splitlines()
    assert set(joins) == {"start --block --disable-usage-stats --address head:6379 --num-cpus 0 --num-gpus 0"}
    assert len(joins) >= 4, "a head that is not there yet, and one that was lost"
    assert (place / "ray" / "ray_current_cluster").read_text() == "head\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        entered(tmp_path, ["serve"], environment, told)
    assert "set RAY_AUTH_TOKEN to the token of the cluster" in caught.value.stderr


def entered(folder, words, environment, finery):
    """What the entry point prints, with stand-ins for its programs. `ray` ends at once when it joins for a service; the
    second time it was there."""
    written = f'echo head > {folder}/head && mv {folder}/head "$RAY_TMPDIR/ray/ray_current_cluster"'  # whole at once
    there = f'[ "$(grep -c . {folder}/joins)" -ge 2 ] && {written}'
    joins = f'case "$*" in *"--num-gpus 0") echo "$@" >> {folder}/joins; {there};; *) echo ray "$@";; esac'
    for name, script in (("finery", finery), ("ray", joins), ("sleep", ":")):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    command = ["sh", str(DEPLOY / "entrypoint.sh"), *words]
    path = f"{folder}:/usr/bin:/bin"
    group = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PATH": path, **environment},
        start_new_session=True,
    )  # fmt: skip
    try:
        group.wait(30)
    finally:
        with suppress(ProcessLookupError):  # what it started in the background
            os.killpg(group.pid, signal.SIGKILL)
    out, errors = group.communicate()
    if group.returncode:
        raise subprocess.CalledProcessError(group.returncode, command, out, errors)
    return str(out)


def test_a_worker_without_a_token_or_a_head_is_a_sentence():
    for environment, missing in (({}, "FINERY_RAY_ADDRESS"), ({"FINERY_RAY_ADDRESS": "h:1"}, "RAY_AUTH_TOKEN")):
        done = subprocess.run(
            ["sh", str(DEPLOY / "entrypoint.sh"), "worker"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode != 0
        assert f"set {missing} to" in done.stderr
