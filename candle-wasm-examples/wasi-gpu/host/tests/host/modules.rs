//! Core modules, and components whose imports this host does not have.

use wasi_gpu::{componentize, Error, Limits, Runner, WasiCtx};

use crate::fake::Device;
use crate::guests;

/// As the original's guests are: a core module by the canonical ABI, without a world inside.
const CORE: &str = r#"(module
    (import "wasi:gpu/compute@0.1.0" "buffer-create" (func $create (param i64 i32 i32)))
    (import "wasi:gpu/ml-kernels@0.1.0" "kernel-reduce" (func $reduce (param i32 i32 i32 i32 i32)))
    (memory (export "memory") 1)
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
    (func (export "_start")
        (call $create (i64.const 64) (i32.const 32) (i32.const 128))
        (call $reduce (i32.const 16) (i32.const 3) (i32.load (i32.const 132)) (i32.const 1) (i32.const 128))))"#;

fn runner() -> Runner {
    Runner::new(Limits::default()).unwrap()
}

#[tokio::test]
async fn a_core_module_with_a_start_is_a_command() {
    let runner = runner();
    let module = wat::parse_str(CORE).unwrap();
    let component = componentize(&module).unwrap();
    for wasm in [&module, &component] {
        let program = runner.load(wasm).unwrap();
        assert!(program.is_command());
        let device = Device::default();
        let backend = device.backend("vulkan");
        let mut guest = runner
            .start_on(&program, backend, WasiCtx::default())
            .await
            .unwrap();
        assert_eq!(guest.run().await.unwrap(), 0);
        let want = [
            "create 64 100000",
            "ReduceParams { n_elements: 16, op: Mean } 1 1",
        ];
        assert_eq!(device.calls(), want);
    }
    let inspection = runner.inspect(&module).unwrap();
    assert!(inspection.core_module && inspection.command);
    assert!(!runner.inspect(&component).unwrap().core_module);
}

#[tokio::test]
async fn exit_codes_say_whether_it_went_well() {
    let runner = runner();
    for code in [0, 1, 7, 125] {
        let body = format!(r#"(func (export "_start") (call $exit (i32.const {code})))"#);
        let program = runner.load(&guests::command(&body)).unwrap();
        let backend = Device::default().backend("cpu");
        let mut guest = runner
            .start_on(&program, backend, WasiCtx::default())
            .await
            .unwrap();
        // WASI 0.2 has no other failures than this one.
        assert_eq!(guest.run().await.unwrap(), i32::from(code != 0));
        let err = guest.run().await.unwrap_err();
        assert!(matches!(err, Error::Ended), "{err}");
    }
}

#[test]
fn a_module_with_other_imports_is_an_error_that_names_them() {
    for (module, want) in [
        (r#"(module (import "env" "magic" (func)))"#, "env"),
        (
            r#"(module (import "wasi:gpu/compute@0.1.0" "buffer-explode" (func)))"#,
            "buffer-explode",
        ),
        (
            r#"(module (import "wasi:gpu/compute@0.1.0" "sync" (func (param i32))))"#,
            "sync",
        ),
        (
            r#"(module (import "wasi_snapshot_preview1" "fd_explode" (func)))"#,
            "fd_explode",
        ),
    ] {
        let module = wat::parse_str(module).unwrap();
        let err = runner().load(&module).unwrap_err();
        assert!(matches!(err, Error::Componentize(_)), "{err}");
        let text = err.to_string();
        assert!(text.contains(want) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn bytes_that_are_not_webassembly_are_an_error() {
    let good = guests::mirror();
    let runner = runner();
    for wasm in [
        &b""[..],
        b"\0asm",
        b"#!/bin/sh",
        b"\0asm\x01\0\0\0\xff",
        b"\0asm\x0d\0\x01\0\xff",
        &good[..good.len() - 1],
        &good[..100],
    ] {
        let err = runner.load(wasm).unwrap_err();
        let kind = matches!(err, Error::Invalid(_) | Error::Componentize(_));
        assert!(kind && !err.to_string().contains('\n'), "{err}");
    }
}

/// A changed byte may go unnoticed, in a name or a constant, but nothing panics.
#[test]
fn broken_webassembly_is_an_error_of_one_line() {
    let good = guests::mirror();
    let runner = runner();
    let mut errors = 0;
    for at in (8..good.len()).step_by(good.len() / 50) {
        let mut broken = good.clone();
        broken[at] ^= 0x55;
        if let Err(err) = runner.load(&broken) {
            errors += 1;
            assert!(!err.to_string().contains('\n'), "{err}");
        }
    }
    assert!(errors > 10, "{errors}");
}

fn importing(name: &str, functions: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component (import "{name}" (instance {functions})))"#
    ))
    .unwrap()
}

#[test]
fn missing_imports_are_named() {
    let runner = runner();
    let f = r#"(export "f" (func))"#;
    for (name, functions, missing) in [
        ("a:b/c@1.0.0", f, "a:b/c@1.0.0"),
        ("wasi:gpu/compute@0.2.0", f, "wasi:gpu/compute@0.2.0"),
        ("wasi:http/types@0.2.0", f, "wasi:http/types@0.2.0"),
        (
            "wasi:gpu/compute@0.1.0",
            r#"(export "f" (func)) (export "sync" (func))"#,
            "wasi:gpu/compute@0.1.0#f",
        ),
    ] {
        let wasm = importing(name, functions);
        let err = runner.load(&wasm).unwrap_err();
        match &err {
            Error::MissingImports(names) => assert_eq!(names, &[missing]),
            other => panic!("{other}"),
        }
        assert!(err.to_string().contains(missing), "{err}");
        let report = runner.inspect(&wasm).unwrap().to_string();
        assert!(report.contains(&format!("lacks: {missing}\n")), "{report}");
        assert!(report.contains("f()  [lacking]"), "{report}");
    }
    let wasm = wat::parse_str(r#"(component (import "f" (func)))"#).unwrap();
    let err = runner.load(&wasm).unwrap_err();
    assert!(
        matches!(&err, Error::MissingImports(names) if names == &["f"]),
        "{err}"
    );
}

/// Also tells whether the versions that `inspect` goes by are those of wasmtime-wasi.
#[test]
fn what_this_host_has_is_not_missing() {
    let runner = runner();
    for (name, functions) in [
        ("wasi:gpu/compute@0.1.0", r#"(export "sync" (func))"#),
        ("wasi:gpu/compute@0.1.9", r#"(export "sync" (func))"#),
        (
            "wasi:random/random@0.2.0",
            r#"(export "get-random-u64" (func (result u64)))"#,
        ),
        (
            "wasi:random/random@0.2.12",
            r#"(export "get-random-u64" (func (result u64)))"#,
        ),
        (
            "wasi:cli/exit@0.2.12",
            r#"(export "exit" (func (param "status" (result))))"#,
        ),
    ] {
        let wasm = importing(name, functions);
        runner.load(&wasm).unwrap();
        let report = runner.inspect(&wasm).unwrap().to_string();
        assert!(report.contains("lacks: nothing"), "{report}");
    }
}

#[test]
fn an_import_of_another_type_is_named() {
    let wasm = importing(
        "wasi:gpu/compute@0.1.0",
        r#"(export "sync" (func (result u32)))"#,
    );
    let err = runner().load(&wasm).unwrap_err();
    assert!(matches!(err, Error::Link(_)), "{err}");
    let text = err.to_string();
    assert!(text.contains("sync") && !text.contains('\n'), "{text}");
}

#[test]
fn inspection_shows_signatures() {
    let report = runner().inspect(&guests::mirror()).unwrap().to_string();
    for want in [
        "a library, a component",
        "  wasi:gpu/compute@0.1.0\n",
        "    buffer-destroy(buffer: u32) -> result<_, variant {",
        "  echo(text: string) -> string\n",
        "lacks: nothing",
    ] {
        assert!(report.contains(want), "{want} in {report}");
    }
}

#[tokio::test]
async fn functions_are_found_by_name_and_by_interface() {
    let wasm = wat::parse_str(
        r#"(component
            (core module $m
                (func (export "one") (result i32) (i32.const 1))
                (func (export "two") (result i32) (i32.const 2)))
            (core instance $i (instantiate $m))
            (func $one (result u32) (canon lift (core func $i "one")))
            (func $two (result u32) (canon lift (core func $i "two")))
            (instance $a (export "f" (func $one)) (export "only" (func $two)))
            (instance $b (export "f" (func $two)))
            (export "x:y/a" (instance $a))
            (export "x:y/b" (instance $b))
            (export "top" (func $two)))"#,
    )
    .unwrap();
    let runner = runner();
    let program = runner.load(&wasm).unwrap();
    assert_eq!(
        program.exports(),
        ["x:y/a#f", "x:y/a#only", "x:y/b#f", "top"]
    );
    let backend = Device::default().backend("cpu");
    let mut guest = runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap();
    for (name, result) in [
        ("x:y/a#f", "1"),
        ("x:y/b#f", "2"),
        ("only", "2"),
        ("top", "2"),
    ] {
        assert_eq!(guest.invoke(name, &[""; 0]).await.unwrap(), [result]);
    }
    let err = guest.invoke("f", &[""; 0]).await.unwrap_err();
    assert!(matches!(err, Error::Ambiguous { .. }), "{err}");
    assert!(err.to_string().contains("x:y/a#f, x:y/b#f"), "{err}");
    let err = guest.run().await.unwrap_err();
    assert!(matches!(err, Error::NotACommand { .. }), "{err}");
}

/// Without a start a module has nothing of WASI put into it.
#[test]
fn a_module_that_imports_nothing_gets_no_imports() {
    let module = wat::parse_str(r#"(module (memory (export "memory") 1))"#).unwrap();
    let inspection = runner().inspect(&module).unwrap();
    assert!(inspection.imports.is_empty(), "{inspection}");
    assert!(inspection.exports.is_empty(), "{inspection}");
}
