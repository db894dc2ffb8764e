"""Features of images from any file: with all weights and the preprocessing of its training."""

import cv2
import numpy as np
import pytest
import timm
import torch
from helpers import network_error, randomize, relative_error
from helpers.small_xcit import SMALL, small_xcit
from PIL import Image
from torchvision import transforms

import xcit_mm
from xcit_mm import UserError
from xcit_mm.apps.retrieval.descriptors import TOKEN, describe
from xcit_mm.apps.retrieval.image_tokens import image_tokens
from xcit_mm.base.progress import ImageProgress
from xcit_mm.network.models.image_xcit import ImageXCiT
from xcit_mm.predict.embedder import Embedder

IMAGES = dict(
    channels=3, mean=[10.0, 20.0, 30.0], std=[2.0, 4.0, 5.0], bgr_to_rgb=True, size=48, bands=None
)


@pytest.fixture
def network():
    """A network of 32 channels with a head, as an authors' classifier has."""

    def network(channels: int = 3, num_classes: int = 5) -> ImageXCiT:
        torch.manual_seed(0)
        model = ImageXCiT(SMALL, 16, num_classes, in_channels=channels)
        randomize(model)
        return model.eval()

    return network


@pytest.fixture
def save(tmp_path):
    def save(state, meta=None, prefix='', name='model.pth'):
        content = {prefix + key: value for key, value in state.items()}
        content = dict(state_dict=content) if meta is None else dict(state_dict=content, meta=meta)
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def picture(tmp_path):
    """An RGB picture of 50 x 70 pixels and its file."""
    cells = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    image = np.array(Image.fromarray(cells).resize((70, 50), Image.Resampling.BICUBIC))
    Image.fromarray(image).save(tmp_path / 'picture.png')
    return image, tmp_path / 'picture.png'


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'teacher.backbone.', 'module.backbone.'])
def test_tokens_are_those_of_the_network_without_its_head(network, save, picture, prefix):
    model = network()
    embedder = Embedder(save(model.state_dict(), prefix=prefix), size=64)
    x = torch.randn(2, 3, 40, 72)
    with torch.inference_mode():
        expected = model.features(x)
    found = embedder.features(x)
    assert embedder.has_token and embedder.dim == 32
    tolerance = network_error(model, torch.float32)
    assert relative_error(found.token, expected.token) <= tolerance
    assert relative_error(found.map, expected.map) <= tolerance
    assert found.map.shape == (2, 32, 3, 5)


def test_tokens_equal_those_of_timm(tmp_path):
    model = timm.create_model('xcit_nano_12_p16_224', num_classes=0).eval()
    randomize(model)
    torch.save(model.state_dict(), tmp_path / 'timm.pth')
    x = torch.randn(1, 3, 48, 64)
    with torch.inference_mode():
        expected = model(x)
    embedder = Embedder(tmp_path / 'timm.pth')
    assert embedder.description['model'] == 'XCiT-N12/16'
    assert relative_error(embedder.features(x).token, expected) < 1e-4


def test_token_of_a_detector_is_the_mean_of_its_last_map(save):
    backbone = small_xcit()
    randomize(backbone)
    state = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    embedder = Embedder(save(state | {'rpn_head.rpn_conv.weight': torch.ones(1)}))
    x = torch.randn(2, 3, 64, 96)
    found = embedder.features(x)
    assert not embedder.has_token
    assert found.map.shape == (2, 32, 4, 6)
    torch.testing.assert_close(found.token, found.map.mean((2, 3)))
    # Its pyramid halves the map of the tokens by a maximum.
    pooled = torch.nn.functional.max_pool2d(found.map, 2)
    reference = backbone.eval()
    reference.out_norms = torch.nn.ModuleList(torch.nn.Identity() for _ in range(4))
    with torch.inference_mode():
        assert relative_error(pooled, reference(x)[-1]) < 1e-5


def test_other_files_are_prepared_as_in_the_evaluation_of_dino(network, save, picture):
    image, path = picture
    resize = transforms.Resize(256, interpolation=transforms.InterpolationMode.BICUBIC)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = transforms.CenterCrop(224)
    expected = normalize(transforms.ToTensor()(crop(resize(Image.fromarray(image)))))
    embedder = Embedder(save(network().state_dict()))
    found = embedder.prepare(embedder.read(path))
    assert found.shape == (3, 224, 224)
    assert (found - expected).abs().max() < 2.01 / 255 / 0.224  # rounding of PIL and PyTorch


def test_longer_side_is_resized_and_the_aspect_ratio_kept(network, save, picture):
    image, path = picture
    embedder = Embedder(save(network().state_dict()), size=35, fit='longer')
    assert embedder.prepare(embedder.read(path)).shape == (3, 25, 35)
    assert embedder.prepare(image, 140).shape == (3, 100, 140)
    assert embedder.prepare(np.zeros((2, 900, 3), np.uint8)).shape == (3, 1, 35)
    same = embedder.prepare(image, 70)
    mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    expected = (torch.tensor(image) - mean) / std
    torch.testing.assert_close(same, expected.permute(2, 0, 1))


@pytest.mark.parametrize('bgr_to_rgb', [True, False])
def test_preprocessing_of_our_files_is_in_them(network, save, picture, bgr_to_rgb):
    image, _ = picture
    meta = dict(images=IMAGES | dict(bgr_to_rgb=bgr_to_rgb))
    embedder = Embedder(save(network().state_dict(), meta), fit='longer')
    assert embedder.reader.size == 48
    channels = image if bgr_to_rgb else image[..., ::-1]  # as the loader of trainings returns it
    expected = (channels - np.array(IMAGES['mean'])) / np.array(IMAGES['std'])
    found = embedder.prepare(image, 70).permute(1, 2, 0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize('bands', [None, dict(type='LoadMultiband', channels=5, nan=0.0)])
def test_bands_are_read_as_in_the_training(network, save, tmp_path, bands):
    tifffile = pytest.importorskip('tifffile')
    values = np.random.default_rng(0).normal(size=(5, 40, 44)).astype(np.float32)
    if bands is not None:
        values[0, 3, 4] = np.nan
    tifffile.imwrite(tmp_path / 'bands.tif', values, planarconfig='separate')
    images = dict(
        channels=5, mean=[0.5], std=[1.0, 2.0, 3.0, 4.0, 5.0], bgr_to_rgb=False, bands=bands
    )
    path = save(network(5).state_dict(), dict(images=images))
    embedder = Embedder(path, size=44, fit='longer')
    found = embedder.prepare(embedder.read(tmp_path / 'bands.tif'))
    expected = (np.nan_to_num(values) - 0.5) / np.array(images['std'])[:, None, None]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_files_of_other_sizes_and_unreadable_ones_keep_their_places(
    network, save, picture, tmp_path, capfd
):
    image, path = picture
    cv2.imwrite(str(tmp_path / 'tall.png'), image[:, :30])
    (tmp_path / 'text.png').write_text('no image')
    paths = [path, tmp_path / 'text.png', tmp_path / 'tall.png', path, tmp_path / 'none.png']
    embedder = Embedder(save(network().state_dict()), size=40, fit='longer')
    tokens, errors = embedder.tokens(paths, batch_size=3)
    alone = [embedder.tokens([p])[0][0] for p in (path, tmp_path / 'tall.png')]
    np.testing.assert_allclose(tokens[[0, 2, 3]], [*alone, alone[0]], rtol=1e-4, atol=1e-5)
    assert tokens.dtype == np.float32 and np.isnan(tokens[[1, 4]]).all()
    assert [bool(error) for error in errors] == [False, True, False, False, True]
    assert errors[1] == f'{tmp_path / "text.png"}: it is not a readable image'
    assert errors[4] == f'{tmp_path / "none.png"} does not exist'
    assert errors[1] in capfd.readouterr().err.replace('\n', '')
    with pytest.raises(UserError, match=r'no image can be read: .*none\.png does not exist'):
        embedder.tokens(paths[-1:])


@pytest.mark.parametrize('has_token', [True, False])
def test_embedding_of_an_image_is_its_token_of_length_1(network, save, picture, has_token):
    image, path = picture
    state = network().state_dict()
    if not has_token:
        backbone = small_xcit()
        randomize(backbone)
        state = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    embedder = xcit_mm.Embedder(save(state), size=48)
    embedding = embedder.embed(path)
    assert embedder.has_token == has_token
    assert embedding.shape == (32,) and embedding.dtype == np.float32
    assert np.linalg.norm(embedding) == pytest.approx(1)
    token = embedder.tokens([path])[0][0]
    np.testing.assert_allclose(embedding, token / np.linalg.norm(token), rtol=1e-4, atol=1e-6)
    for same in (str(path), image, Image.fromarray(image), image.astype(np.uint16) * 257):
        np.testing.assert_array_equal(embedder.embed(same), embedding)
    x = embedder.prepare(image, 64)
    token = embedder.features(x[None]).token[0].numpy()
    expected = token / np.linalg.norm(token)
    np.testing.assert_allclose(embedder.embed(image, 64), expected, rtol=1e-5, atol=1e-6)
    longer = Embedder(save(state), size=48, fit='longer')
    descriptor = describe(image_tokens(longer, str(path), 48), TOKEN, None)
    np.testing.assert_array_equal(longer.embed(path), descriptor)


def test_embedding_that_is_not_finite_is_an_error(network, save, picture):
    state = network().state_dict()
    state['norm.weight'] = torch.full_like(state['norm.weight'], 3e38)
    with pytest.raises(UserError, match=r'descriptor of the image has length (inf|nan); leave'):
        Embedder(save(state), size=32).embed(picture[0])


def test_a_worker_process_reads_the_same(network, save, picture):
    _, path = picture
    embedder = Embedder(save(network().state_dict()), size=32)
    with ImageProgress() as progress:
        tokens, _ = embedder.tokens([path] * 3, 1, 1, progress)
        assert progress.done == 3
    np.testing.assert_array_equal(tokens, embedder.tokens([path] * 3, 1)[0])


def test_16_bits_are_close(network, save):
    path, x = save(network().state_dict()), torch.randn(2, 3, 64, 64)
    half = Embedder(path, dtype='bfloat16').features(x)
    assert half.token.dtype == half.map.dtype == torch.float32
    assert relative_error(half.token, Embedder(path).features(x).token) < 0.05


def test_other_channels_need_their_normalization(network, save):
    pytest.importorskip('tifffile')
    path = save(network(5).state_dict())
    with pytest.raises(UserError) as error:
        Embedder(path)
    assert str(error.value) == (
        f'{path} does not say how images of 5 channels are normalized: name mean= and std= '
        'of Embedder (--mean and --std of tools/probe.py and tools/embed.py), with a number for '
        'each channel'
    )
    embedder = Embedder(path, mean=[1.0], std=[2.0] * 5, size=16)
    found = embedder.prepare(np.full((16, 16, 5), 5, np.float32))
    torch.testing.assert_close(found, torch.full((5, 16, 16), 2.0))


def test_a_file_is_loaded_as_a_whole_or_refused(network, save):
    state = network().state_dict()
    del state['cls_attn_blocks.1.norm1.weight']
    with pytest.raises(UserError, match='does not hold the weights of this model'):
        Embedder(save(state))
    with pytest.raises(UserError, match=r'model\.pth holds no XCiT'):
        Embedder(save({'conv.weight': torch.ones(2)}))
