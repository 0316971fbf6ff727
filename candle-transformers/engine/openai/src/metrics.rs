//! Counts, and the page that Prometheus reads.

use super::Served;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use candle_engine::batch::CacheMemory;
use candle_engine::Completion;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Counts since the start.
#[derive(Default)]
pub(super) struct Metrics {
    /// Answers by route and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    completions: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
    waited_micros: AtomicU64,
}

impl Metrics {
    /// A completion has ended, this long after its request, or has failed.
    pub(super) fn completion(&self, prompt: usize, made: Option<&Completion>, took: Duration) {
        let Some(made) = made else {
            self.failed.fetch_add(1, Relaxed);
            return;
        };
        let micros = |seconds: f64| (seconds * 1e6) as u64;
        let worked = made.timings.prompt_seconds + made.timings.generation_seconds;
        let took = took.as_secs_f64();
        self.completions.fetch_add(1, Relaxed);
        self.prompt_tokens.fetch_add(prompt as u64, Relaxed);
        self.cached_tokens
            .fetch_add(made.cached_tokens as u64, Relaxed);
        self.completion_tokens
            .fetch_add(made.token_ids.len() as u64, Relaxed);
        self.micros.fetch_add(micros(took), Relaxed);
        self.waited_micros
            .fetch_add(micros((took - worked).max(0.0)), Relaxed);
    }

    fn page(&self, served: &Served) -> String {
        let seconds = |micros: &AtomicU64| micros.load(Relaxed) as f64 / 1e6;
        let models = served.texts.loaded();
        let open: usize = models.iter().map(|model| model.engine.open()).sum();
        let running: usize = models.iter().map(|model| model.engine.running()).sum();
        let running = running.min(open);
        let mut page = String::new();
        let mut line = |kind: &str, name: &str, help: &str, value: &dyn std::fmt::Display| {
            let name = format!("candle_api_{name}");
            let _ = write!(
                page,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
            );
        };
        let (counter, gauge) = ("counter", "gauge");
        let count = |count: &AtomicU64| count.load(Relaxed);
        line(
            counter,
            "prompt_tokens_total",
            "Tokens of prompts.",
            &count(&self.prompt_tokens),
        );
        line(
            counter,
            "prompt_tokens_cached_total",
            "Tokens of prompts that the cache had already.",
            &count(&self.cached_tokens),
        );
        line(
            counter,
            "completion_tokens_total",
            "Tokens generated.",
            &count(&self.completion_tokens),
        );
        line(
            counter,
            "completions_total",
            "Completions finished.",
            &count(&self.completions),
        );
        line(
            counter,
            "completions_failed_total",
            "Completions that failed.",
            &count(&self.failed),
        );
        line(
            counter,
            "completion_seconds_total",
            "Time from requests to the ends of their completions.",
            &seconds(&self.micros),
        );
        line(
            counter,
            "completion_queue_seconds_total",
            "The part of it before their first step.",
            &seconds(&self.waited_micros),
        );
        line(
            gauge,
            "completions_running",
            "Completions running.",
            &running,
        );
        line(
            gauge,
            "completions_queued",
            "Completions waiting for a slot.",
            &(open - running),
        );
        line(
            gauge,
            "models_loaded",
            "Models of text that are loaded.",
            &models.len(),
        );
        let memory = models
            .iter()
            .filter_map(|model| model.engine.cache_memory());
        let memory: Vec<CacheMemory> = memory.collect();
        for measure in CacheMemory::measures(&memory, "completions") {
            line(measure.kind, &measure.name, &measure.help, &measure.value);
        }
        let embedding = served.vectors.as_ref().map_or(0, |vectors| vectors.open());
        line(
            gauge,
            "embeddings_open",
            "Embedding requests running and waiting.",
            &embedding,
        );
        let reranking = served.scores.as_ref().map_or(0, |scores| scores.open());
        line(
            gauge,
            "rerankings_open",
            "Rerank requests running and waiting.",
            &reranking,
        );
        let speech = served.speech.as_ref();
        let recordings = speech.map_or(0, |speech| speech.worker.open());
        line(
            gauge,
            "recordings_open",
            "Recordings being transcribed and waiting.",
            &recordings,
        );
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        page.push_str(
            "# HELP candle_api_requests_total HTTP requests answered, by route and status.\n",
        );
        page.push_str("# TYPE candle_api_requests_total counter\n");
        for ((route, status), count) in requests.iter() {
            let _ = writeln!(
                page,
                "candle_api_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}"
            );
        }
        page
    }
}

/// Counts a request and the status of its answer.
pub(super) async fn count(
    State(served): State<Arc<Served>>,
    request: Request,
    next: Next,
) -> Response {
    // Not the path itself: clients can make up any number of them.
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("other", MatchedPath::as_str).to_string();
    let response = next.run(request).await;
    let requests = &served.metrics.requests;
    let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
    *requests
        .entry((route, response.status().as_u16()))
        .or_default() += 1;
    response
}

pub(super) async fn page(State(served): State<Arc<Served>>) -> Response {
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, served.metrics.page(&served)).into_response()
}
