//! `/v1/rerank` of `candle-dvm api`.

use super::{agent, Server};
use crate::rerank::{folder, order, wanted, DOCUMENTS, QUERY};
use candle_transformers::rerank::Scale;
use serde_json::{json, Value};

fn request() -> Value {
    json!({"model": "ranks", "query": QUERY, "documents": DOCUMENTS, "user": "somebody", "top_n": null})
}

fn with(fields: Value) -> Value {
    super::with(request(), fields)
}

#[test]
fn documents_are_ranked() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let server = Server::start(&["--rerank-model", path, "--rerank-name", "ranks"]);
    let wanted = wanted(&folder, Scale::Sigmoid);
    let order = order(&wanted);
    let objects = DOCUMENTS.map(|text| json!({ "text": text }));
    for (path, body) in [
        ("/v1/rerank", request()),
        ("/rerank", with(json!({ "documents": objects }))),
    ] {
        let answer = server.json(path, body);
        assert_eq!(answer["model"], "ranks");
        // Three special tokens and the query's three with each document.
        let words = DOCUMENTS.map(|text| text.split(' ').count());
        let tokens = words.iter().sum::<usize>() + 6 * DOCUMENTS.len();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        assert_eq!(answer["usage"], usage);
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), DOCUMENTS.len());
        for (result, place) in results.iter().zip(&order) {
            assert_eq!(result["index"], *place);
            assert!(result.get("document").is_none());
            let score = result["relevance_score"].as_f64().unwrap() as f32;
            assert!((score - wanted[*place]).abs() < 1e-5, "{score} {wanted:?}");
        }
    }
    let top = server.json(
        "/v1/rerank",
        with(json!({"top_n": 2, "return_documents": true})),
    );
    let shown = top["results"].as_array().unwrap().iter();
    let shown: Vec<&Value> = shown.map(|result| &result["document"]["text"]).collect();
    assert_eq!(shown, [DOCUMENTS[order[0]], DOCUMENTS[order[1]]]);
    let more = server.json("/v1/rerank", with(json!({"top_n": 99})));
    assert_eq!(more["results"].as_array().unwrap().len(), DOCUMENTS.len());

    for (fields, part) in [
        (json!({"query": null}), "query: is missing"),
        (json!({"query": " "}), "query: the text is empty"),
        (
            json!({"documents": ["a", ""]}),
            "documents[1]: the text is empty",
        ),
        (
            json!({"documents": []}),
            "found 0 documents; expected 1 to 2048",
        ),
        (
            json!({"documents": vec!["a"; 2049]}),
            "found 2049 documents",
        ),
        (
            json!({"documents": "a"}),
            "documents: expected a list of texts",
        ),
        (
            json!({"documents": [1]}),
            "documents: expected a list of texts",
        ),
        (json!({"top_n": 0}), "top_n: found 0"),
        (json!({"top_n": -1}), "top_n: expected a whole number"),
        (
            json!({"rank_fields": ["text"]}),
            "rank_fields: this field is not supported",
        ),
    ] {
        let problem = server.problem("/v1/rerank", with(fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let other = server.problem("/v1/rerank", with(json!({"model": "tiny"})), 404);
    assert!(other.contains("available: ranks"), "{other}");

    let get = |path: &str| {
        let answer = agent().get(format!("{}{path}", server.address)).call();
        answer.unwrap().body_mut().read_to_string().unwrap()
    };
    let listed: Value = serde_json::from_str(&get("/v1/models")).unwrap();
    assert_eq!(listed["data"][1]["id"], "ranks");
    let page = get("/metrics");
    for line in [
        "candle_api_rerankings_open 0",
        r#"candle_api_requests_total{route="/v1/rerank",status="200"} 3"#,
    ] {
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
}
