"""Series in files of every kind, and short runs on them, for the tests of the task series."""

import pandas as pd
import torch

from normkit.lab.plan import make_plan

ROWS = 900
SMALL = {"length": 16, "horizon": 4, "patch": 4}


def frame(rows=ROWS):
    t = torch.arange(rows).double()
    noise = torch.randn(2, rows, generator=torch.Generator().manual_seed(0)).double()
    dates = pd.date_range("2021-03-01", periods=rows, freq="h")
    x, y = (t / 4).sin() + 0.1 * noise[0], 50 + 3 * (t / 7).cos() + 0.3 * noise[1]
    return pd.DataFrame({"date": dates, "x": x.numpy(), "y": y.numpy()})


def days(rows=400, start="2020-01-01"):
    return pd.Series(pd.date_range(start, periods=rows, freq="D"))


def in_truth(times, **columns):
    """A table in time order, of which ``truth`` says the order."""
    truth = [k + 0.5 for k in range(len(times))]
    return pd.DataFrame({"when": times, "truth": truth, **columns})


def write(folder, table=None, name="data.csv", **how):
    """A file with a table, a text or bytes in it, as a path."""
    path = folder / name
    if isinstance(table, str):
        path.write_text(table)
    elif isinstance(table, bytes):
        path.write_bytes(table)
    elif name.endswith("parquet"):
        (frame() if table is None else table).to_parquet(path)
    else:
        (frame() if table is None else table).to_csv(path, index=False, **how)
    return str(path)


def one_run(task="series", steps=40, **settings):
    fields = settings.pop("set", {})
    given = {"norm": "layer", "placement": "pre", "lr": 2e-3, "depth": 1, "width": 32, "seeds": 1}
    return make_plan({"task": task, "set": fields, "steps": steps, **given, **settings}).runs[0]
