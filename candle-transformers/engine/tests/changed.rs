//! Texts with penalties, biases, constraints and limited thoughts: a device draws their tokens from logits that it changes itself. They are what
//! they are where the host changes and draws, which it does for a text with logprobs.

use crate::support::{choice, embedded, on_each_device, registry, runs_fewer};
use candle_engine::batch::{BatchEngine, BatchSettings, Heard, Order, Owner};
use candle_engine::generation::Mask;
use candle_engine::thinking::Thinking;
use candle_engine::{
    ChatTemplate, Completion, CompletionRequest, DeviceKind, InferenceBackend, ModelFiles,
    ModelSource, Result,
};
use std::ops::ControlFlow;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

on_each_device!(in_company, alone);

/// Tokens of one parity and then of the other.
struct ByTurns(u32);

impl Mask for ByTurns {
    fn allowed(&mut self) -> Result<Vec<u32>> {
        Ok(vec![0x5555_5555 << self.0; 1024])
    }

    fn push(&mut self, token: u32) -> Result<()> {
        assert_eq!(token % 2, self.0, "a token that is not allowed");
        self.0 = 1 - self.0;
        Ok(())
    }
}

const TOKENS: usize = 14;

fn requests() -> Vec<CompletionRequest> {
    let request = |prompt: &str| CompletionRequest {
        prompt: prompt.to_string(),
        max_tokens: TOKENS,
        ..CompletionRequest::default()
    };
    let template = "{% if enable_thinking %}<think>{{ m }}</think>{% endif %}";
    let template = ChatTemplate::new("a template", template.to_string());
    vec![
        CompletionRequest {
            repeat_penalty: 1.3,
            ..request("let x = 1;")
        },
        CompletionRequest {
            presence_penalty: 0.7,
            frequency_penalty: 0.4,
            temperature: 0.8,
            top_k: Some(40),
            ..request("fn main() {")
        },
        CompletionRequest {
            logit_bias: vec![(300, 4.), (17, -100.), (5, 2.)],
            repeat_penalty: 0.9,
            temperature: 1.2,
            seed: 3,
            ..request("impl Iterator for")
        },
        CompletionRequest {
            thinking: Thinking::of(&template, "x <think>").map(|it| it.limited(Some(3))),
            ..request("x <think>")
        },
        // And one that the device draws by its logits alone.
        CompletionRequest {
            temperature: 0.9,
            ..request("/// A list of")
        },
    ]
}

fn begin(
    engine: &BatchEngine,
    request: &CompletionRequest,
    logprobs: Option<usize>,
    is_masked: bool,
) -> Receiver<Completion> {
    let (sender, receiver) = channel();
    let listener = move |heard: Heard<'_>| {
        if let Heard::Done(done) = heard {
            sender.send(done.unwrap()).unwrap();
        }
        ControlFlow::Continue(())
    };
    let order = Order {
        tokens: engine.backend().prompt_tokens(&request.prompt).unwrap(),
        request: request.clone(),
        logprobs,
        owner: Owner::default(),
        mask: is_masked.then(|| Box::new(ByTurns(0)) as Box<dyn Mask>),
    };
    engine.begin(order, Box::new(listener)).unwrap();
    receiver
}

fn in_company(kind: DeviceKind) {
    let entry = registry().select(choice(kind)).unwrap();
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let backend = entry.load(files, None, &|_| ()).unwrap();
    let settings = BatchSettings {
        slots: 6,
        ..BatchSettings::default()
    };
    let engine = BatchEngine::new(Arc::new(backend), settings).unwrap();
    let mut requests = requests();
    // The last one is masked.
    requests.push(CompletionRequest {
        presence_penalty: 0.5,
        ..requests[0].clone()
    });
    let last = requests.len() - 1;
    let texts = |logprobs| {
        let all: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(i, request)| begin(&engine, request, logprobs, i == last))
            .collect();
        let ended = |it: &Receiver<Completion>| it.recv_timeout(Duration::from_secs(120)).unwrap();
        all.iter().map(ended).collect::<Vec<_>>()
    };
    let (on_device, on_host) = (texts(None), texts(Some(0)));
    for ((found, wanted), request) in on_device.iter().zip(&on_host).zip(&requests) {
        assert_eq!(found.token_ids, wanted.token_ids, "{request:?}");
    }
    assert!(on_device[3].thought_tokens >= 3);
    let masked = &on_device[last].token_ids;
    assert!(masked.len() == TOKENS && masked.iter().zip(0..).all(|(id, i)| id % 2 == i % 2));
}

/// The same texts, alone on their device, are those of the CPU.
fn alone(kind: DeviceKind) {
    let mut requests = requests();
    if runs_fewer(embedded(kind).device()) {
        // A penalty, and drawn with a bias.
        requests.swap(1, 2);
        requests.truncate(2);
    }
    for request in requests {
        let found = embedded(kind).complete(&request).unwrap();
        let wanted = embedded(DeviceKind::Cpu).complete(&request).unwrap();
        assert_eq!(found.token_ids, wanted.token_ids, "{request:?}");
        assert_eq!(found.token_ids.len(), TOKENS);
    }
}
