"""Flat lines of JSON: one object per output, keys in the order of the columns.

Knows how a row becomes lines. Pass-through values are written as they came: JSON needs no type
per column, so nothing goes to `extra` here.
"""

from nanobatch.io.columns import EXTRA, OutputColumns
from nanobatch.io.output_json import json_piece, text_piece, to_line
from nanobatch.io.output_keys import OutputKeys
from nanobatch.io.output_row import ERROR, OK, OutputRow, stop_reason_text
from nanobatch.request import RequestOutput


class FlatEncoder:
    """Turns rows into lines.

    A pass-through key that clashes with one of our columns is renamed as `output_columns` does;
    one that was unknown there gets its name when it is first seen.
    """

    def __init__(self, columns: OutputColumns) -> None:
        own = {*columns.base.names, EXTRA} if columns.has_extra else columns.base.names
        self._keys = OutputKeys(columns, own)
        self._has_truncated_tokens = columns.has_truncated_tokens
        self._has_token_ids = columns.has_token_ids
        self._has_logprobs = columns.has_logprobs

    def encode(self, row: OutputRow) -> bytes:
        r"""Return a row as a line per output, each with its `\n`."""
        tail = self._keys.tail(row.passthrough)
        if len(row.outputs) == 1:
            return to_line(self._own(row, row.outputs[0]) + tail)
        return b"".join([to_line(self._own(row, output) + tail) for output in row.outputs])

    def _own(self, row: OutputRow, output: RequestOutput) -> str:
        """Return our columns as the beginning of an object."""
        error = output.error
        # Put together by hand: a line costs a third of what encoding a dict does.
        text = (
            f'{{"row_index":{output.row_index},"id":{text_piece(row.id)},'
            f'"sample_index":{output.sample_index},"status":"{OK if error is None else ERROR}",'
            f'"generated_text":{text_piece(output.text if error is None else None)},'
            f'"finish_reason":{text_piece(output.finish_reason)},'
            f'"stop_reason":{text_piece(stop_reason_text(output))},'
            f'"prompt_tokens":{output.num_prompt_tokens},'
            f'"cached_tokens":{output.num_cached_tokens},'
            f'"completion_tokens":{output.num_completion_tokens}'
        )
        if self._has_truncated_tokens:
            text += f',"truncated_tokens":{output.num_truncated_tokens}'
        if error is None:
            text += ',"error_code":null,"error_message":null'
        else:
            message = text_piece(row.error_message(error))
            text += f',"error_code":{text_piece(error.code)},"error_message":{message}'
        if self._has_token_ids:
            token_ids = output.token_ids if error is None else None
            text += f',"token_ids":{json_piece(token_ids)}'
        if self._has_logprobs:
            logprobs = output.logprobs if error is None else None
            text += f',"logprobs":{json_piece(logprobs)}'
        return text
