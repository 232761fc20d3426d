"""Settings of a method that stand among a stage's `arguments`, under the names that TRL gives them.

A stage writes its table once: `SETTINGS = {"beta": Setting(Argument("float", at_least=0), 0.1)}`, annotates its field with
`BeforeValidator(checked_with(SETTINGS))`, and takes them out again with `split` before TrainingArguments are built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipelines.blocks import show
from pipelines.fields.arguments import Argument
from pipelines.trainers.arguments import checked


class Setting(NamedTuple):
    """What one setting accepts, and what it is when nothing is said."""

    argument: Argument
    default: Any
    listed: bool = False
    """Whether a list of such values may stand instead of one."""

    def misfit(self, value: object) -> str | None:
        """The sentence for a value that is not accepted, or None."""
        if not self.listed or not isinstance(value, list | tuple):
            return self.argument.misfit(value)
        if not value:
            return f"is {show(value)}, must have at least one entry"
        return next((f"has an entry that {wrong}" for each in value if (wrong := self.argument.misfit(each))), None)


def checked_with(table: Mapping[str, Setting]) -> Callable[[Any], Any]:
    """Validator of an `arguments` mapping that may also name the settings in `table`."""

    def validate(value: Any) -> Any:
        return checked(value, table)

    return validate


def split(arguments: Mapping[str, Any], table: Mapping[str, Setting]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(every setting of `table`, its default where `arguments` says nothing; the rest, names of TrainingArguments)."""
    own = {name: arguments.get(name, setting.default) for name, setting in table.items()}
    return own, {name: value for name, value in arguments.items() if name not in table}
