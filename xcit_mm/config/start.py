"""What a training on a dataset of one's own starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import UserError
from ..network.archs import ARCHS, released_name
from ..network.weights.cache import download
from ..network.weights.image_network import described_images
from ..network.weights.inflation import RGB, STEM
from ..network.weights.names import architecture, backbone_state, model_state, require_finite
from ..network.weights.pretrained import require_file
from ..network.weights.read import read_checkpoint

SERVER = 'https://dl.fbaipublicfiles.com/xcit/'
# The released models with heads, by the dataset that they were trained on. All have patch size 16
# here, which is four times as fast as 8.
RELEASED = {'coco': 'coco/maskrcnn', 'ade20k': 'ade/sem_fpn'}
HEADS = {'coco': 'roi_head.', 'ade20k': 'decode_head.'}  # of the models for these tasks
SMALL_NECK = 64  # channels, of the small detector on N12
# The widths of the necks in the configs of these tasks, by the backbone.
NECKS = {
    'coco': lambda arch: (256, SMALL_NECK) if arch == 'n12' else (256,),
    'ade20k': lambda arch: (ARCHS[arch].embed_dim,),
}
SIZES_OF_RELEASED = 't12', 's12', 's24', 'm24'
PATCH_SIZE = 16
IMAGENET, SCRATCH = 'imagenet', 'scratch'
# What to do without a network.
OTHERWISE = ' (--start FILE); to start from random weights instead: --start scratch'

FEW = 200  # with fewer images, the first third of the blocks keeps its weights


@dataclass(frozen=True)
class Start:
    """A backbone and its weights.

    Attributes:
        arch: A key of :data:`~xcit_mm.network.archs.ARCHS`.
        patch_size: 8 or 16 pixels.
        load_from: The file or URL of a detector or segmentor, or None.
        pretrained: The file or URL of a backbone or classifier, or None.
        neck_channels: The channels of the neck in ``load_from``.
        in_channels: The bands of the images that the weights are for.
        normalization: ``mean`` and ``std`` of the images, if the file says so.
    """

    arch: str
    patch_size: int = PATCH_SIZE
    load_from: str | None = None
    pretrained: str | None = None
    neck_channels: int | None = None
    in_channels: int = RGB
    normalization: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_scratch(self) -> bool:
        return self.load_from is None and self.pretrained is None

    @property
    def channels(self) -> int:
        return ARCHS[self.arch].embed_dim

    def backbone(self, num_images: int) -> dict[str, Any]:
        """Return the arguments of the backbone for a number of training images."""
        freezes = not self.is_scratch and num_images < FEW
        return dict(
            arch=self.arch,
            patch_size=self.patch_size,
            # The statistics of few images are worse than those of the pretraining.
            norm_eval=not self.is_scratch,
            frozen_stages=ARCHS[self.arch].depth // 3 if freezes else -1,
        )


def find_start(start: str | None, size: str | None, released_on: str) -> Start:
    """Return what a training starts from, with its weights on this machine.

    Args:
        start: A key of :data:`RELEASED`, 'imagenet', 'scratch', or a file. Default:
            ``released_on``, or 'imagenet' where no such model of the size was released.
        size: The name of an architecture, such as 's12'. Default: 't12', the one of the file, or
            'n12' from scratch.
        released_on: The dataset of the released models that fit the task.

    Raises:
        UserError: If there is no such model, its weights cannot be downloaded, or the file holds
            another one.
    """
    if start not in (None, IMAGENET, SCRATCH, *RELEASED):
        require_file(start)
        return _read(start, size, released_on)
    if start is None:
        start = released_on if size in (None, *SIZES_OF_RELEASED) else IMAGENET
    if start == SCRATCH:
        return Start(size or 'n12')
    size = size or 't12'
    if start not in (IMAGENET, released_on):
        raise UserError(f'--start {start} is not for this task: use {released_on} or {IMAGENET}')
    if start == released_on and size not in SIZES_OF_RELEASED:
        raise UserError(
            f'--start {start} --size {size}: no such model was released: use --start {IMAGENET}, '
            f'or --size {", ".join(SIZES_OF_RELEASED[:-1])} or {SIZES_OF_RELEASED[-1]}'
        )
    if start == IMAGENET:
        name = released_name(size, PATCH_SIZE, '384_dist')
    else:
        name = f'{RELEASED[start]}_{released_name(size, PATCH_SIZE).removesuffix("_224")}'
    url = f'{SERVER}{name}.pth'
    download(url, OTHERWISE)
    return _read(url, size, released_on)


def _read(name: str, size: str | None, released_on: str) -> Start:
    """Return the start of the weights in a file or at a URL, if a training can load them.

    Of a model for another task, or with a neck of another width, the training uses the backbone.
    """
    checkpoint = read_checkpoint(name)
    state = model_state(checkpoint, name)
    require_finite(state, name)
    model = architecture(state, name, checkpoint)
    if model.arch is None or size not in (None, model.arch):
        sizes = f'not {size}' if size else f'not one of {", ".join(ARCHS)}'
        raise UserError(f'--start {name} holds {model}, {sizes}')
    images = described_images(checkpoint)
    normalization = {key: tuple(images[key]) for key in ('mean', 'std') if key in images}
    found = dict(
        arch=model.arch,
        patch_size=model.patch_size,
        in_channels=backbone_state(state)[STEM].shape[1],
        normalization=normalization if len(normalization.get('mean', ())) == RGB else {},
    )
    neck = len(state.get('neck.fpn_convs.0.conv.weight', ()))
    has_head = any(key.startswith(HEADS[released_on]) for key in state)
    if not has_head or neck not in NECKS[released_on](model.arch):
        return Start(**found, pretrained=name)
    return Start(**found, load_from=name, neck_channels=neck)
