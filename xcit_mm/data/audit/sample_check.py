"""What a run does with a sample of a dataset: its pipeline, its batch and the model's input."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.registry import FUNCTIONS, MODELS
from torch import Tensor

from ...base.errors import reason
from ..datasets.samples import Samples

PIPELINE_FAILS = 'the pipeline fails on it'
BATCH_FAILS = 'the model cannot take it'
NO_SCALE = 'without scale_factor, mmdetection cannot map its predictions to the image'
HINT = 'remove the image, or change the transform'
ADD_RESIZE = (
    "its pipeline does not resize: add dict(type='Resize', scale=(640, 640), keep_ratio=True), "
    'with the scale of the training'
)


class SampleProblem(NamedTuple):
    """A problem that a run has with a sample."""

    kind: str
    file: str
    detail: str


class SampleCheck:
    """Runs samples through the pipeline of a dataset and the preprocessor of the model.

    Args:
        cfg: The config of the run.
        split: 'train', 'val' or 'test'.
        dataset: The dataset of the split, or one of the datasets that it joins.
    """

    def __init__(self, cfg: Config, split: str, dataset: Any) -> None:
        self._samples, self._is_training = Samples(dataset), split == 'train'
        loader = cfg[f'{split}_dataloader']
        self._collate = _collate_of(loader)
        self._makes_pairs = self._is_training and loader.get('batch_size', 1) != 1
        preprocessor = (cfg.get('model') or {}).get('data_preprocessor')
        self._preprocess = MODELS.build(preprocessor) if preprocessor else None
        self._needs_scale = not self._is_training and cfg.default_scope == 'mmdet'
        self._last: Any = None

    def __len__(self) -> int:
        return len(self._samples)

    def __call__(self, index: int) -> SampleProblem | None:
        """Return the problem of a sample, or None."""
        sample, bad = self._samples[index]
        if bad:
            return SampleProblem(PIPELINE_FAILS, bad[0].file, f'{bad[0].reason}; {HINT}')
        inputs = sample.get('inputs') if isinstance(sample, dict) else None
        if not isinstance(inputs, Tensor):  # a large image, or views of an image
            return None
        file = str(sample['data_samples'].get('img_path'))
        if self._needs_scale and 'scale_factor' not in sample['data_samples']:
            return SampleProblem(NO_SCALE, file, ADD_RESIZE)
        # Training stacks images; evaluation allows images of any size.
        batch = [s for s in (self._last, sample) if s is not None]
        if self._preprocess is not None:
            try:
                self._preprocess(self._collate(deepcopy(batch)), training=self._is_training)
            except Exception as error:  # stacking images may raise anything
                shapes = ' and '.join(str(tuple(s['inputs'].shape)) for s in batch)
                detail = f'{reason(error)}; images of the shapes {shapes}'
                return SampleProblem(BATCH_FAILS, file, detail)
        self._last = sample if self._makes_pairs else None
        return None


def _collate_of(loader: dict) -> Callable[[list], Any]:
    """Return the function that makes a batch, as in mmengine's runner."""
    options = dict(loader.get('collate_fn') or dict(type='pseudo_collate'))
    kind = options.pop('type')
    return partial(FUNCTIONS.get(kind) if isinstance(kind, str) else kind, **options)
