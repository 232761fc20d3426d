"""The folders of a server, which nobody who reads events, logs and errors needs to know."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from service.attempts.environment import stage_cache
from service.settings import Settings


def server_folders(settings: Settings, environment: Mapping[str, str] | None = None) -> list[str]:
    """Where jobs, caches, data and code lie, each as it is written and as it is behind links; the longest path wins later."""
    environment = os.environ if environment is None else environment
    hub = environment.get("HF_HOME") or str(Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    found = [
        str(settings.home), str(stage_cache(settings, environment)), *environment.get("FINERY_DATA", "").split(os.pathsep),
        hub, environment.get("HF_HUB_CACHE", ""), environment.get("HF_DATASETS_CACHE", ""), sys.prefix, sys.base_prefix,
        str(Path(__file__).parents[2]), str(Path.home()),
    ]  # fmt: skip
    return list(dict.fromkeys(each for folder in found if folder for each in (folder, os.path.realpath(folder))))
