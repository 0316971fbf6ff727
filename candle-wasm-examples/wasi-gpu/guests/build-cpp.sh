#!/bin/sh
# Builds the guests in C++: build-cpp.sh OUT [GUEST...]. README.md says what it takes.
#
# CLANG is the compiler, clang++-19 unless set. The linker and the libc are those of rustup's target wasm32-wasip2.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: build-cpp.sh OUT [forest-cpp|forest-free|seed-cpp]..." >&2
    exit 2
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$1"
out=$(CDPATH='' cd -- "$1" && pwd)
shift
[ $# -gt 0 ] || set -- forest-cpp forest-free seed-cpp

clang=${CLANG:-clang++-19}
sysroot=$(rustc --print sysroot)
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$sysroot/lib/rustlib/$host/bin
libc=$sysroot/lib/rustlib/wasm32-wasip2/lib/self-contained
for needed in "$tools/wasm-component-ld" "$libc/libc.a"; do
    if [ ! -e "$needed" ]; then
        echo "build-cpp.sh: $needed is missing: rustup target add wasm32-wasip2" >&2
        exit 1
    fi
done

# Sums must be those of the Rust guests: no fused multiply-add, no reordering.
flags="-std=c++20 -O2 -Wall -Wextra -Werror -fno-exceptions -fno-rtti -ffp-contract=off -I$here/include"

# Compiles $2... into objects named after $1.
compile() {
    name=$1
    shift
    objects=
    for source in "$@"; do
        object=$out/$name-$(basename "$source" .cpp).o
        # shellcheck disable=SC2086 # several flags
        "$clang" $flags $target -c "$here/$source" -o "$object"
        objects="$objects $object"
    done
}

# Links the objects of $1; the rest are the linker's arguments.
link() {
    name=$1
    shift
    # shellcheck disable=SC2086 # several objects
    "$tools/wasm-component-ld" --wasm-ld-path "$tools/gcc-ld/wasm-ld" --component-type "$here/../wit/0.1" $objects "$@" \
        -z stack-size=1048576 --stack-first --gc-sections --strip-all -o "$out/$name.wasm"
    # shellcheck disable=SC2086
    rm $objects
}

for guest in "$@"; do
    case $guest in
    forest-cpp)
        # Debian's headers are of 2022, and so is its libc.a, which loses the first line that such a program prints: rustup's is linked.
        target="--target=wasm32-wasi -isystem /usr/include/wasm32-wasi/c++/v1"
        compile forest-cpp forest-cpp/main.cpp
        link forest-cpp "$libc/crt1-command.o" -L"$libc" -L/usr/lib/wasm32-wasi -lc++ -lc++abi -lc \
            "$("$clang" --print-resource-dir)/lib/wasi/libclang_rt.builtins-wasm32.a"
        ;;
    forest-free)
        target="--target=wasm32 -ffreestanding -nostdlib -mbulk-memory -fno-c++-static-destructors"
        compile forest-free forest-cpp/free/library.cpp forest-cpp/free/heap.cpp
        link forest-free --component-type "$here/wit/forest.wit" --no-entry
        ;;
    seed-cpp)
        target="--target=wasm32 -ffreestanding -nostdlib -mbulk-memory -fno-c++-static-destructors"
        compile seed-cpp seed-cpp/main.cpp forest-cpp/free/heap.cpp
        link seed-cpp --component-type "$here/wit/example.wit" --no-entry
        ;;
    *)
        echo "build-cpp.sh: there is no guest \"$guest\"" >&2
        exit 2
        ;;
    esac
done
