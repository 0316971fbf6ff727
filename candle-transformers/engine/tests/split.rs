//! Layers on a GPU and on the CPU: texts are those of the whole, and as many layers as fit are on the GPU.

use crate::batch::{ended, request, submit};
use crate::gguf_model::in_format;
use crate::support::{choice, golden, model_dir, on_each_device, registry};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use candle_engine::batch::{BatchEngine, BatchSettings};
use candle_engine::model::{GpuLayers, Split};
use candle_engine::{CandleBackend, DeviceKind, InferenceBackend, ModelFiles, ModelSource, Result};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

on_each_device!(batches_are_the_same);

const LAYERS: usize = 6;

fn files(path: &Path, split: Split) -> ModelFiles {
    let mut files = ModelFiles::open(&ModelSource::at(path.to_path_buf())).unwrap();
    files.split = split;
    files
}

fn with_layers(gpu_layers: GpuLayers) -> Split {
    Split {
        gpu_layers,
        ..Split::default()
    }
}

fn load(path: &Path, split: Split, kind: DeviceKind) -> Result<CandleBackend> {
    let entry = registry().select(choice(kind))?;
    entry.load(files(path, split), None, &|_| ())
}

fn tokens(backend: &CandleBackend, prompt: &str, max_tokens: usize) -> Result<Vec<u32>> {
    let request = request(prompt, max_tokens);
    let completion = backend.complete_stream(&request, &mut |_| ControlFlow::Continue(()))?;
    Ok(completion.token_ids)
}

#[test]
fn texts_are_the_same() {
    let prompt = &golden().prompts[0];
    for count in [0, 4] {
        let split = with_layers(GpuLayers::Count(count));
        let mut files = files(&model_dir(), split);
        files.split = split;
        let entry = registry().select(choice(DeviceKind::WebGpu)).unwrap();
        let backend = entry.load(files, Some(DType::F32), &|_| ()).unwrap();
        assert_eq!(backend.layers_on_device(), count);
        let said = format!(
            "with {count} of 6 layers (all for prompts), and cpu with the first {}",
            LAYERS - count
        );
        assert!(backend.devices().ends_with(&said), "{}", backend.devices());
        let found = tokens(&backend, &prompt.text, prompt.greedy_ids.len()).unwrap();
        assert_eq!(found, prompt.greedy_ids);
    }
}

/// Blocks stay blocks on both devices, and keys and values of either dtype.
#[test]
fn quantised_texts_are_close() {
    let path = in_format(GgmlDType::Q8_0);
    let whole = |kind| load(&path, Split::default(), kind).unwrap();
    let parts = load(&path, with_layers(GpuLayers::Count(3)), DeviceKind::WebGpu).unwrap();
    let prompt = &golden().prompts[0];
    let logits = |backend: &CandleBackend| {
        let logits = backend.session().forward(&prompt.ids).unwrap();
        logits.to_vec1::<f32>().unwrap()
    };
    let [cpu, gpu, parts] =
        [&whole(DeviceKind::Cpu), &whole(DeviceKind::WebGpu), &parts].map(logits);
    let largest = |lhs: &[f32], rhs: &[f32]| {
        let differences = lhs.iter().zip(rhs).map(|(lhs, rhs)| (lhs - rhs).abs());
        differences.fold(0., f32::max)
    };
    // Activations are rounded to 8 bits in other blocks on each, so that the devices differ from each other too.
    let between = largest(&cpu, &gpu);
    let found = [&cpu, &gpu].map(|whole| largest(&parts, whole));
    assert!(
        found.iter().all(|found| *found < 1.5 * between.max(0.1)),
        "{found:?}: {between}"
    );
}

fn batches_are_the_same(kind: DeviceKind) {
    let split = match kind {
        DeviceKind::Cpu => with_layers(GpuLayers::Auto),
        _ => with_layers(GpuLayers::Count(2)),
    };
    let entry = registry().select(choice(kind)).unwrap();
    let backend = entry.load(files(&model_dir(), split), Some(DType::F32), &|_| ());
    let settings = BatchSettings {
        slots: 2,
        ..BatchSettings::default()
    };
    let engine = BatchEngine::new(Arc::new(backend.unwrap()), settings).unwrap();
    let prompts = &golden().prompts[..2];
    let texts = prompts.iter().map(|prompt| {
        let request = request(&prompt.text, 6);
        submit(&engine, &request).unwrap()
    });
    let texts: Vec<_> = texts.collect();
    for (text, prompt) in texts.iter().zip(prompts) {
        assert_eq!(ended(text).token_ids, prompt.greedy_ids[..6]);
    }
}

/// A device with this much memory.
fn device_of(bytes: u64) -> Device {
    let device = Device::new_webgpu(0).unwrap();
    device.as_wgpu().unwrap().set_memory_budget(Some(bytes));
    device
}

fn on(device: &Device, gpu_layers: GpuLayers, context: usize) -> Result<CandleBackend> {
    let split = Split {
        gpu_layers,
        context,
        prompt: context,
        ..Split::default()
    };
    CandleBackend::load(
        files(&model_dir(), split),
        "webgpu",
        device,
        DType::F32,
        &|_| (),
    )
}

/// `auto` takes as many layers as load and run, and one more does not.
#[test]
fn the_most_layers_that_fit() {
    const CONTEXT: usize = 300;
    let prompt = "word ".repeat(140);
    let whole = on(&device_of(1 << 30), GpuLayers::Auto, CONTEXT).unwrap();
    assert_eq!(whole.layers_on_device(), LAYERS);
    let wanted = tokens(&whole, &prompt, 3).unwrap();
    let used = whole.device().as_wgpu().unwrap().stats().peak_bytes;
    for (share, streams) in [(40, false), (60, false), (75, true), (90, true)] {
        let bytes = used * share / 100;
        let device = device_of(bytes);
        let parts = on(&device, GpuLayers::Auto, CONTEXT).unwrap();
        let count = parts.layers_on_device();
        assert!(0 < count && count < LAYERS, "{share}%: {count}");
        assert_eq!(tokens(&parts, &prompt, 3).unwrap(), wanted, "{share}%");
        let peak = device.as_wgpu().unwrap().stats().peak_bytes;
        println!("{share}% of {used}: {count} layers, {peak} of {bytes} bytes");
        let prompts = parts.devices().contains("(all for prompts)");
        assert_eq!(prompts, streams, "{share}%: {}", parts.devices());
        drop(parts);
        let device = device_of(bytes);
        let more = on(&device, GpuLayers::Count(count + 1), CONTEXT);
        if streams {
            // There is room for one more, if prompts run on the CPU.
            let more = more.unwrap();
            assert!(!more.devices().contains("prompts"), "{}", more.devices());
            assert_eq!(tokens(&more, &prompt, 3).unwrap(), wanted);
            continue;
        }
        let err = more.and_then(|more| tokens(&more, &prompt, 3)).unwrap_err();
        let err = err.to_string();
        assert!(
            err.contains("out of memory") || err.contains("needs"),
            "{err}"
        );
    }
}

/// A model that is too large is one line with what to do.
#[test]
fn what_does_not_fit_is_an_error() {
    let said = |bytes, gpu_layers| match on(&device_of(bytes), gpu_layers, 300) {
        Ok(_) => panic!("{bytes} bytes are enough"),
        Err(err) => err.to_string(),
    };
    let err = said(16 << 20, GpuLayers::All);
    assert!(err.starts_with("the model needs 2"), "{err}");
    assert!(err.contains("where 16.8 MB are free"), "{err}");
    assert!(err.ends_with(" of 6 layers fit"), "{err}");
    let err = said(1 << 20, GpuLayers::All);
    assert!(err.ends_with("none of its layers fits"), "{err}");
    let err = said(1 << 20, GpuLayers::Auto);
    assert!(err.ends_with("none of its layers fits"), "{err}");
    let err = said(1 << 30, GpuLayers::Count(7));
    assert_eq!(
        err,
        "gpu_layers 7: expected at most 6, the layers of the model"
    );
}

#[test]
fn choices_that_cannot_be() {
    let said = |split, kind| match load(&model_dir(), split, kind) {
        Ok(_) => panic!("it loads"),
        Err(err) => err.to_string(),
    };
    let err = said(with_layers(GpuLayers::Count(3)), DeviceKind::Cpu);
    assert!(
        err.contains("gpu_layers 3: expected 0, auto or all"),
        "{err}"
    );
    let experts = Split {
        cpu_experts: true,
        ..Split::default()
    };
    let err = said(experts, DeviceKind::WebGpu);
    assert!(err.contains("a model with experts"), "{err}");
    let entry = registry().select(choice(DeviceKind::Cpu)).unwrap();
    let files = files(&model_dir(), with_layers(GpuLayers::Auto));
    let Err(err) = entry.load_shared(files, 2, None, &|_| ()) else {
        panic!("it loads")
    };
    assert!(err.to_string().contains("gpus 2"), "{err}");
}
