"""Features of GeoJSON files and GeoPackages, and files that are refused."""

import json
import sqlite3
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import shapely
from rasterio.warp import transform as warped
from shapely.geometry import mapping

from xcit_mm import UserError
from xcit_mm.large.labels.read_features import DEGREES, in_crs, read_features

UTM = 'EPSG:32632'
TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
SHAPES = [
    shapely.Polygon([(5e5, 5e6), (5e5 + 90, 5e6), (5e5, 5e6 + 70)], None),
    shapely.MultiPolygon([shapely.box(5e5, 5e6, 5e5 + 1, 5e6 + 2), shapely.box(6e5, 0, 7e5, 1)]),
]
PROPERTIES = [{'class': 'a', 'n': 1}, {'class': 'b', 'n': -2}]


def write_geopackage(path: Path, shapes=SHAPES, layer: str = 'one', **options) -> Path:
    """Write polygons, the first two with properties."""
    columns = [np.array([p[name] for p in PROPERTIES[: len(shapes)]]) for name in ('class', 'n')]
    columns[0] = columns[0].astype(object)
    encoded = np.array([None if s is None else shapely.to_wkb(s) for s in shapes], object)
    values = dict(field_data=columns, fields=['class', 'n'], layer=layer, driver='GPKG')
    values |= dict(geometry_type='Unknown', crs=UTM) | options
    pyogrio.raw.write(path, encoded, **values)
    return path


def collection(*features: dict, **members) -> dict:
    return dict(type='FeatureCollection', features=list(features), **members)


def named(name: str) -> dict:
    return dict(type='name', properties=dict(name=name))


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def as_features(shapes=SHAPES) -> list[dict]:
    pairs = zip(shapes, PROPERTIES, strict=True)
    return [dict(type='Feature', properties=p, geometry=mapping(s)) for s, p in pairs]


def test_both_formats_hold_the_same_features(tmp_path):
    name = 'urn:ogc:def:crs:EPSG::32632'
    files = [
        write(tmp_path / 'a.geojson', collection(*as_features(), crs=named(name))),
        write_geopackage(tmp_path / 'a.gpkg'),
    ]
    for path, crs in zip(files, (name, UTM), strict=True):
        found = read_features(path)
        assert shapely.equals_exact(found.geometries, SHAPES).all()
        assert found.properties == PROPERTIES
        assert found.crs == crs
        assert in_crs(found, UTM) is found


@pytest.mark.parametrize(
    'content',
    [as_features()[0] | {'properties': None}, mapping(SHAPES[0])],
    ids=['feature', 'geometry'],
)
def test_geojson_may_be_one_feature_without_properties(tmp_path, content):
    found = read_features(write(tmp_path / 'a.geojson', content))
    assert found.geometries == [SHAPES[0]]
    assert found.properties == [{}]
    assert found.crs is None
    assert in_crs(found, UTM) is found


@pytest.mark.parametrize(
    ('member', 'name'),
    [
        (dict(type='EPSG', properties=dict(code=32632)), UTM),
        (dict(type='OGC', properties=dict(urn='urn:ogc:def:crs:OGC:1.3:CRS84')), 'EPSG:4326'),
    ],
)
def test_a_system_of_geojson_2008_is_read_also_from_geometries(tmp_path, member, name):
    features = as_features()
    for feature in features:
        feature['geometry'] = {**feature['geometry'], 'crs': member}  # as PostGIS writes it
    for content in (collection(*features), collection(*as_features(), crs=member)):
        assert read_features(write(tmp_path / 'a.geojson', content)).crs == name


def test_heights_are_dropped(tmp_path):
    shape = shapely.force_3d(SHAPES[0], 7)
    files = [
        write(tmp_path / 'a.geojson', mapping(shape)),
        write_geopackage(tmp_path / 'a.gpkg', [shape]),
    ]
    for path in files:
        assert not read_features(path).geometries[0].has_z


@pytest.mark.parametrize('name', DEGREES)
def test_coordinates_are_converted(tmp_path, name):
    path = write_geopackage(tmp_path / 'a.gpkg')
    degrees = in_crs(read_features(path), 'EPSG:4326')
    expected = warped(UTM, 'EPSG:4326', *shapely.get_coordinates(SHAPES).T)
    assert np.allclose(shapely.get_coordinates(degrees.geometries).T, expected, atol=1e-12)
    assert degrees.properties == PROPERTIES
    content = collection(*as_features(degrees.geometries), crs=named(name))
    back = in_crs(read_features(write(tmp_path / 'b.geojson', content)), UTM)
    assert np.allclose(shapely.get_coordinates(back.geometries), shapely.get_coordinates(SHAPES))


def test_a_geopackage_with_a_closed_write_ahead_log_is_read_and_leaves_no_files(tmp_path):
    path = write_geopackage(tmp_path / 'a.gpkg')
    editor = sqlite3.connect(path)
    editor.execute('PRAGMA journal_mode=WAL')
    editor.close()
    assert path.read_bytes()[18:20] == b'\2\2'
    assert len(read_features(path).geometries) == 2
    assert [*tmp_path.iterdir()] == [path]


def test_a_geopackage_that_is_being_edited_is_refused(tmp_path):
    path = write_geopackage(tmp_path / 'a.gpkg')
    editor = sqlite3.connect(path)
    editor.execute('PRAGMA journal_mode=WAL')
    editor.execute('CREATE TABLE other (a)')
    editor.commit()
    with pytest.raises(UserError, match=r'has changes in a\.gpkg-wal .*: close the program that'):
        read_features(path)
    editor.close()


def broken(name: str):
    return lambda path: path.write_bytes(name.encode())


def two_layers(path: Path) -> None:
    write_geopackage(path)
    write_geopackage(path, layer='two')


def cut_off(path: Path) -> None:
    write_geopackage(path)
    path.write_bytes(path.read_bytes()[:5000])


def nested(path: Path) -> None:
    """Write a geometry for which GEOS overflows the stack."""
    write_geopackage(path)
    with sqlite3.connect(path) as database:
        for (name,) in database.execute(TRIGGERS).fetchall():
            database.execute(f'DROP TRIGGER "{name}"')
        shape = b'GP\0\1' + bytes(4) + struct.pack('<BII', 1, 6, 1) * 50_000
        database.execute('UPDATE one SET geom = ?', (shape,))


POLYGON = 'feature 1 is not a Polygon or MultiPolygon with numbers as coordinates'
REFUSED = {
    'no file': (lambda path: None, r'a\.geojson does not exist'),
    'no JSON': (broken('{'), r'cannot be opened \(JSONDecodeError: '),
    'nested': (broken('[' * 9999), r'cannot be opened \(RecursionError'),
    'not finite': (broken('{"type": "Point", "coordinates": [1, NaN]}'), POLYGON),
    'link': (
        broken('{"type": "Polygon", "crs": {"type": "link", "properties": {"href": "x"}}}'),
        "cannot be opened \\(KeyError: 'code'",
    ),
    'two systems': (
        lambda path: write(
            path,
            collection(*({'type': 'Feature', 'geometry': {'crs': named(n)}} for n in DEGREES)),
        ),
        'has several reference systems: write a file for each of them',
    ),
    'layers': (
        two_layers,
        r'has 2 layers with geometries \(one, two\), but one is needed: copy a layer with ogr2ogr',
    ),
    'cut off': (cut_off, r'cannot be opened \(DatabaseError'),
    'nested shapes': (nested, r'feature 1 is not a .*\(ValueError: it has the type 6 instead of a'),
}


@pytest.mark.filterwarnings('ignore::RuntimeWarning:pyogrio')  # of GeoPackages called .geojson
@pytest.mark.parametrize('case', REFUSED)
def test_files_without_features_are_refused_in_one_sentence(tmp_path, case):
    spoil, message = REFUSED[case]
    path = tmp_path / 'a.geojson'
    spoil(path)
    with pytest.raises(UserError, match=message) as refused:
        read_features(path)
    assert str(path) in str(refused.value) and '\n' not in str(refused.value)


def test_coordinates_that_cannot_be_converted_are_refused(tmp_path):
    content = mapping(shapely.box(1, 95, 2, 96))
    features = read_features(write(tmp_path / 'a.geojson', content))
    features = replace(features, crs='EPSG:4326')
    with pytest.raises(UserError, match="has the reference system 'EPSG:4326', but the image has"):
        in_crs(features, None)
    with pytest.raises(UserError, match=r"cannot be converted from 'EPSG:4326' to EPSG:32632"):
        in_crs(features, UTM)
