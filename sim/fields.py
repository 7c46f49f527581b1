"""Reading a config.json: each field is asked for, and none is overlooked."""

from collections.abc import Mapping
from typing import Any

from bitgate.records.errors import UsageError

# Fields that change neither which operators run nor their sizes.
# Far above any model; it stops a slip of the pen from becoming hours of work.
_MOST = 1 << 24

_WITHOUT_EFFECT = frozenset(
    {
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "eos_token_id",
        "ep_size",
        "initializer_range",
        "max_window_layers",  # counts only with a sliding window, which is refused
        "model_type",
        "n_group",
        "norm_topk_prob",
        "num_nextn_predict_layers",  # heads for speculation, which is not simulated
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "routed_scaling_factor",
        "router_aux_loss_coef",
        "scoring_func",
        "topk_group",
        "topk_method",
        "transformers_version",
        "use_cache",
    }
)


class Fields:
    """The fields of one file. What nobody asked for is refused at the end."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = values
        self._asked: set[str] = set()

    def whole(self, *names: str, least: int = 1) -> int:
        """The whole number in the field that has one of these names.

        Raises:
            UsageError: no such field, two that disagree, or no whole number of at least `least`.
        """
        return self._whole(names[0], self._one_of(names), least)

    def whole_or(self, name: str, default: int, least: int = 1) -> int:
        """The whole number in a field that the architecture allows to leave out, or null."""
        self._asked.add(name)
        value = self._values.get(name)
        return default if value is None else self._whole(name, value, least)

    def flag(self, name: str) -> bool:
        """A field that holds true or false."""
        value = self._one_of((name,))
        if type(value) is not bool:
            raise UsageError(f"{self.where}: {name}: expected true or false, got {value!r}")
        return value

    def word(self, *names: str, allowed: tuple[str, ...]) -> str:
        """A field that holds one of the allowed words."""
        value = self._one_of(names)
        if value not in allowed:
            raise UsageError(
                f"{self.where}: {names[0]}: expected one of {', '.join(allowed)}, got {value!r}"
            )
        return str(value)

    def names(self, name: str, *, count: int) -> tuple[str, ...]:
        """A field that holds a list of so many texts."""
        value = self._one_of((name,))
        if not isinstance(value, list) or len(value) != count or {*map(type, value)} != {str}:
            raise UsageError(f"{self.where}: {name}: expected {count} name(s), got {value!r}")
        return tuple(value)

    def wholes(self, name: str) -> frozenset[int]:
        """A field that holds a list of whole numbers, possibly none."""
        value = self._one_of((name,))
        if not isinstance(value, list):
            raise UsageError(f"{self.where}: {name}: expected a list, got {value!r}")
        return frozenset(self._whole(name, item, 0) for item in value)

    def given(self, name: str, values: tuple[object, ...]) -> bool:
        """Whether an optional field holds one of the values."""
        self._asked.add(name)
        return name in self._values and self._values[name] in values

    def only(self, name: str, allowed: tuple[object, ...], *, why: str) -> None:
        """Refuse a field whose value asks for what cannot be priced; it may be absent or null."""
        if name in self._values and not self.given(name, (None, *allowed)):
            wanted = " or ".join(map(repr, (*allowed, None)))
            raise UsageError(
                f"{self.where}: {name}: expected {wanted}, got {self._values[name]!r:.60}: {why}"
            )
        self._asked.add(name)

    def ignore(self, name: str) -> None:
        """An optional field that another one has switched off."""
        self._asked.add(name)

    def refuse_unknown(self) -> None:
        """Raise UsageError for a field that nobody asked for: it may change what is computed."""
        unknown = sorted(set(self._values) - self._asked - _WITHOUT_EFFECT)
        if unknown:
            raise UsageError(
                f"{self.where}: unknown field(s) {', '.join(unknown)}: they may change what is "
                "computed. Take them out of a copy if they do not"
            )

    def _one_of(self, names: tuple[str, ...]) -> Any:
        self._asked.update(names)
        found = {name: self._values[name] for name in names if name in self._values}
        if not found:
            raise UsageError(f"{self.where}: the field {' or '.join(names)} is missing")
        first = next(iter(found.values()))
        if any(value != first for value in found.values()):
            raise UsageError(f"{self.where}: {' and '.join(found)} disagree: {found}")
        return first

    def _whole(self, name: str, value: object, least: int) -> int:
        if type(value) is not int or not least <= value <= _MOST:
            raise UsageError(
                f"{self.where}: {name}: expected a whole number from {least} to {_MOST}, got "
                f"{value!r:.60}"
            )
        return value
