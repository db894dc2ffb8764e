"""The back end that Label Studio asks for predictions."""

import json
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

import numpy as np
import pytest
from helpers.file_server import FileServer, serving
from helpers.in_process import call_tool
from helpers.random_weights import DETECTOR

from xcit_mm import UserError
from xcit_mm.apps.annotation_tools import server as server_module
from xcit_mm.apps.annotation_tools.backend import Backend, objects_of, parse_labeling
from xcit_mm.apps.annotation_tools.server import served
from xcit_mm.data.importers import brush_rle
from xcit_mm.predict.results import Segmentation

TOKEN = '0123456789abcdef'
CLASSES = 'circle', 'square', 'triangle'
UPLOADED = '/data/upload/1/a.jpg'


def labeling(*tags: str, labels: tuple[str, ...] = CLASSES) -> str:
    listed = ''.join(f'<Label value="{name}"/>' for name in labels)
    controls = ''.join(f'<{tag} name="{tag}" toName="picture">{listed}</{tag}>' for tag in tags)
    return f'<View><Image name="picture" value="$photo"/>{controls}</View>'


@pytest.fixture
def studio(shapes_root) -> Iterator[FileServer]:
    """Label Studio with an uploaded image."""
    with serving() as server:
        image = min((shapes_root / 'coco/val2017').iterdir())
        server.files[UPLOADED] = image.read_bytes()
        yield server


@pytest.fixture
def backend(studio, detector) -> Callable[..., Backend]:
    def make(model=detector, token: str = TOKEN) -> Backend:
        return Backend(model, 'a model', studio.url('/'), token, 0.3)

    return make


@pytest.fixture
def expected(shapes_root, detector):
    found = detector.predict(min((shapes_root / 'coco/val2017').iterdir())).above(0.3)
    assert len(found)
    return found


def asked(backend: Backend, config: str, address: object = UPLOADED) -> list[dict]:
    """Return the result for one task."""
    task = dict(id=5, data=dict(photo=address))
    answer = backend.predict(dict(tasks=[task], label_config=config))
    (prediction,) = answer['results']
    assert prediction['model_version'] == answer['model_version'] == 'a model'
    return prediction['result']


def test_boxes_are_returned_with_scores_in_percent_of_the_image(studio, backend, expected):
    result = asked(backend(), labeling('RectangleLabels'))
    assert len(result) == len(expected)
    height, width = expected.image.shape[:2]
    for region, box, score, label in zip(
        result, expected.boxes, expected.scores, expected.labels, strict=True
    ):
        value = region['value']
        x, y = value['x'] * width / 100, value['y'] * height / 100
        right, bottom = x + value['width'] * width / 100, y + value['height'] * height / 100
        assert [x, y, right, bottom] == pytest.approx(box.tolist(), abs=1e-3)
        assert region['score'] == pytest.approx(score)
        assert value['rectanglelabels'] == [CLASSES[label]]
        names = region['type'], region['from_name'], region['to_name']
        assert names == ('rectanglelabels', 'RectangleLabels', 'picture')
        assert (region['original_width'], region['original_height']) == (width, height)
    assert len({region['id'] for region in result}) == len(result)
    assert studio.tokens == [f'Token {TOKEN}']


def test_masks_are_brushes_if_the_project_has_them_and_polygons_otherwise(backend, expected):
    model = backend()
    height, width = expected.image.shape[:2]
    every = 'RectangleLabels', 'PolygonLabels', 'BrushLabels'
    brushes = asked(model, labeling(*every))
    shown = [mask for mask in expected.masks if mask.any()]
    assert [r['type'] for r in brushes].count('brushlabels') == len(shown) > 0
    found = [r['value']['rle'] for r in brushes if r['type'] == 'brushlabels']
    for rle, mask in zip(found, shown, strict=True):
        np.testing.assert_array_equal(brush_rle.decode(rle, (height, width)), mask)
    polygons = asked(model, labeling(*every[:2]))
    kinds = {region['type'] for region in polygons}
    assert 'polygonlabels' in kinds and 'brushlabels' not in kinds
    assert all(0 <= x <= 100 for r in polygons for x in np.ravel(r['value'].get('points', 0)))


def test_classes_without_a_label_are_named_and_left_out(backend, expected, capsys):
    model = backend()
    config = labeling('RectangleLabels', labels=('circle', 'hexagon'))
    assert model.setup(dict(schema=config, access_token='x', hostname='http://elsewhere')) == dict(
        model_version='a model'
    )
    said = capsys.readouterr().err
    assert 'the labeling configuration has no label square or triangle: objects' in said
    assert len(asked(model, config)) == (expected.labels == 0).sum()


def test_a_segmentation_has_a_brush_for_each_class_or_segment(backend, segmentor):
    result = asked(backend(segmentor), labeling('BrushLabels', labels=segmentor.classes))
    names = [region['value']['brushlabels'][0] for region in result]
    assert names and set(names) <= {*segmentor.classes} and len(names) == len({*names})
    labels = np.array([[0, 1], [2, 2]], np.uint8)
    segments = np.array([[1000, 1], [2, 2]], np.int32)
    image = np.zeros((2, 2, 3), np.uint8)
    panoptic = Segmentation(image, labels, ('a', 'b'), ((0, 0, 0),) * 2, segments)
    found = objects_of(panoptic, 0)
    assert [(item.name, item.box) for item in found] == [('b', (1, 0, 2, 1)), ('a', (0, 0, 1, 1))]


def test_a_personal_access_token_is_exchanged_first(studio, backend):
    studio.files['/api/token/refresh'] = b'{"access": "short-lived"}'
    assert asked(backend(token='a.b.c'), labeling('RectangleLabels'))
    assert json.loads(studio.bodies[0]) == dict(refresh='a.b.c')
    assert studio.tokens == [None, 'Bearer short-lived']


@pytest.mark.parametrize(
    ('address', 'message'),
    [
        (
            'http://169.254.169.254/latest',
            'http://169.254.169.254/latest is not on http://127.0.0.',
        ),
        ('file:///etc/passwd', 'file:///etc/passwd is not on'),
        ('/etc/passwd', '/etc/passwd: the server answers 404'),
        ('/data/elsewhere', 'another server must not get the token'),
        ('/data/secret', 'the server answers 401 .*; check the token'),
    ],
)
def test_an_image_that_cannot_be_read_has_no_result(studio, backend, capsys, address, message):
    with serving() as elsewhere:
        studio.redirects['/data/elsewhere'] = elsewhere.url('/a')
        if address == '/data/secret':
            studio.errors.append(401)
        assert asked(backend(), labeling('RectangleLabels'), address) == []
        assert elsewhere.requests == []
    said = capsys.readouterr().err
    assert said.startswith('task 5: ') and TOKEN not in said
    assert re.search(message, said)


@pytest.mark.parametrize('end', ['\n', 'ü'])
def test_a_token_that_cannot_be_sent_is_not_printed(backend, capsys, end):
    assert asked(backend(token=TOKEN + end), labeling('RectangleLabels')) == []
    said = capsys.readouterr().err
    assert 'the token has a character that tokens cannot have' in said and TOKEN not in said


def test_a_task_that_fails_leaves_the_others_their_results(
    backend, detector, expected, monkeypatch, capsys
):
    predict, images = detector.predict, []

    def fail_first(image):
        images.append(image)
        if len(images) == 1:
            raise RuntimeError('out of memory')
        return predict(image)

    monkeypatch.setattr(detector, 'predict', fail_first)
    tasks = [dict(id=i, data=dict(photo=UPLOADED)) for i in (1, 2)]
    answer = backend().predict(dict(tasks=tasks, label_config=labeling('RectangleLabels')))
    assert [len(result['result']) for result in answer['results']] == [0, len(expected)]
    assert capsys.readouterr().err == 'task 1: RuntimeError: out of memory\n'


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ('<View>', 'the labeling configuration is invalid'),
        ('<!DOCTYPE a [<!ENTITY a "a">]><a/>', 'XML entities'),
        ('<View><Image name="a" value="$b"/></View>', 'has no BrushLabels or PolygonLabels or Rec'),
        ('<View><BrushLabels name="a" toName="b"/></View>', 'for an Image: add one of them'),
    ],
)
def test_a_labeling_configuration_that_the_model_cannot_use_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        parse_labeling(config)


@pytest.fixture
def request_of(backend) -> Iterator[Callable[..., tuple[int, dict]]]:
    with served(backend(), '127.0.0.1', 0) as address:

        def request(method: str, path: str, body: object = None, **headers: str):
            connection = HTTPConnection(address.removeprefix('http://'), timeout=600)
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

        yield request


def test_the_server_speaks_the_protocol(request_of, expected):
    assert request_of('GET', '/health') == (200, dict(status='UP', model_class='xcit_mm'))
    config = labeling('RectangleLabels')
    assert request_of('POST', '/setup', dict(schema=config)) == (200, {'model_version': 'a model'})
    tasks = [dict(id=i, data=dict(photo=UPLOADED)) for i in (1, 2)]
    code, answer = request_of('POST', '/predict', dict(tasks=tasks, label_config=config))
    assert code == 200
    assert [len(p['result']) for p in answer['results']] == [len(expected)] * 2
    code, answer = request_of('POST', '/setup?project=1', dict(schema=config))
    assert (code, request_of('GET', '/health?a=b')[0]) == (200, 200)
    assert request_of('POST', '/webhook', dict(action='ANNOTATION_CREATED')) == (201, {})


def test_requests_that_cannot_be_answered_end_with_a_sentence(request_of, monkeypatch, capsys):
    monkeypatch.setattr(server_module, 'MAX_BODY', 1000)
    for path, body, message in (
        ('/predict', b'{', 'JSONDecodeError: Expecting'),
        ('/predict', {}, "KeyError: 'label_config'"),
        ('/setup', dict(schema='<View/>'), 'the labeling configuration has no'),
    ):
        code, content = request_of('POST', path, body)
        assert code == 400 and message in content['error'], (path, content)
        assert capsys.readouterr().err == f'{path}: {content["error"]}\n'
    for length in ('2000', '9' * 5000):
        assert request_of('POST', '/setup', b'', **{'Content-Length': length})[0] == 413


def test_a_page_of_another_server_is_not_answered(request_of, studio):
    """It would use the token from the browser of the person who serves the model."""
    tasks = [dict(id=1, data=dict(photo=UPLOADED))]
    request = dict(tasks=tasks, label_config=labeling('RectangleLabels'))
    assert request_of('POST', '/predict', request, Origin='http://elsewhere')[0] == 403
    assert studio.requests == []


def test_the_tool_needs_a_token_and_a_free_port(monkeypatch, capfd, weights, studio):
    typed = 'label_studio.py', DETECTOR, weights[DETECTOR], '--device', 'cpu'
    monkeypatch.delenv('LABEL_STUDIO_API_KEY', raising=False)
    code, _, error = call_tool(monkeypatch, capfd, *typed)
    assert code == 2 and 'set LABEL_STUDIO_API_KEY to an access token' in error
    monkeypatch.setenv('LABEL_STUDIO_API_KEY', TOKEN)
    code, _, error = call_tool(monkeypatch, capfd, *typed, '--port', studio.server_port)
    assert code == 2 and f'port {studio.server_port} (' in error
