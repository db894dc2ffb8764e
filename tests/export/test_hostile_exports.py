"""Exported files that could run code, reach other files or lie: a sentence, and nothing is run.

They are made by hand from the files of one tiny model.
"""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from helpers import relative_error
from helpers.in_process import call_tool
from helpers.pickles import records, saved, zipped
from torch import nn

from xcit_mm import UserError
from xcit_mm.export import load_runtime
from xcit_mm.export.formats import onnx as onnx_format
from xcit_mm.export.formats import torch as torch_format
from xcit_mm.export.formats.format import Contents
from xcit_mm.export.formats.openvino import SECTION

MARKER = 'made_by_a_file'
CODE = f"__import__('os').mkdir('{MARKER}')"
GRAPH, METADATA = 'models/model.json', 'extra/metadata.json'
WEIGHTS, CONSTANTS = (f'data/{k}/model_{k}_config.json' for k in ('weights', 'constants'))
# A file that is loaded: the sentence about what the tool looks for next.
LOADED = 'the config nothing.py does not exist'
TRUST = r', which could run any code; if you trust its source, pass --trust-checkpoint'
OLD = 'it has weights in a pickle, as PyTorch writes them before 2.9' + TRUST
OUTPUTS = {'outputs': json.dumps(['logits', 'labels']), 'precision': 'float32'}


class Tiny(nn.Module):
    """A graph of two layers."""

    batched, channels, outputs = True, 3, ('logits', 'labels')

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


@pytest.fixture(scope='module')
def tiny():
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope='module')
def pt2(tiny, tmp_path_factory):
    """The records of a .pt2 file, by name."""
    path = tmp_path_factory.mktemp('pt2') / 'tiny.pt2'
    torch_format.write(Contents(tiny, OUTPUTS), path)
    return {name.partition('/')[2]: data for name, data in records(path.read_bytes()).items()}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """The folder that a payload would write to."""
    monkeypatch.chdir(tmp_path)


def packed(parts):
    return zipped({f'tiny/{name}': data for name, data in parts.items()})


def edited(name, change):
    """Return what changes the JSON of a record in place."""

    def edit(parts):
        content = json.loads(parts[name])
        change(content)
        parts[name] = json.dumps(content).encode()

    return edit


def added(**parts):
    """Return what adds records, with their folders after two underscores."""
    return lambda old: old.update({name.replace('__', '/'): data for name, data in parts.items()})


def weight(**values):
    return edited(WEIGHTS, lambda c: c['config']['model.0.weight'].update(values))


def shape(sizes=None, **values):
    def change(content):
        meta = content['config']['model.0.weight']['tensor_meta']
        meta.update(values)
        for axes in ('sizes', 'strides') if sizes else ():
            meta[axes] = [{'as_int': n} for n in sizes[axes]]

    return edited(WEIGHTS, change)


def constant(path_name):
    """Return what adds a constant that is a pickle."""
    entry = {'path_name': path_name, 'is_param': False, 'use_pickle': True, 'tensor_meta': None}

    def change(parts):
        parts[CONSTANTS] = json.dumps({'config': {'mine': entry}}).encode()
        parts[f'data/constants/{path_name}'] = pickle.dumps(Payload())

    return change


def graph(change):
    return edited(GRAPH, lambda content: change(content['graph_module']['graph']))


def node(target, *arguments, outputs=({'as_none': True},)):
    """Return what adds a node, called with texts or with arguments of the file's form."""
    arguments = [{'as_string': a} if isinstance(a, str) else a for a in arguments]
    inputs = [{'name': '', 'arg': argument, 'kind': 1} for argument in arguments]
    added = dict(target=target, inputs=inputs, outputs=outputs, metadata={}, name='mine')
    return graph(lambda content: content['nodes'].append(added))


def replaced(old, new):
    """Return what replaces a name in the whole graph."""

    def change(parts):
        text = parts[GRAPH].decode()
        assert f'"{old}"' in text
        parts[GRAPH] = text.replace(f'"{old}"', json.dumps(new)).encode()

    return change


def image_size(expression):
    return graph(
        lambda content: content['tensor_values']['image']['sizes'].__setitem__(
            0, {'as_expr': {'expr_str': expression, 'hint': None}}
        )
    )


def other_size(content):
    for name, value in content['tensor_values'].items():
        if name != 'image':
            value['sizes'][0] = {'as_expr': {'expr_str': CODE, 'hint': None}}


def signature(content):
    call = content['graph_module']['module_call_graph'][0]['signature']
    call['forward_arg_names'] = [f'image=({CODE})']
    call['in_spec'] = json.dumps([1, {'type': 'os.mkdir', 'context': MARKER, 'children_spec': []}])


def mutation(content):
    content['graph_module']['signature']['output_specs'].append({'buffer_mutation': {}})


def keyword(content):
    content['nodes'][0]['inputs'][0].update(name=f'self={CODE}, other', kind=2)


def without(*names):
    return lambda parts: [parts.pop(name) for name in names]


def both(*changes):
    return lambda parts: [change(parts) for change in changes]


def metadata(**values):
    return lambda parts: parts.update({METADATA: json.dumps({**OUTPUTS, **values}).encode()})


IMAGE = {'as_tensor': {'name': 'image'}}
# Of each file what is changed in it, and what the tool says.
PROGRAMS = {
    'nothing else': (both(), LOADED),
    # What torch.export.load would run.
    'sample inputs': (lambda parts: parts.update(PICKLED), LOADED),
    'a pickled weight': (weight(use_pickle=True), 'it has the pickle model.0.weight' + TRUST),
    'a pickled constant': (constant('tensor_0'), 'it has the pickle mine' + TRUST),
    'a script object': (constant('custom_obj_0'), 'it has the pickle mine' + TRUST),
    'an opaque object': (constant('opaque_obj_0'), 'it has the pickle mine' + TRUST),
    'pickles of PyTorch 2.8': (both(lambda p: p.update(PICKLED), without(WEIGHTS)), OLD),
    'pickles of PyTorch 2.8 as well': (lambda parts: parts.update(PICKLED), LOADED),
    'guards': (edited(GRAPH, lambda content: content.update(guards_code=[CODE])), LOADED),
    'a size of the image': (image_size(CODE), f'it has the expression {CODE}' + TRUST),
    'a symbol': (image_size(f"Symbol('s0', a={CODE})"), "it has the expression Symbol('s0', a="),
    'sizes of other tensors': (graph(other_size), LOADED),
    'a signature': (edited(GRAPH, signature), LOADED),
    'names': (replaced('conv2d', f'conv2d={CODE};conv2d'), LOADED),
    'the name of the image': (replaced('image', f'image=({CODE})'), LOADED),
    'the name of an argument': (edited(GRAPH, lambda c: keyword(c['graph_module']['graph'])),
                                'its torch.ops.aten.div.Tensor has an unknown argument'),
    'a graph as an argument': (node('torch.ops.aten.add.Tensor', {'as_graph': {'name': 'g'}}),
                               'it has an argument of the kind as_graph' + TRUST),
    'an operator as an argument': (node('torch.ops.aten.add.Tensor', {'as_operator': 'torch.load'}),
                                   'it has an argument of the kind as_operator' + TRUST),
    'another device': (node('torch.ops.aten.to.device', {'as_device': {'type': 'x:y'}}),
                       'it has an argument of the kind as_device' + TRUST),
    'a number as a dtype': (node('torch.ops.aten.view.dtype', IMAGE, {'as_int': 1000}),
                            'its torch.ops.aten.view.dtype has an invalid dtype): export it again'),
    'a text as a device': (node('torch.ops.aten.to.device', IMAGE, 'meta', {'as_scalar_type': 7}),
                           'its torch.ops.aten.to.device has an invalid device'),
    'changed weights': (edited(GRAPH, mutation), 'it changes its own weights'),
    **{
        target: (node(target, MARKER), f'it has the operator {target[:20]}')
        for target in (
            'os.mkdir', 'torch.os.mkdir', 'torch.load', 'torch.hub.load', 'torch.ops.load_library',
            'torch.ops.aten.from_file.default', 'torch.ops.aten.save.default',
            'torch.ops.aten.warn.default', 'torch.ops.aten._print.default',
            'torch.ops.aten.set_.source_Storage', 'torch.ops.aten.as_strided.default',
            'torch.ops.aten.add.Tensor.__call__', 'torch.ops.aten.add.__class__',
            'torch.ops.aten.__init__.x', 'torch.ops.higher_order.cond', 'torch.ops.prims.add.x',
            'torch.ops.torchvision.read_file.default', 'torch.ops.image.read_file.default',
            'torch.sym_sqrt.__globals__', '_operator.attrgetter', '_operator.methodcaller',
            '_operator.call', 'math.__loader__.load_module', '#namespace:operator', '', '..',
        )
    },
    # Native code.
    'AOTInductor': (lambda parts: [parts.clear(), parts.update(LIBRARY)],
                    'it has native code that AOTInductor compiled' + TRUST),
    'AOTInductor in part': (lambda parts: parts.update(LIBRARY),
                            'it has native code that AOTInductor compiled' + TRUST),
    # What is not so.
    'no outputs': (without(METADATA), "cannot be read (KeyError: 'extra/metadata.json'): export"),
    'outputs that are no list': (metadata(outputs='7'), 'its metadata does not name its outputs'),
    'outputs that are no names': (metadata(outputs='[[]]'), 'metadata does not name its outputs'),
    'outputs that are no JSON': (metadata(outputs='['), 'cannot be read (JSONDecodeError: '),
    'deep metadata': (lambda parts: parts.update({METADATA: b'[' * 10**6}), 'RecursionError'),
    'a deep graph': (lambda parts: parts.update({GRAPH: b'{"a":' * 10**6}), 'RecursionError'),
    'another dtype': (shape(dtype=8),
                      'its model.0.weight is larger than its record): export it again'),
    'no dtype': (shape(dtype=99), 'cannot be read (KeyError: 99): export it again'),
    'a size': (shape({'sizes': [9, 9, 9], 'strides': [81, 9, 1]}), 'is larger than its record'),
    'repeated numbers': (shape({'sizes': [10**6, 10**6], 'strides': [0, 0]}), 'is larger than its'),
    'many sizes': (shape({'sizes': [2**60] * 10**5, 'strides': [0] * 10**5}), 'larger than its'),
    'a large stride': (shape({'sizes': [4], 'strides': [2**61]}), 'cannot be read (RuntimeError: '),
    'a stride': (shape({'sizes': [4], 'strides': [-1]}), 'cannot be read (RuntimeError: '),
    'an offset': (shape(storage_offset={'as_int': -8}), 'cannot be read (RuntimeError: '),
    'a large offset': (shape(storage_offset={'as_int': 2**62}), 'cannot be read (RuntimeError: '),
    'another path': (weight(path_name='../../../etc/passwd'), 'cannot be read (KeyError: '),
    'a record that is cut': (lambda parts: parts.update({'data/weights/weight_0': bytes(7)}),
                             'cannot be read (ValueError: '),
    'no record': (without('data/weights/weight_0'), 'cannot be read (KeyError: '),
    'another version': (edited(GRAPH, lambda c: c['schema_version'].update(major=9)),
                        'it has version 9 of the format of torch.export, of which only version 8 '),
    'no graph': (without(GRAPH), "cannot be read (KeyError: 'models/model.json'): export it again"),
    'an unknown value': (graph(lambda g: g['outputs'].append({'as_tensor': {'name': 'z'}})),
                         "cannot be read (KeyError: 'z'): export it again"),
}  # fmt: skip
PICKLED = {
    f'data/{name}': saved(Payload())
    for name in ('sample_inputs/model.pt', 'weights/model.pt', 'constants/model.pt')
}
LIBRARY = {'data/aotinductor/model/model.wrapper.so': b'\x7fELF', 'archive_format': b'pt2'}


def says(monkeypatch, capfd, file, message):
    """The tool says this in a line about the file, exits with 2 and runs nothing that is in it."""
    code, _, errors = call_tool(monkeypatch, capfd, 'evaluate_export.py', 'nothing.py', 'x', file)
    assert code == 2
    assert message in errors and (message == LOADED or file.name in errors)
    assert len(errors.splitlines()) == 1 and len(errors) < 1000
    assert not Path(MARKER).exists()


@pytest.mark.parametrize('case', PROGRAMS)
def test_a_program_runs_nothing_that_is_in_its_file(pt2, tiny, case, tmp_path, monkeypatch, capfd):
    change, message = PROGRAMS[case]
    parts = dict(pt2)
    change(parts)
    file = tmp_path / 'x.pt2'
    file.write_bytes(packed(parts))
    says(monkeypatch, capfd, file, message)
    if message == LOADED:
        image = 255 * torch.rand(2, 3, 9, 11)
        with torch.no_grad():
            expected = tiny(image)
        outputs = load_runtime(file)(image)
        assert all(torch.equal(*pair) for pair in zip(outputs.values(), expected, strict=True))
        assert not Path(MARKER).exists()


def stored_twice(parts):
    """Return an archive whose last record is a second one of a name, which readers may choose."""
    content = packed({**parts, 'models/model.jsom': b'{}'})
    return content.replace(b'models/model.jsom', b'models/model.json')


BEFORE = {
    'version': b'8.5',
    **{f'serialized_{n}.pt': saved(Payload()) for n in ('state_dict', 'example_inputs')},
}
# Of each archive what makes it of the records, and what the tool says.
ARCHIVES = {
    'a record twice': (stored_twice, 'its records are not laid out as PyTorch writes them'),
    'names alike': (lambda p: packed({**p, GRAPH.upper(): b'{}'}), 'records are not laid out'),
    'another folder': (lambda p: packed(p) and zipped({**{f'a/{n}': d for n, d in p.items()},
                                                       f'b/{GRAPH}': b'{}'}), 'not laid out'),
    'compressed': (lambda p: zipped({f'a/{n}': d for n, d in p.items()}, zipfile.ZIP_DEFLATED),
                   'its records are not laid out as PyTorch writes them'),
    'PyTorch 2.7': (lambda p: zipped(BEFORE), OLD),
    'PyTorch 2.7 as well': (lambda p: zipped({**{f'a/{n}': d for n, d in p.items()}, **BEFORE}),
                            'its records are not laid out as PyTorch writes them'),
    'a checkpoint': (lambda p: saved(Payload()), OLD),
    'a pickle': (lambda p: pickle.dumps(Payload()), 'cannot be read (BadZipFile: '),
    'cut off': (lambda p: packed(p)[:-9], 'cannot be read (BadZipFile: '),
    'a flipped bit': (lambda p: packed(p).replace(b'torch.ops.aten.div', b'torch.ops.aten.diw'),
                      'cannot be read (BadZipFile: Bad CRC-32'),
    'nothing': (lambda p: b'', 'cannot be read (BadZipFile: '),
}  # fmt: skip


@pytest.mark.parametrize('case', ARCHIVES)
def test_an_archive_of_another_layout_is_refused(pt2, case, tmp_path, monkeypatch, capfd):
    change, message = ARCHIVES[case]
    file = tmp_path / 'x.pt2'
    file.write_bytes(change(pt2))
    says(monkeypatch, capfd, file, message)


@pytest.mark.parametrize('names', [['logits'], ['logits', 'labels', 'masks']])
def test_a_file_that_names_other_outputs_than_it_computes_says_so(pt2, names, tmp_path):
    file = tmp_path / 'x.pt2'
    parts = dict(pt2)
    metadata(outputs=json.dumps(names))(parts)
    file.write_bytes(packed(parts))
    message = rf'the exported file names the outputs {", ".join(names)}, but computes 2: export it'
    for trusted in (False, True):
        with pytest.raises(UserError, match=message):
            load_runtime(file, trusted)(torch.zeros(2, 3, 9, 11))


@pytest.mark.parametrize('corner', ['Infinity', 'NaN', 3e38])
def test_regions_that_are_not_finite_are_refused(pt2, corner, tmp_path):
    regions, output = ([{'as_tensor': {'name': name}}] for name in ('regions', 'output'))
    sizes, number = {'as_ints': [1, 5]}, {'as_float': corner}
    options = [{'as_float': 1.0}, *[{'as_int': 2}] * 3, {'as_bool': True}]
    parts = dict(pt2)
    node('torch.ops.aten.full.default', sizes, number, outputs=regions)(parts)
    node('torch.ops.torchvision.roi_align.default', IMAGE, *regions, *options, outputs=output)(
        parts
    )
    file = tmp_path / 'x.pt2'
    file.write_bytes(packed(parts))
    with pytest.raises(UserError, match='it has empty maps or regions without finite corners'):
        load_runtime(file)(torch.zeros(2, 3, 9, 11))


def test_what_is_not_a_file_is_named(tmp_path):
    os.mkfifo(tmp_path / 'x.pt2')
    (tmp_path / 'x.onnx').mkdir()
    for name in ('x.pt2', 'x.onnx'):
        with pytest.raises(UserError, match=f'{name} is not a file: name a file of tools/export.'):
            load_runtime(tmp_path / name)


def test_code_in_a_file_that_is_trusted_runs(pt2, tmp_path):
    file = tmp_path / 'x.pt2'
    file.write_bytes(packed({**pt2, **PICKLED}))
    with pytest.raises(UserError):  # the payload is no weights
        load_runtime(file, trusted=True)
    assert Path(MARKER).is_dir()


def external(tensor, location):
    """Move the numbers of a tensor of an ONNX file to another file."""
    tensor.ClearField('raw_data')
    tensor.data_location = 1
    for key, value in {'location': location, 'offset': '0', 'length': '432'}.items():
        tensor.external_data.add(key=key, value=value)


def in_a_branch(proto, location):
    """Add a node whose branches have such a tensor."""
    from onnx import helper

    value = helper.make_tensor('hidden', 1, [1], [0.0])
    external(value, location)
    constant = helper.make_node('Constant', [], ['c'], value=value)
    branch = helper.make_graph([constant], 'b', [], [helper.make_tensor_value_info('c', 1, [1])])
    proto.graph.node.append(
        helper.make_node('If', ['x'], ['y'], then_branch=branch, else_branch=branch)
    )


def in_a_function(proto, location):
    from onnx import helper

    value = helper.make_tensor('hidden', 1, [1], [0.0])
    external(value, location)
    nodes = [helper.make_node('Constant', [], ['c'], value=value)]
    proto.functions.append(helper.make_function('d', 'f', [], ['c'], nodes, []))


def first_weight(proto, location):
    external(next(t for t in proto.graph.initializer if len(t.dims) == 4), location)


def of_another_domain(proto, domain):
    proto.opset_import.add(domain=domain, version=1)
    proto.graph.node[0].domain = domain


def of_size(proto, length):
    next(t for t in proto.graph.initializer if len(t.dims) == 4).dims[0] = int(length)


OUTSIDE = (
    'from another file ({}), as no file of tools/export.py does: store all tensors in the file'
)
ONNX = {
    'nothing else': (lambda proto, _: None, '', LOADED),
    'a device': (first_weight, '/dev/zero', OUTSIDE),
    'a file': (first_weight, '../../../../etc/passwd', OUTSIDE),
    'a file beside': (first_weight, 'x.bin', OUTSIDE),
    'an address': (first_weight, '*/_ORT_MEM_ADDR_/*', OUTSIDE),
    'in a branch': (in_a_branch, '/etc/passwd', OUTSIDE),
    'in a function': (in_a_function, '/etc/passwd', OUTSIDE),
    'operators of others': (of_another_domain, 'com.example', 'cannot be read (Fail: '),
    'operators in Python': (of_another_domain, 'ai.onnx.contrib', 'cannot be read (Fail: '),
    'many numbers': (of_size, str(2**62), 'cannot be read (Fail: '),  # in one line, without a log
    'no operator': (lambda proto, name: setattr(proto.graph.node[0], 'op_type', name),
                    'EPContext', 'cannot be read ('),
    'no outputs': (lambda proto, _: proto.ClearField('metadata_props'), '', 'cannot be read ('),
}  # fmt: skip


@pytest.fixture(scope='module')
def onnx_content(tiny, tmp_path_factory):
    pytest.importorskip('onnxruntime')
    path = tmp_path_factory.mktemp('onnx') / 'tiny.onnx'
    onnx_format.write(Contents(tiny, OUTPUTS), path)
    return path.read_bytes()


@pytest.mark.parametrize('case', ONNX)
def test_an_onnx_file_reaches_no_other_file(onnx_content, case, tmp_path, monkeypatch, capfd):
    import onnx

    change, text, message = ONNX[case]
    proto = onnx.ModelProto.FromString(onnx_content)
    change(proto, text)
    (tmp_path / 'x.bin').write_bytes(bytes(432))
    file = tmp_path / 'x.onnx'
    file.write_bytes(proto.SerializeToString())
    says(monkeypatch, capfd, file, message.format(text))


def test_onnx_runtimes_own_format_is_refused(onnx_content, tmp_path, monkeypatch, capfd):
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / 'x.ort')
    options.add_session_config_entry('session.save_model_format', 'ORT')
    InferenceSession(onnx_content, options, providers=['CPUExecutionProvider'])
    file = (tmp_path / 'x.ort').rename(tmp_path / 'x.onnx')
    says(monkeypatch, capfd, file, 'cannot be read (DecodeError: ')


@pytest.fixture(scope='module')
def openvino_files(onnx_content, tmp_path_factory):
    """The content of the .xml and the .bin file."""
    openvino = pytest.importorskip('openvino')
    path = tmp_path_factory.mktemp('openvino') / 'tiny.xml'
    path.with_suffix('.onnx').write_bytes(onnx_content)
    model = openvino.convert_model(path.with_suffix('.onnx'))
    for name, value in OUTPUTS.items():
        model.set_rt_info(value, [SECTION, name])
    openvino.save_model(model, path, compress_to_fp16=False)
    return path.read_text(), path.with_suffix('.bin').read_bytes()


def of_text(old, new):
    def change(text, weights):
        assert old in text
        return text.replace(old, new), weights

    return change


ENTITY = '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]><net name="'
OPENVINO = {
    'nothing else': (lambda text, weights: (text, weights), LOADED),
    'no .bin file': (lambda text, weights: (text, None), 'x.bin does not exist: copy it next to x'),
    'a cut .bin file': (lambda text, weights: (text, weights[:-1]),
                        'bytes, but x.xml needs 496: copy both files of one export'),
    'a longer .bin file': (lambda text, weights: (text, weights + b'\0'), 'x.bin has 497 bytes'),
    'an empty .bin file': (lambda text, weights: (text, b''), 'x.bin has 0 bytes, but x.xml needs'),
    'beyond the .bin file': (of_text('offset="0"', 'offset="9999"'), ' but x.xml needs 10'),
    'before the .bin file': (of_text('offset="0"', 'offset="-8"'), 'cannot be read (ValueError: '),
    'around the address space': (of_text('offset="0"', f'offset="{2**64 - 8}"'),
                                 ' but x.xml needs 18446744073'),
    'too many numbers': (of_text('shape="4, 3, 3, 3"', f'shape="{2**32}, {2**32}"'),
                         'cannot be read (ValueError: a constant of the shape 4294967296, '),
    'other numbers': (of_text('shape="4, 3, 3, 3"', 'shape="4, 3, 3, 4"'), 'cannot be read ('),
    'an entity': (lambda text, weights: (text.replace('<net name="', ENTITY + '&e;'), weights),
                  'cannot be read (ValueError: XML entities are refused'),
    'many axes': (of_text('shape="4, ', f'shape="{"4294967296, " * 10**5}'),
                  'cannot be read (ValueError: a constant of the shape 4294967296, '),
    'a layer of an extension': (of_text('type="Convolution"', 'type="Mine"'), 'cannot be read ('),
    'no outputs': (of_text('<outputs value', '<other value'), 'cannot be read ('),
    'a program': (lambda text, weights: ('\x08\x0a', weights), 'cannot be read (ParseError: '),
    'another format': (lambda text, weights: ('<svg/>', weights), 'it has the root svg instead'),
    'nothing': (lambda text, weights: ('', weights), 'cannot be read (ParseError: '),
}  # fmt: skip


@pytest.mark.parametrize('case', OPENVINO)
def test_openvinos_files_must_fit_each_other(
    openvino_files, tiny, case, tmp_path, monkeypatch, capfd
):
    change, message = OPENVINO[case]
    text, weights = change(*openvino_files)
    file = tmp_path / 'x.xml'
    file.write_text(text)
    if weights is not None:
        file.with_suffix('.bin').write_bytes(weights)
    says(monkeypatch, capfd, file, message)
    if message == LOADED:  # in float32, also on a CPU that has bfloat16
        image = 255 * torch.rand(2, 3, 9, 11)
        with torch.no_grad():
            assert relative_error(load_runtime(file)(image)['logits'], tiny(image)[0]) <= 1e-5
