from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # two workers share two cores; and one thread sums in one order
SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """Real data sets for tests, which only developers' machines have."""
    if not SHARED.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine")
    return SHARED
