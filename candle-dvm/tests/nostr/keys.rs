//! The files and memory that hold keys, and that keys do not leave them.

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
    // Unless it is systemd's: an access control list for the service's user shows as the group's right.
    let show_in = |folder: &std::path::Path| {
        let mut program = program(&show);
        program
            .env("CREDENTIALS_DIRECTORY", folder)
            .output()
            .unwrap()
    };
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o440)).unwrap();
    assert_eq!(stdout(&show_in(dir.path())), public);
    assert!(!show_in(&dir.path().join("other")).status.success());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o444)).unwrap();
    assert!(!show_in(dir.path()).status.success());
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
fn errors_do_not_quote_invalid_keys() {
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

/// Number of occurrences of the bytes in the memory of a process.
#[cfg(target_os = "linux")]
fn copies(process: u32, bytes: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut found = 0;
    let mut read = 0;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        let (start, end) = range.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = (at(start), at(end));
        // What the process can write. Nothing is that large but what was only reserved.
        if !rights.starts_with("rw") || end - start > 1 << 30 {
            continue;
        }
        let mut part = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut part, start).is_ok() {
            read += part.len();
            let same = |window: &&[u8]| *window == bytes;
            found += part.windows(bytes.len()).filter(same).count();
        }
    }
    assert!(read > 1 << 20, "only {read} bytes of memory were read");
    found
}

/// Each copy is one more that a core dump or a swapped page may show. One is in use, twice in itself; the rest are stacks on which it was read.
#[test]
#[cfg(target_os = "linux")]
fn a_service_has_few_copies_of_its_key() {
    use super::commands::Daemon;
    use super::relay::TestRelay;
    use super::served::Customer;
    use candle_dvm::key_file::KeySource;
    use candle_dvm::nip90::Scheme;
    let relays: Vec<TestRelay> = (0..4).map(|_| TestRelay::start()).collect();
    let urls: Vec<&str> = relays.iter().map(|relay| relay.url.as_str()).collect();
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&urls, dir.path(), &[]);
    relays.iter().for_each(|relay| {
        relay.wait_for(31990, 1);
    });
    let keys = KeySource::File(dir.path().join("key")).read().unwrap();
    for n in 0..8 {
        let job = Customer::new().request_with(&format!("fn a{n}("), |request| {
            request.params = vec![("max_tokens".to_string(), "2".to_string())];
            request.providers = vec![keys.public_key()];
            request.encryption = Some(Scheme::Nip44);
        });
        relays[0].publish(&job);
    }
    relays[0].wait_for(6050, 8);
    let found = copies(daemon.0.id(), keys.secret_key().as_secret_bytes());
    println!("{found} copies of the key");
    assert!((1..=12).contains(&found), "{found} copies of the key");
}
