//! The benchmark at a size that takes no time; and the arithmetic behind its figures.

use crate::support::{choice, on_each_device, registry};
use candle_core::quantized::GgmlDType;
use candle_core::DType;
use candle_dvm::bench::{run, BenchRequest};
use candle_dvm::shapes::ModelShape;
use candle_dvm::{DeviceKind, WeightFormat};

on_each_device!(demo_shape);

fn demo_shape(kind: DeviceKind) {
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let floats = [DType::F32, DType::F16, DType::BF16].map(WeightFormat::Dense);
    let blocks = [GgmlDType::Q4_0, GgmlDType::Q4K].map(WeightFormat::Blocks);
    for format in floats.into_iter().chain(blocks) {
        let request = BenchRequest {
            shape: ModelShape::Demo,
            format,
            prompt: 5,
            generate: 3,
            repeat: 2,
            bandwidth: Some(100.0),
            profile: false,
        };
        let report = run(&request, device, kind.name()).unwrap();
        for speed in [&report.prompt, &report.generation] {
            assert!(speed.min > 0.0 && speed.min <= speed.median && speed.median <= speed.max);
            assert_eq!(speed.dispatches.is_some(), kind == DeviceKind::WebGpu);
            assert!(speed.dispatches.is_none_or(|count| count > 6.0));
        }
        let share = report.bytes_per_token * report.generation.median / 100e9;
        assert_eq!(report.bandwidth_share, Some(share));
        assert!(report.table().contains("prompt 5"));
    }
}

/// The sizes that these models are known by.
#[test]
fn bytes_per_token() {
    let f16 = WeightFormat::Dense(DType::F16);
    let q4_0 = WeightFormat::Blocks(GgmlDType::Q4_0);
    for (shape, format, expected) in [
        (ModelShape::TinyLlama1_1b, f16, 2.07),
        (ModelShape::Llama3_2_1b, f16, 2.47),
        (ModelShape::Llama3_8b, f16, 15.0),
        (ModelShape::Llama3_8b, q4_0, 4.23),
    ] {
        let dimensions = shape.dimensions();
        let found = dimensions.bytes_per_token(format, format.activations(), 128) / 1e9;
        assert!((found - expected).abs() < 0.02, "{}: {found}", shape.name());
    }
}
