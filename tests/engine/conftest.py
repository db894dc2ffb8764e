"""What the tests of trainings share."""

from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import mmengine.config.config
import pytest
import yapf.yapflib.yapf_api


@pytest.fixture(scope='module')
def unformatted_configs() -> Iterator[None]:
    """Spare the layout of configs, which takes mmengine longer than the steps of short runs."""
    name, places = 'FormatCode', (mmengine.config.config, yapf.yapflib.yapf_api)
    with ExitStack() as stack:
        for place in places:  # where the two families of packages look for it
            stack.enter_context(
                patch.object(place, name, lambda text, **_: (text, True), create=True)
            )
        yield
