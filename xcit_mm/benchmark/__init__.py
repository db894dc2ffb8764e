"""Time and memory of XCiT beside timm's and beside other backbones."""

from .measure import Measurement, Settings, measure
from .models import NAMES
from .report import draw, table, write_json

__all__ = ['NAMES', 'Measurement', 'Settings', 'draw', 'measure', 'table', 'write_json']
