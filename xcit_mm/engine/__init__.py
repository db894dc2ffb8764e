from . import loops, metrics  # registered, as are the hooks
from .hooks.bad_data import BadDataHook
from .hooks.batch_file import losses_of_batch
from .hooks.buffers import BufferSyncHook
from .hooks.checkpoint import WholeCheckpointHook
from .hooks.interrupt import InterruptHook
from .hooks.label_check import LabelCheckHook
from .hooks.loss_log import LossLogHook
from .hooks.non_finite import FiniteHook
from .hooks.pictures import PictureHook
from .hooks.report import ReportHook
from .hooks.tensorboard import TensorBoardHook
from .train import test, train

__all__ = [
    'BadDataHook',
    'BufferSyncHook',
    'FiniteHook',
    'InterruptHook',
    'LabelCheckHook',
    'LossLogHook',
    'PictureHook',
    'ReportHook',
    'TensorBoardHook',
    'WholeCheckpointHook',
    'loops',
    'losses_of_batch',
    'metrics',
    'test',
    'train',
]
