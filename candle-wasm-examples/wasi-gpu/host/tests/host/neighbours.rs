//! Several guests at once.

use std::time::Duration;

use wasi_gpu::{Error, Guest, Limits, Program, Runner, WasiCtx};

use crate::fake::Device;
use crate::guests;

async fn start(runner: &Runner, program: &Program, device: &Device) -> Guest {
    let backend = device.backend("vulkan");
    runner
        .start_on(program, backend, WasiCtx::default())
        .await
        .unwrap()
}

/// Works until the other has ended, and checks every answer.
async fn work(guest: &mut Guest, turns: u32) {
    guest
        .invoke("buffer-create", &["4", "{storage}"])
        .await
        .unwrap();
    for turn in 0..turns {
        let byte = turn % 256;
        let data = format!("[{byte}]");
        let args = ["1", "1", &data];
        assert_eq!(guest.invoke("buffer-write", &args).await.unwrap(), ["ok"]);
        let read = guest.invoke("buffer-read", &["1", "0", "4"]).await.unwrap();
        assert_eq!(read, [format!("ok([0, {byte}, 0, 0])")]);
    }
}

/// On one thread, so that the second runs only where the first gives way.
#[tokio::test(flavor = "current_thread")]
async fn a_hostile_guest_is_not_noticed_by_its_neighbour() {
    let runner = Runner::new(Limits {
        timeout: Some(Duration::from_secs(2)),
        ..Limits::default()
    })
    .unwrap();
    let program = runner.load(&guests::mirror()).unwrap();
    for harm in [
        "spin",
        "spin-syncs",
        "spin-creates",
        "recurse",
        "unreachable",
        "grow",
    ] {
        let devices = [Device::default(), Device::default()];
        let mut hostile = start(&runner, &program, &devices[0]).await;
        let mut good = start(&runner, &program, &devices[1]).await;
        let (harmed, ()) = tokio::join!(hostile.invoke(harm, &[""; 0]), work(&mut good, 10));
        match harm {
            "grow" => assert!(harmed.is_ok()),
            "recurse" | "unreachable" => {
                assert!(matches!(harmed, Err(Error::Trap(_))), "{harm}: {harmed:?}");
            }
            _ => assert!(
                matches!(harmed, Err(Error::Timeout(_))),
                "{harm}: {harmed:?}"
            ),
        }
        work_again(&mut good).await;
    }
}

async fn work_again(guest: &mut Guest) {
    let read = guest.invoke("buffer-read", &["1", "0", "1"]).await.unwrap();
    assert_eq!(read, ["ok([0])"]);
}

/// Each has its own backend, so that the other's names mean nothing to it.
#[tokio::test]
async fn a_guest_cannot_name_the_buffers_of_another() {
    let runner = Runner::new(Limits::default()).unwrap();
    let program = runner.load(&guests::mirror()).unwrap();
    let devices = [Device::default(), Device::default()];
    let mut first = start(&runner, &program, &devices[0]).await;
    let mut second = start(&runner, &program, &devices[1]).await;
    for _ in 0..3 {
        first
            .invoke("buffer-create", &["4", "{storage}"])
            .await
            .unwrap();
    }
    first
        .invoke("buffer-write", &["2", "0", "[9]"])
        .await
        .unwrap();
    let created = second
        .invoke("buffer-create", &["4", "{storage}"])
        .await
        .unwrap();
    assert_eq!(created, ["ok(1)"]);
    for id in ["0", "2", "3", "4294967295"] {
        let read = second.invoke("buffer-read", &[id, "0", "4"]).await.unwrap();
        assert_eq!(read, ["err(invalid-buffer)"], "{id}");
        let gone = second.invoke("buffer-destroy", &[id]).await.unwrap();
        assert_eq!(gone, ["err(invalid-buffer)"], "{id}");
    }
    let read = first.invoke("buffer-read", &["2", "0", "1"]).await.unwrap();
    assert_eq!(read, ["ok([9])"]);
    assert_eq!((devices[0].buffers(), devices[1].buffers()), (3, 1));
}

/// A trapped guest is gone with its memory; the program starts again as if nothing had been.
#[tokio::test]
async fn a_program_starts_again_after_a_trap() {
    let runner = Runner::new(Limits::default()).unwrap();
    let program = runner.load(&guests::mirror()).unwrap();
    for _ in 0..3 {
        let mut guest = start(&runner, &program, &Device::default()).await;
        assert_eq!(guest.invoke("echo", &[r#""x""#]).await.unwrap(), [r#""x""#]);
        let err = guest.invoke("unreachable", &[""; 0]).await.unwrap_err();
        assert!(matches!(err, Error::Trap(_)), "{err}");
        let err = guest.invoke("echo", &[r#""x""#]).await.unwrap_err();
        assert!(matches!(err, Error::Ended), "{err}");
    }
}
