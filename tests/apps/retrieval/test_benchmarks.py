"""Benchmarks of image retrieval in their own file layouts, by tools/embed.py."""

import io
import json
import os
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from xcit_mm.apps.retrieval.holidays import read_holidays
from xcit_mm.apps.retrieval.ranking import Judgment
from xcit_mm.apps.retrieval.revisited import PlainUnpickler, read_revisited
from xcit_mm.base.errors import UserError


@pytest.fixture
def truth():
    """Two queries; the second one has no hard positive."""
    gnd = [
        dict(bbx=[4.0, 3.5, 50.0, 40.0], easy=[0], hard=np.array([2]), junk=[3]),
        dict(bbx=np.array([0.0, 0, 60, 47]), easy=np.array([1, 4]), hard=[], junk=()),
    ]
    return dict(imlist=[f'image_{i}' for i in range(5)], qimlist=['query_0', 'query_1'], gnd=gnd)


@pytest.fixture
def oxford(tmp_path, truth):
    folder = tmp_path / 'roxford5k'
    (folder / 'jpg').mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in truth['imlist']:
        image = Image.fromarray(random.integers(0, 256, (4, 5, 3), np.uint8))
        image.resize((64, 48), Image.Resampling.BICUBIC).save(folder / 'jpg' / f'{name}.jpg')
    for query, image in (('query_0', 'image_0'), ('query_1', 'image_4')):
        shutil.copy(folder / 'jpg' / f'{image}.jpg', folder / 'jpg' / f'{query}.jpg')
    (folder / 'gnd_roxford5k.pkl').write_bytes(pickle.dumps(truth, protocol=2))
    return folder


def test_settings_have_their_positives_and_junk(oxford):
    benchmark = read_revisited('roxford5k', oxford)
    assert benchmark.judgments == dict(
        easy=[Judgment([0], [3, 2]), Judgment([1, 4], [])],
        medium=[Judgment([0, 2], [3]), Judgment([1, 4], [])],
        hard=[Judgment([2], [3, 0]), Judgment([], [1, 4])],
    )
    assert benchmark.boxes == [(4.0, 3.5, 50.0, 40.0), (0.0, 0.0, 60.0, 47.0)]
    assert benchmark.images[2] == str(oxford / 'jpg' / 'image_2.jpg') and not benchmark.is_whole


@pytest.mark.parametrize('descriptor', [['token'], ['vlad', '--k', 3], ['asmk', '--k', 3]])
def test_revisited_oxford_is_evaluated(embed, oxford, tmp_path, descriptor):
    if descriptor[0] == 'asmk':
        pytest.importorskip('asmk')
    pytest.importorskip('faiss')
    out = tmp_path / 'result.json'
    options = '--benchmark', 'roxford5k', oxford, '--descriptor', *descriptor, '--json', out
    code, printed, errors = embed(*options)
    assert code == 0, errors
    content = json.loads(out.read_text())
    assert (content['images'], content['queries']) == (5, 2)
    rows = content['settings']
    assert [rows[name]['queries'] for name in ('easy', 'medium', 'hard')] == [2, 2, 1]
    assert all(0 < row['mean_average_precision'] <= 100 for row in rows.values())
    assert all(list(row['precision']) == ['1', '5', '10'] for row in rows.values())
    assert f'medium  mAP {rows["medium"]["mean_average_precision"]:.1f}, mP@1' in printed
    assert 'table D.4' not in printed  # the folder is not the whole benchmark


def test_queries_are_cut_out_before_they_are_described(embed, oxford, tmp_path, truth):
    pytest.importorskip('faiss')
    # Around the picture of image 2, which is what the query shows, is another one.
    inner, outer = (Image.open(oxford / 'jpg' / f'image_{i}.jpg') for i in (2, 3))
    query = outer.resize((192, 144))
    query.paste(inner.resize((64, 48)), (64, 48))
    query.save(oxford / 'jpg' / 'query_0.jpg', quality=95)
    truth['gnd'] = [dict(bbx=[64, 48, 128, 96], easy=[2], hard=[], junk=[])]
    truth['qimlist'] = ['query_0']
    (oxford / 'gnd_roxford5k.pkl').write_bytes(pickle.dumps(truth, protocol=2))
    out = tmp_path / 'result.json'
    run = '--benchmark', 'roxford5k', oxford, '--json', out, '--size', 192
    assert embed(*run)[0] == 0
    assert json.loads(out.read_text())['settings']['easy']['mean_average_precision'] == 100


def read(data):
    return PlainUnpickler(io.BytesIO(data), encoding='latin1').load()


@pytest.mark.parametrize('protocol', [0, 1, 2, 3, 4])
def test_plain_pickles_are_read_as_python_does(truth, protocol):
    truth |= dict(
        number=np.float64(0.5), big=np.int64(-7), none=None, flags=(True, False), text='ü',
        matrix=np.arange(6.0, dtype='>f4').reshape(2, 3), nested=[{}, [()], {'a': [1, -2, 3.5]}],
    )  # fmt: skip
    data = pickle.dumps(truth, protocol=protocol)
    np.testing.assert_equal(read(data), pickle.loads(data))


def test_pickles_of_python_2_are_read():
    # cPickle.dumps({'a': numpy.array([1, 2], '<i2')}, 2), whose texts are bytes.
    data = (
        b'\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b'
        b'\x87R(K\x01K\x02\x85cnumpy\ndtype\nU\x02i2K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff'
        b'J\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x00\x02\x00tbs.'
    )
    assert read(data)['a'].tolist() == [1, 2]


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_hostile_ground_truth_runs_no_code(embed, oxford, tmp_path):
    path, trace = oxford / 'gnd_roxford5k.pkl', tmp_path / 'trace'
    for protocol in range(5):
        path.write_bytes(pickle.dumps(Hostile(os.mkdir, str(trace)), protocol=protocol))
        code, _, errors = embed('--benchmark', 'roxford5k', oxford)
        assert code == 2 and 'gnd_roxford5k.pkl cannot be read' in errors
        assert 'mkdir, which could run code' in errors and 'Traceback' not in errors
    assert not trace.exists()


def test_images_in_other_folders_are_refused(oxford, truth):
    truth['imlist'] = ['../../etc/passwd']
    (oxford / 'gnd_roxford5k.pkl').write_bytes(pickle.dumps(truth, protocol=2))
    with pytest.raises(UserError, match=r"etc/passwd' is not the name of an image"):
        read_revisited('roxford5k', oxford)


def test_missing_files_are_named(embed, oxford, tmp_path):
    pytest.importorskip('faiss')
    (oxford / 'jpg' / 'image_3.jpg').unlink()
    code, _, errors = embed('--benchmark', 'roxford5k', oxford)
    assert code == 2 and 'image_3.jpg' in errors and 'needs all of its images' in errors
    code, _, errors = embed('--benchmark', 'rparis6k', oxford)
    assert code == 2 and 'gnd_rparis6k.pkl cannot be read (FileNotFoundError' in errors
    code, _, errors = embed('--benchmark', 'holidays', tmp_path / 'nothing')
    assert code == 2 and 'nothing: it is not a folder' in errors
    code, _, errors = embed('--benchmark', 'oxford', oxford)
    assert (
        code == 2 and '--benchmark oxford: it is not one of roxford5k, rparis6k and hol' in errors
    )


@pytest.fixture
def holidays(tmp_path):
    """Three groups: of three images, one, and two, whose copies are easy to find."""
    folder = tmp_path / 'holidays' / 'jpg'
    folder.mkdir(parents=True)
    # One color each: tokens of random weights find these on every processor.
    for group, count, color in ((1000, 3, 'red'), (1001, 1, 'lime'), (1002, 2, 'blue')):
        image = Image.new('RGB', (64, 48), color)
        for i in range(count):
            image.save(folder / f'{100 * group + i}.jpg', quality=95 - i)
    return folder.parent


def test_the_first_image_of_a_group_is_the_query(holidays):
    benchmark = read_holidays(holidays)
    assert benchmark.queries == [
        str(holidays / 'jpg' / f'{number}.jpg') for number in (100000, 100100, 100200)
    ]
    expected = [Judgment([1, 2], [0]), Judgment([], [3]), Judgment([5], [4])]
    assert benchmark.judgments == dict(all=expected) and not benchmark.is_whole
    assert read_holidays(holidays / 'jpg') == benchmark


def test_holidays_are_evaluated(embed, holidays, tmp_path):
    pytest.importorskip('faiss')
    out = tmp_path / 'result.json'
    code, printed, errors = embed('--benchmark', 'holidays', holidays, '--json', out)
    assert code == 0, errors
    row = json.loads(out.read_text())['settings']['all']
    assert row['queries'] == 2 and row['mean_average_precision'] == 100
    assert 'holidays: 6 images, 3 queries\nall     mAP 100.0, mP@1 100.0' in printed


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'garbage',
        b'\x80\x02}',
        b'\x80\x02cnumpy\nndarray\n)R.',
        b'\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00O\x89\x88\x87R.',
        b'\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.',
        b'\x80\x02P0\n.',
    ],
)
def test_damaged_and_hostile_pickles_are_refused(oxford, data):
    (oxford / 'gnd_roxford5k.pkl').write_bytes(data)
    with pytest.raises(UserError, match=r'gnd_roxford5k\.pkl cannot be read'):
        read_revisited('roxford5k', oxford)
