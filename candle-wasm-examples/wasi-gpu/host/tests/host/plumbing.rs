//! Every import, with every kind of argument and answer, through a guest that passes them on.

use wasi_gpu::{Guest, Limits, Runner, WasiCtx};

use crate::fake::{long_text, Device, FAILING};
use crate::guests;

async fn guest(device: &Device, backend: &'static str) -> Guest {
    let runner = Runner::new(Limits::default()).unwrap();
    let program = runner.load(&guests::mirror()).unwrap();
    let backend = device.backend(backend);
    runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap()
}

/// Calls an export, which has one result.
async fn ask(guest: &mut Guest, name: &str, args: &[&str]) -> String {
    let results = guest.invoke(name, args).await.unwrap();
    results.join(" ")
}

/// One guest for all backends: on each the host waits in another way.
const BACKENDS: [&str; 3] = ["cpu", "cuda", "vulkan"];

#[tokio::test]
async fn device_info() {
    let guest = &mut guest(&Device::default(), "vulkan").await;
    let info = ask(guest, "get-device-info", &[]).await;
    let want = r#"{name: "Fäke", backend: "vulkan", total-memory: 18446744073709551615, is-hardware: true, compute-capability: "9.0"}"#;
    assert_eq!(info, want);
}

#[tokio::test]
async fn buffers() {
    for backend in BACKENDS {
        let device = Device::default();
        let guest = &mut guest(&device, backend).await;
        assert_eq!(
            ask(guest, "buffer-create", &["16", "{storage}"]).await,
            "ok(1)"
        );
        assert_eq!(ask(guest, "buffer-create", &["8", "{}"]).await, "ok(2)");
        assert_eq!(
            ask(guest, "buffer-write", &["1", "3", "[1, 2, 255]"]).await,
            "ok"
        );
        assert_eq!(ask(guest, "buffer-write", &["1", "16", "[]"]).await, "ok");
        assert_eq!(
            ask(guest, "buffer-read", &["1", "2", "5"]).await,
            "ok([0, 1, 2, 255, 0])"
        );
        assert_eq!(ask(guest, "buffer-read", &["1", "0", "0"]).await, "ok([])");
        assert_eq!(
            ask(guest, "buffer-copy", &["1", "3", "2", "6", "2"]).await,
            "ok"
        );
        assert_eq!(
            ask(guest, "buffer-read", &["2", "0", "8"]).await,
            "ok([0, 0, 0, 0, 0, 0, 1, 2])"
        );
        assert_eq!(guest.invoke("sync", &[""; 0]).await.unwrap(), [""; 0]);
        assert_eq!(ask(guest, "buffer-destroy", &["1"]).await, "ok");
        assert_eq!(
            ask(guest, "buffer-destroy", &["1"]).await,
            "err(invalid-buffer)"
        );
        let range = r#"err(invalid-params("out of range"))"#;
        let huge = u64::MAX.to_string();
        assert_eq!(ask(guest, "buffer-read", &["2", "8", "1"]).await, range);
        assert_eq!(ask(guest, "buffer-read", &["2", &huge, "1"]).await, range);
        assert_eq!(
            ask(guest, "buffer-write", &["2", &huge, "[1]"]).await,
            range
        );
        assert_eq!(
            ask(guest, "buffer-copy", &["2", &huge, "2", "0", &huge]).await,
            range
        );
        assert_eq!(
            ask(guest, "buffer-create", &[&huge, "{storage}"]).await,
            "err(out-of-memory)"
        );
        assert_eq!(
            device.calls(),
            [
                "create 16 100000",
                "create 8 000000",
                "write 1 3 3",
                "write 1 16 0",
                "read 1 2 5",
                "read 1 0 0",
                "copy 1 3 2 6 2",
                "read 2 0 8",
                "sync",
                "destroy 1",
                "destroy 1",
                "read 2 8 1",
                &format!("read 2 {huge} 1"),
                &format!("write 2 {huge} 1"),
                &format!("copy 2 {huge} 2 0 {huge}"),
                &format!("create {huge} 100000"),
            ]
        );
        let stats = guest.stats();
        assert_eq!(stats.function("buffer-create").count, 3);
        assert_eq!(stats.function("buffer-create").bytes, 24);
        assert_eq!(stats.function("buffer-create").errors, 1);
        assert_eq!(stats.function("buffer-write").bytes, 3);
        assert_eq!(stats.function("buffer-read").bytes, 13);
        assert_eq!(stats.function("buffer-copy").bytes, 2);
        assert_eq!(stats.waits(), 6);
        assert_eq!(stats.total().count, 16);
        assert_eq!(stats.total().errors, 6);
        assert!(stats.total().time > std::time::Duration::ZERO);
    }
}

#[tokio::test]
async fn every_flag_has_its_bit() {
    let device = Device::default();
    let guest = &mut guest(&device, "cpu").await;
    let flags = [
        "map-read",
        "map-write",
        "copy-src",
        "copy-dst",
        "uniform",
        "storage",
    ];
    for (bit, flag) in flags.iter().enumerate() {
        ask(guest, "buffer-create", &["4", &format!("{{{flag}}}")]).await;
        assert_eq!(device.calls(), [format!("create 4 {:06b}", 1 << bit)]);
    }
    ask(
        guest,
        "buffer-create",
        &["4", &format!("{{{}}}", flags.join(", "))],
    )
    .await;
    assert_eq!(device.calls(), ["create 4 111111"]);
}

#[tokio::test]
async fn long_lists() {
    let device = Device::default();
    let guest = &mut guest(&device, "vulkan").await;
    let size = 300_000;
    ask(guest, "buffer-create", &[&size.to_string(), "{storage}"]).await;
    let bytes: Vec<u8> = (0..size).map(|i: u32| (i * 7 % 251) as u8).collect();
    let text = format!("{bytes:?}");
    assert_eq!(ask(guest, "buffer-write", &["1", "0", &text]).await, "ok");
    let read = ask(guest, "buffer-read", &["1", "0", &size.to_string()]).await;
    assert!(read == format!("ok({text})"));
}

#[tokio::test]
async fn kernels() {
    for backend in BACKENDS {
        let device = Device::default();
        let guest = &mut guest(&device, backend).await;
        let calls: &[(&str, &[&str], &str)] = &[
            (
                "kernel-bootstrap-sample",
                &["{n-samples: 1, seed: 4294967295, max-index: 3}", "4"],
                "BootstrapParams { n_samples: 1, seed: 4294967295, max_index: 3 } 4",
            ),
            (
                "kernel-find-split",
                &["{n-samples: 1, n-features: 2, feature-idx: 3, n-thresholds: 4}", "5", "6", "7", "8", "9"],
                "FindSplitParams { n_samples: 1, n_features: 2, feature_idx: 3, n_thresholds: 4 } 5 6 7 8 9",
            ),
            (
                "kernel-average",
                &["{n-trees: 1, n-samples: 2}", "3", "4"],
                "AverageParams { n_trees: 1, n_samples: 2 } 3 4",
            ),
            (
                "kernel-matmul",
                &["{m: 1, k: 2, n: 3, trans-a: true, trans-b: false, alpha: 0.5, beta: -2}", "4", "5", "6"],
                "MatmulParams { m: 1, k: 2, n: 3, trans_a: true, trans_b: false, alpha: 0.5, beta: -2.0 } 4 5 6",
            ),
            (
                "kernel-matmul",
                &["{m: 1, k: 2, n: 3, trans-a: false, trans-b: true, alpha: nan, beta: inf}", "4", "5", "6"],
                "MatmulParams { m: 1, k: 2, n: 3, trans_a: false, trans_b: true, alpha: NaN, beta: inf } 4 5 6",
            ),
            (
                "kernel-batch-predict",
                &["{batch-size: 1, n-features: 2, n-trees: 3, max-depth: 4}", "5", "6", "7", "8"],
                "BatchPredictParams { batch_size: 1, n_features: 2, n_trees: 3, max_depth: 4 } 5 6 7 8",
            ),
        ];
        for (name, args, want) in calls {
            assert_eq!(ask(guest, name, args).await, "ok", "{name}");
            assert_eq!(device.calls(), [*want]);
        }
        for op in [
            "relu", "sigmoid", "tanh", "add", "mul", "sqrt", "exp", "log",
        ] {
            let params = format!("{{n-elements: 7, op: {op}}}");
            let name = op[..1].to_uppercase() + &op[1..];
            for (input, want) in [
                ("none", "None"),
                ("some(0)", "Some(0)"),
                ("some(5)", "Some(5)"),
            ] {
                let done = ask(guest, "kernel-elementwise", &[&params, "1", input, "2"]).await;
                assert_eq!(done, "ok");
                let want = format!("ElementwiseParams {{ n_elements: 7, op: {name} }} 1 {want} 2");
                assert_eq!(device.calls(), [want]);
            }
        }
        for op in ["sum", "max", "min", "mean", "variance"] {
            let params = format!("{{n-elements: 7, op: {op}}}");
            let name = op[..1].to_uppercase() + &op[1..];
            assert_eq!(
                ask(guest, "kernel-reduce", &[&params, "1", "2"]).await,
                "ok"
            );
            let want = format!("ReduceParams {{ n_elements: 7, op: {name} }} 1 2");
            assert_eq!(device.calls(), [want]);
        }
    }
}

/// Also of kernels that the host does not compute in the thread that drives guests.
#[tokio::test]
async fn every_error_of_every_kernel() {
    for backend in BACKENDS {
        for size in ["1", "4294967295"] {
            every_error(backend, size).await;
        }
    }
}

async fn every_error(backend: &'static str, size: &str) {
    let device = Device::default();
    let guest = &mut guest(&device, backend).await;
    let bootstrap = format!("{{n-samples: {size}, seed: 1, max-index: 1}}");
    let split =
        format!("{{n-samples: {size}, n-features: 1, feature-idx: 1, n-thresholds: {size}}}");
    let average = format!("{{n-trees: {size}, n-samples: {size}}}");
    let matmul = format!(
        "{{m: {size}, k: {size}, n: {size}, trans-a: true, trans-b: true, alpha: 1, beta: 1}}"
    );
    let elementwise = format!("{{n-elements: {size}, op: exp}}");
    let reduce = format!("{{n-elements: {size}, op: sum}}");
    let predict =
        format!("{{batch-size: {size}, n-features: 1, n-trees: {size}, max-depth: {size}}}");
    let calls: [(&str, Vec<&str>); 7] = [
        ("kernel-bootstrap-sample", vec![&bootstrap]),
        ("kernel-find-split", vec![&split, "1", "1", "1", "1"]),
        ("kernel-average", vec![&average, "1"]),
        ("kernel-matmul", vec![&matmul, "1", "1"]),
        ("kernel-elementwise", vec![&elementwise, "1", "none"]),
        ("kernel-reduce", vec![&reduce, "1"]),
        ("kernel-batch-predict", vec![&predict, "1", "1", "1"]),
    ];
    for (name, args) in calls {
        let mut answers = Vec::new();
        for output in FAILING {
            let output = output.to_string();
            let args = [&args[..], &[output.as_str()]].concat();
            answers.push(ask(guest, name, &args).await);
        }
        let long = answers.remove(2);
        let text = long
            .strip_prefix("err(kernel-error(\"")
            .and_then(|rest| rest.strip_suffix("…\"))"))
            .unwrap_or_else(|| panic!("{long}"));
        assert!(
            long_text().starts_with(text) && (900..=1000).contains(&text.len()),
            "{long}"
        );
        assert_eq!(
            answers,
            [
                "err(out-of-memory)",
                "err(invalid-buffer)",
                "err(device-unavailable)",
                r#"err(invalid-params("n is 0\nand 日"))"#
            ],
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_lost_device_is_an_error_and_the_host_goes_on() {
    for backend in BACKENDS {
        let device = Device::default();
        let guest = &mut guest(&device, backend).await;
        ask(guest, "buffer-create", &["16", "{storage}"]).await;
        device.lose();
        let lost = "err(device-unavailable)";
        assert_eq!(
            ask(guest, "buffer-create", &["16", "{storage}"]).await,
            lost
        );
        assert_eq!(ask(guest, "buffer-write", &["1", "0", "[1]"]).await, lost);
        assert_eq!(ask(guest, "buffer-read", &["1", "0", "1"]).await, lost);
        assert_eq!(
            ask(guest, "buffer-copy", &["1", "0", "1", "0", "1"]).await,
            lost
        );
        assert_eq!(ask(guest, "buffer-destroy", &["1"]).await, lost);
        assert_eq!(
            ask(
                guest,
                "kernel-reduce",
                &["{n-elements: 1, op: sum}", "1", "1"]
            )
            .await,
            lost
        );
        ask(guest, "sync", &[]).await;
        assert_eq!(
            ask(guest, "echo", &[r#""still here""#]).await,
            r#""still here""#
        );
    }
}

/// The canonical ABI ignores bits that no flag has; cases that do not exist are traps of the guest.
#[tokio::test]
async fn values_that_do_not_exist() {
    let device = Device::default();
    let first = &mut guest(&device, "cpu").await;
    assert_eq!(ask(first, "bad-usage", &["4294967295"]).await, "ok(1)");
    assert_eq!(device.calls(), ["create 16 111111"]);
    for (name, good, bad) in [("bad-op", "7", "8"), ("bad-option", "1", "2")] {
        let guest = &mut guest(&device, "cpu").await;
        assert_eq!(ask(guest, name, &[good]).await, "ok");
        let err = guest.invoke(name, &[bad]).await.unwrap_err();
        assert!(matches!(err, wasi_gpu::Error::Trap(_)), "{err}");
    }
}

#[tokio::test]
async fn texts_go_both_ways() {
    let guest = &mut guest(&Device::default(), "cpu").await;
    for text in [r#""""#, r#""a\n\"b\" 日本""#] {
        assert_eq!(ask(guest, "echo", &[text]).await, text);
    }
}

#[tokio::test]
async fn wrong_arguments_are_errors_that_say_what_is_wanted() {
    let guest = &mut guest(&Device::default(), "cpu").await;
    for (name, args, want) in [
        (
            "nothing",
            &[][..],
            "exports no function \"nothing\": it exports get-device-info",
        ),
        (
            "echo",
            &[],
            "echo takes 1 arguments (text: string), 0 were given",
        ),
        (
            "echo",
            &["plain"],
            "the argument text of echo is string, which \"plain\" is not",
        ),
        (
            "buffer-destroy",
            &["-1"],
            "the argument buffer of buffer-destroy is u32",
        ),
        (
            "buffer-destroy",
            &["4294967296"],
            "the argument buffer of buffer-destroy is u32",
        ),
        (
            "buffer-create",
            &["1", "{none}"],
            "the argument usage of buffer-create is flags",
        ),
    ] {
        let err = guest.invoke(name, args).await.unwrap_err().to_string();
        assert!(err.contains(want) && !err.contains('\n'), "{err}");
    }
    // The guest was not entered and lives.
    assert_eq!(ask(guest, "echo", &[r#""x""#]).await, r#""x""#);
}
