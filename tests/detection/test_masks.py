"""Run lengths are checked before pycocotools, which trusts them, gets them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from us3l.detection.masks import encode_mask, run_lengths


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1))
def test_run_lengths_are_those_of_the_mask(seed: int, height: int, width: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    lengths = run_lengths(encode_mask(mask)["counts"])
    assert np.array_equal(np.repeat(np.arange(len(lengths)) % 2 == 1, lengths), mask.ravel(order="F"))


@pytest.mark.parametrize("text", ["P", "0P", "oooooooooo", "\x00", "é", "~"])
def test_what_is_no_run_length(text: str) -> None:
    with pytest.raises(ValueError):
        run_lengths(text)
