"""Calls of every operator, right in every detail."""

import torch

X, W, B = torch.randn(5, 8), torch.rand(8), torch.randn(8)
IMAGE, C = torch.randn(2, 6, 3, 4), torch.rand(6)
ROWS = (W, B, 1, 1e-5, 1)
GROUPS = (2, 1, 3, 2, 12, C, C, False, None, None, None, 1e-5, True)
BATCH = (1, 2, 6, 1, 12, C, C, False, torch.rand(2, 12) > 0.3, None, None, 1e-5, True)


def calls(stats):
    """By the names of the operators; ``stats`` are those of 6 groups, as a backend keeps them."""
    parameters = (C, C.bfloat16(), False, None)
    return {
        "rows": [(X, *ROWS), (X.bfloat16(), W, None, 1, 1e-5, 0), (X[:, None].expand(5, 3, 8), *ROWS)],
        "rows_train": [(X, *ROWS), (X.double(), None, None, 1, 1e-5, 0)],
        "rows_out": [(X, *ROWS, torch.empty(5, 8))],
        "rows_add": [(X, X, *ROWS), (X.half(), X, *ROWS)],
        "rows_add_train": [(X, X, *ROWS), (X.bfloat16(), X, *ROWS)],
        "rows_add_out": [(X, X, *ROWS, torch.empty(5, 8), torch.empty(5, 8))],
        "rows_backward": [
            (X, X, W, W.half(), torch.ones(2, 5), None, 1, 1e-5, 1, True, True, True),
            (X, X, None, None, torch.ones(2, 5), X, 1, 1e-5, 0, True, False, False),
            (X, X, W, None, torch.ones(2, 5), None, 1, 1e-5, 1, False, True, False),
        ],
        "groups": [
            (IMAGE, *GROUPS),
            (IMAGE, *BATCH),
            (IMAGE.contiguous(memory_format=torch.channels_last), 2, 12, 6, *(1, 1), *GROUPS[5:]),
            (IMAGE, 1, 2, 6, 1, 12, C, C, False, None, torch.zeros(6), torch.ones(6), 1e-5, True),
        ],
        "groups_out": [(IMAGE, *GROUPS, torch.empty_like(IMAGE))],
        "groups_backward": [
            (IMAGE, IMAGE, 2, 1, 3, 2, 12, *parameters, stats, False, 1e-5, True, True, True),
            (IMAGE, IMAGE, 1, 2, 6, 1, 12, *parameters, stats, True, 1e-5, True, False, True),
        ],
        "linear": [
            (X, torch.rand(3, 8), torch.rand(3)),
            (X.bfloat16()[None], torch.rand(3, 8).bfloat16(), None),
        ],
        "update_running": [(torch.zeros(6), torch.ones(6), stats, 0.1)],
    }
