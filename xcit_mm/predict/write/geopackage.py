"""GeoPackage files of features."""

import warnings
from pathlib import Path

import numpy as np
import shapely

from ...base.environment import require
from ...base.errors import UserError, reason
from ...base.files import write_beside
from .vector_layers import Layer

UNDEFINED_CARTESIAN = -1  # of the GeoPackage standard, such as for pixels
VERSION = '1.2'  # GDAL before 3.7 warns of later versions


def write_geopackage(path: Path, layer: Layer) -> None:
    """Write a layer as a GeoPackage, in map coordinates if the image has a transform, else pixels.

    The fields are ``class``, ``label``, ``score`` (of objects), ``area`` and ``color``, such as
    ``#1f77b4``. The features are written in parts. The file is either complete or absent.

    Raises:
        UserError: If the file cannot be written.
    """
    require('pyogrio')
    from pyogrio.errors import DataLayerError, DataSourceError, FeatureError
    from pyogrio.raw import write

    crs = layer.georeference.get('crs')
    # GDAL otherwise takes a layer without a system for degrees of longitude and latitude.
    system = dict(SRID=str(UNDEFINED_CARTESIAN)) if crs is None else {}
    names = np.array(layer.classes, object)
    colors = np.array(['#{:02x}{:02x}{:02x}'.format(*color) for color in layer.palette], object)
    try:
        with write_beside(path) as unfinished, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about layers without a reference system
            for number, part in enumerate(layer.parts):
                labels = part.labels.astype(np.int32)
                fields = {'class': names[labels], 'label': labels}
                if part.scores is not None:
                    fields['score'] = part.scores.astype(float).round(4)
                fields['area'] = layer.areas(part)
                fields['color'] = colors[labels]
                write(
                    str(unfinished),
                    shapely.to_wkb(layer.on_map(part.outlines)),
                    [*fields.values()],
                    [*fields],
                    layer=layer.name,
                    driver='GPKG',
                    geometry_type=layer.kind,
                    crs=None if crs is None else crs.to_wkt(),
                    append=number > 0,
                    dataset_options=None if number else dict(VERSION=VERSION),
                    layer_options=None if number else system,
                )
    except (DataLayerError, DataSourceError, FeatureError) as error:
        raise UserError(
            f'{path} cannot be written ({reason(error)}): make room on its disk'
        ) from None
