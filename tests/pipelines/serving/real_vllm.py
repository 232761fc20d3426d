"""What our engine has a real vLLM write of a model in a folder, as one JSON object: `python -m … FOLDER`."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pipelines.serving.sequences import HALF, Echo, SamplingSettings, WrittenSequence

PROMPT = (5, 6, 7, 30, 41)
LIMIT = 16
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "kind": {"enum": ["a", "b"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    }
)


class Text(WrittenSequence):
    """A text that notes what it is told."""

    def __init__(self, tokenizer: Any, end: int, limit: int, echo: Echo | None, **choice: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self.over = threading.Event()
        super().__init__(tokenizer, PROMPT, SamplingSettings(**choice), limit, [end], self._note, echo=echo)

    def _note(self, told: dict[str, Any]) -> None:
        self.told.append(told)
        if "reason" in told:
            self.over.set()


def main(folder: str) -> None:
    """Write a few texts, one after another, and three at once."""
    from transformers import AutoTokenizer

    from pipelines.serving.vllm_engine import VllmEngine, unfit

    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems: list[str] = []
    engine = VllmEngine(folder, tokenizer, [tokenizer.eos_token_id], 128, problems.append)

    def begun(limit: int = LIMIT, echo: Echo | None = None, **choice: Any) -> Text:
        text = Text(tokenizer, tokenizer.eos_token_id, limit, echo, **choice)
        engine.submit(text)
        return text

    def ended(text: Text) -> dict[str, Any]:
        assert text.over.wait(120)
        records = [each for told in text.told for each in told.get("tokens", [])]
        return {"tokens": text.tokens, "reason": text.reason, "logprobs": [each["logprob"] for each in records]}

    greedy = ended(begun(temperature=0, logprobs=1))
    stop = next(each for each in tokenizer.decode(greedy["tokens"]) if each != HALF)
    endless = begun(120, temperature=0)
    endless.cancelled = True
    said = {
        "unfit": unfit(Path(folder)),
        "greedy": greedy,
        "stopped": ended(begun(temperature=0, stop=(stop,))),
        "echo": ended(begun(0, Echo("abcde", tuple(range(len(PROMPT)))), temperature=0, logprobs=1)),
        "seeds": [ended(each) for each in [begun(temperature=1.0, seed=seed) for seed in (3, 3, 4)]],
        "cancelled": ended(endless)["reason"],
        "json": [
            tokenizer.decode(ended(begun(90, temperature=1.0, seed=seed, json_schema=SCHEMA))["tokens"], True)
            for seed in range(3)
        ],
        "problems": problems,
    }
    engine.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
