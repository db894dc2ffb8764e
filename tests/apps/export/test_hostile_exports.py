"""Exported files that could run code or reach other files: a sentence, and nothing is run."""

import json
import os
from pathlib import Path

import pytest
import torch
from helpers import relative_error
from helpers.in_process import call_tool
from helpers.pickles import records, saved, zipped
from torch import nn

from xcit_mm import UserError
from xcit_mm.apps.export import load_runtime
from xcit_mm.apps.export.formats import BY_NAME
from xcit_mm.apps.export.formats.format import Contents
from xcit_mm.apps.export.formats.openvino import SECTION

MARKER = 'created_by_a_file'
OUTPUTS = {'outputs': json.dumps(['logits', 'labels']), 'precision': 'float32'}


class Tiny(nn.Module):
    """A graph of two layers."""

    batched, side, channels, outputs = True, None, 3, ('logits', 'labels')

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1))

    def forward(self, image):
        logits = self.model(image / 255)
        return logits, logits.argmax(1)


class Payload:
    """A value whose pickle makes a folder."""

    def __reduce__(self):
        return os.mkdir, (MARKER,)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """The folder that a payload would write to."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope='module')
def tiny():
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope='module')
def onnx_file(tiny, tmp_path_factory):
    pytest.importorskip('onnxruntime')
    path = tmp_path_factory.mktemp('onnx') / 'tiny.onnx'
    BY_NAME['onnx'].write(Contents(tiny, OUTPUTS), path)
    return path


@pytest.fixture(scope='module')
def openvino(onnx_file, tmp_path_factory):
    """The content of the .xml and the .bin file."""
    openvino = pytest.importorskip('openvino')
    path = tmp_path_factory.mktemp('openvino') / 'tiny.xml'
    model = openvino.convert_model(onnx_file)
    for name, value in OUTPUTS.items():
        model.set_rt_info(value, [SECTION, name])
    openvino.save_model(model, path, compress_to_fp16=False)
    return path.read_text(), path.with_suffix('.bin').read_bytes()


def assert_computes_tiny(run, tiny, allowed):
    image = 255 * torch.rand(2, 3, 9, 11)
    results = run(image)
    with torch.no_grad():
        logits, labels = tiny(image)
    assert relative_error(results['logits'], logits) <= allowed
    assert torch.equal(results['labels'], labels)


def refused(path):
    with pytest.raises(UserError) as error:
        load_runtime(path)
    sentence = str(error.value)
    assert path.name in sentence and '\n' not in sentence and len(sentence) < 1000
    return sentence


def test_a_pt2_file_is_loaded_only_if_it_is_trusted(tiny, monkeypatch, capfd):
    path = Path('x.pt2')
    BY_NAME['torch'].write(Contents(tiny, OUTPUTS), path)
    assert 'x.pt2 can run any code when it is loaded; if you trust its source' in refused(path)
    assert_computes_tiny(load_runtime(path, trusted=True), tiny, 0)
    parts = records(path.read_bytes())
    root = next(iter(parts)).partition('/')[0]
    parts[f'{root}/data/constants/model.pt'] = saved(Payload())
    path.write_bytes(zipped(parts))
    code, _, errors = call_tool(monkeypatch, capfd, 'evaluate_export.py', 'nothing.py', 'x', path)
    assert code == 2 and 'pass --trust-checkpoint' in errors and len(errors.splitlines()) == 1
    assert not Path(MARKER).exists()


@pytest.mark.parametrize('name', ['x.pt2', 'x.onnx', 'x.xml'])
def test_other_content_is_a_sentence(name):
    for package in {'x.onnx': ('onnx', 'onnxruntime'), 'x.xml': ('openvino',)}.get(name, ()):
        pytest.importorskip(package)
    Path(name).write_text('junk')
    assert 'cannot be read (' in refused(Path(name))


# Edits of an ``onnx.ModelProto``, in place.


def external(tensor, location):
    """Move the numbers of a tensor to another file."""
    tensor.ClearField('raw_data')
    tensor.data_location = 1
    for key, value in {'location': location, 'offset': '0', 'length': '432'}.items():
        tensor.external_data.add(key=key, value=value)


def in_a_weight(location):
    return lambda proto: external(
        next(tensor for tensor in proto.graph.initializer if len(tensor.dims) == 4), location
    )


def hidden():
    """Return a node with a tensor whose numbers are in another file."""
    from onnx import helper

    value = helper.make_tensor('hidden', 1, [1], [0.0])
    external(value, '/etc/passwd')
    return helper.make_node('Constant', [], ['c'], value=value)


def in_a_branch(proto):
    from onnx import helper

    result = helper.make_tensor_value_info('c', 1, [1])
    branch = helper.make_graph([hidden()], 'b', [], [result])
    added = helper.make_node('If', ['x'], ['y'], then_branch=branch, else_branch=branch)
    proto.graph.node.append(added)


def in_a_function(proto):
    from onnx import helper

    proto.functions.append(helper.make_function('d', 'f', [], ['c'], [hidden()], []))


@pytest.mark.parametrize(
    ('edit', 'location'),
    [
        (in_a_weight('/dev/zero'), '/dev/zero'),
        (in_a_weight('../../../../etc/passwd'), '../../../../etc/passwd'),
        (in_a_weight('*/_ORT_MEM_ADDR_/*'), '*/_ORT_MEM_ADDR_/*'),
        (in_a_branch, '/etc/passwd'),
        (in_a_function, '/etc/passwd'),
    ],
)
def test_an_onnx_file_reaches_no_other_file(onnx_file, edit, location):
    import onnx

    proto = onnx.load(onnx_file)
    edit(proto)
    Path('x.onnx').write_bytes(proto.SerializeToString())
    assert f'from another file ({location}), as no file of tools' in refused(Path('x.onnx'))


def test_the_own_format_of_onnx_runtime_is_not_read(onnx_file):
    """Its tensors in other files are not checked."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.optimized_model_filepath = 'x.ort'
    options.add_session_config_entry('session.save_model_format', 'ORT')
    InferenceSession(onnx_file, options, providers=['CPUExecutionProvider'])
    Path('x.ort').rename('x.onnx')
    assert 'cannot be read (DecodeError: ' in refused(Path('x.onnx'))


def test_an_openvino_file_reaches_no_other_file(openvino, tiny):
    xml, weights = openvino
    path = Path('x.xml')
    path.write_text(xml)
    assert "No such file or directory: 'x.bin'" in refused(path)
    path.with_suffix('.bin').write_bytes(weights)
    assert_computes_tiny(load_runtime(path), tiny, 1e-5)
    entity = '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    path.write_text(xml.replace('<net name="', f'{entity}<net name="&e;'))
    assert 'cannot be read (ValueError: XML entities' in refused(path)
    path.write_text('\x08\x0a')  # of an ONNX file
    assert 'cannot be read (ParseError: ' in refused(path)
    path.write_text('<svg/>')
    assert 'it has the root svg instead' in refused(path)
