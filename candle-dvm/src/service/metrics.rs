//! What is counted, and the page that Prometheus reads.

#[cfg(not(target_arch = "wasm32"))]
use candle_engine::batch::{CacheMemory, Measure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

/// Counters and gauges of a service.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Admitted jobs.
    pub accepted: AtomicU64,
    /// Results that were signed.
    pub results: AtomicU64,
    /// Errors that were signed as answers.
    pub errors: AtomicU64,
    /// Jobs that their customers cancelled.
    pub cancelled: AtomicU64,
    /// Answers that relays have acknowledged.
    pub delivered: AtomicU64,
    /// Generated tokens.
    pub tokens: AtomicU64,
    /// Milliseconds that generation took.
    pub busy_millis: AtomicU64,
    /// Jobs that wait.
    pub queued: AtomicU64,
    /// Jobs that run.
    pub running: AtomicU64,
    /// Configured relays with an open connection.
    pub relays_up: AtomicU64,
    /// Answers that wait for a relay, once for each relay.
    pub undelivered: AtomicU64,
    /// Answers that a relay will not get any more.
    pub given_up: AtomicU64,
    /// Whether no configured relay could be reached.
    pub unreachable: AtomicBool,
    /// Seconds by which this machine's clock is ahead of the others; 0 where it agrees.
    pub clock_ahead: AtomicI64,
    /// The use of the memory for keys and values in pages, if there are any.
    #[cfg(not(target_arch = "wasm32"))]
    pub cache: Mutex<Option<CacheMemory>>,
    /// Refused and dropped events, by reason.
    pub refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    /// The page, in Prometheus' text format.
    pub fn page(&self) -> String {
        let mut page = String::new();
        let mut line = |kind: &str, name: &str, help: &str, value: &AtomicU64| {
            write_line(&mut page, kind, name, help, value.load(Relaxed));
        };
        line(
            "counter",
            "jobs_accepted_total",
            "Jobs admitted.",
            &self.accepted,
        );
        line("counter", "results_total", "Results signed.", &self.results);
        line(
            "counter",
            "errors_total",
            "Jobs answered with an error.",
            &self.errors,
        );
        line(
            "counter",
            "cancelled_total",
            "Jobs cancelled by customers.",
            &self.cancelled,
        );
        line(
            "counter",
            "delivered_total",
            "Answers acknowledged by relays.",
            &self.delivered,
        );
        line("counter", "tokens_total", "Tokens generated.", &self.tokens);
        line(
            "counter",
            "busy_milliseconds_total",
            "Time spent generating.",
            &self.busy_millis,
        );
        line("gauge", "jobs_queued", "Jobs waiting.", &self.queued);
        line("gauge", "jobs_running", "Jobs running.", &self.running);
        line(
            "gauge",
            "relays_up",
            "Configured relays connected.",
            &self.relays_up,
        );
        line(
            "gauge",
            "answers_undelivered",
            "Answers not yet accepted by relays, counted per relay.",
            &self.undelivered,
        );
        line(
            "counter",
            "answers_given_up_total",
            "Answers dropped because a relay never accepted them.",
            &self.given_up,
        );
        #[cfg(not(target_arch = "wasm32"))]
        for measure in self.cache_measures() {
            let (name, help) = (&measure.name, &measure.help);
            write_line(&mut page, measure.kind, name, help, measure.value);
        }
        let ahead = self.clock_ahead.load(Relaxed);
        let _ = write!(
            page,
            "# HELP candle_dvm_clock_ahead_seconds Seconds this clock is ahead of other clocks; 0 if it agrees.\n\
             # TYPE candle_dvm_clock_ahead_seconds gauge\ncandle_dvm_clock_ahead_seconds {ahead}\n"
        );
        page.push_str("# HELP candle_dvm_refused_total Requests refused or dropped, by reason.\n");
        page.push_str("# TYPE candle_dvm_refused_total counter\n");
        for (reason, count) in self
            .refused
            .lock()
            .iter()
            .flat_map(|refused| refused.iter())
        {
            let _ = writeln!(
                page,
                "candle_dvm_refused_total{{reason=\"{reason}\"}} {count}"
            );
        }
        page
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn cache_measures(&self) -> Vec<Measure> {
        let cache = self.cache.lock().map_or(None, |cache| *cache);
        CacheMemory::measures(cache.as_slice(), "jobs")
    }

    /// One line for a person.
    pub fn line(&self, relays: usize) -> String {
        let refused: u64 = self
            .refused
            .lock()
            .map_or(0, |refused| refused.values().sum());
        let none = if self.unreachable.load(Relaxed) {
            " (none reachable)"
        } else {
            ""
        };
        let clock = match self.clock_ahead.load(Relaxed) {
            0 => String::new(),
            ahead if ahead > 0 => format!(" · the clock is {ahead} s ahead"),
            behind => format!(" · the clock is {} s behind", behind.unsigned_abs()),
        };
        let undelivered = match self.undelivered.load(Relaxed) {
            0 => String::new(),
            count => format!(" · undelivered {count}"),
        };
        format!(
            "relays {}/{relays}{none} · queued {} · running {} · results {} · errors {} · refused {refused} · {} tokens{undelivered}{clock}",
            self.relays_up.load(Relaxed),
            self.queued.load(Relaxed),
            self.running.load(Relaxed),
            self.results.load(Relaxed),
            self.errors.load(Relaxed),
            self.tokens.load(Relaxed),
        )
    }
}

/// A number with its description.
fn write_line(page: &mut String, kind: &str, name: &str, help: &str, value: u64) {
    let _ = write!(
        page,
        "# HELP candle_dvm_{name} {help}\n# TYPE candle_dvm_{name} {kind}\ncandle_dvm_{name} {value}\n"
    );
}
