"""Publishing to any fsspec URL: `s3://bucket/name`, `gs://…`, `memory://…`, `file:///…`.

Object stores cannot rename a folder. The marker therefore says `complete: false` while files are on their way, and
`complete: true` only after every file was read back and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pipelines.core.errors import PublishError
from pipelines.core.files import JSONObject
from pipelines.core.registry import nearest
from pipelines.core.results import MARKER
from pipelines.publishing.destinations.destination import differences, marker_bytes, marker_in, sha256_of_stream

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

NOT_WRITTEN = {
    "http",
    "https",
    "data",
    "git",
    "github",
    "gist",
    "zip",
    "tar",
    "libarchive",
    "cached",
    "blockcache",
    "filecache",
    "simplecache",
    "dir",
    "generic",
    "reference",
    "dask",
    "asynclocal",
    "asyncwrapper",
    "jlab",
    "jupyter",
    "pyscript",
}
"""Protocols of fsspec that only read, or that wrap another one."""


class Url:
    """A folder behind a URL."""

    example: ClassVar[str] = "s3://models/demo"

    def __init__(self, to: str, private: bool = True) -> None:
        self.to = to
        self._url = to.rstrip("/")

    @staticmethod
    def claims(to: str) -> bool:
        """Texts with `://` in them."""
        return "://" in to

    @staticmethod
    def mistake(to: str) -> str | None:
        """Unknown protocols, no name, passwords."""
        from fsspec.registry import known_implementations

        protocol, _, rest = to.partition("://")
        if protocol == "hf":
            return f"is a Hub URL; write hub:{rest.removeprefix('models/') or 'owner/name'}"
        protocols = sorted({name for name in known_implementations if name.isalnum()} - NOT_WRITTEN - {"hf"})
        if protocol in NOT_WRITTEN:
            return f"has the protocol '{protocol}', which cannot be written to. Allowed: {', '.join(protocols)}"
        if protocol not in protocols:
            return (
                f"has the unknown protocol '{protocol}'.{nearest(protocol, protocols)} Allowed: {', '.join(protocols)}"
            )
        if not rest.strip("/"):
            return f"names no folder; write {protocol}://place/name"
        if "@" in urlsplit(to).netloc and ":" in urlsplit(to).netloc.partition("@")[0]:
            return "holds a password; recipes are published, so give credentials by the environment"
        return None

    @property
    def location(self) -> str:
        """The URL itself."""
        return self._url

    def load_from(self) -> str:
        """The last part of the URL: the folder that the files are fetched into."""
        return self._url.rpartition("/")[2]

    def marker(self) -> dict[str, Any] | None:
        """The publication.json behind the URL."""
        with self._opened("read from") as (files, root):
            return self._marker(files, root)

    def holds(self, checksums: Mapping[str, str]) -> bool:
        """Reads every file back."""
        with self._opened("read from") as (files, root):
            return not self._changed(files, root, checksums)

    def push(self, folder: Path, publication: JSONObject) -> str:
        """Marker (incomplete), files, read back, marker (complete)."""
        with self._opened("written to") as (files, root):
            older = self._marker(files, root)
            if older is None and _names(files, root):
                raise PublishError(
                    f"publish.to '{self.to}' holds files that are no Finery publication; "
                    "choose another place, or empty this one"
                )
            files.makedirs(root, exist_ok=True)
            files.pipe_file(f"{root}/{MARKER}", marker_bytes(publication, complete=False))
            for name in publication["checksums"]:
                files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                files.put_file(str(folder / name), f"{root}/{name}")
            changed = self._changed(files, root, publication["checksums"])
            if changed:
                raise PublishError(f"'{changed[0]}' did not arrive unchanged at '{self.to}'; run again")
            for name in (older or {}).get("checksums", {}):
                if name not in publication["checksums"] and files.exists(f"{root}/{name}"):
                    files.rm_file(f"{root}/{name}")
            files.pipe_file(f"{root}/{MARKER}", marker_bytes(publication, complete=True))
        return self.location

    @contextmanager
    def _opened(self, verb: str) -> Iterator[tuple[AbstractFileSystem, str]]:
        """The file system and the path in it; whatever it raises becomes one sentence."""
        import fsspec

        try:
            files, root = fsspec.core.url_to_fs(self._url)
            files.invalidate_cache()
            yield files, root
        except PublishError:
            raise
        except ImportError as error:
            raise PublishError(f"'{self.to}' needs another package: {error}") from None
        except Exception as error:  # each protocol's library has errors of its own, with no common base
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise PublishError(
                f"'{self.to}' cannot be {verb} ({type(error).__name__}: {reason}); "
                "check the URL, the credentials and the network, then run again"
            ) from error

    @staticmethod
    def _marker(files: AbstractFileSystem, root: str) -> dict[str, Any] | None:
        try:
            return marker_in(files.cat_file(f"{root}/{MARKER}"))
        except FileNotFoundError:
            return None

    @staticmethod
    def _changed(files: AbstractFileSystem, root: str, checksums: Mapping[str, str]) -> list[str]:
        files.invalidate_cache()
        digests: dict[str, str | None] = {}
        for name in checksums:
            try:
                with files.open(f"{root}/{name}", "rb") as stream:
                    digests[name] = sha256_of_stream(stream)
            except FileNotFoundError:
                digests[name] = None
        return differences(checksums, digests)


def _names(files: AbstractFileSystem, root: str) -> list[str]:
    try:
        return list(files.find(root))
    except FileNotFoundError:
        return []
