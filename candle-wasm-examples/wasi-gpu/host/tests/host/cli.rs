//! The program.

use std::path::Path;
use std::process::{Command, Output};

use crate::guests;

fn program(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wasi-gpu"))
        .args(args)
        .current_dir(dir)
        .env("SECRET_OF_THE_HOST", "1")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit code 1, nothing on standard output, one line on standard error with `want` in it.
#[track_caller]
fn fails(dir: &Path, args: &[&str], want: &str) {
    let output = program(dir, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    let lines: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.starts_with("device"))
        .collect();
    assert_eq!(lines.len(), 1, "{args:?}: {stderr}");
    assert!(lines[0].starts_with("error: "), "{args:?}: {stderr}");
    assert!(lines[0].contains(want), "{args:?}: {want:?} in {stderr}");
}

/// A directory with guests in it.
fn guests_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, wasm: Vec<u8>| std::fs::write(dir.path().join(name), wasm).unwrap();
    write("mirror.wasm", guests::mirror());
    write(
        "hello.wasm",
        guests::command(
            r#"(data (i32.const 64) "hello\n")
            (func (export "_start") (call $print (i32.const 64) (i32.const 6)))"#,
        ),
    );
    write(
        "seven.wasm",
        guests::command(r#"(func (export "_start") (call $exit (i32.const 7)))"#),
    );
    write(
        "trap.wasm",
        guests::command(r#"(func (export "_start") (unreachable))"#),
    );
    write(
        "spin.wasm",
        guests::command(r#"(func (export "_start") (loop $again (br $again)))"#),
    );
    // Prints its arguments and variables as WASI lays them out: texts that end with a zero.
    write(
        "given.wasm",
        guests::command(
            r#"(func (export "_start")
                (drop (call $args_sizes (i32.const 32) (i32.const 36)))
                (drop (call $args (i32.const 4096) (i32.const 8192)))
                (call $print (i32.const 8192) (i32.load (i32.const 36)))
                (drop (call $env_sizes (i32.const 32) (i32.const 36)))
                (drop (call $env (i32.const 4096) (i32.const 8192)))
                (call $print (i32.const 8192) (i32.load (i32.const 36))))"#,
        ),
    );
    write("files.wasm", guests::command(FILES));
    write(
        "missing.wasm",
        wat::parse_str(r#"(component (import "a:b/c@1.0.0" (instance (export "f" (func)))))"#)
            .unwrap(),
    );
    write("text.wasm", b"not wasm".to_vec());
    dir
}

/// Opens files under the first directory that it was given, and prints for each `0` if it could and `x` if not.
const FILES: &str = r#"
    (data (i32.const 64) "in.txt")
    (data (i32.const 80) "../out.txt")
    (data (i32.const 96) "/etc/passwd")
    (data (i32.const 112) "link.txt")
    (data (i32.const 128) "sub/../../out.txt")
    (func $try (param $at i32) (param $len i32)
        (i32.store8 (i32.const 48)
            (select (i32.const 120) (i32.const 48)
                (call $path_open (i32.const 3) (i32.const 1) (local.get $at) (local.get $len) (i32.const 0)
                    (i64.const 2) (i64.const 2) (i32.const 0) (i32.const 40))))
        (call $print (i32.const 48) (i32.const 1)))
    (func (export "_start")
        (call $try (i32.const 64) (i32.const 6))
        (call $try (i32.const 80) (i32.const 10))
        (call $try (i32.const 96) (i32.const 11))
        (call $try (i32.const 112) (i32.const 8))
        (call $try (i32.const 128) (i32.const 17)))
"#;

const CPU: [&str; 3] = ["run", "--device", "cpu"];

fn cpu<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&CPU[..], args].concat()
}

#[test]
fn commands_print_and_give_their_exit_code() {
    let dir = guests_dir();
    let output = program(dir.path(), &cpu(&["hello.wasm"]));
    assert_eq!(text(&output.stdout), "hello\n", "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "device: cpu\n");
    assert_eq!(output.status.code(), Some(0));
    let output = program(dir.path(), &cpu(&["seven.wasm"]));
    // WASI 0.2 tells success from failure alone.
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn auto_says_which_device_it_took() {
    let dir = guests_dir();
    let output = program(dir.path(), &["run", "hello.wasm"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let (last, before) = lines.split_last().unwrap();
    assert!(last.starts_with("device: "), "{stderr}");
    for line in before {
        assert!(line.contains("is passed over: "), "{stderr}");
    }
    assert_eq!(*last == "device: cpu", before.len() == 3, "{stderr}");
}

#[test]
fn a_guest_has_nothing_that_it_was_not_given() {
    let dir = guests_dir();
    let output = program(dir.path(), &cpu(&["given.wasm"]));
    assert_eq!(text(&output.stdout), "given.wasm\0");
    let args = cpu(&[
        "--env",
        "A=1",
        "--env",
        "B=x=y",
        "given.wasm",
        "--",
        "-v",
        "two words",
    ]);
    let output = program(dir.path(), &args);
    let want = "given.wasm\0-v\0two words\0A=1\0B=x=y\0";
    assert_eq!(text(&output.stdout), want);
}

#[test]
fn a_directory_is_given_and_nothing_around_it() {
    let dir = guests_dir();
    let path = dir.path();
    std::fs::create_dir_all(path.join("given/sub")).unwrap();
    std::fs::write(path.join("given/in.txt"), "in").unwrap();
    std::fs::write(path.join("out.txt"), "out").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(path.join("out.txt"), path.join("given/link.txt")).unwrap();
    for (args, want) in [
        (&["files.wasm"][..], "xxxxx"),
        (&["--dir", "given", "files.wasm"], "0xxxx"),
        (&["--dir", "given::.", "files.wasm"], "0xxxx"),
        (&["--dir", "given::/data", "files.wasm"], "0xxxx"),
        (&["-d", "given", "files.wasm"], "0xxxx"),
    ] {
        let output = program(path, &cpu(args));
        assert_eq!(
            text(&output.stdout),
            want,
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    fails(
        path,
        &cpu(&["--dir", "absent", "files.wasm"]),
        "the directory absent",
    );
}

#[test]
fn functions_of_libraries_are_called() {
    let dir = guests_dir();
    let args = cpu(&["--invoke", "echo", "mirror.wasm", r#""a b""#]);
    let output = program(dir.path(), &args);
    assert_eq!(
        text(&output.stdout),
        "\"a b\"\n",
        "{}",
        text(&output.stderr)
    );
    let args = cpu(&[
        "--stats",
        "--invoke",
        "buffer-create",
        "mirror.wasm",
        "16",
        "{storage}",
    ]);
    let output = program(dir.path(), &args);
    assert_eq!(text(&output.stdout), "ok(1)\n", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    let stderr = text(&output.stderr);
    for want in ["buffer-create", "16 B", "waits for the device: 0"] {
        assert!(stderr.contains(want), "{stderr}");
    }
    // An error that the function returns is a failure of the program.
    let args = cpu(&["--invoke", "buffer-destroy", "mirror.wasm", "77"]);
    let output = program(dir.path(), &args);
    assert_eq!(text(&output.stdout), "err(invalid-buffer)\n");
    assert_eq!(output.status.code(), Some(1));
    fails(dir.path(), &cpu(&["mirror.wasm"]), "is a library");
    fails(
        dir.path(),
        &cpu(&["--invoke", "nothing", "mirror.wasm"]),
        "get-device-info",
    );
    fails(
        dir.path(),
        &cpu(&["--invoke", "echo", "mirror.wasm", "x"]),
        "is string",
    );
    fails(
        dir.path(),
        &cpu(&["--invoke", "unreachable", "mirror.wasm"]),
        "trapped",
    );
    fails(
        dir.path(),
        &cpu(&["--invoke", "recurse", "mirror.wasm"]),
        "stack",
    );
}

/// The limits reach the guest and its device.
#[test]
fn limits_hold() {
    let dir = guests_dir();
    fails(
        dir.path(),
        &cpu(&["--timeout", "300ms", "spin.wasm"]),
        "longer than 300ms",
    );
    fails(
        dir.path(),
        &cpu(&["--fuel", "100000", "spin.wasm"]),
        "fuel of 100000",
    );
    fails(
        dir.path(),
        &cpu(&["--memory", "64KiB", "hello.wasm"]),
        "memory",
    );
    let args = cpu(&["--memory", "2MiB", "--invoke", "grow", "mirror.wasm"]);
    assert_eq!(text(&program(dir.path(), &args).stdout), "32\n");
    for (limit, value) in [("--gpu-memory", "1KiB"), ("--buffers", "0")] {
        let args = cpu(&[
            limit,
            value,
            "--invoke",
            "buffer-create",
            "mirror.wasm",
            "2048",
            "{}",
        ]);
        let output = program(dir.path(), &args);
        assert_eq!(text(&output.stdout), "err(out-of-memory)\n", "{limit}");
    }
    let args = cpu(&[
        "--gpu-memory",
        "1KiB",
        "--invoke",
        "get-device-info",
        "mirror.wasm",
    ]);
    let info = text(&program(dir.path(), &args).stdout);
    assert!(info.contains("total-memory: 1024"), "{info}");
}

#[test]
fn errors_are_one_line() {
    let dir = guests_dir();
    let dir = dir.path();
    fails(dir, &cpu(&["absent.wasm"]), "absent.wasm: ");
    fails(dir, &cpu(&["text.wasm"]), "not WebAssembly");
    fails(
        dir,
        &cpu(&["--guest-size", "8B", "hello.wasm"]),
        "allow it more with --guest-size",
    );
    fails(dir, &cpu(&["trap.wasm"]), "unreachable");
    fails(dir, &cpu(&["missing.wasm"]), "does not have: a:b/c@1.0.0");
    fails(dir, &["run", "--device", "gpu", "hello.wasm"], "gpu");
    fails(
        dir,
        &["run", "--device", "webgpu:99", "hello.wasm"],
        "webgpu:99",
    );
    fails(
        dir,
        &["run", "--backend", "cuda:99", "hello.wasm"],
        "cuda:99",
    );
    fails(dir, &["run", "-b", "metal:99", "hello.wasm"], "metal:99");
    fails(dir, &cpu(&["--env", "=1", "hello.wasm"]), "--env");
    fails(dir, &cpu(&["--timeout", "soon", "hello.wasm"]), "--timeout");
    fails(dir, &cpu(&["--memory", "much", "hello.wasm"]), "--memory");
    fails(dir, &["run"], "GUEST");
    fails(dir, &["explode"], "explode");
    fails(dir, &["inspect", "absent.wasm"], "absent.wasm: ");
    fails(dir, &["inspect", "text.wasm"], "not WebAssembly");
    fails(
        dir,
        &["componentize", "text.wasm", "-o", "o.wasm"],
        "not a core module",
    );
    fails(
        dir,
        &["componentize", "mirror.wasm", "-o", "o.wasm"],
        "not a core module",
    );
    fails(
        dir,
        &["componentize", "hello.wasm", "-o", "no/o.wasm"],
        "no/o.wasm: ",
    );
}

#[test]
fn core_modules_become_components() {
    let dir = guests_dir();
    let dir = dir.path();
    let output = program(dir, &["componentize", "hello.wasm", "-o", "component.wasm"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = program(dir, &cpu(&["component.wasm"]));
    assert_eq!(text(&output.stdout), "hello\n");
    for (guest, want) in [
        ("hello.wasm", "a command, a core module"),
        ("component.wasm", "a command, a component"),
        ("missing.wasm", "this host lacks: a:b/c@1.0.0"),
    ] {
        let output = program(dir, &["inspect", guest]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(want), "{guest}");
    }
}

#[test]
fn devices_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let output = program(dir.path(), &["devices"]);
    assert_eq!(output.status.code(), Some(0));
    let report = text(&output.stdout);
    for name in ["cuda", "metal", "webgpu", "cpu"] {
        let line = report.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(
            line.contains(" present") || line.contains(" absent: "),
            "{line}"
        );
    }
    let last = report.lines().last().unwrap();
    assert!(last.starts_with("auto is "), "{report}");
}

#[test]
fn help_and_version() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let output = program(dir.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{args:?}"
        );
    }
}
