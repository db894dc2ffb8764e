"""Files of predictions: pictures, COCO JSON, GeoTIFF, GeoJSON, GeoPackage and Zarr."""
