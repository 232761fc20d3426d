"""How many bytes a training step holds at its fullest moment, by formula.

The step is followed as it happens: the forward pass keeps what the backward pass will need, the backward pass lets go
of it from the last layer to the first while gradients appear, and the optimizer comes last. What a layer keeps is
counted tensor by tensor in the manner of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4.1, arxiv.org/abs/2205.05198, whose 34 sbh + 5 as²b is the case of one GPU, 16 bits and an
inner width of four times the hidden one. `benchmarks/predictions.py` holds the outcome against counted allocations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelines.architectures.arithmetic import (
    CHUNK,
    WORD_HEADS,
    LinearLayer,
    Stack,
    linear_layers,
    norm,
    parameter_count,
    stacks,
)
from pipelines.architectures.configuration_rules import completed
from pipelines.core.costs import (
    DENSEST,
    FLOAT,
    LOGITS_KEPT,
    SCORES_OF_A_SOFTMAX,
    Memory,
    fused_pays,
    tokens_at_once,
)

OPTIMIZER_BYTES = {
    "adamw_torch": 8,
    "adamw_torch_fused": 8,
    "adafactor": 0,
    "sgd": 0,
    "adagrad": 4,
    "rmsprop": 4,
    "muon": 8,
}
"""Bytes of optimizer state for each weight that learns. Adafactor's two vectors a matrix are too small to count; Muon
needs 4 for its matrices."""
ACTIVATION_VALUES = {
    "relu": 0,
    "tanh": 0,
    "sigmoid": 0,
    "linear": 0,
    "quick_gelu": 2,
    "gelu_10": 2,
}
"""Values that an activation keeps beside its result, for each that it is given; 1 where nothing is said."""


LIVE = 10**9
"""Weights that DeepSpeed's third stage keeps whole at most: the default of `stage3_max_live_parameters`."""
MASK = 2
"""Bytes of the random bits that `trainers.dropout` keeps for a number, of any type."""
PLACE = 8
"""Bytes of the number of a place that is picked out."""
TEXT_HEADS = ("sequence_classification", "multiple_choice", "reward")
"""Heads that decide about a text, and read one place of it."""
LAYERED = ("attention", "cross_attention", "feed_forward", "norms")
"""Parts of a model, as `parameter_count` names them, that lie in its layers."""


@dataclass(frozen=True)
class Step:
    """What one process computes at once, and how."""

    batch: int
    """Sequences."""
    length: int
    """Tokens of each; of each source for an encoder-decoder."""
    target: int
    """Tokens of each target."""
    predicted: int
    """Tokens of each sequence that get a score for each word of the vocabulary."""
    mixed: bool = False
    """Whether products are computed in 16 bits."""
    on_cpu: bool = True
    """On a CPU attention keeps every pair's weight unless `fused_pays`; on a GPU a fused kernel computes them again."""
    compiled: bool = False
    """Whether layers are compiled, which keep their attention whatever its size."""
    dropout: bool = True
    """Whether dropout is on, with the chances of the model's fields."""
    recomputed: bool = False
    """Whether layers keep their input alone (activation checkpointing)."""
    accumulated: int = 1
    """Batches a step; gradients of the earlier ones stand while the later ones are computed."""
    optimizer: str = "adamw_torch_fused"
    processes: int = 1
    sharded: bool = False
    """Whether the processes divide weights, gradients and optimizer state (`fsdp2`)."""
    zero: int = 0
    """DeepSpeed's stage of ZeRO, 2 or 3, which computes in 16-bit weights without autocast; 0 without DeepSpeed."""
    padded: bool = False
    """Whether sequences are filled up, so that attention needs a mask even where every token sees all others."""
    whole: bool = False
    """Whether the last layer runs for all places, though few of them are read; see `models.read_places`."""
    every_query: bool = False
    """Whether its attention does, as that of most models of others; see `models.read_queries`."""


@dataclass(frozen=True)
class Segment:
    """A stretch of the forward pass, in bytes."""

    activations: int
    """Kept for the backward pass."""
    learnt: int = 0
    """Gradients that its backward pass leaves."""
    forward: int = 0
    """Beside what it keeps, while it is computed."""
    backward: int = 0
    """Beside what it kept, while its gradients are computed."""


def memory(
    config: Mapping[str, Any],
    head: str,
    num_labels: int,
    step: Step,
    *,
    parameters: int | None = None,
    trainable: int | None = None,
    learnt: Mapping[str, int] | None = None,
) -> Memory:
    """Bytes of a step of a model of that config.

    `learnt` names the linear layers that learn with how many weights each, updates or themselves; default: everything
    learns. `parameters` is how many weights there are in all, those of updates included, `trainable` how many learn.
    """
    counts, fields = parameter_count(config, head, num_labels), completed(dict(config))
    everything = counts["total"] if parameters is None else parameters
    if trainable is None:
        trainable = counts["total"] if learnt is None else sum(learnt.values())
    blocks = list(_Tracing(fields, head, num_labels, step, learnt).blocks())
    weights, gradients = everything * FLOAT, trainable * FLOAT
    state = trainable * OPTIMIZER_BYTES[step.optimizer]
    if step.sharded:
        return _sharded(counts, blocks, step, fields, weights, gradients, state)
    if step.zero:
        return _by_zero(counts, blocks, step, fields, weights, gradients, state)
    buckets = gradients if step.processes > 1 else 0
    earlier = gradients if step.accumulated > 1 else 0
    fullest = max(fullest_moment(blocks) + earlier, gradients + _scratch(step, gradients, fields))
    return Memory(
        weights=weights,
        gradients=gradients + buckets,
        optimizer=state,
        activations=sum(block.activations for block in blocks),
        peak=weights + state + buckets + fullest,
    )


def in_layers(config: Mapping[str, Any], head: str, num_labels: int) -> tuple[int, int]:
    """(bytes of the weights that lie in layers, number of layers) of a model of that config."""
    counts = parameter_count(config, head, num_labels)
    return sum(counts[part] for part in LAYERED) * FLOAT, sum(stack.layers for stack in stacks(completed(dict(config))))


def _sharded(
    counts: Mapping[str, int],
    blocks: list[Segment],
    step: Step,
    fields: Mapping[str, Any],
    weights: int,
    gradients: int,
    state: int,
) -> Memory:
    """Of one process under `fsdp2`: its part of everything, and what is whole at once.

    That are the weights of two layers, the one that computes and the next one, and all that stands in no layer, which
    stays whole from the forward to the backward pass; of the gradients, those of one layer and of that.
    """
    parts = step.processes
    layer, rest = _layer_and_rest(counts, fields, weights)
    whole, learnt = rest + 2 * layer, round((rest + layer) * gradients / max(weights, 1))
    own = gradients // parts
    divided = [replace(block, learnt=block.learnt // parts) for block in blocks]
    earlier = own if step.accumulated > 1 else 0
    fullest = max(fullest_moment(divided) + learnt + earlier, own + _scratch(step, gradients, fields) // parts)
    return Memory(
        weights=weights // parts + whole,
        gradients=own + learnt,
        optimizer=state // parts,
        activations=sum(block.activations for block in blocks),
        peak=weights // parts + whole + state // parts + fullest,
    )


def _by_zero(
    counts: Mapping[str, int],
    blocks: list[Segment],
    step: Step,
    fields: Mapping[str, Any],
    weights: int,
    gradients: int,
    state: int,
) -> Memory:
    """Of one process under DeepSpeed's ZeRO (Rajbhandari et al. 2020, section 5, arxiv.org/abs/1910.02054): its part of
    the gradients and of the optimizer's state, a float32 copy of what learns among the latter, and of the weights all
    in stage 2, its part in stage 3.

    Beside that stand gradients of a layer and of what is in none, until they are reduced, and in stage 3 the weights
    that were gathered, of which DeepSpeed keeps up to `LIVE` for their next use.
    """
    parts, value = step.processes, 2 if step.mixed else FLOAT
    layer, rest = _layer_and_rest(counts, fields, weights)
    learnt = round((rest + layer) * gradients / max(weights, 1)) * value // FLOAT
    whole = weights * value // FLOAT
    held = whole if step.zero == 2 else whole // parts + min(whole, LIVE * value)
    own, optimizer = gradients * value // FLOAT // parts, (state + gradients) // parts
    divided = [replace(block, learnt=block.learnt * value // FLOAT // parts) for block in blocks]
    earlier = own if step.accumulated > 1 else 0
    updated = own + (gradients + _scratch(step, gradients, fields)) // parts  # in float32 for the optimizer
    fullest = max(fullest_moment(divided) + learnt + earlier, updated)
    return Memory(
        weights=held,
        gradients=own + learnt,
        optimizer=optimizer,
        activations=sum(block.activations for block in blocks),
        peak=held + optimizer + fullest,
    )


def _layer_and_rest(counts: Mapping[str, int], fields: Mapping[str, Any], weights: int) -> tuple[int, int]:
    """(bytes of one layer's weights, bytes of those that are in no layer)."""
    layers = sum(counts[part] for part in LAYERED) * FLOAT
    return layers // sum(stack.layers for stack in stacks(fields)), weights - layers


def fullest_moment(blocks: list[Segment]) -> int:
    """The most that activations and gradients take together, over the forward and the backward pass."""
    activations = gradients = most = 0
    for block in blocks:
        activations += block.activations
        most = max(most, activations + block.forward)
    for block in reversed(blocks):
        most = max(most, activations + gradients + max(block.backward, block.learnt - block.activations))
        activations -= block.activations
        gradients += block.learnt
    return most


def _scratch(step: Step, gradients: int, fields: Mapping[str, Any]) -> int:
    """What the optimizer needs beside its state: nothing if fused, else temporaries of a matrix, or of all on a GPU."""
    if step.optimizer == "adamw_torch_fused":
        return 0
    return 2 * FLOAT * fields["vocab_size"] * fields["embedding_size"] if step.on_cpu else gradients


class _Tracing:
    """The blocks of one forward pass."""

    def __init__(
        self, fields: Mapping[str, Any], head: str, num_labels: int, step: Step, learnt: Mapping[str, int] | None
    ) -> None:
        silent = {} if step.dropout else {name: 0.0 for name in fields if name.endswith("dropout_prob")}
        self.fields = fields = {**fields, **silent}
        self.head = head
        self.step = step
        self.learnt = learnt
        self.layers = {layer.name: layer for layer in linear_layers(fields, head, num_labels)}
        self.value = 2 if step.mixed else FLOAT
        self.tokens = {"sequence": step.batch * step.length, "target": step.batch * step.target}
        longest = max(step.length, step.target if fields["family"] == "encoder-decoder" else 0)
        scores = step.batch * fields["num_attention_heads"] * longest * longest
        # on a CPU, which attention the trainer lets `models.attention_by_size` take, and whose dropout
        plain = step.on_cpu and not (step.compiled or step.recomputed)
        self.own_dropout = plain
        products = fields["attention_scoring"] != "additive" and fields["position"] not in ("alibi", "relative")
        large = fused_pays(scores, "bf16" if step.mixed else "no", learning=True)
        self.fused = plain and products and large and fields["attention_probs_dropout_prob"] == 0
        self.narrow = plain and products and not self.fused

    def blocks(self) -> Iterator[Segment]:
        for stack in stacks(self.fields):
            yield self._embeddings(stack)
            for index in range(stack.layers):
                blocks = list(self._layer(stack, index, self._read(stack) if index + 1 == stack.layers else None))
                yield from self._recomputed(blocks, stack) if self.step.recomputed else blocks
            yield self._final_norm(stack)
        yield from self._heads()

    def _recomputed(self, blocks: list[Segment], stack: Stack) -> Iterator[Segment]:
        """One layer that keeps its input, and computes the rest when its turn comes."""
        inside = sum(block.activations for block in blocks)
        activations = self.tokens[stack.tokens] * self.fields["hidden_size"] * FLOAT
        yield Segment(
            activations,
            sum(block.learnt for block in blocks),
            max(block.activations + block.forward for block in blocks),
            inside + max(block.backward for block in blocks),
        )

    # ---- what learns -------------------------------------------------------------------------------------------------

    def _gradient(self, layer: LinearLayer) -> int:
        weights = layer.parameters if self.learnt is None else self.learnt.get(layer.name, 0)
        return weights * FLOAT

    def _saves_input(self, layer: LinearLayer) -> bool:
        return self._gradient(layer) > 0

    def _norm_gradient(self, width: int) -> int:
        return norm(self.fields, width) * FLOAT if self.learnt is None else 0

    def _copy(self, *layers: LinearLayer) -> int:
        """The 16-bit copies of matrices, which the backward pass reads."""
        copied = self.step.mixed and not self.step.zero
        return sum(2 * layer.inputs * layer.outputs for layer in layers) if copied else 0

    def _inputs(self, tokens: int, *layers: LinearLayer) -> int:
        """What `layers` keep of their common input: itself, or a 16-bit copy each."""
        saving = [layer for layer in layers if self._saves_input(layer)]
        copies = len(saving) if self.step.mixed else min(1, len(saving))
        return copies * tokens * layers[0].inputs * self.value

    # ---- the parts of a model ----------------------------------------------------------------------------------------

    def _embeddings(self, stack: Stack) -> Segment:
        fields, tokens = self.fields, self.tokens[stack.tokens]
        narrow = fields["embedding_size"]
        activations = tokens * 8  # the ids
        if fields["position"] == "relative":
            length = tokens // self.step.batch
            activations += length * length * 8  # which bucket each pair is in
            if stack.causal or self.step.padded:
                activations += self.step.batch * fields["num_attention_heads"] * length * length * FLOAT
        if self.learnt is None:
            activations += self._norm_kept(tokens, narrow) if fields["embedding_norm"] else 0
            activations += tokens * narrow * self._mask_of("embedding_dropout_prob", FLOAT)
        projection = self.layers.get(f"{stack.prefix}embeddings.projection")
        if projection is not None:
            activations += self._inputs(tokens, projection) + self._copy(projection)
        words = fields["vocab_size"] * narrow * FLOAT
        others = fields["type_vocab_size"] * narrow * FLOAT
        others += fields["max_position_embeddings"] * narrow * FLOAT if fields["position"] == "learned" else 0
        others += self._norm_gradient(narrow) if fields["embedding_norm"] else 0
        if self.learnt is not None:
            return Segment(activations)
        tied = fields["tie_word_embeddings"] and self.head in WORD_HEADS
        shared = tied or stack.crosses  # then the words' gradient is there already, and another one is added to it
        return Segment(activations, others + (0 if shared else words), tokens * narrow * FLOAT, others + words)

    def _read(self, stack: Stack) -> int | None:
        """Places of all sequences for which the last layer of `stack` runs behind its attention; None for all."""
        step, both = self.step, self.fields["family"] == "encoder-decoder"
        if step.whole or step.recomputed or (both and not stack.crosses):
            return None
        if self.head in TEXT_HEADS:
            return step.batch
        places = self.tokens[stack.tokens]
        wanted = step.batch * step.predicted
        if self.head not in WORD_HEADS or not 0 < wanted <= DENSEST * places:
            return None
        first = step.batch if self.head == "pretraining" else 0  # the pooler's
        return min(wanted + first, places)

    def _layer(self, stack: Stack, index: int, read: int | None = None) -> Iterator[Segment]:
        """Behind its attention it runs for the `read` places; None for all."""
        layer, tokens = f"{stack.prefix}layers.{index}", stack.tokens
        length = self.step.length if tokens == "sequence" else self.step.target
        first = read is not None and self.head in TEXT_HEADS and self._asks_first(stack)
        queries, windowed = 1 if first else length, self._windowed(index)
        yield self._attention(f"{layer}.attention", tokens, tokens, queries, length, stack.causal, windowed)
        if stack.crosses:
            source = self.step.length
            yield self._attention(f"{layer}.cross_attention", tokens, "sequence", length, source, False)
        if read is None:
            yield self._feed_forward(f"{layer}.feed_forward", self.tokens[tokens])
        else:
            yield self._cut(self._feed_forward(f"{layer}.feed_forward", read), self.tokens[tokens], read)

    def _asks_first(self, stack: Stack) -> bool:
        """Whether the last attention of `stack` answers the first query alone, `models.read_queries`."""
        fields = self.fields
        products = fields["attention_scoring"] != "additive" and fields["attention_pattern"] != "linear"
        return products and not stack.causal and not self.step.every_query

    def _cut(self, narrow: Segment, tokens: int, read: int) -> Segment:
        """What `narrow` does for `read` places, picked out of all and put back among them: the numbers of the places
        are kept, and states of all places exist twice, those that are filled in and their copy, or two gradients."""
        spread = 2 * tokens * self.fields["hidden_size"] * FLOAT
        return replace(
            narrow,
            activations=narrow.activations + read * PLACE,
            forward=narrow.forward + spread,
            backward=narrow.backward + spread,
        )

    def _windowed(self, index: int) -> bool:
        """Whether a layer sees a window only."""
        every = self.fields["global_attn_every_n_layers"]
        return self.fields["attention_pattern"] == "sliding_window" and (every is None or index % every != 0)

    def _attention(
        self, name: str, queries: str, keys: str, length: int, past: int, causal: bool, windowed: bool = False
    ) -> Segment:
        """`length` queries of each sequence, be they all or not, and `past` keys."""
        fields, value = self.fields, self.value
        every, query_tokens, seen = self.tokens[queries], self.step.batch * length, self.tokens[keys]
        query, key, values, output = (self.layers[f"{name}.{each}"] for each in ("query", "key", "value", "output"))
        dim, wide = fields["hidden_size"], query.outputs
        crosses = queries != keys
        activations = (
            self._sublayer(every) + self._copy(query, key, values, output) + self._inputs(query_tokens, output)
        )
        activations += self._projected(name, query_tokens, seen, crosses)
        if fields["qk_norm"]:
            activations += self._head_norms(query_tokens, wide) + self._head_norms(seen, key.outputs)
        learnt = sum(self._gradient(each) for each in (query, key, values, output)) + self._norm_gradient(dim)
        flowing = every * dim * FLOAT + every * wide * value
        if fields["attention_pattern"] == "linear" and not crosses:
            between = self._linear_attention(length, causal)
            return Segment(activations + between, learnt, flowing + between // 4, flowing + between // 2)
        # by head, keys and values repeated for the heads that share them, unless the kernel reads them as they are
        hides = windowed or self._masked(False, crosses)
        repeated = wide if hides or not self.fused else key.outputs
        activations += (query_tokens * wide + 2 * seen * repeated) * value
        activations += self._scoring(query_tokens, seen, length)
        pairs = self.step.batch * fields["num_attention_heads"] * length * past
        additive = fields["attention_scoring"] == "additive"
        forward = backward = flowing
        if additive:  # a vector for each pair, and again for the product with a vector that learns
            each, copies = pairs * fields["head_dim"] * value, 2 if self.learnt is None else 1
            activations += copies * each - query_tokens * wide * value
            forward += each
            backward += (3 - copies) * each
        # queries that see the same keys share a row of the mask (`models.attention_by_size`)
        masked = self.step.batch * (length if causal or windowed else 1) * past
        if self.fused:  # the sums of softmax, and the mask in the type of the scores
            activations += self.step.batch * fields["num_attention_heads"] * length * FLOAT
            activations += masked * value if hides else 0
        dropped = fields["attention_probs_dropout_prob"] > 0
        if self.narrow:  # chances and random bits, `trainers.training_attention`
            wide = pairs * FLOAT if dropped and not self.step.mixed else 0  # bits as wide as what they are laid over
            activations += pairs * (value + (MASK if dropped else 0))
            hidden = causal or hides
            masks = masked * (FLOAT + (value if self.step.mixed else 0)) if hidden else 0
            forward += pairs * value + wide + masks
            backward += pairs * value + max(pairs * value, wide)
        elif (self.step.on_cpu and not self.fused) or additive:
            weight = FLOAT if self._masked(causal or windowed, crosses) else value  # float32 masks make float32 scores
            copies = pairs * value if dropped or weight != value else 0
            activations += pairs * (weight + (self._mask(weight) if dropped else 0)) + copies
            forward += pairs * weight
            backward += pairs * weight * (1 if dropped else 2)
        return Segment(activations, learnt, forward, backward)

    def _projected(self, name: str, query_tokens: int, seen: int, crosses: bool) -> int:
        """What queries, keys and values keep of what they are made of."""
        query, key, values = (self.layers[f"{name}.{each}"] for each in ("query", "key", "value"))
        if query_tokens < seen and not crosses:
            own = self._inputs(query_tokens, query) if self.step.mixed else 0
            return own + self._inputs(seen, key, values)
        if crosses:
            return self._inputs(query_tokens, query) + (self._inputs(seen, key, values) if self.step.mixed else 0)
        return self._inputs(query_tokens, *([query] if self._is_joint(query, key) else [query, key, values]))

    def _is_joint(self, query: LinearLayer, key: LinearLayer) -> bool:
        """Whether self-attention makes queries, keys and values by one product, `trainers.joint_projections`."""
        fields = self.fields
        changed = fields["position"] == "rotary" or fields["attention_scoring"] in ("general", "cosine")
        changed = changed or fields["attention_pattern"] == "linear"
        alike = query.outputs == key.outputs and not fields["qk_norm"]
        return self.narrow and alike and not changed and self.learnt is None

    def _masked(self, hidden: bool, crosses: bool) -> bool:
        """Whether numbers are added to the scores: some keys are `hidden`, or distance counts."""
        positional = self.fields["position"] in ("alibi", "relative") and not crosses
        return hidden or positional or self.step.padded

    def _head_norms(self, tokens: int, width: int) -> int:
        """Inputs of the norms of queries or of keys."""
        heads = width // self.fields["head_dim"]
        if self.fields["norm_type"] == "rms_norm":
            return int(tokens * ((2 if self.learnt is None else 1) * width * FLOAT + heads * FLOAT))
        return int(tokens * (width * self.value + heads * 2 * FLOAT))

    def _scoring(self, query_tokens: int, seen: int, length: int) -> int:
        """What a way of scoring keeps beside queries, keys and values."""
        fields, value = self.fields, self.value
        heads, shared, head_dim = fields["num_attention_heads"], fields["num_key_value_heads"], fields["head_dim"]
        learns = 1 if self.learnt is None else 0
        if fields["attention_scoring"] == "general":
            return int((learns * query_tokens + self.step.batch * head_dim) * heads * head_dim * value)
        if fields["attention_scoring"] == "cosine":
            vectors = (1 + learns) * query_tokens * heads + seen * shared
            return int((vectors * head_dim + 2 * (query_tokens * heads + seen * shared)) * value)
        return 0

    def _linear_attention(self, length: int, causal: bool) -> int:
        """Features, and what their sums need. Within a chunk a causal stack writes the pairs out."""
        fields, value, batch = self.fields, self.value, self.step.batch
        heads, head_dim = fields["num_attention_heads"], fields["head_dim"]
        wide, states = heads * head_dim, heads * head_dim * head_dim * value
        if not causal:
            return int(batch * (length * wide * (2 * FLOAT + 5 * value) + states))
        filled = -(-length // CHUNK) * CHUNK
        padded = filled * wide * (7 if self.step.mixed else 4) * value
        pairs = heads * filled * CHUNK * value
        return int(batch * (4 * length * wide * FLOAT + padded + pairs + filled // CHUNK * states))

    def _feed_forward(self, name: str, tokens: int) -> Segment:
        fields, value = self.fields, self.value
        gated = fields["is_gated_act"]
        into = [self.layers[f"{name}.{each}"] for each in (("intermediate", "gate") if gated else ("intermediate",))]
        output = self.layers[f"{name}.output"]
        inner = tokens * fields["intermediate_size"] * value
        activations = self._sublayer(tokens) + self._inputs(tokens, *into) + self._copy(*into, output)
        activations += inner * ACTIVATION_VALUES.get(self.fields["hidden_act"], 1)
        if gated:
            activations += 2 * inner  # the two factors
        dropped = fields["activation_dropout_prob"] > 0
        result_is_kept = fields["hidden_act"] in ("relu", "tanh", "sigmoid") and not gated
        activations += inner if result_is_kept else 0
        copied = self.learnt is not None and self.step.mixed  # PEFT's updates are computed from a float32 copy
        if self._saves_input(output) and (dropped or copied or not result_is_kept):
            activations += inner
        activations += inner * self._mask(value) // value if dropped else 0
        learnt = sum(self._gradient(each) for each in (*into, output)) + self._norm_gradient(fields["hidden_size"])
        flowing = tokens * fields["hidden_size"] * (FLOAT + value) + inner
        if copied:
            flowing += tokens * fields["intermediate_size"] * FLOAT
        return Segment(activations, learnt, flowing, flowing)

    def _sublayer(self, tokens: int) -> int:
        """The residual sum that a norm reads, and the dropout mask of the sublayer's output."""
        dim: int = self.fields["hidden_size"]
        mask = tokens * dim * self._mask_of("hidden_dropout_prob", self.value)
        if self.fields["norm_position"] == "sandwich":
            output = self.value if self.fields["norm_type"] == "layer_norm" else FLOAT
            return self._norm_kept(tokens, dim) + self._norm_kept(tokens, dim, output) + mask
        return self._norm_kept(tokens, dim) + mask

    def _norm_kept(self, tokens: int, width: int, value: int = FLOAT) -> int:
        """A norm's input and its statistics; an RMSNorm that learns keeps what it has divided, too."""
        if self.fields["norm_type"] == "rms_norm":
            return tokens * (width * (value + (FLOAT if self.learnt is None else 0)) + FLOAT)
        return tokens * (width * value + 2 * FLOAT)

    def _mask_of(self, dropout: str, value: int) -> int:
        return self._mask(value) if self.fields[dropout] > 0 else 0

    def _mask(self, value: int) -> int:
        """Bytes that dropout keeps for a number of `value` bytes: torch's are a number too on a CPU."""
        return MASK if self.own_dropout else value if self.step.on_cpu else 1

    def _final_norm(self, stack: Stack) -> Segment:
        if self.fields["norm_position"] == "post":
            return Segment(0)
        dim = self.fields["hidden_size"]
        return Segment(self._norm_kept(self.tokens[stack.tokens], dim), self._norm_gradient(dim))

    def _heads(self) -> Iterator[Segment]:
        """Small heads keep next to nothing; scores over the vocabulary are large."""
        fields, step = self.fields, self.step
        small = [layer for layer in self.layers.values() if layer.part in ("pooler", "head")]
        small_learnt = sum(self._gradient(layer) for layer in small)
        if self.head not in WORD_HEADS:
            last = self.tokens["target" if fields["family"] == "encoder-decoder" else "sequence"]
            yield Segment(self._copy(*small) + last * fields["hidden_size"] * FLOAT, small_learnt)
            return
        rows, vocab, narrow = step.batch * step.predicted, fields["vocab_size"], fields["embedding_size"]
        activations = rows * (fields["hidden_size"] * (FLOAT + self.value)) + self._copy(*small)
        if fields["family"] == "encoder":
            activations += rows * narrow * (FLOAT + self.value * ACTIVATION_VALUES.get(self.fields["hidden_act"], 1))
            small_learnt += self._norm_gradient(narrow)
        yield Segment(activations, small_learnt)
        scores = rows * vocab
        matrix = vocab * narrow
        learns = self.learnt is None
        if scores > LOGITS_KEPT:  # a chunk of them at a time; the loss comes with its gradients
            kept = rows * narrow * self.value + (matrix * FLOAT if learns else 0)
            copies = (matrix + rows * narrow) * self.value if step.mixed else 0
            product = matrix * self.value if learns and step.mixed else 0
            chunk = min(scores, tokens_at_once(vocab, step.on_cpu) * vocab) * self.value
            softmax = min(scores, SCORES_OF_A_SOFTMAX) * FLOAT * (3 if step.mixed else 2) if step.on_cpu else 0
            yield Segment(kept, matrix * FLOAT if learns else 0, chunk + copies + product + softmax)
            return
        activations = scores * FLOAT + rows * narrow * self.value + (2 * matrix if step.mixed else 0)
        forward = scores * ((FLOAT + 2) if step.mixed else FLOAT)
        yield Segment(activations, matrix * FLOAT if learns else 0, forward, 2 * scores * FLOAT)
