"""Tables for the task series: however they are written they are read, or the mistake is named."""

import gzip
import math
import os
import re
import sys
from functools import partial

import pandas as pd
import pytest
import torch
from lab.series_files import ROWS, SMALL, days, frame, in_truth, one_run, write

from normkit.errors import NormkitError
from normkit.lab.task import find
from normkit.lab.tasks.series_data.panel import read_panel
from normkit.lab.training import Training


@pytest.fixture
def written(tmp_path):
    return partial(write, tmp_path)


def panel(path, columns=None, label=None, group=None):
    return read_panel(path, columns, label, group)


def numbered_with_a_gap(table):
    """As if rows had been left out before it was saved."""
    return table.set_axis([*range(600), *range(650, 50 + len(table))])


SAME = {
    "parquet": ({"name": "data.parquet"}, lambda t: t),
    "parquet, dates as index": ({"name": "data.parquet"}, lambda t: t.set_index("date")),
    "semicolons and decimal commas": ({"sep": ";", "decimal": ","}, lambda t: t),
    "tabs": ({"sep": "\t"}, lambda t: t),
    "newest first": ({}, lambda t: t.iloc[::-1]),
    "shuffled": ({}, lambda t: t.sample(frac=1, random_state=0)),
    "days first": ({}, lambda t: t[::-1].assign(date=t["date"].dt.strftime("%d/%m/%Y %H:%M"))),
    "seconds": ({}, lambda t: t.assign(date=t["date"].astype("int64"))),
    "row numbers": ({}, lambda t: t.reset_index()),
    "parquet, index without a name": ({"name": "data.parquet"}, lambda t: numbered_with_a_gap(t)),
    "row numbers without a name": ({}, lambda t: numbered_with_a_gap(t).reset_index(names="Unnamed: 0")),
    "a column of text": ({}, lambda t: t.assign(place="here")),
    "a constant": ({}, lambda t: t.assign(one=1.0)),
    "an empty column": ({}, lambda t: t.assign(none=float("nan"))),
    "latin letters": ({"encoding": "latin-1"}, lambda t: t.assign(place="Köln")),
    "a mark at the start": ({"encoding": "utf-8-sig"}, lambda t: t),
    "starts to change late": ({}, lambda t: t.assign(z=(t.index > 700) * t["x"])),
}


@pytest.mark.parametrize("kind", SAME)
def test_a_table_is_read_however_it_is_written(kind, written):
    how, change = SAME[kind]
    found, plain = panel(written(change(frame()), **how)), panel(written(name="plain.csv"))
    assert found.columns == ("x", "y")
    torch.testing.assert_close(found.values, plain.values)
    assert torch.equal(found.time.argsort(), plain.time.argsort())


def test_what_was_left_out_is_named(written):
    table = frame().assign(place="here", one=1.0, none=float("nan"), second=frame()["date"])
    table.loc[3:9, "x"] = float("nan")
    said = panel(written(table.sample(frac=1, random_state=0))).source
    for part in ("900 rows of x, y", "date (when it was)", "place (text)", "one (constant", "none (mostly"):
        assert part in said
    assert "second (dates)" in said
    assert "missing, filled with the value before: 7" in said
    assert "sorted by date" in said


def test_a_missing_value_is_the_one_before_it(written):
    table = frame()
    table.loc[[0, 1, 10, 11], "x"] = float("nan")
    table.loc[20, "x"] = float("inf")
    found = panel(written(table)).values[:, 0]
    assert len(found) == ROWS - 2  # nothing is known before the first two
    assert found[8] == found[9] == found[7]
    assert found[18] == found[17]


def test_no_header_comments_tokens_and_compression(written, tmp_path):
    plain = panel(written())
    bare = panel(written(frame()[["x", "y"]], "bare.csv", header=False))
    assert bare.columns == ("column 1", "column 2")
    assert torch.equal(bare.values, plain.values)
    text = (tmp_path / "data.csv").read_text()
    assert torch.equal(panel(written("# of my own\n" + text, "comment.csv")).values, plain.values)
    zipped = panel(written(gzip.compress(text.encode()), "data.csv.gz"))
    assert torch.equal(zipped.values, plain.values)
    words = frame().astype({"x": object})
    words.loc[5:8, "x"], words.loc[9, "x"] = "?", "broken"
    assert "no numbers, taken as missing: 1 of x" in panel(written(words, "words.csv")).source


def test_names_that_are_there_twice_are_numbered(written):
    table = frame()
    table.columns = ["date", "x", "x"]
    assert panel(written(table)).columns == ("x", "x.1")


def test_columns_are_chosen_by_name_or_pattern(written):
    path = written(frame().assign(temp_in=frame()["x"] + 1, temp_out=frame()["y"] + 1))
    assert panel(path, "y").columns == ("y",)
    assert panel(path, "y+x").columns == ("y", "x")
    assert panel(path, "temp*").columns == ("temp_in", "temp_out")
    task = find("series", {"data": path, "target": "y", **SMALL})
    x, y = task.batch(3, torch.Generator())
    assert (x.shape, y.shape) == ((3, 16, 4), (3, 4, 1))
    model = task.model(one_run())
    assert model(x).shape == y.shape
    assert set(task.metrics(model)) == {"absolute error", "absolute error of y"}


def test_what_happens_once_is_no_spike(written):
    table = frame().assign(event=0.0, errors=0.0, steady=lambda t: 20 + 1e-6 * t["x"])
    table.loc[100, ["event", "errors", "steady"]] = [1.0, 2000.0, 0.0]
    table.loc[90, "errors"] = 1.0
    assert find("series", {"data": written(table), **SMALL}).values[:, 2:].abs().max() > 1


def test_large_numbers_are_only_numbers(written):
    plain, huge = written(), written(frame().assign(y=frame()["y"] * 1e300), "huge.csv")
    a, b = (find("series", {"data": path, **SMALL}).values for path in (plain, huge))
    torch.testing.assert_close(a, b)


def test_a_window_has_the_class_of_its_last_row(written):
    table = frame().assign(state=["low" if v < 50 else "high" for v in frame()["y"]])
    table.loc[40:80, "state"] = None
    task = find("series", {"data": written(table), "goal": "classify", "label": "state", **SMALL})
    assert task.panel.classes == ("high", "low")
    x, label = task.batch(64, torch.Generator().manual_seed(0))
    last = x[:, -1, 1] * task.scales[1][1] + task.scales[0][1]
    assert torch.equal(label, (last < 50).long())
    assert task.baselines()["class frequencies"] == pytest.approx(math.log(2), abs=0.1)
    assert task.loss_name == "nats a window"


def test_a_file_that_has_changed_is_read_again(written):
    before = find("series", {"data": written(), **SMALL}).fingerprint
    assert (
        find("series", {"data": written(frame().assign(y=frame()["x"] ** 2)), **SMALL}).fingerprint != before
    )


# ---- when it was ---------------------------------------------------------------------------------

HOURS = pd.Series(pd.date_range("2020-03-01", periods=400, freq="h"))
MONTHS = pd.Series(pd.date_range("1950-01-01", periods=600, freq="MS"))
WEEKS = pd.Series(pd.date_range("2001-01-01", periods=200, freq="7D"))
FORMATS = [
    *(
        "%d.%m.%y",
        "%d/%m/%y",
        "%m/%d/%y",
        "%y-%m-%d",
        "%d-%m-%Y",
        "%m/%d/%Y",
        "%Y%m%d",
        "%d-%b-%Y",
        "%b %d %Y",
    ),
    *("%d.%m.%y %H:%M", "%m/%d/%Y %I:%M %p", "%a %d %b %Y", "%Y-%m-%dT%H:%M:%SZ"),
]
DATES = {
    **{f"days as {how}": days(1500, "2015-01-01").dt.strftime(how) for how in FORMATS},
    **{
        f"months as {how}": MONTHS.dt.strftime(how)
        for how in ("%m/%Y", "%Y-%m", "%b-%y", "%d/%m/%Y", "%YM%m")
    },
    "quarters": [f"{year}Q{quarter}" for year in range(1950, 2020) for quarter in (1, 2, 3, 4)],
    "weeks of ISO": WEEKS.dt.strftime("%G-W%V"),
    "integers": days().dt.strftime("%Y%m%d").astype(int),
    "milliseconds": HOURS.astype("int64") // 10**3,
    "midnight without a time": [str(h)[:10] if h.hour == 0 else str(h) for h in HOURS],
    "fractions in some": [f"{h}.500" if k % 2 else str(h) for k, h in enumerate(HOURS)],
    "different zones": HOURS.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin").astype(str),
}


@pytest.mark.parametrize("kind", DATES)
@pytest.mark.parametrize("name", ["date", "stamp"])
def test_dates_are_read_in_one_way_and_bring_the_rows_in_order(kind, name, written):
    table = in_truth(DATES[kind]).rename(columns={"when": name})
    for rows in (table, table[::-1]):
        found = panel(written(rows))
        assert found.columns == ("truth",)
        assert found.values.flatten().tolist() == table["truth"].tolist()
        assert (found.time.diff() > (27 * 86400 if "months" in kind else 0)).all()


BESIDE = {
    "a row number": lambda t: t[::-1].reset_index(drop=True).reset_index(),
    "row numbers from before they were sorted": lambda t: t.sample(frac=1, random_state=0).reset_index(),
    "a measured duration": lambda t: t.assign(time=t["truth"] % 7.3 + t["truth"] % 2.1),
    "a time of day": lambda t: t[::-1].assign(time=t["when"].dt.hour, when=t["when"].dt.date),
    "a time of day as 1300": lambda t: t[::-1].assign(time=t["when"].dt.hour * 100, when=t["when"].dt.date),
    "a time of day in text": lambda t: t[::-1].assign(time=t["when"].dt.time, when=t["when"].dt.date),
    "an hour": lambda t: t[::-1].assign(hour=t["when"].dt.hour, when=t["when"].dt.date),
    "its year": lambda t: t[::-1].assign(year=t["when"].dt.year),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_a_date_says_when_it_was_whatever_stands_beside_it(kind, written):
    found = panel(written(BESIDE[kind](in_truth(HOURS))))
    truth = found.values[:, found.columns.index("truth")]
    assert truth.tolist() == [k + 0.5 for k in range(len(HOURS))]
    assert set(found.columns) <= {"truth", "time"}
    assert (found.time.diff() == 3600).all()


@pytest.mark.parametrize("parts", [["year", "month", "day", "hour"], ["year", "day_of_year", "hour"]])
def test_year_month_day_and_hour_are_one_time(parts, written):
    table = in_truth(HOURS).assign(**{part: getattr(HOURS.dt, part) for part in parts})
    found = panel(written(table[::-1].drop(columns="when")))
    assert found.columns == ("truth",)
    assert found.values.flatten().tolist() == table["truth"].tolist()
    assert f"{', '.join(parts)} (when it was)" in found.source


def test_a_pattern_does_not_make_a_date_an_input(written):
    for dates in (HOURS, HOURS.astype("int64") // 10**3, days().dt.strftime("%Y%m%d").astype(int)):
        table = in_truth(dates)[::-1].reset_index(drop=True).reset_index()
        found = panel(written(table), columns="*")
        assert found.columns == ("truth",)
        assert (found.values.flatten().diff() > 0).all()
    assert panel(written(table), columns="truth+when").columns == ("truth", "when")


def test_a_number_called_time_is_one_only_if_it_is_like_one(written):
    noise = torch.rand(400, generator=torch.Generator().manual_seed(0)).double().numpy()
    table = in_truth(HOURS).drop(columns="when")
    assert panel(written(table.assign(time=noise))).columns == ("truth", "time")
    for seconds in (noise.cumsum(), -noise.cumsum()[::-1], range(0, 4000, 10)):
        assert panel(written(table.assign(time=seconds))).columns == ("truth",)
    elapsed = [f"0:{k // 60:02}:{k % 60:02}" for k in range(400)]
    for name, times in (("time", range(0, 4000, 10)), ("time", elapsed), ("year", HOURS.index / 12 + 1950)):
        shuffled = table.assign(**{name: times}).sample(frac=1, random_state=0)
        assert panel(written(shuffled)).values.flatten().tolist() == table["truth"].tolist()


def test_a_counter_says_when_it_was_only_if_it_counts_within_each_series(written):
    table = pd.concat([frame(300).assign(store=k) for k in "ab"]).drop(columns="date")
    own = panel(written(table.reset_index(names="step")), group="store")
    assert own.time.tolist() == [*range(300)] * 2
    over = panel(written(table.assign(step=range(600))), group="store")
    assert over.columns == ("x", "y")
    assert over.time.max() < 1
    assert "step (row numbers)" in over.source


# ---- how numbers are written ---------------------------------------------------------------------

WHOLE = [(k * 7919) % 1700 + 800 for k in range(200)]
TENTHS = [k + 0.5 for k in WHOLE]


def german(number):
    return f"{number:,}".translate(str.maketrans(",.", ".,"))


NUMBERS = {
    "quoted, with thousands": ([f"{v:,}" for v in TENTHS], ",", TENTHS),
    "thousands and tabs": ([f"{v:,}" for v in WHOLE], "\t", WHOLE),
    "thousands and semicolons": ([f"{v:,}" for v in WHOLE], ";", WHOLE),
    "German thousands": ([german(v) for v in WHOLE], ";", WHOLE),
    "German thousands and decimals": ([german(v) for v in TENTHS], ";", TENTHS),
    "decimal commas in some": ([*map(str, WHOLE[:180]), *map(german, TENTHS[180:])], ";", None),
    "spaces between thousands": ([f"{v:,}".replace(",", " ") for v in TENTHS], ";", TENTHS),
    "three decimals": ([f"{v / 1000:.3f}" for v in WHOLE], ";", [v / 1000 for v in WHOLE]),
    "three decimals after a comma": (
        [f"{v / 1000:.3f}".replace(".", ",") for v in WHOLE],
        ";",
        [v / 1000 for v in WHOLE],
    ),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_what_they_were_meant_to_be(kind, written):
    text, sep, expected = NUMBERS[kind]
    table = pd.DataFrame({"date": days(200), "x": text})
    expected = expected or [*WHOLE[:180], *TENTHS[180:]]
    assert panel(written(table, sep=sep)).values.flatten().tolist() == expected


def test_a_decimal_comma_holds_for_the_whole_file(written):
    table = pd.DataFrame(
        {"date": days(200), "x": [german(v + 1000) for v in WHOLE], "y": map(german, TENTHS)}
    )
    found = panel(written(table, sep=";"))
    assert found.values.T.tolist() == [[v + 1000 for v in WHOLE], TENTHS]
    table["y"] = TENTHS
    table["x"] = [f"{v + 1000:,}" for v in WHOLE]
    assert torch.equal(panel(written(table, sep="\t")).values, found.values)


def test_a_lone_column_with_decimal_commas_is_one_column(written):
    found = panel(written("a\n" + "\n".join(str(v).replace(".", ",") for v in TENTHS)))
    assert found.values.flatten().tolist() == TENTHS


# ---- mistakes ------------------------------------------------------------------------------------

TWO = pd.concat([frame(300).assign(store=k) for k in "ab"])
APART = TWO.assign(x=lambda t: t["x"].where(t["store"] == "a"), y=lambda t: t["y"].where(t["store"] == "b"))
YEARS = TWO.assign(year=lambda t: 1700 + t.index).drop(columns="date")
ONCE_MORE = pd.concat([TWO, TWO.iloc[[5]]]).sort_values("date", kind="stable")
KEYS = pd.concat([frame(100).assign(store=a, item=b) for a in "ab" for b in "cde"])
UNCLEAR = pd.DataFrame({"date": [f"{d:02}.{m:02}.2020" for m in range(1, 13) for d in range(1, 13)]})
UNCLEAR = UNCLEAR.assign(x=range(144)).sample(frac=1, random_state=0)
ODD = frame().assign(x=[f"{k}.{k % 7}.1" if k % 9 == 0 else f"{k % 13}.5" for k in range(ROWS)])
TWO_COLUMNS = TWO.assign(date=TWO["date"].dt.date, time=TWO["date"].dt.strftime("%H:%M"))
CLOCK = frame().assign(time=frame()["date"].dt.strftime("%H:%M")).drop(columns="date")
LIMITS = frame().assign(x=[f"{k % 13}.5" if k % 9 else "<0.5" for k in range(ROWS)])
THOUSANDS = frame().drop(columns="y").assign(x=[f"{k % 90 + 1},{k % 800 + 100}" for k in range(ROWS)])
SPIKE = frame().assign(x=lambda t: t["x"].where(t.index != 700, 1e30))
SPIKED = frame().assign(x=lambda t: t["x"].where(t.index != 100, 1e300))
BAD_FILES = {
    "nothing in it": ("", {}, "is empty"),
    "blanks": ("\n \n", {}, "is empty"),
    "a header alone": ("a,b\n", {}, "no rows"),
    "no text": (bytes(range(256)), {}, "neither text nor Parquet"),
    "half a Parquet file": (b"PAR1" + b"x" * 90, {}, "cannot be read"),
    "lines of other lengths": ("a,b\n" + "1,2\n" * 80 + "1,2,3,4\n", {}, "line 82"),
    "words": ("a,b\n" + "foo,bar\n" * 80, {}, "a, b (text)"),
    "one number": ("a\n" + "7\n" * 80, {}, "a (constant"),
    "few rows": (frame(60), {}, "Too few rows for windows of 20"),
    "long windows": (frame(), {"length": 800}, "--set length=101, or less"),
    "a spike": (SPIKE, {}, "x is 1e+30 in one row"),
    "a spike in training": (SPIKED, {}, "x is 1e+300 in one row"),
    "several series": (TWO, {}, "--set group='store'"),
    "an unknown column": (frame(), {"columns": "x+yy"}, "did you mean 'y'"),
    "an unknown target": (frame(), {"target": "w"}, "one of 'x', 'y'"),
    "an unknown group": (TWO, {"group": "stor"}, "did you mean 'store'"),
    "no label": (frame(), {"goal": "classify"}, "--set label=COLUMN"),
    "an unknown label": (TWO, {"goal": "classify", "label": "stores"}, "did you mean 'store'"),
    "a label of many": (frame(), {"goal": "classify", "label": "x"}, "900 different values"),
    "nothing at the same time": (APART, {"group": "store"}, "no row in which all of x, y are known"),
    "several series by year": (YEARS, {}, "--set group='store'"),
    "several series, and a row twice": (ONCE_MORE, {}, "--set group='store'"),
    "several series, most of one": (pd.concat([TWO[:300], TWO[300:360]]), {}, "--set group='store'"),
    "several series, and the date in two": (TWO_COLUMNS, {}, "--set group='store'"),
    "limits of detection": (LIMITS, {}, "look like numbers"),
    "several series by two columns": (KEYS, {}, "--set group='store+item'"),
    "several series in a series": (KEYS, {"group": "item"}, "--set group='item+store'"),
    "times that are there twice": (pd.concat([frame(), frame()]), {}, "neither one column nor two"),
    "dates that may be two": (UNCLEAR, {}, "may be day first or month first"),
    "dates that nobody knows": (
        frame().assign(date=[f"2020-{k:03}" for k in range(ROWS)]),
        {},
        "cannot be read",
    ),
    "a date of words": (frame().assign(date=["today", "later"] * 450), {}, "date seems to say when"),
    "times of day, the last one first": (CLOCK[::-1], {}, "time seems to say when"),
    "years in no order": (frame().assign(date=1.0, year=[2001, 2000] * 450), {}, "year seems to say when"),
    "numbers that are none": (ODD, {}, "look like numbers"),
    "thousands or decimals": (THOUSANDS, {}, "a decimal comma or one between thousands"),
    "label and group": (TWO, {"goal": "classify", "label": "store", "group": "store"}, "two columns"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_used_is_named(name, written):
    table, fields, text = BAD_FILES[name]
    task = find("series", {"data": written(table), **SMALL, **fields})
    with pytest.raises(NormkitError) as error:
        Training(one_run(), task).advance()
    assert text in str(error.value)


@pytest.mark.parametrize("fields", [{}, {"length": 100, "horizon": 90}, {"horizon": 300}])
@pytest.mark.parametrize("rows", [100, 150, 300])
def test_windows_that_are_too_long_get_sizes_that_fit(rows, fields, written):
    path = written(frame(rows))
    with pytest.raises(NormkitError, match="Too few rows") as error:
        find("series", {"data": path, **fields}).held_out()
    sizes = {name: int(size) for name, size in re.findall(r"--set (\w+)=(\d+)", str(error.value))}
    assert "length" in sizes
    find("series", {"data": path, **fields, **sizes}).held_out()


BAD_FIELDS = [
    ({"data": "/nowhere/data.csv"}, "no such file"),
    ({"data": "."}, "it is a folder"),
    ({"data": "/dev/stdin"}, "it is no regular file"),
    ({"goal": "forcast"}, "did you mean 'forecast'"),
    ({"length": 1}, "length= got 1"),
    ({"horizon": 0}, "horizon= got 0"),
    ({"patch": 200}, "patch=96"),
    ({"label": "x"}, "came without data"),
    ({"data": "a.csv", "label": "x"}, "goal=classify"),
    ({"data": "a.csv", "goal": "classify", "target": "x"}, "goal=forecast"),
]


@pytest.mark.parametrize(("fields", "text"), BAD_FIELDS)
def test_a_field_that_cannot_be_is_named(fields, text):
    with pytest.raises(NormkitError) as error:
        find("series", fields).batch(2, torch.Generator())
    assert text in str(error.value)


def test_parquet_says_what_it_needs(written, monkeypatch):
    path = written(name="data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NormkitError, match="pip install pyarrow"):
        panel(path)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(NormkitError, match="no regular file"):
        panel(str(tmp_path / "pipe.csv"))
    with open(write(tmp_path)) as file, pytest.raises(NormkitError, match="no regular file"):
        panel(f"/proc/self/fd/{file.fileno()}")  # another file in every worker


def test_years_and_quarters_in_two_columns_are_one_time(tmp_path):
    rows = [(1950.0 + k // 4, 1.0 + k % 4, k + 0.5) for k in range(300)]
    path = tmp_path / "macro.csv"
    path.write_text("year,quarter,x\n" + "".join(f"{y},{q},{x}\n" for y, q, x in reversed(rows)))
    found = read_panel(str(path), None, None, None)
    assert found.columns == ("x",)
    assert found.values[:, 0].tolist() == [x for _, _, x in rows]
