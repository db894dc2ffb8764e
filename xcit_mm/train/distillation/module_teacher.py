"""Teachers from modules registered with mmengine, such as a trained XCiT."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.registry import MODELS
from torch import Tensor, nn

from ...base.errors import ArgumentError, UserError
from ...network import XCiT
from ...network.models import ImageXCiT
from ...network.weights.image_network import described_images
from ...network.weights.inflation import RGB
from ...network.weights.names import (
    backbone_state,
    image_state,
    model_state,
    require_same_tensors,
    without_prefix,
)
from ...network.weights.read import read_checkpoint
from .teacher import NO_MAP, Teacher


@MODELS.register_module()
class ModuleTeacher(Teacher):
    """A registered module as a teacher.

    The module returns a map (B, C, H, W), several maps (only the last one is used), or tokens
    (B, N, C). The vector of an :class:`.ImageXCiT` is its class token. For other modules, it is the
    first prefix token or, without prefix tokens, the mean of the map.

    Args:
        module: The config of the module, such as ``dict(type='ImageXCiT', arch='n12')``.
        checkpoint: A file or URL with all of its weights, alone or as the backbone of a detector, a
            segmentor, or a model trained on whole images.
        size: See :class:`.Teacher`.
        mean: The mean of each channel. Default: the value in the checkpoint of a model trained on
            whole images.
        std: The standard deviation of each channel. Default: as for ``mean``.
        channels: See :class:`.Teacher`.
        num_prefix_tokens: The number of tokens before the tokens of the map.
        license_note: The license of the weights.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.

    Raises:
        UserError: If the file does not contain exactly the weights of the module.
    """

    def __init__(
        self,
        module: dict[str, Any],
        checkpoint: str,
        size: int | Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        channels: Sequence[int] | None = None,
        num_prefix_tokens: int = 0,
        license_note: str | None = None,
        trusted: bool = False,
    ) -> None:
        self.num_prefix_tokens = num_prefix_tokens  # super().__init__ computes features
        network, content = MODELS.build(module), read_checkpoint(checkpoint, trusted=trusted)
        _load(network, model_state(content, checkpoint), checkpoint)
        in_channels = getattr(network, 'in_channels', module.get('in_channels', RGB))
        images = described_images(content)
        if mean is None and std is None:
            mean, std = images.get('mean'), images.get('std')
        if mean is None or std is None:
            raise ArgumentError(
                f'teacher {module["type"]}: {checkpoint} does not say how its images are '
                'normalized: write model.teacher.mean and model.teacher.std'
            )
        super().__init__(
            module['type'],
            network,
            str(checkpoint),
            mean,
            std,
            in_channels,
            size,
            channels,
            license_note,
            images.get('bgr_to_rgb'),
        )

    def _extract(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        if isinstance(self.network, ImageXCiT):
            return self.network.features(images)
        x = self.network(images)
        x = x[-1] if isinstance(x, Sequence) and x else x
        if not isinstance(x, Tensor) or x.ndim not in (3, 4):
            raise UserError(f'teacher {self.name} returns features {NO_MAP}: choose another module')
        if x.ndim == 4:
            return None, x
        number = self.num_prefix_tokens
        return x[:, 0] if number else None, self._map_of_tokens(x, number, images)

    def _classify(self, images: Tensor) -> Any:
        is_embedding = isinstance(self.network, ImageXCiT) and not self.network.num_classes
        return None if is_embedding else self.network(images)


def _load(network: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Load exactly the weights of a module, with or without its classification head."""
    wanted = network.state_dict()
    if isinstance(network, ImageXCiT):
        state = image_state(state)
        if not network.num_classes:
            state = {name: x for name, x in state.items() if not name.startswith('head.')}
    else:
        state = backbone_state(state) if isinstance(network, XCiT) else without_prefix(state)
    require_same_tensors(state, wanted, path)
    network.load_state_dict(state)
