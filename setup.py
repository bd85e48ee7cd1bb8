"""Builds the C++ kernels where that is possible; everything else is in pyproject.toml.

The kernels, ``_C``, use LibTorch's stable ABI, so one library serves every torch from 2.10 on and every
Python from 3.10 on. ``_eager``, a short way to call them, is for the torch and the Python that it was built
with. Both need a compiler and the headers of an installed torch. Without these the package installs all the
same, and ``normkit info`` says what was missing.
"""

import importlib.util
import os
import re
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CPU = Path("src/normkit/kernels/cpu")
# Why a library was not built, next to where it would be.
NOTES = {"_C": "build_error.txt", "_eager": "eager_build_error.txt"}


def torch_folder():
    """Where torch is installed; also from within pip's isolated build, which hides it from import."""
    spec = importlib.util.find_spec("torch")
    folders = [Path(spec.origin).parent] if spec and spec.origin else []
    folders += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("platlib", "purelib")]
    for folder in folders:
        if (folder / "include/torch/csrc/stable/library.h").exists():
            return folder
    raise FileNotFoundError("torch 2.10 or later was not found; install it first, then normkit again")


def torch_version(folder):
    found = re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text())
    if found is None:
        raise ValueError(f"{folder / 'version.py'} does not say which torch this is")
    return found.group(1)


class BuildKernels(build_ext):
    """A build that fails leaves a word about why, and a package that works without it."""

    def run(self):
        self.failures = {}
        super().run()

    def build_extension(self, extension):
        try:
            torch = torch_folder()
            extension.extra_compile_args += ["-isystem", str(torch / "include")]
            extension.library_dirs.append(str(torch / "lib"))
            if extension is eager:
                extension.define_macros.append(("NORMKIT_TORCH", f'"{torch_version(torch)}"'))
            self.compile_in_parallel()
            super().build_extension(extension)
        except Exception as error:
            failure = str(error).replace("[Errno 2] No such file or directory:", "there is no")
            failure = re.sub(r"(?s)^[Cc]ommand .* (returned|failed)", r"the compiler \1", failure)
            self.failures[extension.name] = failure
            instead = "operators" if extension is eager else "plain torch operations"
            print(f"normkit: {extension.name} not built ({failure}); {instead} take its place.")
        self.leave_word(extension)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        for extension in self.extensions:
            self.leave_word(extension)

    def leave_word(self, extension):
        library = Path(self.get_ext_fullpath(extension.name))
        note = library.with_name(NOTES[extension.name.rpartition(".")[2]])
        note.unlink(missing_ok=True)
        if extension.name in self.failures:
            library.unlink(missing_ok=True)  # of an earlier build, which need not fit these sources
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(self.failures[extension.name])

    def compile_in_parallel(self):
        one_after_the_other = type(self.compiler).compile.__get__(self.compiler)

        def compile_each(sources, *args, **kwargs):
            with ThreadPoolExecutor() as pool:
                built = pool.map(lambda source: one_after_the_other([source], *args, **kwargs), sources)
                return [objects for part in built for objects in part]

        self.compiler.compile = compile_each


FLAGS = [
    "-std=c++17",
    "-O2",
    "-g0",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
if os.environ.get("NORMKIT_SANITIZE"):  # make sanitize
    FLAGS += ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZE]

EMULATED = (
    [("NK_EMULATE_AVX512", None)] if os.environ.get("NORMKIT_EMULATE_AVX512") else []
)  # make avx512-emulated

kernels = Extension(
    "normkit.kernels.cpu._C",
    sources=sorted(map(str, (CPU / "csrc").glob("*.cpp"))),
    depends=sorted(map(str, [*(CPU / "csrc").glob("*.h"), *(CPU / "csrc").glob("*.inc")])),
    libraries=["torch_cpu", "c10"],
    define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000"), *EMULATED],
    extra_compile_args=FLAGS,
    extra_link_args=SANITIZE if os.environ.get("NORMKIT_SANITIZE") else [],
    py_limited_api=True,
    optional=True,
)

eager = Extension(
    "normkit.kernels.cpu._eager",
    sources=[str(CPU / "csrc/eager/module.cpp")],
    depends=sorted(map(str, [CPU / "csrc/api.h", *(CPU / "csrc/eager").glob("*.h")])),
    libraries=["torch_python", "torch_cpu", "c10"],
    extra_compile_args=[*FLAGS, "-std=c++20"],
    extra_link_args=kernels.extra_link_args,
    optional=True,
)

setup(
    ext_modules=[kernels, eager],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
