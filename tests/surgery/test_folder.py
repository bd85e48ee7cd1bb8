"""Folders of Hugging Face's: a new one that the same classes load, with a certificate that can be checked."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from hugging_face import build
from surgery.models import trained

from normkit import NormkitError
from normkit.cli import main
from normkit.loading.folder import load_folder
from normkit.surgery.folder import CERTIFICATES, check_folder, operate_on_folder
from normkit.surgery.table import SURGERIES, surgery_of

FOLD = surgery_of("fold-affine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Small models with trained norms, saved once."""
    found = {}
    for name in ("llama", "gpt2", "gptj", "bert", "resnet"):
        path = tmp_path_factory.mktemp("hub") / name
        trained(build(name)[0]).save_pretrained(path)
        (path / "tokenizer.json").write_text("{}")
        (path / "pytorch_model.bin").write_bytes(b"a pickle")
        found[name] = path
    return found


def tokens(folder):
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder).eval()
    torch.manual_seed(0)
    ids = torch.randint(33, 53, (2, 8))
    return model, model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj"])
def test_the_new_folder_loads_in_transformers_and_writes_the_same_tokens(folders, tmp_path, name):
    out = tmp_path / "new"
    certificate = operate_on_folder(FOLD, folders[name], out, None, [])
    assert certificate.certified
    old, expected = tokens(folders[name])
    new, written = tokens(out)
    assert type(new) is type(old)
    assert torch.equal(written, expected)
    norms = [m for m in new.modules() if "Norm" in type(m).__name__]
    assert all(bool((m.weight == 1).all()) for m in norms)
    assert (out / "tokenizer.json").exists()
    assert not (out / "pytorch_model.bin").exists()
    assert not list(tmp_path.glob(".new*")), "nothing is left beside it"
    checked = check_folder(out, folders[name], [])
    assert checked.ok
    assert checked.same_original
    assert checked.difference < 1e-5


@pytest.mark.parametrize("name", [n for n, s in SURGERIES.items() if s.exact and s.in_files is not None])
def test_every_surgery_of_files_keeps_the_class_and_the_tokens(folders, tmp_path, name):
    certificate = operate_on_folder(SURGERIES[name], folders["gpt2"], tmp_path / "new", None, [])
    assert certificate.certified
    assert torch.equal(tokens(tmp_path / "new")[1], tokens(folders["gpt2"])[1])


def test_a_second_surgery_adds_its_certificate(folders, tmp_path):
    operate_on_folder(FOLD, folders["gpt2"], tmp_path / "one", None, [])
    operate_on_folder(surgery_of("center_to_rms"), tmp_path / "one", tmp_path / "two", None, [])
    names = [c["surgery"] for c in json.loads((tmp_path / "two" / CERTIFICATES).read_text())]
    assert names == ["fold_affine", "center_to_rms"]
    assert check_folder(tmp_path / "two", folders["gpt2"], []).ok


def test_weights_that_were_changed_afterwards_are_found(folders, tmp_path):
    out = tmp_path / "new"
    operate_on_folder(FOLD, folders["llama"], out, None, [])
    model = load_folder(out, [])
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] += 1e-3
    certificates = (out / CERTIFICATES).read_text()
    model.save_pretrained(out)
    (out / CERTIFICATES).write_text(certificates)
    checked = check_folder(out, None, [])
    assert not checked.ok
    assert checked.changed == ("model.layers.0.self_attn.q_proj.weight",)


def test_what_cannot_be_written_is_refused_before_the_work(folders, tmp_path):
    with pytest.raises(NormkitError, match="which is there"):
        operate_on_folder(FOLD, folders["llama"], folders["gpt2"], None, [])
    with pytest.raises(NormkitError, match="itself"):
        operate_on_folder(FOLD, folders["llama"], folders["llama"], None, [])
    with pytest.raises(NormkitError, match="other modules"):
        operate_on_folder(surgery_of("fold-batchnorm"), folders["resnet"], tmp_path / "new", None, [])
    with pytest.raises(NormkitError, match="cannot be done"):
        operate_on_folder(FOLD, folders["bert"], tmp_path / "new", None, [])
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_nothing_behind(folders, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(NormkitError, match="No space left"):
        operate_on_folder(FOLD, folders["llama"], tmp_path / "new", None, [])
    assert not list(tmp_path.iterdir())


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["surgery", *map(str, arguments)])
    return end.value.code or 0


def test_the_command(folders, tmp_path, capsys):
    assert run() == 0
    assert "fold-affine" in capsys.readouterr().out
    assert run("fold-affine", folders["llama"], "--dry-run") == 0
    assert "a dry run" in capsys.readouterr().out
    assert run("fold-affine", folders["llama"], "--out", tmp_path / "new") == 0
    out = capsys.readouterr().out
    assert "certified" in out
    assert f"wrote {tmp_path / 'new'}" in out
    assert run("--check", tmp_path / "new", "--original", folders["llama"]) == 0
    assert "The weights are those of the certificate." in capsys.readouterr().out
    assert run("equalise-gains", folders["llama"], "--out", tmp_path / "other", "--alpha", 0.3, "--json") == 0
    assert json.loads(capsys.readouterr().out)["arguments"] == {"alpha": 0.3}


BAD = [
    (("fold-afine", "x", "--dry-run"), "fix: normkit surgery fold-affine"),
    (("fold-affine",), "no model was named"),
    (("fold-affine", "."), "there is no --out"),
    (("fold-affine", ".", "--out", "x", "--dry-run"), "both given"),
    (("fold-affine", "nowhere", "--dry-run"), "there is no nowhere"),
    (("fold-batchnorm", ".", "--dry-run", "--tied", "untie"), "has no --tied"),
    (("recalibrate-bn", ".", "--dry-run"), "measures on data"),
    (("--check", "nowhere"), "there is no nowhere"),
    (("--original", "x"), "--original is for --check"),
    (("fold-affine", "", "--dry-run"), "TARGET"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_mistakes_are_said_in_one_line_and_exit_with_2(arguments, words, capsys):
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_a_certificate_that_is_none(folders, tmp_path):
    shutil.copytree(folders["llama"], tmp_path / "copy")
    for text in (None, "", "[]", '{"format": 1}', '[{"format": 2}]', "[" * 10000):
        if text is not None:
            (tmp_path / "copy" / CERTIFICATES).write_text(text)
        with pytest.raises(NormkitError, match=CERTIFICATES):
            check_folder(tmp_path / "copy", None, [])


def test_help_does_not_load_torch():
    code = "import sys; from normkit.cli.surgery import surgery; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
