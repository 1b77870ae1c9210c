"""Lines as OpenAI's batch API gives them back: one per input row, its samples as choices.

    {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error", ...}

Knows how outputs become a `chat.completion` or a `text_completion`; not files. Everything is the
same in every run of a job: ids are made of the job's key and the row's index, and `created`, for
which nothing of the kind exists, is 0. What OpenAI has no place for stands where vLLM puts it:
`stop_reason` and `token_ids` in a choice, and for want of its text a token of `logprobs` is
`token_id:<id>`.

A row whose outputs are all errors has a status code of 400 or more, `error` and
`response.body.error`. Where only some samples failed the row has status code 200, and each failed
choice has the finish reason `error` and an `error` of its own, so nothing is lost.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_json import json_piece, text_piece, to_line
from nanobatch.io.output_keys import OutputKeys
from nanobatch.io.output_row import ERROR, OutputRow
from nanobatch.request import ErrorCode, RequestOutput, RowError

OWN_KEYS = ("id", "custom_id", "response", "error")
TOKEN_PREFIX = "token_id:"
MIN_LOGPROB = -9999.0
"""What stands for a lower log probability, as in OpenAI's and vLLM's answers: JSON has no
infinity."""

_STATUS_OK, _STATUS_BAD_REQUEST, _STATUS_TIMEOUT, _STATUS_OUR_FAULT = 200, 400, 408, 500
_STATUS_OF_CODE = {
    ErrorCode.TIMEOUT: _STATUS_TIMEOUT,
    ErrorCode.NAN_LOGITS: _STATUS_OUR_FAULT,
    ErrorCode.ENGINE_ERROR: _STATUS_OUR_FAULT,
}
"""Status codes of rows that were accepted and failed; a rejected row has 400."""
_TYPE_OF_STATUS = {
    _STATUS_BAD_REQUEST: "invalid_request_error",
    _STATUS_TIMEOUT: "timeout_error",
    _STATUS_OUR_FAULT: "server_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiJob:
    """What lines say of the job.

    Attributes:
        model_name: What answered.
        key: Part of every id: the same in every run of a job, another in another job.
    """

    model_name: str
    key: str


def job_key(fingerprint: Mapping[str, object]) -> str:
    """Return the key of a job, 16 hexadecimal digits, from what makes it the same job."""
    return xxhash.xxh3_64_hexdigest(json.dumps(fingerprint, sort_keys=True).encode())


def status_code(error: RowError) -> int:
    """Return the HTTP status code that says what an error says.

    400 for a row that was rejected, 408 for one that took too long, 500 for one that we failed.
    """
    return _STATUS_OF_CODE.get(error.code, _STATUS_BAD_REQUEST)


class OpenAiEncoder:
    """Turns rows into lines; pass-through keys follow our own.

    Args:
        columns: Which keys pass through, and whether token ids, log probabilities and the number
            of truncated tokens are asked for.
        job: What lines say of the job.
    """

    def __init__(self, columns: OutputColumns, job: OpenAiJob) -> None:
        self._keys = OutputKeys(columns, OWN_KEYS)
        self._has_truncated_tokens = columns.has_truncated_tokens
        self._has_token_ids = columns.has_token_ids
        self._has_logprobs = columns.has_logprobs
        self._key = job.key
        self._model = text_piece(job.model_name)

    def encode(self, row: OutputRow) -> bytes:
        r"""Return a row as a line, `\n` included."""
        outputs = row.outputs
        failure = outputs[0].error
        if failure is not None and any(output.error is None for output in outputs):
            failure = None
        name = f"{self._key}-{outputs[0].row_index}"
        if failure is None:
            status, error, body = _STATUS_OK, "null", self._completion(row, name)
        else:
            status = status_code(failure)
            error = _error_piece(row, failure)
            body = self._failure(row, failure, status)
        return to_line(
            f'{{"id":"batch_req_{name}","custom_id":{text_piece(row.id)},'
            f'"response":{{"status_code":{status},"request_id":"req_{name}","body":{body}}},'
            f'"error":{error}{self._keys.tail(row.passthrough)}'
        )

    def _completion(self, row: OutputRow, name: str) -> str:
        prefix, kind = (
            ("chatcmpl", "chat.completion") if row.is_chat else ("cmpl", "text_completion")
        )
        return (
            f'{{"id":"{prefix}-{name}","object":"{kind}","created":0,"model":{self._model},'
            f'"choices":{self._choices(row)},"usage":{self._usage(row.outputs)}}}'
        )

    def _failure(self, row: OutputRow, failure: RowError, status: int) -> str:
        error = (
            f'{{"message":{text_piece(row.error_message(failure))},'
            f'"type":"{_TYPE_OF_STATUS[status]}","param":null,"code":"{failure.code}"}}'
        )
        if len(row.outputs) == 1:
            return f'{{"error":{error}}}'
        return (
            f'{{"error":{error},"choices":{self._choices(row)},"usage":{self._usage(row.outputs)}}}'
        )

    def _usage(self, outputs: Sequence[RequestOutput]) -> str:
        """Return the tokens of a row; its prompt counts once, however many samples it has."""
        first = outputs[0]
        num_completion_tokens = first.num_completion_tokens
        for output in outputs[1:]:
            num_completion_tokens += output.num_completion_tokens
        truncated = ""
        if self._has_truncated_tokens:
            truncated = f',"truncated_tokens":{first.num_truncated_tokens}'
        return (
            f'{{"prompt_tokens":{first.num_prompt_tokens},'
            f'"completion_tokens":{num_completion_tokens},'
            f'"total_tokens":{first.num_prompt_tokens + num_completion_tokens},'
            f'"prompt_tokens_details":{{"cached_tokens":{first.num_cached_tokens}{truncated}}}}}'
        )

    def _choices(self, row: OutputRow) -> str:
        return f"[{','.join([self._choice(row, output) for output in row.outputs])}]"

    def _choice(self, row: OutputRow, output: RequestOutput) -> str:
        error = output.error
        text = text_piece(output.text if error is None else "")
        content = (
            f'"message":{{"role":"assistant","content":{text}}}'
            if row.is_chat
            else (f'"text":{text}')
        )
        choice = (
            f'{{"index":{output.sample_index},{content},"logprobs":{self._logprobs(row, output)},'
            f'"finish_reason":{text_piece(ERROR if error is not None else output.finish_reason)},'
            f'"stop_reason":{_stop_reason_piece(output.stop_reason)}'
        )
        if self._has_token_ids:
            choice += f',"token_ids":{json_piece(output.token_ids if error is None else None)}'
        if len(row.outputs) > 1:
            choice += f',"completion_tokens":{output.num_completion_tokens}'
        if error is not None:
            choice += f',"error":{_error_piece(row, error)}'
        return choice + "}"

    def _logprobs(self, row: OutputRow, output: RequestOutput) -> str:
        is_asked_for = self._has_logprobs and output.error is None
        if not is_asked_for or output.logprobs is None:
            return "null"
        tokens = [f"{TOKEN_PREFIX}{token_id}" for token_id in output.token_ids]
        values = [max(value, MIN_LOGPROB) for value in output.logprobs]
        if not row.is_chat:
            return json_piece({"tokens": tokens, "token_logprobs": values})
        content = [
            {"token": token, "logprob": value, "bytes": None, "top_logprobs": ()}
            for token, value in zip(tokens, values, strict=True)
        ]
        return json_piece({"content": content})


def _stop_reason_piece(stop_reason: str | int | None) -> str:
    """Return a stop string, a stop token's id or null."""
    return str(stop_reason) if isinstance(stop_reason, int) else text_piece(stop_reason)


def _error_piece(row: OutputRow, error: RowError) -> str:
    return f'{{"code":"{error.code}","message":{text_piece(row.error_message(error))}}}'
