"""Imported by the fork server, so that the data workers share the modules that they need."""

import importlib
import os

from ...environment import quiet
from .workers import PRELOAD

with quiet():
    importlib.import_module(os.environ.get(PRELOAD, 'xcit_mm.engine'))
