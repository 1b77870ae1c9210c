"""Whether columns that were named on the command line are there, checked before anything is loaded.

Knows names, not rows.
"""

import difflib
from collections.abc import Sequence

from nanobatch.errors import ConfigError
from nanobatch.io.input_source import InputSource
from nanobatch.io.row_params import PARAMETERS
from nanobatch.job_config import RowConfig

_TABLE_PARAMETERS = (*PARAMETERS, "priority")


def require_columns(row_config: RowConfig, sources: Sequence[InputSource]) -> None:
    """Check that inputs which declare their columns have those that were asked for.

    Raises:
        ConfigError: A named column is missing; the hint gives the closest one.
    """
    asked = {
        "--prompt-column": row_config.prompt_column,
        "--messages-column": row_config.messages_column,
        "--id-column": row_config.id_column,
    }
    wanted = [(flag, name) for flag, name in asked.items() if name is not None]
    wanted += [("--param-columns", name) for name in row_config.param_columns]
    for source in sources:
        for flag, name in wanted:
            if source.columns is not None and name not in source.columns:
                close = difflib.get_close_matches(name, source.columns, n=1)
                raise ConfigError(
                    f"{flag} {name}: {source.name} has no such column",
                    hint=f"did you mean {close[0]}?" if close else _list_columns(source.columns),
                )


def require_parameters(param_columns: Sequence[str]) -> None:
    """Check that `--param-columns` names parameters.

    Raises:
        ConfigError: It names something else; the hint gives the closest one.
    """
    for name in param_columns:
        if name not in _TABLE_PARAMETERS:
            close = difflib.get_close_matches(name, _TABLE_PARAMETERS, n=1)
            raise ConfigError(
                f"--param-columns {name}: there is no such parameter",
                hint=f"did you mean {close[0]}?"
                if close
                else f"parameters are {', '.join(_TABLE_PARAMETERS)}",
            )


def _list_columns(columns: Sequence[str]) -> str:
    return f"its columns are {', '.join(columns[:20])}{', …' if len(columns) > 20 else ''}"
