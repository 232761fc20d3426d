"""What an attempt's process sees: chosen variables of the service's environment, never all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.core.secrets import HOSTS
from service.attempts.folders import CACHE, INPUTS, REFERENCES
from service.jobs.job import Attempt, Job
from service.safety import secrets as secret_store
from service.safety.secrets import SecretValue
from service.settings import Settings

INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV"
    r"|XDG_CACHE_HOME|FINERY_DATA"
    r"|HF_ENDPOINT|HF_HUB_OFFLINE|HF_HUB_DOWNLOAD_TIMEOUT|HF_HUB_ETAG_TIMEOUT|HF_HUB_DISABLE_XET"
    r"|HF_XET_HIGH_PERFORMANCE"
    r"|HF_DATASETS_OFFLINE|TRANSFORMERS_OFFLINE|TRANSFORMERS_VERBOSITY"
    r"|TORCH_\w+|TRITON_\w+|CUDA_(?!VISIBLE_DEVICES)\w+|NVIDIA_\w+|NCCL_\w+|GLOO_\w+|OMP_\w+|MKL_\w+"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY"
)
"""Names of the operator's variables that are passed on: where things lie, how devices and networks are set up. The
rest, passwords among it, is not, and nothing that a client sends becomes a variable."""
SECRET_NAMES = re.compile(r"(TOKEN|SECRET|PASSWORD|KEY)$")
"""Names that are never passed on, whatever else they match."""


def environment_of(
    settings: Settings, job: Job, attempt: Attempt, outer: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of an attempt's process. `outer` is the service's own environment."""
    outer = os.environ if outer is None else outer
    threads = max(1, attempt.resources.cpus or 1)
    return {
        **inherited(outer),
        **_hub(settings, job.project, outer),
        "FINERY_HOME": str(settings.jobs / job.id / CACHE),
        "FINERY_SHARED_STAGES": str(shared_stages(settings, job.project, outer)),
        "FINERY_REFERENCES": str(settings.jobs / job.id / INPUTS / REFERENCES),
        "FINERY_JOB_ID": job.id,
        "OMP_NUM_THREADS": outer.get("OMP_NUM_THREADS", str(threads)),
        "FINERY_PUBLIC_ENDPOINTS_ONLY": "0" if settings.private_endpoints else "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0" if "HF_TOKEN" in job.request.secrets else "1",
        "NETRC": os.devnull,
    }


def inherited(outer: Mapping[str, str]) -> dict[str, str]:
    """The operator's variables that processes of the service are given."""
    return {name: value for name, value in outer.items() if INHERITED.fullmatch(name) and not SECRET_NAMES.search(name)}


def hub_folder(settings: Settings, project: str) -> Path:
    """What the attempts of a project take from the Hub: no project finds what another one may read there."""
    return settings.home / "hub" / project


def _hub(settings: Settings, project: str, outer: Mapping[str, str]) -> dict[str, str]:
    """The project's own caches; without a network those that the operator filled, for all projects."""
    variables = {"HF_HOME": str(hub_folder(settings, project))}
    if outer.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        home = outer.get("HF_HOME")
        for name, part in (("HF_HUB_CACHE", "hub"), ("HF_DATASETS_CACHE", "datasets")):
            if shared := outer.get(name) or (home and f"{home}/{part}"):
                variables[name] = shared
    return variables


def shared_stages(settings: Settings, project: str, outer: Mapping[str, str] | None = None) -> Path:
    """The finished stages of a project, by fingerprint: its attempts read them, the server alone writes them."""
    return stage_cache(settings, outer) / project / "stages"


def stage_cache(settings: Settings, outer: Mapping[str, str] | None = None) -> Path:
    """Where complete stages are kept, a folder for each project: `FINERY_HOME` of the service, else `HOME/cache`."""
    given = (os.environ if outer is None else outer).get("FINERY_HOME")
    return Path(given).expanduser().absolute() if given else settings.home / "cache"


def secrets_of(settings: Settings, job: Job, outer: Mapping[str, str] | None = None) -> dict[str, SecretValue]:
    """The secrets that a job names and may have. What is not found is left out: the job then fails where it needs it,
    with the sentence that belongs there."""
    secrets = {name: secret_store.given(settings, job.project, name, outer) for name in job.request.secrets}
    return {name: secret for name, secret in secrets.items() if secret is not None}


def secret_files(secrets: Mapping[str, SecretValue]) -> dict[str, str]:
    """The files that hand them to an attempt (`pipelines.core.secrets` reads them): each value under its name, its
    hosts beside it."""
    values = {name: secret.value for name, secret in secrets.items()}
    return values | {
        f"{name}{HOSTS}": "\n".join(secret.hosts) for name, secret in secrets.items() if secret.hosts is not None
    }
