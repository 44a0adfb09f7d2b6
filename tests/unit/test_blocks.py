"""The walks of runtime/kernels/blocks.py: every element once, never more scratch than allowed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.runtime.kernels.blocks import BLOCK_BYTES, blocks, integer, integers, number, project, tiles

SHAPES = st.lists(st.integers(1, 6), max_size=5).map(tuple)


@given(SHAPES, st.integers(1, 40))
def test_tiles_cover_every_element_once(shape: tuple[int, ...], length: int) -> None:
    seen = np.zeros(shape, int)
    for index in tiles(shape, length):
        assert seen[index].size <= length
        seen[index] += 1
    assert (seen == 1).all()


@given(SHAPES, st.integers(1, 40), st.data())
def test_project_agrees_with_broadcasting(shape: tuple[int, ...], length: int, data: st.DataObject) -> None:
    """An operand of some axes of size 1, and with leading axes left out."""
    dropped = data.draw(st.integers(0, len(shape)))
    small = tuple(data.draw(st.sampled_from((1, size))) for size in shape[dropped:])
    operand = np.arange(np.prod(small, dtype=int)).reshape(small)
    full = np.broadcast_to(operand, shape)
    for index in tiles(shape, length):
        part = np.broadcast_to(operand[project(index, small)], full[index].shape)
        assert np.array_equal(part, full[index])


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES // 8, BLOCK_BYTES // 8 + 1, BLOCK_BYTES // 2])
def test_blocks_cover_every_element_once(size: int) -> None:
    x, y = np.arange(size, dtype=np.float64), np.zeros(size)
    for source, target, spare in blocks(x, y, scratch=1):
        assert source.nbytes <= BLOCK_BYTES
        assert source.shape == target.shape == spare.shape
        np.multiply(source, 2, out=spare)
        np.add(target, spare, out=target)
    assert np.array_equal(y, 2 * x)


def test_attributes_are_read_by_type() -> None:
    attrs = {"alpha": "0.01", "axis": 2, "perm": (0, 2, 1)}
    assert number(attrs, "alpha") == 0.01
    assert number(attrs, "axis") == 2.0
    assert number(attrs, "beta", 0.5) == 0.5
    assert integer(attrs, "axis") == 2
    assert integer(attrs, "group", 1) == 1
    assert integers(attrs, "perm") == (0, 2, 1)
    for reader, name in ((number, "perm"), (integer, "alpha"), (integers, "axis")):
        with pytest.raises(TypeError, match=name):
            reader(attrs, name)
