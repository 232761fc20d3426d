"""Completions written by vLLM instead of transformers: for one GPU, where the package is installed.

The engine is opened once, with the policy as the stage found it, and given the policy's weights before every iteration. Each
completion has a seed of its own, made of (seed, draw), so that it does not depend on its neighbours; vLLM's kernels do not promise
the same bits twice. Log-probabilities are computed by the trainer as ever.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.data.completions import padding_token
from pipelines.errors import Misfit
from pipelines.objectives.randomness import uniforms
from pipelines.trainers.rollouts import Rollouts, ends_of, refuse, texts_behind, until_the_end

SEEDS = 0x5EED
"""The stream of the completions' own seeds."""
MEMORY = 0.4
"""The share of the GPU that the engine takes, its copy of the weights included; training needs the rest."""


class VLLMSampler:
    """`sampler(policy, prompts, draws) -> Rollouts`, as `complete` gives them."""

    def __init__(
        self, tokenizer: Any, folder: Path, *, seed: int, max_new_tokens: int, temperature: float, top_p: float, top_k: int, longest: int
    ) -> None:
        self.tokenizer = tokenizer
        self.folder = folder
        self.seed = seed
        self.max_new_tokens = max_new_tokens
        self.how = {"temperature": temperature, "top_p": top_p, "top_k": top_k or -1}
        self.longest = longest
        """Tokens of the longest prompt."""
        self.engine: Any = None

    def __call__(self, policy: Any, prompts: Sequence[Sequence[int]], draws: Sequence[int]) -> Rollouts:
        """One completion of each prompt by the policy as it is now."""
        from vllm import SamplingParams

        refuse(policy, prompts, self.max_new_tokens)
        ends = ends_of(policy, self.tokenizer)
        self._given(policy)
        asked = [
            SamplingParams(**self.how, max_tokens=self.max_new_tokens, seed=each, stop_token_ids=ends, detokenize=False)
            for each in seeds(self.seed, draws)
        ]
        told = self.engine.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], asked, use_tqdm=False)
        return self._rollouts(prompts, [list(each.outputs[0].token_ids) for each in told], ends)

    def _given(self, policy: Any) -> None:
        """The engine with the policy's weights."""
        if self.engine is None:
            self.engine = self._opened(policy)
        model = self.engine.llm_engine.model_executor.driver_worker.model_runner.model
        model.load_weights([(name, weight.detach()) for name, weight in policy.named_parameters()])
        self.engine.reset_prefix_cache()

    def _opened(self, policy: Any) -> Any:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its model is reached in this process
        from vllm import LLM

        shutil.rmtree(self.folder, ignore_errors=True)
        policy.save_pretrained(str(self.folder))
        self.tokenizer.save_pretrained(str(self.folder))
        return LLM(
            model=str(self.folder), max_model_len=self.longest + self.max_new_tokens, gpu_memory_utilization=MEMORY, seed=self.seed,
            generation_config="vllm",
        )  # fmt: skip

    def _rollouts(self, prompts: Sequence[Sequence[int]], written: Sequence[list[int]], ends: Sequence[int]) -> Rollouts:
        longest = max(len(each) for each in written)
        pad = padding_token(self.tokenizer)
        ids = torch.tensor([[*each, *[pad] * (longest - len(each))] for each in written], dtype=torch.int64)
        real = torch.arange(longest)[None, :] < torch.tensor([[len(each)] for each in written])
        mask, _ = until_the_end(ids, ends)
        mask &= real
        ended = (torch.isin(ids, torch.tensor(list(ends))) & mask).any(1)
        ids = ids.masked_fill(~mask, pad)
        return Rollouts(ids, mask, ended, texts_behind(self.tokenizer, prompts, [row[own].tolist() for row, own in zip(ids, mask, strict=True)]))


def seeds(seed: int, draws: Sequence[int]) -> list[int]:
    """A seed for each completion, from 0 to 2^31 - 1."""
    return [int(chance * 2**31) for chance in uniforms(seed, SEEDS, list(draws), 1)[:, 0]]


def unfit(model: Any, processes: int, adapts: bool) -> None:
    """Raise Misfit for a policy that the engine cannot be given."""
    why = None
    if model.config.is_encoder_decoder:
        why = "writes for decoders only"
    elif model.config.model_type == "finery":
        why = "has no class for models of the finery family"
    elif adapts:
        why = "is given whole weights here, and the tuner is an adapter"
    elif processes > 1:
        why = f"is used on one process here, and there are {processes}"
    elif not torch.cuda.is_available():
        why = "needs a GPU"
    if why is not None:
        raise Misfit(f"rollouts: vllm {why}; leave 'rollouts' out")
