"""The notebook runs from top to bottom, and pictures come out."""

import base64
import io

import nbformat
import pytest
from helpers import ROOT, TIMEOUT
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient
from PIL import Image

NOTEBOOK = ROOT / 'notebooks' / 'xcit_mm.ipynb'


@pytest.mark.slow
def test_the_notebook_draws_and_prints_data_maps_losses_times_and_predictions(
    tmp_path, monkeypatch
):
    """With fewer iterations, by the interpreter of the tests."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (settings,) = (c for c in notebook.cells if 'parameters' in c.metadata.get('tags', ()))
    settings.source += '\nIMAGES = 24\nITERATIONS = 6\nSIDES = 64, 128'
    write_kernel_spec(tmp_path / 'kernels' / 'tested')
    monkeypatch.setenv('JUPYTER_PATH', str(tmp_path))
    resources = {'metadata': {'path': str(NOTEBOOK.parent)}}
    options = dict(kernel_name='tested', resources=resources, timeout=TIMEOUT)
    NotebookClient(notebook, **options).execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == 'code'}
    for name in ('show', 'curve', 'prediction'):
        (data,) = (o.data['image/jpeg'] for o in outputs[name] if 'image/jpeg' in o.data)
        low, high = Image.open(io.BytesIO(base64.b64decode(data))).convert('L').getextrema()
        assert low < 128 < high, name
    printed = {name: ''.join(o.get('text', '') for o in outputs[name]) for name in outputs}
    maps = '(4, 128, 40, 40)\n(4, 128, 20, 20)\n(4, 128, 10, 10)\n(4, 128, 5, 5)\n'
    assert printed['maps'] == maps
    assert printed['timing'].count('ns a pixel') == 2
    assert '160, 160)' in printed['arrays']
    assert not [o for cell in outputs.values() for o in cell if o.get('name') == 'stderr']


def test_the_stored_notebook_has_the_outputs_of_one_run_or_none():
    code = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == 'code']
    counts = [cell.execution_count for cell in code]
    assert counts in ([None] * len(code), list(range(1, len(code) + 1)))
    assert 'error' not in {output.output_type for cell in code for output in cell.outputs}
