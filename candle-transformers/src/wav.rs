//! WAV files of sound that a model made. Not in Candle's interface.

use std::io::{Error, ErrorKind, Result, Write};

/// Bytes of the header after the file's size.
const HEADER: u32 = 36;

/// Writes a WAV file with one channel of 16-bit PCM, of `samples` from -1 to 1 at `rate` samples per second. What is outside -1 to 1 is
/// clipped.
///
/// ```
/// let tone: Vec<f32> = (0..24_000).map(|i| (i as f32 * 0.115).sin() / 2.).collect();
/// let mut file = Vec::new();
/// candle_transformers::wav::write(&mut file, &tone, 24_000)?;
/// assert_eq!(file.len(), 44 + 2 * tone.len());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// A sample is NaN, there are more samples than a WAV file of 4 GiB holds, or `writer` fails.
pub fn write(mut writer: impl Write, samples: &[f32], rate: u32) -> Result<()> {
    let invalid = |problem: String| Error::new(ErrorKind::InvalidInput, problem);
    if let Some(i) = samples.iter().position(|sample| sample.is_nan()) {
        return Err(invalid(format!("wav: sample {i} is NaN")));
    }
    let bytes = u32::try_from(2 * samples.len() as u64).ok();
    let Some(bytes) = bytes.filter(|bytes| bytes.checked_add(HEADER).is_some()) else {
        let count = samples.len();
        return Err(invalid(format!(
            "wav: {count} samples exceed a file of 4 GiB; write several files"
        )));
    };
    let (pcm, channels, bytes_per_sample) = (1u16, 1u16, 2u16);
    let mut file = Vec::with_capacity(samples.len() * 2 + 44);
    file.extend(b"RIFF");
    file.extend((HEADER + bytes).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(pcm.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend(rate.saturating_mul(2).to_le_bytes());
    file.extend(bytes_per_sample.to_le_bytes());
    file.extend((8 * bytes_per_sample).to_le_bytes());
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    let pcm = |sample: &f32| (sample.clamp(-1., 1.) * f32::from(i16::MAX)).round() as i16;
    file.extend(samples.iter().map(pcm).flat_map(i16::to_le_bytes));
    writer.write_all(&file)
}
