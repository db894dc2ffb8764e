"""A model wrapper of mmengine that trains on whole images of any size and predicts them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..base.device import DTYPES
from ..base.errors import ProcessesError, UserError
from ..base.processes import all_processes, cpu_group, own_group
from ..base.progress import LoggedProgress, Progress, TileProgress, silent
from ..large.files.image_source import ImageSource
from ..large.files.normalized_image import NormalizedImage, require_only_normalization
from ..large.losses.step import require_room, require_trainable_model, streamed_loss
from ..large.maps.known_models import require_detector, require_segmentor
from ..large.tokens.passes import Passes, Unread
from ..large.tokens.streamable import require_streamable
from ..large.tokens.workspace import Workspace, memory_limit, open_workspace
from ..predict.fusion.fused_copy import in_dtype
from ..predict.large.streamed_results import bytes_of_pixel, label_dtype, memory_needed, results_of
from .distributed import average_gradients

HINT = 'set stream=None, and train on crops'


@MODEL_WRAPPERS.register_module()
class StreamedModel(nn.Module):
    """A detector or segmentor that computes whole images tile by tile, and can train on them.

    It replaces mmengine's DistributedDataParallel, and also wraps the model of a single process. A
    batch is ``dict(inputs=[ImageSource], data_samples=[sample])``. The gradients of a step are the
    gradients of the whole image. BatchNorm stays in evaluation mode, because the statistics of an
    image are known only after all of its tiles.

    Args:
        module: The model, with an XCiT.
        memory: Bytes that the tokens of an image and a tile may take in memory. Default: half of
            the free memory, divided by the number of processes on this machine.
        store: A folder for the tokens of images that need more. Default: such images raise errors.
        shared: Whether the processes share each image. Otherwise, each process has an image of its
            own, and the gradients are averaged.
        train: Whether training computes whole images as well. Otherwise, it is mmengine's, with
            batches of images in memory and with DistributedDataParallel for several processes.
        dtype: The dtype of predictions: 'float32', 'bfloat16' or 'float16'.
        find_unused_parameters: See DistributedDataParallel.

    Attributes:
        group: The processes that share an image; see :class:`~xcit_mm.large.tokens.passes.Passes`.

    Raises:
        UserError: If it is not known how to compute the predictions of the model tile by tile.
    """

    def __init__(
        self,
        module: nn.Module,
        memory: int | None = None,
        store: str | None = None,
        shared: bool = False,
        train: bool = True,
        dtype: str = 'float32',
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.module = revert_sync_batchnorm(module) if train else module
        self.trains = train
        self.memory, self.shared, self.dtype = memory_limit(memory), shared, DTYPES[dtype]
        self.store = None if store is None else Path(store)
        self.group = cpu_group() if shared else own_group()
        self.eval()
        require_streamable(getattr(self.module, 'backbone', self.module))
        require_only_normalization(self.module.data_preprocessor, ())
        require = require_segmentor if self._is_segmentor else require_detector
        require(self.module, HINT)
        self._trained = [self.module]  # in a list: its parameters are counted once
        if not train and get_world_size() > 1:
            self._trained = [_distributed(self.module, find_unused_parameters)]

    @property
    def _is_segmentor(self) -> bool:
        return hasattr(self.module, 'decode_head')

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> 'StreamedModel':
        """Switch the mode; where whole images are trained, BatchNorm stays in evaluation mode."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm) and self.trains:
                module.eval()
        return self

    def train_step(self, data: dict[str, list], optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """Train on one image, or on a batch in memory, and return the losses for the log.

        Raises:
            UserError: If the image cannot be read, has changed, or does not fit into the memory
                and the store. All processes raise it, before the weights change.
        """
        if not self.trains:
            return self._trained[0].train_step(data, optim_wrapper)
        source, sample = data['inputs'][0], data['data_samples'][0]
        places = self.memory, self.store, self.group
        with all_processes(cpu_group()), shown(source) as progress:
            image = self._image(source, sample)
            with optim_wrapper.optim_context(self.module):
                loss, parts = streamed_loss(self.module, image, sample, *places, progress)
            source.require_unchanged()
            if 'label_windows' in sample:
                sample.label_windows.require_unchanged()
        # As in update_params of the wrapper, which cannot average the gradients of processes.
        optim_wrapper.backward(optim_wrapper.scale_loss(loss))
        if optim_wrapper.should_update():
            if not self.shared:
                average_gradients(self.module.parameters())
            optim_wrapper.step()
            optim_wrapper.zero_grad()
        terms = {'loss': loss.item(), **parts}
        return {name: torch.tensor(value) for name, value in terms.items()}

    @torch.no_grad()
    def test_step(self, data: dict[str, list]) -> list[BaseDataElement]:
        """Predict one image, and return its sample with the prediction and the ``scene``.

        The labels of a large image are a memory map, and the masks of its objects are pairs of a
        window and the mask in it. If processes share the image, the first one gets the prediction.
        """
        source, sample = data['inputs'][0], data['data_samples'][0]
        with all_processes(self.group), shown(source) as progress:
            image = self._image(source, sample)
            module = in_dtype(self.module, self.dtype)
            passes = Passes(module.backbone, image, group=self.group)
            passes.workspace = self._workspace(passes, image.size)
            try:
                outputs = results_of(module, passes, image.size, self._of_pixel, progress=progress)
            finally:
                passes.workspace.remove()  # memory maps of its files remain
            source.require_unchanged()
        sample.scene = image  # for pictures
        if outputs is not None and self._is_segmentor:
            sample.pred_sem_seg = PixelData(data=torch.from_numpy(outputs['labels'])[None])
        elif outputs is not None:
            sample.pred_instances = _instances(**outputs)
        return [sample]

    val_step = test_step

    def _image(self, source: ImageSource, sample: BaseDataElement) -> NormalizedImage:
        """Return an image as the input of the model."""
        return NormalizedImage(source, self.module.data_preprocessor, (), sample.get('bands'))

    def require_room(self, path: str, size: tuple[int, int], is_trained: bool) -> None:
        """Refuse an image (H, W) that needs more memory or disk space than there is."""
        with image_named(path):
            if is_trained:
                require_trainable_model(self.module)
                require_room(self.module, size, self.memory, self.store, self.group)
            else:
                self._require_room_to_predict(size)

    def _require_room_to_predict(self, size: tuple[int, int]) -> None:
        backbone = self.module.backbone
        passes = Passes(backbone, Unread((backbone.in_channels, *size)), group=self.group)
        self._workspace(passes, size).remove()

    def _workspace(self, passes: Passes, size: tuple[int, int]) -> Workspace:
        shards = passes.shards
        demand = memory_needed(passes, size, bytes_of_pixel(self._of_pixel, 1))
        folder = None if self.store is None else self.store / shards.part
        return open_workspace(demand, shards, self.memory, folder)

    @property
    def _of_pixel(self) -> dict[str, torch.dtype]:
        """What the model makes for each pixel."""
        if not self._is_segmentor:
            return {}
        return dict(labels=label_dtype(self.module.decode_head.num_classes))


def _distributed(model: nn.Module, find_unused_parameters: bool) -> nn.Module:
    """Wrap a model for several processes as mmengine's runner does, with or without GPUs."""
    return MMDistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if torch.cuda.is_available() else None,
        broadcast_buffers=False,
        find_unused_parameters=find_unused_parameters,
    )


@contextmanager
def shown(source: ImageSource) -> Iterator[Progress]:
    """Show the progress of an image, and name the image in errors about it."""
    with image_named(source.name):
        if not is_main_process():
            yield silent
        elif sys.stderr.isatty():
            with TileProgress(is_kept=False) as bar:
                yield bar
        else:
            yield LoggedProgress(source.name, MMLogger.get_current_instance().info)


@contextmanager
def image_named(name: str) -> Iterator[None]:
    """Start the sentence of an error about an image with its name, unless the name is in it."""
    try:
        yield
    except ProcessesError:  # is about the processes
        raise
    except UserError as error:
        if name in str(error):
            raise
        raise UserError(f'{name}: {error}') from error


def _instances(**objects: Any) -> InstanceData:
    """Return objects as mmdet's ``pred_instances``."""
    masks = objects['masks']
    return InstanceData(
        bboxes=torch.from_numpy(objects['boxes']),
        scores=torch.from_numpy(objects['scores']),
        labels=torch.from_numpy(objects['labels']),
        **({} if masks is None else dict(masks=masks)),
    )
