"""XCiT backbones for mmdetection and mmsegmentation.

Most programs need only the names that this package exports:

- :func:`~xcit_mm.inference.model.load_model` loads a trained model for prediction.
- :class:`~xcit_mm.models.xcit.XCiT` is the backbone.
- :func:`~xcit_mm.models.timm.accelerate` speeds up an XCiT of timm.
- :func:`xcit_mm.ops.xca() <xcit_mm.ops.xca.xca>` is the attention as a function.
- :class:`~xcit_mm.errors.UserError` is the error for a wrong input.

Importing this package registers the backbone and the hooks of our configs with mmengine, and
replaces the compiled operators of mmcv if they are missing.
"""

from . import environment

environment.require('torch')
environment.require('cv2')  # mmengine imports it, and it is what a slim machine cannot load
environment.require('mmengine')

from . import mmcv_ops  # noqa: E402  needs what was just checked

mmcv_ops.install()

from . import engine  # noqa: E402, F401  registers the loops and hooks of our configs
from .datasets import multiband  # noqa: E402, F401  registers their image loaders
from .errors import UserError  # noqa: E402
from .inference import load_model  # noqa: E402
from .models import XCiT  # noqa: E402
from .models.timm import accelerate  # noqa: E402

__version__ = '0.1.0'
__all__ = ['UserError', 'XCiT', '__version__', 'accelerate', 'load_model']
