"""Rows to sample, as records for the kernels and as arrays for the reference."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.gpu.sampling_records import (
    IS_FILTERED,
    IS_ROW,
    RECORD_WORDS,
    ROW_RECORD,
)
from nanobatch.kernels.sampling_draw import NoiseKeys, draw_dense
from nanobatch.kernels.sampling_filters import apply_min_p, apply_top_k, apply_top_p


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCase:
    """Logits [n, vocab] on the CPU, and the records and positions of their rows."""

    logits: torch.Tensor
    rows: npt.NDArray[np.void]
    positions: npt.NDArray[np.int64]

    @classmethod
    def random(
        cls, num_rows: int, vocab_size: int, *, seed: int, filtered: bool = False
    ) -> "SamplingCase":
        random = np.random.default_rng(seed)
        rows = np.zeros(num_rows, dtype=ROW_RECORD)
        rows["flags"] = IS_ROW | (IS_FILTERED if filtered else 0)
        rows["temperature"] = random.uniform(0.3, 2.0, num_rows)
        rows["noise_seed"] = random.integers(0, 2**64, num_rows, dtype=np.uint64)
        rows["sample_index"] = random.integers(0, 2**32, num_rows)
        rows["top_p"], rows["top_k"], rows["log_min_p"] = 1.0, vocab_size, -np.inf
        logits = torch.from_numpy(random.normal(0.0, 3.0, (num_rows, vocab_size))).float()
        return cls(logits=logits, rows=rows, positions=random.integers(0, 5000, num_rows))

    def records(self, device: torch.device) -> torch.Tensor:
        words = self.rows.view(np.int32).reshape(len(self.rows), RECORD_WORDS)
        return torch.from_numpy(words.copy()).to(device)

    def device_positions(self, device: torch.device) -> torch.Tensor:
        return torch.from_numpy(self.positions.astype(np.int32)).to(device)

    def scaled(self) -> torch.Tensor:
        return self.logits / torch.from_numpy(self.rows["temperature"].copy())[:, None]

    def filtered(self) -> torch.Tensor:
        """Scaled logits, -inf where the reference drops a token."""
        filtered = self.scaled()
        apply_min_p(filtered, torch.from_numpy(self.rows["log_min_p"].astype(np.float64)).exp())
        apply_top_k(filtered, torch.from_numpy(self.rows["top_k"].astype(np.int64)))
        nucleus = np.flatnonzero(self.rows["top_p"] < 1.0)
        selected = filtered[nucleus]
        apply_top_p(selected, torch.from_numpy(self.rows["top_p"][nucleus]))
        filtered[nucleus] = selected
        return filtered

    def drawn(self, scaled: torch.Tensor) -> list[int]:
        """The reference's tokens."""
        keys = NoiseKeys(
            seeds=self.rows["noise_seed"].copy(),
            samples=self.rows["sample_index"].astype(np.int64),
            positions=self.positions.astype(np.int64),
        )
        tokens: list[int] = draw_dense(scaled, keys).tolist()
        return tokens
