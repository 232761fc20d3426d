"""What a recipe may say about LoRA: the names of PEFT's `LoraConfig`. Removed in phase 2."""

from __future__ import annotations

KINDS: dict[str, str] = {
    "r": "int",
    "lora_alpha": "float",
    "lora_dropout": "float",
    "target_modules": "str|list|null",
    "exclude_modules": "str|list|null",
    "modules_to_save": "list|null",
    "bias": "=all|=lora_only|=none",
    "use_rslora": "bool",
    "use_dora": "bool",
    "init_lora_weights": "=gaussian|=olora|=orthogonal|=pissa|bool",
    "rank_pattern": "dict|null",
    "alpha_pattern": "dict|null",
    "layers_to_transform": "int|list|null",
    "layers_pattern": "str|list|null",
    "fan_in_fan_out": "bool",
    "lora_bias": "bool",
    "trainable_token_indices": "list|dict|null",
}
"""Names that a recipe may set, with type words of `kinds`. `init_lora_weights` leaves out the ways that need data or
quantized weights: eva, corda, loftq, mica, lora_ga."""

OWN: dict[str, str] = {"lora_plus_ratio": "float|null"}
"""Names that are no part of an adapter, but of how it learns."""

LEFT_OUT: dict[str, str] = {
    "task_type": "is decided by the head",
    "peft_type": "is decided by the tuner",
    "auto_mapping": "is written when the adapter is saved",
    "peft_version": "is written when the adapter is saved",
    "base_model_name_or_path": "is decided by the stage",
    "revision": "is model.revision",
    "inference_mode": "is decided by the stage",
    "megatron_config": "belongs to Megatron",
    "megatron_core": "belongs to Megatron",
    "loftq_config": "belongs to quantized weights",
    "use_qalora": "belongs to quantized weights",
    "qalora_group_size": "belongs to quantized weights",
    "eva_config": "belongs to an initialization from data",
    "corda_config": "belongs to an initialization from data",
    "lora_ga_config": "belongs to an initialization from data",
    "velora_config": "belongs to a variant that is not offered",
    "monteclora_config": "belongs to a variant that is not offered",
    "use_bdlora": "belongs to a variant that is not offered",
    "kasa_config": "belongs to a variant that is not offered",
    "arrow_config": "belongs to a variant that is not offered",
    "alora_invocation_tokens": "belongs to a variant that is not offered",
    "layer_replication": "changes the architecture",
    "runtime_config": "is not part of an adapter",
    "target_parameters": "belongs to mixtures of experts",
    "ensure_weight_tying": "is decided by the model's config",
}
"""The other names of LoraConfig, and why a recipe does not set them."""
