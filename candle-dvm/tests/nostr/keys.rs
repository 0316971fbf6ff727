//! Where keys are kept, and that they stay there.

use crate::cli::{assert_one_line, program, run, stdout};
use std::io::Write;
use std::process::Stdio;

#[test]
#[cfg(unix)]
fn a_new_key_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let path = file.to_str().unwrap();
    let public = stdout(&run(&["key", "new", "--key-file", path]));
    assert!(public.starts_with("npub1"), "{public}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let show = ["key", "show-public", "--key-file", path];
    assert_eq!(stdout(&run(&show)), public);
    // Not written over.
    assert_one_line(&["key", "new", "--key-file", path], &[path, "exists"]);
    assert_eq!(stdout(&run(&show)), public);
    // Refused once others may read it.
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    assert_one_line(&show, &[path, "640", "chmod 600"]);
}

#[test]
fn keys_come_from_standard_input_and_the_environment() {
    let secret = "6b911fd37cdf5c81d4c0adb1ab7fa822ed253ab0ad9aa18d77257c88b29b718e";
    let keys = nostr::prelude::Keys::parse(secret).unwrap();
    let expected = format!("{}\n", keys.public_key().to_hex());
    let output = program(&["key", "show-public", "--hex"])
        .env("CANDLE_DVM_KEY", secret)
        .output()
        .unwrap();
    assert_eq!(stdout(&output), expected);
    let mut child = program(&["key", "show-public", "--hex", "--key-file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{secret}").unwrap();
    drop(stdin);
    assert_eq!(stdout(&child.wait_with_output().unwrap()), expected);
}

#[test]
fn what_is_no_key_is_not_repeated() {
    let output = program(&["key", "show-public"])
        .env("CANDLE_DVM_KEY", "nsec1almostasecret")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("CANDLE_DVM_KEY"), "{stderr}");
    assert!(!stderr.contains("almostasecret"), "{stderr}");
    assert_one_line(
        &["key", "show-public"],
        &["CANDLE_DVM_KEY", "not set", "--key-file"],
    );
    assert_one_line(
        &["key", "show-public", "--key-file", "/nowhere"],
        &["/nowhere"],
    );
}
