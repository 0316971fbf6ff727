//! Images in prompts, alone, in a batch and in a conversation; candle-transformers' tests hold the numbers against Transformers.

use crate::seeing::{picture, png, Seeing};
use crate::support::{load, on_each_device, runs_fewer};
use candle_core::{DType, Device, Tensor};
use candle_engine::batch::{BatchEngine, BatchSettings, Heard, Order, Owner};
use candle_engine::pictures::{read_picture, Picture, MAX_PICTURES, MAX_PIXELS};
use candle_engine::{
    Chat, CompletionRequest, DeviceKind, Error, InferenceBackend, ModelFiles, ModelSource, Role,
};
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::Decoder;
use candle_transformers::pictures::PictureSpec;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::sync::Arc;

const MODELS: [&str; 7] = [
    "gemma3",
    "smolvlm",
    "idefics3-whole",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "mistral3",
];

fn source(folder: &Seeing) -> ModelSource {
    ModelSource::Folder(folder.path().to_path_buf())
}

fn request(prompt: &str, pictures: &[&Arc<Picture>]) -> CompletionRequest {
    CompletionRequest {
        prompt: prompt.to_string(),
        pictures: pictures.iter().map(|it| (*it).clone()).collect(),
        max_tokens: 8,
        // What is not shown is not read again as it was made.
        logit_bias: [7, 9, 29, 30, 31].map(|id| (id, -1e4)).to_vec(),
        ..Default::default()
    }
}

fn arc(seed: &str, width: usize, height: usize) -> Arc<Picture> {
    Arc::new(picture(seed, width, height))
}

/// The greedy tokens after `tokens` with these images, by the library alone.
fn expected(folder: &Seeing, tokens: &[u32], pictures: &[&Arc<Picture>]) -> Vec<u32> {
    let read = |name: &str| std::fs::read_to_string(folder.file(name)).unwrap();
    let config = read("config.json");
    let spec = PictureSpec::read(&config, &read("preprocessor_config.json")).unwrap();
    let files = [folder.file("model.safetensors")];
    let device = Device::Cpu;
    let vb = unsafe { VarBuilder::from_mmaped_safetensors(&files, DType::F32, &device) }.unwrap();
    let encoder = spec.load(vb.clone()).unwrap();
    let vectors = pictures.iter().map(|picture| {
        let pixels = spec.pixels(picture).unwrap();
        encoder.forward(&pixels, (&device, DType::F32)).unwrap()
    });
    let vectors = Tensor::cat(&vectors.collect::<Vec<_>>(), 0).unwrap();
    let decoder = Decoder::from_vb(config_spec(&config).unwrap(), vb).unwrap();
    let mut state = decoder.new_state();
    let sizes = pictures.iter().map(|it| [it.width(), it.height()]);
    let positions = spec.positions(tokens, &sizes.collect::<Vec<_>>()).unwrap();
    let (mut used, mut last) = (0, None);
    for run in spec.runs(tokens) {
        let part = vectors.narrow(0, used, run.vectors).unwrap();
        used += run.vectors;
        let input = spec
            .input(&decoder, tokens, &run, &part, positions.as_deref())
            .unwrap();
        let hidden = decoder.forward_seen(&input, run.range.start, &mut state);
        last = Some(hidden.unwrap().last_logits().unwrap());
    }
    let greedy = |logits: Tensor| {
        let mut logits = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for id in [7, 9, 29, 30, 31] {
            logits[id] = f32::NEG_INFINITY;
        }
        let most = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        most.unwrap() as u32
    };
    let mut made = vec![greedy(last.unwrap())];
    while made.len() < 8 {
        let ids = Tensor::new(&made[made.len() - 1..], &device).unwrap();
        let at = tokens.len() + made.len() - 1;
        let hidden = decoder.forward(&ids.unsqueeze(0).unwrap(), at, &mut state);
        made.push(greedy(hidden.unwrap().last_logits().unwrap()));
    }
    made
}

fn alone_and_in_a_batch(kind: DeviceKind) {
    for name in MODELS {
        let folder = Seeing::new(name);
        let backend = Arc::new(load(&source(&folder), kind, Some(DType::F32)));
        // The others' layers are those of one of these.
        let is_kept = ["gemma3", "qwen2_5_vl", "qwen3_vl"].contains(&name);
        if runs_fewer(backend.device()) && !is_kept {
            continue;
        }
        let [a, b, c] = [("a", 20, 13), ("b", 8, 30), ("c", 20, 13)].map(|(s, w, h)| arc(s, w, h));
        let place = folder.placeholder;
        let prompts = [
            request("w2 w5", &[&a]),
            request(&format!("w2 {place} w5 w6 {place} w3 w8 w2"), &[&a, &b]),
            // The tokens of the first, and another image.
            request("w2 w5", &[&c]),
        ];
        let tokens = prompts.each_ref().map(|it| backend.tokens_of(it).unwrap());
        assert_eq!(tokens[0], tokens[2]);
        let images: [&[&Arc<Picture>]; 3] = [&[&a], &[&a, &b], &[&c]];
        let made = tokens.iter().zip(images);
        let made: Vec<Vec<u32>> = made
            .map(|(tokens, images)| expected(&folder, tokens, images))
            .collect();
        assert_ne!(made[0], made[2], "{name}: the image makes no difference");
        if let Some([a, c]) = &folder.greedy {
            assert_eq!([&made[0], &made[2]], [a, c], "{name}");
        }
        for ((prompt, tokens), made) in prompts.iter().zip(&tokens).zip(&made) {
            let completion = backend.complete(prompt).unwrap();
            assert_eq!(&completion.token_ids, made, "{name}");
            assert_eq!(completion.prompt_tokens, tokens.len(), "{name}");
        }
        // Prefill chunks that end inside an image, reused slots, and a text without images in the same batch.
        let settings = BatchSettings {
            slots: 2,
            piece: Some(3),
            ..BatchSettings::default()
        };
        let engine = BatchEngine::new(backend.clone(), settings).unwrap();
        let text = request("w2 w5 w9 w3", &[]);
        let text_tokens = backend.tokens_of(&text).unwrap();
        let text_made = backend.complete(&text).unwrap().token_ids;
        let (sender, ended) = channel();
        let all = prompts.iter().zip(&tokens).zip(&made);
        let orders =
            all.map(|((prompt, tokens), made)| (prompt.clone(), tokens.clone(), made.clone()));
        let mut orders: Vec<_> = orders.collect();
        orders.insert(1, (text, text_tokens, text_made));
        orders.extend(orders.clone());
        let count = orders.len();
        for (request, tokens, made) in orders {
            let sender = sender.clone();
            let order = Order {
                tokens,
                request,
                logprobs: None,
                owner: Owner::default(),
                mask: None,
            };
            let listener = move |heard: Heard<'_>| {
                if let Heard::Done(result) = heard {
                    sender
                        .send((result.unwrap().token_ids, made.clone()))
                        .unwrap();
                }
                ControlFlow::Continue(())
            };
            engine.begin(order, Box::new(listener)).unwrap();
        }
        for _ in 0..count {
            let (found, made) = ended.recv().unwrap();
            assert_eq!(found, made, "{name}");
        }
    }
}
on_each_device!(alone_and_in_a_batch);

/// Images that a conversation has read are not read again, and another image is.
#[test]
fn conversations() {
    for name in MODELS {
        let folder = Seeing::new(name);
        let files = ModelFiles::open(&source(&folder)).unwrap();
        let template = files.chat_template.clone().unwrap();
        let backend = load(&source(&folder), DeviceKind::Cpu, None);
        let mut request = request("", &[]);
        // A random model may answer with the token that stands for a video, which no later prompt may have.
        request.logit_bias.push((28, -1e4));
        let say = |chat: &mut Chat<'_>, text: &str| {
            let said = chat.say(text, &request, &mut |_| ControlFlow::Continue(()));
            said.unwrap().token_ids
        };
        let mut chat = Chat::new(&backend, &template, None);
        let tokens = chat.attach(picture("a", 20, 13)).unwrap();
        let first = say(&mut chat, "w5 w6");
        chat.attach(picture("b", 9, 9)).unwrap();
        let second = say(&mut chat, "w8");
        assert!(
            chat.reused_tokens() > tokens,
            "{name}: {}",
            chat.reused_tokens()
        );
        assert_eq!(chat.messages()[0].pictures.len(), 1);
        // The same conversation at once gives the same answer.
        let mut whole = Chat::resume(&backend, &template, chat.messages()[..2].to_vec());
        whole.attach(picture("b", 9, 9)).unwrap();
        assert_eq!(say(&mut whole, "w8"), second, "{name}");
        let changed = whole.messages().iter().cloned().map(|mut message| {
            if message.role == Role::User && message.content == "w5 w6" {
                message.pictures = vec![arc("c", 20, 13)];
            }
            message
        });
        let changed: Vec<_> = changed.take(2).collect();
        let mut fresh = Chat::resume(&backend, &template, changed.clone());
        let other = say(&mut fresh, "w8");
        whole.set_messages(changed);
        assert_eq!(say(&mut whole, "w8"), other, "{name}");
        chat.clear();
        chat.attach(picture("a", 20, 13)).unwrap();
        assert_eq!(say(&mut chat, "w5 w6"), first, "{name}");
    }
}

/// Refusals, each in one line that names its reason.
#[test]
fn refusals() {
    let one_line = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        assert!(
            text.lines().count() == 1 && parts.iter().all(|part| text.contains(part)),
            "{text}"
        );
    };
    let image = arc("a", 9, 9);
    let embedded = load(&ModelSource::Embedded, DeviceKind::Cpu, None);
    let refused = embedded.complete(&request("fn", &[&image])).unwrap_err();
    one_line(refused, &["takes no images", "no image encoder"]);
    let folder = Seeing::new("gemma3");
    let backend = load(&source(&folder), DeviceKind::Cpu, None);
    let place = folder.placeholder;
    let two = request(&format!("w2 {place} w3 {place}"), &[&image]);
    one_line(
        backend.complete(&two).unwrap_err(),
        &["1 images", "2 places"],
    );
    let many = [&image; MAX_PICTURES + 1];
    one_line(
        backend.complete(&request("w2", &many)).unwrap_err(),
        &["17 images", "maximum is 16"],
    );
    let mut guessing = request("w2", &[&image]);
    guessing.prompt_lookup = 2;
    one_line(backend.complete(&guessing).unwrap_err(), &["prompt_lookup"]);
    let folder = Seeing::new("qwen2_vl");
    let files = ModelFiles::open(&source(&folder)).unwrap();
    let template = files.chat_template.clone().unwrap();
    let backend = load(&source(&folder), DeviceKind::Cpu, None);
    let narrow = arc("a", 2000, 9);
    one_line(
        backend.complete(&request("w2", &[&narrow])).unwrap_err(),
        &["2000 x 9 pixels", "200 times"],
    );
    let mut chat = Chat::new(&backend, &template, None);
    one_line(
        chat.attach(picture("a", 9, 2000)).unwrap_err(),
        &["9 x 2000 pixels"],
    );
    // Folders that lack a part name it in the error, and are still language models.
    for (file, change, problem) in [
        (
            "preprocessor_config.json",
            "",
            "it has no preprocessor_config.json",
        ),
        (
            "preprocessor_config.json",
            r#"{"do_resize": false}"#,
            "do_resize",
        ),
        (
            "config.json",
            r#""mm_tokens_per_image":5"#,
            "mm_tokens_per_image",
        ),
    ] {
        let folder = Seeing::new("gemma3");
        let path = folder.file(file);
        match change {
            "" => std::fs::remove_file(path).unwrap(),
            part if part.starts_with('{') => std::fs::write(path, part).unwrap(),
            part => {
                let text = std::fs::read_to_string(&path).unwrap();
                std::fs::write(path, text.replace(r#""mm_tokens_per_image":4"#, part)).unwrap();
            }
        }
        let files = ModelFiles::open(&source(&folder)).unwrap();
        let name = folder.path().display().to_string();
        one_line(files.check_images().unwrap_err(), &[&name, problem]);
        let backend = load(&source(&folder), DeviceKind::Cpu, None);
        assert_eq!(
            backend
                .complete(&request("w2", &[]))
                .unwrap()
                .token_ids
                .len(),
            8
        );
    }
}

/// Files of images, sound and not.
#[test]
fn files_of_images() {
    let original = picture("a", 21, 10);
    let bytes = png(&original);
    assert_eq!(read_picture(&bytes, "a.png").unwrap(), original);
    let refused = |bytes: &[u8], part: &str| {
        let text = read_picture(bytes, "a.png").unwrap_err().to_string();
        assert!(text.contains(part) && text.starts_with("a.png: "), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    refused(b"GIF89a", "expected PNG or JPEG");
    refused(b"", "expected PNG or JPEG");
    refused(&vec![0; (20 << 20) + 1], "more than 20971520 bytes");
    for end in [9, 40, bytes.len() / 2, bytes.len() - 13] {
        refused(&bytes[..end], "");
    }
    // A header that promises more pixels than there may be.
    let mut bomb = bytes.clone();
    bomb[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    let crc = crc(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    refused(
        &bomb,
        &format!("60000 x 60000 pixels; expected at most {MAX_PIXELS}"),
    );
}

/// The check sum of a part of a PNG file.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
            1 => (crc >> 1) ^ 0xEDB8_8320,
            _ => crc >> 1,
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}
