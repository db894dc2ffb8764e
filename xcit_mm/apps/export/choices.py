"""The choices of the user. Nothing is imported, because ``tools/export.py --help`` runs it."""

FORMATS = ('onnx', 'openvino', 'torch', 'aotinductor')  # each is a file in formats/
PRECISIONS = ('float32', 'float16', 'int8')
PARTS = ('model', 'backbone')
