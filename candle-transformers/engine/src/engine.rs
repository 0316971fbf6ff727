//! The backend that runs language models through candle, on any of its devices.

use crate::backend::{Completion, CompletionRequest, InferenceBackend};
use crate::error::Doing;
use crate::generation::Wait;
use crate::model::{prompt_tokens, ChatTemplate, ModelFiles, ModelParts, TextTokenizer};
use crate::turn::at_once;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
#[cfg(not(target_arch = "wasm32"))]
use candle_transformers::blocks::Decoder;
use candle_transformers::blocks::DecoderState;
use candle_transformers::generation::GreedyToken;
use candle_transformers::parallel::{ParallelDecoder, ParallelState};
use serde_json::Value;
use std::ops::ControlFlow;

/// A loaded model with its tokenizer, on one device.
pub struct CandleBackend {
    id: &'static str,
    model: ParallelDecoder,
    /// Never modified: each completion starts from a clone, which shares the tables of the rotary embedding.
    empty_state: ParallelState,
    tokenizer: TextTokenizer,
    stop_tokens: Vec<u32>,
    max_positions: usize,
    device: Device,
    dtype: DType,
}

impl CandleBackend {
    /// Places the weights on `device`, floats as `dtype`, blocks as they are. `progress` is told of each tensor's bytes
    /// as they arrive.
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
        let loaded = files.place(dtype, device, progress)?;
        device.synchronize().doing("loading the weights")?;
        Ok(Self::over(files, id, device, dtype, loaded.into()))
    }

    /// As [`CandleBackend::load`], onto devices that share each layer: a thread and a part of the weights for each, with sums
    /// by [`candle_core::distributed::on_devices`].
    ///
    /// # Errors
    /// As [`CandleBackend::load`]; a model that as many devices cannot share.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn load_shared(
        files: ModelFiles,
        id: &'static str,
        devices: &[Device],
        dtype: DType,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Self> {
        let load = || {
            let groups = candle_transformers::parallel::groups(devices)?;
            ParallelDecoder::launch(devices, groups, |device, group| {
                // Each rank reads a part of every tensor: one of them tells how far they are.
                let quiet = |_| {};
                let progress = if group.rank() == 0 { progress } else { &quiet };
                let rank = files.place_rank(dtype, device, group, progress)?;
                device.synchronize()?;
                Ok(rank)
            })
        };
        let loaded = load().doing("loading the weights")?;
        let device = loaded.decoder().device().clone();
        Ok(Self::over(files, id, &device, dtype, loaded))
    }

    /// As [`CandleBackend::load`] from files that are read in parts, without blocking the thread: the form for browsers. A part goes
    /// to the device before the next one is read.
    ///
    /// # Errors
    /// As [`CandleBackend::load`].
    pub async fn load_parts(
        mut files: ModelParts,
        id: &'static str,
        device: &Device,
        dtype: DType,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let loaded = files.place(dtype, device, progress).await?;
        Ok(Self::over(
            files.into_files(),
            id,
            device,
            dtype,
            loaded.into(),
        ))
    }

    fn over(
        files: ModelFiles,
        id: &'static str,
        device: &Device,
        dtype: DType,
        model: ParallelDecoder,
    ) -> Self {
        Self {
            id,
            empty_state: model.new_state(),
            model,
            max_positions: files.max_positions(),
            tokenizer: files.tokenizer,
            stop_tokens: files.stop_tokens,
            device: device.clone(),
            dtype,
        }
    }

    /// The device that the weights are on; of several the first.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many devices share the layers.
    pub fn ranks(&self) -> usize {
        self.model.world_size()
    }

    /// The element type of activations, and of weights that are no blocks.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A cache for `count` texts that run together.
    ///
    /// # Errors
    /// A model of which texts cannot share one: with layers that are not attention to keys and values, or on several devices.
    pub(crate) fn new_slots(&self, count: usize) -> Result<DecoderState> {
        if self.ranks() > 1 {
            let ranks = self.ranks();
            return Err(Error::Alone(format!(
                "the model is split across {ranks} devices; use one"
            )));
        }
        let slots = self.model.decoder().new_slots(count);
        slots.map_err(|err| Error::Alone(err.to_string()))
    }

    /// The layers; of several devices the first's.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn decoder(&self) -> &Decoder {
        self.model.decoder()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// How many tokens the model knows.
    pub fn vocab(&self) -> usize {
        self.model.decoder().spec().vocab
    }

    /// The longest sequence that the model can work on.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// The longest sequence of texts that run together: see [`Decoder::slot_positions`].
    pub(crate) fn slot_positions(&self) -> usize {
        let positions = self.model.decoder().slot_positions();
        positions.min(self.max_positions)
    }

    /// The tokens that end a text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Whether the model ends a text with this token.
    pub(crate) fn is_stop_token(&self, token: u32) -> bool {
        self.stop_tokens.contains(&token)
    }

    /// The prompt's tokens with the begin token, as [`InferenceBackend::complete`] feeds them to the model.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        prompt_tokens(&self.tokenizer, self.max_positions, prompt)
    }

    /// The tokens of a request's prompt, as the model reads them.
    ///
    /// # Errors
    /// As [`prompt_tokens`](Self::prompt_tokens).
    pub fn tokens_of(&self, request: &CompletionRequest) -> Result<Vec<u32>> {
        match request.from_template {
            true => self.rendered_tokens(&request.prompt),
            false => self.prompt_tokens(&request.prompt),
        }
    }

    /// Checks that a prompt of this many bytes may fit, which is quicker than to tokenise it.
    ///
    /// # Errors
    /// [`Error::PromptTooLarge`] if it cannot.
    pub fn check_bytes(&self, bytes: usize) -> Result<()> {
        self.tokenizer.check_bytes(bytes, self.max_positions)
    }

    /// The tokens of a conversation's prompt, and of the text that its answer `begins` with. Special tokens are those of the template and
    /// of the beginning: in messages they are text.
    ///
    /// # Errors
    /// A template that cannot be rendered; a prompt without tokens, or longer than the model's positions.
    pub fn chat_tokens(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        tools: &[Value],
        begins: &str,
    ) -> Result<Vec<u32>> {
        let prompt = self.marked_prompt(template, messages, tools)?;
        self.rendered_tokens(&(prompt + begins))
    }

    /// As [`chat_tokens`](Self::chat_tokens), of any length.
    pub(crate) fn all_chat_tokens(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
    ) -> Result<Vec<u32>> {
        let prompt = self.marked_prompt(template, messages, &[])?;
        self.tokenizer.encode_chat(&prompt)
    }

    fn marked_prompt(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        tools: &[Value],
    ) -> Result<String> {
        let marked = |said: &Value| {
            let mut said = said.clone();
            self.tokenizer.mark(&mut said);
            said
        };
        let messages: Vec<Value> = messages.iter().map(marked).collect();
        let tools: Vec<Value> = tools.iter().map(marked).collect();
        template.render_json(&messages, &tools)
    }

    /// The tokens of what a template has rendered, in which it has put all special tokens.
    fn rendered_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        self.check_bytes(prompt.len())?;
        let tokens = self.tokenizer.encode_chat(prompt)?;
        match tokens.len() {
            many if many > self.max_positions => Err(Error::PromptTooLong {
                tokens: many,
                limit: self.max_positions,
            }),
            _ => Ok(tokens),
        }
    }

    /// As [`InferenceBackend::complete_stream`], waiting as `wait` says. If it yields to the executor, it also yields
    /// after each token: on the CPU nothing else would wait.
    ///
    /// # Errors
    /// As [`InferenceBackend::complete`].
    pub async fn complete_steps(
        &self,
        request: &CompletionRequest,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let mut generation = self.generation(request)?;
        generation.run(wait, on_piece).await?;
        Ok(generation.finish())
    }

    /// A session that has seen nothing.
    pub fn session(&self) -> Session<'_> {
        Session {
            backend: self,
            state: State::Whole(self.empty_state.clone()),
            position: 0,
        }
    }

    /// Restores a session of this model.
    pub(crate) fn unpark(&self, parked: Parked) -> Session<'_> {
        Session {
            backend: self,
            state: parked.state,
            position: parked.position,
        }
    }

    /// As [`session`](Self::session), of one that can forget the last tokens that it has seen.
    ///
    /// # Errors
    /// A model with layers that are not attention to keys and values, or on several devices.
    pub(crate) fn session_with_guesses(&self, guesses: usize) -> Result<Session<'_>> {
        let refused = |_| {
            Error::Parameter {
            name: "prompt_lookup",
            value: guesses.to_string(),
            expected: "0 for a model on several devices, with layers other than attention, or with a rotation that depends on the length",
        }
        };
        if self.slot_positions() < self.max_positions {
            return Err(refused(()));
        }
        let slot = self.new_slots(1).map_err(|_| refused(()))?;
        Ok(Session {
            backend: self,
            state: State::Slot(slot),
            position: 0,
        })
    }
}

/// A session without the reference to its model.
pub(crate) struct Parked {
    state: State,
    position: usize,
}

/// One text in progress: the model and what it keeps of the tokens it has seen.
pub struct Session<'a> {
    backend: &'a CandleBackend,
    state: State,
    position: usize,
}

impl Parked {
    /// Whether the session can forget what it has seen last.
    pub(crate) fn can_guess(&self) -> bool {
        matches!(self.state, State::Slot(_))
    }
}

/// What a model keeps of a text.
enum State {
    Whole(ParallelState),
    /// One slot, which can be cut.
    Slot(DecoderState),
}

impl Session<'_> {
    /// Detaches the session from its model.
    pub(crate) fn park(self) -> Parked {
        Parked {
            state: self.state,
            position: self.position,
        }
    }

    /// How many tokens the model has seen.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Feeds `tokens` after those seen so far and returns the logits after the last of them, `(vocab)` in f32.
    ///
    /// # Errors
    /// An empty slice, more tokens than the model has positions, and failures of the device.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<Tensor> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let input = self.input(tokens)?;
        let seen = self.seen_with(tokens.len())?;
        let model = &self.backend.model;
        let logits = match &mut self.state {
            State::Whole(state) => model.next_logits(&input, self.position, state),
            State::Slot(state) => {
                let counts = [tokens.len()];
                model
                    .decoder()
                    .next_logits_of_slots(&input, &counts, 0, state)
            }
        };
        let logits = logits
            .and_then(|logits| logits.squeeze(0))
            .doing("running the model")?;
        self.position = seen;
        Ok(logits)
    }

    /// Feeds `tokens` after those seen so far and returns the logits after each of the last `count` of them, `(count, vocab)` in f32. For
    /// sessions with guesses.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(crate) fn forward_each(&mut self, tokens: &[u32], count: usize) -> Result<Tensor> {
        let input = self.input(tokens)?;
        let seen = self.seen_with(tokens.len())?;
        let State::Slot(state) = &mut self.state else {
            return Err(Error::Alone("the session has no slot".to_string()));
        };
        let decoder = self.backend.model.decoder();
        let last = (tokens.len() - count) as u32..tokens.len() as u32;
        let logits = decoder
            .forward_slots(&input, &[tokens.len()], 0, state)
            .and_then(|hidden| {
                hidden
                    .of_tokens(&Tensor::from_iter(last, &self.backend.device)?)?
                    .logits()?
                    .squeeze(0)?
                    .to_dtype(DType::F32)
            })
            .doing("running the model")?;
        self.position = seen;
        Ok(logits)
    }

    /// Forgets what was seen from `position` on, in a session with guesses.
    ///
    /// # Errors
    /// If it has seen less.
    pub(crate) fn cut(&mut self, position: usize) -> Result<()> {
        if let State::Slot(state) = &mut self.state {
            state.cut_slot(0, position).doing("dropping guesses")?;
            self.position = position;
        }
        Ok(())
    }

    fn input(&self, tokens: &[u32]) -> Result<Tensor> {
        Tensor::new(tokens, &self.backend.device)
            .and_then(|ids| ids.unsqueeze(0))
            .doing("running the model")
    }

    /// The token with the highest logit after one whose id is on the device, `(1, 1)`; it does not wait for either.
    pub(crate) fn greedy_step(&mut self, ids: &Tensor) -> Result<GreedyToken> {
        let seen = self.seen_with(1)?;
        let model = &self.backend.model;
        let State::Whole(state) = &mut self.state else {
            return Err(Error::Alone("the session has a slot".to_string()));
        };
        let token = model
            .greedy_step(ids, self.position, state)
            .doing("running the model")?;
        self.position = seen;
        Ok(token)
    }

    /// How many tokens the model has seen after `more`, if it has positions for them.
    fn seen_with(&self, more: usize) -> Result<usize> {
        let seen = self.position + more;
        match seen > self.backend.max_positions {
            true => Err(Error::PromptTooLong {
                tokens: seen,
                limit: self.backend.max_positions,
            }),
            false => Ok(seen),
        }
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
        // Blocking steps are ready on the first poll.
        at_once(self.complete_steps(request, Wait::Blocking, on_piece))
    }
}
