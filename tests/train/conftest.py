"""Trainings, which write their configs into work dirs."""

import pytest


@pytest.fixture(autouse=True, scope='module')
def _unformatted(unformatted_configs) -> None:
    """Their layout would take longer than the steps of most tests."""
