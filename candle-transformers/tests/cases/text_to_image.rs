//! Images of tiny Stable Diffusions as diffusers makes them, from its configuration files and noise to pixels. The script that makes the
//! numbers is `tests/transformers/text_to_image.py`; weights come from a rule that both sides compute.

use std::collections::HashMap;

use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::stable_diffusion::{
    DiffusersFiles, StableDiffusionConfig, TextToImage,
};
use serde::Deserialize;
use serde_json::{json, Value};

use super::transformers::{numbers, weight};

const CASES: &str = include_str!("../transformers/text_to_image.json");

#[derive(Clone, Deserialize)]
struct Case {
    text_encoder: Value,
    unet: Value,
    vae: Value,
    scheduler: Value,
    ids: Vec<Vec<u32>>,
    side: usize,
    steps: usize,
    guidance: f64,
    /// Every such number of the image is in the file.
    every: usize,
    image: Vec<f32>,
}

/// The rule's weights, under the names that a model requests first: those of the files that diffusers writes today.
struct Ruled;

impl SimpleBackend for Ruled {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        weight(name, s.dims())?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

impl Case {
    fn all() -> HashMap<String, Self> {
        serde_json::from_str(CASES).expect("the script writes cases")
    }

    fn config(&self) -> Result<StableDiffusionConfig> {
        let files = [&self.text_encoder, &self.unet, &self.vae, &self.scheduler];
        let [text_encoder, unet, vae, scheduler] = &files.map(Value::to_string);
        let files = DiffusersFiles {
            text_encoder,
            unet,
            vae,
            scheduler,
        };
        StableDiffusionConfig::from_diffusers(&files, None, None)
    }

    fn image(&self) -> Result<Vec<f32>> {
        let device = Device::Cpu;
        let config = self.config()?;
        assert_eq!((config.width, config.height), (self.side, self.side));
        let vb = || VarBuilder::from_backend(Box::new(Ruled), DType::F32, device.clone());
        let model = TextToImage::new(&config, vb(), vb(), vb())?;
        // Guidance of 1 is none.
        let texts = self.ids[usize::from(self.guidance == 1.)..].to_vec();
        let texts = model.encode(&Tensor::new(texts, &device)?)?;
        let side = self.side / 8;
        let noise = Tensor::from_vec(
            numbers("noise", 4 * side * side),
            (1, 4, side, side),
            &device,
        )?;
        let mut steps = Vec::new();
        let image = model.generate(&texts, self.guidance, &noise, self.steps, |step| {
            steps.push(step);
            Ok(())
        })?;
        assert_eq!(steps, (1..=self.steps).collect::<Vec<_>>());
        assert_eq!(image.dims(), [1, 3, self.side, self.side]);
        let image = image.flatten_all()?.to_vec1::<f32>()?;
        Ok(image.into_iter().step_by(self.every).collect())
    }
}

/// Versions differ in the text encoder's activation, the heads, the layers around transformers, the scheduler and the prediction.
#[test]
fn images_are_those_of_diffusers() -> Result<()> {
    let cases = Case::all();
    assert_eq!(cases.len(), 3);
    let mut largest = Vec::new();
    for (name, case) in cases {
        let image = case.image()?;
        assert_eq!(image.len(), case.image.len());
        let pairs = image.iter().zip(&case.image);
        let most = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        largest.push((most, name));
    }
    assert!(largest.iter().all(|(most, _)| *most < 2e-4), "{largest:?}");
    Ok(())
}

/// The configuration of SDXL and others that the networks do not have is an error that names the field.
#[test]
fn unsupported_files_are_refused() {
    type Part = fn(&mut Case) -> &mut Value;
    let cases: [(Part, &str, Value); 8] = [
        (
            |case| &mut case.unet,
            "addition_embed_type",
            json!("text_time"),
        ),
        (|case| &mut case.unet, "in_channels", json!(9)),
        (
            |case| &mut case.unet,
            "down_block_types",
            json!(["AttnDownBlock2D", "DownBlock2D"]),
        ),
        (|case| &mut case.vae, "latent_channels", json!(16)),
        (|case| &mut case.vae, "block_out_channels", json!([8, 8])),
        (|case| &mut case.text_encoder, "hidden_act", json!("relu")),
        (
            |case| &mut case.scheduler,
            "_class_name",
            json!("LCMScheduler"),
        ),
        (|case| &mut case.scheduler, "clip_sample", json!(true)),
    ];
    let published = &Case::all()["1.5"];
    for (part, field, value) in cases {
        let mut case = published.clone();
        part(&mut case)[field] = value;
        let err = case.config().expect_err(field).to_string();
        let name = match field {
            "_class_name" => "LCMScheduler",
            "down_block_types" => "AttnDownBlock2D",
            field => field,
        };
        assert!(err.contains(name), "{err}");
    }
    let config = published.config().expect("as diffusers writes it");
    assert_eq!(config.latent_scale(), 0.18215);
}
