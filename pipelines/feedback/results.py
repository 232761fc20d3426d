"""What a feedback stage leaves: preferences, scored completions, and figures on how far its judge can be trusted.

A judge is measured by what it gives to the place of a completion (Wang et al. 2023, "Large Language Models are not Fair
Evaluators", arxiv.org/abs/2305.17926) and to its length (Zheng et al. 2023, "Judging LLM-as-a-Judge", section 3.3,
arxiv.org/abs/2306.05685), by whether it says the same twice, and by what people say. Shares come with Wilson's interval
(Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference", equation 1), which holds for few
comparisons too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.feedback import pairs
from pipelines.feedback.judges.judge import Spent, Verdict, preferred
from pipelines.feedback.progress import Row

if TYPE_CHECKING:
    from pipelines.feedback.feedback import Feedback
    from pipelines.feedback.pairs import JudgedPrompt


Figures = dict[str, Any]
"""Figures by name, as they stand in `details.json`."""
Z = 1.959963984540054
"""Of a 95 % interval."""


def wilson(hits: float, count: int, z: float = Z) -> tuple[float, float]:
    """The interval of a share of `count`; (0, 1) of none."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: float, count: int) -> Figures:
    """A share with its interval and what it is of; the value is None of none."""
    low, high = wilson(hits, count)
    return {"value": hits / count if count else None, "low": low, "high": high, "count": count}


def order_consistency(verdicts: Iterable[Verdict]) -> Figures:
    """Share of the pairs shown in both orders whose verdict was the same in both."""
    consistent = [each.consistent for each in verdicts if each.consistent is not None]
    return share(sum(consistent), len(consistent))


def position_bias(verdicts: Iterable[Verdict]) -> Figures:
    """Share of the showings in which what was shown first was taken, of pairs shown in both orders: one half without
    a bias. `count` is of pairs.

    A pair shows both completions in the first place once, so that their quality does not count. Its two showings depend
    on each other, so that pairs are what is counted for the interval: with the shares of those that took the first, and
    the second place both times it is the one of Bonett & Price 2012, "Adjusted Wald Confidence Interval for a
    Difference of Binomial Proportions Based on Paired Data", around half of their difference.
    """
    places = [
        (preferred(each.shown_first) - preferred(each.shown_second)) / 2
        for each in verdicts
        if each.shown_first is not None and each.shown_second is not None
    ]
    if not places:
        return {"value": None, "low": 0.0, "high": 1.0, "count": 0}
    count = len(places)
    firsts, seconds = (sum(max(sign * each, 0.0) for each in places) for sign in (1, -1))
    first, second = (firsts + 1) / (count + 2), (seconds + 1) / (count + 2)
    half = Z * math.sqrt((first + second - (first - second) ** 2) / (count + 2))
    low, high = (0.5 + (first - second + sign * half) / 2 for sign in (-1, 1))
    value = 0.5 + (firsts - seconds) / (2 * count)
    return {"value": value, "low": max(0.0, min(low, value)), "high": min(1.0, max(high, value)), "count": count}


def length_bias(verdicts: Sequence[Verdict], first: Sequence[str], second: Sequence[str]) -> Figures:
    """P(the longer wins) among decided pairs of different lengths in letters, and Spearman's correlation of the two
    differences.

    The correlation is between the log of the ratio of lengths and the probability; None where either never changes.
    """
    rows = [
        (len(one) - len(two), math.log((len(one) + 1) / (len(two) + 1)), each)
        for each, one, two in zip(verdicts, first, second, strict=True)
        if each.decided
    ]
    uneven = [(longer, each) for longer, _, each in rows if longer]
    hits = sum((longer > 0) == (preferred(each.probability) > 0) for longer, each in uneven)
    return {
        **share(hits, len(uneven)),
        "correlation": spearman([ratio for _, ratio, _ in rows], [each.probability for *_, each in rows]),
    }


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three values or where one side is all the same."""
    from scipy.stats import rankdata

    if len(one) < 3 or len(set(one)) < 2 or len(set(two)) < 2:
        return None
    a, b = (rankdata(each) - (len(each) + 1) / 2 for each in (one, two))
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def agreement(verdicts: Iterable[Verdict], first_is_better: Iterable[bool]) -> Figures:
    """Share of the decided verdicts that prefer what the labels prefer."""
    agrees = [
        (preferred(each.probability) > 0) == truth
        for each, truth in zip(verdicts, first_is_better, strict=True)
        if each.decided
    ]
    return share(sum(agrees), len(agrees))


def self_consistency(verdicts: Sequence[Verdict], again: Sequence[Verdict]) -> Figures:
    """Share of the pairs asked a second time whose verdict stayed: the same one preferred, or none both times."""
    stayed = [_sign(one) == _sign(two) for one, two in zip(verdicts, again, strict=True)]
    return share(sum(stayed), len(stayed))


def _sign(verdict: Verdict) -> int:
    return 0 if verdict.abstained else preferred(verdict.probability)


MANY_ABSTENTIONS = 0.2
LITTLE_CONSISTENCY = 0.7
SHARES = ("order_consistency", "position_bias", "self_consistency", "transitivity", "human_agreement")


def preference_rows(judged: Sequence[JudgedPrompt], stage: Feedback, policy: str) -> list[Row]:
    """The rows of `preferences.jsonl`. `margin` is the difference of the two probabilities, 2P - 1."""
    rows = []
    for own in judged:
        messages = [dict(each) for each in own.prompt.messages]
        for each in pairs.preferences(
            own.scores, own.verdicts, stage.pairs if stage.by == "comparisons" or stage.pairs != "random" else "all"
        ):
            margin = 2 * each.probability - 1
            if margin < stage.min_margin:
                continue
            pair = (each.chosen, each.rejected)
            pair = pair if pair in own.verdicts else (pair[1], pair[0])
            verdict = own.verdicts[pair]
            answers = [_answer(own.texts[at], bool(messages)) for at in (each.chosen, each.rejected)]
            rows.append(
                {
                    "prompt": messages or str(own.prompt),
                    "chosen": answers[0],
                    "rejected": answers[1],
                    "score_chosen": own.scores[each.chosen],
                    "score_rejected": own.scores[each.rejected],
                    "margin": margin,
                    "probability": each.probability,
                    "order_consistent": verdict.consistent,
                    "principle": own.principles.get(pair),
                    "reason": verdict.reason or None,
                    "ended_chosen": own.ended[each.chosen],
                    "ended_rejected": own.ended[each.rejected],
                    "judge": stage.judge.name,
                    "source": policy,
                    "row": own.number,
                }
            )
    return rows


def _answer(text: str, in_turns: bool) -> Any:
    """A completion as a data set has it: a list of one message where the prompt is a list of messages."""
    return [{"role": "assistant", "content": text}] if in_turns else text


def labelled_rows(judged: Sequence[JudgedPrompt], policy: str) -> list[Row]:
    """The rows of `labelled.jsonl`: every completion with its score; one that another repeats has the score of the
    first."""
    rows = []
    for own in judged:
        messages = [dict(each) for each in own.prompt.messages]
        for at, text in enumerate(own.texts):
            score = own.scores[own.texts.index(text)]
            rows.append(
                {
                    "prompt": messages or str(own.prompt),
                    "completion": _answer(text, bool(messages)),
                    "score": score,
                    "ended": own.ended[at],
                    "source": policy,
                    "row": own.number,
                    "number": at,
                }
            )
    return rows


def details_of(
    judged: Sequence[JudgedPrompt],
    preferences: Sequence[Mapping[str, Any]],
    again: Sequence[Row],
    held: Sequence[Row],
    spent: Spent,
) -> Figures:
    """Everything that is known about the judge: `details.json`. Shares come with a 95 % interval and what they are
    of."""
    rows = [(own, pair, verdict) for own in judged for pair, verdict in own.verdicts.items()]
    verdicts = [verdict for *_, verdict in rows]
    first, second = [own.texts[pair[0]] for own, pair, _ in rows], [own.texts[pair[1]] for own, pair, _ in rows]
    circular = [pairs.cycles(len(own.texts), own.verdicts) for own in judged]
    whole = sum(count for _, count in circular)
    verdict_of = {(at, tuple(pair)): verdict for at, own in enumerate(judged) for pair, verdict in own.verdicts.items()}
    lengths = [len(text.split()) for own in judged for text in own.texts]
    return {
        "prompts": len(judged),
        "completions": sum(len(own.texts) for own in judged),
        "empty": sum(not text.strip() for own in judged for text in own.texts),
        "repeated": sum(len(own.texts) - len(set(own.texts)) for own in judged),
        "comparisons": len(rows),
        "abstentions": sum(each.abstained for each in verdicts),
        "ties": sum(not each.abstained and not each.decided for each in verdicts),
        "preferences": len(preferences),
        "mean_margin": sum(float(each["margin"]) for each in preferences) / len(preferences) if preferences else None,
        "mean_words": sum(lengths) / len(lengths) if lengths else None,
        "ended": sum(each for own in judged for each in own.ended) / max(1, len(lengths)),
        "order_consistency": order_consistency(verdicts),
        "position_bias": position_bias(verdicts),
        "length_bias": length_bias(verdicts, first, second),
        "self_consistency": self_consistency(
            [verdict_of[each["at"], tuple(each["pair"])] for each in again],
            [Verdict(**each["verdict"]) for each in again],
        ),
        "transitivity": share(whole - sum(each for each, _ in circular), whole),
        "human_agreement": {
            **agreement([Verdict(**each["verdict"]) for each in held], [each["first_is_better"] for each in held]),
            "asked": len(held),
            "abstentions": sum(not Verdict(**each["verdict"]).decided for each in held),
        },
        "spent": dict(vars(spent)),
    }


def metrics_of(details: Mapping[str, Any]) -> dict[str, float]:
    """The same as one level of plain numbers: `metrics.json`. What was not measured is left out."""
    metrics: dict[str, float] = {}
    for key, value in details.items():
        if isinstance(value, int | float):
            metrics[key] = value
    for key in SHARES:
        if details[key]["value"] is not None:
            metrics[key] = details[key]["value"]
    if details["human_agreement"]["value"] is not None:
        metrics |= {
            "human_agreement_low": details["human_agreement"]["low"],
            "human_agreement_high": details["human_agreement"]["high"],
        }
    if details["length_bias"]["value"] is not None:
        metrics["longer_wins"] = details["length_bias"]["value"]
    if details["length_bias"]["correlation"] is not None:
        metrics["length_correlation"] = details["length_bias"]["correlation"]
    return metrics | {key: value for key, value in details["spent"].items() if key != "cost" or value}


def summary_of(details: Mapping[str, Any]) -> str:
    """What became of the comparisons, in words."""
    return (
        f"of {details['completions']} completions {details['empty']} were empty and {details['repeated']} "
        f"repeated others; of {details['comparisons']} "
        f"comparisons {details['abstentions']} were abstentions and {details['ties']} ties"
    )


def warnings_of(details: Mapping[str, Any]) -> list[str]:
    """Warnings about a judge whose labels may not mean what they seem to."""
    warnings = []
    count, consistency, place, length = (
        details["comparisons"],
        details["order_consistency"],
        details["position_bias"],
        details["length_bias"],
    )
    if count and details["abstentions"] / count > MANY_ABSTENTIONS:
        warnings.append(
            f"the judge abstained in {details['abstentions']} of {count} comparisons; look at audit.html for "
            "what it said"
        )
    if consistency["count"] and consistency["high"] < LITTLE_CONSISTENCY:
        warnings.append(
            f"the judge prefers the same completion in both orders in {consistency['value']:.0%} of the pairs "
            "only: its labels are mostly noise or place"
        )
    if place["count"] and not place["low"] <= 0.5 <= place["high"]:
        which = "first" if place["value"] > 0.5 else "second"
        warnings.append(
            f"the judge likes what it is shown {which} ({max(place['value'], 1 - place['value']):.0%} of the "
            "showings); both orders were averaged"
        )
    if length["count"] and not length["low"] <= 0.5 <= length["high"] and abs(length["value"] - 0.5) > 0.15:
        which = "longer" if length["value"] > 0.5 else "shorter"
        warnings.append(
            f"the judge prefers the {which} completion in {max(length['value'], 1 - length['value']):.0%} of "
            "the pairs: a policy may learn length"
        )
    return warnings
