"""The modules that data workers need, imported by the fork server so that they share them."""

import importlib
import os

from ...base.environment import quiet
from . import PRELOAD

if PRELOAD in os.environ:  # not in a server that is started again after its end
    with quiet():
        importlib.import_module(os.environ[PRELOAD])
