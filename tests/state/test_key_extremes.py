"""Keys at the limits of their types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.errors import UsageError
from penstock.state.keys import key_values


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Paris"), pa.duration("ns")], ids=str)
def test_a_key_that_pandas_takes_for_no_value_is_refused_and_null_is_not(kind):
    least = -(2**63)
    assert key_values("at", pa.array([None, 1], pa.int64()).view(kind))[0] is None
    with pytest.raises(UsageError, match=f"column 'at': .* has no equal in Python: {least}") as caught:
        key_values("at", pa.array([None, 1, least], pa.int64()).view(kind))
    assert "drop or change such rows" in caught.value.hint
