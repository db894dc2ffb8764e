"""The reference systems of files of results, read by GDAL."""

import json

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from rasterio import Affine
from rasterio.crs import CRS

from xcit_mm.predict.write.geojson import write_geojson
from xcit_mm.predict.write.geopackage import write_geopackage
from xcit_mm.predict.write.geotiff import write_tiff
from xcit_mm.predict.write.vector_layers import Layer, LayerPart

PLACE = Affine(0.5, 0, 10, 0, -0.5, 20)
GERMAN = '+proj=tmerc +lat_0=0 +lon_0=9 +k=1 +x_0=3500000 +y_0=0 +ellps=bessel +units=m'
SYSTEMS = {
    'code': 'EPSG:32632',
    'like EPSG:5683': f'{GERMAN} +towgs84=0,0,0',
    'like EPSG:31467': f'{GERMAN} +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7',
    'without a datum': '+proj=utm +zone=32 +ellps=intl +units=m',
    'rotated pole': '+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39 +lon_0=18 +R=6371229',
    'sphere': '+proj=sinu +R=6371007.181 +units=m',
    'Mars': 'IAU_2015:49910',
}


def layer(georeference: dict) -> Layer:
    outlines = np.array([shapely.box(0, 0, 4, 4)], object)
    part = LayerPart(outlines, np.array([0]), np.array([16.0]), np.array([0.9]))
    return Layer('objects', 'Polygon', ['a'], [(1, 2, 3)], georeference, [part])


@pytest.mark.parametrize('name', SYSTEMS)
def test_results_have_exactly_the_system_of_their_image(name, tmp_path):
    crs = CRS.from_user_input(SYSTEMS[name])
    georeference = dict(crs=crs, transform=PLACE)
    write_geopackage(tmp_path / 'a.gpkg', layer(georeference))
    write_geojson(tmp_path / 'a.geojson', layer(georeference))
    for path in tmp_path.iterdir():
        assert CRS.from_user_input(pyogrio.read_info(path)['crs']) == crs, path
    member = json.loads((tmp_path / 'a.geojson').read_text())['crs']
    assert member['properties']['name'].startswith('urn:') == (name == 'code')
    write_tiff(tmp_path / 'a.tif', np.zeros((20, 30), np.uint8), georeference)
    with rasterio.open(tmp_path / 'a.tif') as file:
        assert file.crs == crs and file.transform == PLACE
    assert (tmp_path / 'a.tif.aux.xml').exists() == (name == 'rotated pole')


def test_the_system_of_an_earlier_image_is_removed(tmp_path):
    path, values = tmp_path / 'a.tif', np.zeros((20, 30), np.uint8)
    for name in ('rotated pole', 'code'):
        crs = CRS.from_user_input(SYSTEMS[name])
        write_tiff(path, values, dict(crs=crs, transform=PLACE), [(1, 2, 3)], classes=['a'])
        with rasterio.open(path) as file:
            assert file.crs == crs
    write_tiff(path, values, dict(transform=PLACE))
    assert [*tmp_path.iterdir()] == [path]
