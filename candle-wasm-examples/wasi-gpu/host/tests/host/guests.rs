//! Guests as text.

use wit_component::{embed_component_metadata, StringEncoding};
use wit_parser::{Resolve, SourceMap};

/// The interface's functions, by interface, name and parameters of the canonical ABI; the last one is where the result goes.
const IMPORTS: [(&str, &str, &str); 14] = [
    ("compute", "get-device-info", "i32"),
    ("compute", "buffer-create", "i64 i32 i32"),
    ("compute", "buffer-write", "i32 i64 i32 i32 i32"),
    ("compute", "buffer-read", "i32 i64 i32 i32"),
    ("compute", "buffer-copy", "i32 i64 i32 i64 i64 i32"),
    ("compute", "buffer-destroy", "i32 i32"),
    ("compute", "sync", ""),
    (
        "ml-kernels",
        "kernel-bootstrap-sample",
        "i32 i32 i32 i32 i32",
    ),
    (
        "ml-kernels",
        "kernel-find-split",
        "i32 i32 i32 i32 i32 i32 i32 i32 i32 i32",
    ),
    ("ml-kernels", "kernel-average", "i32 i32 i32 i32 i32"),
    (
        "ml-kernels",
        "kernel-matmul",
        "i32 i32 i32 i32 i32 f32 f32 i32 i32 i32 i32",
    ),
    (
        "ml-kernels",
        "kernel-elementwise",
        "i32 i32 i32 i32 i32 i32 i32",
    ),
    ("ml-kernels", "kernel-reduce", "i32 i32 i32 i32 i32"),
    (
        "ml-kernels",
        "kernel-batch-predict",
        "i32 i32 i32 i32 i32 i32 i32 i32 i32",
    ),
];

/// Exports each function of the interface under its name, and some that do harm.
const WORLD: &str = r#"
package test:mirror;

world mirror {
    import wasi:gpu/compute@0.1.0;
    import wasi:gpu/ml-kernels@0.1.0;
    use wasi:gpu/compute@0.1.0.{buffer-usage, gpu-error, device-info};
    use wasi:gpu/ml-kernels@0.1.0.{bootstrap-params, find-split-params, average-params, matmul-params, elementwise-params,
        reduce-params, batch-predict-params};

    export get-device-info: func() -> device-info;
    export buffer-create: func(size: u64, usage: buffer-usage) -> result<u32, gpu-error>;
    export buffer-write: func(buffer: u32, offset: u64, data: list<u8>) -> result<_, gpu-error>;
    export buffer-read: func(buffer: u32, offset: u64, size: u32) -> result<list<u8>, gpu-error>;
    export buffer-copy: func(src: u32, src-offset: u64, dst: u32, dst-offset: u64, size: u64) -> result<_, gpu-error>;
    export buffer-destroy: func(buffer: u32) -> result<_, gpu-error>;
    export sync: func();
    export kernel-bootstrap-sample: func(params: bootstrap-params, output: u32) -> result<_, gpu-error>;
    export kernel-find-split: func(params: find-split-params, data: u32, labels: u32, indices: u32, thresholds: u32, output: u32)
        -> result<_, gpu-error>;
    export kernel-average: func(params: average-params, predictions: u32, output: u32) -> result<_, gpu-error>;
    export kernel-matmul: func(params: matmul-params, a: u32, b: u32, c: u32) -> result<_, gpu-error>;
    export kernel-elementwise: func(params: elementwise-params, a: u32, b: option<u32>, output: u32) -> result<_, gpu-error>;
    export kernel-reduce: func(params: reduce-params, input: u32, output: u32) -> result<_, gpu-error>;
    export kernel-batch-predict: func(params: batch-predict-params, samples: u32, nodes: u32, offsets: u32, output: u32)
        -> result<_, gpu-error>;

    /// Loops without end, in wasm alone or over calls of the host.
    export spin: func();
    export spin-syncs: func();
    export spin-creates: func();
    /// Grows its memory while it can and returns the pages that it then has.
    export grow: func() -> u32;
    /// Calls itself without end.
    export recurse: func();
    /// Writes a list of `len` bytes at `ptr`, whether its memory has them or not.
    export write-from: func(buffer: u32, ptr: u32, len: u32) -> result<_, gpu-error>;
    /// Gives flags and cases that do not exist to the host.
    export bad-usage: func(usage: u32) -> result<u32, gpu-error>;
    export bad-op: func(op: u32) -> result<_, gpu-error>;
    export bad-option: func(some: u32) -> result<_, gpu-error>;
    /// Returns its argument.
    export echo: func(text: string) -> string;
    export unreachable: func();
}
"#;

/// The guest's functions other than imports. Results are at 1024, the heap begins at 4096.
const BODY: &str = r#"
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 4096))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        (local $at i32)
        (local.set $at (i32.and
            (i32.add (global.get $top) (i32.sub (local.get 2) (i32.const 1)))
            (i32.sub (i32.const 0) (local.get 2))))
        (global.set $top (i32.add (local.get $at) (local.get 3)))
        (block $enough
            (loop $more
                (br_if $enough (i32.le_u (global.get $top) (i32.mul (memory.size) (i32.const 65536))))
                (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))
                (unreachable)))
        (local.get $at))
    (func (export "spin") (loop $again (br $again)))
    (func (export "spin-syncs") (loop $again (call $sync) (br $again)))
    (func (export "spin-creates")
        (loop $again
            (call $buffer-create (i64.const -1) (i32.const 32) (i32.const 1024))
            (br $again)))
    (func (export "grow") (result i32)
        (loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
        (memory.size))
    (func $recurse (export "recurse") (call $recurse) (call $recurse))
    (func (export "write-from") (param i32 i32 i32) (result i32)
        (call $buffer-write (local.get 0) (i64.const 0) (local.get 1) (local.get 2) (i32.const 1024))
        (i32.const 1024))
    (func (export "bad-usage") (param i32) (result i32)
        (call $buffer-create (i64.const 16) (local.get 0) (i32.const 1024))
        (i32.const 1024))
    (func (export "bad-op") (param i32) (result i32)
        (call $kernel-elementwise (i32.const 1) (local.get 0) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 1)
            (i32.const 1024))
        (i32.const 1024))
    (func (export "bad-option") (param i32) (result i32)
        (call $kernel-elementwise (i32.const 1) (i32.const 0) (i32.const 1) (local.get 0) (i32.const 0) (i32.const 1)
            (i32.const 1024))
        (i32.const 1024))
    (func (export "echo") (param i32 i32) (result i32)
        (i32.store (i32.const 1024) (local.get 0))
        (i32.store (i32.const 1028) (local.get 1))
        (i32.const 1024))
    (func (export "unreachable") (unreachable))
"#;

/// A component that exports the interface's functions as it imports them, and those of [`WORLD`] that do harm.
pub fn mirror() -> Vec<u8> {
    let mut text = String::from("(module\n");
    for (interface, name, params) in IMPORTS {
        text += &format!(
            "(import \"wasi:gpu/{interface}@0.1.0\" \"{name}\" (func ${name} (param {params})))\n"
        );
    }
    text += BODY;
    for (_, name, params) in IMPORTS {
        let params: Vec<&str> = params.split_whitespace().collect();
        let Some((_, given)) = params.split_last() else {
            text += &format!("(func (export \"{name}\") (call ${name}))\n");
            continue;
        };
        let gets: Vec<String> = (0..given.len())
            .map(|i| format!("(local.get {i})"))
            .collect();
        text += &format!(
            "(func (export \"{name}\") (param {}) (result i32) (call ${name} {} (i32.const 1024)) (i32.const 1024))\n",
            given.join(" "),
            gets.join(" ")
        );
    }
    text += ")";
    component(&text, WORLD, "mirror")
}

/// A component from a core module as text and a world, which may use `wasi:gpu`.
pub fn component(module: &str, wit: &str, world: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let mut sources = SourceMap::new();
    for (path, text) in [
        ("world.wit", include_str!("../../../wit/0.1/world.wit")),
        ("compute.wit", include_str!("../../../wit/0.1/compute.wit")),
        (
            "ml-kernels.wit",
            include_str!("../../../wit/0.1/ml-kernels.wit"),
        ),
    ] {
        sources.push_str(path, text);
    }
    let group = sources.parse().map_err(|(_, err)| err).unwrap();
    resolve.push_group(group).unwrap();
    let package = resolve.push_source("test.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(module).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    wasi_gpu::componentize(&module).unwrap()
}

/// A core module for WASI 0.1 with `_start`, as C and older Rust make it.
pub fn command(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (import "wasi_snapshot_preview1" "path_open"
                (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "environ_sizes_get" (func $env_sizes (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "environ_get" (func $env (param i32 i32) (result i32)))
            (memory (export "memory") 2)
            (func $print (param $at i32) (param $len i32)
                (i32.store (i32.const 16) (local.get $at))
                (i32.store (i32.const 20) (local.get $len))
                (drop (call $fd_write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))
            {body})"#
    );
    wat::parse_str(text).unwrap()
}
