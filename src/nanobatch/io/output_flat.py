"""Flat lines of JSON: one object per output, keys in the order of the columns.

Knows how a row becomes lines. Pass-through values are written as they came: JSON needs no type
per column, so nothing goes to `extra` here.
"""

from collections.abc import Sequence

from nanobatch.io.columns import EXTRA, OutputColumns
from nanobatch.io.output_json import json_piece, text_piece, to_lines
from nanobatch.io.output_keys import OutputKeys
from nanobatch.io.output_lines import OutputLines, lines_of_rows
from nanobatch.io.output_row import OutputRow


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
        return self.encode_lines(lines_of_rows((row,)))

    def encode_lines(self, lines: OutputLines) -> bytes:
        r"""Return lines as JSON, each with its `\n`."""
        numbers = self._numbers(lines)
        columns = zip(
            lines.row_indices,
            lines.ids,
            lines.sample_indices,
            lines.statuses,
            lines.texts,
            lines.finish_reasons,
            lines.stop_reasons,
            lines.num_prompt_tokens,
            lines.num_cached_tokens,
            lines.num_completion_tokens,
            self._truncated(lines),
            lines.error_codes,
            lines.error_messages,
            numbers,
            map(self._keys.tail, lines.passthrough),
            strict=True,
        )
        # Put together by hand: a line costs a third of what encoding a dict does.
        return to_lines(
            [
                f'{{"row_index":{row_index},"id":{text_piece(row_id)},'
                f'"sample_index":{sample_index},"status":"{status}",'
                f'"generated_text":{text_piece(text)},'
                f'"finish_reason":{text_piece(reason)},"stop_reason":{text_piece(stop_reason)},'
                f'"prompt_tokens":{num_prompt},"cached_tokens":{num_cached},'
                f'"completion_tokens":{num_completion}{truncated},'
                f'"error_code":{text_piece(code)},"error_message":{text_piece(message)}'
                f"{token_numbers}{tail}"
                for (
                    row_index,
                    row_id,
                    sample_index,
                    status,
                    text,
                    reason,
                    stop_reason,
                    num_prompt,
                    num_cached,
                    num_completion,
                    truncated,
                    code,
                    message,
                    token_numbers,
                    tail,
                ) in columns
            ]
        )

    def _truncated(self, lines: OutputLines) -> Sequence[str]:
        if not self._has_truncated_tokens:
            return [""] * len(lines)
        return [f',"truncated_tokens":{number}' for number in lines.num_truncated_tokens]

    def _numbers(self, lines: OutputLines) -> Sequence[str]:
        """Return token ids and log probabilities as members, as far as they are asked for."""
        members = [""] * len(lines)
        if self._has_token_ids:
            members = [f',"token_ids":{json_piece(token_ids)}' for token_ids in lines.token_ids]
        if self._has_logprobs:
            members = [
                f'{member},"logprobs":{json_piece(logprobs)}'
                for member, logprobs in zip(members, lines.logprobs, strict=True)
            ]
        return members
