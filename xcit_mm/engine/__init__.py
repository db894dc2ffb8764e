from . import metrics  # registered, as are the hooks
from .buffers import BufferSyncHook
from .label_check import LabelCheckHook
from .pictures import PictureHook
from .report import ReportHook
from .run import test, train

__all__ = [
    'BufferSyncHook',
    'LabelCheckHook',
    'PictureHook',
    'ReportHook',
    'metrics',
    'test',
    'train',
]
