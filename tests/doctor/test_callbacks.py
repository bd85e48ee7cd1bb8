"""The doctor with Hugging Face's Trainer and Lightning: with stand-ins that call the hooks in their order,
and with their own where these can be imported.

transformers' Trainer needs accelerate; that is not among the packages of the tests, nor is Lightning.
"""

import importlib.util
import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import normkit as nk

SCALARS = {"normkit/errors", "normkit/warnings", "normkit/largest_activation"}
HAS_TRAINER = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


class Net(nn.Module):
    """It returns a loss as Hugging Face's models do, if it is given labels."""

    def __init__(self, eps=0.1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4, eps=eps), nn.Linear(4, 1))

    def forward(self, x, labels=None):
        y = self.net(x)
        return y if labels is None else SimpleNamespace(loss=(y - labels).square().mean(), logits=y)


def callbacks():
    return [nk.doctor.HuggingFaceCallback(every=2), nk.doctor.LightningCallback(every=2)]


def test_events_that_they_do_not_know_are_harmless_and_other_names_are_an_error():
    for callback in callbacks():
        assert callback.on_something_new(1, two=2) is None
        with pytest.raises(AttributeError, match="has no attribute 'off_something'"):
            callback.off_something  # noqa: B018
        assert (callback.doctor, callback.report, callback.findings) == (None, None, ())


@pytest.mark.parametrize("kind", [nk.doctor.HuggingFaceCallback, nk.doctor.LightningCallback])
def test_mistakes_are_told_when_they_are_built(kind):
    with pytest.raises(nk.NormkitError, match="every= got 0"):
        kind(every=0)
    with pytest.raises(nk.NormkitError, match="there is no rule 'NK999'"):
        kind(ignore="NK999")


# Hugging Face


class Handler:
    """Calls events as transformers' CallbackHandler does."""

    def __init__(self, callbacks, **given):
        self.callbacks, self.given = callbacks, given
        self.state = SimpleNamespace(log_history=[], global_step=0)

    def event(self, name, **more):
        for callback in self.callbacks:
            getattr(callback, name)("args", self.state, "control", **self.given, **more)

    def log(self, logs):
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.event("on_log", logs=logs)


class Reporter:
    """As TensorBoard's: it stands in the list before a user's callbacks."""

    def __init__(self):
        self.logs = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def train_as_the_trainer(callback, steps=5, late=False):
    model, reporter = Net(), Reporter()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    handler = Handler([reporter, *([] if late else [callback])], model=model, optimizer=optimizer)
    handler.event("on_init_end")
    handler.callbacks += [callback] if late else []
    handler.event("on_train_begin")
    for _ in range(steps):
        handler.event("on_step_begin")
        for _ in range(2):  # accumulated
            model(x=torch.randn(8, 4), labels=torch.zeros(8, 1)).loss.backward()
            handler.event("on_substep_end")
        handler.event("on_pre_optimizer_step")
        optimizer.step()
        handler.event("on_optimizer_step")
        model.zero_grad()
        handler.state.global_step += 1
        handler.event("on_step_end")
        handler.log({"loss": 1.0})
        with torch.no_grad():
            model.eval()(x=torch.randn(3, 4))
            model.train()
    handler.event("on_train_end")
    return model, reporter, handler


@pytest.mark.parametrize("late", [False, True])
def test_numbers_of_a_look_are_in_the_next_log_of_all_who_report(late):
    callback = nk.doctor.HuggingFaceCallback(every=3)
    _, reporter, handler = train_as_the_trainer(callback, late=late)
    for logs in (reporter.logs, handler.state.log_history):
        assert [set(log) >= SCALARS for log in logs] == [True, False, True, False, False]
        assert all("loss" in log for log in logs)
    assert len(handler.callbacks) == 2


def test_the_trainers_optimizer_and_last_batch_are_looked_at_and_the_hook_goes_with_the_training():
    callback = nk.doctor.HuggingFaceCallback(every=2, out=lambda line: None)
    model, *_ = train_as_the_trainer(callback)
    assert {(f.code, f.where) for f in callback.findings} == {("NK204", "net.1"), ("NK501", "net.1")}
    assert callback.report.inspection.sites[0].shape == (8, 4)
    assert callback.doctor.steps == 5
    assert not model._forward_pre_hooks


@pytest.mark.skipif(
    not HAS_TRAINER, reason="transformers' Trainer needs accelerate; its order of calls is tested"
)
def test_transformers_own_trainer_logs_to_tensorboard(tmp_path, caplog, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2))
    model.model.norm.variance_epsilon = 0.5
    ids = torch.randint(64, (12,))
    args = TrainingArguments(
        str(tmp_path),
        max_steps=6,
        logging_steps=1,
        report_to=["tensorboard"],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    callback = nk.doctor.HuggingFaceCallback(every=3)
    with caplog.at_level(logging.INFO, "normkit.doctor"):
        data = [{"input_ids": ids, "labels": ids}] * 16
        trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train()
    assert [f.where for f in callback.findings if f.code == "NK204"] == ["model.norm"]
    assert sum("NK204" in record.getMessage() for record in caplog.records) == 1
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/normkit/errors")] == [1, 3, 6]
    assert events.Scalars("train/normkit/grad_first_last")[0].value > 0
    assert not model._forward_pre_hooks


# Lightning


class Logger(list):
    def log_metrics(self, metrics, step):
        self.append((step, metrics))


@pytest.mark.parametrize("calls_itself", [True, False])
def test_lightnings_loggers_get_the_numbers_of_each_look(calls_itself):
    class Module(Net):
        def training_step(self, batch, index):
            return (self(batch) if calls_itself else self.net(batch)).square().mean()

        def log_dict(self, numbers, logger):
            metrics.append(numbers)
            assert not logger  # they have it from us

    callback, module, logger, metrics = nk.doctor.LightningCallback(every=2), Module(), Logger(), []
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.1)
    trainer = SimpleNamespace(optimizers=[optimizer], loggers=[logger], global_step=0)
    callback.setup(trainer, module, stage="fit")
    callback.on_fit_start(trainer, module)
    callback.on_train_start(trainer, module)
    for index in range(5):
        batch = torch.randn(8, 4)
        callback.on_train_batch_start(trainer, module, batch, index)
        module.training_step(batch, index).backward()
        callback.on_before_optimizer_step(trainer, module, optimizer)
        callback.on_before_optimizer_step(trainer, module, optimizer)  # a second optimizer is no second step
        optimizer.step()
        callback.on_before_zero_grad(trainer, module, optimizer)
        optimizer.zero_grad()
        trainer.global_step += 1
    callback.on_train_end(trainer, module)
    callback.teardown(trainer, module, stage="fit")
    assert [step for step, _ in logger] == [0, 1, 3]
    assert all(set(numbers) >= SCALARS for _, numbers in logger)
    assert metrics == [numbers for _, numbers in logger]
    assert {(f.code, f.where) for f in callback.findings} == {("NK204", "net.1"), ("NK501", "net.1")}
    assert all(not part._forward_pre_hooks for part in module.modules())
    assert callback.state_dict() == {}
    assert callback.state_key != nk.doctor.LightningCallback(every=3).state_key


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning"])
@pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and loggers
def test_lightnings_own_trainer_fits_and_logs(name, tmp_path):
    pytest.importorskip(name, reason="Lightning is not installed; its order of calls is tested")
    pl = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
    loggers = importlib.import_module(f"{pl.__name__}.loggers")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Net()

        def training_step(self, batch, index):
            return self.model(batch).square().mean()

        def validation_step(self, batch, index):
            self.model(batch[:3])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), weight_decay=0.1)

    callback, data = nk.doctor.LightningCallback(every=2), torch.utils.data.DataLoader(torch.randn(40, 4), 8)
    logger = loggers.CSVLogger(str(tmp_path))
    settings = {"accelerator": "cpu", "max_epochs": 1, "enable_progress_bar": False, "logger": logger}
    trainer = pl.Trainer(callbacks=[callback], default_root_dir=str(tmp_path), **settings)
    trainer.fit(Module(), data, data)
    assert {(f.code, f.where) for f in callback.findings} == {
        ("NK204", "model.net.1"),
        ("NK501", "model.net.1"),
    }
    assert callback.report.inspection.sites[0].shape == (8, 4)
    assert callback.doctor.steps == 5
    assert float(trainer.callback_metrics["normkit/errors"]) == 1
    assert "normkit/errors" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
