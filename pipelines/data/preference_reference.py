"""How a recipe names preferences to learn from: `{path: pairs.jsonl}`, or `{from: STAGE}` for those that a stage has written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, model_validator

from pipelines.blocks import Block, Mistakes
from pipelines.data.preference_formats import COLUMNS, FormatName
from pipelines.data.preferences import LabelledRows, PreferenceRows, read_rows
from pipelines.data.references import DataPath
from pipelines.data.sources import Source, find
from pipelines.registry import nearest

WRITTEN = "preferences.jsonl"
"""The file that a stage which compares answers leaves in its folder."""


class PreferenceReference(Block):
    """Preferences to learn from: a data set, or what an earlier feedback stage has written."""

    path: DataPath | None = None
    """A file, folder or pattern (JSONL, JSON, CSV, TSV, Parquet), or a data set's name."""
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage that writes preferences, instead of `path`."""
    name: str | None = None
    """The configuration of a data set that has several."""
    split: str = Field("train", min_length=1)
    """The part that is read."""
    format: FormatName | None = None
    """How rows are written: `prompt_chosen_rejected`, `chosen_rejected`, `transcripts`, `openai` or `prompt_completion_label`. Default:
    told by the columns."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """The columns behind the format's names, where they are called otherwise: `{prompt: question, chosen: better}`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PreferenceReference:
        if (self.path is None) == (self.source is None):
            given = "both were given" if self.path else "neither was given"
            raise Mistakes([((), f"needs either 'path' (a file or a data set) or 'from' (a stage that writes preferences); {given}")])
        own = [key for key in ("name", "split", "format", "columns") if key in self.model_fields_set]
        if self.source is not None and own:
            raise Mistakes([((own[0],), "says how a 'path' is read, but 'from' reads what a stage has written; leave it out")])
        chosen = [self.format] if self.format else list(COLUMNS)
        known = list(dict.fromkeys(role for each in chosen for part in COLUMNS[each] for role in part))
        wrong = [role for role in self.columns if role not in known]
        if wrong:
            raise Mistakes([(("columns", wrong[0]), f"is no column of a known format.{nearest(wrong[0], known)} Known: {', '.join(known)}")])
        return self

    def rows(self, folders: Mapping[str, Path], skip_bad_rows: bool = False, limit: int | None = None) -> PreferenceRows | LabelledRows:
        """The rows, the first `limit` of them; `folders` are those of the complete stages. Raises DataError."""
        source, split = self._source(folders)
        described = f"{source.describe()}, split '{split}'" if len(source.splits()) > 1 else source.describe()
        data = source.load(split)
        if limit is not None and not skip_bad_rows:
            data = data.select(range(min(limit, len(data))))
        return read_rows(data, range(len(data)), described, self.format, self.columns, skip_bad_rows, limit)

    def content(self) -> str | None:
        """Content hash of the rows; None for those of a stage, whose own fingerprint says it. Raises DataError."""
        return None if self.path is None else find(self.path, self.name).content_hash(self.split)

    def _source(self, folders: Mapping[str, Path]) -> tuple[Source, str]:
        if self.path is not None:
            return find(self.path, self.name), self.split
        return find(str((folders[str(self.source)] / WRITTEN).resolve())), "train"
