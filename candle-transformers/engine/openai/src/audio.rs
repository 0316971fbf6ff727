//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

mod form;

use super::reply::{self, Framing};
use super::{access, ApiError, Served};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::Json;
use candle_engine::speech::{Heard, Listener, SpeechWorker};
use candle_engine::transcript::{subtitle, webvtt, WEBVTT};
use candle_transformers::models::whisper::transcribe::{Segment, Transcript};
use form::{Form, Format};
use futures_util::stream::{self, StreamExt};
use serde_json::{json, Value};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

/// A model of speech.
pub struct Speech {
    /// The name that clients use.
    pub name: String,
    /// The model.
    pub worker: SpeechWorker,
}

/// A segment or the end of a transcript.
enum Event {
    Segment(Segment),
    Done(candle_engine::Result<Transcript>),
}

impl Listener for Sender {
    fn heard(&mut self, heard: Heard<'_>) -> ControlFlow<()> {
        let event = match heard {
            Heard::Segment(segment) => Event::Segment(segment.clone()),
            Heard::Done(result) => Event::Done(result),
        };
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn is_there(&self) -> bool {
        !self.0.is_closed()
    }
}

struct Sender(UnboundedSender<Event>);

pub(super) async fn transcribe(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Response, ApiError> {
    create(&served, request, false).await
}

pub(super) async fn translate(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Response, ApiError> {
    create(&served, request, true).await
}

async fn create(served: &Served, request: Request, translate: bool) -> Result<Response, ApiError> {
    let owner = access::owner(&request);
    let form = Form::read(served.gate.form(request).await?, translate).await?;
    let Some(speech) = &served.speech else {
        let problem = "no speech model is loaded; start the server with --speech-model";
        return Err(ApiError::field("model", problem));
    };
    if form.model != speech.name {
        let known = std::iter::once(speech.name.as_str());
        return Err(ApiError::no_such_model(&form.model, known));
    }
    let (sender, receiver) = unbounded_channel();
    let listener = Box::new(Sender(sender));
    speech
        .worker
        .begin(owner, &form.name, form.bytes, form.asked, listener)?;
    if form.stream {
        return Ok(streamed(receiver));
    }
    let transcript = whole(receiver).await?;
    let text = |kind: &'static str, text: String| ([(CONTENT_TYPE, kind)], text).into_response();
    let all = transcript.segments.iter();
    Ok(match form.format {
        Format::Json => {
            let answer = json!({ "text": transcript.text(), "usage": usage(&transcript) });
            Json(answer).into_response()
        }
        Format::Verbose { segments, words } => {
            Json(verbose(&transcript, translate, segments, words)).into_response()
        }
        Format::Text => text("text/plain; charset=utf-8", transcript.text() + "\n"),
        Format::Srt => {
            let all = all
                .zip(1..)
                .map(|(segment, number)| subtitle(number, segment));
            text("application/x-subrip", all.collect())
        }
        Format::Vtt => text(
            "text/vtt",
            WEBVTT.to_string() + &all.map(webvtt).collect::<String>(),
        ),
    })
}

async fn whole(mut receiver: UnboundedReceiver<Event>) -> Result<Transcript, ApiError> {
    while let Some(event) = receiver.recv().await {
        if let Event::Done(result) = event {
            return Ok(result?);
        }
    }
    Err(stopped().into())
}

fn stopped() -> candle_engine::Error {
    candle_engine::Error::Batch("the speech model has stopped".to_string())
}

fn usage(transcript: &Transcript) -> Value {
    json!({ "type": "duration", "seconds": transcript.duration.ceil() as u64 })
}

fn verbose(transcript: &Transcript, translate: bool, segments: bool, words: bool) -> Value {
    let mut answer = json!({
        "task": if translate { "translate" } else { "transcribe" },
        "language": transcript.language, "duration": transcript.duration, "text": transcript.text(),
        "usage": usage(transcript),
    });
    if segments {
        let all = transcript.segments.iter().enumerate();
        let all = all.map(|(id, segment)| {
            json!({
                "id": id, "seek": segment.seek, "start": segment.start, "end": segment.end, "text": segment.text,
                "tokens": segment.tokens, "temperature": segment.temperature, "avg_logprob": segment.avg_logprob,
                "compression_ratio": segment.compression_ratio, "no_speech_prob": segment.no_speech_prob,
            })
        });
        answer["segments"] = all.collect();
    }
    if words {
        let all = transcript
            .segments
            .iter()
            .flat_map(|segment| &segment.words);
        let all = all
            .map(|word| json!({ "word": word.text.trim(), "start": word.start, "end": word.end }));
        answer["words"] = all.collect();
    }
    answer
}

/// The text as it comes.
fn streamed(receiver: UnboundedReceiver<Event>) -> Response {
    let mut begun = false;
    let events = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (event, receiver))
    });
    let events = events.map(move |event| match event {
        Event::Segment(segment) => {
            // The text as a whole begins without a blank.
            let text = if std::mem::replace(&mut begun, true) {
                segment.text.as_str()
            } else {
                segment.text.trim_start()
            };
            json!({ "type": "transcript.text.delta", "delta": text })
        }
        Event::Done(Ok(transcript)) => json!({
            "type": "transcript.text.done", "text": transcript.text(), "usage": usage(&transcript),
        }),
        Event::Done(Err(error)) => reply::failure(error),
    });
    reply::stream(events, Framing::Done)
}
