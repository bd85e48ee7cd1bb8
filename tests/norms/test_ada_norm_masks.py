"""AdaNorm with a mask: handed on to a norm that takes one, refused where padding would be mixed in."""

import pytest
import torch
from torch import nn

import normkit as nk

X, COND = torch.randn(2, 6, 5), torch.randn(2, 3)
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
MIXING = {
    "GroupNorm": lambda: nn.GroupNorm(2, 6, affine=False),
    "BatchNorm1d": lambda: nn.BatchNorm1d(6, affine=False),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(6),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_norm_of_torch_that_would_mix_in_padding_is_refused(name):
    ada = nk.AdaNorm(MIXING[name](), 6, 3, axis=1)
    with pytest.raises(nk.NormkitError) as error:
        ada(X, COND, mask=MASK)
    assert f"its norm, {name}, takes none" in str(error.value)
    assert "use normkit's norm of that name" in str(error.value)
    assert ada(X, COND).shape == X.shape


@pytest.mark.parametrize("norm", [nk.GroupNorm(2, 6, affine=False), nk.InstanceNorm1d(6)])
def test_a_norm_of_ours_gets_the_mask(norm):
    ada = nk.AdaNorm(norm, 6, 3, axis=1)
    torch.testing.assert_close(ada(X, COND, mask=MASK), norm(X, mask=MASK))


def test_a_norm_of_every_position_needs_no_mask():
    tokens = torch.randn(2, 5, 6)
    ada = nk.AdaNorm(nn.LayerNorm(6, elementwise_affine=False), 6, 3)
    y = ada(tokens, COND, mask=MASK)
    assert not y[~MASK].any()
    torch.testing.assert_close(y[MASK], ada(tokens, COND)[MASK])
