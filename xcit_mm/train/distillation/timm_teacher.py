"""Teachers from timm: convolutional networks and transformers, with any of their weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.registry import MODELS
from torch import Tensor, nn

from ...base.environment import require
from ...base.errors import ArgumentError, UserError
from ...network.weights.names import model_state, require_finite
from ...network.weights.read import read_checkpoint
from .teacher import NO_MAP, Teacher

PIXEL_MAX = 255  # timm's mean and std are for values up to 1


@MODELS.register_module()
class TimmTeacher(Teacher):
    """A timm model as a teacher.

    Args:
        name: The name in timm, such as ``'vit_small_patch14_dinov2.lvd142m'``.
        checkpoint: A local file or a URL with all weights of the model, as published by timm or
            the authors of the model.
        pretrained: Whether to download timm's weights for ``name``.
        size: See :class:`.Teacher`. Networks with a fixed input size are built for this size. Their
            default is timm's input size.
        mean: The mean of red, green and blue in the unit of the images. Default: timm's values,
            times 255.
        std: The standard deviations of red, green and blue. Default: timm's values, times 255.
        channels: See :class:`.Teacher`.
        license_note: The license of the weights. Default: the license that timm names.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.
        arguments: Other arguments for ``timm.create_model``, such as ``num_classes=0`` for a file
            without a classification head.

    Raises:
        UserError: If no weights are named, or the network returns neither a map nor tokens.
    """

    def __init__(
        self,
        name: str,
        checkpoint: str | None = None,
        pretrained: bool = False,
        size: int | Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        channels: Sequence[int] | None = None,
        license_note: str | None = None,
        trusted: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if (checkpoint is None) != bool(pretrained):
            raise ArgumentError(
                f'teacher {name}: name its weights with model.teacher.checkpoint=FILE, or download '
                'them with model.teacher.pretrained=True'
            )
        require('timm')
        import timm

        arguments = dict(arguments or {})
        published = timm.get_pretrained_cfg(name, allow_unregistered=False).to_dict()
        if published.get('fixed_input_size'):
            size = size or published['input_size'][1:]
            arguments['img_size'] = (size, size) if isinstance(size, int) else tuple(size)
        network = _build(name, checkpoint, trusted, arguments)
        origin = published.get('origin_url') or published.get('hf_hub_id') or published.get('url')
        license_name = published.get('license')
        super().__init__(
            name,
            network,
            weights=str(checkpoint or origin),
            mean=mean or [value * PIXEL_MAX for value in published['mean']],
            std=std or [value * PIXEL_MAX for value in published['std']],
            num_channels=arguments.get('in_chans', published['input_size'][0]),
            size=size,
            channels=channels,
            license_note=license_note or (license_name and f'{license_name} (timm, {origin})'),
        )

    def _extract(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.network.forward_features(images)
        if not isinstance(x, Tensor) or x.ndim not in (3, 4):
            raise UserError(f'teacher {self.name} returns features {NO_MAP}: choose another model')
        vector = self.network.forward_head(x, pre_logits=True)
        if x.ndim == 3:
            # Older models do not name the number of tokens before the tokens of the map.
            has_token = int(hasattr(self.network, 'cls_token'))
            number = getattr(self.network, 'num_prefix_tokens', has_token)
            return vector, self._map_of_tokens(x, number, images)
        dim, is_channels_last = self.network.num_features, x.shape[3] == self.network.num_features
        if x.shape[1] == dim:  # the width may have the same size by chance
            is_channels_last &= getattr(self.network, 'output_fmt', 'NCHW') == 'NHWC'
        return vector, x.permute(0, 3, 1, 2) if is_channels_last else x

    def _classify(self, images: Tensor) -> Any:
        return self.network(images) if self.network.num_classes else None


def _build(
    name: str, checkpoint: str | None, trusted: bool, arguments: dict[str, Any]
) -> nn.Module:
    import timm

    if checkpoint is None:
        return timm.create_model(name, pretrained=True, **arguments)
    state = model_state(read_checkpoint(checkpoint, trusted=trusted), checkpoint)
    require_finite(state, checkpoint)
    published = timm.get_pretrained_cfg(name, allow_unregistered=False).to_dict()
    head = state.get(f'{published["classifier"]}.weight')
    if isinstance(head, Tensor):
        arguments = {'num_classes': len(head), **arguments}
    channels, *sides = published['input_size']
    network = timm.create_model(
        name,
        pretrained=True,
        # timm converts the names and sizes of all releases that it knows. With the published number
        # of classes and channels, it would drop the head of a file with other classes, and average
        # the first layer over other channels.
        pretrained_cfg_overlay=dict(
            state_dict=dict(state),
            source='',
            custom_load=False,
            num_classes=arguments.get('num_classes', published['num_classes']),
            input_size=(arguments.get('in_chans', channels), *sides),
        ),
        **arguments,
    )
    del network.pretrained_cfg['state_dict']
    return network
