//! The gain of a draft model, by shapes: random weights, and a coin that accepts tokens.

use super::{median, random};
use crate::backend::per_second;
use crate::bench::shapes::ModelShape;
use crate::error::Doing;
use crate::format::{KvType, WeightFormat};
use crate::progress::note;
use crate::Result;
use candle_core::{Device, Tensor, D};
use candle_transformers::blocks::{Decoder, DecoderState};
use candle_transformers::generation::NextToken;
use candle_transformers::parallel::ParallelDecoder;
use serde::Serialize;
use std::time::{Duration, Instant};

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub struct SpeculationRequest {
    /// The model's shape, and its draft model's.
    pub shapes: [ModelShape; 2],
    /// The format of the model's weights, and of its draft model's.
    pub formats: [WeightFormat; 2],
    /// Element type of the KV caches.
    pub kv_type: KvType,
    /// The chance of a proposed token to be right, if those before it were, from 0 to 1.
    pub accept: f64,
    /// The most tokens to propose at once, at least 1.
    pub most: usize,
    /// Number of tokens to generate, at least 1.
    pub generate: usize,
    /// Number of measurements of each, at least 1.
    pub repeat: usize,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct SpeculationReport {
    /// The model's shape, and its draft model's.
    pub shapes: [&'static str; 2],
    /// The format of the model's weights, and of its draft model's.
    pub dtypes: [String; 2],
    /// The device's name.
    pub device: String,
    /// The chance of a proposed token to be right.
    pub accept: f64,
    /// Number of measurements of each.
    pub repeat: usize,
    /// For each number of proposed tokens, from none on.
    pub lengths: Vec<LengthSpeed>,
}

/// The speed with proposals of one length.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LengthSpeed {
    /// Tokens that are proposed at once.
    pub proposed: usize,
    /// The median in tokens per second.
    pub tokens_per_second: f64,
    /// Tokens for each step of the model.
    pub tokens_per_step: f64,
    /// The median time of a step with its proposals, in milliseconds.
    pub milliseconds_per_step: f64,
}

/// Makes random weights on `device` and measures. Progress goes to standard error.
///
/// # Errors
/// A device that runs out of memory or fails otherwise; a shape whose decoder cannot have slots.
pub fn run(request: &SpeculationRequest, device: &Device, name: &str) -> Result<SpeculationReport> {
    let doing = "generating random weights";
    // A round that ends the text may run over its end.
    let positions = request.generate + request.most + 2;
    let load = |shape: ModelShape, format: WeightFormat| {
        let dtype = format.activations();
        let kv_dtype = request.kv_type.dtype(format, dtype, device);
        let spec = random::spec(shape, positions, format)?;
        let devices = std::slice::from_ref(device);
        let model = random::model(&spec, format, [dtype, kv_dtype], devices)?;
        Ok::<_, candle_core::Error>((model, spec.vocab))
    };
    let ([model, draft], [format, draft_format]) = (request.shapes, request.formats);
    let (model, vocab) = load(model, format).doing(doing)?;
    let (draft, draft_vocab) = load(draft, draft_format).doing(doing)?;
    let pair = Pair {
        model,
        draft,
        vocab: vocab.min(draft_vocab),
        device,
    };
    device.synchronize().doing(doing)?;
    let some = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48];
    let some = some.into_iter().filter(|length| *length < request.most);
    let lengths = some.chain([request.most]).map(|proposed| {
        let run = || pair.run(request.generate, proposed, request.accept);
        run().doing("warming up")?;
        let runs = (0..request.repeat).map(|_| run().doing("measuring"));
        let runs = runs.collect::<Result<Vec<Run>>>()?;
        let sorted = |of: &dyn Fn(&Run) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            median(&all)
        };
        let steps = |run: &Run| run.steps as f64;
        let speed = LengthSpeed {
            proposed,
            tokens_per_second: sorted(&|run| per_second(run.tokens, run.time)),
            tokens_per_step: sorted(&|run| run.tokens as f64 / steps(run)),
            milliseconds_per_step: sorted(&|run| run.time.as_secs_f64() * 1e3 / steps(run)),
        };
        note(&format!(
            "{proposed} proposed: {:.1} tok/s",
            speed.tokens_per_second
        ));
        Ok(speed)
    });
    Ok(SpeculationReport {
        lengths: lengths.collect::<Result<_>>()?,
        shapes: request.shapes.map(ModelShape::name),
        dtypes: request.formats.map(|format| format.name()),
        device: name.to_string(),
        accept: request.accept,
        repeat: request.repeat,
    })
}

/// One measurement.
struct Run {
    tokens: usize,
    steps: usize,
    time: Duration,
}

/// A model and its draft model.
struct Pair<'a> {
    model: ParallelDecoder,
    draft: ParallelDecoder,
    /// Ids that both have.
    vocab: usize,
    device: &'a Device,
}

impl Pair<'_> {
    /// At least `count` tokens from an empty cache, `proposed` of them at once.
    fn run(&self, count: usize, proposed: usize, accept: f64) -> candle_core::Result<Run> {
        let (model, draft) = (self.model.decoder(), self.draft.decoder());
        let (mut state, mut draft_state) = (model.new_slots(1)?, draft.new_slots(1)?);
        let mut coin = Coin(1);
        // The tokens that the models have yet to see, and how many they have seen.
        let (mut last, mut unseen, mut seen) = (vec![0u32], vec![0u32], [0; 2]);
        let (mut tokens, mut steps) = (0, 0);
        self.device.synchronize()?;
        let start = Instant::now();
        while tokens < count {
            let mut ids = vec![self.ids(&last)?];
            let mut queued = Vec::with_capacity(proposed);
            let mut fed = self.ids(&unseen)?;
            for _ in 0..proposed {
                let token = self.draft_token(draft, &fed, &mut draft_state)?;
                fed = token.ids().clone();
                ids.push(fed.clone());
                queued.push(token);
            }
            let rows = proposed + 1;
            let logits = model.logits_of_slots(&Tensor::cat(&ids, 1)?, rows, 0, &mut state)?;
            let logits = logits.squeeze(0)?;
            let logits = logits.narrow(1, 0, self.vocab)?;
            let chosen = logits.argmax(D::Minus1)?.begin_to_vec1::<u32>()?;
            let queued = queued.into_iter().map(NextToken::wait);
            let queued = queued.collect::<candle_core::Result<Vec<u32>>>()?;
            let chosen = chosen.wait()?;
            let right = (0..proposed).take_while(|_| coin.is_head(accept)).count();
            seen[0] += 1 + right;
            state.cut_slot(0, seen[0])?;
            let next = chosen[right];
            last = vec![next];
            unseen = match (proposed, right == proposed) {
                // Without proposals it reads nothing.
                (0, _) => Vec::new(),
                (_, true) => vec![queued[proposed - 1], next],
                (_, false) => vec![next],
            };
            if proposed > 0 {
                seen[1] = seen[0] + 1 - unseen.len();
                draft_state.cut_slot(0, seen[1])?;
            }
            tokens += 1 + right;
            steps += 1;
        }
        self.device.synchronize()?;
        let time = start.elapsed();
        Ok(Run {
            tokens,
            steps,
            time,
        })
    }

    fn ids(&self, tokens: &[u32]) -> candle_core::Result<Tensor> {
        Tensor::new(tokens, self.device)?.unsqueeze(0)
    }

    fn draft_token(
        &self,
        draft: &Decoder,
        ids: &Tensor,
        state: &mut DecoderState,
    ) -> candle_core::Result<NextToken> {
        let logits = draft.logits_of_slots(ids, 1, 0, state)?.squeeze(0)?;
        NextToken::choose(&logits.narrow(1, 0, self.vocab)?.squeeze(0)?)
    }
}

/// A deterministic coin: splitmix64.
struct Coin(u64);

impl Coin {
    fn is_head(&mut self, chance: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        ((bits >> 11) as f64 / (1u64 << 53) as f64) < chance
    }
}

impl SpeculationReport {
    /// A small table for a reader.
    pub fn table(&self) -> String {
        let ([model, draft], [dtype, draft_dtype]) = (self.shapes, &self.dtypes);
        let mut lines = vec![
            format!(
                "{model} {dtype} with draft {draft} {draft_dtype} on {}, {:.0}% of proposals right",
                self.device,
                self.accept * 100.
            ),
            format!(
                "{:<12}{:>12}{:>14}{:>12}",
                "proposed", "tok/s", "tokens/step", "ms/step"
            ),
        ];
        lines.extend(self.lengths.iter().map(|speed| {
            format!(
                "{:<12}{:>12.1}{:>14.2}{:>12.2}",
                speed.proposed,
                speed.tokens_per_second,
                speed.tokens_per_step,
                speed.milliseconds_per_step
            )
        }));
        lines.push(String::new());
        lines.join("\n")
    }
}
