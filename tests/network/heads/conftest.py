from collections.abc import Iterator

import pytest
from mmengine.registry import DefaultScope


@pytest.fixture(autouse=True)
def _scope_of_mmdet() -> Iterator[None]:
    """In which a run builds the parts of a head; the tests build some of them by themselves."""
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield
