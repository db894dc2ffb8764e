"""Packages that mmdet and mmseg import for few models."""

import subprocess
import sys

PROGRAM = """
import sys
import xcit_mm
import mmseg.models
from mmdet.models.dense_heads import paa_head
from mmdet.models.task_modules.tracking import interpolation
from mmseg.models.backbones import timm_backbone

assert not {'timm', 'sklearn', 'pandas', 'pyarrow', 'wandb'} & sys.modules.keys()
assert type(paa_head.skm.GaussianMixture(2)).__module__ == 'sklearn.mixture._gaussian_mixture'
process = interpolation.GPR(interpolation.RBF(10.0))
assert type(process).__module__ == 'sklearn.gaussian_process._gpr'
assert timm_backbone.timm.create_model('resnet18').num_classes == 1000
assert sys.modules['timm'].__version__ and sys.modules['sklearn'].__version__
"""


def test_packages_of_few_models_are_imported_when_they_are_called():
    done = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
