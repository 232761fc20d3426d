"""The head that gives a text one number: our family's own class, and everywhere else a classifier with one output."""

from __future__ import annotations

from typing import Any

WHERE = ("revision", "trust_remote_code", "code_revision")
"""What Auto classes are told about where a checkpoint and its code lie."""


class RewardHead:
    """Stands where transformers has an Auto class, which it has not for rewards: TRL and others use the same classifier."""

    @staticmethod
    def from_config(config: Any, **keywords: Any) -> Any:
        """A model with random weights."""
        if config.model_type == "finery":
            return _ours()._from_config(config, **_plain(keywords))
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_config(config, **keywords)

    @staticmethod
    def from_pretrained(source: str, **keywords: Any) -> Any:
        """The model in a folder or on the Hub."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        where = {key: keywords[key] for key in WHERE if key in keywords}
        config = AutoConfig.from_pretrained(source, **where)
        if config.model_type == "finery":
            return _ours().from_pretrained(source, **_plain(keywords))
        return AutoModelForSequenceClassification.from_pretrained(source, **keywords)


def _plain(keywords: dict[str, Any]) -> dict[str, Any]:
    """What the class itself takes: whose code it is was decided already."""
    return {key: value for key, value in keywords.items() if key not in WHERE[1:]}


def _ours() -> Any:
    from pipelines.architectures.modeling_finery_decisions import FineryForReward

    return FineryForReward
