//! Models whose files are read in parts, as browsers read them, against the same files on disk.

use crate::gguf_model::in_format;
use crate::support::{choice, golden, model_dir, on_each_device, registry};
use candle_core::quantized::GgmlDType;
use candle_core::DType;
use candle_engine::model::Bytes;
use candle_engine::{
    CandleBackend, Chat, ChatTemplate, CompletionRequest, DeviceKind, Error, Message, ModelParts,
    PartFile, PartSource, Result, Role, StopReason, Wait,
};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

on_each_device!(safetensors, gguf);

/// The reads from a file: offset, and number of bytes.
type Reads = Rc<RefCell<Vec<(u64, u64)>>>;

/// A file in memory that notes what is read of it. Its answers come late, as a server's do.
struct File {
    name: String,
    bytes: Vec<u8>,
    reads: Reads,
}

impl PartFile for File {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, start: u64, len: u64) -> Bytes<'_> {
        Box::pin(async move {
            self.reads.borrow_mut().push((start, len));
            let mut waited = false;
            std::future::poll_fn(|context| {
                if std::mem::replace(&mut waited, true) {
                    std::task::Poll::Ready(())
                } else {
                    context.waker().wake_by_ref();
                    std::task::Poll::Pending
                }
            })
            .await;
            Ok(self.bytes[start as usize..(start + len) as usize].to_vec())
        })
    }
}

fn file(name: &str, bytes: Vec<u8>) -> (Box<dyn PartFile>, Reads) {
    let reads = Rc::default();
    let file = File {
        name: name.to_string(),
        bytes,
        reads: Rc::clone(&reads),
    };
    (Box::new(file), reads)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(model_dir().join(name)).unwrap()
}

/// The embedded model's folder, with other weights.
fn folder(weights: Vec<u8>) -> (PartSource, Reads) {
    let (weights, reads) = file("model.safetensors", weights);
    let source = PartSource::Folder {
        config: read("config.json"),
        generation_config: Some(read("generation_config.json")),
        tokenizer: read("tokenizer.json"),
        tokenizer_config: None,
        chat_template: None,
        weights: vec![weights],
    };
    (source, reads)
}

fn place(source: PartSource, kind: DeviceKind) -> CandleBackend {
    pollster::block_on(async {
        let parts = ModelParts::open(source).await.unwrap();
        let total = parts.total_bytes();
        let device = registry().select(choice(kind)).unwrap().open().unwrap();
        let mut arrived = 0;
        let mut progress = |bytes| arrived += bytes;
        let loading =
            CandleBackend::load_parts(parts, kind.name(), device, DType::F32, &mut progress);
        let backend = loading.await.unwrap();
        assert_eq!(arrived, total);
        backend
    })
}

/// The texts of the reference, by steps that wait without blocking.
fn check_texts(backend: &CandleBackend) {
    for prompt in &golden().prompts[..3] {
        let request = CompletionRequest {
            prompt: prompt.text.clone(),
            max_tokens: prompt.greedy_ids.len(),
            ..Default::default()
        };
        let completion = pollster::block_on(async {
            let mut generation = backend.generation(&request).unwrap();
            let mut pieces = String::new();
            while let Some(piece) = generation.step(Wait::Async).await.unwrap() {
                pieces.push_str(&piece);
            }
            let completion = generation.finish();
            assert_eq!(completion.text, pieces);
            completion
        });
        assert_eq!(completion.text, prompt.greedy_text);
        assert_eq!(completion.stop_reason, StopReason::Length);
    }
}

fn safetensors(kind: DeviceKind) {
    let bytes = read("model.safetensors");
    let size = bytes.len() as u64;
    let (source, reads) = folder(bytes);
    let backend = place(source, kind);
    check_texts(&backend);
    // Each byte of the weights once, after the header.
    let reads = reads.borrow();
    let (header, weights) = reads.split_at(2);
    let mut next = header[1].1;
    let mut weights = weights.to_vec();
    weights.sort_unstable();
    for (start, len) in weights {
        assert_eq!(start, next);
        next += len;
    }
    assert_eq!(next, size);
}

fn gguf(kind: DeviceKind) {
    let bytes = std::fs::read(in_format(GgmlDType::F32)).unwrap();
    let (file, reads) = file("model.gguf", bytes);
    let backend = place(PartSource::Gguf(file), kind);
    check_texts(&backend);
    assert!(reads.borrow().len() > 10);
}

/// Draws, the penalty and a cancelled completion, with both ways of waiting.
#[test]
fn both_ways_to_wait_give_the_same_text() {
    for kind in [DeviceKind::Cpu, DeviceKind::WebGpu] {
        let backend = crate::support::embedded(kind);
        let request = CompletionRequest {
            prompt: "fn main".to_string(),
            max_tokens: 12,
            temperature: 0.8,
            top_p: Some(0.9),
            repeat_penalty: 1.2,
            ..Default::default()
        };
        let text = |wait| {
            pollster::block_on(async {
                let mut generation = backend.generation(&request).unwrap();
                while generation.step(wait).await.unwrap().is_some() {}
                generation.finish()
            })
        };
        let (blocking, waiting) = (text(Wait::Blocking), text(Wait::Async));
        assert_eq!(blocking.token_ids.len(), 12);
        assert_eq!(blocking.token_ids, waiting.token_ids);

        let mut generation = backend.generation(&request).unwrap();
        pollster::block_on(generation.step(Wait::Async)).unwrap();
        generation.cancel();
        assert_eq!(
            pollster::block_on(generation.step(Wait::Async)).unwrap(),
            None
        );
        let completion = generation.finish();
        assert_eq!(completion.stop_reason, StopReason::Cancelled);
        assert_eq!(completion.token_ids.len(), 1);
    }
}

/// In a browser several steps are queued before the first token is known. Those after the end of an answer have no effect: the next turn
/// reads the same number of tokens as with one queued step, and answers the same.
#[test]
fn steps_beyond_the_end_are_forgotten() {
    for kind in [DeviceKind::Cpu, DeviceKind::WebGpu] {
        let backend = crate::support::embedded(kind);
        let template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}";
        let template = ChatTemplate::new("test", template.to_string());
        let talk = |wait| {
            let request = CompletionRequest {
                max_tokens: 24,
                ..Default::default()
            };
            let mut chat = Chat::new(backend, &template, None);
            let mut answers = Vec::new();
            for text in ["fn main() {", "let a = f(1);"] {
                // The first answer is cancelled in the middle.
                let mut left = if answers.is_empty() { 6 } else { 100 };
                let mut hear = |_: &str| {
                    left -= 1;
                    match left {
                        0 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                };
                let answer = chat.say_steps(text, &request, wait, &mut hear);
                answers.push(pollster::block_on(answer).unwrap().text);
            }
            (answers, chat.reused_tokens())
        };
        let (expected, reused) = talk(Wait::Blocking);
        let (found, reused_too) = talk(Wait::Async);
        assert_eq!(found, expected, "{kind:?}");
        assert!(
            reused > 4 && reused.abs_diff(reused_too) <= 1,
            "{kind:?}: {reused}, {reused_too}"
        );
    }
}

/// The template and the settings of sampling come with the small files of a folder.
#[test]
fn a_folder_has_a_template_and_sampling() {
    let open = |config: Option<&str>, jinja: Option<&str>| {
        let (source, _) = folder(read("model.safetensors"));
        let PartSource::Folder {
            config: model,
            tokenizer,
            weights,
            ..
        } = source
        else {
            unreachable!("a folder");
        };
        let bytes = |text: &str| text.as_bytes().to_vec();
        let generation = r#"{"do_sample": true, "temperature": 0.5, "eos_token_id": 2}"#;
        let source = PartSource::Folder {
            config: model,
            generation_config: Some(bytes(generation)),
            tokenizer,
            tokenizer_config: config.map(bytes),
            chat_template: jinja.map(bytes),
            weights,
        };
        pollster::block_on(ModelParts::open(source)).unwrap()
    };
    let config = r#"{"chat_template": "{{ messages[0].content }}?"}"#;
    let rendered = |parts: &ModelParts| {
        let template = parts.chat_template().unwrap();
        template.render(&[Message::new(Role::User, "Who")]).unwrap()
    };
    assert_eq!(rendered(&open(Some(config), None)), "Who?");
    let parts = open(Some(config), Some("{{ messages[0].content }}!"));
    assert_eq!(rendered(&parts), "Who!");
    assert_eq!(parts.sampling().temperature, Some(0.5));
    assert!(open(None, None).chat_template().is_none());
}

fn refused(source: PartSource) -> String {
    let opened: Result<ModelParts> = pollster::block_on(ModelParts::open(source));
    let err = opened.err().expect("a damaged file was taken");
    assert!(matches!(
        err,
        Error::File { .. } | Error::Field { .. } | Error::Tensor { .. }
    ));
    err.one_line()
}

#[test]
fn damaged_files_are_refused_by_their_headers() {
    let whole = read("model.safetensors");
    for len in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        let line = refused(folder(whole[..len].to_vec()).0);
        assert!(line.contains("model.safetensors"), "{line}");
    }
    let page = b"<!doctype html><title>404</title>".to_vec();
    assert!(refused(folder(page.clone()).0).contains("model.safetensors"));

    let whole = std::fs::read(in_format(GgmlDType::F32)).unwrap();
    for bytes in [
        &whole[..0],
        &whole[..3],
        &whole[..1000],
        &whole[..whole.len() - 1],
        &page,
    ] {
        let line = refused(PartSource::Gguf(file("model.gguf", bytes.to_vec()).0));
        assert!(line.contains("model.gguf"), "{line}");
    }
}
