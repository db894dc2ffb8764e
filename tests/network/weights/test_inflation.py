"""Weights for RGB images fit backbones for any number of channels."""

import pytest
import torch
from helpers import randomize
from helpers.small_xcit import assert_same_maps, small_xcit

from xcit_mm import UserError
from xcit_mm.apps.convert.conversion import convert
from xcit_mm.base.errors import ArgumentError
from xcit_mm.network.weights.inflation import STEM, inflate
from xcit_mm.network.weights.names import require_same_tensors

RGB_MODEL = small_xcit().eval()
randomize(RGB_MODEL)


@pytest.fixture(scope='module')
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'rgb.pth'
    torch.save({'model': RGB_MODEL.state_dict()}, path)
    return path


def starting_from(path, in_channels, **options):
    init_cfg = dict(type='Pretrained', checkpoint=path, **options)
    model = small_xcit(in_channels=in_channels, init_cfg=init_cfg)
    model.init_weights()
    return model.eval()


@pytest.mark.parametrize('in_channels', [4, 13])
@torch.no_grad()
def test_the_maps_of_rgb_are_kept_bit_for_bit_whatever_the_other_bands_hold(file, in_channels, log):
    model = starting_from(file, in_channels, rgb=(0, 1, 2))
    image = torch.randn(2, in_channels, 70, 96)
    for a, b in zip(model(image), RGB_MODEL(image[:, :3]), strict=True):
        assert torch.equal(a, b)
    assert f'From 3 to {in_channels} input channels: 0, 1 and 2 have the kernels of red' in log[-1]


@torch.no_grad()
def test_red_green_and_blue_can_be_any_bands(file):
    image = torch.randn(1, 13, 64, 64)
    maps = starting_from(file, 13, rgb=[3, 2, 1])(image)
    assert_same_maps(maps, RGB_MODEL(image[:, [3, 2, 1]]))
    image = image[:, :3]
    maps = starting_from(file, 3, rgb=(2, 1, 0))(image)
    assert_same_maps(maps, RGB_MODEL(image.flip(1)))


@pytest.mark.parametrize('in_channels', [1, 2, 13])
@torch.no_grad()
def test_without_rgb_each_band_has_the_mean_kernel_and_gray_gives_the_same_maps(
    file, in_channels, log
):
    model = starting_from(file, in_channels)
    kernel, rgb_kernel = (m.state_dict()[STEM] for m in (model, RGB_MODEL))
    mean = (rgb_kernel[:, 0] + rgb_kernel[:, 1] + rgb_kernel[:, 2]) / in_channels
    torch.testing.assert_close(kernel, mean[:, None].expand_as(kernel))
    gray = torch.randn(1, 1, 64, 64)
    assert_same_maps(model(gray.repeat(1, in_channels, 1, 1)), RGB_MODEL(gray.repeat(1, 3, 1, 1)))
    assert f'each has the mean kernel of red, green and blue times 3/{in_channels}' in log[-1]


def test_weights_for_the_same_channels_are_taken_as_they_are(tmp_path, log):
    source = small_xcit(in_channels=13)
    torch.save(source.state_dict(), tmp_path / '13.pth')
    model = starting_from(tmp_path / '13.pth', 13, rgb=(3, 2, 1))
    assert all(torch.equal(v, source.state_dict()[k]) for k, v in model.state_dict().items())
    assert not any('input channels' in line for line in log)
    with pytest.raises(UserError, match=r'13\.pth holds an XCiT for images of 13 channels, and on'):
        starting_from(tmp_path / '13.pth', 4)


@pytest.mark.parametrize('rgb', [(0, 1), (0, 1, 1), (0, 1, 13), (-1, 0, 1), (0, 1, 2, 3)])
def test_wrong_places_of_red_green_and_blue_are_refused(rgb):
    with pytest.raises(ArgumentError, match=r'does not name 3 of the channels 0\.\.12'):
        inflate(RGB_MODEL.state_dict(), 13, 'rgb.pth', rgb)


def test_a_whole_model_is_adapted_by_a_conversion_which_the_error_names(tmp_path):
    state = {f'backbone.{name}': value for name, value in RGB_MODEL.state_dict().items()}
    state['decode_head.conv_seg.weight'] = torch.ones(2)
    torch.save({'state_dict': state}, tmp_path / 'rgb.pth')
    model = small_xcit(in_channels=13).state_dict()
    wanted = {f'backbone.{name}': value for name, value in model.items()}
    wanted['decode_head.conv_seg.weight'] = torch.ones(2)
    with pytest.raises(UserError, match=r'convert_checkpoint\.py --in-channels 13 adapts weights'):
        require_same_tensors(state, wanted, 'rgb.pth')
    done = convert(tmp_path / 'rgb.pth', tmp_path / '13.pth', False, 13, [3, 2, 1])
    assert '3, 2 and 1 have the kernels of red, green and blue' in done
    converted = torch.load(tmp_path / '13.pth')['state_dict']
    require_same_tensors(converted, wanted, '13.pth')
    kernel = converted.pop(f'backbone.{STEM}')
    assert torch.equal(kernel[:, [3, 2, 1]], state.pop(f'backbone.{STEM}'))
    assert kernel.count_nonzero((0, 2, 3)).bool().tolist() == [False, *[True] * 3, *[False] * 9]
    assert all(torch.equal(converted[name], value) for name, value in state.items())
    # Without the option, a file keeps its channels.
    assert 'input channels' not in convert(tmp_path / '13.pth', tmp_path / 'same.pth')
