//! JavaScript objects that describe models and completions.

use candle_engine::thinking::Part;
use candle_engine::{ChatTemplate, Completion, ModelParts, SamplingDefaults, StopReason};
use js_sys::{Object, Reflect, Uint32Array, Uint8Array};
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `Completion` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Completion")]
    pub type JsCompletion;

    /// The interface `ChatAnswer` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ChatAnswer")]
    pub type JsAnswer;

    /// The interface `ModelInfo` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ModelInfo")]
    pub type JsInfo;

    /// The interface `TokenBytes` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "TokenBytes")]
    pub type JsTokens;
}

/// Metadata from a model's headers.
#[derive(Clone)]
pub struct About {
    /// Name for error messages.
    pub name: String,
    bytes: u64,
    context: usize,
    /// Chat template, if the model has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// SamplingDefaults sampling settings.
    pub sampling: SamplingDefaults,
}

impl About {
    /// Metadata of an opened model.
    pub fn new(parts: &ModelParts) -> Self {
        Self {
            name: parts.name().to_string(),
            bytes: parts.total_bytes(),
            context: parts.max_positions(),
            template: parts.chat_template().cloned().map(Arc::new),
            sampling: parts.sampling(),
        }
    }

    /// The object `ModelInfo`.
    pub fn info(&self) -> JsInfo {
        let problem = match &self.template {
            None => Some(self.no_template().one_line()),
            Some(template) => template.check().err().map(|err| err.one_line()),
        };
        let template = self.template.as_ref();
        let thinks = template.is_some_and(|template| template.thinks());
        let said = self.sampling.resolved();
        let sampling = object([
            ("temperature", said.temperature.into()),
            ("top_k", said.top_k.map(|k| k as f64).into()),
            ("top_p", said.top_p.into()),
            ("min_p", said.min_p.into()),
            ("repeat_penalty", said.repeat_penalty.into()),
        ]);
        let info = object([
            ("name", self.name.as_str().into()),
            ("bytes", (self.bytes as f64).into()),
            ("context_length", (self.context as f64).into()),
            ("chat", problem.is_none().into()),
            ("chat_problem", problem.into()),
            ("thinks", thinks.into()),
            ("sampling", sampling.into()),
        ]);
        info.unchecked_into()
    }

    /// Error for a model without a chat template.
    pub fn no_template(&self) -> candle_engine::Error {
        candle_engine::Error::NoChatTemplate {
            model: self.name.clone(),
        }
    }
}

/// The object `Completion`.
pub fn completion(done: &Completion) -> JsCompletion {
    let report = object([
        ("text", done.text.as_str().into()),
        ("prompt_tokens", (done.prompt_tokens as f64).into()),
        ("tokens", (done.token_ids.len() as f64).into()),
        ("stop_reason", stop_reason(done.stop_reason).into()),
        ("prompt_seconds", done.timings.prompt_seconds.into()),
        ("tokens_per_second", rate(done).into()),
    ]);
    report.unchecked_into()
}

/// An answer, and what the model thought before it.
#[derive(Default)]
pub struct Parts {
    thoughts: String,
    answer: String,
}

impl Parts {
    /// The next part.
    pub fn add(&mut self, part: &Part) {
        match part {
            Part::Thought(text) => self.thoughts += text,
            Part::Answer(text) => self.answer += text,
        }
    }
}

/// The object `ChatAnswer`; `reused` tokens of the prompt came from the cache.
pub fn answer(done: &Completion, parts: &Parts, reused: usize) -> JsAnswer {
    let thoughts = Some(parts.thoughts.as_str()).filter(|thoughts| !thoughts.is_empty());
    let (prompt, made) = (done.prompt_tokens, done.token_ids.len());
    let usage = object([
        ("prompt_tokens", (prompt as f64).into()),
        ("completion_tokens", (made as f64).into()),
        ("total_tokens", ((prompt + made) as f64).into()),
        ("reused_tokens", (reused as f64).into()),
        ("thought_tokens", (done.thought_tokens as f64).into()),
    ]);
    let report = object([
        ("text", parts.answer.as_str().into()),
        ("thoughts", thoughts.into()),
        ("stop_reason", stop_reason(done.stop_reason).into()),
        ("usage", usage.into()),
        ("prompt_seconds", done.timings.prompt_seconds.into()),
        ("tokens_per_second", rate(done).into()),
    ]);
    report.unchecked_into()
}

/// The object `TokenBytes`.
pub fn tokens(tokens: &[Vec<u8>], stops: &[u32]) -> JsTokens {
    let lengths: Vec<u32> = tokens.iter().map(|token| token.len() as u32).collect();
    let report = object([
        ("bytes", Uint8Array::from(tokens.concat().as_slice()).into()),
        ("lengths", Uint32Array::from(lengths.as_slice()).into()),
        ("stops", Uint32Array::from(stops).into()),
    ]);
    report.unchecked_into()
}

fn rate(done: &Completion) -> f64 {
    done.timings.generation_tokens_per_second
}

fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText => "end_of_text",
        StopReason::StopSequence => "stop_sequence",
        StopReason::Length => "length",
        StopReason::Cancelled => "cancelled",
    }
}

fn object<const N: usize>(fields: [(&str, JsValue); N]) -> Object {
    let object = Object::new();
    for (name, value) in fields {
        // A new object takes every name.
        let _ = Reflect::set(&object, &name.into(), &value);
    }
    object
}
