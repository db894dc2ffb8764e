from .pictures import PictureHook
from .report import ReportHook
from .run import test, train

__all__ = ['PictureHook', 'ReportHook', 'test', 'train']
