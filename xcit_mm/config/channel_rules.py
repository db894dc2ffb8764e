"""The rules about channels: of the images that are loaded, and of the maps between the parts."""

from mmengine.config import Config
from mmengine.utils import is_seq_of

from ..base.errors import UserError
from ..network.archs import ARCHS
from ..network.weights.pretrained import BACKBONES
from ..network.xcit import NUM_LEVELS
from .tree import class_name, typed_nodes

RGB = 3
MAX_PAD = 4  # channels that OpenCV pads
FOR_BANDS = ('MultibandPreprocessor', 'ImagePreprocessor')  # whose mean has any length
WITH_BANDS = ('OpenImage', 'ReadWindow')  # whose argument describes other bands than RGB
# Transforms of mmcv, mmdet and mmseg that need three channels, or cut their values to 8 bits.
FOR_RGB = {
    *('AdjustGamma', 'AutoAugment', 'AutoContrast', 'Brightness', 'CachedMixUp', 'CLAHE', 'Color'),
    *('ColorTransform', 'Contrast', 'CutOut', 'Equalize', 'Expand', 'Invert', 'MixUp', 'Mosaic'),
    *('DistortColors', 'Normalize', 'PhotoMetricDistortion', 'Posterize', 'RandAugment'),
    'RandomCutOut',
    'TimmAugment',
    *('RandomGrayscale', 'RandomMosaic', 'RGB2Gray', 'Sharpness', 'ShearX', 'ShearY', 'Solarize'),
    *('SolarizeAdd', 'TranslateX', 'TranslateY', 'YOLOXHSVRandomAug'),
}


def check_map_channels(cfg: Config) -> None:
    """Refuse a neck or a head with other input channels than the backbone's maps have."""
    backbone = cfg.model.get('backbone') or {}
    arch = backbone.get('arch', 's12')
    if backbone.get('type') != 'XCiT' or not isinstance(arch, str) or arch not in ARCHS:
        return  # the backbone itself refuses an invalid arch
    dim = ARCHS[arch].embed_dim
    heads = 'decode_head', 'auxiliary_head', 'panoptic_head'
    for name in ('neck',) if cfg.model.get('neck') else heads:
        part = cfg.model.get(name)
        channels = part.get('in_channels') if isinstance(part, dict) else None
        fitting = type(channels)([dim] * len(channels)) if is_seq_of(channels, int) else dim
        if channels is not None and channels != fitting:
            raise UserError(
                f'model.{name}.in_channels={channels}: the maps of XCiT {arch} have {dim} '
                f'channels; write in_channels={fitting}'
            )
        start = backbone.get('start_level', 0)
        number = NUM_LEVELS - start if start in range(NUM_LEVELS) else None
        if name == 'neck' and number and is_seq_of(channels, int) and len(channels) != number:
            raise UserError(
                f'model.neck.in_channels={channels} is for {len(channels)} maps, but the backbone '
                f'with start_level={start} returns {number}: write in_channels={[dim] * number}'
            )


def check_image_channels(cfg: Config, splits: tuple[str, ...]) -> None:
    """Refuse loaders, transforms and means that do not fit the input channels of the backbone."""
    backbone = cfg.model.get('backbone') or {}
    if backbone.get('type') not in BACKBONES:
        return
    channels = backbone.get('in_channels', RGB)
    loaders = {f'{split}_dataloader': cfg.get(f'{split}_dataloader') or {} for split in splits}
    transforms = [pair for name, loader in loaders.items() for pair in typed_nodes(loader, name)]
    is_multiband = channels != RGB or any(_loads_bands(node) for _, node in transforms)
    _check_transforms(transforms, channels, is_multiband)
    _check_preprocessor(cfg.model.get('data_preprocessor') or {}, channels, is_multiband)


def _check_transforms(
    transforms: list[tuple[str, dict]], channels: int, is_multiband: bool
) -> None:
    for place, node in transforms:
        kind = class_name(node['type'])
        loaded, arguments = channels, "dict(type='LoadMultiband', channels=...)"
        if kind in ('LoadImage', *WITH_BANDS):
            loaded = RGB
        if _loads_bands(node):
            loaded = (node['bands'] if kind in WITH_BANDS else node).get('channels')
        if kind in WITH_BANDS:
            arguments = f"dict(type='{kind}', bands=dict(channels=...))"
        if loaded != channels:
            raise UserError(
                f'{place}: {kind} loads {loaded} channels, but model.backbone.in_channels='
                f'{channels}: write the number of bands of your images there and in {arguments}'
            )
        if (kind in FOR_RGB and is_multiband) or (kind == 'Pad' and channels > MAX_PAD):
            raise UserError(
                f'{place}: {kind} does not take {channels} channels of any type: remove it'
            )
        if kind == 'MultiCrop' and node.get('color') == 'rgb' and is_multiband:
            raise UserError(
                f"{place}: color='rgb' of {kind} changes hue and saturation, which {channels} "
                "bands of any type do not have: write color='bands'"
            )


def _loads_bands(transform: dict) -> bool:
    kind = class_name(transform['type'])
    return kind == 'LoadMultiband' or (kind in WITH_BANDS and bool(transform.get('bands')))


def _check_preprocessor(preprocessor: dict, channels: int, is_multiband: bool) -> None:
    kind = preprocessor.get('type')
    allowed = {1, channels} if kind in FOR_BANDS else {1, channels} & {1, RGB}
    for name in ('mean', 'std'):
        numbers = preprocessor.get(name)
        if numbers is not None and len(numbers) not in allowed:
            raise UserError(
                f'model.data_preprocessor: the {name} of {kind} has {len(numbers)} numbers, but '
                f'model.backbone.in_channels={channels}: write {channels} numbers and '
                f"type='MultibandPreprocessor', base={preprocessor.get('base', kind)!r}"
            )
    for name in ('bgr_to_rgb', 'rgb_to_bgr'):
        if is_multiband and preprocessor.get(name):
            raise UserError(
                f'model.data_preprocessor.{name}=True would change the order of the bands, but '
                f'LoadMultiband keeps it: set {name}=False'
            )
