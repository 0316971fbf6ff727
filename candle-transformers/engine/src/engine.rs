//! The backend that runs language models through candle, on any of its devices.

use crate::backend::{Completion, CompletionRequest, InferenceBackend};
use crate::error::Doing;
use crate::generation::{DraftModel, Wait, MOST};
use crate::model::split::where_layers_are;
use crate::model::{
    prompt_tokens, ChatTemplate, ModelFiles, ModelParts, TextTokenizer, Vocabulary,
};
use crate::pictures::{PictureRows, PictureSupport};
use crate::thinking::Variables;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
#[cfg(not(target_arch = "wasm32"))]
use candle_transformers::blocks::Decoder;
use candle_transformers::generation::{Draw, NextToken};
use candle_transformers::parallel::{ParallelDecoder, ParallelState};
use serde_json::Value;
use std::ops::ControlFlow;

/// Up to as many rows, products of floats on the CPU sum a row in the order of a row that is alone: `MAX_FEW` of candle-core's
/// `skinny_matmul`. Beyond, they are packed for `gemm`.
const DENSE_ROWS: usize = 4;
/// The same with weights in blocks: from 16 queries on, attention on the CPU takes products over blocks of queries (`ops::sdpa`).
const BLOCK_ROWS: usize = 15;

/// A loaded model with its tokenizer, on one device.
pub struct CandleBackend {
    id: &'static str,
    /// Name of the model in messages.
    pub(crate) name: String,
    pub(crate) pictures: PictureSupport,
    /// The stored size of the weights.
    bytes: u64,
    draft: Option<Box<DraftModel>>,
    /// Maximum number of rows in a step for which each row's result is the same as if computed alone; `None` without a limit.
    rows_alike: Option<usize>,
    pub(crate) model: ParallelDecoder,
    /// Never modified: each completion starts from a clone, which shares the tables of the rotary embedding.
    empty_state: ParallelState,
    tokenizer: TextTokenizer,
    stop_tokens: Vec<u32>,
    max_positions: usize,
    device: Device,
    dtype: DType,
}

impl CandleBackend {
    /// Loads the weights onto `device`, floats as `dtype`, blocks unchanged. Calls `progress` with each tensor's bytes as they arrive.
    ///
    /// # Errors
    /// Failures to read a tensor, to convert it, or to copy it to the device.
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
        if !files.split.is_whole() {
            return Err(Error::Parameter {
                name: "gpus",
                value: devices.len().to_string(),
                expected: "1 with layers or experts on the CPU",
            });
        }
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
        let max_positions = files.max_positions();
        Self {
            id,
            bytes: files.total_bytes(),
            draft: None,
            rows_alike: device.is_cpu().then(|| {
                if files.has_dense_products() {
                    DENSE_ROWS
                } else {
                    BLOCK_ROWS
                }
            }),
            name: files.name,
            pictures: files.pictures,
            empty_state: model.new_state(),
            model,
            max_positions,
            tokenizer: files.tokenizer,
            stop_tokens: files.stop_tokens,
            device: device.clone(),
            dtype,
        }
    }

    /// Adds a smaller model that proposes tokens: texts stay the same, and several correct tokens take the time of one. `tokens` is the
    /// maximum number of proposed tokens, for requests that set none, from 1 to 64.
    ///
    /// # Errors
    /// [`Error::Draft`] for a pair that does not fit: with other tokens, on different devices, or one that cannot forget tokens, such as a model
    /// with layers that are not attention to keys and values. A number of tokens out of range.
    pub fn with_draft(self, draft: Self, tokens: usize) -> Result<Self> {
        let draft = DraftModel::new(&self, draft, tokens)?;
        Ok(Self {
            draft: Some(Box::new(draft)),
            ..self
        })
    }

    /// Checks a number of tokens for [`with_draft`](Self::with_draft).
    ///
    /// # Errors
    /// 0, or more than 64.
    pub fn check_draft_tokens(tokens: usize) -> Result<()> {
        DraftModel::check_tokens(tokens)
    }

    /// The most tokens that may be verified at once. On the CPU their rows have to be bit for bit those of steps of one token, so that
    /// texts are exactly what they are without proposals.
    pub(crate) fn most_proposals(&self) -> usize {
        self.rows_alike.map_or(MOST, |rows| rows - 1)
    }

    /// The model that proposes tokens, if there is one.
    pub(crate) fn draft(&self) -> Option<&DraftModel> {
        self.draft.as_deref()
    }

    /// Name of the model in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The stored size of the weights.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.bytes
    }

    /// The tokens, to compare.
    pub(crate) fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            name: &self.name,
            tokenizer: &self.tokenizer,
            rows: self.vocab(),
        }
    }

    /// The device that the weights are on; of several the first.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The devices in words, with what each has of the layers.
    pub fn devices(&self) -> String {
        let device = where_layers_are(self.model.decoder());
        match self.ranks() {
            1 => device,
            ranks => format!("{ranks} ranks on {device}"),
        }
    }

    /// Number of layers on the device; the others are on the CPU.
    pub fn layers_on_device(&self) -> usize {
        let decoder = self.model.decoder();
        let elsewhere = decoder.offload().map_or(0, |offload| offload.layers);
        decoder.spec().layers.len() - elsewhere
    }

    /// Number of devices that share the layers.
    pub fn ranks(&self) -> usize {
        self.model.world_size()
    }

    /// The element type of activations, and of weights that are not blocks.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A cache for `count` texts that share the model's steps.
    ///
    /// # Errors
    /// Those of `Decoder::new_slots`.
    pub(crate) fn new_slots(&self, count: usize) -> Result<ParallelState> {
        self.model.new_slots(count).doing("allocating the cache")
    }

    /// As [`new_slots`](Self::new_slots), with keys and values in `pages` pages of `page` positions.
    ///
    /// # Errors
    /// As [`new_slots`](Self::new_slots); a device without attention over pages, or without the memory.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn new_paged_slots(
        &self,
        count: usize,
        pages: usize,
        page: usize,
    ) -> Result<ParallelState> {
        let slots = self.model.new_paged_slots(count, pages, page);
        slots.doing("allocating the cache memory")
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

    /// Number of tokens in the vocabulary.
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
        let CompletionRequest {
            prompt, pictures, ..
        } = request;
        let prompt = self.prompt_with_pictures(prompt, pictures, request.from_template)?;
        if request.from_template {
            self.rendered_tokens(&prompt)
        } else {
            self.prompt_tokens(&prompt)
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
        let prompt = self.chat_prompt(template, messages, tools, &Variables::new())?;
        self.rendered_tokens(&(prompt + begins))
    }

    /// The prompt of a conversation, with values for other names that the template reads. Special tokens in messages, tools and values are
    /// marked, so that [`rendered_tokens`](Self::rendered_tokens) takes them for text.
    ///
    /// # Errors
    /// A template that cannot be rendered.
    pub fn chat_prompt(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        tools: &[Value],
        variables: &Variables,
    ) -> Result<String> {
        let marked = |said: &Value| {
            let mut said = said.clone();
            self.tokenizer.mark(&mut said);
            said
        };
        let messages: Vec<Value> = messages.iter().map(marked).collect();
        let tools: Vec<Value> = tools.iter().map(marked).collect();
        let mut variables = variables.clone();
        variables
            .values_mut()
            .for_each(|value| self.tokenizer.mark(value));
        template.render_with(&messages, &tools, &variables)
    }

    /// The tokens of what a template has rendered, in which it has put all special tokens.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn rendered_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
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
            pictures: PictureRows::default(),
        }
    }

    /// Restores a session of this model.
    pub(crate) fn unpark(&self, parked: Parked) -> Session<'_> {
        Session {
            backend: self,
            state: parked.state,
            position: parked.position,
            pictures: parked.pictures,
        }
    }

    /// As [`session`](Self::session), of one that can forget the last tokens that it has seen; none of a model that cannot: one with layers
    /// that are not attention to keys and values, or with a rotation that depends on the length.
    pub(crate) fn session_that_forgets(&self) -> Option<Session<'_>> {
        if self.slot_positions() < self.max_positions || !self.model.decoder().slots_rewind() {
            return None;
        }
        let slot = self.new_slots(1).ok()?;
        Some(Session {
            backend: self,
            state: State::Slot(slot),
            position: 0,
            pictures: PictureRows::default(),
        })
    }
}

/// A session without the reference to its model.
pub(crate) struct Parked {
    state: State,
    position: usize,
    pub(crate) pictures: PictureRows,
}

/// One text in progress: the model and what it keeps of the tokens it has seen.
pub struct Session<'a> {
    pub(crate) backend: &'a CandleBackend,
    pub(crate) state: State,
    pub(crate) position: usize,
    pub(crate) pictures: PictureRows,
}

impl Parked {
    /// Whether the session is one of [`CandleBackend::session_that_forgets`].
    pub(crate) fn forgets(&self) -> bool {
        matches!(self.state, State::Slot(_))
    }
}

/// The state that a model keeps of a text.
pub(crate) enum State {
    Whole(ParallelState),
    /// One slot, which can be cut.
    Slot(ParallelState),
}

impl Session<'_> {
    /// Detaches the session from its model.
    pub(crate) fn park(self) -> Parked {
        Parked {
            state: self.state,
            position: self.position,
            pictures: self.pictures,
        }
    }

    /// Number of tokens that the model has read.
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
        if !self.pictures.is_over() {
            return self.forward_pictures(tokens);
        }
        self.forward_input(&self.input(tokens)?, tokens.len())
    }

    /// As [`forward`](Self::forward), of one token whose id is on the device, `(1, 1)`; it does not wait for it.
    pub(crate) fn forward_ids(&mut self, ids: &Tensor) -> Result<Tensor> {
        self.forward_input(ids, 1)
    }

    fn forward_input(&mut self, input: &Tensor, count: usize) -> Result<Tensor> {
        let seen = self.seen_with(count)?;
        let model = &self.backend.model;
        let logits = match &mut self.state {
            State::Whole(state) => model.next_logits(input, self.position, state),
            State::Slot(state) => model.next_logits_of_slots(input, &[count], 0, state),
        };
        let logits = logits
            .and_then(|logits| logits.squeeze(0))
            .doing("running the model")?;
        self.position = seen;
        Ok(logits)
    }

    /// Feeds `tokens` after those seen so far. For sessions that forget.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(crate) fn read(&mut self, tokens: &[u32]) -> Result<()> {
        let ids = self.input(tokens)?;
        let seen = self.seen_with(tokens.len())?;
        let State::Slot(state) = &mut self.state else {
            return Err(Error::Alone("the session has no slot".to_string()));
        };
        let model = &self.backend.model;
        let read = model.read_slots(&ids, &[tokens.len()], 0, state);
        read.doing("running the model")?;
        self.position = seen;
        Ok(())
    }

    /// Feeds tokens by their ids on the device, `(1, count)`, after those seen so far, and returns the logits after each of the last `rows` of
    /// them, `(rows, vocab)` in f32. For sessions that forget.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(crate) fn forward_each(&mut self, ids: &Tensor, rows: usize) -> Result<Tensor> {
        let count = ids.elem_count();
        let seen = self.seen_with(count)?;
        let State::Slot(state) = &mut self.state else {
            return Err(Error::Alone("the session has no slot".to_string()));
        };
        let logits = self.backend.model.logits_of_slots(ids, rows, 0, state);
        let logits = logits.and_then(|logits| logits.squeeze(0));
        let logits = logits.doing("running the model")?;
        self.position = seen;
        Ok(logits)
    }

    /// Forgets what was seen from `position` on, where the model can: false where it cannot, and then it has seen what it had seen.
    pub(crate) fn truncate(&mut self, position: usize) -> Result<bool> {
        let done = match &mut self.state {
            State::Whole(state) => state.truncate(position),
            State::Slot(state) => state.cut_slot(0, position).map(|()| true),
        };
        let done = done.doing("dropping tokens")?;
        if done {
            self.position = position;
        }
        Ok(done)
    }

    /// Tokens as the model takes them, `(1, count)`.
    pub(crate) fn input(&self, tokens: &[u32]) -> Result<Tensor> {
        Tensor::new(tokens, &self.backend.device)
            .and_then(|ids| ids.unsqueeze(0))
            .doing("running the model")
    }

    /// The token after one whose id is on the device, `(1, 1)`; it does not wait for either.
    pub(crate) fn next_token(&mut self, ids: &Tensor, with: &Draw) -> Result<NextToken> {
        let seen = self.seen_with(1)?;
        let model = &self.backend.model;
        let State::Whole(state) = &mut self.state else {
            return Err(Error::Alone("the session has a slot".to_string()));
        };
        let token = model
            .next_token(ids, self.position, state, with)
            .doing("running the model")?;
        self.position = seen;
        Ok(token)
    }

    /// Number of tokens read after `more` further ones, if the model has positions for them.
    pub(crate) fn seen_with(&self, more: usize) -> Result<usize> {
        let seen = self.position + more;
        if seen > self.backend.max_positions {
            Err(Error::PromptTooLong {
                tokens: seen,
                limit: self.backend.max_positions,
            })
        } else {
            Ok(seen)
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
        self.generation(request)?.complete(on_piece)
    }
}
