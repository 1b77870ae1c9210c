"""The data types in which a kernel is tested: bfloat16 only where there is a GPU.

Triton's interpreter cuts bits off where a GPU rounds to bfloat16.
"""

import pytest
import torch

DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(
        torch.bfloat16,
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="rounding needs a GPU"),
        ],
    ),
]
