//! The examples that the interface was first published with.

use wasi_gpu::{DeviceChoice, Val};

use crate::{ok, on_devices, start};

/// PCG's first numbers of seed 42 below 10,000; the same on every device.
const DRAWN: [u32; 8] = [6485, 2549, 48, 8218, 3789, 6545, 7863, 8371];

async fn draws_are_known(choice: DeviceChoice) {
    for name in ["seed_rust", "seed-cpp"] {
        let mut guest = start(name, choice).await;
        let results = guest.call("run", &[]).await.unwrap();
        let Val::List(drawn) = ok(&results[0]) else {
            panic!("{results:?}")
        };
        assert_eq!(drawn.len(), 1000, "{name}");
        let expected = DRAWN.map(Val::U32);
        assert_eq!(drawn[..8], expected, "{name}");
    }
}

on_devices!(draws_are_known);
