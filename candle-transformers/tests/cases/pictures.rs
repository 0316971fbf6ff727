//! Images in prompts, as Transformers and Pillow have them. The numbers and the script that makes them are in `tests/transformers/`; weights
//! and images come from rules that both sides compute.

mod files;
mod pieces;

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{Decoder, DecoderState};
use candle_transformers::pictures::{Picture, PictureSpec, Sees, Written};
use serde::Deserialize;
use serde_json::Value;

use super::transformers::{numbers, weight};

const CASES: &str = include_str!("../transformers/pictures.json");

/// The tolerance of logits and of an image's vectors, by the device.
fn tolerance(device: &Device) -> f32 {
    if device.is_cpu() {
        1e-4
    } else {
        1e-3
    }
}

#[derive(Deserialize)]
struct Cases {
    resized: Vec<Resized>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Resized {
    filter: u64,
    from: [usize; 2],
    to: [usize; 2],
    bytes: String,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    processor: Value,
    weights: HashMap<String, Vec<usize>>,
    sizes: Vec<[usize; 2]>,
    ids: Vec<u32>,
    pixels: Vec<String>,
    first: Vec<Vec<f32>>,
    features: Vec<f32>,
    logits: Vec<f32>,
    texts: Vec<String>,
}

fn cases() -> Cases {
    serde_json::from_str(CASES).expect("cases")
}

/// The rule of the script: waves and noise.
pub fn picture([width, height]: [usize; 2]) -> Picture {
    let noise = numbers("picture", 3 * width * height);
    let bytes = noise.iter().enumerate().map(|(i, noise)| {
        let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
        let wave = ((x * 7 + y * 5 + c * 40) % 97) as f32 / 97.;
        (wave * 160. + (noise + 1.) * 40.) as u8
    });
    Picture::new(width, height, bytes.collect()).expect("an image")
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    let byte = |two: &[u8]| {
        let text = std::str::from_utf8(two).expect("digits");
        u8::from_str_radix(text, 16).expect("a byte")
    };
    digits.map(byte).collect()
}

fn close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let pairs = found.iter().zip(expected);
    let worst = pairs.fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst <= tolerance, "{what}: {worst}");
}

impl Case {
    fn spec(&self) -> Result<PictureSpec> {
        PictureSpec::read(&self.config.to_string(), &self.processor.to_string())
    }

    /// The weights, under names that `rename` changes.
    fn vb(&self, rename: impl Fn(&str) -> String, device: &Device) -> Result<VarBuilder<'static>> {
        let weights = self.weights.iter();
        let weights = weights.map(|(name, shape)| Ok((rename(name), weight(name, shape)?)));
        let weights = weights.collect::<Result<HashMap<_, _>>>()?;
        Ok(VarBuilder::from_tensors(weights, DType::F32, device))
    }

    fn features(&self, vb: VarBuilder, device: &Device) -> Result<Tensor> {
        let spec = self.spec()?;
        let encoder = spec.load(vb)?;
        let one = |size: &[usize; 2]| {
            let pixels = spec.pixels(&picture(*size))?;
            encoder.forward(&pixels, (device, DType::F32))
        };
        let all = self.sizes.iter().map(one).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&all, 0)
    }

    /// The logits after each token, run by run; in a slot, or as one sequence.
    fn logits(
        &self,
        decoder: &Decoder,
        features: &Tensor,
        state: &mut DecoderState,
        slot: Option<usize>,
    ) -> Result<Vec<f32>> {
        let spec = self.spec()?;
        let positions = spec.positions(&self.ids, &self.sizes)?;
        let (mut logits, mut used) = (Vec::new(), 0);
        for run in spec.runs(&self.ids) {
            let vectors = features.narrow(0, used, run.vectors)?;
            used += run.vectors;
            let input = spec.input(decoder, &self.ids, &run, &vectors, positions.as_deref())?;
            let hidden = match slot {
                Some(slot) => decoder.forward_slot_seen(&input, slot, state)?,
                None => decoder.forward_seen(&input, run.range.start, state)?,
            };
            logits.extend(hidden.logits()?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(logits)
    }
}

/// Other sizes of images are Pillow's to the last bit.
#[test]
fn images_are_resized_as_by_pillow() -> Result<()> {
    for Resized {
        filter,
        from,
        to,
        bytes: expected,
    } in cases().resized
    {
        let found = picture(from).resized_by(filter, to[0], to[1])?;
        assert_eq!(
            found.rgb(),
            bytes(&expected),
            "{filter}: {from:?} to {to:?}"
        );
    }
    Ok(())
}

/// The numbers that the processors of Transformers make of images. Bytes are equal; the numbers are rounded otherwise by an ulp.
#[test]
fn pixels_are_those_of_the_processors() -> Result<()> {
    for case in cases().cases {
        let spec = case.spec()?;
        let images = case.sizes.iter().zip(&case.pixels).zip(&case.first);
        for ((size, expected), first) in images {
            let found = spec.pixels(&picture(*size))?;
            let shape = found.dims().to_vec();
            let found = found.flatten_all()?.to_vec1::<f32>()?;
            let bytes = bytes(expected);
            let [_, _, height, width] = shape[..] else {
                panic!("{}: {shape:?}", case.name)
            };
            let number = |(i, byte): (usize, &u8)| {
                let channel = i / (height * width) % 3;
                let setting = |name: &str| {
                    let found = case.processor[name][channel].as_f64();
                    found.expect("a number")
                };
                let part = f64::from(*byte) / 255. - setting("image_mean");
                (part / setting("image_std")) as f32
            };
            let numbers: Vec<f32> = bytes.iter().enumerate().map(number).collect();
            close(&case.name, &found, &numbers, 2e-6);
            close(&case.name, &found[..first.len()], first, 1e-5);
        }
    }
    Ok(())
}

/// The text of a prompt for an image, and the number of its tokens.
#[test]
fn prompts_are_written_as_by_the_processors() -> Result<()> {
    let cases = cases().cases;
    for case in &cases {
        let spec = case.spec()?;
        let counts = case.sizes.iter().map(|[w, h]| spec.tokens(*w, *h));
        let ids = case.ids.iter().filter(|id| **id == spec.token());
        assert_eq!(counts.sum::<usize>(), ids.count(), "{}", case.name);
        for (text, [width, height]) in case.texts.iter().zip(&case.sizes) {
            let written = spec.written(*width, *height).into_iter();
            let written = written.map(|part| match part {
                Written::Text(text) => text,
                Written::Token(id, count) if id == spec.token() => "<image>".repeat(count),
                Written::Token(id, _) => panic!("{}: {id}", case.name),
            });
            assert_eq!(&written.collect::<String>(), text, "{}", case.name);
        }
    }
    let spec = cases[0].spec()?;
    let breaks = Written::Text("\n\n".into());
    let [begin, end] = [29, 30].map(|id| Written::Token(id, 1));
    let expected = vec![breaks.clone(), begin, Written::Token(31, 4), end, breaks];
    assert_eq!(spec.written(5, 7), expected);
    assert_eq!((spec.placeholder(), spec.sees()), (29, Sees::All));
    Ok(())
}

fn logits_of_prompts_with_images(device: &Device) -> Result<()> {
    for case in cases().cases {
        let name = &case.name;
        let vb = case.vb(str::to_string, device)?;
        let features = case.features(vb.clone(), device)?;
        let found = features.flatten_all()?.to_vec1::<f32>()?;
        close(name, &found, &case.features, tolerance(device));
        let decoder = Decoder::from_vb(config_spec(&case.config.to_string())?, vb)?;
        let mut state = decoder.new_state();
        let found = case.logits(&decoder, &features, &mut state, None)?;
        close(name, &found, &case.logits, tolerance(device));
        // In one of several slots, with and after other texts.
        let mut state = decoder.new_slots(3)?;
        let ids = Tensor::new(&[[3u32, 4, 5, 6, 7, 8, 9]], device)?;
        for slot in 0..3 {
            decoder.forward_slots(&ids, &[7], slot, &mut state)?;
        }
        state.cut_slot(1, 0)?;
        let found = case.logits(&decoder, &features, &mut state, Some(1))?;
        close(name, &found, &case.logits, tolerance(device));
    }
    Ok(())
}
test_device!(logits_of_prompts_with_images);
