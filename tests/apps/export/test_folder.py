"""A folder with an exported model predicts as xcit_mm does, and needs neither it nor PyTorch."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from helpers.in_process import call_tool
from helpers.small_models import CONFIGS
from packaging.requirements import Requirement
from PIL import Image

from xcit_mm import UserError, load_model
from xcit_mm.apps.export import Exported, export_folder
from xcit_mm.apps.export.description import describe, resizing
from xcit_mm.data.drawings.shapes import draw_image
from xcit_mm.data.transforms.decode import decode

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')

from xcit_mm.apps.export import predict

SIZES = (99, 131), (161, 203), (320, 247)
ODD_SIZES = (*SIZES, (77, 91), (333, 251), (641, 321), (159, 160), (501, 399), (97, 311), (160, 90))


RESIZE = dict(type='Resize', scale=(128, 96), keep_ratio=False)
OPTIONS = {
    'test_dataloader.dataset.pipeline': [
        dict(type='LoadImage'),
        RESIZE,
        dict(type='PackSegInputs'),
    ]
}


@pytest.fixture(scope='module')
def folder(models, tmp_path_factory):
    """A folder of a segmentor that resizes."""
    path = tmp_path_factory.mktemp('exported') / 'segmentor'
    exported = export_folder(*models('sem_fpn'), path, options=OPTIONS)
    assert exported.path == path / 'model.onnx'
    return path


@pytest.fixture(scope='module')
def exported(folder):
    return predict.Model(folder / 'model.onnx')


@pytest.fixture(scope='module')
def resizing_segmentor(models):
    return load_model(*models('sem_fpn'), 'cpu', OPTIONS)


def drawn(folder, sizes):
    """Draw images of several sizes into files of several kinds."""
    rng, paths = np.random.default_rng(5), []
    for i, (height, width) in enumerate(sizes):
        image = Image.fromarray(draw_image(rng, max(height, width))[0][:height, :width])
        turned = Image.Exif()
        turned[0x0112] = 6
        paths.append(folder / f'{i}.{"jpg" if i % 2 else "png"}')
        (image.convert('L') if i == 2 else image).save(paths[-1], exif=turned)
    return paths


def assert_objects_are_equal(result, detections):
    assert len(result['scores']) == len(detections) > 5
    assert np.abs(result['boxes'] - detections.boxes).max() <= 1e-3
    assert np.abs(result['scores'] - detections.scores).max() <= 1e-5
    assert np.array_equal(result['labels'], detections.labels)
    assert (result['masks'] != detections.masks).sum() <= 1e-5 * detections.masks.size


def decoded(size, counts):
    """Return the mask of uncompressed run lengths."""
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(size, order='F')


def read_objects(path):
    objects = json.loads(path.read_text())['objects']
    columns = dict(boxes='box', scores='score', labels='label')
    result = {name: np.array([o[key] for o in objects]) for name, key in columns.items()}
    return result | {'masks': np.array([decoded(**o['mask']) for o in objects])}


def call(monkeypatch, capsys, folder, *arguments):
    """Run predict.py of a folder, and return its exit code and what it prints."""
    spec = importlib.util.spec_from_file_location('copied_predict', folder / 'predict.py')
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(sys, 'argv', ['predict.py', *map(str, arguments)])
    monkeypatch.setattr(program, '__file__', str(folder / 'predict.py'))
    try:
        code = program.main()
    except SystemExit as end:
        code = end.code
    return code, ''.join(capsys.readouterr())


@pytest.mark.slow
def test_a_folder_has_a_program_and_a_test_that_it_passes(folder, exported):
    assert sorted(path.name for path in folder.iterdir()) == [
        'README.md', 'expected.npz', 'model.onnx', 'predict.py', 'test.png'
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ['segmentor']
    assert (folder / 'predict.py').read_bytes() == Path(predict.__file__).read_bytes()
    assert predict.check(exported, folder) == ''
    readme = (folder / 'README.md').read_text()
    assert re.search(r'pip install onnxruntime==[\d.]+ numpy==', readme)
    assert 'resized to 128x96' in readme
    assert '# writes pictures, JSON files, and the labels of pixels\n' in readme
    assert '- Classes: background, circle, square, triangle\n' in readme


@pytest.mark.slow
def test_a_wrong_result_is_noticed(folder, monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, capsys, folder, '--check') == (0, 'test.png: as expected\n')
    other = shutil.copytree(folder, tmp_path / 'other')
    expected = dict(np.load(other / 'expected.npz'))
    np.savez(other / 'expected.npz', **expected | {'labels': np.rot90(expected['labels'], 2)})
    code, printed = call(monkeypatch, capsys, other, '--check')
    assert code == 1
    assert re.match(r'test.png: \d+.\d+% of the pixels differ', printed)


@pytest.mark.slow
def test_the_program_predicts_what_xcit_mm_does(
    folder, resizing_segmentor, monkeypatch, capsys, tmp_path
):
    paths, out = drawn(tmp_path, SIZES), tmp_path / 'out'
    (tmp_path / 'text.jpg').write_text('no image')
    code, printed = call(monkeypatch, capsys, folder, *paths, tmp_path / 'text.jpg', '--out', out)
    assert code == 2
    assert f'{tmp_path / "text.jpg"}: ' in printed
    for path in paths:
        segmentation = resizing_segmentor.predict(path)
        with Image.open(out / f'{path.stem}_labels.png') as file:
            labels = np.array(file)
        assert len(np.unique(segmentation.labels)) > 1
        assert (labels != segmentation.labels).mean() <= 1e-3
        shares = json.loads((out / f'{path.stem}.json').read_text())['shares']
        expected = {segmentation.classes[i]: share for i, share in segmentation.shares().items()}
        assert shares == pytest.approx(expected, abs=2e-3)
    assert len([*out.iterdir()]) == 3 * len(paths)


@pytest.mark.slow
def test_the_program_takes_folders(folder, monkeypatch, capsys, tmp_path):
    images, out = tmp_path / 'images', tmp_path / 'out'
    images.mkdir()
    (images / 'notes.txt').write_text('no image')
    for name in ('a.png', 'B.JPG'):
        Image.new('RGB', (90, 70)).save(images / name)
    assert call(monkeypatch, capsys, folder, images, '--out', out)[0] == 0
    assert {path.name for path in out.glob('*.json')} == {'a.json', 'B.json'}


@pytest.mark.parametrize(
    ('name', 'values', 'mode'),
    [
        ('a.pgm', np.full((4, 5), 30_000, np.uint16), 'PPM'),
        ('a.tif', np.full((4, 5), 30_000, np.int32), 'TIFF'),
        ('b.tif', np.full((4, 5), 0.5, np.float32), 'TIFF'),
    ],
)
def test_images_that_pillow_would_clip_are_refused(tmp_path, name, values, mode):
    Image.fromarray(values).save(tmp_path / name)
    with pytest.raises(ValueError, match=f'{mode} with values of 32 bits: save it as PNG'):
        predict.read_image(tmp_path / name)


@pytest.mark.parametrize('is_old', [False, True], ids=['I;16', 'I'])
def test_png_of_16_bits_is_read_as_by_xcit_mm(tmp_path, monkeypatch, is_old):
    values = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    Image.fromarray(values).save(tmp_path / 'a.png')
    if is_old:
        monkeypatch.setattr(predict.ImageOps, 'exif_transpose', lambda image: image.convert('I'))
    expected = decode((tmp_path / 'a.png').read_bytes())
    assert np.array_equal(predict.read_image(tmp_path / 'a.png'), expected)


@pytest.mark.parametrize('kind', ['Resize', 'DraftResize'])
def test_the_program_resizes_as_a_pipeline_that_decodes_drafts_does(models, kind):
    loader = dict(type='LoadImage', draft=(128, 96) if kind == 'DraftResize' else None)
    resize = dict(type=kind, scale=(128, 96), keep_ratio=True)
    pipeline = [loader, resize, dict(type='PackSegInputs')]
    options = {'test_dataloader.dataset.pipeline': pipeline}
    model = load_model(*models('sem_fpn'), 'cpu', options)
    assert resizing(model) == dict(scale=[128, 96], keep_ratio=True)
    assert 'resizing' in describe(model)


@pytest.mark.parametrize(
    ('transform', 'name'),
    [
        (dict(type='Resize', scale=(128, 96), interpolation='nearest'), 'Resize'),
        (dict(type='Resize', scale_factor=2.0), 'Resize'),
        (dict(type='RandomFlip', prob=1.0), 'RandomFlip'),
    ],
)
def test_a_pipeline_that_the_program_does_not_know_is_refused(models, tmp_path, transform, name):
    pipeline = [dict(type='LoadImage'), transform, dict(type='PackSegInputs')]
    options = {'test_dataloader.dataset.pipeline': pipeline}
    with pytest.raises(UserError, match=f'has {name}, but predict.py can only resize RGB images'):
        export_folder(*models('sem_fpn'), tmp_path / 'x', options=options)
    assert not (tmp_path / 'x').exists()


def test_the_tool_names_the_folder_and_the_command_that_comes_next(monkeypatch, capfd):
    written = Exported(Path('/a/b/../my exported/model.onnx'), 18 * 10**6, ('logits',), {})
    monkeypatch.setattr('xcit_mm.apps.export.export_folder', lambda *arguments: written)
    typed = 'export.py', 'config.py', 'x.pth', '--folder', '../my exported/'
    code, printed, _ = call_tool(monkeypatch, capfd, *typed)
    assert code == 0 and printed.splitlines()[-2:] == [
        'Written: ../my exported, 18.0 MB',
        "Next: python '../my exported/predict.py' IMAGE",
    ]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--folder', 'x'], '--folder needs a trained model: name its checkpoint'),
        (['--folder', 'x', '--deepness', '128'], '--folder is for whole models in ONNX without --'),
        (['--out', 'x.onnx', '--deepness', '64'], '--deepness need a trained model'),
        (['--out', 'x.pt2', '--format', 'torch', '--deepness', '64'],
         'Deepness reads whole models in ONNX files: omit --format and --part'),
    ],
)  # fmt: skip
def test_wrong_arguments_of_the_tool(monkeypatch, capfd, tmp_path, arguments, message):
    config = tmp_path / 'config.py'
    config.write_text(CONFIGS['sem_fpn'])
    monkeypatch.chdir(tmp_path)
    code, _, errors = call_tool(monkeypatch, capfd, 'export.py', config, *arguments)
    assert code == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ['config.py']


def test_a_folder_that_is_not_empty_is_kept(models, tmp_path):
    (tmp_path / 'README.md').write_text('mine')
    with pytest.raises(UserError, match='is not empty: remove it, or name a new folder'):
        export_folder(*models('detector'), tmp_path)
    assert (tmp_path / 'README.md').read_text() == 'mine'


def bare_environment(folder: Path, *packages: str) -> Path:
    """Make an environment of packages and what they require alone; return its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob('lib/python*/site-packages')
    missing, found = [*packages], set()
    while missing:
        name = missing.pop()
        if name in found:
            continue
        found.add(name)
        package = distribution(name)
        tops = {file.parts[0] for file in package.files} - {'..', '__pycache__'}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
        required = map(Requirement, package.requires or ())
        missing += [r.name for r in required if not r.marker or r.marker.evaluate({'extra': ''})]
    return folder / 'bin/python'


def run(folder, python, *arguments):
    command = [python, '-I', *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
def test_the_program_needs_only_the_runtime_numpy_and_pillow(models, tmp_path):
    folder = tmp_path / 'exported'
    export_folder(*models('detector'), folder)
    readme = (folder / 'README.md').read_text()
    assert 'resized to fit into 160x160' in readme
    assert '# writes pictures, and JSON files with the objects\n' in readme
    assert int(re.search(r'(\d+) objects with a score above 0.3', readme)[1]) > 3
    python = bare_environment(tmp_path / 'venv', 'onnxruntime', 'numpy', 'pillow')
    for name in ('torch', 'xcit_mm', 'mmdet', 'cv2'):
        done = run(tmp_path, python, '-c', f'import {name}')
        assert f"No module named '{name}'" in done.stderr
    done = run(tmp_path, python, folder / 'predict.py', '--check')
    assert (done.returncode, done.stdout) == (0, 'test.png: as expected\n'), done.stderr
    paths, out = drawn(tmp_path, ODD_SIZES), tmp_path / 'out'
    done = run(tmp_path, python, folder / 'predict.py', *paths, '--out', out, '--score-thr', 0)
    assert done.returncode == 0, done.stderr
    model = load_model(*models('detector'), 'cpu')
    for path in paths:
        assert_objects_are_equal(read_objects(out / f'{path.stem}.json'), model.predict(path))
    exported = predict.Model(folder / 'model.onnx')
    kept = exported.predict(predict.read_image(paths[0]), 0.4)
    assert len(kept['scores']) == (model.predict(paths[0]).scores >= 0.4).sum() > 0
