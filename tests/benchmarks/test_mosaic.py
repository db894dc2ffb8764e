"""A mosaic: its objects in two formats, and its colors in any number of bands."""

import json

import numpy as np
import rasterio
from helpers.in_process import call_tool

from benchmarks import mosaic


def test_a_mosaic_has_the_same_objects_in_both_formats(tmp_path):
    mosaic.make_mosaic(tmp_path / 'mosaic', 2)
    instances = json.loads((tmp_path / 'mosaic/instances.json').read_text())
    names = {category['id']: category['name'] for category in instances['categories']}
    features = json.loads((tmp_path / 'mosaic/objects.geojson').read_text())['features']
    for feature, annotation in zip(features, instances['annotations'], strict=True):
        assert feature['properties'] == {'class': names[annotation['category_id']]}
        ring = feature['geometry']['coordinates'][0]
        assert ring[0] == ring[-1]
        assert np.ravel(ring[:-1]).tolist() == annotation['segmentation'][0]


def test_a_mosaic_has_the_colors_of_as_many_bands(monkeypatch, capfd, tmp_path):
    for bands in (3, 4, 6):
        options = tmp_path / str(bands), '--columns', 2, '--bands', bands
        command = '../benchmarks/drawings.py', 'mosaic', *options
        code, _, error = call_tool(monkeypatch, capfd, *command)
        assert code == 0, error
    with rasterio.open(tmp_path / '3/mosaic.tif') as rgb:
        red, _, blue = rgb.read()
    for bands in (4, 6):
        with rasterio.open(tmp_path / f'{bands}/mosaic.tif') as image:
            drawn = image.read()
            assert 'alpha' not in {color.name for color in image.colorinterp}
        assert drawn.shape == (bands, 320, 320)
        assert (drawn[0] == red).all() and (drawn[-1] == blue).all()
        for name in ('instances.json', 'labels.tif'):
            files = tmp_path / '3' / name, tmp_path / str(bands) / name
            assert files[0].read_bytes() == files[1].read_bytes()
