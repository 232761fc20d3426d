"""A model as the lm-evaluation-harness sees it: its three kinds of requests, answered in our batches.

Gao et al. 2021, github.com/EleutherAI/lm-evaluation-harness, `lm_eval.api.model.LM`. Decoders and encoder-decoders
answer what the harness' own `hf` model answers, log-likelihoods of contexts and continuations tokenised alike;
encoders answer likelihoods through their mask (see `verbalizers`), and write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.model import LM

from pipelines.core.decoding import Generation
from pipelines.core.errors import ModelError
from pipelines.evaluation.few_shot.decoders import DecoderReader
from pipelines.evaluation.few_shot.encoders import MaskReader
from pipelines.evaluation.few_shot.likelihood import Continuation, Encoded, LikelihoodReader
from pipelines.evaluation.few_shot.writing import write

MOST_NEW = 256
"""Tokens of a written answer, where the task does not say: the harness' own default."""
ROLLING = 1024
"""Tokens of a window over a long text, for models without a bound."""
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What a task may say about drawing tokens."""


class FineryLM(LM):  # type: ignore[misc]
    """A reader that answers the harness."""

    def __init__(self, reader: LikelihoodReader, batch_size: int = 32) -> None:
        super().__init__()
        self.reader = reader
        self.running: dict[str, Any] = {"device": reader.model.device, "batch_size": batch_size}
        self.cut = 0
        """Requests whose context was too long, and lost its beginning."""

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood, whether greedy search would write it) of each (context, continuation)."""
        encoded = [self.reader.encode(Continuation(*each.args)) for each in requests]
        self.cut += sum(self.reader.excess(each) > 0 for each in encoded)
        likelihoods = self.reader.likelihoods(encoded, **self.running) if encoded else []
        return [(each.nats, each.greedy) for each in likelihoods]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text, every token predicted once, in windows as long as the model reads."""
        windows = [self._windows(each.args[0]) for each in requests]
        flat = [one for each in windows for one in each]
        nats = iter([each.nats for each in self.reader.likelihoods(flat, **self.running)] if flat else [])
        return [sum(next(nats) for _ in each) for each in windows]

    def _windows(self, text: str) -> list[Encoded]:
        reader = self.reader
        ids, limit = reader.plain(text), reader.limit or ROLLING
        if isinstance(reader, MaskReader):
            empty = reader.encode(Continuation("", "a"))
            room = limit - len(empty.context) - len(empty.rest)
            return [Encoded(empty.context, tuple(ids[at : at + room]), empty.rest) for at in range(0, len(ids), room)]
        begin = reader.context("")[-1]
        windows = utils.get_rolling_token_windows(token_list=ids, prefix_token=begin, max_seq_len=limit, context_len=1)
        return [Encoded(tuple(context), tuple(answer)) for context, answer in map(utils.make_disjoint_window, windows)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What is written behind each context, greedily unless the task draws."""
        by_settings: dict[str, list[int]] = {}
        for place, each in enumerate(requests):
            by_settings.setdefault(repr(sorted(each.args[1].items())), []).append(place)
        texts = [""] * len(requests)
        for places in by_settings.values():
            for place, text in zip(
                places, self._written([requests[at].args[0] for at in places], requests[places[0]].args[1]), strict=True
            ):
                texts[place] = text
        return texts

    def _written(self, contexts: Sequence[str], words: Mapping[str, Any]) -> list[str]:
        stops = words.get("until") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        most = next(
            (words[name] for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if name in words), MOST_NEW
        )
        limit = self.reader.limit
        if isinstance(self.reader, DecoderReader) and limit is not None:
            most = min(int(most), max(1, limit // 2))
        prompts = []
        for text in contexts:
            ids = self.reader.context(text)
            excess = self.reader.excess(Encoded(ids, (0,) * int(most)))
            self.cut += excess > 0
            prompts.append(ids[excess:])
        drawn = {name: words[name] for name in SAMPLED if name in words} if words.get("do_sample") else None
        generation = Generation(num_beams=words.get("num_beams", 1), max_new_tokens=int(most))
        if self.reader.head.kind == "masked_lm":
            raise ModelError(
                "the task wants written answers, and an encoder writes none; choose tasks with options, or a decoder"
            )
        return list(write(self.reader, prompts, stops, generation, drawn, **self.running))

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness' caches."""
        return str(self.reader.tokenizer.name_or_path).replace("/", "__")
