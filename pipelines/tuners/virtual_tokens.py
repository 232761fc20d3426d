"""Virtual tokens before a text, as PEFT adapters: for prefix tuning, prompt tuning and P-tuning on every head.

A tuned model takes the inputs of its base and gives outputs of the same shapes. PEFT's own classes do not promise that:
they pool a classifier's vector at a virtual token, shift the spans of question answering, leave virtual tokens among
the tokens that are labelled, and leave heads that they do not know untouched. Here the virtual tokens join the text
where the body of the model reads it, and leave where the body hands its result on, so that no head ever sees one.

Prompt tuning and P-tuning put embeddings before those of the words, in the encoder of an encoder-decoder; the tokens
after them move on in their positions. Prefix tuning puts keys and values before those of every layer, in the decoder of
an encoder-decoder, as the past of the text; where a model keeps no past (DistilBERT, ALBERT, ModernBERT) they are added
inside attention, and take no positions.

Where PEFT's own classes compute the same, what is saved is a plain PEFT adapter. Elsewhere its type is one of `TYPES`,
and this file lies beside it as `finery_adapter.py`: PEFT refuses the type until that file is imported, which teaches
it. For this reason the file imports torch, peft, transformers and the standard library only.
"""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig
from peft import mapping as peft_mapping
from peft.auto import MODEL_TYPE_TO_PEFT_MODEL_MAPPING
from peft.tuners.p_tuning import PromptEncoder
from peft.tuners.prefix_tuning import PrefixEncoder
from peft.tuners.prompt_tuning import PromptEmbedding
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "finery_adapter.py"
"""What this module is called beside a saved adapter."""
TASK = "FINERY_VIRTUAL_TOKENS"
TYPES = {
    "PREFIX_TUNING": "FINERY_PREFIX_TUNING",
    "PROMPT_TUNING": "FINERY_PROMPT_TUNING",
    "P_TUNING": "FINERY_P_TUNING",
}
"""PEFT's name of each method, and the name of ours where PEFT's own classes would compute something else."""
KEPT = "reparameterization."
"""How the names of the weights begin that only training needs. A finished adapter does without them."""
INSIDE_ATTENTION = {
    "distilbert": "DistilBertSelfAttention",
    "albert": "AlbertAttention",
    "modernbert": "ModernBertAttention",
    "eurobert": "EuroBertAttention",
    "nomic_bert": "NomicBertAttention",
    "gte": "GteAttention",
    "jina_embeddings_v3": "JinaEmbeddingsV3Attention",
}
"""Families that keep no past, and the class of their attention."""
NO_ATTENTION = ("cross", "encdec", "encoder_attn", "mamba", "deltanet")
"""Words in the names of modules that keep a past and are no self-attention."""
PAST = ("past_key_values", "layer_past")
"""What attentions call it."""
PEFT_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForReward": "SEQ_CLS",
}
"""How the names of classes with a head end, and what PEFT calls their task."""
PEFT_HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
"""Ends of names of the modules that PEFT expects to find trained in an adapter for a task."""


class _Encoder:
    """What the three encoders add to PEFT's: the weights behind the virtual tokens survive in a checkpoint."""

    @property
    def reparameterized(self) -> bool:
        """Whether the virtual tokens are computed from other weights."""
        return hasattr(self, "transform") or hasattr(self, "mlp_head")

    def read(self) -> Tensor:
        """The virtual tokens (tokens, width)."""
        weight: Tensor = self.embedding.weight  # type: ignore[attr-defined]
        if not self.reparameterized:
            return weight
        tokens: Tensor = self(torch.arange(len(weight), device=weight.device)[None])  # type: ignore[operator]
        return tokens[0]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def finished(self) -> Tensor:
        """The virtual tokens as evaluation reads them: without dropout, by the kernels that keep no gradients."""
        training = self.training  # type: ignore[attr-defined]
        tokens = self.eval().read().cpu()  # type: ignore[attr-defined]
        self.train(training)  # type: ignore[attr-defined]
        return tokens.clone()

    @classmethod
    def _get_adapter_state_dict(
        cls, model: PreTrainedModel, config: PeftConfig, adapter_name: str, **others: object
    ) -> dict[str, Tensor]:
        encoder = model.prompt_encoder[adapter_name]
        state = {"prompt_embeddings": encoder.finished()}
        if encoder.reparameterized and model.keeps_reparameterization:
            state |= {KEPT + name: weight for name, weight in encoder.state_dict().items()}
        return state

    def _load_adapter_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        if not self.reparameterized:
            own = {"embedding.weight": state_dict["prompt_embeddings"]}
        elif not (
            own := {name.removeprefix(KEPT): weight for name, weight in state_dict.items() if name.startswith(KEPT)}
        ):
            raise ValueError("the adapter is finished: the reparameterization was dropped, so it cannot be trained on")
        self.load_state_dict(own)  # type: ignore[attr-defined]


class _PrefixEncoder(_Encoder, PrefixEncoder):  # type: ignore[misc]
    """(tokens, layers * 2 * width): keys and values by layer, as PEFT lays them out."""

    def __init__(self, config: PeftConfig) -> None:
        super().__init__(config)
        self.prefix_projection = hasattr(
            self, "transform"
        )  # PEFT's keeps it in a finished adapter, which has no more MLP


class _PromptEmbedding(_Encoder, PromptEmbedding):  # type: ignore[misc]
    """(tokens, width)."""


class _PromptEncoder(_Encoder, PromptEncoder):  # type: ignore[misc]
    """(tokens, width), through an MLP or an LSTM."""


class _Config:
    """A PEFT config under a name of ours; the task leads `PeftModel.from_pretrained` to VirtualTokensModel."""

    plain = ""

    def __post_init__(self) -> None:
        self.task_type = None
        super().__post_init__()  # type: ignore[misc]
        self.peft_type, self.task_type = TYPES[self.plain], TASK


class FineryPrefixTuningConfig(_Config, PrefixTuningConfig):  # type: ignore[misc]
    """Prefix tuning. Li and Liang 2021, arxiv.org/abs/2101.00190."""

    plain = "PREFIX_TUNING"


class FineryPromptTuningConfig(_Config, PromptTuningConfig):  # type: ignore[misc]
    """Prompt tuning. Lester et al. 2021, arxiv.org/abs/2104.08691."""

    plain = "PROMPT_TUNING"


class FineryPTuningConfig(_Config, PromptEncoderConfig):  # type: ignore[misc]
    """P-tuning. Liu et al. 2021, arxiv.org/abs/2103.10385."""

    plain = "P_TUNING"


CONFIGS: dict[str, type[PeftConfig]] = {
    each.plain: each for each in (FineryPrefixTuningConfig, FineryPromptTuningConfig, FineryPTuningConfig)
}
ENCODERS: dict[str, type[nn.Module]] = dict(
    zip(CONFIGS, (_PrefixEncoder, _PromptEmbedding, _PromptEncoder), strict=True)
)


class _PrefixLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values (heads, tokens, head_dim) that precede those of every text, and are never added to."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return before(self.keys, key_states), before(self.values, value_states)


def before(prefix: Tensor, states: Tensor) -> Tensor:
    """The prefix (heads, tokens, head_dim) before the states (batch, heads, key, head_dim) of each text."""
    return torch.cat([prefix.to(states).expand(len(states), -1, -1, -1), states], dim=-2)


class VirtualTokensModel(PeftModel):  # type: ignore[misc]
    """A PEFT model whose virtual tokens join and leave inside the body of the base."""

    _adapters_disabled: bool

    def __init__(
        self, model: PreTrainedModel, peft_config: PeftConfig, adapter_name: str = "default", **keywords: Any
    ) -> None:
        self.__dict__.update(_ahead=0, _length=0, keeps_reparameterization=True, _hooked=False, _past=None)
        self.__dict__["_adapters_disabled"] = False
        super().__init__(model, peft_config, adapter_name, **keywords)
        if getattr(peft_config, "base_model_name_or_path", None) is None:
            peft_config.base_model_name_or_path = getattr(model, "name_or_path", None) or None

    @classmethod
    def from_pretrained(
        cls,
        model: PreTrainedModel,
        model_id: str,
        adapter_name: str = "default",
        is_trainable: bool = False,
        **keywords: Any,
    ) -> Any:
        """The adapter of a folder on its base; a plain PEFT adapter of these methods too. Arguments are PeftModel's."""
        config = keywords.pop("config", None) or opened_config(model_id, not is_trainable)
        tuned = cls(model, config, adapter_name)
        tuned.load_adapter(model_id, adapter_name, is_trainable=is_trainable, **keywords)
        return tuned

    # The weights: which there are, which learn, how they are saved.

    @property
    def virtual_tokens(self) -> int:
        """How many positions of the model the active adapter takes from a text."""
        config = self.peft_config[self.active_adapter]
        return 0 if self._in_attention(config) else int(config.num_virtual_tokens)

    def add_adapter(self, adapter_name: str, peft_config: PeftConfig, *args: object, **keywords: object) -> None:
        """A further adapter of the same method; `set_adapter` switches to it."""
        if not isinstance(peft_config, _Config):
            peft_config = CONFIGS[str(getattr(peft_config.peft_type, "value", peft_config.peft_type))](
                **_settings(peft_config.to_dict())
            )
        _fill_sizes(self.base_model, peft_config)
        super().add_adapter(adapter_name, peft_config, *args, **keywords)
        self.set_requires_grad(self.active_adapter, not self.peft_config[self.active_adapter].inference_mode)

    def _setup_prompt_encoder(self, adapter_name: str) -> None:
        """PEFT guesses the word embeddings and refuses gradient checkpointing; neither is needed here."""
        config = self.peft_config[adapter_name]
        if not hasattr(self, "prompt_encoder"):
            self.prompt_encoder = nn.ModuleDict()
            self.prompt_tokens: dict[str, Tensor] = {}
            self.base_model.requires_grad_(False)
        words = reading_stack(self.base_model).get_input_embeddings()
        encoder = ENCODERS[config.plain]
        made = encoder(config, words) if encoder is _PromptEmbedding else encoder(config)
        self.prompt_encoder[adapter_name] = made.to(self.device)
        self.prompt_tokens[adapter_name] = torch.arange(config.num_virtual_tokens)
        if not self._hooked:
            self.__dict__["_hooked"] = True
            self._place_hooks()

    def set_adapter(self, adapter_name: str, inference_mode: bool = False) -> None:
        """Make an adapter the active one; it alone learns from now on."""
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        self.set_requires_grad(adapter_name, not inference_mode)

    def set_requires_grad(self, adapter_names: str | list[str], requires_grad: bool = True) -> None:
        """The virtual tokens of all adapters but these stand still."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        for name, encoder in self.prompt_encoder.items():
            encoder.requires_grad_(requires_grad and name in names)

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """The base as it was, its own head included."""
        was, wrappers = (
            self._adapters_disabled,
            [each for each in self.base_model.modules() if isinstance(each, ModulesToSaveWrapper)],
        )
        learning = [weight for weight in self.parameters() if weight.requires_grad]
        for wrapper in wrappers:
            wrapper.enable_adapters(False)
        self._adapters_disabled = True
        try:
            yield
        finally:
            self._adapters_disabled = was
            for wrapper in wrappers:
                wrapper.enable_adapters(not was)
            for weight in self.base_model.parameters():
                weight.requires_grad_(False)
            for weight in learning:
                weight.requires_grad_(True)

    def unload(self) -> PreTrainedModel:
        """The base, as it was before the adapter."""
        for handle in self.__dict__.pop("_handles", []):
            handle.remove()
        for module in self.base_model.modules():
            module.__dict__.pop("_virtual_prefix", None)
            if (config := module.__dict__.pop("_own_config", None)) is not None:
                module.config = config
        for name, module in list(self.base_model.named_modules()):
            if isinstance(module, ModulesToSaveWrapper):
                parent, _, last = name.rpartition(".")
                setattr(self.base_model.get_submodule(parent), last, module.original_module)
        return self.base_model

    def merge_and_unload(self, *args: object, **keywords: object) -> Any:
        """Raises ValueError: what precedes a text is in no weight of the base."""
        raise ValueError(
            "virtual tokens cannot be merged into the weights of a model; keep the adapter beside its base"
        )

    def get_prompt_embedding_to_save(self, adapter_name: str) -> Tensor:
        """The virtual tokens as they are saved: (tokens, width)."""
        tokens: Tensor = self.prompt_encoder[adapter_name].finished()
        return tokens

    def save_pretrained(
        self, save_directory: str, *args: object, reparameterization: bool = True, **keywords: Any
    ) -> None:
        """As PeftModel's. Without `reparameterization` only the virtual tokens are kept: training cannot go on.

        Section 4.3 of prefix tuning: once training is complete, these parameters can be dropped.
        """
        self.keeps_reparameterization = reparameterization
        super().save_pretrained(str(save_directory), *args, **keywords)
        for name in keywords.get("selected_adapters") or self.peft_config:
            folder = Path(save_directory) / ("" if name == "default" else name)
            path, task = folder / "adapter_config.json", self.peft_task(name)
            if not path.exists():  # another process writes it
                continue
            config = json.loads(path.read_text())
            config |= (
                {"task_type": None} if task is None else {"peft_type": self.peft_config[name].plain, "task_type": task}
            )
            path.write_text(json.dumps(config, indent=2, sort_keys=True))
            if task is None:
                shutil.copyfile(__file__, folder / FILE)

    def load_adapter(
        self, model_id: str | Path, adapter_name: str, is_trainable: bool = False, **keywords: object
    ) -> Any:
        """As PeftModel's, but what was saved while training can be trained on."""
        if adapter_name not in self.peft_config:
            config = opened_config(model_id, not is_trainable)
            self.add_adapter(adapter_name, config)
        return super().load_adapter(model_id, adapter_name, is_trainable=is_trainable, **keywords)

    def peft_task(self, adapter_name: str = "default") -> str | None:
        """The task under which PEFT's own classes compute what this model does; None where none of them does."""
        config, base = self.peft_config[adapter_name], self.base_model
        task = next((task for end, task in PEFT_TASKS.items() if type(base).__name__.endswith(end)), None)
        alike = (
            ("SEQ_2_SEQ_LM",)
            if config.plain != "PREFIX_TUNING"
            else ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "CAUSAL_LM")
        )
        across = bool(getattr(base.config, "is_encoder_decoder", False))
        if task not in alike or self._in_attention(config) or across != (task == "SEQ_2_SEQ_LM"):
            return None
        saved = tuple(config.modules_to_save or ())
        names = [
            name
            for name, _ in base.named_modules()
            if ".modules_to_save" not in name and ".original_module" not in name
        ]
        heads = [name for name in names if name.endswith(PEFT_HEADS.get(str(task), ("\0",)))]
        return task if all(name in saved for name in heads) else None

    # The pass: where virtual tokens join and leave.

    def forward(self, *args: object, **keywords: object) -> Any:
        """The pass of the base; what this class does happens inside it."""
        return self.base_model(*args, **keywords)

    def generate(self, *args: object, **keywords: object) -> Any:
        """As the base's."""
        return self.base_model.generate(*args, **keywords)

    def _in_attention(self, config: PeftConfig) -> bool:
        return config.plain == "PREFIX_TUNING" and getattr(self.base_model.config, "model_type", "") in INSIDE_ATTENTION

    @property
    def _active(self) -> Any:
        """The config of the adapter in use; None while it is disabled."""
        return None if self._adapters_disabled or not self.active_adapter else self.peft_config.get(self.active_adapter)

    def _place_hooks(self) -> None:
        config = next(iter(self.peft_config.values()))
        stack = decoding_stack(self.base_model) if config.plain == "PREFIX_TUNING" else reading_stack(self.base_model)
        self.__dict__["_handles"] = handles = []
        if self._in_attention(config):
            _refuse_odd_attention(self.base_model)
            for index, module in enumerate(attentions(self.base_model)):
                module.__dict__["_virtual_prefix"] = partial(self._prefix_at, index)
                module.__dict__["_own_config"], module.config = module.config, copy.copy(module.config)
                module.config._attn_implementation = _WITH_PREFIX
            return
        handles += [
            stack.register_forward_pre_hook(self._join, with_kwargs=True),
            stack.register_forward_hook(self._leave),
        ]
        pooler = getattr(stack, "pooler", None)
        if isinstance(pooler, nn.Linear):  # ALBERT's is given one vector, cut out of the encoder's result
            handles.append(stack.encoder.register_forward_hook(self._leave))
        elif isinstance(pooler, nn.Module):
            handles.append(pooler.register_forward_pre_hook(self._before_pooler))
        if config.plain == "PREFIX_TUNING":
            handles += [
                each.register_forward_pre_hook(self._remember, with_kwargs=True) for each in attentions(self.base_model)
            ]
        elif (
            getattr(self.base_model.config, "is_encoder_decoder", False)
            and (decoder := decoding_stack(self.base_model)) is not stack
        ):
            handles.append(decoder.register_forward_pre_hook(self._show_prompt, with_kwargs=True))

    def _join(self, stack: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Put the virtual tokens before what the stack is about to read."""
        self._ahead, self._past, config = 0, None, self._active
        if config is None:
            return None
        call = _named(stack, args, keywords)
        tokens = config.num_virtual_tokens
        past = call.get("past_key_values")
        if isinstance(past, Cache) and past.is_compileable:
            raise ValueError("virtual tokens cannot be put before a static cache: leave cache_implementation out")
        for name in ("perm_mask", "target_mapping", "head_mask"):
            if call.get(name) is not None:
                raise ValueError(f"a model with virtual tokens takes no {name}")
        first = not isinstance(past, Cache) or past.get_seq_length() == 0
        self._widen(call, tokens, first and config.plain != "PREFIX_TUNING")
        if config.plain == "PREFIX_TUNING":
            self._lay_past(stack, call, first)
        elif first:
            given = call.pop("inputs_embeds", None)
            words = stack.get_input_embeddings()(call.pop("input_ids", None)) if given is None else given
            prompt = self.prompt_encoder[self.active_adapter].read().to(words)
            call["inputs_embeds"] = torch.cat([prompt.expand(len(words), -1, -1), words], dim=1)
            call.pop("input_ids", None)
            self._ahead, self._length = tokens, tokens + words.shape[1]
        return (), call

    def _widen(self, call: dict[str, Any], tokens: int, first: bool) -> None:
        """Make room in what describes each place of the text: its mask, position and segment."""
        mask, places, segments = call.get("attention_mask"), call.get("position_ids"), call.get("token_type_ids")
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.ndim != 2:
                raise ValueError("a model with virtual tokens takes an attention_mask of shape (batch, length) only")
            call["attention_mask"] = torch.cat([mask.new_ones(len(mask), tokens), mask], dim=1)
        if places is not None:
            ahead = torch.arange(tokens, device=places.device).expand(len(places), -1)
            call["position_ids"] = torch.cat([ahead, places + tokens], dim=1) if first else places + tokens
        if segments is not None and first:
            call["token_type_ids"] = torch.cat([segments.new_zeros(len(segments), tokens), segments], dim=1)
        if call.get("prefix_length") is not None:
            call["prefix_length"] = call["prefix_length"] + tokens if first else call["prefix_length"]

    def _lay_past(self, stack: nn.Module, call: dict[str, Any], first: bool) -> None:
        """Give the stack the prefix as its past: in the caller's cache, else in one that takes nothing in."""
        layers, past = self.prefix(), call.get("past_key_values")
        across = bool(getattr(self.base_model.config, "is_encoder_decoder", False))
        if past is None and call.get("use_cache") and not stack.training:
            past = DynamicCache(config=stack.config)
            past = call["past_key_values"] = (
                EncoderDecoderCache(past, DynamicCache(config=stack.config)) if across else past
            )
        if past is not None:
            text: Any = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
            cache = past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past
            for index, (keys, values) in enumerate(layers if first else ()):
                each = (
                    states.to(self._dtype_of_past()).expand(len(text), -1, -1, -1).contiguous()
                    for states in (keys, values)
                )
                cache.update(*each, index)
            return
        if stack.training and any(_reentrant(module) for module in stack.modules()):
            raise ValueError(
                "a prefix cannot be trained with gradient_checkpointing_kwargs {use_reentrant: true}: leave it out"
            )
        self._past = Cache(layers=[_PrefixLayer(keys, values) for keys, values in layers])
        call["past_key_values"] = (
            EncoderDecoderCache(self._past, DynamicCache(config=stack.config)) if across else self._past
        )
        if "use_cache" in inspect.signature(stack.forward).parameters:
            call["use_cache"] = False

    def _dtype_of_past(self) -> torch.dtype:
        kind = self.base_model.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.base_model.dtype

    def prefix(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values (heads, tokens, head_dim) of each layer, in PEFT's order."""
        config = self.peft_config[self.active_adapter]
        heads = config.num_attention_heads
        tokens = self.prompt_encoder[self.active_adapter].read()
        parts = tokens.view(config.num_virtual_tokens, config.num_layers, 2, heads, config.token_dim // heads).permute(
            1, 2, 3, 0, 4
        )
        return [(each[0], each[1]) for each in parts]

    def _prefix_at(self, index: int) -> tuple[Tensor, Tensor] | None:
        return None if self._active is None else self.prefix()[index]

    def _remember(self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Gradient checkpointing takes the past from the layers: a cache would grow when they are recomputed."""
        name = _past(module)
        if self._active is None or self._past is None or keywords.get(name) is not None:
            return None
        if any(keywords.get(name) is not None for name in ("key_value_states", "encoder_hidden_states")):
            return None
        return args, {**keywords, name: self._past}

    def _show_prompt(self, decoder: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What was encoded begins with the prompt, so the decoder's mask of it does too."""
        if (config := self._active) is None:
            return None
        call = _named(decoder, args, keywords)
        mask, states = call.get("encoder_attention_mask"), call.get("encoder_hidden_states")
        if mask is not None and states is not None and states.shape[1] == mask.shape[1] + config.num_virtual_tokens:
            call["encoder_attention_mask"] = torch.cat(
                [mask.new_ones(len(mask), config.num_virtual_tokens), mask], dim=1
            )
        return (), call

    def _leave(self, stack: nn.Module, args: Any, output: Any) -> Any:
        """Take the virtual tokens out of what the stack hands on."""
        if self._past is not None and isinstance(
            output, ModelOutput
        ):  # nobody can continue from a past that keeps nothing
            output = type(output)(**{name: value for name, value in output.items() if name != "past_key_values"})
        if getattr(self.base_model.config, "is_encoder_decoder", False) or self._ahead == 0:
            return output  # the decoder attends to an encoder's prompt as to the text
        if isinstance(output, ModelOutput):
            return type(output)(**{name: self._cut(value) for name, value in output.items()})
        return self._cut(output)

    def _before_pooler(self, pooler: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._without(args[0]), *args[1:])

    def _cut(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self._cut(each) for each in value])
        return self._without(value) if isinstance(value, Tensor) else value

    def _without(self, states: Tensor) -> Tensor:
        """States (batch, length, dim), or weights (batch, heads, query, key), of the text alone.

        States are copied: torch multiplies a view by weights that learn in another order than by frozen ones, and a
        head would answer differently in the last digit once it is reloaded.
        """
        if self._ahead == 0 or states.ndim not in (3, 4):
            return states
        if states.ndim == 4:
            return states[:, :, self._ahead :, self._ahead :] if states.shape[2] == self._length else states
        return states[:, self._ahead :].contiguous() if states.shape[1] == self._length else states


def reading_stack(model: PreTrainedModel) -> nn.Module:
    """The module that reads a text: the encoder of an encoder-decoder, else the body."""
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model.base_model


def decoding_stack(model: PreTrainedModel) -> nn.Module:
    """The module whose layers a prefix precedes: the decoder of an encoder-decoder, else the body."""
    return model.get_decoder() if getattr(model.config, "is_encoder_decoder", False) else model.base_model


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    """The self-attentions that a prefix precedes, by layer. Empty where the model has no place for one."""
    inside = INSIDE_ATTENTION.get(getattr(model.config, "model_type", ""))
    if inside is not None:
        return [module for module in model.modules() if type(module).__name__ == inside]
    stack = decoding_stack(model)
    if "past_key_values" not in _parameters(stack):
        return []
    modules = [
        module
        for name, module in stack.named_modules()
        if _layer(module) is not None
        and _past(module)
        and module is not stack
        and not any(word in f"{name} {type(module).__name__}".lower() for word in NO_ATTENTION)
    ]
    inner = [
        module for module in modules if not any(each in modules for each in module.modules() if each is not module)
    ]
    # Where some layers have another kind of memory, layers and attentions are not counted alike.
    return inner if [_layer(module) for module in inner] == list(range(len(inner))) else []


def _layer(module: nn.Module) -> int | None:
    return getattr(module, "layer_idx", getattr(module, "layer_id", None))


def _past(module: nn.Module) -> str:
    """What the module calls its past; empty if it takes none."""
    return next((name for name in PAST if name in _parameters(module)), "")


def _parameters(module: nn.Module) -> Any:
    return inspect.signature(module.forward).parameters


def _fill_sizes(model: PreTrainedModel, config: PeftConfig) -> None:
    """The sizes of the virtual tokens, which PEFT would guess from the names in the model's config."""
    config.num_transformer_submodules = 1
    if config.plain != "PREFIX_TUNING":
        if config.token_dim is None:
            config.token_dim = reading_stack(model).get_input_embeddings().weight.shape[1]
        config.num_layers = config.num_layers or 1
        config.num_attention_heads = config.num_attention_heads or 1
    elif config.token_dim is None:
        text_config = decoding_stack(model).config.get_text_config()
        heads = getattr(text_config, "decoder_attention_heads", None) or text_config.num_attention_heads
        head_dim = (
            getattr(text_config, "head_dim", None)
            or getattr(text_config, "d_kv", None)
            or text_config.hidden_size // heads
        )
        config.num_attention_heads = getattr(text_config, "num_key_value_heads", None) or heads
        config.token_dim = config.num_attention_heads * head_dim
        config.num_layers = len(_distinct(attentions(model)))
    config.encoder_hidden_size = getattr(config, "encoder_hidden_size", None) or config.token_dim


def _distinct(modules: list[nn.Module]) -> list[nn.Module]:
    return list(dict.fromkeys(modules))


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("peft_type", "task_type", "auto_mapping")}


def opened_config(folder: str | Path, inference_mode: bool) -> PeftConfig:
    """The config of a saved adapter, plain or ours. Raises ValueError for another method."""
    settings = PeftConfig.from_json_file(str(Path(folder) / "adapter_config.json"))
    plain = {own: name for name, own in TYPES.items()}.get(settings["peft_type"], settings["peft_type"])
    if plain not in CONFIGS:
        raise ValueError(f"'{folder}' holds an adapter of type {settings['peft_type']}, which has no virtual tokens")
    config = CONFIGS[plain](**_settings(settings))
    config.inference_mode = inference_mode
    return config


def opener(peft_type: str) -> type[PeftModel]:
    """The class whose `from_pretrained` opens adapters of this `peft_type` so that every head is served."""
    return VirtualTokensModel if peft_type in TYPES or peft_type in TYPES.values() else PeftModel


def _named(stack: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    call = inspect.signature(stack.forward).bind_partial(*args, **keywords)
    variable = [each.name for each in call.signature.parameters.values() if each.kind is each.VAR_KEYWORD]
    named = dict(call.arguments)
    for name in variable:
        named |= named.pop(name, {})
    return named


def _reentrant(module: nn.Module) -> bool:
    if not getattr(module, "gradient_checkpointing", False):
        return False
    return bool(getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {}).get("use_reentrant"))


_WITH_PREFIX = "finery_with_prefix"


def _refuse_odd_attention(model: PreTrainedModel) -> None:
    kernel = model.config._attn_implementation
    if kernel not in (None, "eager", "sdpa"):
        raise ValueError(
            f"a prefix inside {model.config.model_type}'s attention needs attn_implementation eager or sdpa, "
            f"not {kernel}"
        )


def _attend_with_prefix(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **keywords: Any
) -> Any:
    """The attention of the module's own choice, with a prefix that every token sees before the keys and values."""
    own = module.__dict__["_own_config"]
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(
        own._attn_implementation, sys.modules[type(module).__module__].eager_attention_forward
    )
    if (prefix := module.__dict__["_virtual_prefix"]()) is not None:
        key, value = before(prefix[0], key), before(prefix[1], value)
        if attention_mask is not None:
            seen = attention_mask.new_ones if attention_mask.dtype == torch.bool else attention_mask.new_zeros
            attention_mask = torch.cat([seen(*attention_mask.shape[:-1], prefix[0].shape[-2]), attention_mask], dim=-1)
    return attend(module, query, key, value, attention_mask, **keywords)


def register(replace: bool = True) -> None:
    """Teach PEFT the types. `register_peft_method` takes names of its own enum only: its tables are written to."""
    if not replace and TASK in MODEL_TYPE_TO_PEFT_MODEL_MAPPING:
        return
    ALL_ATTENTION_FUNCTIONS.register(_WITH_PREFIX, _attend_with_prefix)
    MODEL_TYPE_TO_PEFT_MODEL_MAPPING[TASK] = VirtualTokensModel
    for plain, config in CONFIGS.items():
        own = TYPES[plain]
        peft_mapping.PEFT_TYPE_TO_CONFIG_MAPPING[own] = config
        peft_mapping.PEFT_TYPE_TO_TUNER_MAPPING[own] = ENCODERS[plain]
        peft_mapping.PEFT_TYPE_TO_PREFIX_MAPPING[own] = own.lower()


register(replace=False)  # a copy that was imported before stays
