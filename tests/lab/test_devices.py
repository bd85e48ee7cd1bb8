"""Devices: named before anything is trained if they are missing, one run each, and recorded."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.cli import main
from normkit.errors import NormkitError
from normkit.lab import devices
from normkit.lab.engines import engine
from normkit.lab.engines.local import LocalEngine
from normkit.lab.run import Run
from normkit.lab.training import Training

META = torch.device("meta")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
@pytest.mark.parametrize("verb", ["compare", "train"])
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_one_clear_line(verb, device, capsys, tmp_path):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is an Apple GPU here")
    with pytest.raises(SystemExit) as stop:
        main([verb, "--device", device, "--out", str(tmp_path / "o")])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[0].startswith(f"--device {device}: torch {torch.__version__}")
    assert said[1:] == ["  fix: --device cpu"]
    assert not (tmp_path / "o").exists(), "nothing was begun"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:1", "cuda:-1", "tpu", 3])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(NormkitError, match="device="):
        Run(device=device)


def test_the_kind_of_device_is_part_of_a_run_and_its_number_is_not():
    keys = {device: Run(device=device).key("data") for device in ("cpu", "cuda", "cuda:1", "mps")}
    assert keys["cuda"] == keys["cuda:1"]
    assert len(set(keys.values())) == 3


def test_batches_go_to_the_device_whatever_they_are_made_of():
    batch = {"x": torch.ones(2), "pair": (torch.ones(2), ["a", "b"]), "count": 3}
    moved = devices.to_device(batch, META)
    assert (moved["x"].device, moved["pair"][0].device) == (META, META)
    assert (moved["pair"][1], moved["count"]) == (["a", "b"], 3)
    assert devices.to_device(batch, torch.device("cpu")) is batch


class Watched(nk.lab.Task):
    """It looks where things are."""

    seen: ClassVar[list] = []

    def model(self, run):
        return nn.Linear(4, 1)

    def batch(self, size, generator):
        assert generator.device.type == "cpu", "the same batches on every device"
        return torch.randn(size, 4, generator=generator), torch.ones(size, 1)

    def loss(self, model, batch):
        self.seen.append({model.weight.device.type, *(tensor.device.type for tensor in batch)})
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def held_out(self):
        return [self.batch(8, torch.Generator().manual_seed(0))]


def test_model_and_batch_are_on_the_device_of_the_run():
    """No accelerator here: meta tensors go through the same code, as far as the first number is asked for."""
    Watched.seen.clear()
    training = Training(Run(steps=2), Watched(), device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        training.advance()
    with pytest.raises(RuntimeError, match="meta"):
        training.evaluate()
    assert Watched.seen == [{"meta"}, {"meta"}]
    assert training.device == META


def test_the_device_is_recorded(tmp_path):
    result = nk.lab.compare(
        "digits",
        norm="rms",
        placement="pre",
        lr=1e-2,
        steps=4,
        seeds=1,
        workers=0,
        progress=False,
        out=tmp_path,
    )
    (_, outcome), *_ = result.results
    assert outcome.device == "cpu"
    assert result.about["common"]["device"] == "cpu"


def test_one_run_a_device(monkeypatch):
    monkeypatch.setattr("normkit.lab.engines.local.check_device", lambda name: None)
    assert LocalEngine(device="cuda").workers == 1
    with pytest.raises(NormkitError, match=r"one run a device[\s\S]*--engine ray"):
        LocalEngine(workers=2, device="cuda")


@pytest.mark.parametrize("device", ["mps", "cuda:1"])
def test_ray_chooses_the_gpu_itself(device):
    pytest.importorskip("ray", reason="pip install 'normkit[ray]'")
    with pytest.raises(NormkitError, match=f"--device {device} with --engine ray"):
        engine("ray", workers=1, device=device)


@no_gpu
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_without_a_gpu_is_named():
    pytest.importorskip("ray", reason="pip install 'normkit[ray]'")
    chosen = engine("ray", workers=1, device="cuda")
    with pytest.raises(NormkitError, match="the Ray cluster has no GPU"):
        list(chosen([object()], lambda *_: None))


def test_a_gpu_is_asked_of_ray_for_each_run(monkeypatch):
    """With a Ray that only notes what it is asked for."""
    from normkit.lab.engines import on_ray

    asked = []

    chosen = object.__new__(on_ray.RayEngine)
    chosen.device, chosen.limit, chosen.objects = "cuda", None, b""

    class Ray:
        def remote(self, **needs):
            asked.append(needs)
            if len(asked) == 1:
                return lambda _: type("A", (), {"remote": staticmethod(lambda: None)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(on_ray._run(chosen, Ray(), [], lambda *_: None))
    assert asked[1]["num_gpus"] == 1
