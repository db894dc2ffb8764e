"""The stand-ins against what compiled mmcv computes: see helpers/compiled_mmcv.py."""

import torch
from helpers.compiled_mmcv import results

# Copies, comparisons and sums in the same order. The others multiply matrices, by a library that
# may differ, or sum a gradient in another order.
EXACT = ('psa_mask', 'roi_align_max', 'nms_match')


def test_all_cases_equal_those_of_compiled_mmcv(golden):
    computed, expected = results(), golden('compiled_mmcv')
    assert computed.keys() == expected.keys()
    for name, value in computed.items():
        if name.startswith(EXACT) and 'gradient' not in name:
            assert torch.equal(value, expected[name]), name
        else:
            largest = float(expected[name].abs().max())
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6 * largest, msg=name)
