"""The layouts of revisited Oxford and Paris and of Holidays, read without running code."""

import os
import pickle

import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.retrieval.benchmarks import published, read_benchmark, read_plain_pickle
from xcit_mm.retrieval.ranking import Relevant

TRUTH = dict(bbx=[1.0, 2.0, 30.5, 20.0], easy=np.array([0]), hard=[2], junk=np.array([1]))


@pytest.fixture
def oxford(tmp_path):
    (tmp_path / 'jpg').mkdir()
    for name in ('a', 'b', 'c', 'q'):
        (tmp_path / f'jpg/{name}.jpg').touch()
    return tmp_path


def write(folder, content):
    (folder / 'gnd_roxford5k.pkl').write_bytes(pickle.dumps(content))


def test_oxford_has_three_protocols(oxford):
    write(oxford, dict(imlist=['a', 'b', 'c'], qimlist=['q'], gnd=[TRUTH]))
    benchmark = read_benchmark('roxford5k', oxford)
    (query,) = benchmark.queries
    assert [path.name for path in benchmark.images] == ['a.jpg', 'b.jpg', 'c.jpg']
    assert (query.path.name, query.box) == ('q.jpg', (1, 2, 30, 20))
    assert query.relevant == dict(
        easy=Relevant([0], [1, 2]), medium=Relevant([0, 2], [1]), hard=Relevant([2], [1, 0])
    )


def test_a_ground_truth_runs_no_code(oxford, tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'was_run'),)

    write(oxford, dict(imlist=Code()))
    with pytest.raises(UserError, match=r'names posix\.mkdir, which could run code'):
        read_benchmark('roxford5k', oxford)
    assert not (tmp_path / 'was_run').exists()


@pytest.mark.parametrize(
    'content',
    [
        [],
        dict(imlist=['a'], qimlist=['q', 'q'], gnd=[TRUTH]),
        dict(imlist=['a'], qimlist=['q'], gnd=[TRUTH]),
        dict(imlist=['a', 'b', 'c'], qimlist=['q'], gnd=[{**TRUTH, 'bbx': [9, 9, 1, 1]}]),
    ],
)
def test_another_content_is_refused(oxford, content):
    write(oxford, content)
    with pytest.raises(UserError, match='is not the ground truth of roxford5k'):
        read_benchmark('roxford5k', oxford)


def test_missing_and_damaged_files_are_named(oxford):
    with pytest.raises(UserError, match=r'gnd_roxford5k\.pkl cannot be read'):
        read_benchmark('roxford5k', oxford)
    (oxford / 'gnd_roxford5k.pkl').write_bytes(b'\x80\x04')
    with pytest.raises(UserError, match='is damaged'):
        read_plain_pickle(oxford / 'gnd_roxford5k.pkl')
    write(oxford, dict(imlist=['a', 'b', 'x'], qimlist=['q'], gnd=[TRUTH]))
    with pytest.raises(UserError, match=r'x\.jpg is missing, one of 1: unpack the images'):
        read_benchmark('roxford5k', oxford)


def test_the_first_image_of_a_group_of_holidays_is_its_query(tmp_path):
    for name in ('100000', '100001', '100002', '100100', '100101', '100200', 'other'):
        (tmp_path / f'{name}.jpg').touch()
    benchmark = read_benchmark('holidays', tmp_path)
    queries = {q.path.stem: q.relevant['holidays'] for q in benchmark.queries}
    assert queries == {'100000': Relevant([1, 2], [0]), '100100': Relevant([4], [3])}
    with pytest.raises(UserError, match='has no images of Holidays'):
        read_benchmark('holidays', tmp_path / 'nothing')


def test_table_d4_is_found_by_the_name_of_the_release():
    assert published('x/xcit_small_12_p16_384_dist.pth', 'holidays') == dict(holidays=86.0)
    assert published('xcit_small_12_cp16_dino.pth', 'roxford5k') == dict(medium=35.1, hard=11.9)
    assert published('own.pth', 'roxford5k') == {}
