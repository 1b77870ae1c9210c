import pyarrow as pa
import pytest

from nanobatch.errors import OutputError
from nanobatch.io.columns import merge_schemas, output_columns

TEXT = pa.large_string()
INPUT = pa.schema([("label", TEXT), ("score", pa.float64()), ("day", pa.date32())])


def test_our_columns_come_first_with_their_types_then_the_inputs_then_extra() -> None:
    schema = output_columns(
        INPUT, include_truncated_tokens=True, include_token_ids=True, include_logprobs=True
    ).schema
    assert schema.to_string().splitlines() == [
        "row_index: int64 not null",
        "id: string",
        "sample_index: int32 not null",
        "status: string not null",
        "generated_text: large_string",
        "finish_reason: string",
        "stop_reason: string",
        "prompt_tokens: int64",
        "cached_tokens: int64",
        "completion_tokens: int64",
        "truncated_tokens: int64",
        "error_code: string",
        "error_message: large_string",
        "token_ids: list<item: int32>",
        "  child 0, item: int32",
        "logprobs: list<item: float>",
        "  child 0, item: float",
        "label: large_string",
        "score: double",
        "day: date32[day]",
        "extra: large_string",
    ]


def names(*inputs: str, has_extra: bool = True, include_logprobs: bool = False) -> list[str]:
    columns = output_columns(
        pa.schema([(name, TEXT) for name in inputs]),
        has_extra=has_extra,
        include_logprobs=include_logprobs,
    )
    assert len(set(columns.schema.names)) == len(columns.schema.names)
    return [columns.names[name] for name in inputs]


def test_a_clash_takes_the_next_free_name() -> None:
    assert names("status", "label") == ["input_status", "label"]
    assert names("status", "input_status") == ["input_input_status", "input_status"]
    assert names("input_status", "status") == ["input_status", "input_input_status"]
    assert names("id", "input_id", "input_input_id") == [
        "input_input_input_id",
        "input_id",
        "input_input_id",
    ]


def test_only_columns_that_are_written_clash() -> None:
    assert names("extra") == ["input_extra"]
    assert names("extra", has_extra=False) == ["extra"]
    assert names("logprobs", include_logprobs=True) == ["input_logprobs"]
    assert names("logprobs", "token_ids") == ["logprobs", "token_ids"]


def test_selected_columns_keep_the_order_in_which_they_were_asked_for() -> None:
    columns = output_columns(INPUT, selected=["day", "label", "day", "later"])
    assert columns.schema.names[-3:] == ["day", "label", "extra"]
    assert [columns.is_selected(name) for name in ("later", "day", "score")] == [True, True, False]


def test_without_selected_columns_nothing_passes_through() -> None:
    columns = output_columns(INPUT, selected=[])
    assert columns.schema.names[-1] == "error_message"
    assert not columns.is_selected("label")


def test_a_selected_column_that_the_input_declares_not_to_have_is_refused() -> None:
    with pytest.raises(OutputError) as caught:
        output_columns(INPUT, selected=["labl"], has_extra=False)
    assert caught.value.message == "--columns names 'labl', which the input does not have"
    assert caught.value.hint == "it has label, score, day"


def test_metadata_of_the_input_does_not_become_ours() -> None:
    declared = INPUT.with_metadata({"pandas": "{}"})
    assert output_columns(declared).schema.metadata is None


def test_columns_of_several_inputs_are_merged_and_widened_without_loss() -> None:
    one = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64()), ("d", pa.int8())])
    two = pa.schema(
        [("e", pa.bool_()), ("b", TEXT), ("a", pa.int64()), ("c", pa.float64()), ("d", TEXT)]
    )
    assert merge_schemas([one, two]) == pa.schema(
        [
            ("a", pa.int64()),
            ("b", TEXT),
            ("c", pa.int64()),
            ("d", pa.int8()),
            ("e", pa.bool_()),
        ]
    )
    assert merge_schemas([]) == pa.schema([])
