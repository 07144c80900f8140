"""How far event time had come, as a snapshot says it."""

from __future__ import annotations

import pytest

from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.window_table import FiredRange


@pytest.mark.parametrize("time_us", [2**63, -(2**63) - 1, 2**64])
def test_a_time_that_does_not_fit_into_64_bits_is_a_corrupt_file(time_us):
    fired = Fired()
    with pytest.raises(CorruptFile, match=f"event time had come to {time_us}, which is no time"):
        fired.restore([FiredRange(first_group=0, last_group=127, fired_us=time_us)], (0, 127))


@pytest.mark.parametrize("time_us", [2**63 - 1, -(2**63), 0])
def test_every_other_time_is_taken(time_us):
    fired = Fired()
    fired.restore([FiredRange(first_group=0, last_group=127, fired_us=time_us)], (0, 127))
    assert fired.most == fired.least == time_us
