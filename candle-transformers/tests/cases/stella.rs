//! Both forms of Stella, with tiny weights that depend on their names alone.

use candle_core::{bail, test_device, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Activation, Init, VarBuilder};
use candle_transformers::models::stella_en_v5::{
    Config, EmbedDim, EmbeddingModel, Embeddings, Model,
};

use super::support::{assert_close, token_ids, Numbers};

const VOCAB: usize = 61;
/// f32 sums in another order.
const F32_TOLERANCE: f32 = 2e-5;

struct Made;

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut numbers = Numbers::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        let scale = if s.rank() == 1 { 1. } else { 0.4 };
        let tensor = numbers.tensor(s.dims(), scale, &Device::Cpu)?;
        tensor.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn vb(dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Made), dtype, device.clone())
}

fn configs() -> [Config; 2] {
    let tiny = |config: Config| Config {
        vocab_size: VOCAB,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        max_position_embeddings: 20,
        embed_head: EmbedDim::Dim256.config(32),
        ..config
    };
    [
        tiny(Config::new_1_5_b_v5(EmbedDim::Dim256)),
        tiny(Config::new_400_m_v5(EmbedDim::Dim256)),
    ]
}

/// A text in a batch with a longer one gives what it gives alone.
fn padding_changes_nothing(device: &Device) -> Result<()> {
    for config in configs() {
        let mut model = Model::new(&config, vb(DType::F32, device))?;
        let ids = token_ids(2, 13, VOCAB, device)?;
        let mask: Vec<u32> = (0..26).map(|i| u32::from(i < 20)).collect();
        let mask = Tensor::from_vec(mask, (2, 13), device)?;
        let batch = model.forward(&ids, &mask)?;
        assert_eq!(batch.dims(), &[2, 13, 32]);
        let mut head =
            EmbeddingModel::new(&config, vb(DType::F32, device), vb(DType::F32, device))?;
        let vectors = head.forward_norm(&ids, &mask)?;
        assert_eq!(vectors.dims(), &[2, 256]);
        for (row, len) in [13, 7].into_iter().enumerate() {
            let part = |t: &Tensor| t.narrow(0, row, 1)?.narrow(1, 0, len)?.contiguous();
            println!("{:?}: text {row}", config.variant);
            let alone = model.forward(&part(&ids)?, &part(&mask)?)?;
            assert_close(&part(&batch)?, &alone, F32_TOLERANCE);
            let vector = head.forward_norm(&part(&ids)?, &part(&mask)?)?;
            assert_close(&vectors.narrow(0, row, 1)?, &vector, F32_TOLERANCE);
            let length = vector.sqr()?.sum_all()?.to_scalar::<f32>()?;
            assert!((length - 1.).abs() < 1e-4, "{length}");
        }
        let open = model.forward(&ids, &mask.ones_like()?)?;
        let change = (open.get(1)? - batch.get(1)?)?.narrow(0, 0, 7)?.abs()?;
        assert!(change.max_all()?.to_scalar::<f32>()? > 1e-2);
        // Later tokens are seen too.
        let first = model.forward(&ids.narrow(1, 0, 12)?, &mask.narrow(1, 0, 12)?)?;
        let change = (first.get(0)?.get(0)? - batch.get(0)?.get(0)?)?.abs()?;
        assert!(change.max_all()?.to_scalar::<f32>()? > 1e-3);
    }
    Ok(())
}
test_device!(padding_changes_nothing);

fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    for config in configs() {
        let ids = token_ids(2, 9, VOCAB, device)?;
        let run = |dtype| {
            let mut model = EmbeddingModel::new(&config, vb(dtype, device), vb(dtype, device))?;
            let hidden = model.forward(&ids, &ids.zeros_like()?)?;
            assert!(hidden.sum_all()?.to_scalar::<f32>()?.is_finite());
            model.forward(&ids, &ids.ones_like()?)
        };
        assert_close(&run(DType::F16)?, &run(DType::F32)?, 3e-2);
    }
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

fn bad_input_is_an_error(device: &Device) -> Result<()> {
    for config in configs() {
        let name = "stella_en_v5";
        let mut model = Model::new(&config, vb(DType::F32, device))?;
        let nothing = Tensor::zeros((2, 0), DType::U32, device)?;
        assert_error(model.forward(&nothing, &nothing), &[name, "no tokens"]);
        let ids = token_ids(2, 5, VOCAB, device)?;
        assert_error(model.forward(&ids, &ids.narrow(1, 0, 4)?), &[name, "mask"]);
        // The small model's limit is scaled by 2.
        let long = token_ids(1, 41, VOCAB, device)?;
        assert!(model.forward(&long, &long.ones_like()?).is_err());
        for heads in [0, 5] {
            let bad = Config {
                num_attention_heads: heads,
                ..config.clone()
            };
            let said = format!("num_attention_heads {heads}");
            assert_error(Model::new(&bad, vb(DType::F32, device)), &[name, &said]);
        }
        for scaling_factor in [-1., f64::NAN] {
            let bad = Config {
                scaling_factor,
                ..config.clone()
            };
            let result = Model::new(&bad, vb(DType::F32, device));
            assert_error(result, &[name, "scaling_factor"]);
        }
        let bad = Config {
            activation_fn: Activation::Mish,
            ..config
        };
        assert_error(Model::new(&bad, vb(DType::F32, device)), &["Mish"]);
    }
    Ok(())
}
test_device!(bad_input_is_an_error);

#[test]
fn vectors_that_layers_begin_with() -> Result<()> {
    let cpu = Device::Cpu;
    for config in configs() {
        let embeddings = Embeddings::new(&config, vb(DType::F32, &cpu))?;
        let found = embeddings.forward(&token_ids(2, 5, VOCAB, &cpu)?)?;
        assert_eq!(found.dims(), &[2, 5, 32]);
    }
    Ok(())
}

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error, {parts:?} are expected in one")
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: without {part:?}");
    }
}
