"""Parameters and multiply-adds of models, part by part, for images of any size."""

from .models import count_backbone, count_classifier, count_config
from .report import table, write_json

__all__ = ['count_backbone', 'count_classifier', 'count_config', 'table', 'write_json']
