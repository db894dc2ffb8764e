"""A reader of ``torch.export`` programs that runs no code in their files.

``torch.export.load`` unpickles parts of a file, evaluates the expressions in it as Python, and
looks up functions by any name. :func:`read_program` reads weights as bytes, and the nodes of a
graph that it builds anew, with operators of a list and with names of its own.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, fx

from ....base.errors import one_line
from ....network.weights.pickles import UnreadableError
from ....network.weights.read import read_records

METADATA = 'metadata.json'  # in the archive
COMPILED = '/aotinductor/'
FORMAT = 8  # major version of torch._export.serde.schema
ENTRIES = 'data/{0}/model_{0}_config.json'  # what the records of weights or of constants hold
# What the codes of torch._export.serde.schema mean.
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
LAYOUTS = {7: torch.strided}
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
POSITIONAL = 1  # kind of argument
IMAGE = 'user_input'
SYMBOL = re.compile(r"(?:Symbol\(')?(\w+)(?:'(?:, \w+=True)*\))?")  # sympy's repr, or its name
# A dynamic axis is assumed to be no shorter, but programs take axes of 0 and 1, too.
ASSUMED_LENGTH = 2
# Operators that compute tensors and numbers from others, and do nothing else. Others in their
# namespaces write files, print, or use numbers as addresses. Variants that write to their first
# argument have a trailing underscore.
ATEN = """
    __and__ __or__ _assert_scalar _assert_tensor_metadata _to_copy abs adaptive_avg_pool2d add
    addcdiv addcmul addmm alias all amax amin any arange argmax argmin argsort avg_pool2d baddbmm
    batch_norm bitwise_and bitwise_not bitwise_or bmm cat ceil chunk clamp clamp_max clamp_min
    clone contiguous conv2d conv_transpose2d cos cumsum detach div dropout einsum elu embedding eq
    erf exp expand expand_as feature_dropout flatten flip floor floor_divide full full_like gather
    ge gelu grid_sampler group_norm gt hardsigmoid hardswish hardtanh index index_put index_select
    instance_norm item layer_norm le leaky_relu lift_fresh_copy linalg_vector_norm linear linspace
    log log2 log_softmax logical_and logical_not logical_or logsumexp lt masked_fill masked_select
    matmul max max_pool2d maximum mean meshgrid min minimum mish mm movedim mT mul narrow ne neg
    new_full new_ones new_zeros nonzero norm numpy_T ones ones_like pad permute pixel_shuffle pow
    prod promote_types reciprocal relu relu6 remainder repeat repeat_interleave reshape roll round
    rsqrt rsub scalar_tensor scaled_dot_product_attention select sigmoid sign silu sin slice
    softmax softplus sort split split_with_sizes sqrt square squeeze stack std sub sum
    sym_constrain_range sym_constrain_range_for_size sym_numel sym_size t tan tanh tile to topk
    transpose tril triu trunc type_as unbind unflatten unsqueeze upsample_bicubic2d
    upsample_bilinear2d upsample_nearest2d var view view_as where zeros zeros_like
"""
OPERATORS = {'aten': frozenset(ATEN.split()), 'torchvision': frozenset(('nms', 'roi_align'))}
ON_SIZES = 'add and_ eq floordiv ge gt le lt mod mul ne neg or_ pos sub truediv'
FUNCTIONS: dict[str, Callable] = {
    **{f'_operator.{name}': getattr(operator, name) for name in ON_SIZES.split()},
    **{f'torch.sym_{n}': getattr(torch, f'sym_{n}') for n in ('float', 'int', 'max', 'min', 'not')},
    'math.trunc': math.trunc,
}
# What arguments of these names are. An operator would take a number instead, and read beyond its
# table of dtypes for a number that is none of them.
CODED = {
    'dtype': torch.dtype,
    'out_dtype': torch.dtype,
    'type1': torch.dtype,
    'type2': torch.dtype,
    'layout': torch.layout,
    'device': torch.device,
    'memory_format': torch.memory_format,
}
# The length of an axis or a symbol for it (axes may share one), and its limits.
Axis = tuple[int | str, float, float]
SYMBOLIC = ('as_sym_int', 'as_sym_float', 'as_sym_bool')
PLAIN = {'as_int': int, 'as_float': float, 'as_bool': bool, 'as_string': str}


class UnsafeProgramError(UnreadableError):
    """A file has something that could run any code."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f'it has {one_line(what)}, which could run any code; if you trust its source, pass '
            '--trust-checkpoint (trusted=True in load_runtime)'
        )


def read_program(path: Path) -> tuple[Callable[[Tensor], Sequence[Tensor]], dict[str, str]]:
    """Return the function of a file, from an image to outputs, and the metadata of the file.

    Raises:
        UnreadableError: If the file holds more than weights and a graph of known operators, or has
            another version.
        Exception: Of many types, if the file is damaged.
    """
    if not any(name.endswith(ENTRIES.format('weights')) for name in _names(path)):
        raise UnsafeProgramError('weights in a pickle, as PyTorch writes them before 2.9')
    records = read_records(path)
    program = json.loads(records['models/model.json'])
    version = program['schema_version']['major']
    if version != FORMAT:
        raise UnreadableError(
            f'it has version {one_line(str(version))} of the format of torch.export, of which only '
            f'version {FORMAT} is read without running code: use another --format, or if you trust '
            'its source, pass --trust-checkpoint (trusted=True in load_runtime)'
        )
    tensors = _tensors(records, 'weights') | _tensors(records, 'constants')
    graph = _Graph()
    axes = _axes(graph.build(program['graph_module'], tensors), program['range_constraints'])
    module = graph.module()

    def compute(image: Tensor) -> Sequence[Tensor]:
        _require_sizes(image.shape, axes)
        return module.forward(image)  # a call prints the graph if it fails

    return compute, json.loads(records[f'extra/{METADATA}'])


def is_compiled(path: Path) -> bool:
    """Return whether native code is in a file, even if it is only a part of the file."""
    return any(COMPILED in name for name in _names(path))


def _names(path: Path) -> list[str]:
    with ZipFile(path) as archive:
        return archive.namelist()


def _tensors(records: Mapping[str, bytes], kind: str) -> dict[str, Tensor]:
    """Return the weights or the constants of a file, by name."""
    tensors: dict[str, Tensor] = {}
    storages: dict[tuple[str, torch.dtype], Tensor] = {}  # several tensors may share one
    for name, entry in json.loads(records[ENTRIES.format(kind)])['config'].items():
        if entry['use_pickle']:
            raise UnsafeProgramError(f'the pickle {name}')
        meta = entry['tensor_meta']
        key = entry['path_name'], DTYPES[meta['dtype']]
        if key not in storages:
            content = bytearray(records[f'data/{kind}/{key[0]}'])
            storages[key] = (
                torch.frombuffer(content, dtype=key[1]) if content else torch.empty(0, dtype=key[1])
            )
        size, stride = ([axis['as_int'] for axis in meta[axes]] for axes in ('sizes', 'strides'))
        # Strides of 0 repeat numbers. The product of many integers would take hours.
        if not math.prod(map(float, size)) <= len(storages[key]):
            raise ValueError(f'its {one_line(name)} is larger than its record')
        tensors[name] = storages[key].as_strided(size, stride, meta['storage_offset']['as_int'])
    return tensors


class _Graph:
    """A graph of torch.fx that is built from the graph of a file."""

    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._tensors: dict[str, Tensor] = {}
        self._nodes: dict[str, fx.Node] = {}  # by their names in the file

    def module(self) -> fx.GraphModule:
        return fx.GraphModule(self._tensors, self._graph)

    def build(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Sequence[Any]:
        """Add all nodes, and return the sizes of the image as the file has them."""
        graph, signature = content['graph'], content['signature']
        names = [value['as_tensor']['name'] for value in graph['inputs']]
        specs = [pair for spec in signature['input_specs'] for pair in spec.items()]
        (image,) = [name for name, (kind, _) in zip(names, specs, strict=True) if kind == IMAGE]
        self._nodes[image] = self._graph.placeholder('image')
        for name, (kind, spec) in zip(names, specs, strict=True):
            if kind != IMAGE:
                attribute = f'tensor{len(self._tensors)}'
                self._tensors[attribute] = tensors[spec[f'{kind}_name']]
                self._nodes[name] = self._graph.get_attr(attribute)
        for node in graph['nodes']:
            self._add(node)
        if any([*spec] != ['user_output'] for spec in signature['output_specs']):
            raise ValueError('it changes its own weights')
        self._graph.output(tuple(self._nodes[o['as_tensor']['name']] for o in graph['outputs']))
        return graph['tensor_values'][image]['sizes']

    def _add(self, content: Mapping[str, Any]) -> None:
        function = _function(content['target'])
        args, kwargs = [], {}
        schema = getattr(function, '_schema', None)  # of operators
        names = [known.name for known in schema.arguments] if schema else []
        for argument in content['inputs']:
            value, name = self._value(argument['arg']), argument['name']
            if argument['kind'] == POSITIONAL:
                name = next(iter(names[len(args) :]), None)
                args.append(value)
            elif name in names:
                kwargs[name] = value
            else:
                raise ValueError(f'its {one_line(content["target"])} has an unknown argument')
            if value is not None and not isinstance(value, CODED.get(name, object)):
                raise ValueError(f'its {one_line(content["target"])} has an invalid {name}')
        function = GUARDED.get(content['target'], function)
        node = self._graph.call_function(function, tuple(args), kwargs)
        outputs = content['outputs']
        if len(outputs) == 1 and 'as_tensors' not in outputs[0]:
            self._name(outputs[0], node)
            return
        if len(outputs) == 1:
            outputs = [{'as_tensor': tensor} for tensor in outputs[0]['as_tensors']]
        for number, output in enumerate(outputs):
            self._name(output, self._graph.call_function(operator.getitem, (node, number)))

    def _name(self, output: Mapping[str, Any], node: fx.Node) -> None:
        ((kind, content),) = output.items()
        if kind == 'as_tensor':
            self._nodes[content['name']] = node
        elif kind in SYMBOLIC:
            self._nodes[content['as_name']] = node
        elif kind != 'as_none':
            raise UnsafeProgramError(f'an output of the kind {kind}')

    def _value(self, argument: Mapping[str, Any]) -> Any:
        """Return an argument of a node: another node, a number, a text, or a list of them."""
        ((kind, content),) = argument.items()
        match kind:
            case 'as_none':
                return None
            case 'as_tensor':
                return self._nodes[content['name']]
            case 'as_sym_int' | 'as_sym_float' | 'as_sym_bool':
                is_named = 'as_name' in content
                return self._nodes[content['as_name']] if is_named else self._value(content)
            case 'as_int' | 'as_float' | 'as_bool' | 'as_string':
                return PLAIN[kind](content)  # infinity is a text
            case 'as_scalar_type':
                return DTYPES[content]
            case 'as_layout':
                return LAYOUTS[content]
            case 'as_memory_format':
                return MEMORY_FORMATS[content]
            case 'as_device' if content['type'] == 'cpu':
                return torch.device('cpu')
            case 'as_optional_tensors':
                return [self._value(item) for item in content]
            case _ if kind.endswith('s') and isinstance(content, list):
                return [self._value({kind[:-1]: item}) for item in content]
        raise UnsafeProgramError(f'an argument of the kind {kind}')


def _function(name: str) -> Callable:
    """Return an operator or a function by its name in a file."""
    match name.split('.'):
        case 'torch', 'ops', namespace, operator_name, overload:
            allowed = OPERATORS.get(namespace, ())
            if operator_name in allowed or operator_name.removesuffix('_') in allowed:
                function = getattr(getattr(getattr(torch.ops, namespace), operator_name), overload)
                if isinstance(function, torch._ops.OpOverload):
                    return function
        case _ if name in FUNCTIONS:
            return FUNCTIONS[name]
    raise UnsafeProgramError(f'the operator {name}')


def _roi_align(maps: Tensor, regions: Tensor, scale: float, *rest: Any) -> Tensor:
    """Call torchvision's, except where it reads beyond maps: empty ones, and infinite regions."""
    largest = torch.finfo(regions.dtype).max / 4  # for the difference of two to be finite, too
    if 0 in maps.shape or not (regions * scale).abs().le(largest).all():
        raise ValueError('it has empty maps or regions without finite corners')
    return torch.ops.torchvision.roi_align(maps, regions, scale, *rest)


GUARDED = {'torch.ops.torchvision.roi_align.default': _roi_align}


def _axes(sizes: Sequence[Any], ranges: Mapping[str, Any]) -> list[Axis]:
    """Return the axes of the image as the file has them."""
    axes = []
    for size in sizes:
        if 'as_int' in size:
            axes.append((size['as_int'],) * 3)
        else:
            expression = size['as_expr']['expr_str']
            symbol = SYMBOL.fullmatch(expression)
            if not symbol:
                raise UnsafeProgramError(f'the expression {expression}')
            limits = ranges.get(symbol[1], {})
            low, high = limits.get('min_val') or 0, limits.get('max_val')
            is_assumed = low <= ASSUMED_LENGTH
            axes.append((symbol[1], 0 if is_assumed else low, math.inf if high is None else high))
    return axes


def _require_sizes(shape: torch.Size, axes: Sequence[Axis]) -> None:
    lengths: dict[str | int, int] = {}
    if len(shape) != len(axes):
        raise ValueError(f'it has {len(shape)} axes instead of {len(axes)}')
    for number, (length, (name, low, high)) in enumerate(zip(shape, axes, strict=True)):
        if not low <= length <= high:
            raise ValueError(f'its axis {number} has a length of {length}, not of {low} to {high}')
        if lengths.setdefault(name, length) != length:
            raise ValueError(f'its axis {number} differs from another in length')
