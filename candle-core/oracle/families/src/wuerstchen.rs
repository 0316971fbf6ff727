//! Würstchen: its blocks, a small prior, and the autoencoder, which has a fixed size. The second stage has a fixed size as well, with 3 GB
//! of weights.

use crate::weights::Place;
use crate::Run;
use candle_core::{Module, Result, Tensor};
use candle_transformers::models::wuerstchen::attention_processor::Attention;
use candle_transformers::models::wuerstchen::common::{
    AttnBlock, GlobalResponseNorm, LayerNormNoWeights, ResBlock, TimestepBlock, WLayerNorm,
};
use candle_transformers::models::wuerstchen::ddpm::{DDPMWScheduler, DDPMWSchedulerConfig};
use candle_transformers::models::wuerstchen::diffnext::ResBlockStageB;
use candle_transformers::models::wuerstchen::paella_vq::{MixingResidualBlock, PaellaVQ};
use candle_transformers::models::wuerstchen::prior::WPrior;

pub const RUNS: &[Run] = &[
    ("ddpm_wuerstchen", scheduler),
    ("wuerstchen_parts", parts),
    ("wuerstchen_prior", prior),
    ("paella_vq", paella),
];

/// The times, and only the last step, which has no noise.
fn scheduler(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    for count in [1, 2, 7, 60] {
        let scheduler = DDPMWScheduler::new(count, DDPMWSchedulerConfig::default())?;
        let times = scheduler.timesteps().iter().map(|&time| time as f32);
        let times: Vec<_> = times.chain([scheduler.init_noise_sigma() as f32]).collect();
        outputs.push(Tensor::new(times, &place.device)?);
        let sample = place.input("sample", (2, 4, 3, 5))?;
        let noise = place.input("noise", (2, 4, 3, 5))?;
        let last = scheduler.timesteps()[count - 1];
        outputs.push(scheduler.step(&noise, last, &sample)?);
        // Other times use the nearest step.
        outputs.push(scheduler.step(&noise, last * 0.8, &sample)?);
    }
    Ok(outputs)
}

fn parts(place: &Place) -> Result<Vec<Tensor>> {
    let weights = |name: &str| place.weights("wuerstchen").pp(name);
    let xs = place.input("places", (2, 16, 5, 6))?;
    let skip = place.input("skip", (2, 32, 5, 6))?;
    let time = place.input("time", (2, 10))?;
    let text = place.input("text", (2, 7, 12))?;
    let tokens = place.input("tokens", (2, 7, 16))?;
    let last = place.input("channels last", (2, 5, 6, 16))?;

    let attention = Attention::new(16, 4, 6, false, weights("attention"))?;
    let time_block = TimestepBlock::new(16, 10, weights("time"))?;
    let plain = ResBlock::new(16, 0, 3, weights("residual"))?;
    let two = ResBlock::new(16, 32, 5, weights("residual of two"))?;
    let own = AttnBlock::new(16, 12, 4, true, false, weights("attention to both"))?;
    let other = AttnBlock::new(16, 12, 2, false, false, weights("attention to the text"))?;
    let stage_b = ResBlockStageB::new(16, 0, 3, weights("stage b"))?;
    let stage_b_two = ResBlockStageB::new(16, 32, 3, weights("stage b of two"))?;
    let mut outputs = vec![
        WLayerNorm::new(16)?.forward(&xs)?,
        LayerNormNoWeights::new(6)?.forward(&xs)?,
        time_block.forward(&xs, &time)?,
        GlobalResponseNorm::new(16, weights("response"))?.forward(&last)?,
        plain.forward(&xs, None)?,
        two.forward(&xs, Some(&skip))?,
        stage_b.forward(&xs, None)?,
        stage_b_two.forward(&xs, Some(&skip))?,
        MixingResidualBlock::new(16, 24, weights("mixing"))?.forward(&xs)?,
    ];
    // One at a time: on the CPU Candle's products of several pictures are wrong.
    for i in 0..2 {
        let [xs, text, tokens] = [&xs, &text, &tokens].map(|xs| xs.narrow(0, i, 1));
        let (xs, text) = (xs?, text?);
        outputs.push(attention.forward(&xs, &tokens?)?);
        outputs.push(own.forward(&xs, &text)?);
        outputs.push(other.forward(&xs, &text)?);
    }
    Ok(outputs)
}

fn prior(place: &Place) -> Result<Vec<Tensor>> {
    let model = WPrior::new(6, 16, 12, 11, 2, 4, false, place.weights("prior"))?;
    let mut outputs = Vec::new();
    for (i, time) in [0.003f32, 0.05].into_iter().enumerate() {
        let xs = place.input(&format!("prior {i}"), (1, 6, 5, 4))?;
        let text = place.input(&format!("text of the prior {i}"), (1, 7, 12))?;
        let time = Tensor::new(&[time], &place.device)?;
        // If a scale is near 0 the result is large, and so are differences.
        let noise = model.forward(&xs, &time, &text)?;
        outputs.push((&noise / (noise.abs()? + 1.)?)?);
        outputs.push(model.gen_r_embedding(&time)?);
    }
    Ok(outputs)
}

fn paella(place: &Place) -> Result<Vec<Tensor>> {
    let model = PaellaVQ::new(place.weights("paella"))?;
    let latents = model.encode(&place.input("picture", (1, 3, 8, 12))?)?;
    let picture = model.decode(&place.input("latents", (1, 4, 2, 3))?)?;
    Ok(vec![latents, picture])
}
