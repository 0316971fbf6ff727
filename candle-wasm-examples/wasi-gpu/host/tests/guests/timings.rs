//! The guest `timings` makes the calls that it times, and its products are right.

use wasi_gpu::{DeviceChoice, Val};

use crate::{difference, field, ok, on_devices, start};

on_devices!(calls_are_timed, products_are_timed);

fn nanoseconds(times: &Val, name: &str) -> u64 {
    match field(times, name) {
        Val::U64(value) => *value,
        other => panic!("{other:?}"),
    }
}

async fn calls_are_timed(choice: DeviceChoice) {
    let mut guest = start("timings", choice).await;
    for (call, function, errors) in [
        ("refused", "buffer-destroy", 3),
        ("refused-kernel", "kernel-elementwise", 3),
        ("write", "buffer-write", 0),
        ("copy", "buffer-copy", 0),
        ("kernel", "kernel-elementwise", 0),
        ("read", "buffer-read", 0),
    ] {
        let before = guest.stats().function(function);
        let args = [Val::Enum(call.into()), Val::U32(3)];
        let results = guest.call("calls", &args).await.unwrap();
        let times = ok(&results[0]);
        let (queued, done) = (nanoseconds(times, "queued"), nanoseconds(times, "done"));
        assert!(queued <= done, "{call}: {queued} {done}");
        let after = guest.stats().function(function);
        assert!(after.count >= before.count + 3, "{call}");
        assert_eq!(after.errors - before.errors, errors, "{call}");
    }
}

async fn products_are_timed(choice: DeviceChoice) {
    const SIZE: u32 = 65;
    let mut guest = start("timings", choice).await;
    let failed = |results: &[Val]| matches!(results, [Val::Result(Err(_))]);
    assert!(failed(
        &guest.call("products", &[Val::U32(1)]).await.unwrap()
    ));
    assert!(failed(
        &guest.call("prepare", &[Val::U32(0)]).await.unwrap()
    ));
    guest.call("prepare", &[Val::U32(SIZE)]).await.unwrap();
    let results = guest.call("products", &[Val::U32(2)]).await.unwrap();
    ok(&results[0]);
    let results = guest.call("last-row", &[]).await.unwrap();
    let Val::List(row) = ok(&results[0]) else {
        panic!("{results:?}")
    };
    let row: Vec<f32> = row
        .iter()
        .map(|value| match value {
            Val::Float32(value) => *value,
            other => panic!("{other:?}"),
        })
        .collect();
    let element = |i: u32, seed: u32| {
        let bits = i.wrapping_mul(0x9e37_79b9).wrapping_mul(seed) >> 8;
        f64::from(bits as f32 / (1 << 24) as f32 - 0.5)
    };
    let dot = |column: u32| {
        let term = |k: u32| element((SIZE - 1) * SIZE + k, 1) * element(k * SIZE + column, 2);
        (0..SIZE).map(term).sum::<f64>() as f32
    };
    let expected: Vec<f32> = (0..SIZE).map(dot).collect();
    assert!(difference(&row, &expected) < 1e-5);
}
