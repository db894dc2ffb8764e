"""The hooks of our configs, registered with mmengine. See ``order.py`` for their order."""

from . import (  # noqa: F401  registered when they are imported
    bad_data,
    interrupt,
    label_check,
    loss_log,
    merged_views,
    non_finite,
    pictures,
    report,
)
