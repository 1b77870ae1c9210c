from hypothesis import given

from nanobatch.io.journal_record import (
    HEADER_BYTES,
    MAGIC,
    JournalRecord,
    RecordFlags,
    check_record,
    decode_record,
    encode_record,
    is_intact,
    read_header,
)
from nanobatch.request import KV_CAPACITY, FinishReason, RequestOutput, RowIndex
from tests.io.output_strategies import answer, fault, record, records


@given(records())
def test_a_record_comes_back_exactly(original: JournalRecord) -> None:
    assert decode_record(encode_record(original)) == original


@given(records())
def test_the_magic_never_occurs_inside_a_record(original: JournalRecord) -> None:
    assert MAGIC not in encode_record(original)[HEADER_BYTES:]


def test_surrogates_side_by_side_stay_two_characters() -> None:
    original = record(1, "\ud83d" + "\ude00")
    assert decode_record(encode_record(original)).outputs[0].text == "\ud83d" + "\ude00"


def test_infinite_log_probabilities_come_back() -> None:
    output = RequestOutput(row_index=RowIndex(0), logprobs=(float("-inf"), -0.1, -5e-324))
    original = JournalRecord(RowIndex(0), 0, (output,))
    assert decode_record(encode_record(original)) == original


def test_header_holds_the_rows_token_counts_over_all_samples() -> None:
    samples = (answer(3), answer(3))
    header = read_header(encode_record(JournalRecord(RowIndex(3), 9, samples)))
    assert header[1:6] == (3, 9, 12, 4, 4)


def test_header_flags_say_how_samples_ended() -> None:
    def flags(*samples: RequestOutput) -> RecordFlags:
        encoded = encode_record(JournalRecord(RowIndex(0), 0, samples))
        return RecordFlags(read_header(encoded).flags)

    outgrown = RequestOutput(
        row_index=RowIndex(0), finish_reason=FinishReason.LENGTH, stop_reason=KV_CAPACITY
    )
    at_length = answer(0, finish_reason=FinishReason.LENGTH)
    assert flags(answer(0)) == RecordFlags.STOP
    assert flags(at_length) == RecordFlags.MAX_TOKENS
    assert flags(outgrown) == RecordFlags.KV_CAPACITY
    assert flags(fault(0)) == RecordFlags.ERROR
    assert flags(answer(0), at_length) == RecordFlags.STOP | RecordFlags.MAX_TOKENS


def test_any_flipped_byte_makes_a_record_invalid() -> None:
    whole = encode_record(record(5, "é" * 20))
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        assert check_record(bytes(damaged), 0)[0] is None
        if place >= len(MAGIC):
            assert not is_intact(bytes(damaged))


def test_a_record_cut_short_says_how_many_bytes_it_needs() -> None:
    whole = encode_record(record(5))
    assert check_record(whole[:-1], 0) == (None, len(whole))
    assert check_record(whole[: HEADER_BYTES - 1], 0) == (None, HEADER_BYTES)
    assert not is_intact(whole[:10])


def test_a_damaged_length_does_not_ask_for_gigabytes() -> None:
    damaged = bytearray(encode_record(record(5)))
    damaged[12:16] = b"\xff\xff\xff\xff"
    assert check_record(bytes(damaged), 0) == (None, 0)
