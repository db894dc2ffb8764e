"""Features of images from any file with an XCiT."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from ..base.device import choose_device, choose_dtype
from ..base.errors import ArgumentError, UserError
from ..base.progress import ImageProgress
from ..data.transforms.image_transforms import CenterSquare, to_tensor
from ..data.transforms.multiband import LoadMultiband
from ..network.models.image_preprocessor import ImagePreprocessor
from ..network.models.image_xcit import ImageFeatures, ImageXCiT
from ..network.weights.image_network import load_image_network
from ..network.weights.inflation import RGB
from .image_batches import image_batches
from .sources import to_bands, to_rgb

# ImageNet's, in RGB from 0 to 255, with which all released models were trained.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SIZE = 224  # pixels, of a file that names no other
RATIO = 0.875  # in DINO's evaluation: 224 of 256 pixels


class ImageReader:
    """What reads, resizes and normalizes images for a network, also in worker processes.

    Args:
        bands: The loader of images of other channels than RGB. None: RGB.
        normalize: Normalizes a batch.
        is_reversed: Whether the network gets the channels in the opposite order of :meth:`read`.
        size: The default number of pixels.
        fit: 'square' or 'longer'; see :class:`Embedder`.
        ratio: The side of a square divided by the shorter side of the resized image.
    """

    def __init__(
        self,
        bands: LoadMultiband | None,
        normalize: ImagePreprocessor,
        is_reversed: bool,
        size: int,
        fit: str,
        ratio: float = RATIO,
    ) -> None:
        self.bands, self.normalize, self.is_reversed = bands, normalize, is_reversed
        if fit not in ('square', 'longer'):  # images would silently keep their size
            raise ArgumentError(f"fit={fit!r} is neither 'square' nor 'longer'")
        self.size, self.fit, self.ratio = size, fit, ratio

    def read(self, image: str | Path | np.ndarray | Image.Image) -> np.ndarray:
        """Return an image as RGB (H, W, 3) uint8, or as bands (H, W, ``channels``) float32.

        Args:
            image: A path or URL, an array of this shape, or for RGB an image of PIL.

        Raises:
            UserError: If the image cannot be read.
        """
        return to_rgb(image) if self.bands is None else to_bands(image, self.bands)

    def prepare(self, image: np.ndarray, size: int | None = None) -> Tensor:
        """Resize and normalize an image that :meth:`read` returns.

        Args:
            image: (H, W, ``channels``).
            size: Pixels instead of those of the reader.

        Returns:
            (``channels``, h, w), float32, in the order of channels of the network.
        """
        size = self.size if size is None else size
        if self.fit == 'square':
            image = CenterSquare(size, self.ratio)(dict(img=image))['img']
        x = to_tensor(image)
        if self.fit == 'longer':
            longer = max(x.shape[-2:])
            sides = [max(1, round(side * size / longer)) for side in x.shape[-2:]]
            x = F.resize(x, sides, InterpolationMode.BICUBIC, antialias=True)
        x = x.flip(0) if self.is_reversed else x
        return self.normalize(dict(inputs=[x]))['inputs'][0]

    def __call__(self, path: str) -> Tensor:
        return self.prepare(self.read(path))


class Embedder:
    """An XCiT that computes features of images, with the preprocessing of its training.

    The preprocessing is the one in ``meta['images']`` of the file, which our trainings write. For
    other files of three channels, it is ImageNet's.

    Args:
        checkpoint: See :func:`~xcit_mm.network.weights.image_network.load_image_network`.
        device: Name of a device. None: a GPU if there is one, otherwise the CPU.
        dtype: See :func:`xcit_mm.load_model`.
        size: Pixels, see ``fit``. None: the size in the file, or 224.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.
        mean, std: Of each channel, or one for all, in the order of the network. They replace those
            of the file, and a file of other channels than three that has none needs them.
        fit: 'square' cuts the central square of ``size`` pixels out of the image, whose shorter
            side is ``size / 0.875`` pixels then, as in DINO's evaluation. 'longer' resizes the
            longer side to ``size`` and keeps the aspect ratio.

    Attributes:
        model: An ``ImageXCiT`` or, if the file has no class attention, an ``XCiTTrunk``.
        has_token: Whether the file has class attention. Otherwise the mean of the map is the token.
        dim: The number of channels C of a token.
        reader: What prepares the images; :attr:`reader.bands <ImageReader.bands>` loads them and
            :attr:`reader.normalize <ImageReader.normalize>` has their mean and standard deviation.
        description: The checkpoint and the properties of the model, for JSON.

    Raises:
        UserError: If the file cannot be loaded as a whole, or does not say how to normalize.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        device: str | None = None,
        dtype: str | None = None,
        size: int | None = None,
        trusted: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        fit: str = 'square',
    ) -> None:
        self.checkpoint = str(checkpoint)
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self.model, shape, images = load_image_network(checkpoint, trusted)
        self.model.to(self.device, self.dtype)
        self.has_token = isinstance(self.model, ImageXCiT)
        self.dim = shape.embed_dim
        channels = self.model.in_channels
        self.reader = image_reader(self.checkpoint, channels, images, mean, std, size, fit)
        self.description: dict[str, Any] = dict(
            checkpoint=self.checkpoint,
            model=str(shape),
            parameters=sum(p.numel() for p in self.model.parameters()),
            channels=channels,
            size=self.reader.size,
            fit=fit,
            has_token=self.has_token,
        )

    def read(self, image: str | Path | np.ndarray | Image.Image) -> np.ndarray:
        """Read an image; see :meth:`ImageReader.read`."""
        return self.reader.read(image)

    def prepare(self, image: np.ndarray, size: int | None = None) -> Tensor:
        """Resize and normalize an image that was read; see :meth:`ImageReader.prepare`."""
        return self.reader.prepare(image, size)

    def embed(
        self, image: str | Path | np.ndarray | Image.Image, size: int | None = None
    ) -> np.ndarray:
        """Return the embedding of an image: the class token, scaled to length 1.

        Without class attention, it is the mean of the last map instead. ``a @ b`` of two embeddings
        is their cosine similarity. With ``fit='longer'``, the embedding is the descriptor that
        ``tools/embed.py`` writes.

        Args:
            image: See :meth:`read`.
            size: See :meth:`prepare`.

        Returns:
            (C,), float32.

        Raises:
            UserError: If the image cannot be read, or the model computes values that are not
                finite.
        """
        features = self.features(self.prepare(self.read(image), size)[None])
        return unit_vector(features.token[0].numpy())

    @torch.inference_mode()
    def features(self, images: Tensor) -> ImageFeatures:
        """Compute the tokens (B, C) and the maps (B, C, h, w) of prepared images.

        Args:
            images: (B, ``channels``, H, W), as :meth:`prepare` returns them.

        Returns:
            Both in float32 on the CPU. Patches determine h and w: ``ceil(H / patch_size)``.
        """
        token, maps = self._compute(images)
        return ImageFeatures(token.float().cpu(), maps.float().cpu())

    @torch.inference_mode()
    def tokens(
        self,
        paths: Sequence[str | Path],
        batch_size: int = 64,
        workers: int = 0,
        progress: ImageProgress | None = None,
    ) -> tuple[np.ndarray, list[str]]:
        """Compute the tokens of image files.

        Args:
            paths: Paths or URLs.
            batch_size: Images in a batch. Those of different sizes are computed one after another.
            workers: Processes that read images. 0: read them in this process.
            progress: Counts the images and reports those that are left out.

        Returns:
            The tokens (n, C) in float32, and for each image its error or ''. The tokens of images
            with an error are NaN.

        Raises:
            UserError: If no image can be read.
        """
        tokens = np.full((len(paths), self.dim), np.nan, np.float32)
        errors: list[str] = []
        bar = ImageProgress() if progress is None else progress
        for batch in image_batches(paths, self.reader, batch_size, workers, bar):
            by_shape: dict[torch.Size, list[int]] = defaultdict(list)
            for i, image in enumerate(batch):
                if isinstance(image, Tensor):
                    by_shape[image.shape].append(i)
            for indices in by_shape.values():
                token = self._compute(torch.stack([batch[i] for i in indices])).token
                tokens[[len(errors) + i for i in indices]] = token.float().cpu().numpy()
            errors += [image if isinstance(image, str) else '' for image in batch]
        return tokens, errors

    def _compute(self, images: Tensor) -> ImageFeatures:
        x = images.to(self.device, self.dtype)
        if self.has_token:
            return self.model.features(x)
        (maps,) = self.model(x)
        return ImageFeatures(maps.float().mean((2, 3)), maps)


def unit_vector(vector: np.ndarray) -> np.ndarray:
    """Return a vector (D,) that is scaled to length 1, float32.

    Raises:
        UserError: If all values are 0, or a value is not finite.
    """
    length = np.linalg.norm(vector.astype(np.float64))
    if not 0 < length < np.inf:
        raise UserError(f'the descriptor of the image has length {length:g}; leave the image out')
    return (vector / length).astype(np.float32)


def image_reader(
    path: str,
    channels: int,
    images: Mapping[str, Any],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    size: int | None,
    fit: str,
    ratio: float = RATIO,
) -> ImageReader:
    """Return the reader of the images that a file describes; see :class:`Embedder`.

    ``images`` is ``meta['images']`` of the file at ``path``, and ``ratio`` of :class:`ImageReader`.
    """
    about = dict(bands=dict(channels=channels), bgr_to_rgb=False, size=SIZE)
    if channels == RGB:
        about |= dict(bands=None, bgr_to_rgb=True, mean=MEAN, std=STD)
    for values in (images, dict(mean=mean, std=std, size=size)):
        about |= {name: value for name, value in values.items() if value is not None}
    if not about.keys() >= {'mean', 'std'}:
        raise UserError(
            f'{path} does not say how images of {channels} channels are normalized: name mean= and '
            'std= of Embedder (--mean and --std of tools/probe.py and tools/embed.py), with a '
            'number for each channel'
        )
    bands = about['bands']
    if bands is not None:
        bands = LoadMultiband(**{name: bands[name] for name in bands if name != 'type'})
    # RGB is what ``read`` returns, but the loader of our trainings returns BGR.
    is_reversed = about['bgr_to_rgb'] == (bands is not None)
    normalize = ImagePreprocessor(about['mean'], about['std'])
    return ImageReader(bands, normalize, is_reversed, about['size'], fit, ratio)
