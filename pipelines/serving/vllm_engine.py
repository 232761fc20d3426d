"""vLLM as the engine of a served model, where one for this machine is installed and it knows the architecture.

vLLM opens the model itself, chooses tokens by itself, and is told the settings of each text as `SamplingParams`. What
is decoded, told and cut at stop strings is ours, as for every engine. Its numbers are its own: the same seed gives the
same text again by vLLM, and another one than the other engines write. Written against vLLM 0.32; its build for GPUs was
not run.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.serving.sequences import WrittenSequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEMORY = 0.85
"""Share of the GPU's memory that vLLM may take."""
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the process that serves is one, in its isolation, and ends as one
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB, taken at once
}
STRUCTURED_OUTPUTS = {"backend": "guidance", "disable_any_whitespace": True}
"""xgrammar 0.2.8 lets control characters into the strings of JSON, and a model that may write white space goes on with
it. Both engines write JSON without any."""
ON_CPU = {"dtype": "float32", "enforce_eager": True, "distributed_executor_backend": "uni"}
"""As the other engines compute there; compiling would take longer than a cold start may."""


def _settle() -> None:
    """Before vLLM is imported; what is set already stays."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def unfit(folder: Path) -> str:
    """Why vLLM does not serve the model in this folder; empty where it does."""
    if find_spec("vllm") is None:
        return "vLLM is not installed"
    if (folder / "adapter_config.json").is_file():
        return "it is an adapter beside its base"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "it has no config.json"
    names = [str(each) for each in config.get("architectures") or ()]
    if config.get("is_encoder_decoder"):
        return "it is an encoder-decoder"
    _settle()
    from vllm import ModelRegistry
    from vllm.platforms import current_platform

    if current_platform.is_unspecified():
        return "the vLLM that is installed is made for other devices than this machine has"
    known = set(ModelRegistry.get_supported_archs())
    return "" if names and set(names) <= known else f"vLLM does not know {', '.join(names) or 'its architecture'}"


def sampling(sequence: WrittenSequence, ends: Sequence[int]) -> dict[str, Any]:
    """The words of vLLM's `SamplingParams` for a text. Stop strings are looked for by the text itself."""
    choice = sequence.choice
    words: dict[str, Any] = {
        "n": 1,
        "temperature": choice.temperature,
        "top_p": choice.top_p if choice.temperature > 0 else 1.0,
        "presence_penalty": choice.presence_penalty,
        "frequency_penalty": choice.frequency_penalty,
        "max_tokens": max(1, sequence.limit),
        "stop_token_ids": list(ends),
        "ignore_eos": True,  # what ends a text stands in `ends`
        "detokenize": False,
    }
    if choice.temperature > 0:  # each text of a prompt by numbers of its own
        words["seed"] = (choice.seed * 1_000_003 + sequence.draw) % 2**63
        if choice.top_k:
            words["top_k"] = choice.top_k
    if choice.logit_bias:
        words["logit_bias"] = {int(token): float(bias) for token, bias in choice.logit_bias.items()}
    if choice.logprobs is not None:
        words["logprobs"] = choice.logprobs
    if sequence.scores_prompt:
        words["prompt_logprobs"] = choice.logprobs
    return words


def opened_by_vllm(folder: str, context: int | None) -> Any:
    """vLLM's engine of the model in `folder`, in this process and this thread."""
    _settle()
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    words: dict[str, Any] = ON_CPU if current_platform.is_cpu() else {}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=folder,
            tokenizer=folder,
            max_model_len=context,
            gpu_memory_utilization=MEMORY,
            seed=0,
            trust_remote_code=False,
            structured_outputs_config=STRUCTURED_OUTPUTS,
            disable_log_stats=True,
            **words,
        )
    )


class VllmEngine:
    """As `Engine` promises."""

    name = "vllm"

    def __init__(
        self,
        folder: str,
        tokenizer: PreTrainedTokenizerBase,
        ends: Sequence[int],
        context: int | None,
        broken: Callable[[str], None],
    ) -> None:
        """Opens the model in `folder`. `broken` is called when the engine cannot go on."""
        self._tokenizer, self._ends, self._broken = tokenizer, list(ends), broken
        self._engine: Any = None
        self._open: dict[str, WrittenSequence] = {}
        self._waiting: deque[WrittenSequence] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._count = 0
        opened: Future[None] = Future()
        threading.Thread(target=self._run, args=(folder, context, opened), name="vllm", daemon=True).start()
        opened.result()

    def submit(self, sequence: WrittenSequence) -> None:
        """See `Engine.submit`."""
        with self._changed:
            self._waiting.append(sequence)
            self._changed.notify()

    def close(self) -> None:
        """See `Engine.close`."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self, folder: str, context: int | None, opened: Future[None]) -> None:
        """All of vLLM's work: its threads of OpenMP, and its current device, belong to the thread that opened it."""
        try:
            self._engine = opened_by_vllm(folder, context)
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while self._take_in():
                for output in self._engine.step():
                    self._told(output)
                self._leave([name for name, each in self._open.items() if each.cancelled])
        except Exception as error:
            self._broken(" ".join(str(error).split())[:400] or type(error).__name__)
        for each in (*self._open.values(), *self._waiting):
            each.end("cancelled" if self._closed else "error")

    def _take_in(self) -> bool:
        """Begin the texts that wait; sleeps while there is nothing to write. False when the engine is closed."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        with self._changed:
            while not self._waiting and not self._open and not self._closed:
                self._changed.wait()
            new = list(self._waiting)
            self._waiting.clear()
        for each in new:
            self._count += 1
            name = str(self._count)
            words = sampling(each, self._ends)
            try:
                if (schema := each.choice.json_schema) is not None:
                    words["structured_outputs"] = StructuredOutputsParams(json=schema)
                self._engine.add_request(name, {"prompt_token_ids": each.prompt}, SamplingParams(**words))
            except ValueError:  # a schema that it cannot follow, or a setting that it refuses
                each.end("error")
            else:
                self._open[name] = each
        return not self._closed

    def _told(self, output: Any) -> None:
        """Pass on the tokens that are new."""
        sequence = self._open.get(output.request_id)
        if sequence is None:
            return
        if sequence.echo is not None and not sequence.echoed:
            sequence.tell_prompt(self._prompt_records(sequence, output.prompt_logprobs))
        written = output.outputs[0]
        seen = len(sequence.tokens)
        for place, token in enumerate(list(written.token_ids)[seen:], start=seen):
            record = None
            if sequence.choice.logprobs is not None and written.logprobs is not None:
                record = self._record(token, written.logprobs[place], sequence.choice.logprobs)
            if not sequence.take(int(token), record):
                break
        if output.finished:
            sequence.end("error")  # one that is complete has ended
            self._open.pop(output.request_id, None)
        elif sequence.reason is not None:  # by a stop string, or its limit
            self._leave([output.request_id])

    def _leave(self, names: Sequence[str]) -> None:
        if names:
            self._engine.abort_request(list(names))
        for name in names:
            self._open.pop(name).end("cancelled")

    def _prompt_records(self, sequence: WrittenSequence, chances: Any) -> list[dict[str, Any]]:
        """Those of the prompt's tokens but the first, for which vLLM has none."""
        if not sequence.scores_prompt:
            return []
        places = zip(sequence.prompt[1:], list(chances or ())[1:], strict=True)
        return [self._record(token, each, sequence.choice.logprobs or 0) for token, each in places]

    def _record(self, token: int, chances: Mapping[int, Any], most: int) -> dict[str, Any]:
        """Log-probabilities of a token as a text tells them."""
        decode = self._tokenizer.decode
        best = sorted(((each.logprob, other) for other, each in chances.items()), reverse=True)[:most]
        top = [{"token": decode([other]), "logprob": max(float(value), -9999.0)} for value, other in best]
        return {"token": decode([token]), "logprob": max(float(chances[token].logprob), -9999.0), "top": top}
