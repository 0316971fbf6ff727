//! The detection of speech, by Silero VAD.

use crate::error::brief;
use crate::model::{load_parts, PartFile};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_transformers::blocks::at_once;
use candle_transformers::models::silero_vad::{Options, Phrases, SileroVad, Speech, SAMPLE_RATE};
use candle_transformers::models::whisper::transcribe::Segment;
use candle_transformers::models::whisper::HOP_LENGTH;
#[cfg(not(target_arch = "wasm32"))]
use std::path::Path;

const FILE: &str = "silero_vad_16k.safetensors";
/// Samples between two calls of what hears how far the detection is: 30 seconds.
const PART: usize = 30 * SAMPLE_RATE;

/// Silero VAD on the CPU, which computes its small network faster than a GPU. The weights are `silero_vad_16k.safetensors` of the Python
/// package `silero-vad`.
#[derive(Clone)]
pub struct Vad {
    network: SileroVad,
}

impl Vad {
    /// The network in a file.
    ///
    /// # Errors
    /// A file of another network, or of none.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(file: &Path) -> Result<Self> {
        // SAFETY: as for all mapped weights: nothing changes the file while it is in use.
        let vb = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu) };
        Self::of(&file.display().to_string(), vb)
    }

    /// The network in a file that is read in parts.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and what the file gives for an error.
    pub async fn load(file: Box<dyn PartFile>) -> Result<Self> {
        let name = file.name().to_string();
        let tensors = load_parts(&[file], DType::F32, &Device::Cpu).await?;
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        Self::of(&name, Ok(vb))
    }

    fn of(file: &str, vb: candle_core::Result<VarBuilder>) -> Result<Self> {
        let network = vb.and_then(SileroVad::load).map_err(|err| Error::File {
            file: file.to_string(),
            problem: format!(
                "{}; expected {FILE} of the Python package silero-vad",
                brief(&err)
            ),
        })?;
        Ok(Self { network })
    }

    /// The stretches of speech in `samples` at 16 kHz, for a transcript.
    ///
    /// # Errors
    /// If a sample is NaN.
    pub fn speech(&self, samples: &[f32]) -> candle_core::Result<Speech> {
        at_once(self.speech_while(samples, async |_| Ok(())))
    }

    /// As [`speech`](Self::speech); `heard` hears how many samples have been heard, and ends the detection with an error.
    ///
    /// # Errors
    /// If a sample is NaN, and those of `heard`.
    pub async fn speech_while(
        &self,
        samples: &[f32],
        mut heard: impl AsyncFnMut(usize) -> candle_core::Result<()>,
    ) -> candle_core::Result<Speech> {
        let mut hearing = self.network.begin()?;
        let mut probabilities = Vec::new();
        let mut done = 0;
        for part in samples.chunks(PART) {
            probabilities.extend(self.network.hear(&mut hearing, part)?);
            done += part.len();
            heard(done).await?;
        }
        probabilities.extend(self.network.end(hearing)?);
        Ok(Speech::of(
            &probabilities,
            samples.len(),
            &Options::default(),
        ))
    }

    /// Splits a recording into phrases while it arrives.
    ///
    /// # Errors
    /// Those of [`Phrases::new`].
    pub fn phrases(&self) -> candle_core::Result<Phrases> {
        Phrases::new(self.network.clone(), &Options::phrases())
    }
}

/// A segment of the speech alone, with the times of the recording; without `speech` it has them.
pub(super) fn in_recording(segment: &Segment, speech: Option<&Speech>) -> Segment {
    let mut segment = segment.clone();
    let Some(speech) = speech else {
        return segment;
    };
    (segment.start, segment.end) = speech.span(segment.start, segment.end);
    let frames = SAMPLE_RATE as f64 / HOP_LENGTH as f64;
    let (seek, _) = speech.span(segment.seek as f64 / frames, f64::INFINITY);
    segment.seek = (seek * frames) as usize;
    for word in &mut segment.words {
        (word.start, word.end) = speech.span(word.start, word.end);
    }
    segment
}
