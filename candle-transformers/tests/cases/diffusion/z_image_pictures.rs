//! Z-Image's autoencoder, times and guidance.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::z_image::scheduler::{
    BASE_IMAGE_SEQ_LEN, BASE_SHIFT, MAX_IMAGE_SEQ_LEN, MAX_SHIFT,
};
use candle_transformers::models::z_image::{
    calculate_shift, get_noise, get_schedule, sampling, vae, FlowMatchEulerDiscreteScheduler,
    SchedulerConfig,
};

use super::{assert_close, check, every_weight_learns, module, refused, weights, Forward, Numbers};

fn small_vae() -> vae::VaeConfig {
    vae::VaeConfig {
        block_out_channels: vec![8, 16],
        layers_per_block: 1,
        latent_channels: 4,
        norm_num_groups: 4,
        ..vae::VaeConfig::z_image()
    }
}

fn vae_encoder(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> { Ok(module(vae::Encoder::new(&small_vae(), vb)?)) };
    check(device, load, [3, 12, 9], &[&[1, 3, 1, 8]])
}
test_device!(vae_encoder);

fn vae_decoder(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> { Ok(module(vae::Decoder::new(&small_vae(), vb)?)) };
    check(device, load, [4, 3, 5], &[])
}
test_device!(vae_decoder);

#[test]
fn latents_are_samples_in_the_numbers_of_the_training() -> Result<()> {
    let device = &Device::Cpu;
    let cfg = vae::VaeConfig {
        scaling_factor: 2.,
        shift_factor: 5.,
        ..small_vae()
    };
    let vb = weights(DType::F32, device);
    let model = vae::AutoEncoderKL::new(&cfg, vb.clone())?;
    assert_eq!((model.scale_factor(), model.shift_factor()), (2., 5.));
    let picture = Numbers::new(4).tensor(&[1, 3, 6, 8], 1., device)?;
    let moments = vae::Encoder::new(&cfg, vb.pp("encoder"))?.forward(&picture)?;
    let mean = vae::DiagonalGaussian::new(false).forward(&moments)?;
    assert_close(&mean, &moments.narrow(1, 0, 4)?, 0.);
    let around = ((model.encode(&picture)? / 2.)? + 5.)?;
    let away = ((around - mean)? / (moments.narrow(1, 4, 4)? * 0.5)?.exp()?)?;
    let farthest = away.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(farthest > 0.1 && farthest < 6., "{farthest} deviations");
    assert_eq!(model.forward(&picture)?.dims(), picture.dims());
    let none = vae::VaeConfig {
        block_out_channels: vec![],
        ..cfg
    };
    refused(vae::AutoEncoderKL::new(&none, vb), &["no levels"]);
    Ok(())
}

#[test]
fn weights_learn() -> Result<()> {
    let picture = Numbers::new(4).tensor(&[1, 3, 6, 8], 1., &Device::Cpu)?;
    every_weight_learns(|vb| vae::AutoEncoderKL::new(&small_vae(), vb)?.forward(&picture))
}

/// The time that the model is given is that of the noise in the sample.
#[test]
fn times_follow_the_noise() -> Result<()> {
    let mut scheduler = FlowMatchEulerDiscreteScheduler::new(SchedulerConfig::z_image_turbo());
    let (min, max) = (scheduler.sigma_min, scheduler.sigma_max);
    assert_eq!((max, scheduler.num_inference_steps()), (1., 1000));
    scheduler.set_timesteps(4, None);
    let first = scheduler.clone();
    assert_eq!((first.sigmas.len(), first.timesteps.len()), (5, 4));
    assert_eq!((first.sigmas[0], first.sigmas[4]), (1., 0.));
    for (i, sigma) in first.sigmas[..4].iter().enumerate() {
        let even = max * (1. - i as f64 / 4.) + min * i as f64 / 4.;
        let expected = 3. * even / (1. + 2. * even);
        assert!(
            (sigma - expected).abs() < 1e-12,
            "{sigma}, expected {expected}"
        );
        assert!((first.timesteps[i] - 1000. * sigma).abs() < 1e-9);
    }
    // A shift that is fixed does not look at mu, and every run begins with the times of the training.
    for mu in [Some(0.7), None] {
        scheduler.set_timesteps(4, mu);
        assert_eq!(scheduler.sigmas, first.sigmas);
        assert_eq!(scheduler.timesteps, first.timesteps);
    }
    let sample = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    let towards = Tensor::full(2f32, (2, 3), &Device::Cpu)?;
    let mut moved = sample.clone();
    for i in 0..4 {
        assert!(!scheduler.is_complete());
        assert_eq!(
            (scheduler.step_index(), scheduler.current_sigma()),
            (i, first.sigmas[i])
        );
        let time = scheduler.current_timestep_normalized();
        assert!((time - (1. - first.sigmas[i])).abs() < 1e-12, "{time}");
        moved = scheduler.step(&towards, &moved)?;
    }
    assert_close(
        &moved,
        &Tensor::full(1f32 - 2., (2, 3), &Device::Cpu)?,
        1e-6,
    );
    assert!(scheduler.is_complete());
    assert_eq!(
        (
            scheduler.current_sigma(),
            scheduler.current_timestep_normalized()
        ),
        (0., 1.)
    );
    refused(scheduler.step(&towards, &moved), &["4 steps", "reset"]);
    scheduler.reset();
    assert_eq!(
        (scheduler.step_index(), scheduler.is_complete()),
        (0, false)
    );
    scheduler.step(&towards, &sample)?;

    let dynamic = SchedulerConfig {
        use_dynamic_shifting: true,
        ..SchedulerConfig::default()
    };
    let mut dynamic = FlowMatchEulerDiscreteScheduler::new(dynamic);
    dynamic.set_timesteps(2, Some(0.5));
    let half = (1. + dynamic.sigma_min) / 2.;
    let expected = 0.5f64.exp() / (0.5f64.exp() + 1. / half - 1.);
    assert!(
        (dynamic.sigmas[1] - expected).abs() < 1e-12,
        "{:?}",
        dynamic.sigmas
    );
    // Zero steps do not panic.
    let none = SchedulerConfig {
        num_train_timesteps: 0,
        ..SchedulerConfig::default()
    };
    let mut none = FlowMatchEulerDiscreteScheduler::new(none);
    none.set_timesteps(0, None);
    assert!(none.is_complete());
    refused(none.step(&towards, &sample), &["0 steps"]);
    Ok(())
}

#[test]
fn shifts() {
    let shift = |len| {
        calculate_shift(
            len,
            BASE_IMAGE_SEQ_LEN,
            MAX_IMAGE_SEQ_LEN,
            BASE_SHIFT,
            MAX_SHIFT,
        )
    };
    assert!((shift(256) - 0.5).abs() < 1e-12 && (shift(4096) - 1.15).abs() < 1e-12);
    assert_eq!(get_schedule(2, 0.), [1., 0.5, 0.]);
    assert_eq!(get_schedule(0, 0.5), [1.]);
}

fn guidance(device: &Device) -> Result<()> {
    let with = Tensor::new(&[3f32, 0.], device)?;
    let without = Tensor::new(&[1f32, 4.], device)?;
    let cfg = |scale, normalized| sampling::CfgConfig {
        guidance_scale: scale,
        cfg_truncation: 0.5,
        cfg_normalization: normalized,
    };
    let guided = |cfg: &sampling::CfgConfig, time| -> Result<Vec<f32>> {
        sampling::apply_cfg(&with, &without, cfg, time)?.to_vec1()
    };
    assert_eq!(guided(&cfg(2., false), 0.5)?, [7., -8.]);
    assert_eq!(guided(&cfg(2., false), 0.51)?, [3., 0.]);
    assert_eq!(guided(&cfg(0., true), 0.)?, [3., 0.]);
    let long = (49f32 + 64.).sqrt();
    for (found, expected) in guided(&cfg(2., true), 0.)?
        .iter()
        .zip([7. * 3. / long, -8. * 3. / long])
    {
        assert!(
            (found - expected).abs() < 1e-5,
            "{found}, expected {expected}"
        );
    }
    // Shorter than without guidance: as it is.
    let towards = Tensor::new(&[4f32, 0.], device)?;
    let shorter = sampling::apply_cfg(&with, &towards, &cfg(1., true), 0.)?;
    assert_eq!(shorter.to_vec1::<f32>()?, [2., 0.]);
    let zeros = with.zeros_like()?;
    let nothing = sampling::apply_cfg(&zeros, &zeros, &cfg(2., true), 0.)?;
    assert_eq!(nothing.to_vec1::<f32>()?, [0., 0.]);
    let half = |t: &Tensor| t.to_dtype(DType::F16);
    let in_half = sampling::apply_cfg(&half(&with)?, &half(&without)?, &cfg(2., true), 0.)?;
    assert_eq!(in_half.dtype(), DType::F16);

    let pixels = Tensor::new(&[-1.5f32, -1., 0., 0.999, 1., 7.], device)?;
    let pixels = sampling::postprocess_image(&pixels)?;
    assert_eq!(pixels.to_vec1::<u8>()?, [0, 0, 127, 254, 255, 255]);
    let noise = get_noise(2, 16, 4, 6, device)?;
    assert_eq!(
        (noise.dims(), noise.dtype()),
        (&[2, 16, 4, 6][..], DType::F32)
    );
    let variance = noise.sqr()?.mean_all()?.to_scalar::<f32>()?;
    assert!(
        (variance - 1.).abs() < 0.3,
        "noise with a variance of {variance}"
    );
    Ok(())
}
test_device!(guidance);
