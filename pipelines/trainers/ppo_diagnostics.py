"""Signs that a policy learns the wrong thing: a hacked reward, a collapsed policy, advantages that say nothing.

A rising reward looks like success whatever it was bought with. So every iteration is compared with the first ones: a
sentence is told once, at the first sign. What to watch is from Gao et al. 2023, "Scaling Laws for Reward Model
Overoptimization", arxiv.org/abs/2210.10760 (KL), and Zheng et al. 2023, "Secrets of RLHF in Large Language Models
Part I: PPO", arxiv.org/abs/2307.04964 (KL, length and perplexity tell of a collapse, the reward does not). The
thresholds are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WINDOW = 5
"""Iterations that are averaged, at the beginning and lately."""
KL_MUCH = 0.5
"""Nats a token: a policy so far from its reference writes texts that the reference would hardly ever write."""
LENGTH_RATIO = 2.0
"""Completions so many times as long, or as short, as at first."""
ENTROPY_SHARE = 0.1
"""Of the first entropy: what is left of the choices when a policy has collapsed."""
SAME_SHARE = 0.25
"""Different texts among the completions of an iteration, when a policy says the same to everybody."""
ENDED_SHARE = 0.5
"""Completions that came to an end at first, for it to matter that none does any more."""
NO_SPREAD = 1e-6
"""Standard deviation of advantages, below which there is nothing to learn from."""
WATCHED = ("reward", "kl", "response_length", "entropy", "ended", "distinct", "advantage_std")
"""The metrics that are kept of an iteration."""


class Watch:
    """Remembers the first iterations and the latest ones, and which signs have been told."""

    def __init__(self) -> None:
        self.first: list[dict[str, float]] = []
        self.latest: list[dict[str, float]] = []
        self.warned: list[str] = []

    def look(self, metrics: Mapping[str, float], completions: int) -> list[str]:
        """The sentences for signs that are new, after an iteration of so many `completions`."""
        seen = {name: float(metrics[name]) for name in WATCHED}
        if len(self.first) < WINDOW:
            self.first.append(seen)
        self.latest = [*self.latest, seen][-WINDOW:]
        if len(self.first) < WINDOW:
            return []
        sentences = dict(signs(mean(self.first), mean(self.latest), completions))
        new = [name for name in sentences if name not in self.warned]
        self.warned += new
        return [sentences[name] for name in new]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return {"first": self.first, "latest": self.latest, "told": self.warned}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        self.first, self.latest, self.warned = list(state["first"]), list(state["latest"]), list(state["told"])


def mean(iterations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric."""
    return {name: sum(each[name] for each in iterations) / len(iterations) for name in iterations[0]}


def signs(first: Mapping[str, float], now: Mapping[str, float], completions: int) -> Iterator[tuple[str, str]]:
    """(name, sentence) of every sign that the latest iterations show, compared with the first."""
    gained = now["reward"] > first["reward"]
    a_token = now["kl"] / max(now["response_length"], 1.0)
    if gained and a_token > KL_MUCH:
        yield (
            "hacking_kl",
            (
                f"the reward rose from {first['reward']:.3g} to {now['reward']:.3g} while the KL to the "
                f"reference reached {now['kl']:.3g} nats a "
                f"completion ({a_token:.2f} a token): the policy may be exploiting the reward; read the "
                "samples, raise kl_coef or set kl_target"
            ),
        )
    longer, shorter = (
        now["response_length"] > LENGTH_RATIO * first["response_length"],
        now["response_length"] * LENGTH_RATIO < first["response_length"],
    )
    if gained and (longer or shorter):
        yield (
            "hacking_length",
            (
                f"the reward rose while completions went from {first['response_length']:.1f} to "
                f"{now['response_length']:.1f} tokens: it may reward "
                f"{'length' if longer else 'brevity'} and nothing else; read the samples, or "
                f"{'set length_penalty' if longer else 'raise kl_coef'}"
            ),
        )
    if now["entropy"] < ENTROPY_SHARE * first["entropy"]:
        yield (
            "entropy_collapse",
            (
                f"the policy's entropy fell from {first['entropy']:.3g} to {now['entropy']:.3g} nats a token: "
                "it hardly chooses any more, and so "
                "learns no more; raise kl_coef or entropy_coef, or lower learning_rate"
            ),
        )
    if completions >= 8 and now["distinct"] < SAME_SHARE:
        yield (
            "same_texts",
            (
                f"only {now['distinct']:.0%} of the completions of an iteration differ from each other: the "
                "policy says the same to every prompt; "
                "raise kl_coef or entropy_coef, or lower learning_rate"
            ),
        )
    if first["ended"] >= ENDED_SHARE and now["ended"] == 0:
        yield (
            "endless",
            "completions no longer come to an end: every one is cut at response_length; set "
            "missing_eos_penalty, or raise response_length",
        )
    if now["advantage_std"] < NO_SPREAD:
        yield (
            "no_advantage",
            (
                "the advantages are all but equal, so that there is nothing to learn from: the reward gives "
                "every completion the same score "
                f"({now['reward']:.3g}), or the completions are all the same"
            ),
        )
