"""Descriptors of files, and the search among them, by tools/embed.py."""

import json
import warnings

import numpy as np
import pytest
import rasterio
from PIL import Image

from xcit_mm.apps.retrieval import image_tokens as module
from xcit_mm.apps.retrieval.codebook import Codebook
from xcit_mm.apps.retrieval.descriptor_files import read_descriptors
from xcit_mm.apps.retrieval.descriptors import describe
from xcit_mm.predict.embedder import Embedder

pytest.importorskip('faiss')


@pytest.fixture
def folder(tmp_path):
    """Five pictures of different odd sizes."""
    random = np.random.default_rng(0)
    (tmp_path / 'images').mkdir()
    for i in range(5):
        image = Image.fromarray(random.integers(0, 256, (5, 4 + i, 3), np.uint8))
        image = image.resize((61 + 8 * i, 83 - 7 * i), Image.Resampling.BICUBIC)
        image.save(tmp_path / 'images' / f'{i}.png')
    return tmp_path / 'images'


@pytest.mark.parametrize('kind, dim', [('token', 32), ('mean', 32), ('gem', 32), ('vlad', 128)])
def test_descriptors_and_names_are_written(embed, folder, tmp_path, checkpoint, kind, dim):
    out = tmp_path / 'new' / 'out.npy'
    options = ['--k', 4] if kind == 'vlad' else []
    code, printed, _ = embed(folder, '--descriptor', kind, '--out', out, *options)
    assert code == 0 and f'5 images, {dim} dimensions' in printed
    vectors = np.load(out, allow_pickle=False)
    assert vectors.shape == (5, dim) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    names = json.loads(out.with_suffix('.json').read_text())['names']
    assert names == [str(folder / f'{i}.png') for i in range(5)]
    if kind != 'vlad':
        embedder = Embedder(checkpoint, 'cpu', fit='longer', size=64)
        features = embedder.features(embedder.prepare(embedder.read(names[2]))[None])
        powers = features.map.double().clamp(1e-6).pow(3)
        expected = dict(
            token=features.token[0],
            mean=features.map.mean((2, 3))[0],
            gem=powers.mean((2, 3))[0].pow(1 / 3),
        )[kind].numpy()
        np.testing.assert_allclose(vectors[2], expected / np.linalg.norm(expected), atol=1e-5)


def test_parquet_holds_names_and_sizes(embed, folder, tmp_path):
    parquet = pytest.importorskip('pyarrow.parquet')
    out = tmp_path / 'out.parquet'
    assert embed(folder, '--out', out)[0] == 0
    table = parquet.read_table(out)
    assert table.column_names == ['name', 'width', 'height', 'descriptor']
    assert table['width'].to_pylist() == [61, 69, 77, 85, 93]
    assert table['height'].to_pylist() == [83, 76, 69, 62, 55]
    assert str(table.schema.field('descriptor').type) == 'fixed_size_list<element: float>[32]'
    embed(folder, '--out', tmp_path / 'out.npy')
    read = read_descriptors(out)
    assert (read.vectors == np.load(tmp_path / 'out.npy')).all()
    assert read.names == json.loads((tmp_path / 'out.json').read_text())['names']


@pytest.mark.parametrize('kind', ['token', 'mean', 'gem', 'vlad'])
def test_streamed_images_have_the_same_descriptors(monkeypatch, checkpoint, folder, kind):
    embedder = Embedder(checkpoint, 'cpu', fit='longer')
    source = str(folder / '1.png')
    whole = module.image_tokens(embedder, source, 'native')
    monkeypatch.setattr(module, 'free_memory', lambda: 0)
    streamed = module.image_tokens(embedder, source, 'native')
    codebook = None
    if kind == 'vlad':
        others = [module.image_tokens(embedder, str(path), 64) for path in folder.iterdir()]
        codebook = Codebook.learn(np.concatenate([next(o.tiles()) for o in others]), 3)
    expected = describe(whole, kind, codebook)
    np.testing.assert_allclose(describe(streamed, kind, codebook), expected, atol=1e-5)
    assert streamed.size == whole.size == (76, 69)


@pytest.mark.parametrize('options', [['token'], ['vlad', '--k', 4], ['asmk', '--k', 4]])
def test_queries_find_themselves(embed, folder, tmp_path, options):
    if options[0] == 'asmk':
        pytest.importorskip('asmk')
    found, sheet = tmp_path / 'found.json', tmp_path / 'sheet.png'
    query = folder / '3.png'
    search = ['--search', query, '--top', 2, '--json', found, '--sheet', sheet]
    code, printed, _ = embed(folder, '--descriptor', *options, *search)
    assert code == 0
    (row,) = json.loads(found.read_text())['found']
    assert row['query'] == str(query) and len(row['images']) == 2
    if options[0] != 'asmk':
        assert row['images'][0] == dict(name=str(query), score=pytest.approx(1, abs=1e-5))
    assert str(query) in printed
    with Image.open(sheet) as image:
        assert image.size == (3 * 168 + 16, 192)


def test_index_is_searched_without_its_images(embed, folder, tmp_path):
    out, found = tmp_path / 'out.npy', tmp_path / 'found.json'
    embed(folder, '--out', out)
    query = (folder / '2.png').rename(tmp_path / 'query.png')
    assert embed('--search', query, '--index', out, '--json', found)[0] == 0
    (row,) = json.loads(found.read_text())['found']
    assert row['images'][0]['name'] == str(folder / '2.png')


def test_codebook_file_is_read_again(embed, folder, tmp_path):
    codebook, outs = tmp_path / 'c.npz', [tmp_path / 'a.npy', tmp_path / 'b.npy']
    vlad = ['--descriptor', 'vlad', '--codebook', codebook]
    assert embed(folder, *vlad, '--k', 4, '--out', outs[0])[0] == 0
    assert embed(folder / '1.png', *vlad, '--out', outs[1])[0] == 0
    np.testing.assert_allclose(np.load(outs[0])[1], np.load(outs[1])[0], atol=1e-5)
    np.savez(codebook, mean=np.ones(6), projection=np.eye(6), centers=np.ones((2, 6)))
    code, _, errors = embed(folder, *vlad, '--out', outs[1])
    assert code == 2 and 'is for tokens of 6 channels, but the model has 32' in errors


def test_unreadable_images_are_left_out(embed, folder, tmp_path):
    (folder / '1.png').write_bytes(b'broken')
    out = tmp_path / 'out.npy'
    code, _, errors = embed(folder, '--out', out)
    assert code == 1 and '1.png: it is not a readable image' in errors
    assert len(np.load(out)) == len(json.loads(out.with_suffix('.json').read_text())['names']) == 4


@pytest.mark.parametrize(
    'arguments, sentence',
    [
        (['--out', 'x.txt'], '--out x.txt: the file has to end in .npy or .parquet'),
        ([], 'nothing to do: name a file with --out, or queries with --search'),
        (['--descriptor', 'asmk', '--out', 'x.npy'], '--descriptor asmk compares local'),
    ],
)
def test_bad_options_are_refused(embed, folder, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, errors = embed(folder / '0.png', *arguments)
    assert code == 2 and sentence in errors and 'Traceback' not in errors
    assert not list(tmp_path.glob('x.*'))


def test_pixels_without_data_do_not_count_at_the_native_size(checkpoint, tmp_path):
    image = np.random.default_rng(0).integers(1, 256, (3, 64, 96), np.uint8)
    image[:, :, :48] = 0
    profile = dict(driver='GTiff', width=96, height=64, count=3, dtype='uint8')
    for name, nodata in (('gaps', 0), ('whole', None)):
        path = tmp_path / f'{name}.tif'
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about images without a georeference
            with rasterio.open(path, 'w', **profile, nodata=nodata) as file:
                file.write(image)
    embedder = Embedder(checkpoint, fit='longer')
    number = {
        name: sum(
            map(len, module.image_tokens(embedder, str(tmp_path / f'{name}.tif'), 'native').tiles())
        )
        for name in ('gaps', 'whole')
    }
    assert number == dict(gaps=4 * 3, whole=4 * 6)


def test_the_names_are_not_overwritten(embed, folder, tmp_path):
    query = folder / '0.png'
    options = '--search', query, '--out', tmp_path / 'x.npy', '--json', tmp_path / 'x.json'
    code, _, errors = embed(folder, *options)
    assert code == 2 and 'where the names of --out are written' in errors
