//! Whisper with tiny weights that depend on their names alone: the network on every device, and what is built around it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{test_device, DType, Device, IndexOp, Result, Shape, Tensor, D};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::whisper::transcribe::{
    Heard, Options, Transcriber, Vocabulary, LANGUAGES,
};
use candle_transformers::models::whisper::{audio, model, quantized_model, Config};

use super::encoders::{assert_error, Made};
use super::support::{assert_close, Numbers};

/// 200 words, then the special tokens and 101 times.
const VOCAB: usize = 310;
const WORDS: u32 = 200;

fn config(vocab: usize) -> Config {
    Config {
        num_mel_bins: 8,
        max_source_positions: 50,
        d_model: 32,
        encoder_attention_heads: 4,
        encoder_layers: 2,
        vocab_size: vocab,
        max_target_positions: 24,
        decoder_attention_heads: 4,
        decoder_layers: 2,
        suppress_tokens: vec![7, 8],
    }
}

fn load(vocab: usize, dtype: DType, device: &Device) -> Result<model::Whisper> {
    let vb = VarBuilder::from_backend(Box::new(Made(&[])), dtype, device.clone());
    model::Whisper::load(&vb, config(vocab))
}

fn mel(frames: usize, device: &Device) -> Result<Tensor> {
    Numbers::new(3).tensor(&[2, 8, frames], 1., device)
}

fn tokens(device: &Device) -> Result<Tensor> {
    Tensor::new(&[[201u32, 3, 9, 40, 5, 17], [201, 90, 90, 2, 1, 0]], device)
}

/// Decoding token by token, with cached keys and values, gives the same as the whole text; so does a piece of three after one of two, and
/// again after a reset.
fn steps_are_the_whole(device: &Device) -> Result<()> {
    let mut whisper = load(VOCAB, DType::F32, device)?;
    let sound = whisper.encoder.forward(&mel(61, device)?, true)?;
    assert_eq!(sound.dims(), &[2, 31, 32]);
    let ids = tokens(device)?;
    let whole = whisper.decoder.forward(&ids, &sound, true)?;
    assert_eq!(whole.dims(), &[2, 6, 32]);
    for pieces in [vec![1; 6], vec![2, 3, 1], vec![6]] {
        let mut first = 0;
        let mut found = Vec::new();
        for len in &pieces {
            let ids = ids.narrow(1, first, *len)?;
            found.push(whisper.decoder.forward_next(&ids, &sound, first)?);
            first += len;
        }
        println!("{pieces:?}");
        assert_close(&Tensor::cat(&found, 1)?, &whole, 2e-5);
    }
    // The whole text in between changes nothing of what is held, and other sound is read after a reset.
    let next = |whisper: &mut model::Whisper, sound: &Tensor| {
        let first = whisper
            .decoder
            .forward_next(&ids.narrow(1, 0, 5)?, sound, 0)?;
        whisper.decoder.forward(&ids, sound, false)?;
        let last = whisper
            .decoder
            .forward_next(&ids.narrow(1, 5, 1)?, sound, 5)?;
        Tensor::cat(&[first, last], 1)
    };
    assert_close(&next(&mut whisper, &sound)?, &whole, 2e-5);
    let other = whisper.encoder.forward(&mel(90, device)?, true)?;
    assert_close(&next(&mut whisper, &other)?, &whole, 2e-5);
    whisper.reset_kv_cache();
    let found = next(&mut whisper, &other)?;
    let apart = (found - &whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(apart > 1e-3, "{apart}");
    whisper.reset_kv_cache();
    assert_close(&next(&mut whisper, &sound)?, &whole, 2e-5);
    Ok(())
}
test_device!(steps_are_the_whole);

/// The logits of a network of `dtype`, in f32.
fn logits(dtype: DType, device: &Device) -> Result<Tensor> {
    let mut whisper = load(VOCAB, dtype, device)?;
    let mel = mel(100, device)?.to_dtype(dtype)?;
    let sound = whisper.encoder.forward(&mel, true)?;
    let hidden = whisper.decoder.forward(&tokens(device)?, &sound, true)?;
    let logits = whisper.decoder.final_linear(&hidden)?;
    assert_eq!((logits.dims(), logits.dtype()), (&[2, 6, VOCAB][..], dtype));
    logits.to_dtype(DType::F32)
}

fn agrees_with_the_cpu(device: &Device) -> Result<()> {
    let found = logits(DType::F32, device)?.to_device(&Device::Cpu)?;
    assert_close(&found, &logits(DType::F32, &Device::Cpu)?, 1e-4);
    Ok(())
}
test_device!(agrees_with_the_cpu);

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    assert_close(
        &logits(DType::F16, device)?,
        &logits(DType::F32, device)?,
        0.1,
    );
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

/// Rows of attention weights sum to 1, and the vectors returned with them are those of the plain path.
fn attention_is_given(device: &Device) -> Result<()> {
    let mut whisper = load(VOCAB, DType::F32, device)?;
    let sound = whisper.encoder.forward(&mel(100, device)?, true)?;
    let ids = tokens(device)?;
    let (hidden, layers) = whisper.decoder.forward_with_attention(&ids, &sound)?;
    assert_close(
        &hidden,
        &whisper.decoder.forward(&ids, &sound, false)?,
        1e-6,
    );
    assert_eq!(layers.len(), 2);
    for weights in layers {
        assert_eq!(weights.dims(), &[2, 4, 6, 50]);
        let sums = weights.sum(D::Minus1)?;
        assert_close(&sums, &sums.ones_like()?, 1e-5);
    }
    Ok(())
}
test_device!(attention_is_given);

/// Keeps what a model asks for.
#[derive(Clone)]
struct Kept(Arc<Mutex<HashMap<String, Tensor>>>);

impl SimpleBackend for Kept {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let tensor = Made(&[]).get(s, name, h, dtype, dev)?;
        if let Ok(mut kept) = self.0.lock() {
            kept.insert(name.to_string(), tensor.clone());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        Made(&[]).get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// The quantised network equals the dense one over the dequantised weights; exactly so with weights of f32 in the file.
fn quantised_is_dense_of_its_blocks(device: &Device) -> Result<()> {
    let kept = Kept(Arc::default());
    let vb = VarBuilder::from_backend(Box::new(kept.clone()), DType::F32, Device::Cpu);
    model::Whisper::load(&vb, config(VOCAB))?;
    let Ok(kept) = kept.0.lock() else {
        panic!("a thread has panicked")
    };
    for (format, tolerance) in [(GgmlDType::F32, 1e-4), (GgmlDType::Q8_0, 5e-2)] {
        let mut blocks = Vec::new();
        let mut dense = HashMap::new();
        for (name, tensor) in kept.iter() {
            let format = if name.ends_with("weight") && tensor.rank() == 2 {
                format
            } else {
                GgmlDType::F32
            };
            let tensor = QTensor::quantize(tensor, format)?;
            dense.insert(
                name.clone(),
                tensor.dequantize(&Device::Cpu)?.to_device(device)?,
            );
            blocks.push((name.as_str(), tensor));
        }
        let blocks: Vec<_> = blocks
            .iter()
            .map(|(name, tensor)| (*name, tensor))
            .collect();
        let mut file = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut file, &[], &blocks)?;
        let vb = quantized_model::VarBuilder::from_gguf_buffer(file.get_ref(), device)?;
        let mut found = quantized_model::Whisper::load(&vb, config(VOCAB))?;
        let vb = VarBuilder::from_tensors(dense, DType::F32, device);
        let mut expected = model::Whisper::load(&vb, config(VOCAB))?;

        let sound = found.encoder.forward(&mel(100, device)?, true)?;
        println!("{format:?}");
        assert_close(
            &sound,
            &expected.encoder.forward(&mel(100, device)?, true)?,
            tolerance,
        );
        let ids = tokens(device)?;
        let hidden = found.decoder.forward(&ids, &sound, true)?;
        assert_close(
            &hidden,
            &expected.decoder.forward(&ids, &sound, true)?,
            tolerance,
        );
        found.reset_kv_cache();
        found.encoder.reset_kv_cache();
        let logits = found.decoder.final_linear(&hidden)?;
        assert_close(
            &logits,
            &expected.decoder.final_linear(&hidden)?,
            4. * tolerance,
        );
    }
    Ok(())
}
test_device!(quantised_is_dense_of_its_blocks);

fn bad_input_is_an_error(device: &Device) -> Result<()> {
    let mut whisper = load(VOCAB, DType::F32, device)?;
    for frames in [0, 101] {
        let mel = Tensor::zeros((1, 8, frames), DType::F32, device)?;
        assert_error(
            whisper.encoder.forward(&mel, true),
            &["1 to 100 frames", &frames.to_string()],
        );
    }
    let mel_of_four = Tensor::zeros((1, 4, 10), DType::F32, device)?;
    assert_error(
        whisper.encoder.forward(&mel_of_four, true),
        &["4 bands", "expects 8"],
    );
    let sound = whisper.encoder.forward(&mel(100, device)?, true)?;
    let decoder = &mut whisper.decoder;
    let of = |n: usize| Tensor::zeros((2, n), DType::U32, device);
    assert_error(decoder.forward(&of(0)?, &sound, true), &["0 tokens"]);
    assert_error(
        decoder.forward(&of(25)?, &sound, true),
        &["25 tokens", "24"],
    );
    assert_error(
        decoder.forward_next(&of(1)?, &sound, 3),
        &["follow 3", "cache holds 0"],
    );
    decoder.forward_next(&of(20)?, &sound, 0)?;
    assert_error(
        decoder.forward_next(&of(5)?, &sound, 20),
        &["5 tokens after 20"],
    );
    assert_error(
        decoder.forward(&of(1)?, &sound.i(..1)?, true),
        &["one batch size"],
    );
    let odd = Config {
        decoder_attention_heads: 5,
        ..config(VOCAB)
    };
    let vb = VarBuilder::from_backend(Box::new(Made(&[])), DType::F32, device.clone());
    assert_error(
        model::Whisper::load(&vb, odd),
        &["d_model 32", "decoder_attention_heads 5"],
    );
    Ok(())
}
test_device!(bad_input_is_an_error);

/// Words `w0` to `w199`, and the special tokens of `names` from 200 on.
struct Made200(Vec<String>);

impl Made200 {
    fn english() -> Self {
        let names = [
            "endoftext",
            "startoftranscript",
            "translate",
            "transcribe",
            "startoflm",
        ];
        let names = names
            .into_iter()
            .chain(["startofprev", "nospeech", "notimestamps"]);
        Self(names.map(|name| format!("<|{name}|>")).collect())
    }

    fn multilingual() -> Self {
        let mut all = Self::english();
        let languages = LANGUAGES.iter().map(|code| format!("<|{code}|>"));
        all.0.splice(2..2, languages);
        all
    }
}

impl Vocabulary for Made200 {
    fn id(&self, token: &str) -> Option<u32> {
        let at = self.0.iter().position(|known| known == token)?;
        Some(WORDS + at as u32)
    }

    fn text(&self, tokens: &[u32]) -> Result<String> {
        Ok(tokens.iter().map(|token| format!(" w{token}")).collect())
    }
}

/// A recording of some seconds of noise.
fn noise(samples: usize) -> Vec<f32> {
    let mut numbers = Numbers::new(11);
    (0..samples).map(|_| numbers.next(0.5)).collect()
}

/// Whatever the network says, the text ends, its times are in order and within the recording, and the same seed says the same.
fn recordings_of_any_length(device: &Device) -> Result<()> {
    let options = Options {
        words: true,
        ..Options::default()
    };
    let model = load(VOCAB, DType::F32, device)?;
    let vocabulary = Box::new(Made200::english());
    let mut whisper = Transcriber::new(model, vocabulary, options)?;
    for samples in [0, 1, 159, 160, 16_000, 40_000] {
        let recording = noise(samples);
        let mut heard = 0;
        let transcript = whisper.transcribe(&recording, |_| {
            heard += 1;
            Ok(())
        })?;
        let length = samples as f64 / 16_000.;
        println!("{samples}: {}", transcript.text());
        assert_eq!(transcript.segments.len(), heard);
        assert_eq!(
            (transcript.language.as_str(), transcript.duration),
            ("en", length)
        );
        assert!(samples >= 160 || heard == 0);
        for segment in &transcript.segments {
            // The last window is filled up with a second of silence, in which a time may be.
            assert!(
                0. <= segment.start && segment.start < segment.end,
                "{segment:?}"
            );
            assert!(segment.end <= length + 2., "{segment:?}");
            assert!(segment.tokens.iter().all(|token| ![7, 8].contains(token)));
            let words: String = segment
                .words
                .iter()
                .map(|word| word.text.as_str())
                .collect();
            assert_eq!(words, segment.text);
            assert!(segment.words.windows(2).all(|w| w[0].start <= w[1].start));
        }
        assert_eq!(whisper.transcribe(&recording, |_| Ok(()))?, transcript);
    }
    Ok(())
}
test_device!(recordings_of_any_length);

/// Without blocking the thread it gives the same, and tells of the text after each token.
fn without_blocking(device: &Device) -> Result<()> {
    let options = Options {
        words: true,
        ..Options::default()
    };
    let model = load(VOCAB, DType::F32, device)?;
    let mut whisper = Transcriber::new(model, Box::new(Made200::english()), options)?;
    let recording = noise(40_000);
    let blocking = whisper.transcribe(&recording, |_| Ok(()))?;
    let (mut drafts, mut segments) = (Vec::new(), Vec::new());
    let listening = whisper.transcribe_async(&recording, async |heard: Heard<'_>| {
        match heard {
            Heard::Draft(text) => drafts.push(text.to_string()),
            Heard::Segment(segment) => segments.push(segment.clone()),
        }
        Ok(())
    });
    assert_eq!(pollster::block_on(listening)?, blocking);
    assert_eq!(segments, blocking.segments);
    assert!(!segments.is_empty());
    for segment in &segments {
        let told = |draft: &String| draft.contains(&segment.text);
        assert!(drafts.iter().any(told), "{segment:?}, {drafts:?}");
    }
    let stopped = whisper.transcribe_async(&recording, async |_: Heard<'_>| {
        candle_core::bail!("enough")
    });
    assert_error(pollster::block_on(stopped), &["enough"]);
    Ok(())
}
test_device!(without_blocking);

#[test]
fn other_options_for_the_next_recording() -> Result<()> {
    let model = load(51_866, DType::F32, &Device::Cpu)?;
    let vocabulary = Box::new(Made200::multilingual());
    let mut whisper = Transcriber::new(model, vocabulary, Options::default())?;
    assert_eq!(whisper.languages().count(), LANGUAGES.len());
    let of = |language: &str| Options {
        language: Some(language.to_string()),
        ..Options::default()
    };
    whisper.set_options(of("de"))?;
    assert_eq!(whisper.transcribe(&noise(160), |_| Ok(()))?.language, "de");
    assert_error(whisper.set_options(of("xx")), &["xx"]);
    assert_eq!(whisper.options().language.as_deref(), Some("de"));
    Ok(())
}

#[test]
fn a_listener_can_stop_it() -> Result<()> {
    let model = load(VOCAB, DType::F32, &Device::Cpu)?;
    let vocabulary = Box::new(Made200::english());
    let mut whisper = Transcriber::new(model, vocabulary, Options::default())?;
    let stopped = whisper.transcribe(&noise(40_000), |_| candle_core::bail!("enough"));
    assert_error(stopped, &["enough"]);
    // Between segments, too: after each token.
    let mut asked = 0;
    let go_on = || match asked {
        3 => candle_core::bail!("nobody is there"),
        _ => {
            asked += 1;
            Ok(())
        }
    };
    let stopped = whisper.transcribe_while(&noise(40_000), go_on, |_| Ok(()));
    assert_error(stopped, &["nobody is there"]);
    assert_error(
        whisper.transcribe(&[0., f32::NAN], |_| Ok(())),
        &["sample 1 is NaN"],
    );
    Ok(())
}

#[test]
fn languages() -> Result<()> {
    let load = || load(51_866, DType::F32, &Device::Cpu);
    let with = |options| Transcriber::new(load()?, Box::new(Made200::multilingual()), options);
    let (language, probability) = with(Options::default())?.detect_language(&noise(16_000))?;
    assert!(LANGUAGES.contains(&language.as_str()), "{language}");
    assert!((0.01..=1.).contains(&probability), "{probability}");
    let transcript = with(Options::default())?.transcribe(&noise(16_000), |_| Ok(()))?;
    assert_eq!(transcript.language, language);
    let asked = Options {
        language: Some("de".into()),
        translate: true,
        timestamps: false,
        ..Options::default()
    };
    let transcript = with(asked)?.transcribe(&noise(16_000), |_| Ok(()))?;
    assert_eq!(transcript.language, "de");
    let unknown = Options {
        language: Some("tlh".into()),
        ..Options::default()
    };
    assert_error(with(unknown), &["\"tlh\"", "en, zh"]);
    Ok(())
}

#[test]
fn options_that_do_not_fit() -> Result<()> {
    let with = |vocabulary, options| {
        let model = load(VOCAB, DType::F32, &Device::Cpu)?;
        Transcriber::new(model, Box::new(vocabulary), options)
    };
    let german = Options {
        language: Some("de".into()),
        ..Options::default()
    };
    assert_error(
        with(Made200::english(), german),
        &["English-only", "\"de\""],
    );
    let english = Options {
        language: Some("en".into()),
        ..Options::default()
    };
    with(Made200::english(), english)?;
    let translate = Options {
        translate: true,
        ..Options::default()
    };
    assert_error(with(Made200::english(), translate), &["cannot translate"]);
    let cold = Options {
        temperatures: Vec::new(),
        ..Options::default()
    };
    assert_error(with(Made200::english(), cold), &["temperatures"]);
    let other = Made200(vec!["<|endoftext|>".into()]);
    assert_error(
        with(other, Options::default()),
        &["<|notimestamps|>", "tokenizer.json"],
    );
    Ok(())
}

/// The bands of silence are at the floor, and Candle's spectrogram has the frames that it has there.
#[test]
fn spectrograms() -> Result<()> {
    let filters = audio::mel_filters(80);
    let silent = audio::log_mel(&[0.; 1600], &filters)?;
    assert_eq!(silent, vec![-1.5; 800]);
    let config = Config {
        num_mel_bins: 80,
        ..config(VOCAB)
    };
    let mel = audio::pcm_to_mel(&config, &[0f32; 16_000], &filters);
    assert_eq!((mel.len(), mel[0]), (80 * 3000, -1.5));
    Ok(())
}
