"""What the command line examines: names, folders, and every way in which they can be wrong."""

import json
import os
import sys

import hugging_face
import pytest
import torch
from safetensors.torch import save_file

from normkit.doctor import doctor
from normkit.errors import NormkitError
from normkit.loading import target
from normkit.loading.folder import with_random_weights

CONFIG = {
    **{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 16, "n_head": 2},
    **{"vocab_size": 32, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0},
}
MODELS = """
import torch
from torch import nn

def build():
    return nn.LayerNorm(4)

def with_arguments(dim, *, depth, eps=1e-5):
    return nn.LayerNorm(dim)

def fails():
    raise RuntimeError("no\\n weights")

def leaves():
    raise SystemExit(4)

def pair():
    return build(), None

async def later():
    return build()

class Net(nn.Module):
    class Small(nn.LayerNorm):
        def __init__(self):
            super().__init__(4)

model, number, batch = build(), 3, torch.ones(2, 4)

def one_batch():
    return {"input": batch}

def nothing():
    return None
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory with a package, from which nothing is left behind."""
    modules, path = set(sys.modules), list(sys.path)
    package = tmp_path / "clinic_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODELS)
    (package / "quits.py").write_text("import sys\nsys.exit(3)\n")
    (package / "spelt.py").write_text("def build(:\n")
    (package / "needs.py").write_text("import not_installed_anywhere\n")
    (package / "raises.py").write_text("\nraise ValueError('at import')\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("clinic_models"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["build", "model", "Net.Small"])
def test_a_function_a_module_and_a_class_are_models(name):
    assert isinstance(target.load_model(f"clinic_models.nets:{name}"), torch.nn.LayerNorm)


def test_a_batch_is_a_value_or_what_a_function_returns():
    model, batch = target.load("clinic_models.nets:build", "clinic_models.nets:batch")
    assert model(batch).shape == (2, 4)
    assert list(target.load_batch("clinic_models.nets:one_batch")) == ["input"]
    assert target.load("clinic_models.nets:build")[1] is None


REFUSED = [  # target, words of the message
    ("clinic_models.nets:bild", "clinic_models.nets has no attribute 'bild'.", "did you mean build?"),
    ("clinic_models.nets:build.deeper", "clinic_models.nets.build has no attribute 'deeper'", ""),
    ("clinic_models.net:build", "there is no module 'clinic_models.net'", "did you mean clinic_models.nets?"),
    ("clinic_model:build", "there is no module 'clinic_model'", "did you mean clinic_models?"),
    ("clinic_models.nets:with_arguments", "needs arguments: dim, depth.", "with_arguments(dim=…, depth=…)"),
    ("clinic_models.nets:fails", "fails() raised RuntimeError: no weights (", "nets.py:12)"),
    ("clinic_models.nets:leaves", "leaves() called sys.exit(4)", "nets.py:15)"),
    ("clinic_models.nets:pair", "pair() returned tuple.", "build()[0]"),
    ("clinic_models.nets:later", "later() returned coroutine.", "a torch.nn.Module"),
    ("clinic_models.nets:nothing", "nothing() returned NoneType.", "a torch.nn.Module"),
    ("clinic_models.nets:number", "clinic_models.nets:number is of type int.", "without arguments"),
    ("clinic_models.quits:x", "importing clinic_models.quits called sys.exit(3)", "quits.py:2)"),
    ("clinic_models.spelt:x", "importing clinic_models.spelt raised SyntaxError: ", "spelt.py:1)"),
    ("clinic_models.raises:x", "importing clinic_models.raises raised ValueError: at import", "py:2)"),
    ("clinic_models.needs:x", "raised ModuleNotFoundError: No module named 'not_installed", "needs.py:1)"),
    ("clinic_models/nets.py:build", "names a file.", "fix: normkit doctor clinic_models.nets:build"),
    ("clinic_models.nets", "clinic_models.nets is a module.", "fix: normkit doctor clinic_models.nets:build"),
    ("clinic models:build", "'clinic models:build' is neither a name nor a folder.", ""),
    ("clinic_models.nets:", "is neither a name nor a folder.", "package.module:attribute"),
    ("clinic_models", "clinic_models has no config.json.", "there is __init__.py, "),
    ("clinic_models/nets.py", "clinic_models/nets.py is a file.", "a folder with a config.json"),
    ("clinic_model", "there is no clinic_model.", "did you mean clinic_models?"),
    ("org/model", "there is no org/model.", "nothing is downloaded; first  hf download org/model"),
]


@pytest.mark.parametrize(("name", "said", "more"), REFUSED)
def test_a_target_that_is_none_is_refused_in_plain_words(name, said, more):
    with pytest.raises(NormkitError) as error:
        target.load_model(name)
    assert said in str(error.value)
    assert more in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_batch", "--batch got 'one_batch'."),
        ("clinic_models.nets:nothing", "clinic_models.nets:nothing gave None."),
        ("clinic_models.nets:with_arguments", "needs arguments: dim, depth."),
    ],
)
def test_a_batch_that_is_none_is_refused(name, said):
    with pytest.raises(NormkitError, match=said):
        target.load_batch(name)


# folders


def folder(path, config=CONFIG, weights=None):
    """With a config, and a file of weights where there are some."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights is not None:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def weights():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**CONFIG))
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(3)
    return {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}


def test_a_config_alone_is_a_model_on_the_meta_device_in_evaluation_mode(here):
    notes = []
    model = target.load_model(str(folder(here / "config")), notes)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert not model.training
    assert notes == ["No weights were read: the config alone was examined, on the meta device."]


@pytest.mark.parametrize("name", ["xlnet", "mamba2"])  # a tensor on no device; a number that JSON has not
def test_configs_with_ways_of_their_own_are_models_without_numbers_too(here, name):
    config = hugging_face.build(name)[0].config
    model = target.load_model(str(folder(here / name, config.to_json_string(use_diff=False))))
    assert all(p.is_meta for p in model.parameters())
    assert doctor(model).ok


def test_a_model_that_the_meta_device_cannot_run_gets_random_weights_if_it_is_small(here, monkeypatch):
    model = target.load_model(str(folder(here / "config")))
    made_up = with_random_weights(model)
    assert type(made_up) is type(model)
    assert not any(p.is_meta for p in made_up.parameters())
    assert not made_up.training
    assert with_random_weights(made_up) is None, "it has numbers"
    monkeypatch.setattr("normkit.loading.folder.SMALL", 100)
    assert with_random_weights(model) is None
    assert with_random_weights(torch.nn.LayerNorm(4, device="meta")) is None


def test_weights_are_read_whole_in_parts_and_under_another_name(here, weights):
    whole = folder(here / "whole", weights=weights)
    other = folder(here / "other", weights=weights)
    (other / "model.safetensors").rename(other / "my weights.safetensors")
    parts = folder(here / "parts")
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({n: weights[n] for n in held}, parts / file)
    index = {"weight_map": {n: file for file, held in files.items() for n in held}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (whole, other, parts):
        notes = []
        model = target.load_model(str(path), notes)
        assert notes == []
        assert model.transformer.ln_f.weight.eq(3).all()
        assert not model.training
        assert model.lm_head.weight is model.transformer.wte.weight


def test_missing_left_over_and_odd_weights_are_reported_and_not_fatal(here, weights):
    given = {**weights, "more": torch.ones(2), "transformer.h.0.ln_1.weight": torch.ones(5)}
    del given["transformer.ln_f.weight"]
    notes = []
    target.load_model(str(folder(here / "odd", weights=given)), notes)
    assert notes == [
        "Missing in the files, so random: transformer.ln_f.weight.",
        "In the files, without a place in the model: more.",
        "Of another shape in the files, so random: transformer.h.0.ln_1.weight [5] for [16].",
    ]


def test_pickle_is_named_and_never_read(here):
    path = folder(here / "pickle")
    mark = here / "ran"
    (path / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {mark}'\ntR.".encode())
    notes = []
    target.load_model(str(path), notes)
    assert notes[0] == "Not read, for pickle runs code: pytorch_model.bin."
    assert not mark.exists()


def test_code_in_the_folder_is_never_run(here):
    own = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    mark = here / "ran"
    for name, config in {"new": {**own, "model_type": "cool"}, "known": {**CONFIG, **own}}.items():
        (folder(here / name, config) / "modeling.py").write_text(f"open({str(mark)!r}, 'w')")
    with pytest.raises(NormkitError, match="its code is in the folder, and is not run"):
        target.load_model(str(here / "new"))
    notes = []
    assert type(target.load_model(str(here / "known"), notes)).__module__.startswith("transformers.")
    assert notes[0] == "The folder's own code was not run: gpt2 is transformers' own."
    assert not mark.exists()


def test_settings_that_fetch_something_are_left_out(here, weights):
    fetched = {"_attn_implementation": "kernels/evil", "attn_implementation": "kernels/evil"}
    config = {**CONFIG, **fetched, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    notes = []
    model = target.load_model(str(folder(here / "fetch", config, weights)), notes)
    assert "evil" not in model.config.to_json_string()
    assert notes[0] == "The weights are quantised, and were not read."


def test_the_class_is_the_architectures_if_transformers_has_it_and_it_fits(here):
    for k, (named, built) in enumerate(
        [
            (["GPT2Model"], "GPT2Model"),
            (["BertModel"], "GPT2LMHeadModel"),
            (["pipeline", 3, None], "GPT2LMHeadModel"),
            (None, "GPT2LMHeadModel"),
        ]
    ):
        notes = []
        path = folder(here / str(k), {**CONFIG, "architectures": named})
        assert type(target.load_model(str(path), notes)).__name__ == built
        assert len(notes) == 1 + (named not in (None, ["GPT2Model"]))
    old = {k: v for k, v in CONFIG.items() if k != "model_type"}
    assert type(target.load_model(str(folder(here / "old", old)))).__name__ == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"model_type": ', "config.json cannot be read: Expecting value: line 1 column 16"),
        ("[1]", "config.json holds a JSON list."),
        ("[" * 100_000, "config.json cannot be read"),
        ({"model_type": "lama"}, "which transformers"),
        ({"model_type": "lama"}, "fix: did you mean 'llama'?"),
        ({"model_type": 3}, "is of the model type 3"),
        ({"hidden_size": 3}, "names no model_type, and no architecture of transformers'"),
        ({**CONFIG, "n_head": 3}, "GPT2LMHeadModel could not be built from"),
        ({**CONFIG, "n_head": "two"}, "the config of a gpt2 could not be built from"),
    ],
)
def test_a_config_that_is_none_is_refused_in_plain_words(here, config, said):
    with pytest.raises(NormkitError) as error:
        target.load_model(str(folder(here / "broken", config)))
    assert said in str(error.value)


def test_weights_that_cannot_be_read_are_refused(here, weights):
    cut = folder(here / "cut", weights=weights) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:2000])
    with pytest.raises(NormkitError, match=r"cut/model\.safetensors cannot be read: "):
        target.load_model(str(cut.parent))
    lost = folder(here / "lost") / "model.safetensors.index.json"
    for said, index in {
        "a.safetensors is missing; model.safetensors.index.json names it.": {
            "weight_map": {"w": "a.safetensors"}
        },
        "names other files than safetensors beside it": {"weight_map": {"w": "../cut/model.safetensors"}},
        "index.json cannot be read": {"weights": 3},
    }.items():
        lost.write_text(json.dumps(index))
        with pytest.raises(NormkitError) as error:
            target.load_model(str(lost.parent))
        assert said in str(error.value)


def test_links_and_paths_in_any_script_are_followed(here, weights):
    real = folder(here / "Größe 模型", weights=weights)
    (here / "link").symlink_to(real)
    (here / "links").mkdir()
    for file in ("config.json", "model.safetensors"):
        (here / "links" / file).symlink_to(real / file)
    for path in (real, here / "link", here / "links"):
        assert target.load_model(str(path)).transformer.ln_f.weight.eq(3).all()
    (here / "gone").symlink_to("nowhere")
    with pytest.raises(NormkitError, match="gone is a link to nowhere, which is not there"):
        target.load_model("gone")


def test_a_folder_above_the_config_is_answered_with_the_folder_below(here):
    folder(here / "cache" / "snapshot")
    with pytest.raises(NormkitError, match=f"fix: normkit doctor cache{os.sep}snapshot"):
        target.load_model("cache")


def test_without_transformers_it_says_how_to_install_it(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(NormkitError, match="fix: pip install transformers"):
        target.load_model(str(folder(here / "config")))


def test_more_weights_than_memory_are_left_alone(here, weights, monkeypatch):
    from normkit.loading import safetensors_files

    monkeypatch.setattr(safetensors_files, "_memory", lambda: 1000)
    notes = []
    model = target.load_model(str(folder(here / "large", weights=weights)), notes)
    assert next(model.parameters()).is_meta
    assert notes[0].startswith("The weights take 0 GiB, and there is 0: they were not read.")
