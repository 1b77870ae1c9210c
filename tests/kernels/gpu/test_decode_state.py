"""A chunk's rows move on from step to step without the host."""

import pytest
import torch

BLOCK_SIZE = 4


def int32(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("num_padding", [0, 3, 200])
def test_rows_advance_until_they_stop(device: torch.device, num_padding: int) -> None:
    from nanobatch.kernels.gpu.decode_state import (
        NO_TOKEN,
        RowProgress,
        SlotState,
        StepInputs,
        begin_step,
        end_step,
    )

    state = SlotState.allocate(7, device=device)
    slots = [5, 0, 6, 2]  # goes on, has one step only, stops at token 9, has stopped before
    for slot, token in zip(slots, (11, 12, 13, 14), strict=True):
        state.last_tokens[slot] = token
        state.is_done[slot] = int(slot == 2)
    num_rows = len(slots) + num_padding
    rows = RowProgress(
        row_ids=int32(slots + [state.padding_slot] * num_padding, device),
        positions=int32([3, 9, 0, 2] + [77] * num_padding, device),
        steps_left=int32([3, 1, 3, 3] + [0] * num_padding, device),
        stop_token_ids=int32([9, 8, -1, -1] * num_rows, device),
    )
    block_ids = int32([30, 31, 20, 21, 22, 10, 40], device)
    block_starts = int32([0, 2, 5, 6] + [999] * num_padding, device)
    inputs = StepInputs.allocate(num_rows, device=device)
    seen = []
    results = torch.full((3, num_rows), 123, dtype=torch.int32, device=device)
    sampled = [[21, 22, 23, 24], [31, 32, 9, 34], [41, 42, 43, 44]]
    for step in range(3):
        for tensor in (inputs.input_ids, inputs.seq_lens, inputs.slot_mapping):
            tensor.fill_(-7)
        begin_step(
            rows,
            state,
            block_ids=block_ids,
            block_starts=block_starts,
            inputs=inputs,
            block_size=BLOCK_SIZE,
        )
        seen.append(
            [
                tensor.tolist()[:4]
                for tensor in (inputs.input_ids, inputs.seq_lens, inputs.slot_mapping)
            ]
        )
        assert inputs.seq_lens[4:].tolist() == [0] * num_padding
        assert inputs.slot_mapping[4:].tolist() == [-1] * num_padding
        is_nan = torch.zeros(num_rows, dtype=torch.bool, device=device)
        is_nan[0] = step == 2
        end_step(
            int32(sampled[step] + [5] * num_padding, device),
            is_nan,
            is_active=inputs.is_active,
            rows=rows,
            state=state,
            results=results[step],
        )
    assert seen == [
        [[11, 12, 13, 0], [4, 10, 1, 0], [123, 89, 40, -1]],
        [[21, 0, 22 + 1, 0], [5, 0, 2, 0], [124, -1, 41, -1]],
        [[31, 0, 0, 0], [6, 0, 0, 0], [125, -1, -1, -1]],
    ]
    assert results[:, 0].tolist() == [21, 31, NO_TOKEN]
    assert (int(results[0, 1]), results[:2, 2].tolist()) == (22, [23, 9])
    assert state.last_tokens[[0, 6, 2]].tolist() == [22, 9, 14]
    assert state.is_done[[5, 0, 6, 2]].tolist() == [1, 0, 1, 1]
