"""A trained model that takes images and returns predictions."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from PIL import Image
from torch import nn

from ..base.colors import Color
from ..base.device import choose_device, choose_dtype
from ..base.environment import quiet, require_framework
from ..base.errors import UserError, reason
from ..base.shipped import is_folder
from ..config.build_model import build_model, config_errors, weights_for
from ..config.load import load_config
from ..config.rules import require_parts
from ..config.trained_size import trained_size
from ..config.tree import class_name, pipeline_of_test_set
from ..data.transforms.multiband import LoadMultiband
from ..large.maps.known_models import predicts_heights
from ..network.weights.names import require_same_tensors
from ..network.weights.pretrained import require_file
from ..network.weights.read import read_checkpoint
from .fusion.fused_copy import FusedCopy
from .low_memory import free_backbone_maps, segment
from .results import Detections, Heights, Segmentation
from .results.class_names import check_names, classes_and_palette, names_classes
from .same_sizes import groups_of
from .sources import to_bands, to_rgb

if TYPE_CHECKING:
    from .large.large_predictions import LargePrediction

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation'}  # by the scope of the config

ImageLike = str | Path | np.ndarray | Image.Image
Prediction = Detections | Heights | Segmentation


class Prepared(NamedTuple):
    """An image that :meth:`Model.prepare` has read."""

    image: np.ndarray  # as ``Model.read`` returns it
    results: dict[str, Any]  # of the transforms, except for the last one, which makes tensors


@dataclass(eq=False, repr=False)
class Model:
    """A trained detector or segmentor, from :func:`load_model`.

    Attributes:
        task: 'detection', 'segmentation', 'panoptic' or 'heights'.
        classes: Names of the classes; none for heights.
        palette: A color for each class.
        module: mmdet's or mmseg's model, in evaluation mode and in float32.
        pipeline: The transforms of the config's test dataset.
        dtype: The dtype that predictions are computed in.
        compiled: Whether to compile the backbone and the neck with ``torch.compile``.
        graphs: Whether sizes of batches that come again replay CUDA graphs.
        streamed_dtype: The dtype of large images, in which the tokens are, too.
        trained_size: The longer and the shorter side, in pixels, of the images that the config
            trains on; None if the config does not say.
    """

    task: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    module: nn.Module
    pipeline: Compose
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    graphs: bool = False
    streamed_dtype: torch.dtype = torch.float32
    trained_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._fused = FusedCopy(self.dtype, self.compiled, self.graphs)

    def predict(self, image: ImageLike) -> Prediction:
        """Detect the objects of an image, or predict the classes or the heights of its pixels.

        Args:
            image: A path or http(s) URL, an image of PIL, or an array: RGB (H, W, 3), RGBA or gray
                (H, W), uint8 or uint16. An array is predicted like a PNG file of it. For a model
                that loads its images with ``LoadMultiband``: a path or URL of a TIFF file, or an
                array of its bands (H, W, ``channels``).

        Raises:
            UserError: If the image cannot be read.
        """
        return self.predict_batch([image])[0]

    def read(self, image: ImageLike) -> np.ndarray:
        """Return an image as RGB (H, W, 3) uint8, or as bands (H, W, ``channels``) float32."""
        return to_rgb(image) if self.bands is None else to_bands(image, self.bands)

    @property
    def bands(self) -> LoadMultiband | None:
        """The loader of the config, if it loads other channels than RGB."""
        loader = self.pipeline.transforms[0]
        return loader if isinstance(loader, LoadMultiband) else None

    def prepare(self, image: ImageLike) -> Prepared:
        """Read and resize an image, for example in a thread, before :meth:`predict_batch`.

        PyTorch is not used: it would start CPU threads for each thread that calls it, and these
        would slow down the threads of the model.

        Raises:
            UserError: If the image cannot be read or resized.
        """
        image = self.read(image)
        array = np.ascontiguousarray(image[..., ::-1]) if self.bands is None else image
        # Some transforms that resize do not set scale_factor, and a pipeline may have none.
        results = dict(img=array, img_path='', img_id=0, scale_factor=(1.0, 1.0))
        try:
            return Prepared(image, Compose(self.pipeline.transforms[:-1])(results))
        except cv2.error as error:
            height, width = image.shape[:2]
            raise UserError(
                f'an image of {width}x{height} pixels cannot be resized as the config says '
                f'({reason(error)}); skip the resizing with --full-size'
            ) from None

    def pack(self, prepared: Prepared) -> dict[str, Any]:
        """Return the ``inputs`` (C, H, W) and ``data_samples`` of a prepared image."""
        return self.pipeline.transforms[-1](prepared.results)

    @torch.inference_mode()
    def predict_batch(self, images: Sequence[ImageLike | Prepared]) -> list[Prediction]:
        """Predict several images; see :meth:`predict`.

        Only images that the model gets at one size go through it together, because XCiT would
        attend to padding. So a prediction does not depend on the other images of the batch.
        """
        prepared = [im if isinstance(im, Prepared) else self.prepare(im) for im in images]
        samples = [self.pack(image) for image in prepared]
        predictions = {}
        for indices in groups_of([sample['inputs'].shape for sample in samples]):
            data = {
                key: [samples[i].pop(key) for i in indices] for key in ('inputs', 'data_samples')
            }
            results = self._predict(data, [self._picture(prepared[i].image) for i in indices])
            predictions.update(zip(indices, results, strict=True))
        return [predictions[i] for i in range(len(prepared))]

    def predict_large(
        self, image: str | Path | np.ndarray, *args: Any, **options: Any
    ) -> 'LargePrediction | None':
        """Predict an image that does not fit into memory; see :func:`.predict_large`.

        The arguments after the image are the fields of :class:`.LargeOptions`, such as ``memory``.
        """
        # Other predictions do not need it.
        from .large.predict_large import LargeOptions, predict_large

        return predict_large(self, image, LargeOptions(*args, **options))

    def at_own_size(self) -> 'Model':
        """Return the model without resizing of images, and with the same fused copy."""
        model = copy(self)
        transforms = self.pipeline.transforms
        model.pipeline = Compose([t for t in transforms if 'Resize' not in type(t).__name__])
        return model

    def _picture(self, image: np.ndarray) -> np.ndarray:
        return image if self.bands is None else self.bands.picture(image)

    def _predict(self, data: dict[str, Any], images: list[np.ndarray]) -> list[Prediction]:
        names = self.classes, self.palette
        is_segmentation = self.task == 'segmentation'
        # Graphs keep their maps, and call no hook that could free them.
        free = nullcontext if self.graphs else free_backbone_maps
        with self._fused.of(self.module) as module, free(module):
            results = segment(module, data) if is_segmentation else module.test_step(data)
        if is_segmentation:
            dtype = np.uint8 if len(self.classes) <= 256 else np.int16
            labels = [x.cpu().numpy().astype(dtype) for x in results]
            return [Segmentation(*pair, *names) for pair in zip(images, labels, strict=True)]
        if self.task == 'heights':
            maps = [result.pred_depth_map.data[0].float().cpu().numpy() for result in results]
            return [Heights(*pair) for pair in zip(images, maps, strict=True)]
        if self.task == 'panoptic':
            segments = [result.pred_panoptic_seg for result in results]
            pairs = zip(segments, images, strict=True)
            return [Segmentation.from_panoptic(*pair, *names) for pair in pairs]
        return [
            Detections.from_instances(result.pred_instances, image, *names)
            for result, image in zip(results, images, strict=True)
        ]


def load_model(
    config: str | Path,
    checkpoint: str | Path | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
    full_size: bool = False,
    dtype: str | torch.dtype | None = None,
    compiled: bool = False,
    graphs: bool = False,
) -> Model:
    """Build the model of a config with the weights of a checkpoint, to predict with.

    Args:
        config: Path of a config file; or ``hf://owner/name`` or ``hf://owner/name@revision``, a
            model on the Hugging Face hub, or a folder with the same files.
        checkpoint: File or URL of a released model, or of a checkpoint of this config. Default: the
            weights of the model on the hub or in the folder.
        device: 'cpu', 'cuda', 'cuda:1'; None: the GPU if there is one, else the CPU.
        options: Dotted names, and values that replace the values of the config.
        trust_checkpoint: Whether to read a file that holds more than weights, and run code in it.
        full_size: Whether to leave out the config's ``Resize``.
        dtype: 'float32', 'bfloat16' or 'float16', also as a ``torch.dtype``, or 'auto' for the
            fastest of them that the device has instructions for. Boxes and scores are computed in
            float32 in any case. None: 'auto' on a GPU, 'float32' on a CPU and for
            :meth:`Model.predict_large`.
        compiled: Whether to compile the backbone and the neck with ``torch.compile`` at the first
            prediction, which takes a minute. On a CPU, this needs a C++ compiler.
        graphs: Whether backbone, neck and dense heads are captured as CUDA graphs when a size of
            batches comes the second time, and replayed from then on. This needs a GPU, and memory
            for up to 16 sizes.

    Raises:
        UserError: If the config, an option, the device or the dtype is invalid, or the checkpoint
            cannot be read or belongs to another model.
    """
    if checkpoint is None and not is_folder(config):
        raise UserError(f'the config {config} has no weights of its own: name a checkpoint, too')
    cfg = load_config(config, options)
    require_parts(cfg, 'prediction')
    target = choose_device(device)
    computed_dtype = choose_dtype(dtype, target)
    checkpoint = str(config if checkpoint is None else checkpoint)
    require_file(checkpoint, trusted=trust_checkpoint)
    content = read_checkpoint(checkpoint, trusted=trust_checkpoint)
    module = build_model(cfg, 'cpu')
    state = weights_for(module, content, checkpoint)
    require_same_tensors(state, module.state_dict(), checkpoint)
    module.load_state_dict(state, strict=False)
    require_framework(cfg.default_scope)
    scope = DefaultScope.overwrite_default_scope(cfg.default_scope)
    has_classes = not predicts_heights(module)
    with config_errors(cfg), scope, quiet():
        names = classes_and_palette(cfg, content, module) if has_classes else ((), ())
        # Otherwise the checkpoint names the classes, if it can.
        is_named = has_classes and names_classes(cfg)
        renamed = check_names(cfg, content, checkpoint, predicts=True) if is_named else ''
        pipeline = _test_pipeline(cfg, full_size)
    if renamed:
        logging.getLogger(__name__).warning(renamed)
    fusion = getattr(module, 'panoptic_fusion_head', None)
    is_panoptic = fusion is not None and module.test_cfg.get('panoptic_on', True)
    task = 'panoptic' if is_panoptic else TASKS[cfg.default_scope]
    task = task if has_classes else 'heights'
    dtypes = dict(dtype=computed_dtype, streamed_dtype=choose_dtype(dtype or 'float32', target))
    modes = dict(compiled=compiled, graphs=graphs, trained_size=trained_size(cfg))
    return Model(task, *names, module.to(target), pipeline, **modes, **dtypes)


def _test_pipeline(cfg: Config, full_size: bool) -> Compose:
    """Build the transforms of the test dataset for a decoded image without annotations."""
    transforms = [_of_decoded_image(t, cfg.default_scope) for t in pipeline_of_test_set(cfg)]
    left_out = ('Load', 'Resize') if full_size else ('Load',)  # parts of names
    remaining = [t for t in transforms if not any(part in str(t['type']) for part in left_out)]
    loaders = [t for t in transforms if str(t['type']).endswith(LoadMultiband.__name__)]
    if not loaders:
        to_float32 = bool(transforms[0].get('to_float32', False))
        loaders = [dict(type='LoadImage', to_float32=to_float32)]
    return Compose([loaders[0], *remaining])


def _of_decoded_image(transform: dict, scope: str) -> dict:
    """Return the counterpart, for an image in memory, of a transform of images in files."""
    kind = class_name(transform['type'])
    if kind == 'OpenImage':
        bands = transform.get('bands')
        return dict(type='LoadMultiband', **bands) if bands else dict(type='LoadImage')
    if kind == 'OpenLabels':
        return dict(type='LoadLabels')
    if kind == 'PackScene':
        return dict(type='PackDetInputs' if scope == 'mmdet' else 'PackSegInputs')
    return transform
