"""How often each of several tasks is seen: the words of a recipe, and the shares that they mean.

Shares are of optimizer steps' parts, not of examples. With n_t training examples of task t, at most K of them counted
(T5's `K`, Raffel et al. 2020, arxiv.org/abs/1910.10683, section 3.5.2):

- proportional  n_t / sum n
- uniform       1 / T
- temperature   n_t^(1/T) / sum n^(1/T); mT5 writes the exponent as alpha (Xue et al. 2021, arxiv.org/abs/2010.11934)
- annealed      n_t^a / sum n^a with a = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E (Stickland and Murray 2019,
                arxiv.org/abs/1902.02671, section 3.1): proportional at first, nearly uniform at the end
- explicit      the shares that the recipe gives, by task
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.blocks import Block, Mistakes

ANNEALED_BY = 0.8
"""What the exponent of annealed sampling loses from the first epoch to the last."""

Share = Annotated[float, Field(gt=0)]


class Sampling(Block):
    """How often each task is seen."""

    name: Literal["proportional", "uniform", "temperature", "annealed", "explicit"] = "proportional"
    """The rule."""
    temperature: float | None = Field(None, ge=1)
    """For `temperature`: 1 is proportional, large is uniform."""
    shares: dict[str, Share] | None = None
    """For `explicit`: how often each task is seen, by its id; only their ratios matter."""

    @model_validator(mode="after")
    def _settings_fit(self) -> Sampling:
        found = []
        for key, rule in (("temperature", "temperature"), ("shares", "explicit")):
            given = getattr(self, key) is not None
            if given and self.name != rule:
                found.append(((key,), f"belongs to {rule} sampling, and this is {self.name}; leave it out"))
            if not given and self.name == rule:
                found.append(((key,), f"is missing, which {rule} sampling needs"))
        if found:
            raise Mistakes(found)
        return self

    def weights(self, sizes: Sequence[int], ids: Sequence[str], epoch: int, epochs: int) -> list[float]:
        """Shares of the tasks in `epoch` (the first is 0) of `epochs`; they add up to 1."""
        if self.name == "explicit":
            given = self.shares or {}
            weights = [given[each] for each in ids]
        elif self.name == "uniform":
            weights = [1.0] * len(sizes)
        else:
            exponent = {"proportional": 1.0, "temperature": 1 / (self.temperature or 1.0)}.get(self.name, annealed(epoch, epochs))
            weights = [float(size) ** exponent for size in sizes]
        total = sum(weights)
        return [weight / total for weight in weights]


def annealed(epoch: int, epochs: int) -> float:
    """The exponent of annealed sampling."""
    return 1.0 if epochs <= 1 else 1 - ANNEALED_BY * min(epoch, epochs - 1) / (epochs - 1)


def in_words(value: Any) -> Any:
    """`sampling: uniform` is short for `sampling: {name: uniform}`."""
    return {"name": value} if isinstance(value, str) else value


SamplingField = Annotated[Sampling, BeforeValidator(in_words)]


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole numbers as near to the weights as can be (largest remainders); ties go to the first."""
    exact = [total * weight for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda position: (counts[position] - exact[position], position))
    for position in by_remainder[: total - sum(counts)]:
        counts[position] += 1
    return counts
