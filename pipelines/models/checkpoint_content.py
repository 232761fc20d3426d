"""What tells two checkpoints apart: the bytes of a folder, or the commit of a Hub repository; of an adapter those of
its base too.

The commit is asked for with the token of whoever runs, each time: what was made of a repository before, and lies in a
cache, is nobody's who may not read that repository now.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from pathlib import Path

from pipelines.core.errors import DataError
from pipelines.core.files import read_json
from pipelines.core.shared_bases import SETTINGS, base_of
from pipelines.data.sources import file_hash

COMMIT = re.compile(r"[0-9a-f]{40}")
REFUSED = (401, 403, 404)


def checkpoint_content(source: str, revision: str | None = None) -> str:
    """A hash over the names and bytes of a folder's files, or the name and commit of a Hub repository; behind that of
    an adapter its base's, wherever that lies. Raises DataError."""
    parts: list[str] = []
    passed: list[Path] = []
    base: str | None = source
    while base is not None:
        folder = Path(base)
        if not folder.is_dir():
            exact = COMMIT.fullmatch(revision or "") is not None  # whoever found it out has asked
            parts.append(f"{base}@{(not exact and commit_of(base, revision)) or revision or 'main'}")
            break
        if folder.resolve() in passed:
            break
        passed.append(folder.resolve())
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        told = "\n".join(f"{path.relative_to(folder)} {file_hash(path)}" for path in files)
        parts.append(hashlib.sha256(told.encode()).hexdigest())
        try:
            base = base_of(folder)
        except (OSError, ValueError):  # opening it says what is wrong
            break
        revision = read_json(folder / SETTINGS).get("revision") if base is not None else None
    return " on ".join(parts)


def commit_of(source: str, revision: str | None = None) -> str | None:
    """The commit of a Hub repository's revision, its files being readable with the token at hand.

    Where the Hub cannot be asked, that of the local cache, and None when there is none: opening it then says so.
    Raises DataError when the Hub refuses.
    """
    from huggingface_hub import constants, get_token

    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)
    return _commit_of(source, revision, endpoint, constants.HF_HUB_OFFLINE, constants.HF_HUB_CACHE, get_token())


@cache
def _commit_of(
    source: str, revision: str | None, endpoint: str, offline: bool, cached: str, token: str | None
) -> str | None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if offline:
        return _in_cache(source, revision, cached)
    api = HfApi(endpoint=endpoint)  # with the token, where the client may send one unasked
    try:
        info = api.model_info(source, revision=revision)
        if getattr(info, "gated", False):  # what it is, anybody may know; its files, only those who were let in
            api.auth_check(source)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in REFUSED:
            at = f" at {revision}" if revision else ""
            raise DataError(
                f"'{source}'{at} was not found, or may not be read ({status} from the Hub); a private or "
                "gated one needs an HF_TOKEN that may"
            ) from None
    except HFValidationError:
        return None
    except OfflineModeIsEnabled:
        pass
    except Exception:  # the client's transport errors have no common base
        pass
    else:
        if isinstance(info.sha, str) and COMMIT.fullmatch(info.sha):
            return info.sha
    return _in_cache(source, revision, cached)


def _in_cache(source: str, revision: str | None, cached: str) -> str | None:
    """The commit that the local cache has for a revision."""
    place = Path(cached) / f"models--{source.replace('/', '--')}"
    if revision is not None and COMMIT.fullmatch(revision):
        return revision if (place / "snapshots" / revision).is_dir() else None
    try:
        commit = (place / "refs" / (revision or "main")).read_text().strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None
