"""tools/infer.py on large images: its files, kills, several processes, and bad input."""

import csv
import errno
import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from helpers.processes import forked
from helpers.random_weights import DETECTOR, SEGMENTOR
from helpers.runs import run_script
from PIL import Image
from pycocotools.coco import COCO
from rasterio.transform import from_origin

from xcit_mm.apps.infer import run as infer
from xcit_mm.apps.infer import tiled
from xcit_mm.apps.infer.summary import summary
from xcit_mm.base.errors import UserError
from xcit_mm.predict.large.large_predictions import LargeSegmentation
from xcit_mm.predict.large.predict_large import LargeOptions
from xcit_mm.predict.write.geotiff import write_tiff

PLACE = dict(crs='EPSG:32633', transform=from_origin(500000, 5400000, 0.5, 0.5))


@pytest.fixture(scope='module')
def scene(image, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('scene') / 'scene.tif'
    options = dict(height=130, width=160, count=3, dtype='uint8', **PLACE)
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(np.moveaxis(image, -1, 0))
    return path


def test_a_segmentor_writes_a_geotiff(run_tool, weights, scene, segmentor, tmp_path):
    command = 'infer.py', SEGMENTOR, weights[SEGMENTOR], scene, '--stream', '--scores'
    result = run_tool(*command, '--memory', '1KiB', '--out', tmp_path / 'out')
    assert result.returncode == 0, result.stderr
    assert 'images      1' in result.stdout
    kept = rf'GiB of unfinished work are in {tmp_path}/out/unfinished/scene/.*, until the image is'
    assert re.search(rf'0\.\d\d {kept} written\n', result.stderr)
    expected = segmentor.predict_large(scene, with_scores=True)
    with rasterio.open(tmp_path / 'out/labels/scene.tif') as file:
        assert np.array_equal(file.read(1), expected.labels)
        assert file.crs.to_epsg() == 32633
        assert file.transform == PLACE['transform']
        assert file.colormap(1)[1][:3] == expected.palette[1]
    with rasterio.open(tmp_path / 'out/scores/scene.tif') as file:
        assert np.abs(file.read(1).astype(int) - expected.scores).max() <= 1
    content = json.loads((tmp_path / 'out/classes.json').read_text())
    (described,) = content['images']
    assert described['labels'] == 'labels/scene.tif'
    with (tmp_path / 'out/counts.csv').open(newline='') as file:
        counted = list(csv.DictReader(file))
    assert [row['class'] for row in counted] == list(expected.classes)
    pixels = np.bincount(expected.labels.ravel(), minlength=4)
    assert [int(row['pixels']) for row in counted] == pixels.tolist()
    areas = [float(row['square meters']) for row in counted]  # of pixels of half a meter, in UTM
    assert areas == pytest.approx(pixels / 4 / 0.9996**2, rel=1e-5)
    assert (tmp_path / 'out' / described['picture']).exists()
    assert not (tmp_path / 'out/unfinished').exists()


def test_a_detector_writes_objects_in_coordinates(
    run_tool, weights, scene, image, detector, tmp_path
):
    score_thr = detector.predict(image).scores[9]
    command = 'infer.py', DETECTOR, weights[DETECTOR], scene, tmp_path / 'none.tif', '--stream'
    result = run_tool(*command, '--score-thr', score_thr, '--out', tmp_path)
    assert result.returncode == 1
    assert 'none.tif does not exist' in result.stderr
    coco = COCO(tmp_path / 'predictions.json')
    collection = json.loads((tmp_path / 'objects/scene.geojson').read_text())
    assert collection['crs']['properties']['name'].endswith('32633')
    assert len(collection['features']) == len(coco.anns) > 0
    for feature, annotation in zip(collection['features'], coco.anns.values(), strict=True):
        rings = [r for polygon in feature['geometry']['coordinates'] for r in polygon]
        assert feature['properties']['score'] == pytest.approx(annotation['score'], abs=1e-3)
        if not rings:  # an empty mask
            continue
        points = np.concatenate([np.array(ring) for ring in rings])
        columns, rows = (points[:, 0] - 500000) / 0.5, (5400000 - points[:, 1]) / 0.5
        x, y, width, height = annotation['bbox']
        assert columns.min() >= x - 2 and columns.max() <= x + width + 2
        assert rows.min() >= y - 2 and rows.max() <= y + height + 2


def test_an_image_that_loses_its_place_is_named(weights, scene, image, tmp_path, capfd):
    Image.fromarray(image).save(tmp_path / 'a.tif')
    shutil.copy(scene, tmp_path / 'b.tif')
    shutil.copy(scene, tmp_path / 'c.tif')
    command = SEGMENTOR, weights[SEGMENTOR]
    hint = 'b.tif has a place on a map, which the predictions lose: add --stream or --sliced PIX'
    for name, stream, count in (('*.tif', False, 1), ('a.tif', False, 0), ('b.tif', True, 0)):
        assert infer.infer(*command, [str(tmp_path / name)], tmp_path / 'out', stream=stream)[0]
        said = capfd.readouterr().err
        assert said.count('has a place on a map') == said.count(hint) == count


def test_an_image_much_larger_than_those_of_the_training_is_named(weights, scene, tmp_path, capfd):
    hint = (
        f'{scene} has 160x130 pixels, but the model was trained on 40x32 pixels: check on a '
        'labeled part whether --sliced 40 --overlap 0 is more accurate (docs/large_images.md)'
    )
    for crop, large, count in (
        ((32, 40), {}, 1),
        ((32, 41), {}, 0),
        ((32, 40), dict(statistics_window=64), 0),
        ((32, 40), dict(sliced=64, overlap=0), 0),
        ((32, 40), dict(region='0,0,64,64'), 0),
    ):
        transforms = dict(type='RandomCrop', crop_size=crop), dict(type='PackSegInputs')
        options = {'train_dataloader.dataset.pipeline': [dict(type='LoadImage'), *transforms]}
        arguments = SEGMENTOR, weights[SEGMENTOR], [str(scene)], tmp_path / 'out'
        large = LargeOptions(**large)
        assert infer.infer(*arguments, True, large, options=options)[:2] == (1, [])
        said = capfd.readouterr().err
        assert said.count('the model was trained on') == said.count(hint) == count


def test_a_summary_names_up_to_eight_classes():
    names = tuple('abcdefghij')
    for number, end in ((8, 'h 10.0%'), (9, 'h 10.0%, ...')):
        shares = dict.fromkeys(range(number), 0.1)
        prediction = SimpleNamespace(classes=names, shares=lambda shares=shares: shares)
        assert summary(prediction).startswith(f'{number} classes: a 10.0%, b 10.0%')
        assert summary(prediction).endswith(end)


def test_torchrun(weights, scene, segmentor, tmp_path):
    launcher = '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2'
    command = 'tools/infer.py', SEGMENTOR, weights[SEGMENTOR], scene, '--stream', '--out', tmp_path
    assert run_script(*launcher, *command).count('images      1') == 1
    with rasterio.open(tmp_path / 'labels/scene.tif') as file:
        assert np.array_equal(file.read(1), segmentor.predict_large(scene).labels)


def test_an_image_that_would_not_fit_is_streamed(weights, scene, tmp_path, monkeypatch):
    for free, name in ((10**12, 'scene.png'), (10**6, 'scene.tif')):
        monkeypatch.setattr(tiled, 'free_memory', lambda result=free: result)
        out = tmp_path / name
        arguments = SEGMENTOR, weights[SEGMENTOR], [str(scene)], out
        assert infer.infer(*arguments, full_size=True)[:2] == (1, [])
        assert (out / 'labels' / name).exists()


def test_an_image_that_fails_is_named_and_the_others_are_predicted(weights, image, tmp_path):
    folder = Path(tmp_path, 'images', os.fsdecode(b'\xff'))  # no text, as GDAL needs it
    folder.mkdir(parents=True)
    Image.fromarray(image).save(folder / 'first.png')
    Image.fromarray(image).save(tmp_path / 'images/second.png')
    Image.fromarray(image[:9, :9]).save(tmp_path / 'images/small.png')
    arguments = SEGMENTOR, weights[SEGMENTOR], [str(tmp_path / 'images')], tmp_path / 'out'
    done, problems, _ = infer.infer(*arguments, stream=True, large=LargeOptions(memory=1024))
    assert done == 1
    assert 'small.png: an image of 9x9 pixels' in problems[0]
    assert 'first.png: its prediction cannot be written (UnicodeEncodeError' in problems[1]
    assert [path.name for path in (tmp_path / 'out/labels').glob('*.tif')] == ['second.tif']
    assert len(list((tmp_path / 'out/unfinished').rglob('state.json'))) == 1  # of the first


def test_an_output_that_cannot_be_written_is_named_unless_the_disk_is_full(
    weights, image, tmp_path, monkeypatch
):
    for name in ('first.png', 'second.png'):
        Image.fromarray(image).save(tmp_path / name)
    save, causes = LargeSegmentation.save, [None]

    def fails_once(prediction: LargeSegmentation, *arguments) -> dict[str, str]:
        if causes:
            raise UserError('a.tif cannot be written') from causes.pop()
        return save(prediction, *arguments)

    monkeypatch.setattr(LargeSegmentation, 'save', fails_once)
    command = SEGMENTOR, weights[SEGMENTOR], [str(tmp_path / '*.png')], tmp_path / 'out'
    options = dict(stream=True, large=LargeOptions(memory=1024))
    done, (problem,), _ = infer.infer(*command, **options)
    assert done == 1 and problem.startswith(f'{tmp_path}/first.png: its prediction cannot be')
    assert 'written (a.tif cannot be written): check the folder --out' in problem
    store = tmp_path / 'out/unfinished/first'
    assert [path.name for path in store.parent.iterdir()] == ['first']
    causes.append(OSError(errno.ENOSPC, 'No space left on device'))
    with pytest.raises(UserError, match=r'^a.tif cannot be written$'):  # it continues, then stops
        infer.infer(*command, **options)
    assert infer.infer(*command, **options)[:2] == (2, [])
    assert not store.parent.exists()


def test_a_label_image_on_a_full_disk_is_not_left_behind(tmp_path):
    labels = np.random.default_rng(0).integers(0, 4, (300, 400), np.uint8)

    def fails(rank: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(UserError, match=r'a.tif cannot be written .*: make room'):
            write_tiff(tmp_path / 'a.tif', labels, {})

    forked(1, fails)
    assert list(tmp_path.iterdir()) == []
    write_tiff(tmp_path / 'a.tif', labels, {})
    with rasterio.open(tmp_path / 'a.tif') as file:
        assert np.array_equal(file.read(1), labels)
