"""Writes docs/placements.md and its figures from the table of placements: python docs/placements.py"""

from __future__ import annotations

from pathlib import Path

from normkit.placement import PLACEMENTS, Placement, draw

HERE = Path(__file__).parent
HEAD = """# Where the norm goes

Written from the table in src/normkit/placement/table.py by `python docs/placements.py`.

One formula covers them all; a part that a placement does not name is left out:

    x <- post( skip · x + gate · out( F( scale · pre(x) ) ) )

In the figures the stream x runs along the top, past the sublayer F; yellow boxes are norms, white ones
multiply. L is the number of layers, l the layer, from 1; α and γ are learned, one number or one a feature.

```python
import torch, normkit as nk

nk.LanguageModel(vocab=256, placement="peri")                                  # by name
nk.LanguageModel(vocab=256, placement=nk.Placement(pre=True, out=True))        # as a value
nk.LanguageModel(vocab=256, placement=lambda layer, depth, kind: nk.Placement(pre=layer > 2, post=layer <= 2))
nk.Residual(torch.nn.Linear(64, 64), 64, "deepnorm", norm="rms", layer=3, depth=12)  # in your own network
nk.placement.draw("deepnorm").save("deepnorm.svg")                             # or shown in a notebook
```

Any norm goes into any place: `norm="layer"`, `"rms"`, `"batch"` (padding masked), `"power"`, `"scale"`,
`"dyt"`, `"none"`, or anything that builds a module from `dim`. QK-norm (`qk_norm=True`) and the parallel
block (`parallel=True`) are options of the model, and go with every placement.

**BatchNorm in training leaks the future**: its statistics go across tokens, so a later token changes what
an earlier one sees. Every other norm keeps a language model causal, and so does BatchNorm in evaluation.

"""
TAIL = """
## What was measured

At initialisation, over 2 to 32 layers, three seeds (tests/placement/test_theory.py): the gradient of one
token's loss in the last feed-forward falls with depth in Pre-LN (log-log slope -0.6) and does not in
Post-LN (0.0), as Xiong et al. say. (For a loss averaged over tokens it rises in Post-LN, by 0.2 to 0.4:
deep down, tokens become alike.) Shaking every weight a little moves the output of Post-LN more the deeper
it is (slope above 0.8), that of Pre-LN hardly (below 0.5), that of DeepNorm less and less (below 0).

48 layers, dim 64, no warm-up, 50 steps of AdamW at learning rates 1e-3, 3e-3 and 1e-2 on the standard
library's source: none gives a NaN, and none learns more than the entropy of single bytes (3.13 nats), which
says nothing about who trains. The study depth-rescue asks that, with 2,000 steps of 6 to 48 layers. One small
step of gradient descent moves the output at 32 layers by 0.4 in Post-LN, 0.07 in Pre-LN, 0.03 in DeepNorm.

Two notes on sources. Keel's skip of 2L, the number of sublayers, is taken from a summary of the paper, not
from its code. HybridNorm's last sum has no norm of its own; a final one is added here.
"""


def main() -> None:
    figures = HERE / "placements"
    figures.mkdir(exist_ok=True)
    parts = [HEAD]
    for name, row in PLACEMENTS.items():
        draw(name, layer=1 if name != "mix" else 12).save(figures / f"{name}.svg")
        used = f" Used by {', '.join(row.models)}." if row.models else ""
        varies = "" if isinstance(row.rule, Placement) else " The figure shows attention in the last layer."
        parts.append(f"## {name}: {row.title}\n\n    {str(row).replace(' | ', chr(10) + '    ')}\n")
        parts.append(f"![{name}](placements/{name}.svg)\n\n{row.source}.{used}{varies}\n")
    (HERE / "placements.md").write_text("\n".join(parts) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
