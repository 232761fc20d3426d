"""Single answers that are good or bad, as the token ids that KTO learns from, in the order of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.data.preference_pairs import parted, prompt_room, shortened
from pipelines.errors import DataError
from pipelines.trainers.completing import stops_of

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.trainers.preference_subject import PreferenceSubject


def encoded(
    subject: PreferenceSubject, context: Context, model: Any, tokenizer: Any, longest: int | None, batch: int | None
) -> list[dict[str, Any]]:
    """Rows with `prompt_ids`, `completion_ids` and `label`, shuffled once by the seed: KTO keeps one order for all epochs.

    With `batch`, each row also has the answer of its neighbour among so many rows as `KL_completion_ids`: to an answer that
    belongs to another prompt, the policy's log ratio estimates its KL to the reference (section 4.1 of the paper). No row is
    longer than the stage's `max_length`. Raises DataError where nothing is left.
    """
    from pipelines.data.completions import opening_of

    labelled = subject.labelled_rows(context, tokenizer)
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    opening = opening_of(tokenizer)
    rows: list[dict[str, Any]] = []
    for (prompt, answer), label in zip(parted(tokenizer, labelled.dialogues, stops_of(model)), labelled.labels or (), strict=True):
        kept = shortened(prompt, prompt_room(len(answer), limit, subject.max_prompt_length), opening)
        if kept and (cut := answer[: limit - len(kept)]):
            rows.append({"prompt_ids": kept, "completion_ids": cut, "label": bool(label)})
    if not rows:
        raise DataError(f"no answer is left of the {len(labelled)} rows within {limit} tokens; raise max_length")
    if context.world.is_main and len(rows) < len(labelled):
        context.events.emit("warning", message=f"{len(labelled) - len(rows)} of {len(labelled)} rows have no prompt or no answer within {limit} tokens and are left out")
    order = np.random.default_rng([context.seed, 0x4B70]).permutation(len(rows))
    rows = [rows[place] for place in order.tolist()]
    if batch is not None:
        for start in range(0, len(rows), batch):
            together = rows[start : start + batch]
            for row, before in zip(together, [together[-1], *together[:-1]], strict=True):
                row["KL_completion_ids"] = list(before["completion_ids"])[: max(1, limit - len(row["prompt_ids"]))]
    return rows
