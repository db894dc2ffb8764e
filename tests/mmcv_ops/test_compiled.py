"""The stand-ins against what compiled mmcv computes: see helpers/compiled_mmcv.py."""

import torch
from helpers.compiled_mmcv import results


def test_all_cases_equal_those_of_compiled_mmcv(golden):
    computed, expected = results(), golden('compiled_mmcv')
    assert computed.keys() == expected.keys()
    for name, value in computed.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)
