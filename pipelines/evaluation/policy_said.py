"""The completions of prompts and what is measured of each, as rows of `predictions.parquet`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.policy_scores import wins
from pipelines.evaluation.predictions import Written

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sampled:
    """One completion of each prompt by one model."""

    tokens: list[list[int]]
    """Of each completion, the one that ends it included."""
    texts: list[str]
    ended: NDArray[np.bool_]
    """Which came to their end (prompts,)."""
    scores: Floats
    """What the reward gives (prompts,)."""

    def measured(self) -> dict[str, Floats]:
        """What is known of each completion (prompts,), by the name of its mean."""
        lengths = np.array([len(each) for each in self.tokens], dtype=np.float64)
        return {"reward": self.scores, "length": lengths, "ended": self.ended.astype(np.float64)}


def measured(own: Sampled, other: Sampled | None, kl: tuple[Floats, Floats] | None) -> dict[str, Floats]:
    """The same of both models' completions, with who wins and the estimates k1 and k3 of the divergence in nats."""
    found = own.measured()
    if other is not None:
        found |= {f"{name}_against": column for name, column in other.measured().items()}
        found["win_rate"] = wins(own.scores, other.scores)
    return found if kl is None else found | {"kl": kl[0], "kl_k3": kl[1]}


@dataclass(frozen=True)
class Completed(Written):
    """Completions of one set of prompts. Beside the columns of written answers stand `hypothesis_against` and what is measured of each."""

    against: list[str] | None = None
    """The other model's completions."""
    of_each: dict[str, Floats] = field(default_factory=dict)
    """What is measured of each prompt (prompts,), by the name of its mean in `metrics.json`."""

    def table(self) -> Any:
        import pyarrow as pa

        found = super().table()
        if self.against is not None:
            found = found.append_column("hypothesis_against", pa.array(self.against, pa.string()))
        for name, column in self.of_each.items():
            found = found.append_column(name, pa.array(column))
        return found


def of_each_prompt(path: Path, names: Any) -> dict[str, Floats]:
    """What `predictions.parquet` says of each prompt (prompts,), by the name of its mean: those of `names` that are there."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return {name: table[name].to_numpy().astype(np.float64) for name in names if name in table.column_names}
