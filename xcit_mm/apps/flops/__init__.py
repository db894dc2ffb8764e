"""Parameters and multiply-adds of models, part by part, for images of any size."""

from .counting import table, write_json
from .models import count_backbone, count_classifier, count_config

__all__ = ['count_backbone', 'count_classifier', 'count_config', 'table', 'write_json']
