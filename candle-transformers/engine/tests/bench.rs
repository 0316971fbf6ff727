//! The benchmark at a size that takes no time; and the arithmetic of its figures.

use crate::support::{choice, on_each_device, registry, runs_fewer};
use candle_core::quantized::GgmlDType;
use candle_core::DType;
use candle_engine::bench::shapes::{self, Dimensions, ModelShape, Steps};
use candle_engine::bench::speculation::{self, SpeculationRequest};
use candle_engine::bench::{run, BenchRequest};
use candle_engine::{DeviceKind, KvType, WeightFormat};

on_each_device!(
    demo_shape,
    behind_a_context_and_together,
    keys_and_values_of_a_dtype,
    layers_on_the_cpu
);

fn demo_shape(kind: DeviceKind) {
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let floats = [DType::F32, DType::F16, DType::BF16].map(WeightFormat::Dense);
    let blocks = [GgmlDType::Q4_0, GgmlDType::Q4K].map(WeightFormat::Blocks);
    // A software adapter compiles for ten seconds for each: the widest and the narrowest.
    for format in floats.into_iter().chain(blocks) {
        let extreme = matches!(
            format,
            WeightFormat::Dense(DType::F32) | WeightFormat::Blocks(GgmlDType::Q4K)
        );
        if runs_fewer(device) && !extreme {
            continue;
        }
        let request = BenchRequest {
            shape: ModelShape::Demo,
            format,
            kv_type: KvType::Auto,
            prompt: 5,
            generate: 3,
            context: 0,
            batch: 1,
            gpu_layers: None,
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

fn behind_a_context_and_together(kind: DeviceKind) {
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let speed = |context, batch| {
        let request = BenchRequest {
            shape: ModelShape::Demo,
            format: WeightFormat::Dense(DType::F32),
            kv_type: KvType::Auto,
            prompt: 2,
            generate: 2,
            context,
            batch,
            gpu_layers: None,
            repeat: 1,
            bandwidth: None,
            profile: false,
        };
        let report = run(&request, device, kind.name()).unwrap();
        assert_eq!((report.context, report.batch), (context, batch));
        assert!(report.generation.median > 0.0);
        report.bytes_per_token
    };
    let [alone, behind, together] = [speed(0, 1), speed(600, 1), speed(40, 3)];
    // Keys and values of 6 layers with 2 heads of 64, in f32.
    assert_eq!(behind - alone, 600. * 6. * 2. * 2. * 64. * 4.);
    // A third of the weights, and more keys.
    let more = 40. * 6. * 2. * 2. * 64. * 4.;
    assert!(
        together < alone / 2. + more && together > alone / 3. + 0.9 * more,
        "{together}"
    );
}

/// Prompts of 128 tokens or more copy the layers that are on the CPU.
fn layers_on_the_cpu(kind: DeviceKind) {
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let run = |format, gpu_layers| {
        let request = BenchRequest {
            shape: ModelShape::Demo,
            format,
            kv_type: KvType::Auto,
            prompt: 130,
            generate: 2,
            context: 0,
            batch: 1,
            gpu_layers: Some(gpu_layers),
            repeat: 1,
            bandwidth: None,
            profile: false,
        };
        run(&request, device, kind.name())
    };
    let blocks = WeightFormat::Blocks(GgmlDType::Q8_0);
    let report = run(blocks, 4).unwrap();
    assert!(report.prompt.median > 0.0 && report.generation.median > 0.0);
    assert!(report.table().contains("4 layers on the device"));
    for (format, layers, expected) in [
        (blocks, 7, "7 of 6 layers"),
        (WeightFormat::Dense(DType::F32), 4, "q8_0"),
    ] {
        let err = run(format, layers).unwrap_err().to_string();
        assert!(err.contains(expected), "{err}");
    }
}

fn keys_and_values_of_a_dtype(kind: DeviceKind) {
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let run = |format, kv_type| {
        let request = BenchRequest {
            shape: ModelShape::Demo,
            format,
            kv_type,
            prompt: 20,
            generate: 2,
            context: 200,
            batch: 1,
            gpu_layers: None,
            repeat: 1,
            bandwidth: None,
            profile: false,
        };
        run(&request, device, kind.name())
    };
    let blocks = WeightFormat::Blocks(GgmlDType::Q4_0);
    let of = |kv_type| run(blocks, kv_type).unwrap();
    let (wide, narrow) = (of(KvType::F32), of(KvType::F16));
    assert_eq!((wide.kv, narrow.kv), ("f32", "f16"));
    let bytes = wide.bytes_per_token - narrow.bytes_per_token;
    // 200 keys and the one that is added, on average of the two steps one more; in 6 layers with 2 heads of 64.
    assert!(
        (bytes / (6. * 2. * 2. * 64. * 2.) - 200.).abs() <= 2.,
        "{bytes}"
    );
    let expected = match kind {
        DeviceKind::WebGpu | DeviceKind::Metal | DeviceKind::Cuda => "f16",
        _ => "f32",
    };
    assert_eq!(of(KvType::Auto).kv, expected);
    let error = run(WeightFormat::Dense(DType::F16), KvType::F32).unwrap_err();
    let error = format!("{error:?}{error}");
    assert!(
        error.contains("f32") && error.contains("activations of f16"),
        "{error}"
    );
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
        (ModelShape::Qwen3_0_6b, f16, 1.20),
        (ModelShape::Qwen3_4b, f16, 8.05),
        (ModelShape::Gemma3_1b, f16, 2.0),
        (ModelShape::Phi4Mini, f16, 7.68),
        // 93 GB in all, of which a token uses two experts of eight.
        (ModelShape::Mixtral8x7b, f16, 25.5),
    ] {
        let steps = Steps {
            context: 0,
            count: 128,
            batch: 1,
        };
        let spec = shape.spec(128).unwrap();
        let found = shapes::bytes_per_token(&spec, format, format.activations(), steps) / 1e9;
        assert!((found - expected).abs() < 0.02, "{}: {found}", shape.name());
    }
}

/// The figures of Llamas, which must not change with the support for other families.
#[test]
fn dimensions_of_a_llama() {
    let expected = Dimensions {
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        ffn: 8192,
        experts: None,
        vocab: 128_256,
        tied: true,
    };
    let spec = ModelShape::Llama3_2_1b.spec(512).unwrap();
    assert_eq!(Dimensions::from(&spec), expected);
    let f16 = WeightFormat::Dense(DType::F16);
    let steps = Steps {
        context: 0,
        count: 128,
        batch: 1,
    };
    let layer = 2048 * (2 * 2048 + 1024) + 3 * 2048 * 8192 + 2 * 2048;
    let weights = 16 * layer + 128_256 * 2048 + 2 * 2048;
    let cache = 16. * 1024. * 64.5;
    let found = shapes::bytes_per_token(&spec, f16, DType::F16, steps);
    assert_eq!(found, 2. * (f64::from(weights) + cache));
}

/// Most layers of Gemma 3 see 512 positions, however many there are.
#[test]
fn windows_are_what_is_read() {
    let f16 = WeightFormat::Dense(DType::F16);
    let read = |context| {
        let steps = Steps {
            context,
            count: 1,
            batch: 1,
        };
        let spec = ModelShape::Gemma3_1b.spec(16_384).unwrap();
        shapes::bytes_per_token(&spec, f16, DType::F16, steps)
    };
    // 4 of 26 layers see everything: keys and values of one head of 256.
    assert_eq!(read(8000) - read(4000), 4000. * 4. * 2. * 256. * 2.);
    assert_eq!(read(200) - read(100), 100. * 26. * 2. * 256. * 2.);
}

/// Each shape is one that its family takes, in both forms.
#[test]
fn every_shape_has_a_specification() {
    use clap::ValueEnum;
    for shape in ModelShape::value_variants() {
        for spec in [shape.spec(64), shape.gguf_spec(64)] {
            let spec = spec.unwrap_or_else(|err| panic!("{}: {err}", shape.name()));
            assert_eq!(spec.positions, 64, "{}", shape.name());
        }
    }
}

/// Tokens for each step follow from the chance alone.
#[test]
fn with_a_draft() {
    let kind = DeviceKind::Cpu;
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    for (accept, expected) in [(1., [1., 2.]), (0., [1., 1.])] {
        let request = SpeculationRequest {
            shapes: [ModelShape::Demo; 2],
            formats: [WeightFormat::Dense(DType::F32); 2],
            kv_type: KvType::Auto,
            accept,
            most: 1,
            generate: 4,
            repeat: 1,
        };
        let report = speculation::run(&request, device, kind.name()).unwrap();
        assert_eq!(report.lengths.len(), expected.len());
        for (speed, expected) in report.lengths.iter().zip(expected) {
            assert_eq!(speed.tokens_per_step, expected, "{speed:?}");
            assert!(speed.tokens_per_second > 0. && speed.milliseconds_per_step > 0.);
        }
        assert!(report.table().contains("demo f32 with draft demo f32"));
    }
}
