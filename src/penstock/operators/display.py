"""How an operator shows itself to people: a name and a few facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DisplayableOperator:
    """What `explain`, the console and error messages print about an operator."""

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.name}({facts})"
