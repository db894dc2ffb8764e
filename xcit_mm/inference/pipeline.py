"""The transforms of a config's test dataset, for images without annotations."""

from mmengine.config import Config
from mmengine.dataset import Compose

from ..datasets.config import leaf_datasets
from ..errors import UserError

LOADS = 'Load'  # LoadImageFromFile, LoadAnnotations, LoadProposals, ...
RESIZES = 'Resize'  # Resize, FixShapeResize, ResizeShortestEdge, ...


def test_pipeline(cfg: Config, full_size: bool) -> Compose:
    """Build the transforms of the test dataset for an image that is already decoded.

    Args:
        cfg: The config; the registries of its framework are filled and its scope is in force.
        full_size: Without what resizes.

    Raises:
        UserError: If the test dataset has none.
    """
    dataset = cfg.test_dataloader.dataset
    transforms = dataset.get('pipeline') or next(leaf_datasets(dataset)).get('pipeline')
    if not transforms:
        raise UserError(f'{cfg.filename}: the test dataset has no pipeline')
    left_out = (LOADS, RESIZES) if full_size else (LOADS,)
    kept = [
        transform
        for transform in transforms
        if not any(part in str(transform['type']) for part in left_out)
    ]
    to_float32 = bool(transforms[0].get('to_float32', False))
    return Compose([dict(type='LoadImage', to_float32=to_float32), *kept])
