"""Builds the C++ kernels where that is possible; everything else is in pyproject.toml.

The kernels use LibTorch's stable ABI, so one library serves every torch from 2.10 on and every Python from
3.10 on. They need a compiler and the headers of an installed torch. Without these the package installs all
the same, and ``normkit info`` says what was missing.
"""

import importlib.util
import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CPU = Path("src/normkit/kernels/cpu")
WHY_NOT = "build_error.txt"


def torch_folder():
    """Where torch is installed; also from within pip's isolated build, which hides it from import."""
    spec = importlib.util.find_spec("torch")
    folders = [Path(spec.origin).parent] if spec and spec.origin else []
    folders += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("platlib", "purelib")]
    for folder in folders:
        if (folder / "include/torch/csrc/stable/library.h").exists():
            return folder
    raise FileNotFoundError("torch 2.10 or later was not found; install it first, then normkit again")


class BuildKernels(build_ext):
    """A build that fails leaves a word about why, and a package that works without the kernels."""

    failure = ""

    def build_extension(self, extension):
        try:
            torch = torch_folder()
            extension.extra_compile_args += ["-isystem", str(torch / "include")]
            extension.library_dirs.append(str(torch / "lib"))
            self.compile_in_parallel()
            super().build_extension(extension)
        except Exception as error:
            self.failure = str(error).replace("[Errno 2] No such file or directory:", "there is no")
            print(f"normkit: kernels not built ({self.failure}); plain torch operations take their place.")
        self.leave_word(extension)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        for extension in self.extensions:
            self.leave_word(extension)

    def leave_word(self, extension):
        library = Path(self.get_ext_fullpath(extension.name))
        note = library.with_name(WHY_NOT)
        note.unlink(missing_ok=True)
        if self.failure:
            library.unlink(missing_ok=True)  # of an earlier build, which need not fit these sources
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(self.failure)

    def compile_in_parallel(self):
        one_after_the_other = self.compiler.compile

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

kernels = Extension(
    "normkit.kernels.cpu._C",
    sources=sorted(map(str, (CPU / "csrc").glob("*.cpp"))),
    depends=sorted(map(str, [*(CPU / "csrc").glob("*.h"), *(CPU / "csrc").glob("*.inc")])),
    libraries=["torch_cpu", "c10"],
    define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000")],
    extra_compile_args=FLAGS,
    extra_link_args=SANITIZE if os.environ.get("NORMKIT_SANITIZE") else [],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
