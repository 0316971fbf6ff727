//! An answer as it grows, and as a whole.

use super::super::chat::described;
use super::super::reply::{self, Event, Whole};
use super::super::texts::TextModel;
use super::super::thinking::{Apart, Both};
use super::super::tools::{Call, Said, Tools};
use super::super::ApiError;
use super::thoughts::Thoughts;
use candle_engine::batch::Likely;
use candle_engine::thinking::Thinking;
use candle_engine::{Completion, StopReason};
use serde_json::{json, Map, Value};
use std::sync::Arc;

/// The events of one answer.
pub(super) struct Events {
    model: Arc<TextModel>,
    /// The answer without its items.
    head: Map<String, Value>,
    tools: Tools,
    said: Said,
    prompt: usize,
    has_logprobs: bool,
    number: u64,
    /// Whether the model thinks.
    thinks: bool,
    apart: Apart,
    /// The thoughts that are being written.
    thoughts: Option<Thoughts>,
    /// The message that is being written.
    message: Option<Message>,
    /// Probabilities of tokens whose text is not out yet.
    held: Vec<Value>,
    output: Vec<Value>,
}

struct Message {
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

impl Message {
    fn new() -> Self {
        Self {
            id: reply::id("msg"),
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs })
    }

    fn item(&self, status: &str) -> Value {
        json!({
            "type": "message", "id": self.id, "status": status, "role": "assistant", "content": [self.part()],
        })
    }
}

fn call_item(call: &Call) -> Value {
    json!({
        "type": "function_call", "id": reply::id("fc"), "call_id": reply::id("call"), "name": call.name,
        "arguments": call.arguments, "status": "completed",
    })
}

impl Events {
    pub(super) fn new(
        model: Arc<TextModel>,
        head: Map<String, Value>,
        tools: Tools,
        prompt: usize,
        has_logprobs: bool,
        thinking: Option<&Thinking>,
    ) -> Self {
        Self {
            model,
            head,
            said: Said::new(tools.clone()),
            tools,
            prompt,
            has_logprobs,
            number: 0,
            thinks: thinking.is_some(),
            apart: Apart::new(thinking),
            thoughts: None,
            message: None,
            held: Vec::new(),
            output: Vec::new(),
        }
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        fields
    }

    /// The events before the first token.
    pub(super) fn begin(&mut self) -> Vec<Value> {
        let response = json!({ "response": self.head });
        vec![
            self.event("response.created", response.clone()),
            self.event("response.in_progress", response),
        ]
    }

    /// The events for one of the engine.
    pub(super) fn take(&mut self, event: Event) -> Vec<Value> {
        let mut out = Vec::new();
        match event {
            Event::Token(likely) => self.held.push(self.described(&likely)),
            Event::Piece(piece) => {
                let both = self.apart.push(&piece, &mut self.held);
                self.take_both(&both, &mut out);
            }
            Event::Done(Ok(completion)) => self.end(&completion, &mut out),
            Event::Done(Err(error)) => {
                let error = ApiError::from(error).body();
                self.head.insert("status".to_string(), "failed".into());
                let error = json!({ "code": "server_error", "message": error["error"]["message"] });
                self.head.insert("error".to_string(), error);
                let response = json!({ "response": self.head });
                out.push(self.event("response.failed", response));
            }
        }
        out
    }

    fn take_both(&mut self, both: &Both, out: &mut Vec<Value>) {
        self.think(&both.thoughts, out);
        let piece = self.said.push(&both.answer).to_string();
        self.write(&piece, out);
    }

    /// Adds a chunk to the thoughts, and starts the item if necessary.
    fn think(&mut self, piece: &str, out: &mut Vec<Value>) {
        // Thoughts between two parts of an answer are dropped.
        if piece.is_empty() || self.message.is_some() {
            return;
        }
        let at = self.output.len();
        let mut thoughts = match self.thoughts.take() {
            Some(thoughts) => thoughts,
            None => {
                let thoughts = Thoughts::new(String::new());
                for (kind, fields) in thoughts.begin(at) {
                    out.push(self.event(kind, fields));
                }
                thoughts
            }
        };
        let (kind, fields) = thoughts.push(piece, at);
        out.push(self.event(kind, fields));
        self.thoughts = Some(thoughts);
    }

    /// Ends the thoughts, if there are any.
    fn end_thoughts(&mut self, out: &mut Vec<Value>) {
        let Some(thoughts) = self.thoughts.take() else {
            return;
        };
        let at = self.output.len();
        for (kind, fields) in thoughts.end(at) {
            out.push(self.event(kind, fields));
        }
        self.output.push(thoughts.item("completed"));
    }

    fn described(&self, likely: &Likely) -> Value {
        described(self.model.engine.backend().tokenizer(), likely)
    }

    /// Begins the message.
    fn open(&mut self, out: &mut Vec<Value>) {
        self.end_thoughts(out);
        let (at, message) = (self.output.len(), Message::new());
        let mut item = message.item("in_progress");
        item["content"] = json!([]);
        let part = json!({
            "item_id": message.id, "output_index": at, "content_index": 0, "part": message.part(),
        });
        let item = json!({ "output_index": at, "item": item });
        out.push(self.event("response.output_item.added", item));
        out.push(self.event("response.content_part.added", part));
        self.message = Some(message);
    }

    /// Adds a chunk to the message, and starts the item if necessary.
    fn write(&mut self, piece: &str, out: &mut Vec<Value>) {
        if piece.is_empty() {
            return;
        }
        if self.message.is_none() {
            self.open(out);
        }
        let at = self.output.len();
        let logprobs = std::mem::take(&mut self.held);
        let Some(message) = &mut self.message else {
            return;
        };
        message.text.push_str(piece);
        message.logprobs.extend(logprobs.iter().cloned());
        let delta = json!({
            "item_id": message.id, "output_index": at, "content_index": 0, "delta": piece, "logprobs": logprobs,
        });
        out.push(self.event("response.output_text.delta", delta));
    }

    fn end(&mut self, completion: &Completion, out: &mut Vec<Value>) {
        let both = self.apart.end();
        self.take_both(&both, out);
        let (rest, calls) = self.said.end();
        let rest = rest.to_string();
        self.write(&rest, out);
        // An answer has at least one item.
        if self.message.is_none() && calls.is_empty() {
            self.open(out);
        }
        self.end_thoughts(out);
        let status = status(completion);
        if let Some(mut message) = self.message.take() {
            message.logprobs.append(&mut self.held);
            let at = self.output.len();
            let place = json!({ "item_id": message.id, "output_index": at, "content_index": 0 });
            let (mut text, mut part) = (place.clone(), place);
            text["text"] = message.text.clone().into();
            text["logprobs"] = message.logprobs.clone().into();
            part["part"] = message.part();
            let item = message.item(status);
            out.push(self.event("response.output_text.done", text));
            out.push(self.event("response.content_part.done", part));
            out.push(self.event(
                "response.output_item.done",
                json!({ "output_index": at, "item": item }),
            ));
            self.output.push(item);
        }
        for call in &calls {
            let (at, item) = (self.output.len(), call_item(call));
            let mut begun = item.clone();
            begun["arguments"] = "".into();
            begun["status"] = "in_progress".into();
            let place = json!({ "item_id": item["id"], "output_index": at });
            let (mut delta, mut done) = (place.clone(), place);
            delta["delta"] = call.arguments.clone().into();
            done["arguments"] = call.arguments.clone().into();
            done["name"] = call.name.clone().into();
            for (kind, fields) in [
                (
                    "output_item.added",
                    json!({ "output_index": at, "item": begun }),
                ),
                ("function_call_arguments.delta", delta),
                ("function_call_arguments.done", done),
                (
                    "output_item.done",
                    json!({ "output_index": at, "item": item }),
                ),
            ] {
                out.push(self.event(&format!("response.{kind}"), fields));
            }
            self.output.push(item);
        }
        let kind = format!("response.{status}");
        let response = json!({ "response": self.response(completion) });
        out.push(self.event(&kind, response));
    }

    /// The whole answer.
    pub(super) fn whole(mut self, whole: Whole) -> Value {
        let Whole {
            completion,
            likely,
            text,
        } = whole;
        let read = self.tools.read(&text.answer);
        if !text.thoughts.is_empty() {
            let thoughts = Thoughts::new(text.thoughts);
            self.output.push(thoughts.item("completed"));
        }
        if !read.text.is_empty() || read.calls.is_empty() {
            let mut message = Message::new();
            message.text = read.text;
            if self.has_logprobs {
                message.logprobs = likely.iter().map(|it| self.described(it)).collect();
            }
            self.output.push(message.item(status(&completion)));
        }
        self.output.extend(read.calls.iter().map(call_item));
        self.response(&completion).into()
    }

    fn response(&mut self, completion: &Completion) -> Map<String, Value> {
        let mut response = self.head.clone();
        let status = status(completion);
        let details = match status {
            "incomplete" => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        let made = completion.token_ids.len();
        let mut usage = json!({
            "input_tokens": self.prompt, "output_tokens": made, "total_tokens": self.prompt + made,
            "input_tokens_details": { "cached_tokens": completion.cached_tokens },
        });
        if self.thinks {
            let tokens = completion.thought_tokens;
            usage["output_tokens_details"] = json!({ "reasoning_tokens": tokens });
        }
        for (name, value) in [
            ("status", status.into()),
            ("incomplete_details", details),
            ("output", std::mem::take(&mut self.output).into()),
            ("usage", usage),
        ] {
            response.insert(name.to_string(), value);
        }
        response
    }
}

fn status(completion: &Completion) -> &'static str {
    match completion.stop_reason {
        StopReason::Length => "incomplete",
        StopReason::EndOfText | StopReason::StopSequence | StopReason::Cancelled => "completed",
    }
}
