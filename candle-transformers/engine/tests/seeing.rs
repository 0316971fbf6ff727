//! Folders of tiny models that take images, those of candle-transformers' `tests/transformers/pictures.json`, with a tokenizer and a chat
//! template.

use candle_core::{Device, Tensor};
use candle_engine::pictures::Picture;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder, and what is in it.
pub struct Seeing {
    dir: TempDir,
    /// The text of templates for an image.
    pub placeholder: &'static str,
    /// The tokens that Transformers draws greedily after two words with the images `a` and `c` of 20 x 13 pixels, where the case has them.
    pub greedy: Option<[Vec<u32>; 2]>,
}

/// Numbers in -1..1: FNV-1a of the name and MurmurHash3's finaliser.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(2166136261u32, |seed, byte| {
        (seed ^ u32::from(byte)).wrapping_mul(16777619)
    });
    let number = |i: u32| {
        let mut h = seed ^ i.wrapping_mul(0x9E37_79B9);
        h ^= h >> 16;
        h = h.wrapping_mul(0x85EB_CA6B);
        h ^= h >> 13;
        h = h.wrapping_mul(0xC2B2_AE35);
        h ^= h >> 16;
        (h >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    (0..count as u32).map(number).collect()
}

/// An image of `width` by `height` pixels; each `seed` has another.
pub fn picture(seed: &str, width: usize, height: usize) -> Picture {
    let noise = numbers(seed, 3 * width * height);
    // Stripes and colours that a small network can tell apart.
    let seed = seed.bytes().map(usize::from).sum::<usize>() % 16;
    let bytes = noise.iter().enumerate().map(|(i, noise)| {
        let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
        let stripe = (x * (1 + seed % 3) + y * (seed % 5)) / 3 % 2;
        let light = 120 * stripe + 40 * ((seed + c) % 3) + ((noise + 1.) * 10.) as usize;
        light as u8
    });
    Picture::new(width, height, bytes.collect()).unwrap()
}

/// The bytes of a PNG file.
pub fn png(picture: &Picture) -> Vec<u8> {
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    let image = image::RgbImage::from_raw(width, height, picture.rgb().to_vec()).unwrap();
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

impl Seeing {
    /// The model of a case.
    pub fn new(name: &str) -> Self {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let package = if package.ends_with("engine") {
            package.join("..")
        } else {
            // candle-dvm's tests share this file.
            package.join("../candle-transformers")
        };
        let text = std::fs::read(package.join("tests/transformers/pictures.json")).unwrap();
        let all: Value = serde_json::from_slice(&text).unwrap();
        let cases = all["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["name"] == name).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, value: &Value| {
            std::fs::write(dir.path().join(file), value.to_string()).unwrap();
        };
        let special: &[(usize, &str)] = match name.split('-').next() {
            Some("gemma3") => &GEMMA,
            Some("mistral3") => &MISTRAL,
            Some("qwen2_vl" | "qwen2_5_vl" | "qwen3_vl") => &QWEN,
            _ => &IDEFICS,
        };
        // Templates write the first of Gemma's, and the last of the others.
        let placeholder = match special == GEMMA {
            true => special[0].1,
            false => special[2].1,
        };
        let [before, after] = match special == QWEN {
            true => [special[0].1, special[1].1],
            false => ["", ""],
        };
        write("config.json", &case["config"]);
        write("preprocessor_config.json", &case["processor"]);
        write("tokenizer.json", &tokenizer(special));
        let template = format!(
            "{{% for m in messages %}}{{% if m['content'] is string %}}{{{{ m['content'] }}}}{{% else %}}{{% for p in m['content'] %}}\
             {{% if p['type'] == 'image' %}}{before}{placeholder}{after}{{% else %}} {{{{ p['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}} w4 \
             {{% endfor %}}"
        );
        write(
            "tokenizer_config.json",
            &json!({ "chat_template": template }),
        );
        let shapes = case["weights"].as_object().unwrap();
        let weights = shapes.iter().map(|(name, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let (by, from) = match shape.len() {
                _ if name.ends_with("bias") => (0.2, 0.),
                0 | 1 => (0.25, 1.),
                _ => (0.5, 0.),
            };
            let numbers = numbers(name, shape.iter().product());
            let values: Vec<f32> = numbers.into_iter().map(|u| from + by * u).collect();
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            (name.clone(), tensor)
        });
        let weights: HashMap<String, Tensor> = weights.collect();
        candle_core::safetensors::save(&weights, dir.path().join("model.safetensors")).unwrap();
        let greedy = serde_json::from_value(case["greedy"].clone()).unwrap();
        Self {
            dir,
            placeholder,
            greedy,
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// An image as a file in the folder.
    pub fn image(&self, name: &str, picture: &Picture) -> PathBuf {
        let file = self.file(name);
        std::fs::write(&file, png(picture)).unwrap();
        file
    }
}

const GEMMA: [(usize, &str); 3] = [
    (29, "<begin_of_image>"),
    (30, "<end_of_image>"),
    (31, "<image_soft_token>"),
];
const IDEFICS: [(usize, &str); 3] = [
    (7, "<fake_token_around_image>"),
    (9, "<global-img>"),
    (31, "<image>"),
];
const QWEN: [(usize, &str); 3] = [
    (29, "<|vision_start|>"),
    (30, "<|vision_end|>"),
    (31, "<|image_pad|>"),
];
const MISTRAL: [(usize, &str); 3] = [(29, "[IMG_BREAK]"), (30, "[IMG_END]"), (31, "[IMG]")];

/// 32 words, some of them special.
fn tokenizer(special: &[(usize, &str)]) -> Value {
    let word = |id: usize| {
        let found = special.iter().find(|(at, _)| *at == id);
        found.map_or_else(|| format!("w{id}"), |(_, text)| (*text).to_string())
    };
    let vocab: serde_json::Map<String, Value> = (0..32).map(|id| (word(id), id.into())).collect();
    let added = special.iter().map(|(id, text)| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    });
    let added: Vec<Value> = added.collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w1"},
    })
}
