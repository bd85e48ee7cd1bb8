"""The group operators refuse what would read or write foreign memory, and may write over their own input."""

import pytest
import torch

from normkit import functional  # registers the operators

assert functional  # its import is what matters

SHAPE = (2, 6, 3, 4)
SIZES = (2, 1, 3, 2, 12)
OPS = torch.ops.normkit


def image():
    torch.manual_seed(0)
    return torch.randn(SHAPE)


def rest(weight=None, bias=None, mask=None, mean=None, var=None):
    return weight, bias, False, mask, mean, var, 1e-5, True


def forward(x, sizes=SIZES, **given):
    return OPS.groups(x, *sizes, *rest(**given))


def into(x, out, sizes=SIZES, **given):
    return OPS.groups_out(x, *sizes, *rest(**given), out)


def backward(dy, x, weight=None, mask=None, stats=None):
    stats = torch.ones(3, 6, dtype=torch.float64) if stats is None else stats
    return OPS.groups_backward(
        dy, x, *SIZES, weight, None, False, mask, stats, False, 1e-5, True, weight is not None, False
    )


def expanded():
    return torch.randn(2, 1, 3, 4).expand(SHAPE)


def strided():
    return torch.randn(2, 6, 3, 8)[..., ::2]


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("make", [expanded, strided])
def test_an_input_that_is_not_one_block_of_memory_is_refused(make):
    with pytest.raises(RuntimeError, match="one block of memory"):
        forward(make())
    with pytest.raises(RuntimeError, match="one block of memory"):
        into(make(), torch.empty(SHAPE))
    with pytest.raises(RuntimeError, match="one block of memory"):
        backward(image(), make())
    with pytest.raises(RuntimeError, match="memory layout"):
        backward(make(), image())
    with pytest.raises(RuntimeError, match="memory layout"):
        into(image(), make())


def test_a_gradient_laid_out_otherwise_is_refused():
    with pytest.raises(RuntimeError, match="memory layout"):
        backward(image().contiguous(memory_format=torch.channels_last), image())


def test_strides_of_axes_of_size_1_are_free():
    x = torch.randn(2, 1, 3, 4).as_strided((2, 1, 3, 4), (12, 777, 4, 1))
    sizes = (2, 1, 1, 1, 12)
    assert torch.equal(forward(x, sizes)[0], forward(x.contiguous(), sizes)[0])
    out = torch.empty(2, 1, 3, 4)
    into(x, out, sizes)
    assert torch.equal(out, forward(x, sizes)[0])


def test_transposed_memory_is_dense():
    x = image().permute(3, 1, 0, 2)
    forward(x, (1, 1, 1, 1, x.numel()))


@pytest.mark.parametrize("name", ["weight", "bias", "mask", "mean", "var"])
def test_an_out_that_shares_memory_with_a_parameter_is_refused(name):
    block = torch.zeros(2 * 6 * 3 * 4)
    out = block.view(SHAPE)
    values = {"weight": block[:6], "bias": block[-6:], "mean": block[3:6], "var": block[140:143]}
    given = {name: values[name]} if name in values else {}
    if name in ("mean", "var"):
        given = {"mean": torch.zeros(3), "var": torch.ones(3)} | given
    if name == "mask":
        given["mask"] = block.view(torch.bool)[:24]
    with pytest.raises(RuntimeError, match="shares memory"):
        into(image(), out, **given)


def test_an_out_that_overlaps_the_input_in_part_is_refused():
    block = torch.randn(3, 6, 3, 4)
    with pytest.raises(RuntimeError, match="shares memory"):
        into(block[:2], block[1:])
    into(block[:2], torch.empty(4, 6, 3, 4)[2:])  # another block is fine


PLACES = {  # spans with and without a whole register, columns that fill registers or do not
    "group": (2, 1, 5, 9, 49),
    "instance": (90, 1, 1, 1, 49),
    "batch": (1, 2, 45, 1, 49),
    "long": (2, 1, 1, 1, 45 * 49),
    "short": (2, 1, 315, 1, 7),
    "columns": (2, 49, 45, 1, 1),
    "grouped columns": (2, 49, 5, 9, 1),
    "few columns": (2, 735, 3, 1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PLACES)
def test_writing_over_the_input_gives_the_same_bits(name, masked, dtype):
    torch.manual_seed(0)
    sizes = PLACES[name]
    k0, r1, k2, r3, i = sizes
    x = torch.randn(k0 * r1 * k2 * r3 * i).to(dtype)
    x[3] = 3e30 if dtype in (torch.float32, torch.bfloat16) else 3
    given = {"weight": torch.rand(k2 * r3), "bias": torch.rand(k2 * r3)}
    if masked:
        given["mask"] = torch.rand(k0 * r1 * i) > 0.3
    expected, stats = forward(x, sizes, **given)
    assert torch.equal(into(x, x, sizes, **given), stats)
    assert torch.equal(x, expected)


def test_freed_storage_is_refused_in_every_argument():
    weight, stats = torch.rand(6), torch.ones(3, 6, dtype=torch.float64)
    calls = [
        lambda: forward(freed(image())),
        lambda: forward(image(), weight=freed(torch.rand(6))),
        lambda: forward(image(), bias=freed(torch.rand(6))),
        lambda: forward(image(), mask=freed(torch.ones(24) > 0)),
        lambda: forward(image(), mean=freed(torch.rand(3)), var=torch.ones(3)),
        lambda: forward(image(), mean=torch.rand(3), var=freed(torch.ones(3))),
        lambda: into(image(), freed(torch.empty(SHAPE))),
        lambda: backward(freed(image()), image()),
        lambda: backward(image(), freed(image())),
        lambda: backward(image(), image(), weight=freed(torch.rand(6))),
        lambda: backward(image(), image(), weight=weight, mask=freed(torch.ones(24) > 0)),
        lambda: backward(image(), image(), stats=freed(stats)),
        lambda: OPS.update_running(freed(torch.zeros(6)), torch.ones(6), torch.ones(3, 6).double(), 0.1),
        lambda: OPS.update_running(torch.zeros(6), freed(torch.ones(6)), torch.ones(3, 6).double(), 0.1),
        lambda: OPS.update_running(torch.zeros(6), torch.ones(6), freed(torch.ones(3, 6).double()), 0.1),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="freed"):
            call()


def test_a_refused_call_leaves_its_arguments_free():
    """A handle that is not read off the stack is never given back, and its memory neither."""
    x, out = image(), torch.empty(SHAPE)
    assert out._use_count() == 1
    for _ in range(5):
        with pytest.raises(RuntimeError):
            into(x, out, (2, 1, 3, 2, 13))
        with pytest.raises(RuntimeError):
            into(x, out, weight=torch.rand(7))
        with pytest.raises(RuntimeError):
            backward(out, x, weight=torch.rand(7))
    assert out._use_count() == 1
