"""The hooks of our configs, registered with mmengine. See ``order.py`` for their order."""

from .bad_data import BadDataHook
from .checkpoint import WholeCheckpointHook
from .interrupt import InterruptHook
from .label_check import LabelCheckHook
from .loss_log import LossLogHook
from .non_finite import NonFiniteHook
from .pictures import PictureHook
from .report import ReportHook
from .tensorboard import TensorBoardHook

__all__ = [
    'BadDataHook',
    'InterruptHook',
    'LabelCheckHook',
    'LossLogHook',
    'NonFiniteHook',
    'PictureHook',
    'ReportHook',
    'TensorBoardHook',
    'WholeCheckpointHook',
]
