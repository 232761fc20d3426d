"""What a feedback stage leaves in numbers and rows: preferences, scored completions, and how far the judge can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.feedback import bias, pairing
from pipelines.feedback.judge import Spent, Verdict

if TYPE_CHECKING:
    from pipelines.feedback.feedback import Feedback
    from pipelines.feedback.judged import Judged

MANY_ABSTENTIONS = 0.2
LITTLE_CONSISTENCY = 0.7
SHARES = ("order_consistency", "position_bias", "self_consistency", "transitivity", "human_agreement")


def preference_rows(judged: Sequence[Judged], stage: Feedback, policy: str) -> list[dict[str, Any]]:
    """The rows of `preferences.jsonl`. `margin` is the difference of the two probabilities, 2P - 1."""
    found = []
    for own in judged:
        messages = [dict(each) for each in own.prompt.messages]
        for each in pairing.preferences(own.scores, own.verdicts, stage.pairs if stage.by == "comparisons" or stage.pairs != "random" else "all"):
            margin = 2 * each.probability - 1
            if margin < stage.min_margin:
                continue
            pair = (each.chosen, each.rejected)
            pair = pair if pair in own.verdicts else (pair[1], pair[0])
            verdict = own.verdicts[pair]
            answers = [_answer(own.texts[at], bool(messages)) for at in (each.chosen, each.rejected)]
            found.append(
                {
                    "prompt": messages or str(own.prompt), "chosen": answers[0], "rejected": answers[1], "score_chosen": own.scores[each.chosen],
                    "score_rejected": own.scores[each.rejected], "margin": margin, "probability": each.probability, "order_consistent": verdict.consistent,
                    "principle": own.principles.get(pair), "reason": verdict.reason or None, "ended_chosen": own.ended[each.chosen],
                    "ended_rejected": own.ended[each.rejected], "judge": stage.judge.name, "source": policy, "row": own.number,
                }
            )  # fmt: skip
    return found


def _answer(text: str, in_turns: bool) -> Any:
    """A completion as a data set has it: a list of one message where the prompt is a list of messages."""
    return [{"role": "assistant", "content": text}] if in_turns else text


def labelled_rows(judged: Sequence[Judged], policy: str) -> list[dict[str, Any]]:
    """The rows of `labelled.jsonl`: every completion with its score; one that another repeats has the score of the first."""
    found = []
    for own in judged:
        messages = [dict(each) for each in own.prompt.messages]
        for at, text in enumerate(own.texts):
            score = own.scores[own.texts.index(text)]
            found.append(
                {
                    "prompt": messages or str(own.prompt), "completion": _answer(text, bool(messages)), "score": score, "ended": own.ended[at],
                    "source": policy, "row": own.number, "number": at,
                }
            )  # fmt: skip
    return found


def details_of(
    judged: Sequence[Judged], preferences: Sequence[Mapping[str, Any]], again: Sequence[Any], held: Sequence[Any], spent: Spent
) -> dict[str, Any]:
    """Everything that is known about the judge: `details.json`. Shares come with a 95 % interval and what they are of."""
    rows = [(own, pair, verdict) for own in judged for pair, verdict in own.verdicts.items()]
    verdicts = [verdict for *_, verdict in rows]
    first, second = [own.texts[pair[0]] for own, pair, _ in rows], [own.texts[pair[1]] for own, pair, _ in rows]
    circular = [pairing.cycles(len(own.texts), own.verdicts) for own in judged]
    whole = sum(count for _, count in circular)
    known = {(at, tuple(pair)): verdict for at, own in enumerate(judged) for pair, verdict in own.verdicts.items()}
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
        "order_consistency": bias.order_consistency(verdicts),
        "position_bias": bias.position_bias(verdicts),
        "length_bias": bias.length_bias(verdicts, first, second),
        "self_consistency": bias.self_consistency(
            [known[each["at"], tuple(each["pair"])] for each in again], [Verdict(**each["verdict"]) for each in again]
        ),
        "transitivity": bias.share(whole - sum(each for each, _ in circular), whole),
        "human_agreement": {
            **bias.agreement([Verdict(**each["verdict"]) for each in held], [each["first_is_better"] for each in held]),
            "asked": len(held),
            "abstentions": sum(not Verdict(**each["verdict"]).decided for each in held),
        },
        "spent": dict(vars(spent)),
    }


def metrics_of(details: Mapping[str, Any]) -> dict[str, float]:
    """The same as one level of plain numbers: `metrics.json`. What was not measured is left out."""
    found: dict[str, float] = {}
    for key, value in details.items():
        if isinstance(value, int | float):
            found[key] = value
    for key in SHARES:
        if details[key]["value"] is not None:
            found[key] = details[key]["value"]
    if details["human_agreement"]["value"] is not None:
        found |= {"human_agreement_low": details["human_agreement"]["low"], "human_agreement_high": details["human_agreement"]["high"]}
    if details["length_bias"]["value"] is not None:
        found["longer_wins"] = details["length_bias"]["value"]
    if details["length_bias"]["correlation"] is not None:
        found["length_correlation"] = details["length_bias"]["correlation"]
    return found | {key: value for key, value in details["spent"].items() if key != "cost" or value}


def told(details: Mapping[str, Any]) -> str:
    """What became of the comparisons, in words."""
    return (
        f"of {details['completions']} completions {details['empty']} were empty and {details['repeated']} repeated others; of {details['comparisons']} "
        f"comparisons {details['abstentions']} were abstentions and {details['ties']} ties"
    )


def trouble(details: Mapping[str, Any]) -> list[str]:
    """Warnings about a judge whose labels may not mean what they seem to."""
    found = []
    count, consistency, place, length = details["comparisons"], details["order_consistency"], details["position_bias"], details["length_bias"]
    if count and details["abstentions"] / count > MANY_ABSTENTIONS:
        found.append(f"the judge abstained in {details['abstentions']} of {count} comparisons; look at audit.html for what it said")
    if consistency["count"] and consistency["high"] < LITTLE_CONSISTENCY:
        found.append(
            f"the judge prefers the same completion in both orders in {consistency['value']:.0%} of the pairs only: its labels are mostly noise or place"
        )
    if place["count"] and not place["low"] <= 0.5 <= place["high"]:
        which = "first" if place["value"] > 0.5 else "second"
        found.append(f"the judge likes what it is shown {which} ({max(place['value'], 1 - place['value']):.0%} of the showings); both orders were averaged")
    if length["count"] and not length["low"] <= 0.5 <= length["high"] and abs(length["value"] - 0.5) > 0.15:
        which = "longer" if length["value"] > 0.5 else "shorter"
        found.append(f"the judge prefers the {which} completion in {max(length['value'], 1 - length['value']):.0%} of the pairs: a policy may learn length")
    return found
