//! `/v1/completions`.

use super::fields::{Common, Fields, Input};
use super::reply::{self, Count, Event, Framing};
use super::texts::TextModel;
use super::{access, now, ApiError, Asked, Served};
use axum::extract::{self, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use candle_engine::batch::Likely;
use futures_util::future::try_join_all;
use futures_util::stream::select_all;
use futures_util::StreamExt;
use serde_json::{json, Value};
use std::sync::Arc;

/// OpenAI's default, about a line of text.
const MAX_TOKENS: usize = 16;
const MAX_TOP: usize = 5;
/// Prompts in a request.
const MAX_PROMPTS: usize = 128;

/// The tokens of each prompt.
fn tokens(prompt: Input, fields: &Fields, model: &TextModel) -> Result<Vec<Vec<u32>>, ApiError> {
    let backend = model.engine.backend();
    let of = |text: String| backend.prompt_tokens(&text);
    let all = match prompt {
        Input::Text(text) => vec![of(text)?],
        Input::Texts(texts) => texts.into_iter().map(of).collect::<Result<_, _>>()?,
        Input::Tokens(tokens) => vec![tokens],
        Input::TokenLists(lists) => lists,
    };
    if !(1..=MAX_PROMPTS).contains(&all.len()) {
        let problem = format!("found {} texts; expected 1 to {MAX_PROMPTS}", all.len());
        return Err(fields.wrong("prompt", problem));
    }
    let vocab = backend.vocab();
    if let Some(id) = all.iter().flatten().find(|id| **id as usize >= vocab) {
        let problem = format!("token {id} is out of range; the vocabulary has {vocab} tokens");
        return Err(fields.wrong("prompt", problem));
    }
    Ok(all)
}

/// A request whose prompts are tokens.
struct Prepared {
    common: Common,
    prompts: Vec<Vec<u32>>,
    max_tokens: usize,
    logprobs: Option<usize>,
}

impl Prepared {
    fn new(served: &Asked, bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(bytes)?;
        let common = Common::take(&mut fields, served)?;
        let count = "a whole number";
        let max_tokens = fields.take("max_tokens", count)?.unwrap_or(MAX_TOKENS);
        let logprobs = fields.take("logprobs", count)?;
        if let Some(top) = logprobs.filter(|top| *top > MAX_TOP) {
            let problem = format!("{top}; the maximum is {MAX_TOP}");
            return Err(fields.wrong("logprobs", problem));
        }
        let prompt: Input = fields.need("prompt", Input::EXPECTED)?;
        let prompts = tokens(prompt, &fields, &common.model)?;
        if prompts.len() * common.answers > MAX_PROMPTS {
            let problem = format!(
                "{} for each of {} prompts; the maximum is {MAX_PROMPTS} answers",
                common.answers,
                prompts.len()
            );
            return Err(fields.wrong("n", problem));
        }
        fields.end()?;
        Ok(Self {
            common,
            prompts,
            max_tokens,
            logprobs,
        })
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Response, ApiError> {
    let owner = access::owner(&request);
    let Prepared {
        common,
        prompts,
        max_tokens,
        logprobs,
    } = served.read(request, Prepared::new).await?;
    let prompt_tokens: usize = prompts.iter().map(Vec::len).sum();
    let each = prompts.iter().flat_map(|tokens| {
        let answers = 0..common.answers;
        answers.map(move |at| (tokens, at))
    });
    let receivers = each.map(|(tokens, at)| {
        let completion = common.completion(at, max_tokens);
        let model = &common.model;
        reply::begin(
            &served,
            model,
            owner,
            tokens.clone(),
            completion,
            logprobs,
            None,
        )
    });
    let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
    let (id, created, model) = (reply::id("cmpl"), now(), common.model.name.clone());
    if !common.stream {
        let whole = try_join_all(receivers.into_iter().map(|it| reply::whole(it, None))).await?;
        let count = Count::of(whole.iter().map(|it| &it.completion));
        let choices = whole.iter().enumerate().map(|(index, whole)| {
            let logprobs = logprobs.map(|_| listed(&common.model, &whole.likely, 0));
            json!({
                "index": index, "text": whole.completion.text, "logprobs": logprobs,
                "finish_reason": reply::finish_reason(&whole.completion),
            })
        });
        let choices: Vec<Value> = choices.collect();
        let answer = json!({
            "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices,
            "usage": count.usage(prompt_tokens, false),
        });
        return Ok(Json(answer).into_response());
    }
    let with_usage = common.with_usage;
    let head = json!({ "id": id, "object": "text_completion", "created": created, "model": model });
    let chunk = move |choices: Value, usage: Value| {
        let mut chunk = head.clone();
        chunk["choices"] = choices;
        if with_usage {
            chunk["usage"] = usage;
        }
        chunk
    };
    let count = Arc::new(Count::default());
    let each = receivers.into_iter().enumerate().map(|(index, receiver)| {
        let (chunk, writer, count) = (chunk.clone(), common.model.clone(), count.clone());
        let mut held: Vec<Likely> = Vec::new();
        let mut offset = 0;
        let events = reply::chunks(receiver, move |event| {
            let mut choice = |text: &str, held: &mut Vec<Likely>, reason: Value| {
                let logprobs = if held.is_empty() {
Value::Null
} else {
listed(&writer, &std::mem::take(held), offset)
};
                offset += text.chars().count();
                json!([{ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason }])
            };
            match event {
                Event::Token(likely) => {
                    held.push(likely);
                    Vec::new()
                }
                Event::Piece(piece) => {
                    vec![chunk(choice(&piece, &mut held, Value::Null), Value::Null)]
                }
                Event::Done(Ok(completion)) => {
                    count.add(&completion);
                    let reason = reply::finish_reason(&completion).into();
                    vec![chunk(choice("", &mut held, reason), Value::Null)]
                }
                Event::Done(Err(error)) => vec![reply::failure(error)],
            }
        });
        events.boxed()
    });
    let all = select_all(each);
    let last = futures_util::stream::once(async move {
        with_usage.then(|| chunk(json!([]), count.usage(prompt_tokens, false)))
    });
    let last = last.filter_map(std::future::ready);
    Ok(reply::stream(all.chain(last), Framing::Done))
}

/// The tokens of a text whose first begins at the character `offset`.
fn listed(model: &TextModel, likely: &[Likely], mut offset: usize) -> Value {
    let tokenizer = model.engine.backend().tokenizer();
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for it in likely {
        let text = reply::token_text(tokenizer, it.id);
        offsets.push(offset);
        offset += text.chars().count();
        let top = it.top.iter();
        let top = top.map(|(id, logprob)| (reply::token_text(tokenizer, *id), json!(logprob)));
        tops.push(Value::Object(top.collect()));
        tokens.push(text);
        logprobs.push(it.logprob);
    }
    json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}
