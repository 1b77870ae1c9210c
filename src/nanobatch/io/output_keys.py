"""What pass-through keys are called in a line of JSON: their own names, or the next free one.

Knows names; not values or shapes. A column that an input declares, or that a job's first rows
have, was named before anything is written (`nanobatch.io.columns`); other keys are named as they
come. Keys may be made of data, so only so many are remembered.
"""

from collections.abc import Iterable, Mapping

from nanobatch.io.column_typer import MAX_COLUMNS
from nanobatch.io.columns import CLASH_PREFIX, OutputColumns, free_name, names_without_clash
from nanobatch.io.output_json import json_piece


class OutputKeys:
    """Names of an output's pass-through keys.

    Args:
        columns: Which keys pass, and which are known from the start.
        own: Keys that the shape of the line takes for itself.
    """

    def __init__(self, columns: OutputColumns, own: Iterable[str]) -> None:
        self._columns = columns
        self._taken = set(own)
        names = names_without_clash(columns.passthrough.names, self._taken)
        self._taken.update(names.values())
        self._renamed: dict[str, str] = {key: name for key, name in names.items() if key != name}
        self._unchanged = names.keys() - self._renamed.keys()

    def tail(self, passthrough: Mapping[str, object]) -> str:
        """Return pass-through values as the end of a JSON object that has members already."""
        if not passthrough:
            return "}"
        if not self._unchanged.issuperset(passthrough):
            passthrough = self._named(passthrough)
        return f",{json_piece(passthrough)[1:]}" if passthrough else "}"

    def _named(self, passthrough: Mapping[str, object]) -> dict[str, object]:
        return {
            self._name(key): value
            for key, value in passthrough.items()
            if self._columns.is_selected(key)
        }

    def _name(self, key: str) -> str:
        if key in self._renamed:
            return self._renamed[key]
        if key in self._unchanged:
            return key
        if key not in self._taken:
            # A later clash must not take a name that a key has had.
            if key.startswith(CLASH_PREFIX):
                self._taken.add(key)
                self._unchanged.add(key)
            elif len(self._unchanged) < MAX_COLUMNS:
                self._unchanged.add(key)
            return key
        name = free_name(key, self._taken)
        self._renamed[key] = name
        self._taken.add(name)
        return name
