//! Sound files as what speech models take: one channel, 16,000 samples a second.
//!
//! ```no_run
//! let audio = candle_engine::audio::read_audio("speech.mp3".as_ref())?;
//! println!("{:.1} s, {} samples", audio.seconds, audio.samples.len());
//! # Ok::<(), candle_engine::Error>(())
//! ```
//!
//! WAV (whole numbers and floats), FLAC, MP3, Ogg Vorbis, and AAC in MP4 are decoded by `symphonia`. `rubato` resamples in the frequency
//! domain: what the new rate cannot hold is filtered out before it could come back as another tone.

use crate::error::one_line;
use crate::{Error, Result};
use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler, WindowFunction};
use std::fs::File;
use std::io::{Cursor, ErrorKind};
use std::path::Path;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::errors::Error as Broken;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;

/// Samples a second of [`Audio::samples`], in Hz.
pub const SAMPLE_RATE: u32 = 16_000;

/// The most that a file may last, in seconds: a day, which is 5.5 GB of samples. A small file can claim much more.
pub const MAX_SECONDS: u64 = 24 * 60 * 60;

/// The sample rates that files may have, in Hz. The filter's size follows the rate.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Maximum difference, in seconds, between the declared and the actual duration of a file that does not count as truncated: encoders pad.
const SLACK: f64 = 0.1;

const KNOWN: &str =
    "expected WAV, FLAC, MP3, Ogg Vorbis or M4A (AAC); `ffmpeg -i FILE out.wav` converts others";

/// A sound, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// One channel, the mean of the file's channels, at [`SAMPLE_RATE`]. From -1 to 1; float files with a high level, and the filter's
    /// overshoot near clipped samples, can exceed that slightly.
    pub samples: Vec<f32>,
    /// The duration in seconds, by the decoded samples.
    pub seconds: f64,
    /// The file's samples a second, in Hz.
    pub source_rate: u32,
    /// The file's channels.
    pub channels: usize,
    /// Whether everything that the file announces was there and could be decoded. If not, a warning has said what is missing.
    pub complete: bool,
}

/// Decodes a sound file; of several tracks, the default one. Of a damaged or truncated file, the decodable part is returned, and a warning
/// about the rest is logged.
///
/// # Errors
/// A file that cannot be read, is empty, has an unknown format or codec, has no audio track or no samples, has more than [`MAX_SECONDS`] of
/// them or NaN ones, or a sample rate outside 1 to 768 kHz.
pub fn read_audio(path: &Path) -> Result<Audio> {
    let name = path.display().to_string();
    let problem = |err: std::io::Error| Error::file(path, err);
    let file = File::open(path).map_err(problem)?;
    let about = file.metadata().map_err(problem)?;
    if about.is_dir() {
        return Err(Error::file(path, format!("is a folder; {KNOWN}")));
    }
    if about.is_file() && about.len() == 0 {
        return Err(empty(&name));
    }
    read(&name, Box::new(file), MAX_SECONDS)
}

/// As [`read_audio`], for a file in memory. `name` names it in messages, and its extension is a hint at the format.
///
/// # Errors
/// Those of [`read_audio`].
pub fn read_audio_bytes(name: &str, bytes: &[u8]) -> Result<Audio> {
    read_short_audio(name, bytes, MAX_SECONDS)
}

/// As [`read_audio_bytes`], of a file that may last at most `most` seconds: a stranger's. No more than those are held while it is decoded.
///
/// # Errors
/// Those of [`read_audio`], and a file that is longer.
pub fn read_short_audio(name: &str, bytes: &[u8], most: u64) -> Result<Audio> {
    if bytes.is_empty() {
        return Err(empty(name));
    }
    read(name, Box::new(Cursor::new(bytes)), most.min(MAX_SECONDS))
}

fn empty(name: &str) -> Error {
    problem(name, format!("the file is empty; {KNOWN}"))
}

fn problem(name: &str, problem: String) -> Error {
    Error::File {
        file: name.to_string(),
        problem: one_line(&problem),
    }
}

fn read(name: &str, source: Box<dyn MediaSource + '_>, most: u64) -> Result<Audio> {
    let stream = MediaSourceStream::new(source, Default::default());
    let mut hint = Hint::new();
    if let Some(ending) = Path::new(name)
        .extension()
        .and_then(|ending| ending.to_str())
    {
        hint.with_extension(ending);
    }
    let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
    let mut format = symphonia::default::get_probe()
        .probe(&hint, stream, format, metadata)
        .map_err(|err| problem(name, format!("unrecognized audio ({err}); {KNOWN}")))?;
    let kind = format.format_info().long_name;
    let Some(track) = format.default_track(TrackType::Audio) else {
        let tracks = format.tracks().len();
        return Err(problem(
            name,
            format!("no audio track: found {kind} with {tracks} other tracks; {KNOWN}"),
        ));
    };
    let id = track.id;
    // For an MP3 without a table of contents the number is estimated from its size.
    let announced = track
        .num_frames
        .filter(|_| format.format_info().short_name != "mp3");
    let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
        return Err(problem(
            name,
            format!("the audio track does not name its codec: found {kind}; {KNOWN}"),
        ));
    };
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(|err| {
            let problem_of = format!("cannot decode the audio: found {kind}, {err}; {KNOWN}");
            problem(name, problem_of)
        })?;
    let decoded = decode(name, &mut *format, &mut *decoder, id, most)?;
    let Some(mut mono) = decoded.mono else {
        let found = match decoded.missing {
            Some(reason) => format!("found {kind}, {reason}"),
            None => format!("found {kind} with 0 samples"),
        };
        return Err(problem(
            name,
            format!("no audio samples: {found}; record or convert it again"),
        ));
    };
    let (rate, frames) = (mono.rate, mono.taken);
    let seconds = frames as f64 / f64::from(rate);
    let announced = announced.map_or(seconds, |frames| frames as f64 / f64::from(rate));
    let short = announced > seconds + SLACK;
    let missing = decoded
        .missing
        .or_else(|| short.then(|| "the file is shorter than its header says".to_string()));
    if let Some(reason) = &missing {
        let rest = (announced - seconds).max(0.);
        tracing::warn!("{name}: {reason}; using the first {seconds:.2} s, {rest:.2} s are missing");
    }
    Ok(Audio {
        samples: mono.finish().map_err(|err| problem(name, err))?,
        seconds,
        source_rate: rate,
        channels: decoded.channels,
        complete: missing.is_none(),
    })
}

/// The decoded packets of a file.
struct Decoded {
    /// `None` if there was no sample.
    mono: Option<Mono>,
    channels: usize,
    /// The reason why the file is incomplete.
    missing: Option<String>,
}

fn decode(
    name: &str,
    format: &mut dyn FormatReader,
    decoder: &mut dyn AudioDecoder,
    track: u32,
    most: u64,
) -> Result<Decoded> {
    let mut decoded = Decoded {
        mono: None,
        channels: 0,
        missing: None,
    };
    let (mut damaged, mut interleaved) = (0usize, Vec::<f32>::new());
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) if packet.track_id == track => packet,
            Ok(Some(_)) => continue,
            Ok(None) => break,
            Err(Broken::IoError(err)) if err.kind() == ErrorKind::UnexpectedEof => {
                decoded.missing = Some("the file is truncated".to_string());
                break;
            }
            Err(Broken::ResetRequired) => {
                decoded.missing = Some("the file has more than one stream".to_string());
                break;
            }
            Err(err) => {
                decoded.missing = Some(format!("cannot read the rest of the file ({err})"));
                break;
            }
        };
        let buffer = match decoder.decode(&packet) {
            Ok(buffer) => buffer,
            // Decoders continue at the next packet.
            Err(Broken::DecodeError(_) | Broken::IoError(_)) => {
                damaged += 1;
                continue;
            }
            Err(err) => {
                decoded.missing = Some(format!("cannot decode the rest of the file ({err})"));
                break;
            }
        };
        let (rate, channels) = (buffer.spec().rate(), buffer.num_planes());
        if buffer.is_empty() || channels == 0 {
            continue;
        }
        buffer.copy_to_vec_interleaved(&mut interleaved);
        let mono = match &mut decoded.mono {
            Some(mono) if mono.rate != rate => {
                let change = format!("the sample rate changes from {} to {rate} Hz", mono.rate);
                decoded.missing = Some(change);
                break;
            }
            Some(mono) => mono,
            none => {
                decoded.channels = channels;
                none.insert(Mono::new(rate, most).map_err(|err| problem(name, err))?)
            }
        };
        mono.take(&interleaved, channels)
            .map_err(|err| problem(name, err))?;
    }
    if damaged > 0 {
        let count = format!("skipped {damaged} damaged packets");
        decoded.missing = Some(match decoded.missing {
            Some(reason) => format!("{reason}, {count}"),
            None => count,
        });
    }
    Ok(decoded)
}

/// Takes the channels' samples as they are decoded and holds their mean at [`SAMPLE_RATE`], so that memory follows that rate.
struct Mono {
    rate: u32,
    /// The most seconds.
    most: u64,
    /// Samples of a channel so far.
    taken: u64,
    /// Samples that do not fill a chunk of the filter yet.
    pending: Vec<f32>,
    samples: Vec<f32>,
    /// `None` for a file that has the rate already.
    filter: Option<Filter>,
}

struct Filter {
    fft: Fft<f32>,
    chunk: Vec<f32>,
}

impl Mono {
    fn new(rate: u32, most: u64) -> std::result::Result<Self, String> {
        if !RATES.contains(&rate) {
            return Err(format!(
                "the sample rate is {rate} Hz; expected {} to {}; resample it",
                RATES.start(),
                RATES.end()
            ));
        }
        let filter = (rate != SAMPLE_RATE)
            .then(|| Filter::new(rate))
            .transpose()?;
        Ok(Self {
            rate,
            most,
            taken: 0,
            pending: Vec::new(),
            samples: Vec::new(),
            filter,
        })
    }

    fn take(&mut self, interleaved: &[f32], channels: usize) -> std::result::Result<(), String> {
        let before = self.taken;
        let into = match &self.filter {
            Some(_) => &mut self.pending,
            None => &mut self.samples,
        };
        into.extend(
            interleaved
                .chunks_exact(channels)
                .map(|frame| frame.iter().sum::<f32>() / channels as f32),
        );
        self.taken += (interleaved.len() / channels) as u64;
        if let Some(at) = interleaved.iter().position(|sample| !sample.is_finite()) {
            return Err(format!(
                "sample {} is {}, not a finite number; convert the file to integer samples or repair it",
                before + (at / channels) as u64,
                interleaved[at]
            ));
        }
        if self.taken > self.most * u64::from(self.rate) {
            let most = match self.most {
                MAX_SECONDS => format!("{} hours", MAX_SECONDS / 3600),
                most => format!("{most} s"),
            };
            return Err(format!("longer than {most}; split it"));
        }
        let Some(filter) = &mut self.filter else {
            return Ok(());
        };
        let mut used = 0;
        loop {
            let wanted = filter.fft.input_frames_next();
            if self.pending.len() - used < wanted {
                break;
            }
            filter.run(&self.pending[used..used + wanted], None, &mut self.samples)?;
            used += wanted;
        }
        self.pending.drain(..used);
        Ok(())
    }

    /// The samples, for the duration of the file; the first is at the time of the file's first sample.
    fn finish(&mut self) -> std::result::Result<Vec<f32>, String> {
        let mut samples = std::mem::take(&mut self.samples);
        if let Some(filter) = &mut self.filter {
            // The filter's output is delayed.
            let delay = filter.fft.output_delay();
            let count =
                (self.taken * u64::from(SAMPLE_RATE)).div_ceil(u64::from(self.rate)) as usize;
            let mut rest = std::mem::take(&mut self.pending);
            while samples.len() < delay + count {
                let filled = rest.len();
                rest.resize(filter.fft.input_frames_next(), 0.);
                filter.run(&rest, Some(filled), &mut samples)?;
                rest.clear();
            }
            samples.truncate(delay + count);
            samples.drain(..delay);
        }
        Ok(samples)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

impl Filter {
    fn new(rate: u32) -> std::result::Result<Self, String> {
        // One long transform for each chunk: the longer, the nearer to half of the new rate the filter cuts.
        const LEAST: usize = 4096;
        let (from, to) = (rate as usize, SAMPLE_RATE as usize);
        // The input that makes a whole number of samples. Twice that, and the filter's delay, half of a chunk, is a whole number too; else
        // the sound would be shifted by half a sample.
        let unit = from / gcd(from, to);
        let chunk = unit * LEAST.div_ceil(unit).next_multiple_of(2);
        let window = WindowFunction::BlackmanHarris2;
        let fft = Fft::new_custom(from, to, chunk, 1, 1, window, FixedSync::Input)
            .map_err(|err| format!("resampling from {rate} Hz: {err}"))?;
        let chunk = vec![0.; fft.output_frames_max()];
        Ok(Self { fft, chunk })
    }

    /// Puts a chunk of input through; only the first `filled` samples of it count, or all.
    fn run(
        &mut self,
        input: &[f32],
        filled: Option<usize>,
        samples: &mut Vec<f32>,
    ) -> std::result::Result<(), String> {
        let wrong = |err: &dyn std::fmt::Display| format!("resampling: {err}");
        let frames = self.chunk.len();
        let input = SequentialSlice::new(input, 1, input.len()).map_err(|err| wrong(&err))?;
        let mut output =
            SequentialSlice::new_mut(&mut self.chunk, 1, frames).map_err(|err| wrong(&err))?;
        let indexing = filled.map(|filled| Indexing::new().partial_len(filled));
        let (_, written) = self
            .fft
            .process_into_buffer(&input, &mut output, indexing.as_ref())
            .map_err(|err| wrong(&err))?;
        samples.extend(&self.chunk[..written]);
        Ok(())
    }
}
