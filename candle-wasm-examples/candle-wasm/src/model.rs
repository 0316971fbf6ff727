//! A model as JavaScript uses it.

use crate::options::{self, or_undefined, JsGenerate, JsLoad};
use browser::files::{JsSource, Source};
use browser::gpu;
use candle_core::{DType, Device};
use candle_engine::device::describe;
use candle_engine::{CandleBackend, Completion, ModelParts, StopReason, Wait};
use js_sys::{Function, Object, Reflect, Uint8Array};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `Completion` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Completion")]
    pub type JsCompletion;
}

/// A language model. Its weights go to the device when they are first needed, or with `load`; until `init_gpu` has succeeded that
/// device is the CPU.
#[wasm_bindgen]
pub struct WasmModel {
    source: Source,
    state: RefCell<State>,
}

struct State {
    device: Device,
    why_cpu: Option<String>,
    dtype: Option<DType>,
    loaded: Option<Arc<CandleBackend>>,
}

#[wasm_bindgen]
impl WasmModel {
    /// A model whose bytes are at hand: those of a GGUF file, or those of `model.safetensors` with `config.json`, `tokenizer.json` and, if
    /// there is one, `generation_config.json`. The bytes stay where they are and must not be changed.
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
        ModelParts::open(source.parts()).await.map_err(error)?;
        Ok(Self::over(source))
    }

    fn over(source: Source) -> Self {
        Self {
            source,
            state: RefCell::new(State {
                device: Device::Cpu,
                why_cpu: Some("init_gpu was not called".to_string()),
                dtype: None,
                loaded: None,
            }),
        }
    }

    /// Opens the GPU; `true`, or an error with the reason why there is none, and the model stays on the CPU. Once more after a GPU was
    /// lost: the weights are then loaded again.
    pub async fn init_gpu(&self) -> Result<bool, JsError> {
        let opened = gpu::open().await;
        let state = &mut *self.state.borrow_mut();
        state.loaded = None;
        match opened {
            Ok(device) => {
                state.device = device;
                state.why_cpu = None;
                Ok(true)
            }
            Err(reason) => {
                state.device = Device::Cpu;
                state.why_cpu = Some(reason.clone());
                Err(JsError::new(&reason))
            }
        }
    }

    /// Where the model runs: `cpu`, or `webgpu` and what the browser tells of the GPU.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> String {
        describe(&self.state.borrow().device)
    }

    /// Why it runs on the CPU; `undefined` where it does not.
    #[wasm_bindgen(getter)]
    pub fn cpu_reason(&self) -> Option<String> {
        self.state.borrow().why_cpu.clone()
    }

    /// Brings the weights to the device. `progress` hears how many bytes have arrived, and of how many.
    pub async fn load(
        &self,
        options: Option<JsLoad>,
        progress: Option<Function>,
    ) -> Result<(), JsError> {
        let dtype = options::dtype(&or_undefined(options))?;
        let device = {
            let state = &mut *self.state.borrow_mut();
            state.dtype = dtype;
            // Another model's memory is free before this one's is asked for.
            state.loaded = None;
            state.device.clone()
        };
        self.place(device, dtype, progress.as_ref()).await?;
        Ok(())
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

    /// Goes on from a prompt and calls `callback` with each piece of text.
    pub async fn generate_stream(
        &self,
        prompt: String,
        options: Option<JsGenerate>,
        callback: Function,
    ) -> Result<JsCompletion, JsError> {
        let options = or_undefined(options);
        let completion = self.run(prompt, &options, Some(&callback)).await?;
        Ok(report(&completion))
    }

    async fn run(
        &self,
        prompt: String,
        options: &JsValue,
        callback: Option<&Function>,
    ) -> Result<Completion, JsError> {
        let request = options::request(prompt, options)?;
        let backend = self.backend().await?;
        let mut thrown = None;
        let mut on_piece = |piece: &str| {
            if let Some(callback) = callback {
                thrown = callback.call1(&JsValue::NULL, &piece.into()).err();
            }
            match thrown.is_some() || options::aborted(options) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let done = backend.complete_steps(&request, Wait::Async, &mut on_piece);
        let done = done.await.map_err(error)?;
        match thrown {
            Some(err) => Err(JsError::new(&browser::files::message(&err))),
            None => Ok(done),
        }
    }

    /// The model on its device, brought there if it is not.
    pub(crate) async fn backend(&self) -> Result<Arc<CandleBackend>, JsError> {
        let (loaded, device, dtype) = {
            let state = self.state.borrow();
            (state.loaded.clone(), state.device.clone(), state.dtype)
        };
        match loaded {
            Some(backend) => Ok(backend),
            None => self.place(device, dtype, None).await,
        }
    }

    async fn place(
        &self,
        device: Device,
        dtype: Option<DType>,
        progress: Option<&Function>,
    ) -> Result<Arc<CandleBackend>, JsError> {
        let parts = ModelParts::open(self.source.parts()).await.map_err(error)?;
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

pub(crate) fn error(err: candle_engine::Error) -> JsError {
    JsError::new(&err.one_line())
}

fn report(completion: &Completion) -> JsCompletion {
    let object = Object::new();
    let set = |name: &str, value: JsValue| {
        // A new object takes every name.
        let _ = Reflect::set(&object, &name.into(), &value);
    };
    let timings = &completion.timings;
    let reason = match completion.stop_reason {
        StopReason::EndOfText => "end_of_text",
        StopReason::StopSequence => "stop_sequence",
        StopReason::Length => "length",
        StopReason::Cancelled => "cancelled",
    };
    set("text", completion.text.as_str().into());
    set("prompt_tokens", (completion.prompt_tokens as f64).into());
    set("tokens", (completion.token_ids.len() as f64).into());
    set("stop_reason", reason.into());
    set("prompt_seconds", timings.prompt_seconds.into());
    set(
        "tokens_per_second",
        timings.generation_tokens_per_second.into(),
    );
    object.unchecked_into()
}
