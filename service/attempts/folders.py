"""Where an attempt's files lie, below `HOME/jobs/<job>`.

```text
recipe.yaml            what runs: the job's recipe with its references resolved
inputs/                links to the uploaded files that it names, under the names that they were uploaded with
runs/<name>/           the run folder, shared by all attempts of the job
published/<model>/     what its publish stages made
attempts/<attempt>/    the executor's notes and the console log, one folder an attempt
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.jobs.job import Attempt, Job

RECIPE = "recipe.yaml"
INPUTS = "inputs"
PUBLISHED = "published"


@dataclass(frozen=True)
class Folders:
    """The places of one job."""

    job: Path
    name: str
    """The recipe's name, which its run folder bears."""

    @property
    def recipe(self) -> Path:
        """The recipe that runs."""
        return self.job / RECIPE

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.job / "runs" / self.name

    @property
    def events(self) -> Path:
        """The stream that the run writes."""
        return self.run / "events.jsonl"

    @property
    def begun(self) -> bool:
        """Whether an earlier attempt came far enough to leave a run folder to continue."""
        return (self.run / RECIPE).is_file()

    def record(self, attempt_id: str) -> Path:
        """The executor's folder for an attempt."""
        return self.job / "attempts" / attempt_id


def folders_of(jobs: Path, job: Job) -> Folders:
    """The places of a job below the settings' `jobs` folder."""
    return Folders(jobs / job.id, job.name)


def record_of(jobs: Path, attempt: Attempt) -> dict[str, object]:
    """What is known of an attempt whose handle was never stored: enough to look for it."""
    folder = jobs / attempt.job
    return {
        "attempt_id": attempt.id, "fencing_token": attempt.fencing, "folder": str(folder), "record": str(folder / "attempts" / attempt.id),
    }  # fmt: skip
