"""From a row of an input to a request for the engine, or to the fault that prevents it.

Knows every shape of row that the contract names (promises 2, 9 and 11), and that a row's fault
is data: `RowParser.parse` does not raise, whatever a row holds. Knows no files, no tokens and
no model beyond the size of its vocabulary.
"""

from collections.abc import Mapping, Sequence

from nanobatch.io.chat_messages import structured
from nanobatch.io.column_checks import require_parameters
from nanobatch.io.csv_fields import typed, typed_flat
from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.parameter_names import BATCH_LINE_NAMES
from nanobatch.io.prompt_template import WHOLE_ROW, PromptTemplate
from nanobatch.io.row_body import BodyReader
from nanobatch.io.row_fault import RowFault, shown
from nanobatch.io.row_names import KnownRows, RowNames
from nanobatch.io.row_params import PARAMETERS
from nanobatch.io.row_shape import (
    CHAT_URL,
    FLAT_NAMES,
    RowShape,
    asks_for_chat,
    id_name,
    id_text,
    other_columns,
    shape_of,
)
from nanobatch.io.shared_columns import MIN_ROWS, SharedColumns, shared_columns
from nanobatch.io.text_lines import TEXT_COLUMN
from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode, Request, RowError, SamplingParams

_ENDPOINT_PROMPTS = {
    CHAT_URL: ("messages",),
    "/v1/completions": ("prompt", "input_ids"),
}


class RowParser:
    """Turns rows into requests. For one thread at a time.

    Args:
        row_config: How rows become requests.
        defaults: Sampling parameters of rows that say nothing.
        vocab_size: Tokens that the model knows; None leaves token ids unchecked.

    Raises:
        ConfigError: The template is not valid, or `param_columns` names no parameter.
    """

    def __init__(
        self, row_config: RowConfig, defaults: SamplingParams, *, vocab_size: int | None = None
    ) -> None:
        require_parameters(row_config.param_columns)
        self._config = row_config
        self._is_table = row_config.is_table
        self._known = KnownRows(row_config)
        self._body = BodyReader(row_config, defaults, vocab_size=vocab_size)
        self._template = (
            None if row_config.template is None else PromptTemplate(row_config.template)
        )

    @property
    def unknown_parameters(self) -> Mapping[str, str]:
        """Body keys that mean nothing to us, each with the location of its first use."""
        return self._body.unknown_parameters

    def parse(self, row: InputRow) -> Request | RowError:
        """Return the row's request, or its fault. Never raises, whatever the row holds."""
        fields = row.fields()
        if isinstance(fields, RowError):
            return fields
        names = self._known.names(row, fields)
        shape = self._shape(row, fields) if names is None else names.shape
        try:
            if row.flaws:
                self._require_sound(row, shape)
            if names is None:
                self._read_id(fields, shape)
            elif names.id is not None:
                id_text(names.id, fields[names.id])
            if shape is RowShape.BATCH_LINE:
                return self._parse_batch_line(row, fields)
            if shape is RowShape.FLAT:
                if row.source.format == "csv":
                    return self._body.read(row, typed_flat(fields), prefix="")
                flat_body = None if names is None else names.flat_body
                return self._body.read(row, fields, prefix="", names=flat_body)
            return self._parse_table_row(row, fields)
        except RowFault as fault:
            return fault.error

    def parse_together(self, rows: Sequence[InputRow]) -> list[Request]:
        """Return the requests of the first rows, as far as they are plain; perhaps of none.

        Plain are flat rows with the same names, of which one is a prompt and none a parameter. They
        cost a third of what `parse` does for each, and are no batch lines, whose ids are unique.
        """
        shared, names = self._alike(rows)
        body = None if names is None else names.flat_body
        if shared is None or names is None or body is None or not body.is_prompt_only:
            return []
        prompts = shared.texts(body.prompt)
        has_good_ids = names.id is None or shared.texts(names.id) is not None
        if prompts is None or "" in prompts or not has_good_ids:
            return []
        return list(map(self._body.request_of_prompt, shared.rows, prompts))

    def is_batch_line(self, row: InputRow) -> bool:
        """Return whether the row is an OpenAI batch line (its body may still be at fault)."""
        fields = row.fields()
        if isinstance(fields, RowError) or fields.get("body") is None:
            return False
        return self._shape(row, fields) is RowShape.BATCH_LINE

    def is_chat(self, row: InputRow) -> bool:
        """Return whether the row asks for a turn of a chat, not for the rest of a text.

        Also said of a row at fault; of one that could not be decoded it is False.
        """
        fields = row.fields()
        return not isinstance(fields, RowError) and asks_for_chat(
            fields, self._shape(row, fields), self._config
        )

    def row_id(self, row: InputRow) -> str | None:
        """Return the row's id as text, or None where it has none that can be one."""
        fields = row.fields()
        if isinstance(fields, RowError):
            return None
        names = self._known.names(row, fields)
        if names is not None:
            value = None if names.id is None else fields[names.id]
            if value is None or type(value) is str:
                return value
        try:
            return self._read_id(fields, self._shape(row, fields))
        except RowFault:
            return None

    def row_ids(self, rows: Sequence[InputRow]) -> list[str | None]:
        """Return `row_id` of each row, at hardly any cost where rows lie in columns."""
        ids: list[str | None] = []
        while len(ids) < len(rows):
            rest = rows[len(ids) :]
            shared, names = self._alike(rest)
            texts = None if shared is None or names is None else shared.texts(names.id)
            alike = rest[:MIN_ROWS] if shared is None else shared.rows
            ids += map(self.row_id, alike) if texts is None else texts
        return ids

    def ids_and_passthrough(self, rows: Sequence[InputRow]) -> list[tuple[str | None, Fields]]:
        """Return `id_and_passthrough` of each row, at half the cost where names are the same."""
        kept: list[tuple[str | None, Fields]] = []
        while len(kept) < len(rows):
            rest = rows[len(kept) :]
            shared, names = self._alike(rest)
            ids = None if shared is None or names is None else shared.texts(names.id)
            if shared is None or names is None or ids is None:
                alike = rest[:MIN_ROWS] if shared is None else shared.rows
                kept += map(self.id_and_passthrough, alike)
            else:
                kept += zip(ids, shared.parts(names.passthrough), strict=True)
        return kept

    def id_and_passthrough(self, row: InputRow) -> tuple[str | None, Fields]:
        """Return `row_id` and `passthrough` of a row, faster than one by one."""
        fields = row.fields()
        if isinstance(fields, RowError):
            return None, {}
        names = self._known.names(row, fields)
        if names is None:
            return self.row_id(row), self.passthrough(row)
        passed = {name: fields[name] for name in names.passthrough}
        if names.id is None:
            return None, passed
        value = fields[names.id]
        return (value if type(value) is str else self.row_id(row)), passed

    def passthrough(self, row: InputRow) -> Fields:
        """Return the columns that are not consumed, also of a row that is at fault.

        For a batch line these are the top-level keys beside custom_id, method, url and body; for
        a flat row all but prompt, parameters and id; for a table all but the id. Empty for a row
        that could not be decoded.
        """
        fields = row.fields()
        if isinstance(fields, RowError):
            return {}
        return other_columns(fields, self._shape(row, fields), self._config)

    def passthrough_names(self, columns: Sequence[str], first_row: InputRow | None) -> list[str]:
        """Return which of an input's declared columns are not consumed.

        Args:
            columns: Names that the input declares.
            first_row: Its first row, which says what shape its rows have; None without rows.
        """
        sample: Fields = dict.fromkeys(columns, "")
        fields = {} if first_row is None else first_row.fields()
        if first_row is None or isinstance(fields, RowError):
            shape = RowShape.TABLE if self._config.is_table else RowShape.FLAT
        else:
            shape = self._shape(first_row, fields)
        return list(other_columns(sample, shape, self._config))

    def id_and_columns(self, row: InputRow) -> tuple[str | None, Fields]:
        """Return `row_id` and `columns` of a row."""
        return self.row_id(row), self.columns(row)

    def ids_and_columns(self, rows: Sequence[InputRow]) -> list[tuple[str | None, Fields]]:
        """Return `id_and_columns` of each row."""
        return list(map(self.id_and_columns, rows))

    def columns(self, row: InputRow) -> Fields:
        """Return all top-level columns, for those that are chosen by name; do not change them."""
        fields = row.fields()
        return {} if isinstance(fields, RowError) else fields

    def _alike(self, rows: Sequence[InputRow]) -> tuple[SharedColumns | None, RowNames | None]:
        """Return the first rows whose names are the same, and what these say of all of them."""
        shared = shared_columns(rows)
        return shared, None if shared is None else self._known.names_of_all(shared)

    def _shape(self, row: InputRow, fields: Fields) -> RowShape:
        return shape_of(row, fields, is_table=self._is_table)

    def _read_id(self, fields: Fields, shape: RowShape) -> str | None:
        name = id_name(fields, shape, self._config)
        return None if name is None else id_text(name, fields[name])

    def _parse_batch_line(self, row: InputRow, fields: Fields) -> Request:
        method, url = fields.get("method"), fields.get("url")
        if method is not None and method != "POST":
            raise RowFault(ErrorCode.UNSUPPORTED, f"method is {shown(method)}; it must be 'POST'")
        if url is not None and not (isinstance(url, str) and url in _ENDPOINT_PROMPTS):
            known = " and ".join(_ENDPOINT_PROMPTS)
            raise RowFault(ErrorCode.UNSUPPORTED, f"url is {shown(url)}; {known} are supported")
        body, num_surrogates = structured("body", fields["body"])
        row.num_surrogates += num_surrogates
        if not isinstance(body, dict):
            raise RowFault(ErrorCode.BAD_TYPE, f"body is {shown(body)}; it must be an object")
        if url is not None:
            wanted = _ENDPOINT_PROMPTS[str(url)]
            if all(body.get(name) is None for name in wanted):
                raise RowFault(
                    ErrorCode.MISSING_PROMPT, f"body has no {wanted[0]}, which {url} needs"
                )
        return self._body.read(row, body, prefix="body.")

    def _parse_table_row(self, row: InputRow, fields: Fields) -> Request:
        config = self._config
        given = {name: fields.get(name) for name in config.param_columns}
        if row.source.format == "csv":
            given = typed(given, given.keys())
        if config.messages_column is not None:
            messages = _column(fields, config.messages_column)
            return self._body.read_messages_column(
                row, config.messages_column, messages, given=given
            )
        if self._template is not None:
            prompt: object = self._template.render(fields)
            name = "the rendered template"
        else:
            name = TEXT_COLUMN if config.prompt_column is None else config.prompt_column
            prompt = _column(fields, name)
        return self._body.read_prompt_column(row, name, prompt, given=given)

    def _require_sound(self, row: InputRow, shape: RowShape) -> None:
        """Refuse a row whose flaws (see `InputRow.flaws`) are in names that we read."""
        for name, reason in row.flaws.items():
            if self._reads(name, shape):
                code = ErrorCode.BAD_PARAMS if name in PARAMETERS else ErrorCode.INVALID_JSON
                raise RowFault(code, f"{name[:60]} {reason}")

    def _reads(self, name: str, shape: RowShape) -> bool:
        config = self._config
        if shape is RowShape.BATCH_LINE:
            return name in BATCH_LINE_NAMES
        if name == config.id_column or (config.id_column is None and name in ("id", "custom_id")):
            return True
        if shape is RowShape.FLAT:
            return name in FLAT_NAMES
        variables = self._template.variables if self._template is not None else frozenset()
        if name in variables or WHOLE_ROW in variables:
            return True
        return name in (config.prompt_column, config.messages_column, *config.param_columns)


def _column(fields: Fields, name: str) -> object:
    if name not in fields:
        raise RowFault(ErrorCode.MISSING_PROMPT, f"row has no column {name!r}")
    if fields[name] is None:
        raise RowFault(ErrorCode.MISSING_PROMPT, f"{name} is null")
    return fields[name]
