"""Data sets of the Hugging Face Hub, through `datasets.load_dataset`, at one commit.

The commit is asked for once and everything is read from it, so a fingerprint names what was read even when the data
set changes meanwhile. Without a network (or with HF_HUB_OFFLINE=1) the commit that the cache holds is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError
from pipelines.data.sources import check_split, places

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

NAME = re.compile(r"^[A-Za-z0-9_][\w.-]*(/[\w][\w.-]*)?$")


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hub; nothing is asked before it is read."""

    path: str
    name: str | None

    @cached_property
    def revision(self) -> str:
        """The commit of the default branch, its files being readable with the token at hand. Raises DataError."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            info = HfApi().dataset_info(self.path)
            if getattr(info, "gated", False):  # what it is, anybody may know; its files, only those who were let in
                HfApi().auth_check(self.path, repo_type="dataset")
            return str(info.sha)
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", None)
            if status in (401, 403, 404):
                raise DataError(
                    f"data set '{self.path}' was not found ({status} from the Hub; a private or gated one needs "
                    f"HF_TOKEN); looked in {places(self.path)}"
                ) from None
            reason = f"the Hub answered {status}"
        except OfflineModeIsEnabled:
            reason = "HF_HUB_OFFLINE is set"
        except Exception as error:  # the client's transport errors have no common base
            reason = f"the Hub is out of reach ({type(error).__name__})"
        if (cached := self._cached_revision()) is not None:
            return cached
        raise DataError(f"data set '{self.path}' was not found and {reason}; looked in {places(self.path)}")

    def _cached_revision(self) -> str | None:
        """The commit that was last taken into the local cache."""
        from huggingface_hub import constants

        snapshots = Path(constants.HF_HUB_CACHE) / f"datasets--{self.path.replace('/', '--')}" / "snapshots"
        if not snapshots.is_dir():
            return None
        return max(snapshots.iterdir(), key=lambda folder: (folder.stat().st_mtime_ns, folder.name)).name

    @cached_property
    def _splits(self) -> list[str]:
        import datasets

        return list(self._ask(datasets.get_dataset_split_names, self.path, self.name, revision=self.revision))

    def splits(self) -> list[str]:
        """Names of the splits. Raises DataError."""
        return self._splits

    def load(self, split: str) -> Dataset:
        """The rows of a split. Raises DataError."""
        import datasets

        loaded = self._ask(datasets.load_dataset, self.path, self.name, revision=self.revision)
        check_split(split, list(loaded), self.describe())
        rows: Dataset = loaded[split]
        return rows

    def stream(self, split: str) -> IterableDataset:
        """The rows of a split, read over the network as they are asked for. Raises DataError."""
        import datasets

        check_split(split, self.splits(), self.describe())
        rows: IterableDataset = self._ask(
            datasets.load_dataset, self.path, self.name, revision=self.revision, split=split, streaming=True
        )
        return rows

    def content_hash(self, split: str) -> str:
        """The commit, with the names of configuration and split. Raises DataError."""
        return f"{self.path}@{self.revision}/{self.name or ''}/{split}"

    def describe(self) -> str:
        """What this is."""
        return f"data set '{self.path}{f'/{self.name}' if self.name else ''}' of the Hub"

    def _ask(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the data library; its many errors become one sentence."""
        try:
            with _only_of_the_hub(self.describe()):
                return function(*arguments, **keywords)
        except DataError:
            raise
        except Exception as error:
            message = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
            raise DataError(f"{self.describe()} could not be read: {message}; looked in {places(self.path)}") from error


@contextmanager
def _only_of_the_hub(what: str) -> Iterator[None]:
    """A card may name any path or URL as its data: refuse those that lie outside the Hub before they are looked at.

    The library has one place where patterns become files, and no setting for it.
    """
    from datasets import data_files

    resolve = data_files.resolve_pattern

    def checked(pattern: str, base_path: str, *arguments: Any, **keywords: Any) -> Any:
        last = str(pattern).rpartition("::")[2]
        if not (
            last.startswith("hf://")
            or (base_path.startswith("hf://") and "://" not in last and not Path(last).is_absolute())
        ):
            raise DataError(
                f"{what} names '{last[:200]}' as its data, which does not lie on the Hub; take another data "
                "set, or upload the rows"
            )
        return resolve(pattern, base_path, *arguments, **keywords)

    data_files.resolve_pattern = checked
    try:
        yield
    finally:
        data_files.resolve_pattern = resolve


def find(path: str, name: str | None) -> HubSource | None:
    """The data set `path` of the Hub, without asking whether it exists."""
    return HubSource(path, name) if NAME.match(path) else None


def example(folder: Path) -> str:
    """The name of a data set that would be found here."""
    return "owner/elsewhere"


def looked(path: str) -> list[str]:
    """Where `find` looks."""
    from os import environ

    return [f"the Hub ({environ.get('HF_ENDPOINT', 'huggingface.co')})"] if NAME.match(path) else []
