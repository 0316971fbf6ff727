//! The list of backends, and the choice of one.

use crate::support::{embedded, registry};
use candle_core::Device;
use candle_engine::devices::report;
use candle_engine::{BackendRegistry, DeviceChoice, DeviceKind, Error, InferenceBackend};

/// The registry repeats the order of `Device::probe`, which opens every device at once; they must not part.
#[test]
fn the_order_is_that_of_probe() {
    let names: Vec<_> = Device::probe().iter().map(|probe| probe.name).collect();
    let kinds: Vec<_> = registry()
        .entries()
        .iter()
        .map(|entry| entry.kind().name())
        .collect();
    assert_eq!(kinds, names);
}

#[test]
fn auto_takes_the_best_available() {
    let best = Device::best_available().unwrap();
    let entry = registry().select(DeviceChoice::Auto).unwrap();
    assert_eq!(entry.device().unwrap().location(), best.location());
}

#[test]
fn an_absent_device_says_why() {
    for (choice, name) in [(DeviceChoice::Cuda, "cuda"), (DeviceChoice::Metal, "metal")] {
        if name == "cuda" && candle_core::utils::cuda_is_available() {
            continue;
        }
        match registry().select(choice) {
            Err(Error::Device { asked, reason }) => {
                assert_eq!(asked, name);
                assert!(!reason.is_empty());
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{name} is not part of this build"),
        }
    }
}

/// With or without a card: no machine has that many, and the reason names the requested one or the missing part.
#[test]
fn a_card_that_is_not_there_says_why() {
    for ordinal in [127, 128, usize::MAX] {
        match registry().select(DeviceChoice::CudaCard(ordinal)) {
            Err(Error::Device { asked, reason }) => {
                assert_eq!(asked, "cuda");
                assert!(
                    reason.contains(&ordinal.to_string()) || reason.contains("driver"),
                    "{reason}"
                );
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a card {ordinal}"),
        }
    }
}

#[test]
fn cards_are_chosen_by_ordinal() {
    assert_eq!(DeviceChoice::parse("cuda"), Some(DeviceChoice::Cuda));
    assert_eq!(
        DeviceChoice::parse("cuda:1"),
        Some(DeviceChoice::CudaCard(1))
    );
    assert_eq!(DeviceChoice::CudaCard(1).kind(), Some(DeviceKind::Cuda));
    for name in ["cuda:", "cuda:-1", "cuda:x", "cuda1", "cpu:0"] {
        assert_eq!(DeviceChoice::parse(name), None, "{name}");
    }
    for choice in [DeviceChoice::Auto, DeviceChoice::CudaCard(2)] {
        assert_eq!(DeviceChoice::parse(&choice.to_string()), Some(choice));
    }
}

#[test]
fn a_device_is_opened_once() {
    let registry = BackendRegistry::detect();
    let first = registry.select(DeviceChoice::WebGpu).unwrap();
    let second = registry.select(DeviceChoice::WebGpu).unwrap();
    assert!(std::ptr::eq(
        first.device().unwrap(),
        second.device().unwrap()
    ));
}

#[test]
fn backends_are_objects() {
    let backends: Vec<&dyn InferenceBackend> =
        vec![embedded(DeviceKind::Cpu), embedded(DeviceKind::WebGpu)];
    let ids: Vec<_> = backends.iter().map(|backend| backend.id()).collect();
    assert_eq!(ids, ["cpu", "webgpu"]);
}

#[test]
fn the_report_describes_every_backend() {
    let report = report(registry());
    let [cuda, metal, webgpu, cpu] = report.as_slice() else {
        panic!("{report:?}");
    };
    assert!(cuda.absent.is_some() && metal.absent.is_some());
    assert_eq!(webgpu.absent, None);
    let chosen: Vec<_> = webgpu
        .adapters
        .iter()
        .filter(|adapter| adapter.chosen)
        .collect();
    assert_eq!(chosen.len(), 1);
    assert!(!chosen[0].name.is_empty() && !chosen[0].driver.is_empty());
    assert!(chosen[0].limits["max_storage_buffer_binding_size"] >= 128 << 20);
    let text = webgpu.text();
    assert!(text.contains(&chosen[0].name) && text.contains("max_buffer_size"));
    assert_eq!(cpu.absent, None);
    assert!(cpu.cpu.as_ref().unwrap().cores >= 1);
}
