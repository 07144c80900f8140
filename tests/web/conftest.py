"""The application around one job."""

from __future__ import annotations

import pytest
from web_rig import Rig


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.close()
