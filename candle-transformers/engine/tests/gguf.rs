//! The embedded model out of GGUF files, against the outputs of an independent implementation over unquantised weights.

use crate::gguf_model::in_format;
use crate::support::{
    choice, golden, load, on_each_device, prompts, registry, runs_fewer, GoldenPrompt, ModelFolder,
};
use candle_core::quantized::GgmlDType;
use candle_core::DType;
use candle_engine::{
    CandleBackend, CompletionRequest, DeviceKind, InferenceBackend, KvType, ModelFiles,
    ModelSource, WeightFormat,
};

on_each_device!(unquantised, eight_bits, four_bits);

fn open(kind: DeviceKind, format: GgmlDType) -> CandleBackend {
    load(&ModelSource::Gguf(in_format(format)), kind, None)
}

/// As [`open`], with keys and values as `kv_type`.
fn keeping(kind: DeviceKind, format: GgmlDType, kv_type: KvType) -> CandleBackend {
    let mut files = ModelFiles::open(&ModelSource::Gguf(in_format(format))).unwrap();
    files.kv_type = kv_type;
    let entry = registry().select(choice(kind)).unwrap();
    entry.load(files, None, &|_| ()).unwrap()
}

/// The largest difference to the reference's eight largest logits.
fn top8_error(backend: &CandleBackend, prompt: &GoldenPrompt) -> f32 {
    let logits = backend.session().forward(&prompt.ids).unwrap();
    let logits: Vec<f32> = logits.to_vec1().unwrap();
    let expected = prompt.last_logits_top8.iter();
    expected.fold(0f32, |worst, (id, expected)| {
        worst.max((logits[*id] - expected).abs())
    })
}

/// Number of the reference's tokens before the first difference.
fn tokens_in_common(backend: &CandleBackend, prompt: &GoldenPrompt, count: usize) -> usize {
    let request = CompletionRequest {
        prompt: prompt.text.clone(),
        max_tokens: count,
        ..Default::default()
    };
    let completion = backend.complete(&request).unwrap();
    let pairs = completion.token_ids.iter().zip(&prompt.greedy_ids);
    pairs
        .take_while(|(found, expected)| found == expected)
        .count()
}

fn unquantised(kind: DeviceKind) {
    // f16 has more bits than the model's bf16; only weights below 2^-14 lose some. Activations are f32 on the CPU, and f16 on a GPU,
    // whose tolerance is that of `golden::half_precision`.
    for (format, tolerance) in [
        (GgmlDType::F32, 1e-3),
        (
            GgmlDType::F16,
            if kind == DeviceKind::Cpu { 1e-3 } else { 0.05 },
        ),
    ] {
        let backend = open(kind, format);
        for prompt in prompts(kind) {
            let error = top8_error(&backend, prompt);
            println!("{kind:?} {format:?} {:?}: {error}", prompt.text);
            assert!(
                error < tolerance,
                "{format:?} {:?}: off by {error}",
                prompt.text
            );
        }
        if backend.dtype() == DType::F32 {
            let tokens = if runs_fewer(backend.device()) { 12 } else { 48 };
            for prompt in prompts(kind).take(3) {
                let common = tokens_in_common(&backend, prompt, tokens);
                assert_eq!(common, tokens, "{format:?} {:?}", prompt.text);
            }
        }
    }
}

fn eight_bits(kind: DeviceKind) {
    check_blocks(kind, GgmlDType::Q8_0);
    let backend = open(kind, GgmlDType::Q8_0);
    assert_eq!(backend.dtype(), DType::F32);
    // Eight bits of weights and activations: measured 0.38.
    let prompt = &golden().prompts[0];
    let error = top8_error(&backend, prompt);
    assert!(error < 0.8, "off by {error}");
    let tokens = if runs_fewer(backend.device()) { 12 } else { 48 };
    assert_eq!(tokens_in_common(&backend, prompt, tokens), tokens);
}

fn four_bits(kind: DeviceKind) {
    for format in [GgmlDType::Q4_0, GgmlDType::Q4K] {
        check_blocks(kind, format);
    }
}

/// Blocks give the logits, of up to 30, of the dense model with the same rounded weights, whatever keys and values are kept as. Products bring
/// activations to 8 bits, which moves logits by up to 0.5.
fn check_blocks(kind: DeviceKind, format: GgmlDType) {
    for kv_type in [KvType::F32, KvType::F16] {
        check_logits(&keeping(kind, format, kv_type), (kind, format));
    }
}

fn check_logits(backend: &CandleBackend, (kind, format): (DeviceKind, GgmlDType)) {
    let folder = ModelFolder::new();
    folder.round_weights(format);
    let source = ModelSource::Folder(folder.path().to_path_buf());
    let judge = load(&source, DeviceKind::Cpu, None);
    for prompt in &golden().prompts[..2] {
        let [found, expected] = [backend, &judge].map(|backend| {
            let logits = backend.session().forward(&prompt.ids).unwrap();
            logits.to_vec1::<f32>().unwrap()
        });
        let pairs = found.iter().zip(&expected);
        let error = pairs.fold(0f32, |worst, (f, e)| worst.max((f - e).abs()));
        println!("{kind:?} {format:?} {:?}: {error}", prompt.text);
        assert!(
            error < 1.0,
            "{kind:?} {format:?} {:?}: off by {error}",
            prompt.text
        );
    }
}

/// The file's tokenizer gives the tokens of `tokenizer.json`.
#[test]
fn prompt_tokens() {
    let files = ModelFiles::open(&ModelSource::Gguf(in_format(GgmlDType::Q8_0))).unwrap();
    for prompt in &golden().prompts {
        let ids = files.prompt_tokens(&prompt.text).unwrap();
        assert_eq!(ids, prompt.ids, "{:?}", prompt.text);
    }
    assert_eq!(files.stop_tokens, [1]);
    assert_eq!(files.max_positions(), 1024);
    assert_eq!(files.format(), WeightFormat::Blocks(GgmlDType::Q8_0));
}

/// A file is a GGUF model, anything else a folder.
#[test]
fn sources() {
    let file = in_format(GgmlDType::Q8_0);
    assert_eq!(
        ModelSource::at(file.clone()),
        ModelSource::Gguf(file.clone())
    );
    let folder = file.parent().unwrap().to_path_buf();
    assert_eq!(ModelSource::at(folder.clone()), ModelSource::Folder(folder));
}
