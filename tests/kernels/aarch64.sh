#!/usr/bin/env bash
# make aarch64-test: compile the kernels for 64-bit ARM (NEON, with fused multiply-add) and run their tests under
# qemu-user, with Debian's Python and torch's own wheel for that machine. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
PIP="${PIP:-.venv/bin/python -m pip} --disable-pip-version-check"
BUILD="$PWD/build/aarch64-test" CXX=aarch64-linux-gnu-g++ TORCH=2.10.0  # the oldest that the library is for
ROOT="$BUILD/root" SITE="$BUILD/site" TREE="$BUILD/tree"

for command in qemu-aarch64 $CXX dpkg-deb apt-get; do
    command -v $command > /dev/null || {
        echo "There is no $command: apt-get install qemu-user g++-aarch64-linux-gnu, on Debian"
        exit 1
    }
done

if [ ! -e "$ROOT/.ready" ]; then
    echo "1/3 Debian's Python for arm64"
    mkdir -p "$ROOT" "$BUILD/debs"
    dpkg --print-foreign-architectures | grep -qx arm64 || { dpkg --add-architecture arm64 && apt-get update -qq; }
    (cd "$BUILD/debs" && apt-get download -qq $(printf '%s:arm64 ' python3.11-minimal libpython3.11-minimal \
        libpython3.11-stdlib libpython3.11-dev libc6 libstdc++6 libgcc-s1 zlib1g libexpat1 libffi8 libssl3 \
        libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libgomp1 libtinfo6 libncursesw6 libreadline8 libcrypt1) 2> /dev/null)
    for deb in "$BUILD"/debs/*.deb; do dpkg-deb --extract "$deb" "$ROOT"; done
    touch "$ROOT/.ready"
fi

if [ ! -e "$SITE/.ready" ]; then
    echo "2/3 torch $TORCH for arm64, and what the tests need"
    # Without dependencies: pip would choose those of this machine, gigabytes of CUDA among them.
    $PIP install -q --no-deps --target "$SITE" --only-binary=:all: --python-version 3.11 --implementation cp \
        --abi cp311 --abi abi3 --abi none --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform any \
        torch==$TORCH numpy typing_extensions sympy mpmath networkx filelock fsspec jinja2 markupsafe \
        pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers attrs rich markdown-it-py mdurl click \
        expecttest safetensors optree
    touch "$SITE/.ready"
fi

echo "3/3 the kernels"
rm -rf "$TREE" && mkdir -p "$TREE" && cp -r src tests pyproject.toml README.md "$TREE"
find "$TREE" -name '*.so' -delete
sources="$TREE/src/normkit/kernels/cpu/csrc"
for source in "$sources"/*.cpp; do
    echo "$CXX -std=c++17 -O2 -g0 -ffp-contract=off -fPIC -Wall -Wextra -Wno-psabi \
        -DTORCH_TARGET_VERSION=0x020a000000000000 -isystem $SITE/torch/include -isystem $ROOT/usr/include/python3.11 \
        -isystem $ROOT/usr/include -c $source -o ${source%.cpp}.o"
done | xargs -P "$(nproc)" -I{} sh -c '{}'
$CXX -shared -o "$TREE/src/normkit/kernels/cpu/_C.abi3.so" "$sources"/*.o -L "$SITE/torch/lib" -ltorch_cpu -lc10

export PYTHONPATH="$SITE:$TREE/src:$TREE/tests" LD_LIBRARY_PATH="$SITE/torch/lib" PYTHONDONTWRITEBYTECODE=1
cd "$TREE"
python="qemu-aarch64 -L $ROOT $ROOT/usr/bin/python3.11"
$python -c "import platform, torch, normkit as nk; print(platform.machine(), torch.__version__, nk.kernels.isa())"
# Without the tests that start a process (which the emulator cannot) or that need the extension of another torch.
$python -m pytest -q -p no:cacheprovider -W "ignore:Warning. Profiler clears events" \
    --ignore tests/kernels/test_instruction_sets.py --ignore tests/kernels/test_without_library.py \
    --ignore tests/kernels/test_eager.py "${@:-tests/kernels}"
