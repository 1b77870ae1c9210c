"""`nanobatch validate`: what `run` would make of a file, without loading weights."""

import sys

import typer

from nanobatch.cli import engine_options, option_values, options
from nanobatch.cli.settings import announce_settings
from nanobatch.config import EngineConfig
from nanobatch.job_config import JobConfig

EXIT_ROW_ERRORS = 3


def validate(
    context: typer.Context,
    inputs: options.Inputs,
    *,
    model: options.ModelOption = None,
    input_format: options.InputFormatOption = None,
    delimiter: options.DelimiterOption = ",",
    template: options.TemplateOption = None,
    prompt_column: options.PromptColumnOption = None,
    messages_column: options.MessagesColumnOption = None,
    id_column: options.IdColumnOption = None,
    param_columns: options.ParamColumnsOption = "",
    system: options.SystemOption = None,
    raw: options.RawOption = False,
    strict: options.StrictOption = False,
    allow_duplicate_ids: options.AllowDuplicateIdsOption = False,
    chat_template: options.ChatTemplateOption = None,
    chat_template_kwargs: options.ChatTemplateKwargsOption = None,
    trust_remote_code: options.TrustRemoteCodeOption = False,
    max_model_len: options.MaxModelLenOption = None,
    long_prompts: engine_options.LongPromptsOption = "error",
    _config: options.ConfigOption = None,
    debug: options.DebugOption = False,
) -> int:
    """Check every row, count tokens and shared prefixes; exit with 3 if a row is bad."""
    from nanobatch.cli.run_job import quieten_libraries
    from nanobatch.cli.validation_text import render_bad_row, render_report
    from nanobatch.job.validate import validate_job

    announce_settings(context)
    quieten_libraries(debug=debug)
    config = JobConfig(
        inputs=tuple(inputs),
        output="-",
        input_format=option_values.parse_input_format(input_format),
        delimiter=option_values.parse_delimiter(delimiter),
        rows=option_values.parse_row_config(
            template=template,
            prompt_column=prompt_column,
            messages_column=messages_column,
            id_column=id_column,
            param_columns=param_columns,
            system=system,
            raw=raw,
            strict=strict,
            allow_duplicate_ids=allow_duplicate_ids,
        ),
        engine=EngineConfig(
            model=model,
            max_model_len=max_model_len,
            chat_template=option_values.parse_chat_template(chat_template),
            chat_template_kwargs=option_values.parse_chat_template_kwargs(chat_template_kwargs),
            trust_remote_code=trust_remote_code,
            long_prompts=option_values.parse_long_prompts(long_prompts),
        ),
    )
    report = validate_job(
        config,
        on_error=lambda location, error: _print(render_bad_row(location, error)),
    )
    _print(render_report(report))
    return EXIT_ROW_ERRORS if report.num_errors else 0


def _print(text: str) -> None:
    # A prompt may hold what the terminal's encoding cannot say.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
