"""tools/infer.py predicts every readable input, names the others, and loses nothing."""

import csv
import errno
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from helpers.file_server import serving
from helpers.in_process import call_tool
from helpers.random_weights import DETECTOR, SEGMENTOR
from PIL import Image
from pycocotools.coco import COCO

from xcit_mm import UserError, mmcv_ops
from xcit_mm.apps.infer.run import infer
from xcit_mm.base.errors import MissingOperatorError
from xcit_mm.predict.large.predict_large import LargeOptions
from xcit_mm.predict.model import Model
from xcit_mm.predict.results import Detections, Segmentation
from xcit_mm.predict.sources import Frame
from xcit_mm.predict.video import read_video, write_video
from xcit_mm.predict.write.written import Output, only_writer

NUM_FRAMES = 5
LONG = 60  # seconds after which a thread that should have come is missed


@pytest.fixture
def photos(tmp_path, shapes_root) -> Path:
    """Four images, two with the same name, and a video."""
    folder = tmp_path / 'photos'
    images = sorted((shapes_root / 'coco/val2017').iterdir())
    (folder / 'below').mkdir(parents=True)
    for path, name in zip(images, ('a.jpg', 'a.png', 'b.jpg', 'below/a.jpg'), strict=True):
        Image.open(path).save(folder / name)
    with write_video(folder / 'clip.mp4', 8, (160, 120)) as add:
        for i in range(NUM_FRAMES):
            add(np.full((120, 160, 3), 40 * i, np.uint8))
    return folder


@pytest.fixture
def run(weights, photos, tmp_path) -> Callable[..., tuple[int, list[str]]]:
    """Predict photos, by default all of them, with the segmentor into the folder ``out``."""

    def run(
        *names: str | Path,
        config: str = SEGMENTOR,
        out: Path = tmp_path / 'out',
        large: Mapping[str, Any] = {},
        **options,
    ):
        inputs = [str(photos / name) for name in names or ['']]
        large = LargeOptions(**{'score_thr': 0.3, **large})
        return infer(config, weights[config], inputs, out, large=large, **options)[:2]

    return run


@pytest.fixture
def before_predictions(monkeypatch) -> Callable[[Callable[[list], object]], None]:
    """Set a function that gets the images of each batch before they are predicted."""
    predict = Model.predict_batch

    def set_function(function: Callable[[list], object]) -> None:
        def call(model, images):
            function(images)
            return predict(model, images)

        monkeypatch.setattr(Model, 'predict_batch', call)

    return set_function


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


def test_detections_are_written_as_pictures_and_coco(run, detector, tmp_path, capsys):
    out = tmp_path / 'out'
    assert run(config=DETECTOR, large=dict(batch_size=3)) == (4 + NUM_FRAMES, [])
    names = ['a.jpg', 'a_2.jpg', 'b.jpg', 'below/a.jpg', 'clip.mp4']
    pictures = [f'pictures/{name}' for name in names]
    assert files(out) == ['counts.csv', *pictures, 'predictions.json']
    said = capsys.readouterr().err
    assert '9/9' in said and 'images/s' in said

    coco = COCO(out / 'predictions.json')
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == ['circle', 'square', 'triangle']
    assert len(coco.imgs) == 9 < len(coco.anns)
    for image in (image for image in coco.imgs.values() if 'frame' not in image):
        expected = detector.predict(image['file_name']).above(0.3)
        annotations = coco.loadAnns(coco.getAnnIds(image['id']))
        np.testing.assert_allclose([a['score'] for a in annotations], expected.scores, atol=1e-4)
        assert [a['category_id'] for a in annotations] == [i + 1 for i in expected.labels]
        names = [detector.classes[i] for i in expected.labels]
        assert [a['category_name'] for a in annotations] == names
        assert (image['height'], image['width']) == expected.image.shape[:2]
        picture = np.array(Image.open(out / image['picture']), int)
        assert np.abs(picture - expected.draw()).mean() < 8
        boxes = [[*a['bbox'][:2], *np.add(a['bbox'][:2], a['bbox'][2:])] for a in annotations]
        np.testing.assert_allclose(boxes, expected.boxes, atol=0.1)
        for annotation, mask in zip(annotations, expected.masks, strict=True):
            assert (coco.annToMask(annotation) != mask).mean() < 1e-3
    counted = rows(out / 'counts.csv')
    assert len(counted) == 9 * 3
    for number, image in enumerate(coco.imgs.values()):
        frame = f', frame {image["frame"]}' if 'frame' in image else ''
        for label, row in enumerate(counted[3 * number : 3 * number + 3]):
            assert row['image'] == image['file_name'] + frame
            ids = coco.getAnnIds(image['id'], label + 1)
            assert (row['class'], row['objects']) == (coco.cats[label + 1]['name'], str(len(ids)))
    assert [i['frame'] for i in coco.imgs.values() if 'frame' in i] == list(range(NUM_FRAMES))
    assert read_video(str(out / 'pictures/clip.mp4'))[:2] == (NUM_FRAMES, 8)


def test_segmentations_are_written_as_pictures_and_labels(run, segmentor, tmp_path):
    out = tmp_path / 'out'
    assert run(large=dict(batch_size=2))[0] == 4 + NUM_FRAMES
    labels = ['a', 'a_2', 'b', 'below/a', *(f'clip/{i:06d}' for i in range(NUM_FRAMES))]
    assert [f for f in files(out) if 'labels' in f] == [f'labels/{name}.png' for name in labels]
    content = json.loads((out / 'classes.json').read_text())
    assert content['classes'][1] == dict(label=1, name='circle', colour=[220, 60, 60])
    for image in (image for image in content['images'] if 'frame' not in image):
        written = Image.open(out / image['labels'])
        expected = segmentor.predict(image['file_name'])
        assert (np.array(written) != expected.labels).mean() < 1e-3
        assert written.getpalette()[3:6] == [220, 60, 60]
        assert Image.open(out / image['picture']).width == 2 * image['width']
        counted = [row for row in rows(out / 'counts.csv') if row['image'] == image['file_name']]
        pixels = np.bincount(np.array(written).ravel(), minlength=4)
        assert [int(row['pixels']) for row in counted] == pixels.tolist()
        percent = [float(row['percent']) for row in counted]
        assert percent == pytest.approx(100 * pixels / pixels.sum(), rel=1e-4)
    assert read_video(str(out / 'pictures/clip.mp4'))[0] == NUM_FRAMES


def test_bad_inputs_are_named_and_the_others_predicted(
    weights, photos, tmp_path, monkeypatch, capfd
):
    bad = tmp_path / 'bad'
    (bad / 'empty').mkdir(parents=True)
    (bad / 'text.jpg').write_text('hello')
    (bad / 'empty.png').touch()
    (bad / 'cut.jpg').write_bytes((photos / 'a.jpg').read_bytes()[:1500])
    (bad / 'none.mp4').touch()
    out = tmp_path / 'out'
    with serving() as server:
        server.files['/web.jpg'] = (photos / 'b.jpg').read_bytes()
        urls = [server.url('/web.jpg'), server.url('/no.jpg')]
        inputs = [bad, photos / 'a.jpg', bad / 'empty', bad / 'gone.jpg', *urls]
        code, printed, said = call_tool(
            monkeypatch, capfd, 'infer.py', SEGMENTOR, weights[SEGMENTOR], *inputs, '--out', out
        )
    assert code == 1 and printed.splitlines()[:2] == ['images      2', f'output      {out}']
    assert [p.name for p in sorted((out / 'labels').iterdir())] == ['a.png', 'web.png']
    problems = (
        'empty holds no image or video',
        'text.jpg: it is not a readable image',
        'empty.png: it is empty',
        'cut.jpg: it is cut off',
        'none.mp4: it is not a readable video',
        'gone.jpg does not exist',
        '/no.jpg: the server answers 404',
    )
    assert all(problem in said for problem in problems) and '2/2' in said
    assert '7 of the inputs could not be predicted' in printed
    typed = SEGMENTOR, weights[SEGMENTOR], bad, '--out', out
    assert call_tool(monkeypatch, capfd, 'infer.py', *typed)[:2] == (2, '')


def test_earlier_predictions_are_moved_and_not_predicted(run, photos):
    (photos / 'clip.mp4').unlink()
    (photos / 'notes.txt').write_text('stays')
    run(out=photos)
    first = (photos / 'labels/below/a.png').read_bytes()
    with pytest.raises(UserError):
        run('gone?.jpg', out=photos)
    assert not list(photos.glob('earlier_*'))
    assert run(config=DETECTOR, out=photos) == (4, [])
    [earlier] = photos.glob('earlier_*')
    assert (earlier / 'labels/below/a.png').read_bytes() == first
    assert {path.name for path in earlier.iterdir()} == {
        *('classes.json', 'counts.csv', 'labels', 'pictures')
    }
    assert {'notes.txt', 'pictures', 'predictions.json'} < {p.name for p in photos.iterdir()}
    assert not (photos / 'labels').exists()


def test_a_run_that_predicts_nothing_leaves_earlier_predictions_where_they_were(run, tmp_path):
    run('a.jpg')
    before = contents(tmp_path / 'out')
    (tmp_path / 'bad.png').write_text('no image')
    for large in ({}, dict(stream=True), dict(stream=True, large=dict(sliced=64, overlap=0))):
        done, (problem,) = run(tmp_path / 'bad.png', **large)
        assert done == 0 and 'bad.png: it is not a readable image' in problem
        assert contents(tmp_path / 'out') == before


def test_a_run_writes_to_no_folder_of_another_and_moves_no_input(run, photos, tmp_path):
    with only_writer(tmp_path), pytest.raises(UserError, match='another run writes its predict'):
        run('a.jpg', out=tmp_path)
    (photos / 'pictures').mkdir()
    (photos / 'a.jpg').rename(photos / 'pictures/a.jpg')
    for named in ('pictures/a.jpg', 'pictures'):
        with pytest.raises(UserError, match=r'pictures/a.jpg is an earlier prediction in .*: name'):
            run(named, out=photos)
    (photos / 'pictures').rename(photos / 'earlier_1')  # which no run moves
    assert run('earlier_1', out=photos)[0] == 1


def test_what_a_killed_run_left_unfinished_is_removed_by_the_next_one(tmp_path):
    unfinished = [
        tmp_path / 'labels/below/.a.tif.x1.unfinished/a.tif',  # as of write_beside
        tmp_path / 'polygons/.x2.unfinished/labels',
        tmp_path / 'pictures/.a.jpg.x3.unfinished',
        tmp_path / '.classes.json.x4.unfinished',
    ]
    kept = [
        tmp_path / '.iter_1.pth.x5.unfinished',  # a training run may be writing it
        tmp_path / 'other/.a.tif.x6.unfinished/a.tif',
        tmp_path / 'labels/below/a.tif',
        tmp_path / '.predictions.lock',
    ]
    for path in (*unfinished, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with only_writer(tmp_path):
        unfinished[0].parent.mkdir()
        unfinished[0].touch()
        with pytest.raises(UserError, match='another run writes its'), only_writer(tmp_path):
            pass
        assert unfinished[0].exists() and not any(path.exists() for path in unfinished[1:])
    with only_writer(tmp_path):
        assert sorted(path for path in tmp_path.rglob('*') if path.is_file()) == sorted(kept)
        assert not list(tmp_path.glob('labels/below/.*'))


def test_a_prediction_that_cannot_be_written_is_named_unless_the_disk_is_full(
    run, photos, tmp_path, monkeypatch
):
    draw = Detections.draw
    errors = [OSError(errno.ENOSPC, 'No space left on device'), MemoryError('Unable to allocate')]

    def fail(prediction):
        if errors:
            raise errors.pop()
        return draw(prediction)

    monkeypatch.setattr(Detections, 'draw', fail)
    with pytest.raises(OSError, match='No space left'):
        run('a.jpg', 'b.jpg', config=DETECTOR)
    errors.append(OSError('encoder error -2'))
    problem = 'its prediction cannot be written (OSError: encoder error -2): check the folder --out'
    named = [f'{photos}/a.jpg: {problem}']
    assert run('a.jpg', 'b.jpg', config=DETECTOR) == (1, named)
    assert files(tmp_path / 'out') == ['counts.csv', 'pictures/b.jpg', 'predictions.json']


def test_an_interruption_keeps_what_was_done(run, tmp_path, before_predictions):
    def interrupt(images):
        image = images[0].image
        if 70 < image.mean() < 90 and image.shape[0] == 120:  # the third frame
            raise KeyboardInterrupt

    before_predictions(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(config=DETECTOR, large=dict(score_thr=0))
    pictures = [f'pictures/{name}.jpg' for name in ('a', 'a_2', 'b')]
    assert files(tmp_path / 'out') == ['counts.csv', *pictures, 'predictions.json']
    images = COCO(tmp_path / 'out/predictions.json').imgs.values()
    assert [image.get('picture') for image in images] == [*pictures, None, None]


def test_images_are_read_and_written_while_the_model_runs(run, monkeypatch, before_predictions):
    read, add = Model.read, Output.add
    is_read, is_predicted, predicted = threading.Event(), threading.Event(), []

    def notice_read(model, image):
        if str(image).endswith('b.jpg'):
            is_read.set()
        return read(model, image)

    def notice_prediction(images):
        assert is_read.wait(LONG)  # b.jpg, while the model is at a.jpg
        if predicted:
            is_predicted.set()
        predicted.append(images)

    def notice_add(output, frame, prediction):
        assert is_predicted.wait(LONG)  # the model is at b.jpg, while a.jpg is written
        add(output, frame, prediction)

    before_predictions(notice_prediction)
    monkeypatch.setattr(Model, 'read', notice_read)
    monkeypatch.setattr(Output, 'add', notice_add)
    assert run('a.jpg', 'b.jpg') == (2, [])


def test_an_image_is_tried_again_once_those_before_it_have_left_the_memory(run, before_predictions):
    errors, batches = [MemoryError()], []

    def fill_memory(images):
        if len(batches) == 1 and errors:
            raise errors.pop()
        batches.append(images)

    before_predictions(fill_memory)
    assert run('a.jpg', 'b.jpg') == (2, [])


def test_an_image_that_does_not_fit_is_named_and_the_others_of_its_batch_are_predicted(
    run, photos, before_predictions
):
    def fill_memory(images):
        if len(images) > 1 or images[0].image.shape[0] == 120:
            raise MemoryError

    before_predictions(fill_memory)
    Image.new('RGB', (160, 120)).save(photos / 'below/big.png')
    done, problems = run('below', config=DETECTOR, large=dict(batch_size=2))
    assert done == 1 and 'big.png: 160x120 pixels do not fit into the memory' in problems[0]


def test_the_tool_counts_objects_and_says_how_tiff_files_become_rgb(
    weights, tmp_path, monkeypatch, capfd
):
    image = tmp_path / 'scene.tif'
    with rasterio.open(image, 'w', width=64, height=48, count=5, dtype='uint16') as file:
        file.write(np.random.default_rng(0).integers(0, 4096, (5, 48, 64), np.uint16))
    typed = 'infer.py', DETECTOR, weights[DETECTOR], image, '--out', tmp_path / 'out'
    code, printed, said = call_tool(monkeypatch, capfd, *typed, '--score-thr', 1)
    assert code == 0 and 'objects     0 (none has a score of 1.0: lower --score-thr)' in printed
    assert f'{image}: its values from 0 to 65535 are scaled to 0 to 255' in said
    assert f'{image}: the first 3 of its 5 channels are used' in said
    _, printed, _ = call_tool(monkeypatch, capfd, *typed, '--score-thr', 0)
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    counts = Counter(annotation['category_name'] for annotation in content['annotations'])
    names = ', '.join(f'{name} {number}' for name, number in counts.most_common())
    assert f'objects     {counts.total()}: {names}\n' in printed


def test_the_first_image_that_becomes_much_smaller_is_named(run, photos, tmp_path, capfd):
    for name, width in (('w.png', 636), ('x.png', 640), ('y.png', 800)):
        Image.new('RGB', (width, 320)).save(photos / 'below' / name)
    assert run('below', config=DETECTOR)[0] == 4
    said = capfd.readouterr().err
    name = photos / 'below/x.png'
    assert f'{name} loses details, because it is resized from 640x320 to 160x80 pixels' in said
    assert said.count('is resized from') == 1
    assert run('below', config=DETECTOR, full_size=True)[0] == 4
    assert 'is resized from' not in capfd.readouterr().err


def test_a_checkpoint_that_is_forgotten_is_missed(photos, tmp_path, monkeypatch, capfd):
    for inputs in ([photos], [photos / 'a.jpg', photos / 'b.jpg']):
        typed = 'infer.py', DETECTOR, *inputs, '--out', tmp_path / 'out'
        code, _, error = call_tool(monkeypatch, capfd, *typed)
        assert code == 2
        assert f'{DETECTOR} has no weights, so name their file or URL before {inputs[0]}' in error


def test_options_without_effect_are_named(tmp_path, monkeypatch, capfd):
    typed = [SEGMENTOR, 'a.pth', 'a.jpg', '--out', tmp_path / 'out', '--scores', '--range', '0,9']
    code, _, said = call_tool(monkeypatch, capfd, 'infer.py', *typed)
    assert code == 2 and '--scores and --range: only for large images; add --stream' in said


@pytest.mark.skipif(not mmcv_ops.is_active(), reason='mmcv is compiled')
def test_an_operator_that_is_missing_is_an_error_and_not_a_bad_image(run):
    options = {'model.test_cfg.rpn.nms.type': 'nms_rotated'}
    with pytest.raises(MissingOperatorError, match='nms_rotated needs compiled mmcv'):
        run(config=DETECTOR, options=options)


def test_labels_of_more_than_256_classes_have_16_bits_and_a_wide_picture_is_a_png(tmp_path):
    names, palette = ('name',) * 300, ((1, 2, 3),) * 300
    model = SimpleNamespace(task='segmentation', classes=names, palette=palette)
    labels = (np.arange(40 * 65501) % 300).astype(np.int16).reshape(40, 65501)
    image = np.zeros((40, 65501, 3), np.uint8)
    with Output(tmp_path, model, {}) as output:
        output.add(Frame('a.jpg', 'a', image), Segmentation(image, labels, names, palette))
    assert files(tmp_path) == ['classes.json', 'counts.csv', 'labels/a.png', 'pictures/a.png']
    assert np.array_equal(np.array(Image.open(tmp_path / 'labels/a.png')), labels)
