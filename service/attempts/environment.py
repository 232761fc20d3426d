"""What an attempt's process sees: chosen variables of the service's environment, never all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from service.jobs.job import Attempt, Job
from service.safety import secret_store
from service.settings import Settings

INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|XDG_CACHE_HOME"
    r"|FINERY_DATA|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|HF_DATASETS_\w+|HF_ENDPOINT|TRANSFORMERS_\w+|TORCH_\w+|TRITON_\w+"
    r"|CUDA_(?!VISIBLE_DEVICES)\w+|NVIDIA_\w+|NCCL_\w+|GLOO_\w+|OMP_\w+|MKL_\w+"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY"
)
"""Names that are passed on: where things lie, how devices and networks are set up. The rest, passwords among it, is not."""
TOLD = re.compile(r"(TOKEN|SECRET|PASSWORD|KEY)$")
"""Names that are never passed on, whatever else they match."""


def environment_of(settings: Settings, job: Job, attempt: Attempt, outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of an attempt's process. `outer` is the service's own environment."""
    outer = os.environ if outer is None else outer
    found = {name: value for name, value in outer.items() if INHERITED.fullmatch(name) and not TOLD.search(name)}
    threads = max(1, attempt.resources.cpus or 1)
    return {
        **found,
        "FINERY_HOME": str(stage_cache(settings, outer)),
        "FINERY_JOB_ID": job.id,
        "OMP_NUM_THREADS": outer.get("OMP_NUM_THREADS", str(threads)),
        "FINERY_PUBLIC_ENDPOINTS_ONLY": "0" if settings.private_endpoints else "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def stage_cache(settings: Settings, outer: Mapping[str, str] | None = None) -> Path:
    """Where complete stages are kept for all jobs: `FINERY_HOME` of the service, else `HOME/cache`."""
    given = (os.environ if outer is None else outer).get("FINERY_HOME")
    return Path(given).expanduser().absolute() if given else settings.home / "cache"


def secrets_of(settings: Settings, job: Job, outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of the secrets that a job names: files of `HOME/secrets/<project>/`, else of the service's environment.

    A name in the environment is looked up as `FINERY_SECRET_<NAME>`; HF_TOKEN also as itself. What is not found is left
    out: the job then fails where it needs it, with the sentence that belongs there.
    """
    outer = os.environ if outer is None else outer
    found = {}
    for name in job.request.secrets:
        if secret_store.NAME.fullmatch(name) is None or secret_store.RESERVED.fullmatch(name) is not None:
            continue
        path = secret_store.folder(settings, job.project) / name
        if path.is_file():
            found[name] = path.read_text().strip()
        elif (value := outer.get(f"FINERY_SECRET_{name}")) is not None:
            found[name] = value
        elif name == "HF_TOKEN" and "HF_TOKEN" in outer:
            found[name] = outer["HF_TOKEN"]
    return found
