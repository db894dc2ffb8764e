"""GeoJSON files of features, which QGIS and QuPath open."""

import json
from pathlib import Path
from typing import Any

import shapely

from ...base.files import write_whole
from ...large.files.crs_names import epsg_code
from .vector_layers import Layer, LayerPart

# QuPath can edit annotations, but not detections.
ANNOTATION = 'annotation'


def write_geojson(path: Path, layer: Layer) -> None:
    """Write a layer as GeoJSON, in map coordinates if the image has a transform, else in pixels.

    As in the files of GDAL, ``crs`` names the reference system, by its EPSG code or as WKT. The
    properties are ``class``, ``label``, ``score`` (of objects), ``area`` and ``color``, and what
    QuPath 0.4 and later read: ``objectType``, ``classification`` and ``measurements``. The features
    are written one by one.
    """
    content: dict[str, Any] = dict(type='FeatureCollection', name=layer.name)
    crs = layer.georeference.get('crs')
    if crs is not None:
        code = epsg_code(crs)
        name = crs.to_wkt() if code is None else f'urn:ogc:def:crs:EPSG::{code}'
        content['crs'] = dict(type='name', properties=dict(name=name))
    with write_whole(path, 'w') as file:
        file.write(f'{json.dumps(content)[:-1]}, "features": [')
        separator = ''
        for part in layer.parts:
            geometries, areas = shapely.to_geojson(layer.on_map(part.outlines)), layer.areas(part)
            for i, geometry in enumerate(geometries):
                properties = json.dumps(_properties(layer, part, i, areas[i]))
                file.write(
                    f'{separator}{{"type": "Feature", "properties": {properties}, '
                    f'"geometry": {geometry}}}'
                )
                separator = ',\n'
        file.write(']}')


def _properties(layer: Layer, part: LayerPart, i: int, area: float) -> dict[str, Any]:
    label = int(part.labels[i])
    name, color = layer.classes[label], [int(value) for value in layer.palette[label]]
    numbers = {}
    if part.scores is not None:
        numbers['score'] = round(float(part.scores[i]), 4)
    numbers['area'] = float(area)
    return {
        'class': name,
        'label': label,
        **numbers,
        'color': color,
        'objectType': ANNOTATION,
        'classification': dict(name=name, color=color),
        'measurements': numbers,
    }
