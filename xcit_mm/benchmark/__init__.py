"""The time and memory of XCiT, compared with timm's XCiT and with other backbones."""

from .measure import Measurement, Settings, measure
from .models import NAMES
from .report import describe, table, write_json

__all__ = ['NAMES', 'Measurement', 'Settings', 'describe', 'measure', 'table', 'write_json']
