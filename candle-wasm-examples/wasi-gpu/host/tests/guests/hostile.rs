//! Attacks: each is an error or a trap of the guest that makes it, and another guest computes on.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use wasi_gpu::{DeviceChoice, Error, Guest, Limits, Runner, Val, WasiCtxBuilder};

use crate::{
    difference, guest_path, limits, on_devices, predict, runner, start, start_on, train, Data,
    Params,
};

/// The lines of an attack: what was tried, and what came of it.
async fn attack(guest: &mut Guest, name: &str, args: &[Val]) -> Vec<(String, String)> {
    let results = guest
        .call(name, args)
        .await
        .unwrap_or_else(|err| panic!("{name}: {err}"));
    let Val::String(text) = &results[0] else {
        panic!("{name}: {results:?}")
    };
    lines_of(name, text)
}

fn lines_of(name: &str, text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(|line| {
        let (what, outcome) = line
            .split_once(": ")
            .unwrap_or_else(|| panic!("{name}: {line:?}"));
        (what.to_string(), outcome.to_string())
    });
    lines.collect()
}

fn outcome<'a>(lines: &'a [(String, String)], what: &str) -> &'a str {
    let found = lines.iter().find(|(line, _)| line == what);
    &found
        .unwrap_or_else(|| panic!("no {what:?} in {lines:?}"))
        .1
}

async fn sizes_and_numbers_of_buffers(choice: DeviceChoice) {
    let mut guest = start("hostile", choice).await;
    let lines = attack(&mut guest, "huge-buffers", &[]).await;
    assert!(
        outcome(&lines, "0 bytes").starts_with("invalid-params"),
        "{lines:?}"
    );
    for what in [
        "2^32 bytes",
        "2^63 bytes",
        "2^64 - 4 bytes",
        "2^64 - 1 bytes",
    ] {
        assert_ne!(outcome(&lines, what), "ok", "{what}");
    }
    assert_eq!(outcome(&lines, "16 bytes"), "ok");

    let many = [Val::U32(100_000), Val::U64(4)];
    let lines = attack(&mut guest, "many-buffers", &many).await;
    assert_eq!(outcome(&lines, "refused"), "out-of-memory");
    let created = outcome(&lines, "created");
    let count: usize = created.strip_prefix("ok: ").unwrap().parse().unwrap();
    // One of huge-buffers' is still there.
    assert_eq!(count, Limits::default().buffers - 1);
    assert_eq!(outcome(&lines, "freed"), created);
    assert_eq!(outcome(&lines, "different names"), created);
    assert_eq!(outcome(&lines, "one more"), "ok");
}

/// Names that are not a buffer's, for each buffer of every function.
async fn names(choice: DeviceChoice) {
    let mut guest = start("hostile", choice).await;
    let lines = attack(&mut guest, "bad-names", &[]).await;
    assert!(lines.len() > 60, "{lines:?}");
    for (what, outcome) in &lines {
        assert_eq!(outcome, "invalid-buffer", "{what}");
    }
    // Another guest's buffer, full of something.
    let mut other = start("hostile", choice).await;
    let left = other
        .call("leave", &[Val::U32(4096), Val::U8(0xA5)])
        .await
        .unwrap();
    let Val::U32(name) = crate::ok(&left[0]) else {
        panic!("{left:?}")
    };
    let mut guest = start("hostile", choice).await;
    let range = [Val::U32(*name), Val::U32(*name)];
    for (what, outcome) in attack(&mut guest, "foreign-names", &range).await {
        assert_eq!(outcome, "invalid-buffer", "{what}");
    }
}

async fn ranges(choice: DeviceChoice) {
    let mut guest = start("hostile", choice).await;
    let lines = attack(&mut guest, "wild-ranges", &[]).await;
    assert_eq!(outcome(&lines, "a good read"), "ok");
    for (what, outcome) in &lines {
        let (size, offset) = match what.split_once(" at ") {
            Some((call, offset)) => {
                let size = call.split(' ').find_map(|word| word.parse::<u64>().ok());
                (size.unwrap(), offset.parse::<u64>().unwrap())
            }
            None => continue,
        };
        let inside = offset.checked_add(size).is_some_and(|end| end <= 64);
        if inside {
            assert_eq!(outcome, "ok", "{what}")
        } else {
            assert!(outcome.starts_with("invalid-params"), "{what}: {outcome}")
        }
    }
    for (what, outcome) in attack(&mut guest, "overlapping-copies", &[]).await {
        assert_eq!(outcome, "ok", "{what}");
    }
}

/// A kernel returns a result for any parameters, and keeps working.
async fn parameters_and_indices(choice: DeviceChoice) {
    let mut guest = start("hostile", choice).await;
    for name in ["wild-parameters", "wild-indices"] {
        let lines = attack(&mut guest, name, &[]).await;
        assert!(lines.len() > 10, "{name}: {lines:?}");
        assert!(
            !lines.iter().any(|(what, _)| what == "stopped"),
            "{name}: {lines:?}"
        );
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for (what, outcome) in &lines {
            let kind = outcome.split(':').next().unwrap();
            assert!(
                ["ok", "invalid-params", "kernel-error", "out-of-memory"].contains(&kind),
                "{name}: {what}: {outcome}"
            );
            *kinds.entry(kind).or_default() += 1;
        }
        let expected = match name {
            "wild-parameters" => "invalid-params",
            _ => "kernel-error",
        };
        assert!(kinds.contains_key(expected), "{name}: {lines:?}");
        assert!(kinds.contains_key("ok"), "{name}: {lines:?}");
    }
}

async fn nothing_is_left_over(choice: DeviceChoice) {
    let mut guest = start("hostile", choice).await;
    let lines = attack(&mut guest, "residue", &[Val::U32(16), Val::U32(65_537)]).await;
    assert_eq!(
        lines,
        [("bytes that were not zero".to_string(), "ok: 0".to_string())]
    );
}

/// Work that the host has to end, while another guest trains.
async fn a_neighbour_computes_on(choice: DeviceChoice) {
    let short = Runner::new(Limits {
        timeout: Some(Duration::from_secs(2)),
        memory: 256 << 20,
        transfer: 16 << 20,
        ..limits()
    })
    .unwrap();
    let data = Data::load("data-iris.json");
    let params = Params {
        trees: 2,
        max_depth: 3,
        max_features: 2,
        bootstrap: true,
        seed: 1,
    };
    let mut alone = start("forest", choice).await;
    let (model, _) = train(&mut alone, params, &data).await;
    let expected = predict(&mut alone, "predict", &model, &data).await;
    for name in [
        "endless-loop",
        "endless-calls",
        "endless-kernels",
        "deep-recursion",
        "wild-list",
        "grow-memory",
    ] {
        let mut hostile = start_on(&short, "hostile", choice, WasiCtxBuilder::new().build()).await;
        let mut good = start_on(runner(), "forest", choice, WasiCtxBuilder::new().build()).await;
        let work = async {
            let (model, _) = train(&mut good, params, &data).await;
            predict(&mut good, "predict", &model, &data).await
        };
        let (harmed, predictions) = tokio::join!(hostile.call(name, &[]), work);
        match (name, harmed) {
            ("endless-loop" | "endless-calls" | "endless-kernels", Err(Error::Timeout(_))) => {}
            ("deep-recursion" | "wild-list", Err(Error::Trap(_))) => {}
            // It stays within its limit, and says so.
            ("grow-memory", Ok(_)) => {}
            (_, other) => panic!("{name}: {other:?}"),
        }
        let differs = difference(&predictions, &expected);
        assert!(differs <= 1e-6, "beside {name}: {differs}");
    }
}

on_devices!(
    sizes_and_numbers_of_buffers,
    names,
    ranges,
    parameters_and_indices,
    nothing_is_left_over,
    a_neighbour_computes_on,
);

/// Lists that are larger than a call may be, on either way.
#[tokio::test]
async fn lists_have_a_limit() {
    let small = Runner::new(Limits {
        memory: 128 << 20,
        transfer: 1 << 20,
        ..limits()
    })
    .unwrap();
    for name in ["giant-list", "giant-read"] {
        let wasi = WasiCtxBuilder::new().build();
        let mut guest = start_on(&small, "hostile", DeviceChoice::Cpu, wasi).await;
        let ended = guest.call(name, &[Val::U32(256 << 20)]).await;
        match ended {
            // The memory for it was refused, or the call.
            Err(Error::Trap(_)) => {}
            Ok(results) => {
                let Val::String(text) = &results[0] else {
                    panic!("{name}: {results:?}")
                };
                assert!(!text.contains("ok"), "{name}: {text}");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

/// Sockets and names are refused, by the library's default and by the program; the same guest reaches the port where a host lets it.
#[tokio::test]
async fn there_is_no_network() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let args = [Val::U16(port)];

    let mut guest = start("hostile", DeviceChoice::Cpu).await;
    refused(&attack(&mut guest, "network", &args).await);
    let came = listener.accept().map(drop).map_err(|err| err.kind());
    assert_eq!(came, Err(ErrorKind::WouldBlock));

    let output = Command::new(env!("CARGO_BIN_EXE_wasi-gpu"))
        .args(["run", "--device", "cpu", "--invoke", "network"])
        .arg(guest_path("hostile"))
        .arg(port.to_string())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    let text: String = serde_json::from_str(stdout.trim()).unwrap();
    refused(&lines_of("network", &text));
    let came = listener.accept().map(drop).map_err(|err| err.kind());
    assert_eq!(came, Err(ErrorKind::WouldBlock));

    let mut wasi = WasiCtxBuilder::new();
    wasi.inherit_network()
        .allow_tcp(true)
        .allow_udp(true)
        .allow_ip_name_lookup(true);
    let mut guest = start_on(runner(), "hostile", DeviceChoice::Cpu, wasi.build()).await;
    let lines = attack(&mut guest, "network", &args).await;
    for what in ["connect", "listen", "send", "resolve"] {
        assert_eq!(outcome(&lines, what), "ok", "{what}: {lines:?}");
    }
    listener.accept().unwrap();
}

#[track_caller]
fn refused(lines: &[(String, String)]) {
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (what, outcome) in lines {
        assert_ne!(outcome, "ok", "{what}");
    }
    assert_eq!(outcome(lines, "connect"), "PermissionDenied");
}
