"""tools/infer.py predicts all that can be, names the rest, and loses nothing."""

import errno
import functools
import json
import runpy
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from PIL import Image
from pycocotools.coco import COCO

from xcit_mm import UserError
from xcit_mm.inference import Detections, frames, load_model
from xcit_mm.inference.infer import infer
from xcit_mm.inference.model import Model
from xcit_mm.inference.video import VideoReader, VideoWriter

NUM_FRAMES = 5


@pytest.fixture(scope='module')
def weights(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {
        config: save_random_weights(config, folder / f'{Path(config).stem}.pth')
        for config in (DETECTOR, SEGMENTOR)
    }


@pytest.fixture
def photos(tmp_path, shapes_root) -> Path:
    """Four images, two of one name, and a video."""
    folder = tmp_path / 'photos'
    images = sorted((shapes_root / 'coco/val2017').iterdir())
    (folder / 'below').mkdir(parents=True)
    for path, name in zip(images, ('a.jpg', 'a.png', 'b.jpg', 'below/a.jpg'), strict=True):
        Image.open(path).save(folder / name)
    writer = VideoWriter(folder / 'clip.mp4', 8, (160, 120))
    for i in range(NUM_FRAMES):
        writer.add(np.full((120, 160, 3), 40 * i, np.uint8))
    writer.close()
    return folder


@pytest.fixture
def bad(tmp_path, photos) -> list[str]:
    """What cannot be predicted."""
    folder = tmp_path / 'bad'
    folder.mkdir()
    (folder / 'text.jpg').write_text('hello')
    (folder / 'empty.png').touch()
    (folder / 'cut.jpg').write_bytes((photos / 'a.jpg').read_bytes()[:1500])
    (folder / 'none.mp4').write_bytes(b'')
    (tmp_path / 'nothing').mkdir()
    return [
        str(folder), str(tmp_path / 'nothing'), str(folder / 'gone.jpg'), 'http://127.0.0.1:9/x.jpg',
    ]  # fmt: skip


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file())


def test_detections_are_written_as_pictures_and_coco(weights, photos, tmp_path, capsys):
    out = tmp_path / 'out'
    done = infer(DETECTOR, weights[DETECTOR], [str(photos)], out, 3, score_thr=0.3)
    assert done.done == 4 + NUM_FRAMES and done.problems == []
    names = ['a.jpg', 'a_2.jpg', 'b.jpg', 'below/a.jpg', 'clip.mp4']
    assert files(out) == [*(f'pictures/{name}' for name in names), 'predictions.json']
    assert '9/9' in capsys.readouterr().err

    coco = COCO(out / 'predictions.json')
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == ['circle', 'square', 'triangle']
    assert len(coco.imgs) == 9
    model = load_model(DETECTOR, weights[DETECTOR])
    for image in (one for one in coco.imgs.values() if 'frame' not in one):
        expected = model.predict(image['file_name']).above(0.3)
        annotations = coco.loadAnns(coco.getAnnIds(image['id']))
        np.testing.assert_allclose([a['score'] for a in annotations], expected.scores, atol=1e-4)
        assert (image['height'], image['width']) == expected.image.shape[:2]
        picture = np.array(Image.open(out / image['picture']), int)
        assert np.abs(picture - expected.draw()).mean() < 8
        for annotation, mask in zip(annotations, expected.masks, strict=True):
            assert (coco.annToMask(annotation) != mask).mean() < 1e-3
    assert len(coco.anns) > 9
    assert [i['frame'] for i in coco.imgs.values() if 'frame' in i] == list(range(NUM_FRAMES))
    video = VideoReader(str(out / 'pictures/clip.mp4'))
    assert (video.length, video.rate) == (NUM_FRAMES, 8)


def test_segmentations_are_written_as_pictures_and_labels(weights, photos, tmp_path):
    out = tmp_path / 'out'
    done = infer(SEGMENTOR, weights[SEGMENTOR], [str(photos)], out, 2)
    assert done.done == 4 + NUM_FRAMES
    labels = ['a', 'a_2', 'b', 'below/a', *(f'clip/{i:06d}' for i in range(NUM_FRAMES))]
    assert [f for f in files(out) if 'labels' in f] == [f'labels/{name}.png' for name in labels]
    content = json.loads((out / 'classes.json').read_text())
    assert content['classes'][1] == dict(label=1, name='circle', colour=[220, 60, 60])
    model = load_model(SEGMENTOR, weights[SEGMENTOR])
    for image in (one for one in content['images'] if 'frame' not in one):
        written = Image.open(out / image['labels'])
        expected = model.predict(image['file_name'])
        assert (np.array(written) != expected.labels).mean() < 1e-3
        assert written.getpalette()[3:6] == [220, 60, 60]
        assert Image.open(out / image['picture']).width == 2 * image['width']
    assert VideoReader(str(out / 'pictures/clip.mp4')).length == NUM_FRAMES


def test_labels_of_more_classes_than_a_palette_has_are_of_16_bits(tmp_path, photos):
    options = {
        'model.decode_head.num_classes': 300,
        'test_dataloader.dataset.metainfo': dict(
            _delete_=True, classes=[f'c{i}' for i in range(300)]
        ),
    }
    checkpoint = save_random_weights(SEGMENTOR, tmp_path / 'many.pth', **options)
    image = str(photos / 'a.jpg')
    infer(SEGMENTOR, checkpoint, [image], tmp_path / 'out', options=options)
    expected = load_model(SEGMENTOR, checkpoint, options=options).predict(image)
    assert expected.labels.dtype == np.int16
    assert np.array_equal(np.array(Image.open(tmp_path / 'out/labels/a.png')), expected.labels)


def test_what_is_bad_is_named_and_the_others_are_predicted(weights, photos, bad, tmp_path, capsys):
    inputs = [bad[0], str(photos / 'a.jpg'), *bad[1:], str(photos / 'b.jpg')]
    done = infer(SEGMENTOR, weights[SEGMENTOR], inputs, tmp_path / 'out', 2)
    assert done.done == 2
    assert [p.name for p in sorted((tmp_path / 'out/labels').iterdir())] == ['a.png', 'b.png']
    said = '\n'.join(done.problems)
    for words in (
        'nothing holds no image or video',
        'text.jpg: it is no image that can be read',
        'empty.png: it is empty',
        'cut.jpg: it is cut off',
        'none.mp4: it is no video that can be read',
        'gone.jpg does not exist',
        'http://127.0.0.1:9/x.jpg cannot be reached',
    ):
        assert words in said
    assert len(done.problems) == 7
    error = capsys.readouterr().err
    assert all(problem in error for problem in done.problems) and '2/2' in error


def test_an_image_of_the_web_is_predicted(weights, photos, tmp_path):
    handler = functools.partial(SimpleHTTPRequestHandler, directory=photos)
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f'http://127.0.0.1:{server.server_port}'
    try:
        done = infer(
            SEGMENTOR, weights[SEGMENTOR], [f'{url}/b.jpg', f'{url}/no.jpg'], tmp_path / 'o'
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.done == 1 and done.problems == [
        f'{url}/no.jpg: the server answers 404 File not found; check the address'
    ]
    assert files(tmp_path / 'o') == ['classes.json', 'labels/b.png', 'pictures/b.jpg']


def test_earlier_predictions_are_set_aside(weights, photos, tmp_path):
    out, image = tmp_path / 'out', [str(photos / 'a.jpg')]
    infer(SEGMENTOR, weights[SEGMENTOR], image, out)
    (out / 'mine.txt').write_text('stays')
    first = {name: (out / name).read_bytes() for name in files(out)}
    for number in (1, 2):
        with pytest.raises(UserError):
            infer(SEGMENTOR, weights[SEGMENTOR], [str(photos / 'gone?.jpg')], out)
        infer(DETECTOR, weights[DETECTOR], image, out)
        aside = sorted(out.glob('earlier_*'))
        assert len(aside) == number
    assert files(aside[0]) == ['classes.json', 'labels/a.png', 'pictures/a.jpg']
    assert all((aside[0] / name).read_bytes() == first[name] for name in files(aside[0]))
    assert files(aside[1]) == ['pictures/a.jpg', 'predictions.json']
    assert {p.name for p in out.iterdir()} == {
        *(p.name for p in aside), 'mine.txt', 'pictures', 'predictions.json',
    }  # fmt: skip


def test_earlier_predictions_in_the_folder_of_the_inputs_are_not_predicted(weights, photos):
    (photos / 'clip.mp4').unlink()
    for number in (0, 1, 2):
        done = infer(SEGMENTOR, weights[SEGMENTOR], [str(photos)], photos)
        assert done.done == 4 and done.problems == []
        assert len(list(photos.glob('earlier_*'))) == number


@pytest.mark.parametrize(
    ('error', 'says'),
    [
        (MemoryError('Unable to allocate 9 GiB'), 'MemoryError: Unable to allocate 9 GiB'),
        (OSError('encoder error -2'), 'OSError: encoder error -2'),
        (OSError(errno.ENOSPC, 'No space left on device'), None),
    ],
)
def test_a_prediction_that_cannot_be_written_is_named_unless_the_disk_is_full(
    weights, photos, tmp_path, monkeypatch, error, says
):
    draw, errors = Detections.draw, [error]

    def fail_once(prediction, *args):
        if errors:
            raise errors.pop()
        return draw(prediction, *args)

    monkeypatch.setattr(Detections, 'draw', fail_once)
    inputs = [str(photos / name) for name in ('a.jpg', 'b.jpg')]
    if says is None:
        with pytest.raises(OSError, match='No space left'):
            infer(DETECTOR, weights[DETECTOR], inputs, tmp_path / 'out')
        return
    done = infer(DETECTOR, weights[DETECTOR], inputs, tmp_path / 'out')
    assert done.done == 1
    assert done.problems == [f'{inputs[0]}: its prediction cannot be written ({says})']
    assert files(tmp_path / 'out') == ['pictures/b.jpg', 'predictions.json']


def test_an_interruption_leaves_what_was_done(weights, photos, tmp_path, monkeypatch):
    predict = Model.predict_batch

    def interrupt(model, images):
        if 70 < images[0].mean() < 90 and images[0].shape[0] == 120:  # the third frame
            raise KeyboardInterrupt
        return predict(model, images)

    monkeypatch.setattr(Model, 'predict_batch', interrupt)
    with pytest.raises(KeyboardInterrupt):
        infer(DETECTOR, weights[DETECTOR], [str(photos)], tmp_path / 'out', score_thr=0)
    pictures = [f'pictures/{name}.jpg' for name in ('a', 'a_2', 'b')]
    assert files(tmp_path / 'out') == [*pictures, 'predictions.json']
    images = COCO(tmp_path / 'out/predictions.json').imgs.values()
    assert [image.get('picture') for image in images] == [*pictures, None, None]


def test_an_image_that_does_not_fit_is_named_and_the_others_of_its_batch_are_not(
    weights, photos, tmp_path, monkeypatch
):
    predict = Model.predict_batch

    def full(model, images):
        if len(images) > 1 or images[0].shape[0] == 120:
            raise MemoryError
        return predict(model, images)

    monkeypatch.setattr(Model, 'predict_batch', full)
    Image.new('RGB', (160, 120)).save(photos / 'below/big.png')
    done = infer(DETECTOR, weights[DETECTOR], [str(photos / 'below')], tmp_path / 'out', 2)
    assert done.done == 1
    [problem] = done.problems
    assert 'big.png: 160x120 pixels need more memory' in problem


def test_a_batch_holds_fewer_of_large_images(photos, monkeypatch):
    def sizes(height: int, number: int, batch_size: int) -> list[int]:
        image = np.zeros((height, 100, 3), np.uint8)
        given = [frames.Frame(None, image)] * number
        return [len(batch) for batch in frames.batches(given, batch_size)]

    monkeypatch.setattr(frames, 'MAX_PIXELS', 100 * 100)
    assert sizes(10, 7, 3) == [3, 3, 1]
    assert sizes(40, 5, 4) == [2, 2, 1]
    assert sizes(300, 3, 4) == [1, 1, 1]


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (dict(batch_size=0), 'batch size 0: not a positive number'),
        (dict(score_thr=1.5), 'score 1.5: not between 0 and 1'),
        (dict(score_thr=0.5), 'is a segmentor, whose labels have no scores'),
        (dict(inputs=['nowhere/*.jpg']), r'nowhere/\*\.jpg matches no file'),
        (dict(config=DETECTOR), 'is of a segmentor, and'),
        (dict(out='/proc/nowhere'), 'cannot be written to'),
    ],
)
def test_wrong_input_as_a_whole_is_an_error(weights, photos, tmp_path, change, says):
    given = dict(config=SEGMENTOR, inputs=[str(photos)], out=tmp_path / 'out')
    with pytest.raises(UserError, match=says):
        infer(checkpoint=weights[SEGMENTOR], **{**given, **change})
    assert not (tmp_path / 'out').exists()


def test_the_exit_code_tells(run_tool, weights, photos, tmp_path):
    shutil.rmtree(photos / 'below')
    (photos / 'text.jpg').write_text('hello')
    out = tmp_path / 'out'
    done = run_tool('infer.py', SEGMENTOR, weights[SEGMENTOR], photos / '*.jpg', '--out', out)
    assert done.returncode == 1, done.stderr
    assert f'{photos}/text.jpg: it is no image that can be read' in done.stderr
    assert '2 images' in done.stdout and f'labels      {out}/labels' in done.stdout
    assert 'Traceback' not in done.stderr and 'Warning' not in done.stderr


def test_the_exit_code_is_of_wrong_input_if_nothing_could_be_done(
    weights, tmp_path, monkeypatch, capsys
):
    (tmp_path / 'text.jpg').write_text('hello')
    typed = ['infer.py', SEGMENTOR, weights[SEGMENTOR], tmp_path, '--out', tmp_path / 'out']
    monkeypatch.setattr(sys, 'argv', list(map(str, typed)))
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / 'tools/infer.py'), run_name='__main__')
    assert done.value.code == 2
    printed = capsys.readouterr()
    assert 'text.jpg: it is no image that can be read' in printed.err and printed.out == ''
