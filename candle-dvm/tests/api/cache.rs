//! A server whose cache has pages: the same texts, and `usage` and `/metrics` say how much was cached.

use super::{Server, COMPLETIONS};
use serde_json::json;

const ARGS: [&str; 4] = ["--piece", "32", "--cache-memory", "16MiB"];

fn metrics(server: &Server) -> String {
    let page = ureq::get(format!("{}/metrics", server.address)).call();
    page.unwrap().into_body().read_to_string().unwrap()
}

#[test]
fn beginnings_are_cached_and_counted() {
    let (paged, slots) = (Server::start(&ARGS), Server::start(&["--piece", "32"]));
    let beginning = "pub fn push(&mut self, value: T) -> Option<usize> {\n".repeat(8);
    let order = |end: &str| {
        let prompt = format!("{beginning}{end}");
        json!({"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 0})
    };
    let mut cached = Vec::new();
    for end in ["self.len += 1;", "self.len += 1;", "None"] {
        let (found, expected) = (
            paged.json(COMPLETIONS, order(end)),
            slots.json(COMPLETIONS, order(end)),
        );
        let text = |answer: &serde_json::Value| answer["choices"][0]["text"].clone();
        assert!(text(&found).is_string(), "{found}");
        assert_eq!(text(&found), text(&expected), "{end}");
        assert_eq!(found["usage"], expected["usage"], "slots share as much");
        let details = &found["usage"]["prompt_tokens_details"];
        cached.push(details["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!(cached[0], 0);
    assert!(
        cached[1] >= 64 && cached[1].is_multiple_of(32),
        "{cached:?}"
    );
    assert!(cached[2] >= 64, "{cached:?}");

    let page = metrics(&paged);
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {page}"))
    };
    let all: u64 = cached.iter().sum();
    assert_eq!(value("candle_api_prompt_tokens_cached_total "), all);
    assert_eq!(value("candle_api_cache_held_bytes "), 0);
    assert!(value("candle_api_cache_kept_bytes ") > 0);
    assert!(value("candle_api_cache_bytes ") <= 16 << 20);
    assert_eq!(value("candle_api_preemptions_total "), 0);
    assert_eq!(value("candle_api_completions_preempted "), 0);
    assert!(!metrics(&slots).contains("candle_api_cache_bytes"));
}
