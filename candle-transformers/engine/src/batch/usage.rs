//! The use of the memory for pages, and the numbers of it that metrics have.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory of a [`BatchEngine`](super::BatchEngine) with [`BatchSettings::cache_memory`](super::BatchSettings::cache_memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMemory {
    /// Bytes of a page over all layers.
    pub page_bytes: u64,
    /// Pages that there are.
    pub pages: u64,
    /// Pages with positions of texts that run.
    pub held: u64,
    /// Pages with beginnings that no running text has, kept until their memory is needed.
    pub kept: u64,
    /// Texts that have begun and wait for pages now.
    pub preempted: u64,
    /// How often a text had to return its pages.
    pub preemptions: u64,
}

/// A number for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// Its name, without a program's prefix.
    pub name: String,
    /// A line for people.
    pub help: String,
    /// The value.
    pub value: u64,
}

impl CacheMemory {
    /// The numbers for Prometheus, sums over `engines`; none without engines. `texts` is the program's word, such as `completions`.
    pub fn measures(engines: &[Self], texts: &str) -> Vec<Measure> {
        if engines.is_empty() {
            return Vec::new();
        }
        let (counter, gauge) = ("counter", "gauge");
        let measure = |kind, name: &str, help: String, of: fn(&Self) -> u64| Measure {
            kind,
            name: name.to_string(),
            help,
            value: engines.iter().map(of).sum(),
        };
        vec![
            measure(
                gauge,
                "cache_bytes",
                "Memory for keys and values in pages.".to_string(),
                |it| it.pages * it.page_bytes,
            ),
            measure(
                gauge,
                "cache_held_bytes",
                format!("The part of it that running {texts} have."),
                |it| it.held * it.page_bytes,
            ),
            measure(
                gauge,
                "cache_kept_bytes",
                format!("The part of it with beginnings of prompts, kept for later {texts}."),
                |it| it.kept * it.page_bytes,
            ),
            measure(
                gauge,
                &format!("{texts}_preempted"),
                format!("Number of {texts} that have begun and wait for cache memory."),
                |it| it.preempted,
            ),
            measure(
                counter,
                "preemptions_total",
                format!("How often {texts} had to wait for cache memory after they had begun."),
                |it| it.preemptions,
            ),
        ]
    }
}

/// [`CacheMemory`], written by the engine's thread.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) page_bytes: u64,
    pub(super) pages: u64,
    pub(super) held: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) preempted: AtomicU64,
    pub(super) preemptions: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) -> CacheMemory {
        CacheMemory {
            page_bytes: self.page_bytes,
            pages: self.pages,
            held: self.held.load(Relaxed),
            kept: self.kept.load(Relaxed),
            preempted: self.preempted.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
        }
    }
}
