//! Sound files: reading returns the samples written, with or without resampling, and each kind of bad file has its own error.

use crate::wav::{wav, Form};
use candle_engine::audio::{read_audio, read_audio_bytes, Audio, MAX_SECONDS, SAMPLE_RATE};
use std::f64::consts::TAU;

const AMPLITUDE: f64 = 0.8;

fn sine(hz: f64, rate: u32, frames: usize) -> impl Iterator<Item = f64> {
    (0..frames).map(move |i| AMPLITUDE * (TAU * hz * i as f64 / f64::from(rate)).sin())
}

fn read(file: &[u8]) -> Audio {
    read_audio_bytes("test.wav", file).unwrap()
}

fn problem(name: &str, file: &[u8]) -> String {
    let text = read_audio_bytes(name, file).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with(&format!("{name}: ")), "{text}");
    text
}

/// The samples without the first and the last 50 ms, where the filter meets the silence outside of the file.
fn inner(samples: &[f32]) -> &[f32] {
    &samples[800..samples.len() - 800]
}

/// The largest difference from a sine of the same frequency, amplitude and phase, except at the ends.
fn off_sine(samples: &[f32], hz: f64) -> f64 {
    let wanted: Vec<f64> = sine(hz, SAMPLE_RATE, samples.len()).collect();
    let wanted = &wanted[800..samples.len() - 800];
    let off = inner(samples).iter().zip(wanted);
    off.map(|(found, wanted)| (f64::from(*found) - wanted).abs())
        .fold(0., f64::max)
}

#[test]
fn a_tone_stays_what_it_is() {
    let forms = [8, 16, 24, 32].map(Form::Whole);
    for form in forms.into_iter().chain([Form::Float]) {
        // At 96,000 Hz a chunk of 4,096 would leave half a sample of delay.
        for rate in [
            SAMPLE_RATE,
            8_000,
            11_025,
            12_345,
            22_050,
            32_000,
            44_100,
            48_000,
            88_200,
            96_000,
        ] {
            // Not a whole number of the filter's chunks.
            let frames = rate as usize + rate as usize / 7;
            let audio = read(&wav(form, rate, 1, sine(440., rate, frames)));
            let wanted = (frames as u64 * u64::from(SAMPLE_RATE)).div_ceil(u64::from(rate));
            assert_eq!(audio.samples.len() as u64, wanted, "{form:?} at {rate} Hz");
            assert_eq!((audio.source_rate, audio.channels), (rate, 1));
            assert!(audio.complete);
            assert!((audio.seconds - frames as f64 / f64::from(rate)).abs() < 1e-9);
            let off = off_sine(&audio.samples, 440.);
            assert!(off < 1e-2, "{form:?} at {rate} Hz: {off}");
        }
    }
}

/// Without resampling nothing but the file's own rounding is lost.
#[test]
fn samples_at_the_right_rate_are_untouched() {
    let values: Vec<f64> = vec![0., 0.5, -0.5, 0.25, -1., 0.125];
    let audio = read(&wav(Form::Float, SAMPLE_RATE, 1, values.clone()));
    assert_eq!(
        audio.samples,
        values.iter().map(|v| *v as f32).collect::<Vec<_>>()
    );
}

/// 10 kHz is above what 16,000 samples a second can hold, and would come back as 6 kHz.
#[test]
fn what_the_rate_cannot_hold_is_gone() {
    for rate in [44_100, 48_000] {
        let audio = read(&wav(
            Form::Float,
            rate,
            1,
            sine(10_000., rate, rate as usize),
        ));
        let most = inner(&audio.samples)
            .iter()
            .fold(0f32, |most, s| most.max(s.abs()));
        assert!(most < 1e-3, "{rate} Hz: {most}");
    }
    // 7 kHz is not.
    let audio = read(&wav(Form::Float, 44_100, 1, sine(7_000., 44_100, 44_100)));
    let off = off_sine(&audio.samples, 7_000.);
    assert!(off < 1e-2, "{off}");
}

#[test]
fn channels_are_averaged() {
    for rate in [SAMPLE_RATE, 44_100] {
        let opposite = sine(440., rate, 20_000).flat_map(|v| [v, -v]);
        let audio = read(&wav(Form::Whole(16), rate, 2, opposite));
        assert_eq!(audio.channels, 2);
        assert!(
            audio.samples.iter().all(|sample| *sample == 0.),
            "{rate} Hz"
        );
        let left = sine(440., rate, 20_000).flat_map(|v| [2. * v / AMPLITUDE * 0.4, 0.8 * v]);
        let audio = read(&wav(Form::Float, rate, 2, left));
        // The mean of v and 0.8 v.
        let scaled: Vec<f32> = audio.samples.iter().map(|sample| sample / 0.9).collect();
        let off = off_sine(&scaled, 440.);
        assert!(off < 1e-2, "{rate} Hz: {off}");
    }
}

#[test]
fn one_sample_is_audio_and_none_is_not() {
    for (rate, count) in [(SAMPLE_RATE, 1), (8_000, 2), (48_000, 1)] {
        let audio = read(&wav(Form::Whole(16), rate, 1, [0.5]));
        assert_eq!(audio.samples.len(), count, "{rate} Hz");
        assert!(audio.samples[0].abs() <= 1.);
    }
    let text = problem("none.wav", &wav(Form::Whole(16), SAMPLE_RATE, 1, []));
    assert!(text.contains("no audio samples"), "{text}");
}

#[test]
fn files_without_audio_are_refused() {
    let text = problem("letter.wav", "Dear Sir or Madam, ".repeat(200).as_bytes());
    assert!(
        text.contains("unrecognized audio") && text.contains("FLAC"),
        "{text}"
    );
    assert!(problem("short.wav", b"RI").contains("unrecognized audio"));
    assert!(problem("head.wav", b"RIFF\x24\0\0\0WAVE").contains("unrecognized audio"));
    assert!(problem("empty.wav", b"").contains("empty"));
    // A codec that is not known, in a file that is: GSM in WAV.
    let mut gsm = wav(Form::Whole(16), SAMPLE_RATE, 1, [0.; 64]);
    gsm[20] = 0x31;
    problem("gsm.wav", &gsm);
}

#[test]
fn files_are_read_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tone.wav");
    let file = wav(
        Form::Whole(16),
        44_100,
        2,
        sine(440., 44_100, 30_000).flat_map(|v| [v, v]),
    );
    std::fs::write(&path, &file).unwrap();
    let audio = read_audio(&path).unwrap();
    assert_eq!(audio, read(&file));
    // The ending is a hint, what is in the file decides.
    let other = dir.path().join("tone.mp3");
    std::fs::write(&other, &file).unwrap();
    assert_eq!(read_audio(&other).unwrap(), audio);
    for (name, what) in [
        ("absent.wav", "o such file"),
        ("", "folder"),
        ("empty.wav", "empty"),
    ] {
        let path = dir.path().join(name);
        if name == "empty.wav" {
            std::fs::write(&path, "").unwrap();
        }
        let text = read_audio(&path).unwrap_err().to_string();
        assert!(
            text.contains(what) && text.contains(path.to_str().unwrap()),
            "{text}"
        );
    }
}

#[test]
fn of_a_truncated_file_the_rest_is_used() {
    let file = wav(Form::Whole(16), 44_100, 1, sine(440., 44_100, 2 * 44_100));
    let audio = read(&file[..file.len() / 2]);
    assert!(!audio.complete);
    assert!((0.9..=1.).contains(&audio.seconds), "{}", audio.seconds);
    assert!(off_sine(&audio.samples, 440.) < 1e-2);
    // The header alone.
    let text = problem("head.wav", &file[..44]);
    assert!(
        text.contains("no audio samples") && text.contains("truncated"),
        "{text}"
    );
}

#[test]
fn nan_samples_and_impossible_rates_are_refused() {
    let text = problem(
        "nan.wav",
        &wav(Form::Float, 44_100, 2, [0., 0., 0.5, f64::NAN]),
    );
    assert!(text.contains("sample 1") && text.contains("NaN"), "{text}");
    for rate in [1, 999, 768_001, 100_000_000] {
        let text = problem("rate.wav", &wav(Form::Whole(16), rate, 1, [0.; 100]));
        assert!(text.contains("sample rate"), "{text}");
    }
    assert_eq!(MAX_SECONDS, 86_400);
}

/// Half a second of the tone at 22,050 Hz, by libsndfile and FFmpeg; and an image.
fn stored(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/audio");
    std::fs::read(folder.join(name)).unwrap()
}

/// The amplitude of the 440 Hz in the samples, whatever their phase, and of everything else.
fn tone(samples: &[f32]) -> (f64, f64) {
    let samples: Vec<f64> = inner(samples)
        .iter()
        .map(|sample| f64::from(*sample))
        .collect();
    let turn = TAU * 440. / f64::from(SAMPLE_RATE);
    let share = |part: fn(f64) -> f64| {
        let parts = samples.iter().enumerate();
        let sum: f64 = parts
            .map(|(i, sample)| sample * part(turn * i as f64))
            .sum();
        2. * sum / samples.len() as f64
    };
    let (sin, cos) = (share(f64::sin), share(f64::cos));
    let rest = samples.iter().enumerate().map(|(i, sample)| {
        let angle = turn * i as f64;
        (sample - sin * angle.sin() - cos * angle.cos()).powi(2)
    });
    let rest = rest.sum::<f64>() / samples.len() as f64;
    (sin.hypot(cos), (2. * rest).sqrt())
}

#[test]
fn each_format_is_decoded() {
    for (name, most) in [
        ("tone.flac", 5e-3),
        ("tone.ogg", 2e-2),
        ("tone.mp3", 2e-2),
        ("tone.m4a", 2e-2),
    ] {
        let audio = read_audio_bytes(name, &stored(name)).unwrap();
        assert!(audio.complete, "{name}");
        assert_eq!((audio.source_rate, audio.channels), (22_050, 1), "{name}");
        // Encoders put their delay before the sound, and say so or not.
        assert!(
            (0.5..0.6).contains(&audio.seconds),
            "{name}: {}",
            audio.seconds
        );
        let middle = &audio.samples[audio.samples.len() / 4..audio.samples.len() * 3 / 4];
        let (amplitude, rest) = tone(middle);
        assert!((amplitude - AMPLITUDE).abs() < most, "{name}: {amplitude}");
        assert!(rest < 2. * most, "{name}: {rest}");
    }
    let flac = read_audio_bytes("tone.flac", &stored("tone.flac")).unwrap();
    assert_eq!(flac.samples.len(), 8_000);
    assert!(off_sine(&flac.samples, 440.) < 1e-2);
    // Damaged ones give what is left.
    let file = stored("tone.flac");
    let half = read_audio_bytes("half.flac", &file[..file.len() / 2]).unwrap();
    assert!(!half.complete && half.seconds < 0.4, "{}", half.seconds);
}

#[test]
fn a_film_without_sound_is_said_so() {
    let text = problem("picture.mp4", &stored("picture.mp4"));
    assert!(text.contains("no audio track"), "{text}");
}

/// Whatever is in a file, nothing panics.
#[test]
fn damaged_files_do_no_harm() {
    for name in [
        "tone.flac",
        "tone.ogg",
        "tone.mp3",
        "tone.m4a",
        "picture.mp4",
    ] {
        let file = stored(name);
        for step in 0..200usize {
            let mut damaged = file.clone();
            let at = step * 7919 % damaged.len();
            damaged[at] ^= 1 << (step % 8);
            damaged.truncate(file.len() - step * 31 % (file.len() / 2));
            if let Ok(audio) = read_audio_bytes(name, &damaged) {
                assert!(audio.samples.iter().all(|sample| sample.is_finite()));
            }
        }
    }
}
