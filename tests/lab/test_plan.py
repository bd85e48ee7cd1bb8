"""From what a user asks for to runs: axes, ranges, files, and every way to get them wrong."""

import pytest

from normkit.errors import NormkitError
from normkit.lab.plan import make_plan, read_toml, values
from normkit.lab.run import Run

OWN = "lab.own_task:Small"


def test_every_combination_becomes_a_run_and_seeds_change_last():
    plan = make_plan(
        {"task": OWN, "norm": "layer,rms", "placement": "pre,post", "lr": "1e-3,1e-2", "seeds": 2}
    )
    assert len(plan.runs) == len(set(plan.runs)) == 16
    assert [run.seed for run in plan.runs] == [0] * 8 + [1] * 8
    assert plan.axes == {
        "norm": ("layer", "rms"),
        "placement": ("pre", "post"),
        "lr": (1e-3, 1e-2),
        "seed": (0, 1),
    }
    assert {(run.depth, run.width, run.steps) for run in plan.runs} == {(2, 16, 20)}, "the task's defaults"


def test_fields_of_the_task_are_axes_of_their_own_type():
    plan = make_plan({"task": OWN, "set": {"noise": "0.1,0.5"}, "seeds": 1})
    assert {dict(run.options)["noise"] for run in plan.runs} == {0.1, 0.5}
    flags = make_plan({"task": "text", "set": {"qk_norm": "true,false", "length": [16, 32]}, "seeds": 1})
    assert {dict(run.options)["qk_norm"] for run in flags.runs} == {True, False}
    assert flags.axes["length"] == (16, 32)


@pytest.mark.parametrize(
    ("given", "kind", "wanted"),
    [
        ("1e-3:1e-1:5", float, (0.001, 0.00316, 0.01, 0.0316, 0.1)),
        ("1e-4,1e-3:1e-1:3", float, (0.0001, 0.001, 0.01, 0.1)),
        ("2:16:4", int, (2, 4, 8, 16)),
        ([1e-3, "1e-2"], float, (0.001, 0.01)),
        (3, int, (3,)),
        ("rms,rms", str, ("rms",)),
    ],
)
def test_values_and_ranges(given, kind, wanted):
    assert values(given, kind, "x") == wanted


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lr": "1e-1:1e-3:5"}, "lr got '1e-1:1e-3:5', which is not a range"),
        ({"lr": "1e-3:1e-1"}, "not a range"),
        ({"lr": "1e-3:1e-1:1"}, "at least two values"),
        ({"lr": "0:1:3"}, "0 < first < last"),
        ({"lr": "fast"}, "lr got 'fast'"),
        ({"lr": "-1e-3"}, "lr= got -0.001"),
        ({"lr": "nan"}, "lr got 'nan'"),
        ({"depth": "2.5"}, "depth got '2.5'"),
        ({"depth": "0"}, "depth= got 0"),
        ({"norm": ""}, "norm got ''"),
        ({"norm": "rsm"}, "did you mean 'rms'?"),
        ({"placement": "perri"}, "did you mean 'peri'?"),
        ({"seeds": 0}, "seeds got 0"),
        ({"seeds": "many"}, "seeds got 'many'"),
        ({"schedule": "linear"}, "schedule= got 'linear'"),
        ({"nrom": "rms"}, "did you mean 'norm'?"),
        ({"task": "texts"}, "did you mean 'text'?"),
        ({"task": "no_such_module:Task"}, "cannot be imported: ModuleNotFoundError"),
        ({"task": "lab.own_task:Missing"}, "module lab.own_task has no 'Missing'"),
        ({"task": "lab.own_task:NoTask"}, "a class that inherits from normkit.lab.Task"),
        ({"task": "digits", "data": "x"}, "The task digits takes no data"),
        ({"set": {"lenght": 3}}, "did you mean 'length'?"),
        ({"set": {"length": "long"}}, "length got 'long'"),
        ({"set": {"qk_norm": "maybe"}}, "true or false"),
    ],
)
def test_a_mistake_is_named(settings, text):
    with pytest.raises(NormkitError) as error:
        make_plan(settings)
    assert text in str(error.value)


def test_a_file_of_settings_is_read(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'task = "text"\nlr = "1e-3:1e-1:3"\nnorm = ["rms"]\nseeds = 1\n[set]\nlength = [16, 32]\n'
    )
    plan = make_plan(read_toml(path))
    assert plan.axes == {
        "lr": (0.001, 0.01, 0.1),
        "placement": ("post", "pre", "peri", "deepnorm"),
        "length": (16, 32),
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'lr = 1e-3\nnorm = ["rms"\nplacement = "pre"\n', "line 3"),
        (b"nrom = 3\n", "did you mean 'norm'?"),
        (b"\xff\xfe\x00", "is not text"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path, content, text):
    path = tmp_path / "sweep.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NormkitError) as error:
        read_toml(path)
    assert text in str(error.value)


def test_a_run_is_known_by_all_that_decides_its_numbers():
    base = Run()
    assert base.key("data") == Run().key("data")
    others = [Run(lr=1e-2), Run(norm="rms"), Run(seed=1), Run(until=50), Run(options=(("length", 16),))]
    assert len({run.key("data") for run in [base, *others]}) == 1 + len(others)
    assert base.key("data") != base.key("other data")
    assert Run(options=(("data", "a"),)).key("same") == Run(options=(("data", "b"),)).key("same")
    assert Run.from_config(others[-1].config()) == others[-1]
