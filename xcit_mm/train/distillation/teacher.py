"""Base class for teachers: trained networks whose features are targets for a student."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.errors import UserError
from ...base.processes import digest_of_module
from ...network.tokens import tokens_to_map

PROBE_SIZE = 224  # pixels of the first image for a teacher without a fixed size
NO_MAP = 'which are neither maps (B, C, H, W) nor tokens (B, N, C)'


class TeacherFeatures(NamedTuple):
    """The features of images, computed by a teacher in float32."""

    vector: Tensor  # (B, C), class token or pooled map
    map: Tensor  # (B, C, H, W)


class Teacher(ABC):
    """A frozen network in evaluation mode.

    It is not an ``nn.Module``, so a student with a teacher does not include the teacher's weights
    in its parameters, its checkpoints, or the communication between processes. The teacher moves to
    the device of the images.

    Args:
        name: The name in errors and checkpoints.
        network: The network, with its weights loaded.
        weights: The file or the URL of its weights.
        mean: The mean of each input channel in the order of the network, or one value for all, in
            the unit of the images (0 to 255 for most).
        std: The standard deviation of each input channel, or one value for all.
        num_channels: The number of input channels.
        size: The height and the width that images are resized to, or one number for both. None:
            images keep their size.
        channels: The channels of the images to pass to the network, from 0, in the order of the
            network, such as (3, 2, 1) for red, green and blue. Default: all.
        license_note: The license of the weights, saved in checkpoints.
        bgr_to_rgb: Whether its training reversed the channels that were loaded. The channels are
            reversed for it if the student's preprocessor differs. None: they are not.

    Raises:
        UserError: If the network returns no features, or features that are not finite.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        weights: str,
        mean: Sequence[float],
        std: Sequence[float],
        num_channels: int,
        size: int | Sequence[int] | None = None,
        channels: Sequence[int] | None = None,
        license_note: str | None = None,
        bgr_to_rgb: bool | None = None,
    ) -> None:
        self.name = name
        self.network = network.eval().requires_grad_(False)
        self.size = (size, size) if isinstance(size, int) else size and tuple(size)
        self.channels = None if channels is None else list(channels)
        self.num_channels, self.bgr_to_rgb = num_channels, bgr_to_rgb
        self.mean, self.std = (torch.tensor(v).float().view(-1, 1, 1) for v in (mean, std))
        self.description = dict(
            name=name,
            weights=weights,
            digest=digest_of_module(self.network),
            license=license_note or 'unknown: see where the weights come from',
        )
        probe = self._features(self._blank_image())
        self.map_channels, self.vector_channels = probe.map.shape[1], probe.vector.shape[1]

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        return self  # copies of the student, such as its EMA, share one teacher

    def features(self, images: Tensor, preprocessor: BaseDataPreprocessor) -> TeacherFeatures:
        """Compute the features of images (B, C, H, W) that were normalized by a preprocessor.

        Raises:
            UserError: If features are not finite.
        """
        return self._features(self._seen(images, preprocessor))

    def logits(self, images: Tensor, preprocessor: BaseDataPreprocessor) -> Tensor:
        """Compute the logits (B, classes) of images (B, C, H, W), in float32.

        Raises:
            UserError: As for :meth:`features`, or if there is no classification head.
        """
        return self._logits(self._seen(images, preprocessor))

    def count_classes(self) -> int:
        """Return the number of classes, or raise a UserError if there is no classification head."""
        return self._logits(self._blank_image()).shape[1]

    @torch.no_grad()
    def _logits(self, images: Tensor) -> Tensor:
        logits = self._classify(images)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise UserError(
                f'teacher {self.name} returns no logits (B, classes): name the weights of a '
                'classifier'
            )
        return self._finite(logits)

    @abstractmethod
    def _extract(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the vectors (B, C), or None if there are only maps, and the maps."""

    @abstractmethod
    def _classify(self, images: Tensor) -> Any:
        """Return the logits (B, classes), or something else if there is no classification head."""

    def _blank_image(self) -> Tensor:
        return torch.zeros(1, self.num_channels, *(self.size or [PROBE_SIZE] * 2))

    @torch.no_grad()
    def _features(self, images: Tensor) -> TeacherFeatures:
        vector, maps = self._extract(images)
        vector = maps.mean((2, 3)) if vector is None else vector
        return TeacherFeatures(self._finite(vector), self._finite(maps))

    def _finite(self, x: Tensor) -> Tensor:
        x = x.float()
        if not x.isfinite().all():
            raise UserError(
                f'teacher {self.name} returns NaN or infinite numbers: check its weights, mean and '
                'std, or train in bfloat16 instead of float16'
            )
        return x

    def _seen(self, images: Tensor, preprocessor: BaseDataPreprocessor) -> Tensor:
        """Return images with the channels, the normalization and the size of the network."""
        if self.mean.device != images.device:
            self.network.to(images.device)
            self.mean, self.std = self.mean.to(images.device), self.std.to(images.device)
        images = images * preprocessor.std + preprocessor.mean
        if self.channels is not None:
            images = images[:, self.channels]
        elif self.bgr_to_rgb not in (None, preprocessor.bgr_to_rgb):
            images = images.flip(1)
        images = (images - self.mean) / self.std
        if self.size is not None and self.size != tuple(images.shape[2:]):
            images = F.interpolate(images, self.size, mode='bicubic', antialias=True)
        return images

    def _map_of_tokens(self, tokens: Tensor, num_prefix: int, images: Tensor) -> Tensor:
        """Return the map (B, C, H, W) of the tokens (B, N, C) after the first ``num_prefix``."""
        tokens = tokens[:, num_prefix:]
        number, (height, width) = tokens.shape[1], images.shape[2:]
        rows = round(math.sqrt(number * height / width))
        return tokens_to_map(tokens, rows, number // rows)
