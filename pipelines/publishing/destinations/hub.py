"""Publishing to the Hugging Face Hub: `hub:owner/name`.

One commit carries every file, so that no reader meets half a model; a second one, after all of them were read back and
compared, carries the marker. `upload_folder` is not used because it may split a folder into several commits. The token
comes from the secret HF_TOKEN only and appears in no message.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pipelines.core.errors import PublishError
from pipelines.core.files import JSONObject
from pipelines.core.results import MARKER
from pipelines.core.secrets import secret
from pipelines.publishing.destinations.destination import differences, marker_bytes, marker_in, sha256_of

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import RepoFile

Result = TypeVar("Result")

PREFIX = "hub:"
WAITS = (1.0, 4.0, 15.0, 60.0)
"""Seconds before each further attempt, unless the Hub names a time itself."""
LOOKING = (1.0,)
"""The same when the question is only what lies there."""
LONGEST_WAIT = 300.0
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
OTHERS = {".gitattributes", "README.md", "LICENSE", ".gitignore"}
"""What the Hub itself puts into a new repository."""


class Hub:
    """A model repository on the Hub."""

    example: ClassVar[str] = "hub:ada/demo"

    def __init__(self, to: str, private: bool = True) -> None:
        self.to = to
        self.repo_id = to.removeprefix(PREFIX)
        self.private = private

    @staticmethod
    def claims(to: str) -> bool:
        """Texts that begin with `hub:`."""
        return to.startswith(PREFIX)

    @staticmethod
    def mistake(to: str) -> str | None:
        """Whatever the Hub would not take as a name."""
        owner, _, name = to.removeprefix(PREFIX).partition("/")
        for part in (owner, name):
            if not _PART.fullmatch(part) or "--" in part or ".." in part or part.endswith(".git"):
                return (
                    f"is '{to}', must be hub:owner/name, each of letters, digits, '-', '_' and '.', "
                    "at most 96 of them, neither '--' nor '..', and no '-' or '.' at an end"
                )
        return None

    @property
    def location(self) -> str:
        """`hub:owner/name`."""
        return self.to

    def load_from(self) -> str:
        """`owner/name`, as `from_pretrained` takes it."""
        return self.repo_id

    def marker(self) -> dict[str, Any] | None:
        """The publication.json in the repository."""
        api = self._api()
        # Asked first because the client retries this question at no length of its own: a dead network is known at once.
        names: list[str] = self._patiently(lambda: self._names(api), [], LOOKING)
        return self._marker(api, None) if MARKER in names else None

    def holds(self, checksums: Mapping[str, str]) -> bool:
        """Compares large files by the Hub's own SHA-256, and downloads the small ones."""
        api = self._api()
        changed = self._patiently(lambda: self._changed(api, checksums, None), list(checksums), LOOKING)
        return not changed

    def push(self, folder: Path, publication: JSONObject) -> str:
        """Create the repository if needed, commit, read back, commit the marker."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        api = self._api()
        self._patiently(lambda: api.create_repo(self.repo_id, private=self.private, exist_ok=True))
        if self.private and not self._patiently(lambda: api.model_info(self.repo_id)).private:
            raise PublishError(
                f"'{self.repo_id}' is public on the Hub but publish.private is true; "
                "make the repository private, or say private: false"
            )
        there = set(self._patiently(lambda: self._tree(api, None)))
        older = self._marker(api, None) if MARKER in there else None
        if older is None and there - OTHERS:
            raise PublishError(
                f"'{self.repo_id}' holds files that are no Finery publication; "
                "choose another name, or empty the repository"
            )
        stale = there - set(publication["checksums"]) - OTHERS - {MARKER}

        def commit_files() -> Any:
            # Built anew for every attempt: the client changes these objects while it uploads.
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                CommitOperationAdd(name, str(folder / name)) for name in publication["checksums"]
            ]
            operations.append(CommitOperationAdd(MARKER, marker_bytes(publication, complete=False)))
            operations += [CommitOperationDelete(name) for name in sorted(stale)]
            return api.create_commit(
                self.repo_id, operations, commit_message=f"Publish {publication['name']} with Finery"
            )

        with _no_bars():
            commit = self._patiently(commit_files)
        changed = self._patiently(lambda: self._changed(api, publication["checksums"], commit.oid))
        if changed:
            raise PublishError(f"'{changed[0]}' did not arrive unchanged in '{self.repo_id}'; run again")

        def commit_marker() -> Any:
            operation = CommitOperationAdd(MARKER, marker_bytes(publication, complete=True))
            return api.create_commit(self.repo_id, [operation], commit_message="All files were read back and compared")

        self._patiently(commit_marker)
        return self.location

    def _api(self) -> HfApi:
        token = secret("HF_TOKEN")
        if not token:
            raise PublishError(
                f"publishing to '{self.to}' needs a token; set HF_TOKEN to one with write access "
                "(huggingface.co/settings/tokens) and run again"
            )
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token, library_name="finery")

    def _names(self, api: HfApi) -> list[str]:
        return [each.rfilename for each in api.model_info(self.repo_id).siblings or ()]

    def _tree(self, api: HfApi, revision: str | None) -> dict[str, RepoFile]:
        from huggingface_hub.hf_api import RepoFile

        entries = api.list_repo_tree(self.repo_id, recursive=True, revision=revision)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    def _marker(self, api: HfApi, revision: str | None) -> dict[str, Any] | None:
        content = self._patiently(lambda: self._download(api, MARKER, revision), b"")
        return marker_in(content)

    def _download(self, api: HfApi, name: str, revision: str | None) -> bytes:
        with _no_bars(), TemporaryDirectory() as place:
            path = api.hf_hub_download(self.repo_id, name, revision=revision, local_dir=place)
            return Path(path).read_bytes()

    def _changed(self, api: HfApi, checksums: Mapping[str, str], revision: str | None) -> list[str]:
        tree = self._tree(api, revision)
        digests: dict[str, str | None] = {
            name: entry.lfs.sha256 for name, entry in tree.items() if entry.lfs is not None
        }
        with _no_bars(), TemporaryDirectory() as place:
            for name in checksums:
                if name in tree and name not in digests:
                    path = api.hf_hub_download(self.repo_id, name, revision=revision, local_dir=place)
                    digests[name] = sha256_of(Path(path))
        return differences(checksums, digests)

    def _patiently(
        self, ask: Callable[[], Result], missing: Result | None = None, waits: tuple[float, ...] | None = None
    ) -> Result:
        """`ask`, again after a while when the Hub is busy or out of reach; every other refusal as one sentence.

        `missing` is what to answer when the repository or the file is not there.
        """
        from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

        not_there = (EntryNotFoundError, RepositoryNotFoundError)
        for wait in (*(WAITS if waits is None else waits), None):
            try:
                return ask()
            except Exception as error:
                status = _status(error)
                if missing is not None and status == 404 and any(_caused_by(error, kind) for kind in not_there):
                    return missing
                if _caused_by(error, OfflineModeIsEnabled):
                    raise PublishError(
                        f"HF_HUB_OFFLINE is set, so '{self.to}' is out of reach; unset it and run again"
                    ) from None
                unreachable = status is None and _is_network(error)
                if status is None and not unreachable:
                    raise PublishError(f"the Hub did not take '{self.repo_id}': {_first_line(error)}") from None
                again = unreachable or (status is not None and (status == 429 or status >= 500))
                if not again or wait is None:
                    raise PublishError(self._sentence(status, error)) from None
                time.sleep(min(LONGEST_WAIT, _asked_to_wait(error) or wait))
        raise AssertionError("unreachable")  # the last attempt returns or raises

    def _sentence(self, status: int | None, error: BaseException) -> str:
        if status is None:
            endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
            return f"the Hub at {endpoint} cannot be reached; check the network and HF_ENDPOINT, then run again"
        if status == 401:
            return (
                "the Hub does not accept the token in HF_TOKEN (401); "
                "make a new one with write access at huggingface.co/settings/tokens"
            )
        if status == 403:
            owner = self.repo_id.partition("/")[0]
            return (
                f"the token in HF_TOKEN may not write to '{self.repo_id}' (403); use one with write access to {owner}"
            )
        if status == 404:
            return (
                f"the Hub knows no '{self.repo_id}', or hides it from this token (404); correct publish.to or the token"
            )
        if status == 429:
            return "the Hub takes no more requests for now (429); wait some minutes and run again: stages are reused"
        if status >= 500:
            return f"the Hub is out of order ({status}); run again later: finished stages are reused"
        return f"the Hub refused '{self.repo_id}' ({status}): {_first_line(error)}"


@contextmanager
def _no_bars() -> Iterator[None]:
    """The client's bars would run through Finery's own."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what it was raised from: the client wraps a failed upload in a RuntimeError."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(each, kind) for each in _chain(error))


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if response is not None:
            return int(response.status_code)
    return None


def _is_network(error: BaseException) -> bool:
    """No answer, or one that is not in the Hub's words (a proxy's HTML page where JSON should be)."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # its httpx, whichever that is

    return any(
        isinstance(each, HTTPError | ConnectionError | TimeoutError | json.JSONDecodeError) for each in _chain(error)
    )


def _asked_to_wait(error: BaseException) -> float | None:
    for each in _chain(error):
        headers = getattr(getattr(each, "response", None), "headers", {})
        seconds = str(headers.get("retry-after", ""))
        if seconds.isdigit():
            return float(seconds)
    return None


def _first_line(error: BaseException) -> str:
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    token = secret("HF_TOKEN")
    return line.replace(token, "…") if token else line
