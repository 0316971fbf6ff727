//! Draft models: what they propose must not change a text.

use crate::lookup::complete;
use crate::support::{embedded, golden, load, on_each_device, ModelFolder};
use candle_core::quantized::GgmlDType;
use candle_engine::batch::{BatchEngine, BatchSettings, Heard};
use candle_engine::{
    CandleBackend, Chat, ChatTemplate, CompletionRequest, DeviceKind, Guesses, InferenceBackend,
    ModelSource,
};
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

on_each_device!(texts_are_the_same);

const PROMPT: &str = "let a = f(1);\nlet b = g(2);\nlet c =";

/// The embedded model with one like it that proposes: its weights are rounded to four bits.
fn drafted(kind: DeviceKind) -> &'static Arc<CandleBackend> {
    static CPU: OnceLock<Arc<CandleBackend>> = OnceLock::new();
    static WEBGPU: OnceLock<Arc<CandleBackend>> = OnceLock::new();
    let slot = match kind {
        DeviceKind::Cpu => &CPU,
        DeviceKind::WebGpu => &WEBGPU,
        other => panic!("no tests on {other:?}"),
    };
    slot.get_or_init(|| {
        let folder = ModelFolder::new();
        folder.round_weights(GgmlDType::Q4_0);
        let draft = load(&ModelSource::Folder(folder.path().into()), kind, None);
        let model = load(&ModelSource::Embedded, kind, None);
        Arc::new(model.with_draft(draft, 5).unwrap())
    })
}

/// Completes with and without a draft model, and gives what became of its tokens.
fn both(kind: DeviceKind, request: &CompletionRequest) -> Guesses {
    let alone = complete(embedded(kind), request);
    assert_eq!(alone.guesses, None);
    let found = complete(drafted(kind), request);
    assert_eq!(found.token_ids, alone.token_ids, "{request:?}");
    assert_eq!(found.text, alone.text);
    assert_eq!(found.stop_reason, alone.stop_reason);
    let guesses = found.guesses.unwrap();
    assert!(guesses.right <= guesses.made);
    guesses
}

fn request(prompt: &str, max_tokens: usize) -> CompletionRequest {
    CompletionRequest {
        prompt: prompt.to_string(),
        max_tokens,
        ..Default::default()
    }
}

fn texts_are_the_same(kind: DeviceKind) {
    // A step of a software adapter takes a tenth of a second.
    let count = if kind == DeviceKind::Cpu { 3 } else { 1 };
    let mut right = 0;
    for prompt in &golden().prompts[..count] {
        right += both(kind, &request(&prompt.text, 12)).right;
    }
    assert!(right > 0);
}

#[test]
fn ends_are_the_same() {
    let kind = DeviceKind::Cpu;
    for max_tokens in [1, 2, 3] {
        both(kind, &request(PROMPT, max_tokens));
    }
    let none = CompletionRequest {
        draft_tokens: Some(0),
        ..request(PROMPT, 3)
    };
    assert_eq!(complete(drafted(kind), &none).guesses, None);
    let lookup_too = CompletionRequest {
        prompt_lookup: 4,
        draft_tokens: Some(3),
        ..request(PROMPT, 16)
    };
    let found = complete(drafted(kind), &lookup_too);
    let alone = complete(embedded(kind), &request(PROMPT, 16));
    assert_eq!(found.token_ids, alone.token_ids);
}

fn drawn(seed: u64) -> CompletionRequest {
    CompletionRequest {
        temperature: 0.8,
        seed,
        ..request(PROMPT, 16)
    }
}

#[test]
fn draws_are_the_same() {
    let kind = DeviceKind::Cpu;
    // Both draw with the same random numbers: independent draws of two flat distributions would hardly ever be equal.
    let plain = both(kind, &drawn(1));
    assert!(plain.right > 0, "{plain:?}");
    both(
        kind,
        &CompletionRequest {
            top_k: Some(20),
            top_p: Some(0.9),
            min_p: Some(0.02),
            ..drawn(2)
        },
    );
    // The host chooses.
    both(
        kind,
        &CompletionRequest {
            repeat_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.1,
            logit_bias: vec![(40, 3.), (41, -3.)],
            ..drawn(3)
        },
    );
}

/// A draft draws with the random numbers of its position, and its cache is the text's after each round.
#[test]
fn the_model_itself_is_always_right() {
    let kind = DeviceKind::Cpu;
    let model = load(&ModelSource::Embedded, kind, None);
    let model = model.with_draft(load(&ModelSource::Embedded, kind, None), 3);
    let model = model.unwrap();
    for temperature in [0., 1.] {
        let request = CompletionRequest {
            temperature,
            ..request(PROMPT, 16)
        };
        let found = complete(&model, &request);
        assert_eq!(
            found.token_ids,
            complete(embedded(kind), &request).token_ids
        );
        let guesses = found.guesses.unwrap();
        assert!(
            guesses.made > 0 && guesses.right == guesses.made,
            "{temperature}: {guesses:?}"
        );
    }
}

#[test]
fn conversations_go_on() {
    let kind = DeviceKind::Cpu;
    let template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}";
    let template = ChatTemplate::new("test", template.to_string());
    let say = |backend: &CandleBackend| {
        let mut chat = Chat::new(backend, &template, None);
        let mut answers = Vec::new();
        for text in [PROMPT, "let a = f(1);"] {
            let answer = chat.say(text, &request("", 12), &mut |_| ControlFlow::Continue(()));
            answers.push(answer.unwrap().text);
        }
        (answers, chat.reused_tokens())
    };
    let (expected, reused) = say(embedded(kind));
    let (found, reused_too) = say(drafted(kind));
    assert_eq!(found, expected);
    assert!(
        reused > 12 && reused_too.abs_diff(reused) <= 1,
        "{reused}, {reused_too}"
    );
}

/// A text that is alone has proposals, with probabilities too; those that run together have none, and one that is alone again has.
#[test]
fn texts_of_a_batch_are_the_same() {
    let kind = DeviceKind::Cpu;
    let settings = BatchSettings {
        slots: 2,
        ..BatchSettings::default()
    };
    let engine = BatchEngine::new(drafted(kind).clone(), settings).unwrap();
    let submit = |request: &CompletionRequest, logprobs| {
        let (sender, receiver) = channel();
        let mut ids = Vec::new();
        let listener = move |heard: Heard<'_>| {
            match heard {
                Heard::Piece(_) => {}
                Heard::Token(likely) => ids.push(likely.id),
                Heard::Done(result) => {
                    let _ = sender.send((std::mem::take(&mut ids), result));
                }
            }
            ControlFlow::Continue(())
        };
        let tokens = engine.backend().prompt_tokens(&request.prompt).unwrap();
        let begun = engine.submit(tokens, request.clone(), logprobs, Box::new(listener));
        begun.unwrap();
        receiver
    };
    let drawn = CompletionRequest {
        temperature: 0.8,
        ..request("fn main() {", 16)
    };
    let requests = [request(PROMPT, 16), drawn];
    let expected = [0, 1].map(|at: usize| complete(embedded(kind), &requests[at]));
    for together in [false, true] {
        let mut begun = Vec::new();
        for (request, expected) in requests.iter().zip(&expected) {
            let receiver = submit(request, (!together).then_some(0));
            if together {
                begun.push((receiver, expected));
            } else {
                let (ids, result) = receiver.recv().unwrap();
                let found = result.unwrap();
                assert_eq!(found.token_ids, expected.token_ids);
                assert_eq!(found.token_ids, ids, "each token is heard once");
                assert!(found.guesses.unwrap().right > 0, "{found:?}");
            }
        }
        for (receiver, expected) in begun {
            let found = receiver.recv().unwrap().1.unwrap();
            assert_eq!(found.token_ids, expected.token_ids);
        }
    }
}

fn refused(model: candle_engine::Result<CandleBackend>) -> String {
    model.err().expect("it is refused").to_string()
}

#[test]
fn pairs_that_do_not_fit_are_refused() {
    let cpu = DeviceKind::Cpu;
    let model = load(&ModelSource::Embedded, cpu, None);
    let folder = ModelFolder::new();
    folder.edit("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let of = |id: u32| vocab.iter().find(|it| *it.1 == id).unwrap().0.clone();
        let (a, b) = (of(300), of(301));
        vocab.insert(a, 301.into());
        vocab.insert(b, 300.into());
    });
    let other = load(&ModelSource::Folder(folder.path().into()), cpu, None);
    let problem = refused(model.with_draft(other, 4));
    for part in ["has 4096 tokens", "2 ids", "300", "same tokenizer"] {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let special = ModelFolder::new();
    special.edit("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.remove("<|end_of_text|>");
        vocab.insert("<|end|>".into(), 1.into());
        json["added_tokens"][1]["content"] = "<|end|>".into();
    });
    let source = ModelSource::Folder(special.path().into());
    let special = candle_engine::ModelFiles::open(&source).unwrap();
    let embedded = candle_engine::ModelFiles::open(&ModelSource::Embedded).unwrap();
    let problem = embedded.check_draft(&special).unwrap_err().to_string();
    assert!(problem.contains("<|end|>"), "{problem}");
    for tokens in [0, 65] {
        let problem = CandleBackend::check_draft_tokens(tokens).unwrap_err();
        assert!(problem.to_string().contains("draft_tokens"), "{problem}");
    }
    let asks = CompletionRequest {
        draft_tokens: Some(2),
        ..request(PROMPT, 4)
    };
    let problem = self::embedded(cpu).complete(&asks).unwrap_err().to_string();
    assert!(problem.contains("draft_tokens 2"), "{problem}");
}
