"""A short tour of the family on real numbers: run it with ``make tour``, or ``python examples/tour.py``."""

import torch
from torch import nn

import normkit as nk

N, C, H, W = 2, 6, 4, 5
TEXT = """
    Every norm is the same operation. They differ only in which numbers share one mean. BatchNorm asks for
    page thirty-six of every book on the stack, LayerNorm reads one whole book, InstanceNorm one page of it,
    and GroupNorm a booklet of several pages. Now you can tell them all apart by a pair of brackets.
"""
FAMILY = [  # name, pattern, which characters share a mean, the same as a named layer
    ("BatchNorm", "[n] c [h w]", "page k of every book", nk.BatchNorm2d(C)),
    ("LayerNorm, sample", "n [c h w]", "one whole book", nk.LayerNorm((C, H, W))),
    ("LayerNorm, channel", "n [c] h w", "one place on every page", nk.LayerNorm(C, axis=1)),
    ("LayerNorm, token", "n c h [w]", "one line: a token", nk.LayerNorm(W)),
    ("InstanceNorm", "n c [h w]", "one page", nk.InstanceNorm2d(C)),
    ("GroupNorm", "n (g [c]) [h w]", "a booklet of C/G pages", nk.GroupNorm(3, C)),
    ("RMSNorm", "n c h [w]", "one line, not centred", nk.RMSNorm(W, eps=1e-5)),
]


def main() -> None:
    torch.manual_seed(0)
    worked_example()
    books()
    large_means()
    padding()
    swapping()


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def worked_example() -> None:
    heading("What a norm does")
    x = torch.tensor([5.0, 5, 0, 0, 0, 0, 0, 0])
    y = nk.LayerNorm(8)(x).detach()
    print(f"x             {'  '.join(f'{v:5.0f}' for v in x)}")
    print(f"LayerNorm(x)  {'  '.join(f'{v:5.2f}' for v in y)}")
    print(f"mean {x.mean():.2f}, std {x.std(correction=0):.3f}: subtract the one, divide by the other.")


def books() -> None:
    heading(f"The family: a stack of N={N} books, C={C} pages, H={H} lines, W={W} characters")
    letters = [c for c in TEXT.lower() if c.isalpha()][: N * C * H * W]
    x = torch.tensor([ord(c) - ord("a") + 1.0 for c in letters]).reshape(N, C, H, W)
    first = f"{letters[0]!r} = {x[0, 0, 0, 0]:.0f}"
    print(f"The characters are numbers, a = 1 to z = 26. The first is {first}; it becomes:\n")
    print(f"{'norm':18}  {'pattern':15}  {'what shares one mean':23}  {'means':>8}  {'first':>5}")
    for name, pattern, words, layer in FAMILY:
        sizes = {"g": 3} if "g" in pattern else {}
        norm = nk.Norm(pattern, center=name != "RMSNorm", affine=False, **sizes)
        y = norm(x)
        assert torch.allclose(y, layer(x), atol=1e-5), name
        counts = norm.describe((N, C, H, W)).splitlines()[-1].split()
        means, values = counts[0], next(counts[i + 2] for i, w in enumerate(counts) if w == "each")
        print(f"{name:18}  {pattern:15}  {words:23}  {f'{means} of {values}':>8}  {y[0, 0, 0, 0]:5.2f}")
    print("\nBrackets mark the axes that share one mean. In words:\n")
    print(nk.describe("n (g [c]) [h w]", (N, C, H, W), g=3))


def large_means() -> None:
    heading("Exact: largest error of a float32 LayerNorm against float64")
    print(f"{'mean of the input':>17}  {'torch.nn':>9}  {'normkit':>9}")
    for mean in (0.0, 1e2, 1e4, 1e6):
        x = torch.randn(64, 768) + mean
        truth = nn.functional.layer_norm(x.double(), (768,))
        errors = (
            (f.layer_norm(x, (768,)).double() - truth).abs().max() for f in (nn.functional, nk.functional)
        )
        print(f"{mean:17,.0f}  {'  '.join(f'{e.item():9.1e}' for e in errors)}")


def padding() -> None:
    heading("Padding: how far real tokens move when the batch is padded to twice its length")
    x = torch.randn(8, 10, 16) + 3
    padded = torch.cat([x, torch.zeros(8, 10, 16)], dim=1)
    real = torch.arange(20).expand(8, 20) < 10
    torch_moves = (nn.BatchNorm1d(16)(padded.mT).mT[:, :10] - nn.BatchNorm1d(16)(x.mT).mT).abs().max()
    layer = nk.BatchNorm1d(16, axis=-1)
    our_moves = (layer(padded, mask=real)[:, :10] - layer(x)).abs().max()
    print(f"torch.nn.BatchNorm1d(16)           {torch_moves:.2f}")
    print(f"normkit.BatchNorm1d(16), mask=real {our_moves:.2f}")


def swapping() -> None:
    heading("Swap: our layers in a model that exists")
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, batch_first=True), 6, enable_nested_tensor=False
    )
    x = torch.randn(2, 7, 32)
    model.eval()
    before = model(x)
    print(nk.swap(model))
    print(f"largest change of an output: {(model(x) - before).abs().max():.1e}")


if __name__ == "__main__":
    main()
