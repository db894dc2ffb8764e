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
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.small_models import CONFIGS, pixels
from packaging.requirements import Requirement
from PIL import Image

from xcit_mm import UserError, load_model
from xcit_mm.datasets.shapes import draw_image
from xcit_mm.export import export_folder, predict
from xcit_mm.export.predict import Objects

SIZES = (99, 131), (161, 203), (320, 247)
ODD_SIZES = (*SIZES, (77, 91), (333, 251), (641, 321), (159, 160), (501, 399), (97, 311), (160, 90))


@pytest.fixture(scope='module')
def folder(models, tmp_path_factory):
    """A folder of a detector in PyTorch's format, which takes the least time to write."""
    path = tmp_path_factory.mktemp('exported') / 'detector'
    exported = export_folder(*models('detector'), path, 'torch')
    assert exported.path == path / 'model.pt2'
    return path


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


def assert_equal(objects, detections):
    assert len(objects.scores) == len(detections) > 5
    assert np.abs(objects.boxes - detections.boxes).max() <= 1e-3
    assert np.abs(objects.scores - detections.scores).max() <= 1e-5
    assert np.array_equal(objects.labels, detections.labels)
    assert (objects.masks != detections.masks).sum() <= 1e-5 * objects.masks.size


def call(monkeypatch, capsys, folder, *arguments):
    """Run predict.py of a folder, and return its exit code and what it prints."""
    spec = importlib.util.spec_from_file_location('copied_predict', folder / 'predict.py')
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(sys, 'argv', ['predict.py', *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        program.main()
    return end.value.code, ''.join(capsys.readouterr())


def test_a_folder_has_a_program_and_a_test_that_it_passes(folder, monkeypatch, capsys):
    assert sorted(path.name for path in folder.iterdir()) == [
        'README.md', 'expected.json', 'model.pt2', 'predict.py', 'test.png'
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ['detector']
    assert call(monkeypatch, capsys, folder, '--check') == (0, 'test.png: as expected\n')
    readme = (folder / 'README.md').read_text()
    assert re.search(r'pip install torch==[\d.]+ torchvision==[\d.]+ numpy==', readme)
    assert 'resized to fit into 160x160' in readme
    assert '- Classes: circle, square, triangle\n' in readme
    assert int(re.search(r'(\d+) objects with a score above 0.3', readme)[1]) > 3


def test_a_wrong_result_is_found(folder, monkeypatch, capsys, tmp_path):
    other = shutil.copytree(folder, tmp_path / 'other')
    content = json.loads((other / 'expected.json').read_text())
    content['objects'][0]['box'][0] += 5
    (other / 'expected.json').write_text(json.dumps(content))
    code, printed = call(monkeypatch, capsys, other, '--check')
    assert code == 1
    assert re.match(r'test.png: \d+ of \d+ objects have no counterpart', printed)


def test_the_program_predicts_what_xcit_mm_does(folder, models, monkeypatch, capsys, tmp_path):
    paths, out = drawn(tmp_path, SIZES), tmp_path / 'out'
    (tmp_path / 'text.jpg').write_text('no image')
    arguments = *paths, tmp_path / 'text.jpg', '--out', out
    code, printed = call(monkeypatch, capsys, folder, *arguments, '--score-thr', 0)
    assert code == 2
    assert f'{tmp_path / "text.jpg"} cannot be read: ' in printed
    model = load_model(*models('detector'), 'cpu')
    for path in paths:
        detections = model.predict(path)
        assert_equal(predict.load(out / path.name), detections)
        with Image.open(out / f'{path.name}_drawn.png') as picture:
            assert picture.size == detections.image.shape[1::-1]
            assert np.any(np.asarray(picture) != detections.image)
    assert len([*out.iterdir()]) == 2 * len(paths)
    code, _ = call(monkeypatch, capsys, folder, paths[0], '--out', out, '--score-thr', 0.4)
    kept = predict.load(out / paths[0].name)
    assert code == 0
    assert len(kept.scores) == (model.predict(paths[0]).scores >= 0.4).sum() > 0


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'name images, or only --check'),
        (['x.png', '--check'], 'name images, or only --check'),
        (['a/x.png', 'b/x.png'], 'two images have the same name'),
        (['x.png'], 'holds none of model.onnx, model.xml, model.pt2'),
    ],
)
def test_wrong_arguments_of_the_program(monkeypatch, capsys, tmp_path, arguments, message):
    shutil.copy(predict.__file__, tmp_path / 'predict.py')
    code, printed = call(monkeypatch, capsys, tmp_path, *arguments)
    assert code == 2
    assert message in printed


def test_a_segmentor_that_resizes_labels_the_pixels_of_the_image(models, tmp_path):
    load, pack = dict(type='LoadImage'), dict(type='PackSegInputs')
    resize = dict(type='Resize', scale=(128, 96), keep_ratio=False)
    options = {'test_dataloader.dataset.pipeline': [load, resize, pack]}
    export_folder(*models('sem_fpn'), tmp_path / 'x', 'torch', options=options)
    exported = predict.Model(tmp_path / 'x/model.pt2')
    model = load_model(*models('sem_fpn'), 'cpu', options)
    image = np.ascontiguousarray(pixels(1, 131, 177)[0].transpose(1, 2, 0))
    labels, expected = exported.predict(image).labels, model.predict(image).labels
    assert len(np.unique(expected)) > 1
    assert (labels != expected).mean() <= 1e-3
    predict.draw(image, exported.predict(image), exported).save(tmp_path / 'x.png')
    resize['interpolation'] = 'nearest'
    with pytest.raises(UserError, match='has Resize, but predict.py can only resize RGB images of'):
        export_folder(*models('sem_fpn'), tmp_path / 'y', 'torch', options=options)
    assert not (tmp_path / 'y').exists()


def test_the_test_picture_is_an_image_with_an_object(models, tmp_path, shapes_root):
    gray = tmp_path / 'a.png'
    Image.new('RGB', (160, 120), (114, 114, 114)).save(gray)
    photo = min((shapes_root / 'coco/val2017').iterdir())
    options = {'model.test_cfg.rcnn.score_thr': 0.5}
    config, checkpoint = models('detector')
    model = load_model(config, checkpoint, 'cpu', options)
    from xcit_mm.export.folder import _test

    image, result = _test(model, [str(gray), str(photo)])
    detections = model.predict(photo)
    if len(model.predict(gray)) == 0:
        assert np.array_equal(image, detections.image)
    assert isinstance(result, Objects)
    assert len(result.scores) > 0


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--folder', 'x'], '--folder needs a trained model: name its checkpoint'),
        (['--folder', 'x', '--deepness', '128'], '--folder is for whole models without --deepness'),
        (['--folder', 'x', '--part', 'backbone'], '--folder is for whole models'),
        (['--folder', 'x', '--out', 'x.onnx'], 'not allowed with argument'),
        (['--out', 'x.onnx', '--resolution', '1'], '--resolution is for --deepness: leave it out'),
        (['--out', 'x.onnx', '--deepness', '8'], '--deepness 8: a tile has at least 32 pixels'),
        (['--out', 'x.onnx', '--deepness', '64'], '--deepness needs a trained model'),
        (['--out', 'x.onnx', '--gather'], 'EncoderDecoder has no deformable attention, which'),
        (['--out', 'x.pt2', '--format', 'torch', '--deepness', '64'],
         'Deepness reads whole models in ONNX files: leave out --format and --part'),
        (['--out', 'x.onnx', '--deepness', '64', '--resolution', '0'], '--resolution 0.0: name'),
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


@pytest.mark.slow
@pytest.mark.parametrize(('format', 'runtime'), [('onnx', 'onnxruntime'), ('openvino', 'openvino')])
def test_the_program_needs_only_the_runtime_numpy_and_pillow(models, tmp_path, format, runtime):
    pytest.importorskip('onnx')
    pytest.importorskip(runtime)
    export_folder(*models('detector'), tmp_path / 'exported', format)
    python = bare_environment(tmp_path / 'venv', runtime, 'numpy', 'pillow')
    paths, out = drawn(tmp_path, ODD_SIZES), tmp_path / 'out'

    def run(*arguments):
        command = [python, '-I', *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    for name in ('torch', 'xcit_mm', 'mmdet', 'cv2'):
        assert f"No module named '{name}'" in run('-c', f'import {name}').stderr
    program = tmp_path / 'exported/predict.py'
    done = run(program, '--check')
    assert (done.returncode, done.stdout) == (0, 'test.png: as expected\n'), done.stderr
    done = run(program, *paths, '--out', out, '--score-thr', 0)
    assert done.returncode == 0, done.stderr
    model = load_model(*models('detector'), 'cpu')
    for path in paths:
        assert_equal(predict.load(out / path.name), model.predict(path))


def test_the_program_is_one_file_of_the_package():
    text = Path(predict.__file__).read_text()
    assert not re.findall(r'^(?:from|import) (?:\.|xcit_mm|torch|cv2)', text, re.M)
    assert str(ROOT) not in text
