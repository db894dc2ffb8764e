"""The reference systems that files name: codes and plain WKT are read, and nothing is opened."""

import json
import socket
import sqlite3

import pytest
import rasterio
import shapely
from rasterio.crs import CRS
from shapely.geometry import mapping

from xcit_mm import UserError
from xcit_mm.data.tiff.reference_systems import crs_of
from xcit_mm.large.files.image_source import ReadOptions
from xcit_mm.large.files.rasters import Raster
from xcit_mm.large.labels.read_features import in_crs, read_features

UTM = CRS.from_epsg(32632).to_wkt()
PLACE = '/nowhere/grid'
NAMES = {
    'EPSG:32632': 'EPSG:32632',
    'urn:ogc:def:crs:EPSG:9.8.2:3857': 'EPSG:3857',
    'urn:ogc:def:crs:OGC:1.3:CRS84': 'OGC:CRS84',
    'http://www.opengis.net/def/crs/EPSG/0/4326': 'EPSG:4326',
    'ESRI:102100': 'ESRI:102100',
    UTM: 'EPSG:32632',
    CRS.from_epsg(3857).to_wkt(): 'EPSG:3857',  # with a text for PROJ
    CRS.from_epsg(27700).to_wkt(version='WKT2_2019'): 'EPSG:27700',
}
REFUSED = {
    'address': 'http://127.0.0.1:{port}/crs',
    'address of GDAL': '/vsicurl/http://127.0.0.1:{port}/crs.prj',
    'file': '/etc/hostname',
    'text for PROJ': f'+proj=utm +zone=32 +nadgrids={PLACE}',
    'file of codes': f'+init={PLACE}:1',
    'extension': UTM[:-1] + f',EXTENSION["PROJ4","+proj=utm +zone=32 +nadgrids={PLACE}"]]',
    'chain': UTM[:-1] + f',EXTENSION["PROJ4","+proj=pipeline +step +grids={PLACE}"]]',
    'authority': UTM.replace('AUTHORITY["EPSG","32632"]', 'AUTHORITY["http://127.0.0.1:{port}",7]'),
    'method': UTM.replace('"Transverse_Mercator"', f'"PROJ hgridshift grids={PLACE}"'),
    'other quotes': UTM.replace('"Transverse_Mercator"', f'“PROJ hgridshift grids={PLACE}”'),
    'grid': f'BOUNDCRS[SOURCECRS[{UTM}],PARAMETERFILE["file","{PLACE}"]]',
    'heights': f'VERT_CS["v",VERT_DATUM["g",2005,EXTENSION["PROJ4_GRIDS","{PLACE}"]]]',
}


@pytest.fixture
def server():
    with socket.create_server(('127.0.0.1', 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.mark.parametrize('name', NAMES)
def test_codes_and_wkt_are_systems(name):
    assert crs_of(name) == CRS.from_string(NAMES[name])


@pytest.mark.parametrize('kind', REFUSED)
def test_a_system_that_names_a_file_or_an_address_is_refused_and_not_opened(tmp_path, server, kind):
    name = REFUSED[kind].replace('{port}', str(server.getsockname()[1]))
    path = tmp_path / 'a.geojson'
    content = dict(mapping(shapely.box(5e5, 5e6, 6e5, 6e6)))
    path.write_text(json.dumps(content | dict(crs=dict(properties=dict(name=name)))))
    with pytest.raises(UserError, match=r'a\.geojson: the reference system .* cannot be used \('):
        in_crs(read_features(path), 'EPSG:4326')
    with pytest.raises(BlockingIOError):
        server.accept()


def test_an_image_with_a_citation_that_names_a_grid_is_not_opened(tmp_path):
    path = tmp_path / 'a.tif'
    system = CRS.from_wkt(UTM.replace('500000', '500001').replace('"EPSG","32632"', '"A","1"'))
    options = dict(width=9, height=9, count=1, dtype='uint8', GEOTIFF_KEYS_FLAVOR='ESRI_PE')
    options['transform'] = rasterio.Affine(1, 0, 500_000, 0, -1, 5_000_000)
    with rasterio.open(path, 'w', driver='GTiff', crs=system, **options):
        pass
    assert Raster(path, ReadOptions()).georeference['crs'] is not None
    content = path.read_bytes()
    assert content.count(b'PROJECTION["Transverse_Mercator"]') == 1
    path.write_bytes(
        content.replace(b'PROJECTION["Transverse_Mercator"]', b'PROJECTION["PROJ hgridshift   "]  ')
    )
    with pytest.raises(UserError, match=r'a\.tif has a reference system of ESRI that may name'):
        Raster(path, ReadOptions())


VIEWS = {
    'endless': 'WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r',
    'large': 'SELECT hex(zeroblob(200000000)) AS class FROM base',
}


@pytest.mark.parametrize('kind', [*VIEWS, 'system'])
def test_a_geopackage_computes_nothing(tmp_path, kind):
    from test_read_features import write_geopackage

    path = write_geopackage(tmp_path / 'a.gpkg')
    with sqlite3.connect(path) as database:
        triggers = database.execute('SELECT name FROM sqlite_master WHERE type = "trigger"')
        for (name,) in triggers.fetchall():
            database.execute(f'DROP TRIGGER "{name}"')
        if kind in VIEWS:
            database.execute('ALTER TABLE one RENAME TO base')
            database.execute(f'CREATE VIEW one AS {VIEWS[kind]}')
            database.execute('UPDATE gpkg_geometry_columns SET table_name = "one"')
        else:
            database.execute('ALTER TABLE gpkg_spatial_ref_sys RENAME TO systems')
            database.execute('CREATE VIEW gpkg_spatial_ref_sys AS SELECT * FROM systems')
    with pytest.raises(UserError, match=r'cannot be opened \(.*(prohibited|not authorized)'):
        read_features(path)
