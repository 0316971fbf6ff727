//! The backend that runs Llama models through candle, on any of its devices.

use crate::backend::{Completion, CompletionRequest, InferenceBackend, StopReason, Timings};
use crate::error::Doing;
use crate::model::{prompt_tokens, ModelFiles, TextTokenizer};
use crate::stream::TokenStream;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::{GreedyToken, LogitsProcessor};
use candle_transformers::models::llama::{Cache, Llama};
use candle_transformers::utils::apply_repeat_penalty;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A loaded model with its tokenizer, on one device.
pub struct CandleBackend {
    id: &'static str,
    model: Llama,
    /// Never written to: each completion starts from a copy, which shares the tables of the rotary embedding.
    empty_cache: Cache,
    tokenizer: TextTokenizer,
    stop_tokens: Vec<u32>,
    max_positions: usize,
    device: Device,
    dtype: DType,
}

impl CandleBackend {
    /// Places the weights on `device`, floats as `dtype`, blocks as they are. `progress` hears of each tensor's bytes as they arrive.
    ///
    /// # Errors
    /// Failures to read a tensor, to convert it, or to place it on the device.
    pub fn load(
        files: ModelFiles,
        id: &'static str,
        device: &Device,
        dtype: DType,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Self> {
        let (model, empty_cache) = files.place(dtype, device, progress)?;
        device.synchronize().doing("loading the weights")?;
        Ok(Self {
            id,
            model,
            empty_cache,
            max_positions: files.max_positions(),
            tokenizer: files.tokenizer,
            stop_tokens: files.stop_tokens,
            device: device.clone(),
            dtype,
        })
    }

    /// The device that the weights are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The element type of activations, and of weights that are no blocks.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// The prompt's tokens with the begin token, as [`InferenceBackend::complete`] feeds them to the model.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        prompt_tokens(&self.tokenizer, self.max_positions, prompt)
    }

    /// A session without any past.
    pub fn session(&self) -> Session<'_> {
        Session {
            backend: self,
            cache: self.empty_cache.clone(),
            position: 0,
        }
    }
}

/// One text in progress: the model and the keys and values of the tokens it has seen.
pub struct Session<'a> {
    backend: &'a CandleBackend,
    cache: Cache,
    position: usize,
}

impl Session<'_> {
    /// Feeds `tokens` after those seen so far and returns the logits after the last of them, `(vocab)` in f32.
    ///
    /// # Errors
    /// An empty slice, more tokens than the model has positions, and failures of the device.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<Tensor> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let input = Tensor::new(tokens, &self.backend.device)
            .and_then(|ids| ids.unsqueeze(0))
            .doing("running the model")?;
        self.forward_ids(&input)
    }

    /// As [`Session::forward`], for ids that are on the device already, `(1, count)`.
    fn forward_ids(&mut self, ids: &Tensor) -> Result<Tensor> {
        let seen = self.position + ids.elem_count();
        if seen > self.backend.max_positions {
            return Err(Error::PromptTooLong {
                tokens: seen,
                limit: self.backend.max_positions,
            });
        }
        let run = |cache: &mut Cache| -> candle_core::Result<Tensor> {
            self.backend
                .model
                .forward(ids, self.position, cache)?
                .squeeze(0)?
                .to_dtype(DType::F32)
        };
        let logits = run(&mut self.cache).doing("running the model")?;
        self.position = seen;
        Ok(logits)
    }
}

impl InferenceBackend for CandleBackend {
    fn id(&self) -> &str {
        self.id
    }

    fn complete_stream(
        &self,
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        request.validate()?;
        let start = Instant::now();
        let mut tokens = self.prompt_tokens(&request.prompt)?;
        let prompt_tokens = tokens.len();
        // The last token made is never fed back, so it needs no position of its own.
        let budget = request
            .max_tokens
            .min(self.max_positions - prompt_tokens + 1);

        let mut sampler = LogitsProcessor::from_sampling(request.seed, request.sampling());
        let mut session = self.session();
        let mut stream = TokenStream::new(&self.tokenizer);
        let mut text = String::new();
        let mut emit = |piece: Option<String>| match piece {
            Some(piece) => {
                text.push_str(&piece);
                on_piece(&piece)
            }
            None => ControlFlow::Continue(()),
        };

        // Where the choice needs nothing from the host, the GPU need not wait for it: the next step is queued before the id of
        // this one is known.
        let ahead = request.is_plain_argmax() && !self.device.is_cpu();
        let mut queued: Option<GreedyToken> = None;

        let mut stop_reason = StopReason::Length;
        let mut first_token_after = Duration::ZERO;
        let mut fed = 0;
        for step in 0..budget {
            let next = if ahead {
                let token = match queued.take() {
                    Some(token) => token,
                    None => greedy(&session.forward(&tokens)?)?,
                };
                if step + 1 < budget {
                    queued = Some(greedy(&session.forward_ids(token.ids())?)?);
                }
                token.wait().doing("choosing the next token")?
            } else {
                let logits = session.forward(&tokens[fed..])?;
                fed = tokens.len();
                choose(&logits, &tokens, request, &mut sampler)?
            };
            if step == 0 {
                first_token_after = start.elapsed();
            }
            if self.stop_tokens.contains(&next) {
                stop_reason = StopReason::EndOfText;
                break;
            }
            tokens.push(next);
            if emit(stream.push(next)?).is_break() {
                stop_reason = StopReason::Cancelled;
                break;
            }
        }
        if stop_reason != StopReason::Cancelled && emit(stream.finish()?).is_break() {
            stop_reason = StopReason::Cancelled;
        }

        let token_ids = tokens.split_off(prompt_tokens);
        let after_first = start.elapsed() - first_token_after;
        let steps = token_ids.len().saturating_sub(1);
        Ok(Completion {
            text,
            prompt_tokens,
            stop_reason,
            timings: Timings::new((prompt_tokens, first_token_after), (steps, after_first)),
            token_ids,
        })
    }
}

fn greedy(logits: &Tensor) -> Result<GreedyToken> {
    GreedyToken::choose(logits).doing("choosing the next token")
}

/// The next token. `context` is everything so far, the prompt included.
fn choose(
    logits: &Tensor,
    context: &[u32],
    request: &CompletionRequest,
    sampler: &mut LogitsProcessor,
) -> Result<u32> {
    let recent = &context[context.len().saturating_sub(request.repeat_last_n)..];
    let mut run = || {
        if request.repeat_penalty == 1.0 {
            return sampler.sample(logits);
        }
        let logits = apply_repeat_penalty(logits, request.repeat_penalty, recent)?;
        sampler.sample(&logits)
    };
    run().doing("choosing the next token")
}
