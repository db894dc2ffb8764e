"""The time and memory of XCiT, compared with timm's XCiT and with other backbones."""

from .loaders import LoaderMeasurement, LoaderSettings, measure_loaders
from .measure import Measurement, Settings, measure
from .models import NAMES
from .report import (
    describe,
    describe_loader,
    describe_step,
    loader_table,
    step_table,
    table,
    write_json,
)
from .steps import StepMeasurement, StepSettings, measure_steps

__all__ = [
    'NAMES',
    'LoaderMeasurement',
    'LoaderSettings',
    'Measurement',
    'Settings',
    'StepMeasurement',
    'StepSettings',
    'describe',
    'describe_loader',
    'describe_step',
    'loader_table',
    'measure',
    'measure_loaders',
    'measure_steps',
    'step_table',
    'table',
    'write_json',
]
