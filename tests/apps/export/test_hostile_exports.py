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
from xcit_mm.apps.export import load_runtime
from xcit_mm.apps.export.formats import BY_NAME
from xcit_mm.apps.export.formats.format import Contents
from xcit_mm.apps.export.formats.openvino import SECTION

MARKER = 'made_by_a_file'
CODE = f"__import__('os').mkdir('{MARKER}')"
GRAPH, METADATA = 'models/model.json', 'extra/metadata.json'
WEIGHTS, CONSTANTS = (f'data/{k}/model_{k}_config.json' for k in ('weights', 'constants'))
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


# Edits return what a file becomes: for .pt2, the records by name, or the bytes of an archive.


def packed(parts):
    return zipped({f'tiny/{name}': data for name, data in parts.items()})


def put(path, value, record=GRAPH):
    """Return an edit of a record in JSON, at keys between slashes; - appends to a list."""

    def edit(parts):
        content = at = json.loads(parts[record])
        *keys, last = (int(key) if key.isdecimal() else key for key in path.split('/'))
        for key in keys:
            at = at[key]
        if last == '-':
            at.append(value)
        else:
            at[last] = value
        return {**parts, record: json.dumps(content).encode()}

    return edit


def weight(path, value):
    return put(f'config/model.0.weight/{path}', value, WEIGHTS)


def shape(sizes, strides):
    values = {'sizes': sizes, 'strides': strides}
    return [weight(f'tensor_meta/{k}', [{'as_int': n} for n in v]) for k, v in values.items()]


def constant(path_name):
    """Return edits that add a constant in a pickle."""
    entry = {'path_name': path_name, 'is_param': False, 'use_pickle': True, 'tensor_meta': None}
    payload = {f'data/constants/{path_name}': pickle.dumps(Payload())}
    return [put('config/mine', entry, CONSTANTS), add(payload)]


def node(target, *arguments, outputs=({'as_none': True},)):
    """Return an edit that adds a node, called with texts or with arguments of the file's form."""
    arguments = [{'as_string': a} if isinstance(a, str) else a for a in arguments]
    inputs = [{'name': '', 'arg': argument, 'kind': 1} for argument in arguments]
    added = dict(target=target, inputs=inputs, outputs=outputs, metadata={}, name='mine')
    return put(f'{NODES}/-', added)


def rename(old, new):
    """Return an edit of a name in the whole graph."""
    old, new = (json.dumps(name).encode() for name in (old, new))

    def edit(parts):
        assert old in parts[GRAPH]
        return {**parts, GRAPH: parts[GRAPH].replace(old, new)}

    return edit


def size(name, expression):
    value = {'as_expr': {'expr_str': expression, 'hint': None}}
    return put(f'graph_module/graph/tensor_values/{name}/sizes/0', value)


def name_outputs(text):
    return put('outputs', text, METADATA)


def add(others):
    return lambda parts: {**parts, **others}


def without(name):
    return lambda parts: {k: v for k, v in parts.items() if k != name}


def in_folder(folder, parts):
    return {f'{folder}/{name}': data for name, data in parts.items()}


def stored_twice(parts):
    """Return an archive whose last record is a second one of a name, so that readers may differ."""
    content = packed({**parts, 'models/model.jsom': b'{}'})
    return content.replace(b'models/model.jsom', b'models/model.json')


LOADED = ''  # instead of a sentence: the file is loaded, and computes what it should
TRUST = ', which could run any code; if you trust its source, pass --trust-checkpoint'
OLD = 'it has weights in a pickle, as PyTorch writes them before 2.9' + TRUST
COMPILED = 'it has native code that AOTInductor compiled' + TRUST
MINE, ARGUMENT = f'it has the pickle mine{TRUST}', 'it has an argument of the kind '
UNREAD, LARGER = 'cannot be read (', 'model.0.weight is larger than its record): export it again'
LAYOUT = 'its records are not laid out as PyTorch writes them'
NODES, CALL = 'graph_module/graph/nodes', 'graph_module/module_call_graph/0/signature'
IMAGE = {'as_tensor': {'name': 'image'}}
TREE = json.dumps([1, {'type': 'os.mkdir', 'context': MARKER, 'children_spec': []}])
OFFSET = 'tensor_meta/storage_offset'
KINDS = 'sample_inputs', 'weights', 'constants'
PICKLES = {f'data/{kind}/model.pt': saved(Payload()) for kind in KINDS}
BEFORE = {f'serialized_{kind}.pt': saved(Payload()) for kind in ('state_dict', 'example_inputs')}
BEFORE['version'] = b'8.5'
LIBRARY = {'data/aotinductor/model/model.wrapper.so': b'\x7fELF', 'archive_format': b'pt2'}
TARGETS = """
    os.mkdir torch.os.mkdir torch.load torch.hub.load torch.ops.load_library
    torch.ops.aten.from_file.default torch.ops.aten.save.default torch.ops.aten.warn.default
    torch.ops.aten._print.default torch.ops.aten.set_.source_Storage
    torch.ops.aten.as_strided.default torch.ops.aten.add.Tensor.__call__
    torch.ops.aten.add.__class__ torch.ops.aten.__init__.x torch.ops.higher_order.cond
    torch.ops.prims.add.x torch.ops.torchvision.read_file.default torch.ops.image.read_file.default
    torch.sym_sqrt.__globals__ _operator.attrgetter _operator.methodcaller _operator.call
    math.__loader__.load_module #namespace:operator ..
"""
# Of each file the sentence about it, and the edits that make it.
PT2 = {
    'nothing else': [LOADED],
    # What torch.export.load would run.
    'pickles': [LOADED, add(PICKLES)],
    'a pickled weight': [f'it has the pickle model.0.weight{TRUST}', weight('use_pickle', True)],
    'a pickled constant': [MINE, *constant('tensor_0')],
    'a script object': [MINE, *constant('custom_obj_0')],
    'an opaque object': [MINE, *constant('opaque_obj_0')],
    'pickles of PyTorch 2.8': [OLD, add(PICKLES), without(WEIGHTS)],
    'guards': [LOADED, put('guards_code', [CODE])],
    'a size of the image': [f'it has the expression {CODE}{TRUST}', size('image', CODE)],
    'a symbol': ["it has the expression Symbol('s0', a=", size('image', f"Symbol('s0', a={CODE})")],
    'sizes of other tensors': [LOADED, *(size(t, CODE) for t in ('div', 'conv2d', 'argmax'))],
    'a signature': [LOADED, put(f'{CALL}/forward_arg_names', [f'image=({CODE})']),
                    put(f'{CALL}/in_spec', TREE)],
    'names': [LOADED, rename('conv2d', f'conv2d={CODE};conv2d')],
    'the name of the image': [LOADED, rename('image', f'image=({CODE})')],
    'the name of an argument': ['its torch.ops.aten.div.Tensor has an unknown argument',
                                put(f'{NODES}/0/inputs/0/name', f'self={CODE}, other'),
                                put(f'{NODES}/0/inputs/0/kind', 2)],
    'a graph as an argument': [f'{ARGUMENT}as_graph{TRUST}',
                               node('torch.ops.aten.add.Tensor', {'as_graph': {'name': 'g'}})],
    'an operator as an argument': [f'{ARGUMENT}as_operator{TRUST}',
                                   node('torch.ops.aten.add.Tensor', {'as_operator': 'os.mkdir'})],
    'another device': [f'{ARGUMENT}as_device{TRUST}',
                       node('torch.ops.aten.to.device', {'as_device': {'type': 'x:y'}})],
    'a number as a dtype': ['its torch.ops.aten.view.dtype has an invalid dtype): export it again',
                            node('torch.ops.aten.view.dtype', IMAGE, {'as_int': 1000})],
    'a text as a device': ['its torch.ops.aten.to.device has an invalid device',
                           node('torch.ops.aten.to.device', IMAGE, 'meta', {'as_scalar_type': 7})],
    'changed weights': ['it changes its own weights',
                        put('graph_module/signature/output_specs/-', {'buffer_mutation': {}})],
    **{t: [f'it has the operator {t[:20]}', node(t, MARKER)] for t in ('', *TARGETS.split())},
    # Native code.
    'AOTInductor': [COMPILED, lambda parts: LIBRARY],
    'AOTInductor in part': [COMPILED, add(LIBRARY)],
    # What is not so.
    'no outputs': [f"{UNREAD}KeyError: 'extra/metadata.json'): export", without(METADATA)],
    'outputs that are no list': ['its metadata does not name its outputs', name_outputs('7')],
    'outputs that are no names': ['its metadata does not name its outputs', name_outputs('[[]]')],
    'outputs that are no JSON': [f'{UNREAD}JSONDecodeError: ', name_outputs('[')],
    'deep metadata': ['RecursionError', add({METADATA: b'[' * 10**6})],
    'a deep graph': ['RecursionError', add({GRAPH: b'{"a":' * 10**6})],
    'another dtype': [LARGER, weight('tensor_meta/dtype', 8)],
    'no dtype': [f'{UNREAD}KeyError: 99): export it again', weight('tensor_meta/dtype', 99)],
    'a size': [LARGER, *shape([9, 9, 9], [81, 9, 1])],
    'repeated numbers': [LARGER, *shape([10**6, 10**6], [0, 0])],
    'many sizes': [LARGER, *shape([2**60] * 10**5, [0] * 10**5)],
    'a large stride': [f'{UNREAD}RuntimeError: ', *shape([4], [2**61])],
    'a stride': [f'{UNREAD}RuntimeError: ', *shape([4], [-1])],
    'an offset': [f'{UNREAD}RuntimeError: ', weight(OFFSET, {'as_int': -8})],
    'a large offset': [f'{UNREAD}RuntimeError: ', weight(OFFSET, {'as_int': 2**62})],
    'another path': [f'{UNREAD}KeyError: ', weight('path_name', '../../../etc/passwd')],
    'a record that is cut': [f'{UNREAD}ValueError: ', add({'data/weights/weight_0': bytes(7)})],
    'no record': [f'{UNREAD}KeyError: ', without('data/weights/weight_0')],
    'another version': ['it has version 9 of the format of torch.export, of which only version 8 ',
                        put('schema_version/major', 9)],
    'no graph': [f"{UNREAD}KeyError: 'models/model.json'): export it again", without(GRAPH)],
    'an unknown value': [f"{UNREAD}KeyError: 'z'): export it again",
                         put('graph_module/graph/outputs/-', {'as_tensor': {'name': 'z'}})],
    # Archives of another layout.
    'a record twice': [LAYOUT, stored_twice],
    'names alike': [LAYOUT, add({GRAPH.upper(): b'{}'})],
    'another folder': [LAYOUT, lambda p: zipped({**in_folder('a', p), f'b/{GRAPH}': b'{}'})],
    'compressed': [LAYOUT, lambda p: zipped(in_folder('a', p), zipfile.ZIP_DEFLATED)],
    'PyTorch 2.7': [OLD, lambda parts: zipped(BEFORE)],
    'PyTorch 2.7 as well': [LAYOUT, lambda p: zipped({**in_folder('a', p), **BEFORE})],
    'a checkpoint': [OLD, lambda parts: saved(Payload())],
    'a pickle': [f'{UNREAD}BadZipFile: ', lambda parts: pickle.dumps(Payload())],
    'cut off': [f'{UNREAD}BadZipFile: ', lambda parts: packed(parts)[:-9]],
    'a flipped bit': [f'{UNREAD}BadZipFile: Bad CRC-32',
                      lambda parts: packed(parts).replace(b'aten.div', b'aten.diw')],
    'nothing': [f'{UNREAD}BadZipFile: ', lambda parts: b''],
}  # fmt: skip


# Edits of an ``onnx.ModelProto``, in place.


def weight_of(proto):
    return next(tensor for tensor in proto.graph.initializer if len(tensor.dims) == 4)


def external(tensor, location):
    """Move the numbers of a tensor to another file."""
    tensor.ClearField('raw_data')
    tensor.data_location = 1
    for key, value in {'location': location, 'offset': '0', 'length': '432'}.items():
        tensor.external_data.add(key=key, value=value)


def in_a_weight(location):
    return lambda proto: external(weight_of(proto), location)


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


def of_domain(domain):
    def edit(proto):
        proto.opset_import.add(domain=domain, version=1)
        proto.graph.node[0].domain = domain

    return edit


def in_ort_format(proto):
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = 'x.ort'
    options.add_session_config_entry('session.save_model_format', 'ORT')
    InferenceSession(proto.SerializeToString(), options, providers=['CPUExecutionProvider'])
    return Path('x.ort').read_bytes()


OUTSIDE = 'from another file ({}), as no file of tools/export.py does: store all tensors in the fil'
ONNX = {
    'nothing else': [LOADED],
    **{
        location: [OUTSIDE.format(location), in_a_weight(location)]
        for location in ('/dev/zero', '../../../../etc/passwd', 'x.bin', '*/_ORT_MEM_ADDR_/*')
    },
    'in a branch': [OUTSIDE.format('/etc/passwd'), in_a_branch],
    'in a function': [OUTSIDE.format('/etc/passwd'), in_a_function],
    'operators of others': [f'{UNREAD}Fail: ', of_domain('com.example')],
    'operators in Python': [f'{UNREAD}Fail: ', of_domain('ai.onnx.contrib')],
    'many numbers': [f'{UNREAD}Fail: ', lambda p: weight_of(p).dims.__setitem__(0, 2**62)],
    'no operator': [UNREAD, lambda p: setattr(p.graph.node[0], 'op_type', 'EPContext')],
    'no outputs': [UNREAD, lambda p: p.ClearField('metadata_props')],
    "ONNX Runtime's own format": [f'{UNREAD}DecodeError: ', in_ort_format],
}  # fmt: skip


def text(old, new):
    """Return an edit of the text of an .xml file."""

    def edit(pair):
        assert old in pair[0]
        return pair[0].replace(old, new), pair[1]

    return edit


def whole(content):
    return lambda pair: (content, pair[1])


SHAPE, START, NAME = 'shape="4, 3, 3, 3"', 'offset="0"', '<net name="'
ENTITY = '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
TOO_MANY = f'{UNREAD}ValueError: a constant of the shape 4294967296, '
OPENVINO = {
    'nothing else': [LOADED],  # in float32, also on a CPU that has bfloat16
    'no .bin file': ['x.bin does not exist: copy it next to x', lambda pair: (pair[0], None)],
    'a cut .bin file': ['bytes, but x.xml needs 496: copy both files of the same export',
                        lambda pair: (pair[0], pair[1][:-1])],
    'a longer .bin file': ['x.bin has 497 bytes', lambda pair: (pair[0], pair[1] + b'\0')],
    'an empty .bin file': ['x.bin has 0 bytes, but x.xml needs', lambda pair: (pair[0], b'')],
    'beyond the .bin file': [' but x.xml needs 10', text(START, 'offset="9999"')],
    'before the .bin file': [f'{UNREAD}ValueError: ', text(START, 'offset="-8"')],
    'around the address space': ['needs 18446744073', text(START, f'offset="{2**64 - 8}"')],
    'too many numbers': [TOO_MANY, text(SHAPE, f'shape="{2**32}, {2**32}"')],
    'other numbers': [UNREAD, text(SHAPE, 'shape="4, 3, 3, 4"')],
    'many axes': [TOO_MANY, text('shape="4, ', f'shape="{"4294967296, " * 10**5}')],
    'an entity': [f'{UNREAD}ValueError: XML entities', text(NAME, f'{ENTITY}{NAME}&e;')],
    'a layer of an extension': [UNREAD, text('type="Convolution"', 'type="Mine"')],
    'no outputs': [UNREAD, text('<outputs value', '<other value')],
    'a program': [f'{UNREAD}ParseError: ', whole('\x08\x0a')],
    'another format': ['it has the root svg instead', whole('<svg/>')],
    'nothing': [f'{UNREAD}ParseError: ', whole('')],
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """The folder that a payload would write to."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope='module')
def tiny():
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope='module')
def pt2(tiny, tmp_path_factory):
    """The records of a .pt2 file, by name."""
    path = tmp_path_factory.mktemp('pt2') / 'tiny.pt2'
    BY_NAME['torch'].write(Contents(tiny, OUTPUTS), path)
    return {name.partition('/')[2]: data for name, data in records(path.read_bytes()).items()}


@pytest.fixture(scope='module')
def onnx_file(tiny, tmp_path_factory):
    pytest.importorskip('onnxruntime')
    path = tmp_path_factory.mktemp('onnx') / 'tiny.onnx'
    BY_NAME['onnx'].write(Contents(tiny, OUTPUTS), path)
    return path


@pytest.fixture
def onnx(onnx_file):
    from onnx import load

    return load(onnx_file)


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


def write(name, content):
    """Write what edits have made of a file of a format, and return its path."""
    path = Path(f'x{BY_NAME[name].suffix}').absolute()
    match content:
        case str() as text, weights:
            path.write_text(text)
            if weights is not None:
                path.with_suffix('.bin').write_bytes(weights)
        case dict():
            path.write_bytes(packed(content))
        case bytes():
            path.write_bytes(content)
        case _:
            path.write_bytes(content.SerializeToString())
            path.with_suffix('.bin').write_bytes(bytes(432))  # that a tensor may name
    return path


FILES = {'torch': ('pt2', PT2), 'onnx': ('onnx', ONNX), 'openvino': ('openvino', OPENVINO)}


@pytest.mark.parametrize(
    ('name', 'case'), [(name, case) for name, (_, cases) in FILES.items() for case in cases]
)
def test_a_file_runs_nothing_and_reaches_no_other_file(name, case, tiny, request, capfd):
    fixture, cases = FILES[name]
    message, *edits = cases[case]
    content = request.getfixturevalue(fixture)
    for edit in edits:
        changed = edit(content)
        content = content if changed is None else changed
    file = write(name, content)
    if message == LOADED:
        image = 255 * torch.rand(2, 3, 9, 11)
        results = load_runtime(file)(image)
        with torch.no_grad():
            expected = tiny(image)
        allowed = 0 if name == 'torch' else 1e-5
        assert relative_error(results['logits'], expected[0]) <= allowed
        assert torch.equal(results['labels'], expected[1])
    else:
        with pytest.raises(UserError) as refused:
            load_runtime(file)
        sentence = str(refused.value)
        assert message in sentence and file.name in sentence
        assert '\n' not in sentence and len(sentence) < 1000
    assert capfd.readouterr().err == ''
    assert not Path(MARKER).exists()


@pytest.mark.parametrize('name', FILES)
def test_the_tool_says_so_in_a_line(name, request, monkeypatch, capfd):
    request.getfixturevalue(FILES[name][0])  # skips the test without the packages
    file = write(name, b'junk' if name != 'openvino' else ('junk', b''))
    code, _, errors = call_tool(monkeypatch, capfd, 'evaluate_export.py', 'nothing.py', 'x', file)
    assert code == 2
    assert f'{file} cannot be read (' in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize('names', [['logits'], ['logits', 'labels', 'masks']])
def test_a_file_that_names_other_outputs_than_it_computes_says_so(pt2, names):
    file = write('torch', name_outputs(json.dumps(names))(pt2))
    message = rf'the exported file names the outputs {", ".join(names)}, but computes 2: export it'
    for trusted in (False, True):
        with pytest.raises(UserError, match=message):
            load_runtime(file, trusted)(torch.zeros(2, 3, 9, 11))


@pytest.mark.parametrize('corner', ['Infinity', 'NaN', 3e38])
def test_regions_that_are_not_finite_are_refused(pt2, corner):
    regions, output = ([{'as_tensor': {'name': name}}] for name in ('regions', 'output'))
    full = {'as_ints': [1, 5]}, {'as_float': corner}
    options = {'as_float': 1.0}, *[{'as_int': 2}] * 3, {'as_bool': True}
    align = 'torch.ops.torchvision.roi_align.default'
    parts = node('torch.ops.aten.full.default', *full, outputs=regions)(pt2)
    parts = node(align, IMAGE, *regions, *options, outputs=output)(parts)
    with pytest.raises(UserError, match='it has empty maps or regions without finite corners'):
        load_runtime(write('torch', parts))(torch.zeros(2, 3, 9, 11))


def test_what_is_not_a_file_is_named(tmp_path):
    os.mkfifo(tmp_path / 'x.pt2')
    (tmp_path / 'x.onnx').mkdir()
    for name in ('x.pt2', 'x.onnx'):
        with pytest.raises(UserError, match=f'{name} is not a file: name a file of tools/export.'):
            load_runtime(tmp_path / name)


def test_code_in_a_file_that_is_trusted_runs(pt2):
    with pytest.raises(UserError):  # the payload is no weights
        load_runtime(write('torch', add(PICKLES)(pt2)), trusted=True)
    assert Path(MARKER).is_dir()
