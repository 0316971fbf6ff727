//! `--gpus`: ranks that share each layer, here on the CPU.

#[cfg(feature = "api")]
use crate::api::Server;
use crate::cli::{assert_one_line, run, stdout};
use crate::gguf_model::in_format;
use crate::support::golden;
use candle_core::quantized::GgmlDType;
use serde_json::{json, Value};

/// The golden text, from the model in the binary and from a GGUF file with blocks.
#[test]
fn ranks_on_the_cpu_write_the_same() {
    let prompt = &golden().prompts[0];
    let file = in_format(GgmlDType::Q8_0);
    let file = file.to_str().unwrap();
    for (gpus, tokens, model) in [
        ("2", 48, &[][..]),
        ("4", 48, &[][..]),
        ("2", 4, &["--model", file]),
    ] {
        let count = tokens.to_string();
        let mut args = vec!["generate", "--prompt", &prompt.text, "--max-tokens", &count];
        args.extend(["--device", "cpu", "--gpus", gpus, "--json"]);
        args.extend(model);
        let output = run(&args);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(
            json["token_ids"],
            json!(prompt.greedy_ids[..tokens]),
            "{args:?}"
        );
        assert_eq!(json["device"], format!("{gpus} ranks on cpu"));
    }
}

/// Clients together, with pages and without.
#[cfg(feature = "api")]
#[test]
fn servers_take_ranks() {
    let prompt = &golden().prompts[0];
    for memory in [&[][..], &["--cache-memory", "4MB"]] {
        let server = Server::start(&[&["--gpus", "2"], memory].concat());
        let body =
            json!({"model": "tiny", "prompt": prompt.text, "max_tokens": 24, "temperature": 0});
        let ask = || server.json("/v1/completions", body.clone());
        let texts: Vec<Value> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            clients.into_iter().map(|it| it.join().unwrap()).collect()
        });
        for text in texts {
            let text = text["choices"][0]["text"].as_str().unwrap();
            assert!(
                !text.is_empty() && prompt.greedy_text.starts_with(text),
                "{text}"
            );
        }
    }
}

#[test]
fn benchmarks_take_ranks() {
    for format in ["f32", "q4_0"] {
        let args = [
            "bench", "--shape", "demo", "--dtype", format, "--device", "cpu", "--json",
        ];
        let sizes = [
            "--prompt",
            "4",
            "--generate",
            "2",
            "--repeat",
            "1",
            "--batch",
            "2",
            "--gpus",
            "2",
        ];
        let output = run(&[&args[..], &sizes[..]].concat());
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(json["device"], "2 ranks on cpu");
        assert_eq!(json["dimensions"]["heads"], 4);
        assert!(json["generation"]["median"].as_f64().unwrap() > 0.);
    }
}

#[test]
fn what_cannot_be_shared_is_one_line() {
    let generate = |gpus: &str, words: &[&str]| {
        let args = [
            "generate", "--prompt", "fn main", "--device", "cpu", "--gpus", gpus,
        ];
        assert_one_line(&args, words);
    };
    generate(
        "3",
        &[
            "rank 0",
            "llama",
            "4 heads",
            "cannot be split across 3 ranks",
        ],
    );
    generate("0", &["--gpus 0", "1 to 64"]);
    generate("65", &["--gpus 65", "1 to 64"]);
    let bench = |shape: &str, device: &str, gpus: &str, words: &[&str]| {
        let args = [
            "bench", "--shape", shape, "--device", device, "--gpus", gpus,
        ];
        assert_one_line(&args, words);
    };
    bench(
        "mixtral-8x7b",
        "cpu",
        "3",
        &["32 heads", "cannot be split across 3 ranks"],
    );
    if cfg!(feature = "webgpu") {
        bench("demo", "webgpu", "64", &["--device webgpu", "of 64"]);
    }
}
