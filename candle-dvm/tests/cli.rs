//! The program itself: what it prints where, and what it says about bad input.

use crate::support::{golden, ModelFolder};
use serde_json::{json, Value};
use std::io::Write;
use std::process::{Command, Output, Stdio};

pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-dvm"));
    command
        .args(args)
        .env_remove("RUST_LOG")
        .env_remove("CANDLE_DVM_KEY")
        // Without it Mesa complains on standard error, whose lines are counted here.
        .env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

pub fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_completion_alone_goes_to_standard_output() {
    let prompt = &golden().prompts[0];
    for device in ["cpu", "webgpu", "auto"] {
        let output = run(&[
            "generate",
            "--prompt",
            &prompt.text,
            "--max-tokens",
            "48",
            "--device",
            device,
        ]);
        assert_eq!(stdout(&output), format!("{}\n", prompt.greedy_text));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("tok/s"), "{stderr}");
        if device != "auto" {
            assert!(stderr.contains(device), "{stderr}");
        }
    }
}

/// The names of other programs' options.
#[test]
fn short_names_of_options() {
    let folder = ModelFolder::new();
    let path = folder.path().to_str().unwrap();
    let prompt = &golden().prompts[0];
    let args = [
        "generate",
        "-m",
        path,
        "-p",
        &prompt.text,
        "--device",
        "cpu",
    ];
    let output = run(&[&args[..], &["--max-tokens", "48"]].concat());
    assert_eq!(stdout(&output), format!("{}\n", prompt.greedy_text));
    assert_one_line(
        &["chat", "-m", path, "--ctx-size", "9"],
        &["no chat template"],
    );
}

#[test]
fn the_prompt_can_be_given_without_its_option() {
    let prompt = &golden().prompts[0];
    let args = ["generate", &prompt.text, "--max-tokens", "48"];
    let output = run(&[&args[..], &["--device", "cpu"]].concat());
    assert_eq!(stdout(&output), format!("{}\n", prompt.greedy_text));

    let both = ["generate", "--prompt", "fn main", "other"];
    assert_one_line(&both, &["--prompt <TEXT>", "cannot be used with", "[TEXT]"]);
    assert_one_line(&["generate"], &["TEXT", "--prompt <TEXT>"]);
    let several = ["generate", "one", "two"];
    assert_one_line(&several, &["unexpected argument 'two'"]);
}

/// Commands whose text goes elsewhere say where.
#[test]
fn a_text_where_none_is_taken() {
    let chat = ["chat", "Who are you?"];
    assert_one_line(&chat, &["Who are you?", "--model", "standard input"]);
    let rerank = ["rerank", "--model", "FOLDER", "a question", "a document"];
    assert_one_line(&rerank, &["--query <TEXT>"]);
}

#[test]
fn json_is_one_object() {
    let prompt = &golden().prompts[7];
    let output = run(&[
        "generate",
        "--prompt",
        &prompt.text,
        "--max-tokens",
        "8",
        "--device",
        "cpu",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["token_ids"], json!(prompt.greedy_ids[..8]));
    assert_eq!(json["prompt_tokens"], prompt.ids.len());
    assert_eq!(json["stop_reason"], "length");
    assert_eq!(json["device"], "cpu");
    assert_eq!(json["dtype"], "f32");
    // Eight tokens may end in the middle of a character, which shows as U+FFFD.
    let text = json["text"].as_str().unwrap().trim_end_matches('\u{FFFD}');
    assert!(!text.is_empty() && prompt.greedy_text.starts_with(text));
    for rate in ["prompt_tokens_per_second", "generation_tokens_per_second"] {
        assert!(json["timings"][rate].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn the_prompt_can_come_from_standard_input() {
    let prompt = &golden().prompts[3];
    let mut child = program(&["generate", "--prompt", "-", "--max-tokens", "48"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", prompt.text).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{}\n", prompt.greedy_text));
}

#[test]
fn a_text_keeps_to_a_schema() {
    let schema = r#"{
        "type": "object",
        "properties": {"kind": {"enum": ["fn", "struct"]}, "ok": {"type": "boolean"}},
        "required": ["kind", "ok"]
    }"#;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("schema.json");
    std::fs::write(&file, schema).unwrap();
    let run = |schema: &str| {
        let common = ["generate", "--prompt", "fn main", "--device", "cpu"];
        program(&[&common[..], &["--schema", schema]].concat())
            .output()
            .unwrap()
    };
    let output = run(file.to_str().unwrap());
    let text: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(
        text["ok"].is_boolean() && text["kind"].is_string(),
        "{text}"
    );
    assert_eq!(stdout(&run(schema)), stdout(&output));
    for (schema, told) in [
        (r#"{"type": "colour"}"#, "--schema: "),
        ("{", "--schema: "),
        ("missing.json", "missing.json"),
    ] {
        let output = run(schema);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    }
}

/// `candle-dvm … | head -1`, with a head that leaves before the first byte.
#[test]
fn a_closed_pipe_ends_quietly() {
    for args in [
        &["generate", "--prompt", "fn main", "--device", "cpu"][..],
        &["devices"],
    ] {
        let mut child = program(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !stderr.contains("error") && !stderr.contains("panic"),
            "{stderr}"
        );
    }
}

#[test]
fn devices_lists_every_backend() {
    let text = stdout(&run(&["devices"]));
    let cuda = if candle_core::utils::cuda_is_available() {
        "cuda     present"
    } else {
        "cuda     absent"
    };
    for part in [
        cuda,
        "  NVRTC: ",
        "metal    absent",
        "webgpu   present",
        "cpu      present",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let json: Value = serde_json::from_str(&stdout(&run(&["devices", "--json"]))).unwrap();
    let names: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|b| &b["name"])
        .collect();
    assert_eq!(names, ["cuda", "metal", "webgpu", "cpu"]);
}

#[test]
fn bench_prints_a_table_or_json() {
    let small = [
        "bench",
        "--shape",
        "demo",
        "--dtype",
        "f32",
        "--prompt",
        "4",
        "--generate",
        "2",
        "--repeat",
        "1",
        "--device",
        "cpu",
    ];
    assert!(stdout(&run(&small)).contains("generate 2"));
    let json = [&small[..], &["--json"]].concat();
    let json: Value = serde_json::from_str(&stdout(&run(&json))).unwrap();
    assert_eq!(json["shape"], "demo");
    assert!(json["generation"]["median"].as_f64().unwrap() > 0.0);
}

/// Exit code 1, nothing on standard output, and one line on standard error with each of `parts` in it.
#[track_caller]
pub fn assert_one_line(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: no {part:?} in {stderr}");
    }
}

#[test]
fn bad_flags() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["--device", "tpu"], &["--device", "tpu", "webgpu"]),
        (&["--device", "cuda:127"], &["--device cuda"]),
        (&["--device", "cuda:x"], &["--device", "cuda:x", "webgpu"]),
        (&["--device", "metal"], &["--device metal"]),
        (&["--dtype", "f8"], &["--dtype", "f8", "bf16"]),
        (&["--max-tokens", "0"], &["--max-tokens 0"]),
        (&["--max-tokens", "-3"], &["--max-tokens", "-3"]),
        (&["--max-tokens", "many"], &["--max-tokens", "many"]),
        (&["--temperature", "-0.5"], &["--temperature -0.5"]),
        (&["--temperature", "NaN"], &["--temperature NaN"]),
        (&["--temperature", "inf"], &["--temperature inf"]),
        (&["--top-k", "-1"], &["--top-k", "-1"]),
        (&["--top-p", "0"], &["--top-p 0"]),
        (&["--top-p", "1.5"], &["--top-p 1.5"]),
        (&["--min-p", "1.5"], &["--min-p 1.5"]),
        (&["--repeat-penalty", "0"], &["--repeat-penalty 0"]),
        (&["--stop", ""], &["--stop", "at least one character"]),
        (&["--seed", "x"], &["--seed", "x"]),
        (&["--unknown"], &["--unknown"]),
        (&["--devic", "cpu"], &["--devic", "similar", "--device"]),
    ];
    for (flags, parts) in cases {
        let args = [&["generate", "--prompt", "fn main"], *flags].concat();
        assert_one_line(&args, parts);
    }
    assert_one_line(&["generate"], &["--prompt"]);
    assert_one_line(&["bench", "--shape", "gpt"], &["--shape", "gpt"]);
    assert_one_line(
        &["bench", "--dtype", "q4_9"],
        &["--dtype", "q4_9", "f16", "q4_0", "q4_k", "q6_k", "q8_0"],
    );
    assert_one_line(&["bench", "--repeat", "0"], &["--repeat 0"]);
    assert_one_line(&["bench", "--bandwidth", "-1"], &["--bandwidth -1"]);
}

#[test]
fn bad_prompts() {
    for device in ["auto", "cpu", "webgpu"] {
        let args = ["generate", "--prompt", "", "--device", device];
        assert_one_line(&args, &["--prompt", "no tokens"]);
    }
    let long = "the ".repeat(1500);
    let parts = [
        "--prompt: the prompt has",
        "tokens, but the model's limit is 1024",
    ];
    assert_one_line(&["generate", "--prompt", &long], &parts);
}

/// A way to break a model folder.
type Break = fn(&ModelFolder);

#[test]
fn bad_models() {
    let cases: &[(Break, &[&str])] = &[
        (|folder| folder.remove("config.json"), &["config.json"]),
        (
            |folder| folder.write("config.json", "{"),
            &["config.json", "EOF"],
        ),
        (
            |folder| folder.write("config.json", b"{\"hidden_size\": \"\xff\"}"),
            &["config.json"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config.as_object_mut().unwrap().remove("hidden_size");
                })
            },
            &["config.json", "hidden_size", "missing"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["num_hidden_layers"] = json!("six");
                })
            },
            &["config.json", "num_hidden_layers", "six"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["text_config"] = json!({ "linear_key_head_dim": 1u64 << 60 });
                })
            },
            &["config.json", "linear_key_head_dim"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["num_attention_heads"] = json!(0);
                })
            },
            &["config.json", "num_attention_heads", "0"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["num_key_value_heads"] = json!(3);
                })
            },
            &["config.json", "num_key_value_heads", "3"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["max_position_embeddings"] = json!(1u64 << 60);
                })
            },
            &["config.json", "max_position_embeddings"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["num_hidden_layers"] = json!(2_000_000_000);
                })
            },
            &["config.json", "2000000000", "4096"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["num_hidden_layers"] = json!(7);
                })
            },
            &[
                "config.json",
                "model.layers.6.input_layernorm.weight",
                "missing",
            ],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["rope_parameters"] = json!({ "rope_type": "spiral" });
                })
            },
            &["config.json", "rope_type", "spiral"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["rope_parameters"] = json!({ "rope_type": "yarn" });
                })
            },
            &["config.json", "factor", "yarn"],
        ),
        (
            |folder| {
                folder.edit("config.json", |config| {
                    config["model_type"] = json!("gptj");
                })
            },
            &["config.json", "model_type", "gptj"],
        ),
        (
            |folder| {
                folder.edit("generation_config.json", |config| {
                    config["eos_token_id"] = json!("end");
                })
            },
            &["generation_config.json", "eos_token_id", "end"],
        ),
        (
            |folder| folder.remove("tokenizer.json"),
            &["tokenizer.json"],
        ),
        (
            |folder| folder.write("tokenizer.json", "{\"version\": 1}"),
            &["tokenizer.json"],
        ),
        (
            |folder| {
                let mut bytes = folder.read("tokenizer.json");
                let name = b"\"BPE\"";
                let at = bytes.windows(5).position(|part| part == name).unwrap();
                bytes[at + 2] = 0xff;
                folder.write("tokenizer.json", bytes);
            },
            &["tokenizer.json", "`model.type`", "invalid UTF-8"],
        ),
        (
            |folder| folder.remove("model.safetensors"),
            &["model.safetensors", "model.safetensors.index.json"],
        ),
        (
            |folder| folder.write("model.safetensors", ""),
            &["model.safetensors"],
        ),
        (
            |folder| {
                let bytes = folder.read("model.safetensors");
                folder.write("model.safetensors", &bytes[..bytes.len() / 2]);
            },
            &["model.safetensors"],
        ),
        (
            |folder| {
                folder.rewrite_weights(|name, shape| {
                    let shape = match name {
                        "model.norm.weight" => vec![16, 16],
                        _ => shape,
                    };
                    Some(("model.safetensors", shape))
                })
            },
            &[
                "model.safetensors",
                "model.norm.weight",
                "[16, 16]",
                "[256]",
            ],
        ),
        (
            |folder| {
                folder.rewrite_weights(|name, shape| {
                    let kept = name != "model.layers.3.mlp.up_proj.weight";
                    kept.then_some(("model.safetensors", shape))
                })
            },
            &[
                "model.safetensors",
                "model.layers.3.mlp.up_proj.weight",
                "missing",
            ],
        ),
        (
            |folder| {
                folder.shard();
                folder.remove("part-2.safetensors");
            },
            &["model.safetensors.index.json", "part-2.safetensors"],
        ),
        (
            |folder| {
                folder.shard();
                folder.edit("model.safetensors.index.json", |index| {
                    index["weight_map"]["model.norm.weight"] = json!("part-2.safetensors");
                });
            },
            &[
                "model.safetensors.index.json",
                "model.norm.weight",
                "part-2.safetensors",
            ],
        ),
        (
            |folder| {
                folder.shard();
                folder.edit("model.safetensors.index.json", |index| {
                    index["weight_map"]["model.norm.weight"] = json!("../part-1.safetensors");
                });
            },
            &[
                "model.safetensors.index.json",
                "weight_map.model.norm.weight",
            ],
        ),
        (
            |folder| {
                folder.shard();
                folder.write("model.safetensors.index.json", "{}");
            },
            &["model.safetensors.index.json", "weight_map"],
        ),
    ];
    for (change, parts) in cases {
        let folder = ModelFolder::new();
        change(&folder);
        let path = folder.path().to_str().unwrap();
        assert_one_line(&["generate", "--prompt", "fn main", "--model", path], parts);
    }
    assert_one_line(
        &["generate", "--prompt", "x", "--model", "/no/such/folder"],
        &["/no/such/folder"],
    );
}

/// A candle error carries the calls that led to it, one in each context.
#[test]
fn errors_do_not_contain_a_backtrace() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("passwd");
    std::fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n".repeat(40)).unwrap();
    let path = file.to_str().unwrap();
    let output = program(&["generate", "--prompt", "x", "--model", path])
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains(path) && stderr.len() < path.len() + 200,
        "{stderr}"
    );
    assert!(!stderr.contains("candle_core::"), "{stderr}");
}

#[test]
fn a_stop_sequence_ends_the_text() {
    let prompt = &golden().prompts[0];
    let words: Vec<_> = prompt.greedy_text.split_whitespace().collect();
    let stop = words[words.len() / 2];
    let (before, _) = prompt.greedy_text.split_once(stop).unwrap();
    let args = ["generate", "--prompt", &prompt.text, "--max-tokens", "48"];
    let output = run(&[&args[..], &["--device", "cpu", "--stop", stop]].concat());
    assert_eq!(stdout(&output), format!("{before}\n"));
}
