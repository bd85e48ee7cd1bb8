"""``--quick``: every part of the package in a minute. Slow tests stay away, of the others a few parameters run."""

from collections import Counter, defaultdict

FEW = 3  # parameters of one test: the first, the last, and between
SLOW: tuple[str, ...] = ()


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="a minute's choice: no slow test, few parameters")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--quick"):
        return
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.split("[")[0]].append(item)
    kept = set()
    for name, same in tests.items():
        if not name.startswith(SLOW):
            step = max(1, (len(same) - 1) // (FEW - 1))
            kept.update(id(item) for item in [*same[: step * (FEW - 1) : step], same[-1]])
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
