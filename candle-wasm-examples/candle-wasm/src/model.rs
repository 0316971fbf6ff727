//! A model as JavaScript uses it.

use crate::chat::{self, JsMessages};
use crate::constraint::Constraint;
use crate::options::{self, JsChat, JsGenerate};
use crate::report::{self, About, JsAnswer, JsCompletion, JsInfo, JsTokens, Parts};
use browser::files::{JsSource, Source};
use browser::gpu::Place;
use browser::options::{aborted, dtype, or_undefined, JsLoad};
use candle_core::{DType, Device};
use candle_engine::thinking::Part;
use candle_engine::{CandleBackend, Chat, Completion, CompletionRequest, ModelParts, Wait};
use js_sys::{Function, Uint8Array};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// The most tokens of an answer, unless told otherwise.
const ANSWER_TOKENS: usize = 1024;

/// A language model. Its weights go to the device when they are first needed, or with `load`; until `init_gpu` has succeeded that
/// device is the CPU.
#[wasm_bindgen]
pub struct WasmModel {
    source: Source,
    state: RefCell<State>,
}

struct State {
    place: Place,
    dtype: Option<DType>,
    /// The headers, from opening until loading.
    opened: Option<ModelParts>,
    about: Option<About>,
    loaded: Option<Arc<CandleBackend>>,
    /// The last conversation with its cached tokens.
    chat: Option<Chat<'static>>,
}

#[wasm_bindgen]
impl WasmModel {
    /// A model whose bytes are at hand: those of a GGUF file, or those of `model.safetensors` with `config.json`, `tokenizer.json` and, if
    /// there is one, `generation_config.json`. The bytes stay where they are and must not be changed. For
    /// the chat template of a folder, use `open`.
    #[wasm_bindgen(constructor)]
    pub fn new(
        bytes: Uint8Array,
        config: Option<Uint8Array>,
        tokenizer: Option<Uint8Array>,
        generation_config: Option<Uint8Array>,
    ) -> Result<WasmModel, JsError> {
        let source = Source::of_bytes(bytes, config, tokenizer, generation_config)?;
        Ok(Self::over(source))
    }

    /// A model whose files are read in parts. Reads and checks the headers.
    pub async fn open(source: JsSource) -> Result<WasmModel, JsError> {
        let source = Source::of_js(&source)?;
        let model = Self::over(source);
        model.about().await?;
        Ok(model)
    }

    fn over(source: Source) -> Self {
        Self {
            source,
            state: RefCell::new(State {
                place: Place::default(),
                dtype: None,
                opened: None,
                about: None,
                loaded: None,
                chat: None,
            }),
        }
    }

    /// Opens the GPU; `true`, or an error with the reason why there is none, and the model stays on the CPU. Once more after a GPU was
    /// lost: the weights are then loaded again.
    pub async fn init_gpu(&self) -> Result<bool, JsError> {
        let place = Place::gpu().await;
        let state = &mut *self.state.borrow_mut();
        state.loaded = None;
        state.chat = None;
        state.place = place;
        state.place.opened()
    }

    /// The model's device: `cpu`, or `webgpu` and the browser's description of the GPU.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> String {
        self.state.borrow().place.describe()
    }

    /// The reason for running on the CPU; `undefined` on a GPU.
    #[wasm_bindgen(getter)]
    pub fn cpu_reason(&self) -> Option<String> {
        self.state.borrow().place.cpu_reason()
    }

    /// Brings the weights to the device. `progress` hears how many bytes have arrived, and of how many.
    pub async fn load(
        &self,
        options: Option<JsLoad>,
        progress: Option<Function>,
    ) -> Result<(), JsError> {
        let dtype = dtype(&or_undefined(options))?;
        let device = {
            let state = &mut *self.state.borrow_mut();
            state.dtype = dtype;
            // Another model's memory is free before this one allocates.
            state.loaded = None;
            state.chat = None;
            state.place.device.clone()
        };
        self.place(device, dtype, progress.as_ref()).await?;
        Ok(())
    }

    /// Size, context length, chat support and recommended sampling, from the model's headers.
    pub async fn info(&self) -> Result<JsInfo, JsError> {
        Ok(self.about().await?.info())
    }

    /// The model's tokens, of which a constraint for `chat` can be made; `special` is the byte that marks special ones.
    pub async fn vocabulary(&self, special: u8) -> Result<JsTokens, JsError> {
        let backend = self.backend().await?;
        let tokens = backend.tokenizer().token_bytes(special);
        let tokens = tokens.ok_or_else(|| {
            JsError::new("the model's tokens have no bytes: its tokenizer is not BPE over bytes")
        })?;
        Ok(report::tokens(&tokens, backend.stop_tokens()))
    }

    /// Answers the last message of a conversation, formatted with the model's chat template, and calls `callback` with each piece of text and
    /// whether it is one of the model's thoughts.
    /// Tokens of the previous call are reused if the prompt begins with them. Defaults: the sampling settings of the model's files, and at
    /// most 1,024 tokens.
    pub async fn chat(
        &self,
        messages: JsMessages,
        options: Option<JsChat>,
        callback: Option<Function>,
    ) -> Result<JsAnswer, JsError> {
        let options = or_undefined(options);
        let (said, text) = chat::read(&messages)?;
        let about = self.about().await?;
        let Some(template) = about.template.clone() else {
            let problem = about.no_template().one_line();
            return Err(JsError::new(&format!(
                "{problem}; continue a text with `generate`"
            )));
        };
        let request = CompletionRequest {
            max_tokens: ANSWER_TOKENS,
            ..about.sampling.request()
        };
        let request = options::chat_request(request, &options)?;
        let (variables, budget) = options::thinking(&options)?;
        let constraint = Constraint::of(&options)?;
        let backend = self.backend().await?;
        let kept = self.state.borrow_mut().chat.take();
        let mut chat = kept.unwrap_or_else(|| Chat::shared(backend.clone(), template));
        chat.set_messages(said);
        chat.set_thinking(variables, budget);
        if let Some(constraint) = constraint {
            chat.constrain_next(Box::new(constraint));
        }
        let mut listener = Listener::new(callback.as_ref(), &options);
        let mut parts = Parts::default();
        let mut on_part = |part: &Part| {
            parts.add(part);
            match part {
                Part::Thought(piece) => listener.hear(piece, true),
                Part::Answer(piece) => listener.hear(piece, false),
            }
        };
        let done = chat.say_parts_steps(&text, &request, Wait::Async, &mut on_part);
        let done = done.await;
        let reused = chat.reused_tokens();
        let state = &mut *self.state.borrow_mut();
        // Another model may have been loaded meanwhile.
        let same = |loaded: &Arc<CandleBackend>| Arc::ptr_eq(loaded, &backend);
        if state.loaded.as_ref().is_some_and(same) {
            state.chat = Some(chat);
        }
        let done = listener.finish(done.map_err(error)?)?;
        Ok(report::answer(&done, &parts, reused))
    }

    /// Goes on from a prompt and gives the text when all of it is there.
    pub async fn generate(
        &self,
        prompt: String,
        options: Option<JsGenerate>,
    ) -> Result<String, JsError> {
        let options = or_undefined(options);
        Ok(self.run(prompt, &options, None).await?.text)
    }

    /// Continues a prompt and calls `callback` with each piece of text.
    pub async fn generate_stream(
        &self,
        prompt: String,
        options: Option<JsGenerate>,
        callback: Function,
    ) -> Result<JsCompletion, JsError> {
        let options = or_undefined(options);
        let completion = self.run(prompt, &options, Some(&callback)).await?;
        Ok(report::completion(&completion))
    }

    async fn run(
        &self,
        prompt: String,
        options: &JsValue,
        callback: Option<&Function>,
    ) -> Result<Completion, JsError> {
        let request = CompletionRequest {
            prompt,
            ..Default::default()
        };
        let request = options::request(request, options)?;
        let backend = self.backend().await?;
        let mut listener = Listener::new(callback, options);
        let mut on_piece = |piece: &str| listener.hear(piece, false);
        let done = backend.complete_steps(&request, Wait::Async, &mut on_piece);
        let done = done.await.map_err(error)?;
        listener.finish(done)
    }

    /// Metadata; reads the headers on the first call.
    async fn about(&self) -> Result<About, JsError> {
        if let Some(about) = &self.state.borrow().about {
            return Ok(about.clone());
        }
        let parts = ModelParts::open(self.source.parts()).await.map_err(error)?;
        let about = About::new(&parts);
        let state = &mut *self.state.borrow_mut();
        state.about = Some(about.clone());
        state.opened = Some(parts);
        Ok(about)
    }

    async fn place(
        &self,
        device: Device,
        dtype: Option<DType>,
        progress: Option<&Function>,
    ) -> Result<Arc<CandleBackend>, JsError> {
        let opened = self.state.borrow_mut().opened.take();
        let parts = match opened {
            Some(parts) => parts,
            None => ModelParts::open(self.source.parts()).await.map_err(error)?,
        };
        let total = parts.total_bytes();
        let dtype = dtype.unwrap_or_else(|| parts.default_dtype(&device));
        let id = if device.is_cpu() { "cpu" } else { "webgpu" };
        let mut arrived = 0;
        let mut on_bytes = |bytes: u64| {
            arrived += bytes;
            if let Some(progress) = progress {
                // A progress bar that throws is not worth failing for.
                let _ = progress.call2(
                    &JsValue::NULL,
                    &(arrived as f64).into(),
                    &(total as f64).into(),
                );
            }
        };
        let loading = CandleBackend::load_parts(parts, id, &device, dtype, &mut on_bytes);
        let backend = Arc::new(loading.await.map_err(error)?);
        self.state.borrow_mut().loaded = Some(backend.clone());
        Ok(backend)
    }
}

impl WasmModel {
    /// The model on its device, brought there if it is not.
    pub async fn backend(&self) -> Result<Arc<CandleBackend>, JsError> {
        let (loaded, device, dtype) = {
            let state = self.state.borrow();
            (
                state.loaded.clone(),
                state.place.device.clone(),
                state.dtype,
            )
        };
        match loaded {
            Some(backend) => Ok(backend),
            None => self.place(device, dtype, None).await,
        }
    }
}

/// Passes the pieces of a text to a JavaScript function, and checks the abort signal.
struct Listener<'a> {
    callback: Option<&'a Function>,
    options: &'a JsValue,
    thrown: Option<JsValue>,
}

impl<'a> Listener<'a> {
    fn new(callback: Option<&'a Function>, options: &'a JsValue) -> Self {
        Self {
            callback,
            options,
            thrown: None,
        }
    }

    fn hear(&mut self, piece: &str, thought: bool) -> ControlFlow<()> {
        if let Some(callback) = self.callback {
            let heard = callback.call2(&JsValue::NULL, &piece.into(), &thought.into());
            self.thrown = heard.err();
        }
        if self.thrown.is_some() || aborted(self.options) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// The completion, or the error that the function threw.
    fn finish(self, done: Completion) -> Result<Completion, JsError> {
        match self.thrown {
            Some(err) => Err(JsError::new(&browser::files::message(&err))),
            None => Ok(done),
        }
    }
}

pub(crate) fn error(err: candle_engine::Error) -> JsError {
    JsError::new(&err.one_line())
}
