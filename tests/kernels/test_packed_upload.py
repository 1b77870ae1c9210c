import numpy as np
import pytest
import torch

from nanobatch.kernels.packed_upload import ALIGNMENT_BYTES, PackedUpload

CPU = torch.device("cpu")


def test_arrays_come_back_with_their_shapes_and_dtypes() -> None:
    arrays: tuple[np.ndarray, ...] = (
        np.arange(5, dtype=np.int32),
        np.array([[1, 2], [3, 4]], dtype=np.int64),
        np.empty(0, dtype=np.int32),
        np.array([True, False]),
        np.array([0.5], dtype=np.float32),
    )
    tensors = PackedUpload(CPU).upload(*arrays)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert tensor.shape == array.shape
        assert np.array_equal(tensor.numpy(), array)


def test_arrays_are_one_allocation_and_aligned() -> None:
    first, second = PackedUpload(CPU).upload(np.zeros(3, np.int32), np.zeros(3, np.int32))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() - first.data_ptr() == ALIGNMENT_BYTES


def test_strided_arrays_are_uploaded_in_order() -> None:
    (tensor,) = PackedUpload(CPU).upload(np.arange(6, dtype=np.int32)[::2])
    assert tensor.tolist() == [0, 2, 4]


def test_nothing_is_no_tensor() -> None:
    assert PackedUpload(CPU).upload() == ()


def test_uploads_of_before_keep_their_contents() -> None:
    upload = PackedUpload(CPU)
    tensors = [upload.upload(np.full(1 + 50 * i, i, dtype=np.int32))[0] for i in range(6)]
    assert [set(tensor.tolist()) for tensor in tensors] == [{i} for i in range(6)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_staging_is_not_overwritten_before_the_device_has_read_it() -> None:
    device = torch.device("cuda")
    upload = PackedUpload(device)
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # copies wait behind this
    tensors = [upload.upload(np.full(1000, i, dtype=np.int32))[0] for i in range(6)]
    assert [set(tensor.tolist()) for tensor in tensors] == [{i} for i in range(6)]
