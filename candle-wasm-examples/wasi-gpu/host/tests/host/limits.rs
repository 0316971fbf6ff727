//! Guests that take what they can get end; the host does not.

use std::time::{Duration, Instant};

use wasi_gpu::{Error, Guest, Limits, Runner, WasiCtx};

use crate::fake::{Device, ENDLESS, SILENT};
use crate::guests;

const MIB: usize = 1 << 20;

async fn guest(limits: Limits, device: &Device, backend: &'static str) -> Guest {
    let runner = Runner::new(limits).unwrap();
    let program = runner.load(&guests::mirror()).unwrap();
    let backend = device.backend(backend);
    runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap()
}

/// A timeout that guests which do not wait keep on a busy machine too.
fn short() -> Limits {
    Limits {
        timeout: Some(Duration::from_millis(500)),
        ..Limits::default()
    }
}

async fn times_out(guest: &mut Guest, name: &str, args: &[&str]) {
    let start = Instant::now();
    let err = guest.invoke(name, args).await.unwrap_err();
    assert!(matches!(err, Error::Timeout(_)), "{name}: {err}");
    assert!(err.to_string().contains("500ms"), "{err}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(500), "{name}: {took:?}");
    assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    let err = guest.invoke("echo", &[r#""x""#]).await.unwrap_err();
    assert!(matches!(err, Error::Ended), "{err}");
}

#[tokio::test]
async fn endless_loops_end() {
    for backend in ["cpu", "vulkan"] {
        for name in ["spin", "spin-syncs", "spin-creates"] {
            let guest = &mut guest(short(), &Device::default(), backend).await;
            times_out(guest, name, &[]).await;
        }
    }
}

#[tokio::test]
async fn a_read_that_never_comes_ends() {
    let guest = &mut guest(short(), &Device::default(), "vulkan").await;
    times_out(guest, "buffer-read", &[&SILENT.to_string(), "0", "4"]).await;
}

#[tokio::test]
async fn a_kernel_on_the_cpu_that_takes_too_long_is_left_alone() {
    let device = Device::default();
    let guest = &mut guest(short(), &device, "cpu").await;
    let params = "{n-elements: 4294967295, op: sum}";
    times_out(guest, "kernel-reduce", &[params, &ENDLESS.to_string(), "1"]).await;
    device.release();
}

/// A future that is dropped ends the guest as a timeout does.
#[tokio::test]
async fn a_call_that_is_given_up_ends_the_guest() {
    let guest = &mut guest(Limits::default(), &Device::default(), "cpu").await;
    let call = guest.invoke("spin", &[""; 0]);
    let given_up = tokio::time::timeout(Duration::from_millis(50), call).await;
    assert!(given_up.is_err());
    let err = guest.invoke("echo", &[r#""x""#]).await.unwrap_err();
    assert!(matches!(err, Error::Ended), "{err}");
}

#[tokio::test]
async fn without_a_timeout_a_guest_may_take_its_time() {
    let limits = Limits {
        timeout: None,
        ..Limits::default()
    };
    let guest = &mut guest(limits, &Device::default(), "cpu").await;
    assert_eq!(guest.invoke("echo", &[r#""x""#]).await.unwrap(), [r#""x""#]);
}

#[tokio::test]
async fn memory_grows_to_its_limit_and_no_further() {
    let limits = Limits {
        memory: 8 * MIB,
        ..Limits::default()
    };
    let guest = &mut guest(limits, &Device::default(), "cpu").await;
    assert_eq!(guest.invoke("grow", &[""; 0]).await.unwrap(), ["128"]);
    // A failed growth does not trap.
    assert_eq!(guest.invoke("echo", &[r#""x""#]).await.unwrap(), [r#""x""#]);
}

#[tokio::test]
async fn memories_count_together_and_from_the_start() {
    let runner = Runner::new(Limits {
        memory: MIB,
        ..Limits::default()
    })
    .unwrap();
    let wasm = wat::parse_str(
        r#"(component
            (core module $m (memory 10))
            (core instance (instantiate $m))
            (core instance (instantiate $m)))"#,
    )
    .unwrap();
    let program = runner.load(&wasm).unwrap();
    let backend = Device::default().backend("cpu");
    let err = runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap_err();
    assert!(matches!(err, Error::Trap(_)), "{err}");
    assert!(err.to_string().contains("memory"), "{err}");
}

/// A size beyond a memory's maximum is refused before the limit is checked, which must not return anything.
#[tokio::test]
async fn impossible_growth_frees_nothing() {
    let wasm = wat::parse_str(
        r#"(component
            (core module $m
                (memory 1)
                (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))
            (core instance $i (instantiate $m))
            (func (export "grow") (param "pages" u32) (result u32) (canon lift (core func $i "grow"))))"#,
    )
    .unwrap();
    let runner = Runner::new(Limits {
        memory: 8 * MIB,
        ..Limits::default()
    })
    .unwrap();
    let program = runner.load(&wasm).unwrap();
    let backend = Device::default().backend("cpu");
    let mut guest = runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap();
    let failed = [u32::MAX.to_string()];
    assert_eq!(guest.invoke("grow", &["127"]).await.unwrap(), ["1"]);
    for pages in ["65535", "65536", "4294967295", "1"] {
        assert_eq!(guest.invoke("grow", &[pages]).await.unwrap(), failed);
    }
    assert_eq!(guest.invoke("grow", &["0"]).await.unwrap(), ["128"]);
}

#[tokio::test]
async fn lists_that_the_guest_does_not_have_are_traps() {
    for (ptr, len) in [("0", "4294967295"), ("4294967295", "2"), ("65536", "1")] {
        let device = Device::default();
        let guest = &mut guest(Limits::default(), &device, "cpu").await;
        let err = guest
            .invoke("write-from", &["1", ptr, len])
            .await
            .unwrap_err();
        assert!(matches!(err, Error::Trap(_)), "{err}");
        assert!(err.to_string().contains("out of bounds"), "{err}");
        assert!(device.calls().is_empty());
    }
}

#[tokio::test]
async fn a_write_has_at_most_the_bytes_of_a_transfer() {
    let limits = || Limits {
        transfer: 1000,
        ..Limits::default()
    };
    let device = Device::default();
    let first = &mut guest(limits(), &device, "cpu").await;
    first
        .invoke("buffer-create", &["2000", "{storage}"])
        .await
        .unwrap();
    let done = first
        .invoke("write-from", &["1", "0", "1000"])
        .await
        .unwrap();
    assert_eq!(done, ["ok"]);
    let err = first
        .invoke("write-from", &["1", "0", "1001"])
        .await
        .unwrap_err();
    assert!(matches!(err, Error::Trap(_)), "{err}");
    assert_eq!(device.calls().len(), 2);
}

#[tokio::test]
async fn a_read_that_the_guest_has_no_memory_for() {
    let limits = Limits {
        memory: MIB,
        ..Limits::default()
    };
    let device = Device::default();
    let guest = &mut guest(limits, &device, "vulkan").await;
    let size = (2 * MIB).to_string();
    guest
        .invoke("buffer-create", &[&size, "{storage}"])
        .await
        .unwrap();
    let read = guest
        .invoke("buffer-read", &["1", "0", &size])
        .await
        .unwrap();
    assert!(
        read[0].starts_with("err(invalid-params(\"2097152 bytes"),
        "{read:?}"
    );
    // The limit permits this, and the guest has no memory for it.
    let err = guest
        .invoke("buffer-read", &["1", "0", "1048576"])
        .await
        .unwrap_err();
    assert!(matches!(err, Error::Trap(_)), "{err}");
}

#[tokio::test]
async fn deep_recursion_is_a_trap() {
    let guest = &mut guest(Limits::default(), &Device::default(), "cpu").await;
    let err = guest.invoke("recurse", &[""; 0]).await.unwrap_err();
    assert!(matches!(err, Error::Trap(_)), "{err}");
    assert!(err.to_string().contains("stack"), "{err}");
    assert!(!err.to_string().contains('\n'), "{err}");
}

#[tokio::test]
async fn fuel_runs_out() {
    let limits = Limits {
        fuel: Some(100_000),
        ..Limits::default()
    };
    let guest = &mut guest(limits, &Device::default(), "cpu").await;
    guest.invoke("echo", &[r#""x""#]).await.unwrap();
    let left = guest.fuel_left().unwrap();
    assert!(left > 0 && left < 100_000, "{left}");
    let err = guest.invoke("spin", &[""; 0]).await.unwrap_err();
    assert!(matches!(err, Error::Fuel(100_000)), "{err}");
}

#[tokio::test]
async fn handles_have_a_limit() {
    // Each iteration makes a resource and keeps it.
    let wasm = wat::parse_str(
        r#"(component
            (core module $m
                (import "" "new" (func $new (param i32) (result i32)))
                (func (export "fill") (loop $again (drop (call $new (i32.const 0))) (br $again))))
            (type $r (resource (rep i32)))
            (core func $new (canon resource.new $r))
            (core instance $i (instantiate $m (with "" (instance (export "new" (func $new))))))
            (func (export "fill") (canon lift (core func $i "fill"))))"#,
    )
    .unwrap();
    let runner = Runner::new(Limits::default()).unwrap();
    let program = runner.load(&wasm).unwrap();
    let backend = Device::default().backend("cpu");
    let mut guest = runner
        .start_on(&program, backend, WasiCtx::default())
        .await
        .unwrap();
    let err = guest.invoke("fill", &[""; 0]).await.unwrap_err();
    assert!(matches!(err, Error::Trap(_)), "{err}");
}

#[tokio::test]
async fn a_file_that_is_too_large_is_not_compiled() {
    let wasm = guests::mirror();
    let runner = |program| {
        Runner::new(Limits {
            program,
            ..Limits::default()
        })
        .unwrap()
    };
    runner(wasm.len()).load(&wasm).unwrap();
    let small = runner(wasm.len() - 1);
    for err in [
        small.load(&wasm).unwrap_err(),
        small.inspect(&wasm).unwrap_err(),
    ] {
        let text = err.to_string();
        assert!(matches!(err, Error::TooLarge { .. }), "{text}");
        let size = format!("{} bytes", wasm.len());
        for word in [&size, "--guest-size", "release"] {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }
}
