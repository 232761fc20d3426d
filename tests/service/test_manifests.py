"""The manifests, alerts and dashboard of configs/deploy: valid by Kubernetes' own schemas, and about what the service really tells."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from service.settings import Settings
from tests.service.test_deploy import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
DOCUMENTS = [(path.relative_to(DEPLOY), each) for path in FILES for each in yaml.safe_load_all(path.read_text())]


def pods():
    """Every pod's template, with a name for it."""
    for path, document in DOCUMENTS:
        name = f"{path} {document['metadata']['name']}"
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield name, document["spec"]["template"]["spec"]
        elif document["kind"] == "RayCluster":
            groups = [document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]]
            yield from ((f"{name} {at}", group["template"]["spec"]) for at, group in enumerate(groups))


@pytest.mark.parametrize(
    ("path", "document"), [pytest.param(*each, id=f"{each[0]} {each[1]['kind']}") for each in DOCUMENTS]
)
def test_every_manifest_is_valid(path, document):
    if document["kind"] == "RayCluster":  # KubeRay's own kind: its pods are Kubernetes'
        for name, spec in pods():
            if name.startswith(str(path)):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
                kubernetes_validate.validate(pod, "1.37", strict=True)
        return
    kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize(("name", "spec"), [pytest.param(*each, id=each[0]) for each in pods()])
def test_no_pod_runs_as_root_or_may_become_it(name, spec):
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def test_kustomizations_name_files_and_what_they_patch():
    kinds = {(document["kind"], document["metadata"]["name"]) for _, document in DOCUMENTS}
    for path in KUBERNETES.rglob("kustomization.yaml"):
        words = yaml.safe_load(path.read_text())
        assert all((path.parent / each).exists() for each in words["resources"])
        for patch in words.get("patches", ()):
            assert (patch["target"]["kind"], patch["target"]["name"]) in kinds
            assert all(each["op"] in ("add", "replace") for each in yaml.safe_load(patch["patch"]))
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in FILES if path.parent == KUBERNETES)


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
