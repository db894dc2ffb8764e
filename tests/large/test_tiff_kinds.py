"""Every reader of TIFF files reads the same pixels, which are those that were written."""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
import tifffile
from helpers.file_server import serving
from PIL import Image, ImageOps
from rasterio.enums import ColorInterp

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, whole
from xcit_mm.data.importers.contents import image_size as converted_size
from xcit_mm.data.transforms.decode import BadImageError, LoadImage, decode
from xcit_mm.data.transforms.label_images import LoadLabels
from xcit_mm.data.transforms.multiband import LoadMultiband
from xcit_mm.large.files.image_views import RGBImage
from xcit_mm.large.files.open_image import image_size, open_image
from xcit_mm.large.labels.masks import polygons_of
from xcit_mm.predict.large.open_scene import SceneOptions, open_scene
from xcit_mm.predict.sources import to_rgb

HEIGHT, WIDTH = 16, 32
BANDS = np.random.default_rng(0).integers(1, 255, (HEIGHT, WIDTH, 5), np.uint8)
PHOTO, GRAY, FOUR = BANDS[..., :3], BANDS[..., :1], BANDS[..., :4]
WIDE = PHOTO.astype(np.uint16) * 257
BITS = GRAY >> 7
COLORS = np.random.default_rng(1).integers(0, 255, (256, 3), np.uint8)
STACK = dict(photometric='minisblack', planarconfig='contig')
ORIENTATION = 274
Writer = Callable[[Path], object]


def tiff(image: np.ndarray, **options: Any) -> Writer:
    """Write an image with tifffile."""
    image = image[..., 0] if image.shape[2] == 1 else image
    if options.get('planarconfig') == 'separate':
        image = np.moveaxis(image, -1, 0)
    return partial(tifffile.imwrite, data=image, **options)


def of_gdal(
    image: np.ndarray,
    colors: str = '',
    palette: np.ndarray | None = None,
    levels: bool = False,
    **options: Any,
) -> Writer:
    """Write an image with GDAL; ``colors`` are the names of what its bands are declared as."""
    height, width, count = image.shape
    options |= dict(height=height, width=width, count=count, dtype=image.dtype)

    def write(path: Path) -> None:
        with rasterio.open(path, 'w', 'GTiff', **options) as file:
            file.write(np.moveaxis(image, -1, 0))
            if palette is not None:
                file.write_colormap(1, dict(enumerate(map(tuple, palette))))
            if colors:
                file.colorinterp = [ColorInterp[name] for name in colors.split()]
        if levels:
            with rasterio.open(path, 'r+') as file:
                file.build_overviews([2, 4])

    return write


def of_pillow(image: np.ndarray, mode: str = 'RGB', **options: Any) -> Writer:
    def write(path: Path) -> None:
        Image.fromarray(image).convert(mode).save(path, 'TIFF', **options)

    return write


def pages(*images: np.ndarray) -> Writer:
    def write(path: Path) -> None:
        with tifffile.TiffWriter(path) as file:
            for image in images:
                file.write(image, photometric='minisblack', metadata=None)

    return write


def turned(orientation: int) -> np.ndarray:
    """Turn the photo by its orientation, as Pillow does."""
    image, exif = Image.fromarray(PHOTO), Image.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    image.save(file, 'PNG', exif=exif)
    return np.asarray(ImageOps.exif_transpose(Image.open(file)))


def as_pillow_reads(mode: str) -> np.ndarray:
    return np.asarray(Image.fromarray(PHOTO).convert(mode).convert('RGB'))


def jpeg() -> np.ndarray:
    """Return the photo as the JPEG compression of TIFF changes it, decoded by Pillow."""
    file = io.BytesIO()
    Image.fromarray(PHOTO).save(file, 'TIFF', compression='jpeg')
    return np.asarray(Image.open(file))


PLACE = dict(crs='EPSG:32632', transform=rasterio.Affine(0.5, 0, 5e5, 0, -0.5, 5e6))
ORIENTED = [(ORIENTATION, 'H', 1, 6, True)]
PLACED = [*ORIENTED, (33550, 'd', 3, (0.5, 0.5, 0), True)]
# The writer of each kind, and the RGB image.
KINDS: dict[str, tuple[Writer, np.ndarray]] = {
    'RGB': (tiff(PHOTO, photometric='rgb'), PHOTO),
    'tiles and levels': (
        of_gdal(PHOTO, levels=True, tiled=True, blockxsize=16, blockysize=16, **PLACE),
        PHOTO,
    ),
    'BigTIFF': (tiff(PHOTO, photometric='rgb', bigtiff=True), PHOTO),
    'big-endian, 16 bits': (tiff(WIDE, photometric='rgb', byteorder='>'), PHOTO),
    'a stack of three bands': (tiff(PHOTO, **STACK), PHOTO),
    'a stack of GDAL': (of_gdal(PHOTO, photometric='minisblack'), PHOTO),
    '16 bits of GDAL': (of_gdal(WIDE), PHOTO),
    '12 bits of GDAL': (of_gdal(WIDE >> 4, nbits=12), PHOTO),
    'gray': (tiff(GRAY), GRAY),
    'white is 0': (tiff(255 - GRAY, photometric='miniswhite'), GRAY),
    'one bit': (of_gdal(BITS, nbits=1), BITS * 255),
    'four bits': (of_gdal(GRAY >> 4, nbits=4), (GRAY >> 4) * 17),
    'palette': (of_gdal(GRAY, palette=COLORS, photometric='palette'), COLORS[GRAY[..., 0]]),
    'opacity': (tiff(FOUR, photometric='rgb', extrasamples=['unassalpha']), PHOTO),
    'premultiplied opacity': (tiff(FOUR, photometric='rgb', extrasamples=['assocalpha']), PHOTO),
    'another band': (tiff(FOUR, photometric='rgb', extrasamples=['unspecified']), PHOTO),
    'infrared that GDAL calls opacity': (of_gdal(FOUR), PHOTO),
    'gray with opacity': (
        of_gdal(BANDS[..., :2], photometric='minisblack', alpha='yes'),
        GRAY,
    ),
    'five bands': (tiff(BANDS, **STACK), PHOTO),
    'blue, green, red': (of_gdal(PHOTO[..., ::-1], 'blue green red'), PHOTO),
    'infrared first': (
        of_gdal(BANDS[..., [3, 0, 1, 2]], 'undefined red green blue', photometric='minisblack'),
        PHOTO,
    ),
    'opacity before infrared': (
        of_gdal(BANDS, 'red green blue alpha undefined', photometric='minisblack'),
        PHOTO,
    ),
    'CMYK': (of_pillow(PHOTO, 'CMYK'), as_pillow_reads('CMYK')),
    'YCbCr': (of_pillow(PHOTO, 'YCbCr'), as_pillow_reads('YCbCr')),
    'JPEG': (of_pillow(PHOTO, compression='jpeg'), jpeg()),
    'several pages': (pages(GRAY[..., 0], BANDS[..., 3]), GRAY),
    'orientation and place': (tiff(PHOTO, photometric='rgb', extratags=PLACED), PHOTO),
    **{
        f'orientation {n}': (of_pillow(PHOTO, tiffinfo={ORIENTATION: n}), turned(n))
        for n in range(2, 9)
    },
    **{
        f'compressed by {name}': (of_gdal(PHOTO, compress=name, **options), PHOTO)
        for name, options in dict(
            lerc={}, webp=dict(webp_lossless=True), zstd={}, lzma={}, lzw=dict(predictor=2)
        ).items()
    },
}
REFUSED: dict[str, tuple[Writer, str]] = {
    'two bands': (tiff(BANDS[..., :2], **STACK), 'has 2 channels, but the model needs 3'),
    'floats': (tiff(PHOTO.astype('f4'), photometric='rgb'), 'type float32, .* --range LOW,HIGH'),
    'turned CMYK': (of_pillow(PHOTO, 'CMYK', tiffinfo={ORIENTATION: 6}), 'orientation 6'),
}


def scene_of(path: Path) -> RGBImage:
    return RGBImage(open_scene(path, to_rgb, 3, SceneOptions()).source)


@pytest.mark.parametrize('kind', KINDS)
def test_every_path_reads_the_colors_that_were_written(kind, tmp_path):
    write, image = KINDS[kind]
    write(path := tmp_path / 'a.tif')
    expected = np.broadcast_to(image, (*image.shape[:2], 3)).astype(int)
    scene = scene_of(path)
    read = {
        'decode': decode(path.read_bytes())[..., ::-1],
        'training': LoadImage()(dict(img_path=str(path)))['img'][..., ::-1],
        'Model.read': to_rgb(path),
        'scene': scene.read(whole(scene.shape[:2])),
    }
    tolerance = 2 if kind in ('CMYK', 'YCbCr', 'JPEG') else 0  # of another decoder
    for name, pixels in read.items():
        assert pixels.dtype == np.uint8
        assert np.abs(pixels - expected).max() <= tolerance, name
        np.testing.assert_array_equal(pixels, read['scene'], name)
    assert image_size(str(path)) == image.shape[:2] == converted_size(path)[::-1]


@pytest.mark.parametrize(('suffix', 'sidecar'), [('.tif', '.wld'), ('.png', '.aux.xml')])
def test_an_image_that_a_sidecar_places_is_not_turned(suffix, sidecar, tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(PHOTO).save(path := tmp_path / f'a{suffix}', exif=exif)
    assert to_rgb(path).shape == (WIDTH, HEIGHT, 3)
    if sidecar == '.wld':
        path.with_suffix('.wld').write_text('2\n0\n0\n-2\n1\n-1\n')
    else:
        transform = '<GeoTransform>0,2,0,0,0,-2</GeoTransform>'
        (tmp_path / f'{path.name}{sidecar}').write_text(f'<PAMDataset>{transform}</PAMDataset>')
    with rasterio.open(path) as file:
        place = file.transform
    scene = scene_of(path)
    assert scene.georeference['transform'] == place
    labels = LoadLabels()(dict(seg_map_path=str(path)))['gt_seg_map']
    for pixels in (
        scene.read(whole(scene.shape[:2])),
        LoadImage()(dict(img_path=str(path)))['img'][..., ::-1],
        to_rgb(path),
        labels,
    ):
        np.testing.assert_array_equal(pixels, PHOTO)
    if suffix == '.tif':
        bands = LoadMultiband(3)(dict(img_path=str(path)))['img']
        np.testing.assert_array_equal(bands, PHOTO)
    assert image_size(str(path)) == (HEIGHT, WIDTH) == converted_size(path)[::-1]


@pytest.mark.parametrize('kind', ['blue, green, red', 'orientation 6', 'palette'])
def test_a_file_by_address_and_a_mosaic_have_the_same_colors(kind, tmp_path):
    write, image = KINDS[kind]
    write(path := tmp_path / 'a.tif')
    with serving() as server:
        server.files['/a.tif'] = path.read_bytes()
        server.versions['/a.tif'] = '"1"'
        scene = RGBImage(open_image(server.url('/a.tif'), str, 3))
        pixels = scene.read(whole(image.shape[:2]))
    np.testing.assert_array_equal(pixels, np.broadcast_to(image, pixels.shape))
    if kind != 'orientation 6':  # which a file with a place has not
        with rasterio.open(path, 'r+') as file:
            file.crs, file.transform = PLACE['crs'], PLACE['transform']
        source = open_image([path], str, 3)
        pixels = RGBImage(source).read(whole(source.shape[:2]))
        np.testing.assert_array_equal(pixels, np.broadcast_to(image, pixels.shape))


def test_a_virtual_raster_declares_its_own_colors(tmp_path):
    of_gdal(PHOTO, photometric='minisblack', **PLACE)(tmp_path / 'a.tif')
    full = f'xOff="0" yOff="0" xSize="{WIDTH}" ySize="{HEIGHT}"'
    bands = ''.join(
        f'<VRTRasterBand dataType="Byte" band="{n}"><ColorInterp>{color}</ColorInterp>'
        '<SimpleSource><SourceFilename relativeToVRT="1">a.tif</SourceFilename><SourceBand>'
        f'{band}</SourceBand><SrcRect {full}/><DstRect {full}/></SimpleSource></VRTRasterBand>'
        for n, (color, band) in enumerate([('Blue', 3), ('Green', 2), ('Red', 1)], 1)
    )
    (tmp_path / 'a.vrt').write_text(
        f'<VRTDataset rasterXSize="{WIDTH}" rasterYSize="{HEIGHT}">{bands}</VRTDataset>'
    )
    frame = whole(PHOTO.shape[:2])
    np.testing.assert_array_equal(open_image(tmp_path / 'a.vrt', str, 3).read(frame), PHOTO)
    stored = open_image(tmp_path / 'a.vrt', str).read(frame)
    np.testing.assert_array_equal(stored, PHOTO[..., ::-1])


@pytest.mark.parametrize('kind', REFUSED)
def test_what_has_no_colors_is_refused_by_every_path(kind, tmp_path):
    write, sentence = REFUSED[kind]
    write(path := tmp_path / 'a.tif')
    for read in (lambda p: decode(p.read_bytes()), to_rgb, scene_of):
        with pytest.raises((BadImageError, UserError), match=sentence):
            read(path)


BANDED = {
    **dict.fromkeys(('five bands', 'opacity before infrared'), BANDS),
    **dict.fromkeys(('opacity', 'premultiplied opacity', 'another band'), FOUR),
    'infrared that GDAL calls opacity': FOUR,
    'infrared first': BANDS[..., [3, 0, 1, 2]],
    'blue, green, red': PHOTO[..., ::-1],
    'big-endian, 16 bits': WIDE,
    '12 bits of GDAL': WIDE >> 4,
    'white is 0': 255 - GRAY,
    'palette': GRAY,
    'one bit': BITS,
    'floats': PHOTO,
    'two bands': BANDS[..., :2],
    'orientation 6': turned(6),
}


@pytest.mark.parametrize('kind', BANDED)
def test_models_of_bands_read_the_values_as_they_are_stored(kind, tmp_path):
    write, _ = (KINDS | REFUSED)[kind]
    write(path := tmp_path / 'a.tif')
    expected = BANDED[kind]
    source = open_image(path, str)
    np.testing.assert_array_equal(source.read(whole(source.shape[:2])), expected)
    decoded = LoadMultiband(expected.shape[2]).decode(path.read_bytes())
    np.testing.assert_array_equal(decoded, expected)


def test_the_opacity_of_an_ome_tiff_is_no_channel(tmp_path):
    image = FOUR.copy()
    image[:4, :5, 3] = 0
    options = dict(photometric='rgb', extrasamples=['unassalpha'], metadata=dict(axes='YXS'))
    sources = []
    for name in ('a.ome.tif', 'a.tif'):
        tifffile.imwrite(tmp_path / name, image, ome=True, **options)
        sources.append(open_image(tmp_path / name, str, 3))
    for source in sources:
        frame = whole(source.shape[:2])
        assert source.shape == PHOTO.shape
        np.testing.assert_array_equal(source.read(frame), PHOTO)
        np.testing.assert_array_equal(source.valid(frame), image[..., 3] > 0)


def test_the_levels_of_an_image_are_turned_with_it(tmp_path):
    path = tmp_path / 'a.tif'
    with tifffile.TiffWriter(path) as file:
        options = dict(photometric='rgb', metadata=None, extratags=ORIENTED)
        file.write(PHOTO, **options)
        file.write(PHOTO[::2, ::2], subfiletype=1, **options)
    source = open_image(path, str, 3, level=1)
    assert source.levels == ((WIDTH, HEIGHT), (WIDTH // 2, HEIGHT // 2))
    expected = np.rot90(PHOTO[::2, ::2], -1)
    np.testing.assert_array_equal(source.read(whole(source.shape[:2])), expected)


@pytest.mark.parametrize(
    'kind', ['white is 0', '12 bits of GDAL', 'palette', 'blue, green, red', 'one bit']
)
def test_a_level_has_the_colors_of_the_image(kind, tmp_path):
    write, image = KINDS[kind]
    write(path := tmp_path / 'a.tif')
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2])  # the nearest pixels
    scene = RGBImage(open_image(path, str, 3, level=1))
    pixels = scene.read(whole(scene.shape[:2]))
    np.testing.assert_array_equal(pixels, np.broadcast_to(image[::2, ::2], pixels.shape))


def test_pages_name_no_other_file(tmp_path):
    """GDAL takes the names of pages from metadata that a file can hold."""
    pages(BANDS[..., 1], BANDS[..., 2])(other := tmp_path / 'other.tif')
    items = ''.join(
        f'<Item name="SUBDATASET_{n}_NAME" domain="SUBDATASETS">GTIFF_DIR:{n}:{other}</Item>'
        for n in (1, 2)
    )
    metadata = f'<GDALMetadata>{items}</GDALMetadata>'
    tiff(GRAY, extratags=[(42112, 's', 0, metadata, True)])(path := tmp_path / 'a.tif')
    with pytest.raises(BadImageError):
        LoadMultiband(2).decode(path.read_bytes())


def test_polygons_lie_in_the_full_pixels_of_a_turned_image_at_a_level(tmp_path):
    stored = np.zeros((64, 128, 3), np.uint8)
    tags = dict(photometric='rgb', tile=(16, 16), extratags=[(ORIENTATION, 'H', 1, 6, True)])
    with tifffile.TiffWriter(path := tmp_path / 'a.tif') as file:
        file.write(stored, **tags)
        file.write(stored[::2, ::2], subfiletype=1, **tags)
    region = tmp_path / 'region.geojson'
    region.write_text(json.dumps(shapely.geometry.mapping(shapely.box(16, 40, 48, 120))))
    for level, box in ((0, (16, 40, 48, 120)), (1, (8, 20, 24, 60))):
        source = open_image(path, str, 3, level=level)
        assert polygons_of(region, source).box == Window.around(box, source.shape[:2])


def test_channels_in_pages_of_an_ome_tiff_are_no_gray_image(tmp_path):
    path = tmp_path / 'a.ome.tif'
    tifffile.imwrite(path, np.moveaxis(PHOTO, -1, 0), photometric='minisblack', ome=True)
    scene = scene_of(path)
    np.testing.assert_array_equal(scene.read(whole(scene.shape[:2])), PHOTO)
    with pytest.raises(BadImageError, match=r'whose channels are pages: predict it with --str'):
        decode(path.read_bytes())
