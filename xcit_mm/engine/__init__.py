from . import loops, metrics  # registered, as are the hooks
from .bad_data import BadDataHook
from .batch_file import losses_of_batch
from .buffers import BufferSyncHook
from .checkpoints import WholeCheckpointHook
from .finite import FiniteHook
from .interrupts import InterruptHook
from .label_check import LabelCheckHook
from .loss_log import LossLogHook
from .pictures import PictureHook
from .report import ReportHook
from .run import test, train
from .tensorboard import TensorBoardHook

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
