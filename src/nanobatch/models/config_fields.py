"""Reads fields of a model's configuration with their types checked.

Knows no field by name. Every complaint is a `ModelError` that names model, field and value.
"""

from collections.abc import Mapping

from nanobatch.errors import ModelError


class ConfigFields:
    """A parsed `config.json`, or a table inside one."""

    def __init__(self, values: Mapping[str, object], *, model_name: str) -> None:
        """Wrap parsed values; `model_name` begins every error message."""
        self._values = values
        self.model_name = model_name

    def get(self, key: str, default: object = None) -> object:
        """Return a field of any type; null counts as absent."""
        value = self._values.get(key)
        return default if value is None else value

    def table(self, key: str) -> "ConfigFields":
        """Return a nested table, empty where absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self._type_error(key, value, "a table")
        return ConfigFields(value, model_name=self.model_name)

    def has_table_inside(self) -> bool:
        """Return whether any field is itself a table."""
        return any(isinstance(value, dict) for value in self._values.values())

    def is_empty(self) -> bool:
        """Return whether there are no fields."""
        return not self._values

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; a field without default must be there."""
        value = self.get(key, default)
        if value is None:
            raise self.error(f"config.json has no {key}")
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._type_error(key, value, "a whole number")
        return value

    def positive_integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self.integer(key, default)
        if value < 1:
            raise self.error(f"{key} is {value}; it must be at least 1")
        return value

    def optional_positive_integer(self, key: str, default: int | None) -> int | None:
        """Return a whole number of at least 1; null means None, an absent field the default."""
        if key in self._values and self._values[key] is None:
            return None
        return default if key not in self._values else self.positive_integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; a field without default must be there."""
        value = self.optional_number(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"config.json has no {key}")
        return value

    def optional_number(self, key: str) -> float | None:
        """Return a number, or None where absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._type_error(key, value, "a number")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._type_error(key, value, "true or false")
        return value

    def error(self, message: str, *, hint: str | None = None) -> ModelError:
        """Return an error that begins with the model's name."""
        return ModelError(f"{self.model_name}: {message}", hint=hint)

    def _type_error(self, key: str, value: object, expected: str) -> ModelError:
        return self.error(f"{key} is {value!r}; it must be {expected}")
