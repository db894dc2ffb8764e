"""Predictions for the tasks of Label Studio, in the protocol of its machine-learning back ends.

https://github.com/HumanSignal/label-studio-ml-backend defines the protocol.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from ...base.errors import UserError, printable, reason
from ...base.files import parse_xml
from ...base.http import AUTHORIZATION, read_url
from ...predict.model import Model, Prediction
from ...predict.results import Segmentation
from ...predict.results.segmentation import INSTANCE_OFFSET
from ...predict.sources import decode_rgb, read_image
from .labelstudio import TAGS, Control, described
from .objects import AnnotatedObject, smallest_window

MAX_TOKEN = 2**16  # bytes of the answer with a token
JWT_PARTS = 3  # of a personal access token, separated by periods; a legacy token has no period


class Labeling(NamedTuple):
    """What a labeling configuration asks for: the name of the image in tasks, and the controls."""

    image: str
    controls: list[Control]


class Backend:
    """A model that answers Label Studio.

    Args:
        model: The detector or segmentor.
        version: Its name in Label Studio.
        url: The address of Label Studio, from which alone images are read.
        token: An access token of Label Studio. It is sent to this address only.
        score_thr: The lowest score of objects.
    """

    def __init__(self, model: Model, version: str, url: str, token: str, score_thr: float) -> None:
        self._model, self._version, self._score_thr = model, version, score_thr
        self._url, self._token = url.rstrip('/'), token

    def setup(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Check the labeling configuration of a project. The token of the request is not used."""
        controls = parse_labeling(request['schema']).controls
        offered = frozenset().union(*(control.labels for control in controls))
        missing = [name for name in self._model.classes if name not in offered]
        if missing:
            say(
                f'the labeling configuration has no label {" or ".join(missing)}: objects of '
                f'{"this class" if len(missing) == 1 else "these classes"} are left out until you '
                'add it'
            )
        return dict(model_version=self._version)

    def predict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Predict tasks. A task that fails has no result, and the console says why.

        Raises:
            UserError: If the labeling configuration cannot be used.
        """
        labeling = parse_labeling(request['label_config'])
        headers = {AUTHORIZATION: self._credentials()}
        results = [self._predicted(task, labeling, headers) for task in request['tasks']]
        return dict(results=results, model_version=self._version)

    def _predicted(
        self, task: dict, labeling: Labeling, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        objects: list[AnnotatedObject] = []
        try:
            address = task['data'][labeling.image]
            bands = self._model.bands
            decode = decode_rgb if bands is None else bands.decode
            image = read_image(self._address(address), decode, headers)
            objects = objects_of(self._model.predict(image), self._score_thr)
        except Exception as error:  # the other tasks keep their results
            say(f'task {task.get("id")}: {reason(error)}')
        return described(objects, labeling.controls, self._version)

    def _address(self, text: str) -> str:
        """Return the address of an image on the server of Label Studio."""
        url = f'{self._url}{text}' if text.startswith('/') else text
        if not url.startswith(f'{self._url}/'):
            raise UserError(
                f'{text} is not on {self._url}, from where alone images are read: upload the '
                'image, or add its folder as local storage of Label Studio'
            )
        return url

    def _credentials(self) -> str:
        """Return the header for the token, after the exchange of a personal access token."""
        if self._token.count('.') != JWT_PARTS - 1:
            return f'Token {self._token}'
        sent = json.dumps(dict(refresh=self._token)).encode()
        headers = {'Content-Type': 'application/json'}
        answer = read_url(f'{self._url}/api/token/refresh', MAX_TOKEN, headers, sent)
        return f'Bearer {json.loads(answer)["access"]}'


def say(sentence: str) -> None:
    """Print a sentence to the console, because Label Studio shows little of what goes wrong."""
    print(printable(sentence), file=sys.stderr, flush=True)


def parse_labeling(text: Any) -> Labeling:
    """Read a labeling configuration, or raise a UserError if the model cannot label with it."""
    try:
        root = parse_xml(text.encode())
    except (AttributeError, ElementTree.ParseError, LookupError, ValueError) as error:
        raise UserError(f'the labeling configuration is invalid ({reason(error)})') from None
    images = {image.get('name'): image.get('value', '') for image in root.iter('Image')}
    controls = [
        Control(kind, element.get('name', ''), element.get('toName', ''), _labels(element))
        for kind, tag in TAGS.items()
        for element in root.iter(tag)
    ]
    names = [control.to_name for control in controls if control.to_name in images]
    if not names:
        raise UserError(
            'the labeling configuration has no '
            f'{" or ".join(TAGS.values())} for an Image: add one of them'
        )
    controls = [control for control in controls if control.to_name == names[0]]
    return Labeling(images[names[0]].removeprefix('$'), controls)


def _labels(element: ElementTree.Element) -> frozenset[str]:
    return frozenset(label.get('value', '') for label in element.iter('Label'))


def objects_of(prediction: Prediction, score_thr: float) -> list[AnnotatedObject]:
    """Return the objects of a detection, or the regions of a segmentation as objects."""
    size = prediction.image.shape[1::-1]
    if isinstance(prediction, Segmentation):
        return [_region(name, mask, size) for name, mask in _masks(prediction)]
    detections = prediction.above(score_thr)
    masks = [None] * len(detections) if detections.masks is None else detections.masks
    return [
        AnnotatedObject(
            detections.classes[label],
            box.tolist(),
            mask if mask is not None and mask.any() else None,
            size,
            float(score),
        )
        for label, box, mask, score in zip(
            detections.labels, detections.boxes, masks, detections.scores, strict=True
        )
    ]


def _masks(prediction: Segmentation) -> list[tuple[str, np.ndarray]]:
    """Return the class and the mask of each segment, or of each class in the image."""
    if prediction.segments is None:
        shown = [(label, prediction.labels == label) for label in prediction.shares()]
    else:
        values = np.unique(prediction.segments)
        shown = [(value % INSTANCE_OFFSET, prediction.segments == value) for value in values]
    classes = prediction.classes
    return [(classes[label], mask) for label, mask in shown if label < len(classes)]


def _region(name: str, mask: np.ndarray, size: tuple[int, int]) -> AnnotatedObject:
    rows, columns = smallest_window(mask)
    return AnnotatedObject(name, (columns.start, rows.start, columns.stop, rows.stop), mask, size)
