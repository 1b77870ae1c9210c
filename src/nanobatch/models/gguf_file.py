"""Reads GGUF files (llama.cpp's container): metadata, and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3 (and 2), little
endian. The `gguf` package's own reader wraps each of a vocabulary's 100,000 strings in arrays,
which takes seconds; this one steps over them. Dequantising is left to that package. Knows no
model (that is `models.gguf_model`). Imports no torch.
"""

import importlib.util
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nanobatch.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_SCALAR_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArray:
    """An array in the metadata; its elements are not read."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor in the file.

    Attributes:
        shape: Outermost dimension first, as torch and numpy write it.
        ggml_type: Number of the element format.
        offset_bytes: Where its elements begin in the file.
    """

    shape: tuple[int, ...]
    ggml_type: int
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """An opened file.

    Attributes:
        path: Where it is.
        metadata: Key to number, boolean, string or `GgufArray`.
        tensors: By their name in the file.
    """

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read a file's header.

        Raises:
            ModelError: The file is not GGUF, is damaged, or the `gguf` package is missing.
        """
        if importlib.util.find_spec("gguf") is None:
            raise ModelError(
                f"{path.name}: reading .gguf files needs the gguf package",
                hint="pip install 'nanobatch[gguf]'",
            )
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
                metadata, tensors = _read_header(_Cursor(m))
        except (OSError, ValueError, struct.error) as error:
            raise ModelError(f"{path} is not a readable GGUF file: {error}") from error
        return cls(path=path, metadata=metadata, tensors=tensors)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as fp32, dequantised.

        Raises:
            ModelError: The file ends too early, or its element format is unknown.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        tensor = self.tensors[name]
        try:
            ggml_type = GGMLQuantizationType(tensor.ggml_type)
            block_length, block_bytes = GGML_QUANT_SIZES[ggml_type]
            *rows, columns = tensor.shape
            shape = (*rows, columns // block_length * block_bytes)
            stored = np.memmap(
                self.path, np.uint8, mode="r", offset=tensor.offset_bytes, shape=shape
            )
            # Unquantized tensors come back as views of the file: own them, torch wants to write.
            values = np.require(dequantize(stored, ggml_type), np.float32, ["C", "W"])
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise ModelError(f"{self.path.name}: cannot read tensor {name}: {error}") from error
        return values.reshape(tensor.shape)


class _Cursor:
    """Reads values from a buffer, one after the other."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self.position = 0

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        self.skip(length)
        return self._buffer[self.position - length : self.position]

    def skip(self, length: int) -> None:
        """Step over bytes that must be there."""
        if self.position + length > len(self._buffer):
            raise ValueError(f"it ends before byte {self.position + length:,}")
        self.position += length

    def scalar(self, fmt: str) -> int | float | bool:
        """Return the next number."""
        (value,) = struct.unpack_from(fmt, self._buffer, self.position)
        self.position += struct.calcsize(fmt)
        number: int | float | bool = value
        return number

    def count(self) -> int:
        """Return the next 64-bit count."""
        return int(self.scalar("<Q"))

    def string(self) -> str:
        """Return the next string."""
        return self.take(self.count()).decode("utf-8", errors="replace")

    def skip_strings(self, length: int) -> None:
        """Step over an array of strings."""
        buffer, position, end = self._buffer, self.position, len(self._buffer)
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(length):
            position += 8 + unpack(buffer, position)[0]
            if position > end:
                raise ValueError("a string runs past its end")
        self.position = position


def _read_header(cursor: _Cursor) -> tuple[dict[str, object], dict[str, GgufTensor]]:
    if cursor.take(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = cursor.scalar("<I")
    if version not in VERSIONS:
        raise ValueError(f"version {version} is not supported")
    num_tensors, num_fields = cursor.count(), cursor.count()
    metadata: dict[str, object] = {}
    for _ in range(num_fields):
        key = cursor.string()
        metadata[key] = _read_value(cursor, int(cursor.scalar("<I")))
    tensors = dict(_read_tensor(cursor) for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    return metadata, {
        name: GgufTensor(
            shape=tensor.shape,
            ggml_type=tensor.ggml_type,
            offset_bytes=start + tensor.offset_bytes,
        )
        for name, tensor in tensors.items()
    }


def _read_value(cursor: _Cursor, value_type: int) -> object:
    if value_type == _STRING:
        return cursor.string()
    if value_type != _ARRAY:
        return cursor.scalar(_scalar_format(value_type))
    element_type, length = int(cursor.scalar("<I")), cursor.count()
    if element_type == _STRING:
        cursor.skip_strings(length)
    else:
        cursor.skip(length * struct.calcsize(_scalar_format(element_type)))
    return GgufArray(length=length)


def _scalar_format(value_type: int) -> str:
    if value_type not in _SCALAR_FORMATS:
        raise ValueError(f"metadata of type {value_type} is not known")
    return _SCALAR_FORMATS[value_type]


def _read_tensor(cursor: _Cursor) -> tuple[str, GgufTensor]:
    """Return a tensor with its offset counted from the start of the tensors."""
    name = cursor.string()
    num_dimensions = int(cursor.scalar("<I"))
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
    innermost_first = [cursor.count() for _ in range(num_dimensions)]
    ggml_type, offset = int(cursor.scalar("<I")), cursor.count()
    shape = tuple(reversed(innermost_first))
    return name, GgufTensor(shape=shape, ggml_type=ggml_type, offset_bytes=offset)
