"""A workload of a file's own prompts, as `nanobatch run` would read and tokenize them."""

from pathlib import Path

from nanobatch.bench.workloads import Workload
from nanobatch.config import EngineConfig
from nanobatch.engine.factory import load_tokenizer
from nanobatch.errors import InputError
from nanobatch.io.column_checks import require_columns
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.io.sources import resolve_inputs
from nanobatch.job_config import RowConfig
from nanobatch.models.source import ModelSource, read_model_config
from nanobatch.request import Request, RowError, SamplingParams


def prompt_file_workload(
    path: str, source: ModelSource, *, rows: RowConfig, max_tokens: int, limit: int | None
) -> Workload:
    """Return the prompts of a file as token ids; greedy, as its rows' temperatures may differ.

    Args:
        path: Any input of `nanobatch run`.
        source: The model whose tokenizer and chat template are used.
        rows: How rows become prompts.
        max_tokens: Tokens to generate for rows that do not say.
        limit: Most rows to take; None takes all.

    Raises:
        InputError: A row has no prompt that can be used, or there are no rows.
        UsageError: The file or the tokenizer cannot be read.
    """
    sources = resolve_inputs((path,), None)
    require_columns(rows, sources)
    vocab_size = read_model_config(source).vocab_size
    parser = RowParser(rows, SamplingParams(max_tokens=max_tokens), vocab_size=vocab_size)
    requests: list[Request] = []
    for row in iter_rows(sources, start=0, stop=limit):
        parsed = parser.parse(row)
        if isinstance(parsed, RowError):
            raise InputError(
                f"{row.location}: {parsed.message}", hint="nanobatch validate names every bad row"
            )
        requests.append(parsed)
    if not requests:
        raise InputError(f"{path} holds no rows")
    tokenizer = load_tokenizer(EngineConfig(), source)
    prompts = []
    for request, encoded in zip(
        requests, tokenizer.encode_requests(requests, max_num_tokens=None), strict=True
    ):
        if isinstance(encoded, RowError):
            raise InputError(f"{path}, row {request.row_index}: {encoded.message}")
        prompts.append(tuple(encoded.tolist()))
    return Workload(
        name=Path(path).name,
        prompts=tuple(prompts),
        output_lens=tuple(request.params.max_tokens or max_tokens for request in requests),
        temperature=0.0,
    )
