"""Images in which pixels have no data."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import randomize, relative_error
from helpers.processes import in_processes
from helpers.small_xcit import small_xcit
from mmseg.models import SegDataPreProcessor
from torch import Tensor, nn

from xcit_mm import XCiT, stream, stream_backward
from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import Window, whole
from xcit_mm.data.transforms.multiband import LoadMultiband
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.files.validity import ALL, NONE, SOME, Cells, cells_of, valid_area
from xcit_mm.large.tokens import passes as passes_module
from xcit_mm.large.tokens.passes import Passes
from xcit_mm.predict.large.slices import slices_of

# The mean of the shapes config, which pixels without data get.
FILL = np.array([124, 116, 104], np.uint8)


class Gappy:
    """An image (channels, H, W) in which only some pixels (H, W) have data."""

    def __init__(self, image: Tensor, has_data: np.ndarray) -> None:
        self.image, self.has_data = image * torch.from_numpy(has_data), has_data
        self.shape = tuple(image.shape)

    def __getitem__(self, window: tuple) -> Tensor:
        return self.image[window]

    def valid(self, window: Window) -> np.ndarray:
        return self.has_data[tuple(window)]

    def cells(self, side: int) -> Cells:
        return Cells(cells_of(self.valid, self.shape[1:], side))


def small_backbone(**options) -> XCiT:
    backbone = small_xcit(**options).double()
    randomize(backbone)
    return backbone


def disk(size: tuple[int, int]) -> np.ndarray:
    """Return a disk that touches no border, with a hole: patches with all, some and no pixels."""
    y, x = np.ogrid[: size[0], : size[1]]
    far = np.hypot((y / size[0] - 0.5) * 2, (x / size[1] - 0.5) * 2)
    return (far < 0.8) & (far > 0.25)


def whole_maps(backbone: nn.Module, image: Gappy) -> list[Tensor]:
    """Compute the maps of an image at once, with plain operations on the patches with data."""
    x = backbone.patch_embed(image.image[None])
    H, W = x.shape[2:]
    has_data = torch.from_numpy(image.cells(backbone.patch_size).states > NONE)
    v = has_data.to(x.dtype)
    x = (x + backbone.pos_embeder(H, W)) * v
    kept = []
    for i, block in enumerate(backbone.blocks[: backbone.out_indices[-1] + 1]):
        x = x.flatten(2).mT
        attended = torch.zeros_like(x)
        attended[:, v.flatten() > 0] = block.attn(block.norm1(x[:, v.flatten() > 0]))
        x = x + block.gamma1 * attended
        lpi = block.local_mp
        z = lpi.conv1(block.norm3(x).mT.unflatten(2, (H, W)) * v)
        z = lpi.conv2(lpi.bn(lpi.act(z)) * v).flatten(2).mT
        x = x + block.gamma3 * z
        x = x + block.gamma2 * block.mlp(block.norm2(x))
        x = x.mT.unflatten(2, (H, W)) * v
        if i in backbone.out_indices:
            kept.append(x)
    return [norm(resize(x)) for (_, _, resize, norm), x in zip(backbone.levels, kept, strict=True)]


@pytest.mark.parametrize(('patch_size', 'size'), [(16, (203, 331)), (8, (97, 150)), (4, (61, 75))])
def test_maps_and_gradients_equal_those_of_the_patches_with_data(patch_size, size):
    torch.manual_seed(0)
    backbone = small_backbone(patch_size=patch_size, norm_eval=True)
    image = Gappy(torch.randn(3, *size, dtype=torch.float64), disk(size))
    maps = whole_maps(backbone, image)
    gradients = [torch.randn_like(m) for m in maps]
    torch.autograd.backward(maps, gradients)
    expected = {n: p.grad for n, p in backbone.named_parameters()}
    backbone.zero_grad()
    for rows in (1, 3, None):
        streamed = stream(backbone.eval(), image, rows)
        for a, b in zip(streamed, maps, strict=True):
            assert relative_error(torch.from_numpy(a), b[0].detach()) <= 1e-12
    stream_backward(backbone.train(), image, [g[0] for g in gradients], rows=3)
    for name, parameter in backbone.named_parameters():
        assert relative_error(parameter.grad, expected[name]) <= 1e-10, name


def test_tiles_without_data_are_not_computed(monkeypatch):
    torch.manual_seed(0)
    backbone = small_xcit().eval()
    size = 320, 480
    third = np.ones(size, bool)
    third[:, 320:] = False
    counts = []
    layer = passes_module.Passes._layer_on_tile

    def count(self: Passes, number: int, x: Tensor, *args) -> Tensor:
        counts.append(x.shape[0] * x.shape[1])
        return layer(self, number, x, *args)

    monkeypatch.setattr(passes_module.Passes, '_layer_on_tile', count)
    stream(backbone, Gappy(torch.randn(3, *size), third), rows=20)
    assert counts == [20 * (20 + passes_module.HALO)] * 4


def test_processes_share_an_image_with_gaps(tmp_path):
    torch.manual_seed(0)
    backbone = small_backbone().eval()
    size = 203, 331
    image = Gappy(torch.randn(3, *size, dtype=torch.float64), disk(size))
    expected = stream(backbone, image)

    def compare(rank: int) -> None:
        for part, complete in zip(stream(backbone, image, rows=2), expected, strict=True):
            H = complete.shape[1]
            own = complete[:, H * rank // 3 : H * (rank + 1) // 3]
            assert relative_error(torch.from_numpy(part), torch.from_numpy(own)) <= 1e-12

    in_processes(3, compare, tmp_path)


def test_a_border_without_data_changes_nothing(full_size_detector, image):
    """The objects are the same bit for bit."""
    border = 33
    image = np.where(image == 7, 8, image).astype(np.uint8)
    expected = full_size_detector.predict_large(image)
    sides = (border, border + 5), (border, border), (0, 0)
    bordered = np.pad(image, sides, constant_values=7)
    found = full_size_detector.predict_large(bordered, nodata=7)
    assert len(found) == len(expected) > 0
    assert found.size == bordered.shape[:2]
    assert np.array_equal(found.scores, expected.scores)
    assert np.allclose(found.boxes - border, expected.boxes, atol=1e-4)
    for (window, mask), (other, expected_mask) in zip(found.masks, expected.masks, strict=True):
        assert np.array_equal(mask, expected_mask)
        assert [s.start - border for s in window] == [s.start for s in other]
    assert found.draw().any()


def test_values_without_data_change_nothing(full_size_segmentor, full_size_detector, image):
    has_data = disk(image.shape[:2])
    scenes = [np.where(has_data[..., None], image // 2 + 64, value) for value in (0, 255)]
    labels, objects = [], []
    for scene, value in zip(scenes, (0, 255), strict=True):
        scene = scene.astype(np.uint8)
        labels.append(full_size_segmentor.predict_large(scene, nodata=value, with_scores=True))
        objects.append(full_size_detector.predict_large(scene, nodata=value))
    assert np.array_equal(labels[0].labels, labels[1].labels)
    assert np.array_equal(labels[0].labels == 255, ~has_data)
    assert (labels[0].scores[~has_data] == 0).all()
    assert sum(labels[0].shares().values()) == pytest.approx(1)
    assert len(objects[0]) == len(objects[1]) > 0
    assert np.array_equal(objects[0].boxes, objects[1].boxes)
    for window, mask in objects[0].masks:
        assert not (mask & ~has_data[tuple(window)]).any()
    cells = cells_of(lambda window: has_data[tuple(window)], has_data.shape, 16)
    centers = (objects[0].boxes[:, :2] + objects[0].boxes[:, 2:]) / 32
    columns, rows = np.minimum(centers.astype(int), np.array(cells.shape[::-1]) - 1).T
    assert (cells[rows, columns] > NONE).all()


def test_a_scene_without_data_is_an_error(full_size_segmentor):
    black = np.zeros((64, 64, 3), np.uint8)
    for positions in ('scene', 'data'):
        with pytest.raises(UserError, match='the array has no pixel with data where it is read'):
            full_size_segmentor.predict_large(black, nodata=0, positions=positions)


def test_cells_and_the_area_of_an_image():
    pixels = np.full((37, 53, 3), 9, np.uint8)
    pixels[5:20, 16:33] = 1
    source = Array(pixels, 'the array', nodata=9)
    assert valid_area(source) == (Window(slice(5, 20), slice(16, 33)), True)
    pixels[7, 18] = 9
    assert valid_area(source) == (Window(slice(5, 20), slice(16, 33)), False)
    states = cells_of(source.valid, (37, 53), 16)
    assert states.tolist() == [[NONE, SOME, SOME, NONE], [NONE, SOME, SOME, NONE], [NONE] * 4]
    cells = Cells(states)
    window = whole(states.shape)
    assert cells.part_with_data(window) == Window(slice(0, 2), slice(1, 3))
    assert cells.part_with_data(Window(slice(2, 3), slice(0, 4))) is None
    assert not cells.are_complete(window)
    full = cells_of(lambda _: None, (37, 53), 16)
    assert (full == ALL).all()


def test_labels_of_many_classes_have_another_number_without_data(full_size_segmentor, monkeypatch):
    names = tuple(map(str, range(300)))
    many = dataclasses.replace(full_size_segmentor, classes=names)
    image = np.full((64, 96, 3), 100, np.uint8)
    image[:, 48:] = 0
    labels = many.predict_large(image, nodata=0).labels
    assert labels.dtype == np.int16
    assert np.array_equal(labels == -1, np.tile(np.arange(96) >= 48, (64, 1)))


def test_slices_without_data_are_not_predicted(full_size_segmentor, full_size_detector, image):
    has_data = disk(image.shape[:2])
    has_data[:, 64:] = False
    scene = np.where(has_data[..., None], image // 2 + 64, 0).astype(np.uint8)
    options = dict(nodata=0, positions='scene', sliced=64, overlap=0, batch_size=2)
    predicted = []

    def recorded(model):
        model = dataclasses.replace(model)
        batch = model.predict_batch
        model.predict_batch = lambda images: predicted.append(len(images)) or batch(images)
        model.at_own_size = lambda: model
        return model

    labels = recorded(full_size_segmentor).predict_large(scene, **options).labels
    assert sum(predicted) < len(slices_of(scene.shape[:2], 64, 0))
    assert np.array_equal(labels == 255, ~has_data)
    alone = full_size_segmentor.predict(np.where(has_data[..., None], scene, FILL)[:64, :64])
    assert np.array_equal(labels[:64, :64][has_data[:64, :64]], alone.labels[has_data[:64, :64]])
    objects = recorded(full_size_detector).predict_large(scene, **options)
    assert len(objects) > 0
    centers = ((objects.boxes[:, :2] + objects.boxes[:, 2:]) / 2).astype(int)
    assert has_data[centers[:, 1], centers[:, 0]].all()
    for window, mask in objects.masks:
        assert not (mask & ~has_data[tuple(window)]).any()


def test_pixels_without_data_get_what_they_had_in_training():
    preprocessor = SegDataPreProcessor(mean=[10.0, 20.0, 5.0], std=[2.0, 4.0, 1.0])
    bands = np.full((40, 40, 3), [12, 28, 8], np.float32)
    bands[3, 5, 1] = np.nan
    for nan, expected in ((None, [0, 0, 0]), (6.0, [-2, -3.5, 1])):
        loader = LoadMultiband(3, nan=nan)
        image = NormalizedImage(Array(bands, 'the array'), preprocessor, (), loader)
        values = image[:, 0:10, 0:10]
        assert values[:, 0, 0].tolist() == [1, 2, 3]
        assert values[:, 3, 5].tolist() == expected
        assert not image.valid(Window(slice(3, 4), slice(5, 6))).any()
    infinite = NormalizedImage(
        Array(bands + np.inf, 'the array'), preprocessor, (), LoadMultiband(3)
    )
    with pytest.raises(UserError, match='the array: it has pixels that are NaN or infinite'):
        infinite[:, 0:9, 0:9]


def test_statistics_windows_leave_patches_without_data_out():
    torch.manual_seed(0)
    backbone = small_backbone().eval()
    image = torch.randn(3, 160, 320, dtype=torch.float64)
    half = np.ones((160, 320), bool)
    half[:, 160:] = False
    with torch.inference_mode():
        cut = Passes(backbone, image[..., :160], statistics_window=320)
        gappy = Passes(backbone, Gappy(image, half), statistics_window=320)
        # Both encode the positions of the whole image.
        position = backbone.pos_embeder(*gappy.size)
        for passes in (cut, gappy):
            backbone.pos_embeder.forward = lambda H, W, window: position[(..., *window)]
            passes.run()
        del backbone.pos_embeder.forward
    expected, found = (p.store(p.count - 1).read(whole((10, 10))) for p in (cut, gappy))
    # The first convolutions read zeros instead of nothing at the border of the data.
    assert relative_error(found[:, :4], expected[:, :4]) <= 1e-2
    rest = gappy.store(gappy.count - 1).read(Window(slice(0, 10), slice(10, 20)))
    assert not rest.any()
