"""XCiT backbones for mmdetection and mmsegmentation.

Importing this package registers :class:`XCiT` and the hooks of our configs, and stands in for
mmcv's compiled operators where they are missing.
"""

from . import environment

environment.require('torch')
environment.require('cv2')  # mmengine imports it, and it is what a slim machine cannot load
environment.require('mmengine')

from . import mmcv_ops  # noqa: E402  needs what was just checked

mmcv_ops.install()

from . import engine  # noqa: E402, F401  registers the loops and hooks of our configs
from .datasets import images  # noqa: E402, F401  registers their image loader
from .errors import UserError  # noqa: E402
from .inference import load_model  # noqa: E402
from .models import XCiT  # noqa: E402
from .models.timm import accelerate  # noqa: E402

__version__ = '0.1.0'
__all__ = ['UserError', 'XCiT', '__version__', 'accelerate', 'load_model']
