"""Predictions that replay graphs, with a stand-in that computes again on a CPU."""

import numpy as np
import pytest
from helpers.graph_stand_in import on_cpu
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights

from xcit_mm import load_model


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_predictions_of_sizes_that_come_again_equal_those_without_graphs(
    tmp_path, monkeypatch, config
):
    on_cpu(monkeypatch)
    checkpoint = save_random_weights(config, tmp_path / 'random.pth')
    random = np.random.default_rng(0)
    images = [random.integers(0, 255, (*size, 3), np.uint8) for size in ((96, 96), (64, 128))]
    plain, graphs = (load_model(config, checkpoint, graphs=graphs) for graphs in (False, True))
    for image in images * 2:
        expected, found = plain.predict(image), graphs.predict(image)
        for name in ('boxes', 'scores', 'labels', 'masks'):
            if hasattr(expected, name):
                assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    parts = (graphs._fused._copy.extract_feat,)
    assert [(part.replays, part.num_sizes) for part in parts] == [(2, 2)]
