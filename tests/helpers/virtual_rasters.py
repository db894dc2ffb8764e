"""Virtual rasters that GDAL 3.6 wrote: the first line of each is the command."""

import shutil
from pathlib import Path

WRITTEN = Path(__file__).parents[1] / 'expected/virtual_rasters'


def virtual_raster(path: Path, name: str) -> Path:
    """Write one of them next to its tiles, so that tests need no commands of GDAL."""
    return Path(shutil.copyfile(WRITTEN / f'{name}.vrt', path))
