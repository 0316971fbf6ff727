//! Marian.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::marian;
use serde_json::{json, Value};

use super::{
    assert_close, causal, config, ids, last, with, Made, Model, Writer, F32_TOLERANCE, HIDDEN,
    LIMIT, VOCAB,
};

fn marian_json() -> Value {
    json!({"vocab_size": VOCAB, "max_position_embeddings": LIMIT, "encoder_layers": 2, "encoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 64, "decoder_attention_heads": 2, "use_cache": true,
        "is_encoder_decoder": true, "activation_function": "swish", "d_model": HIDDEN, "decoder_start_token_id": 63,
        "scale_embedding": true, "pad_token_id": 63, "eos_token_id": 0, "forced_eos_token_id": 0,
        "share_encoder_decoder_embeddings": true})
}

impl Writer for marian::MTModel {
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.encoder().forward_masked(ids, mask)
    }
    fn decode(
        &mut self,
        ids: &Tensor,
        x: &Tensor,
        mask: Option<&Tensor>,
        start: usize,
    ) -> Result<Tensor> {
        last(self.decode_masked(ids, x, start, mask)?)
    }
    fn reset(&mut self) {
        self.reset_kv_cache();
    }
}

pub(super) const MODELS: &[Model] = &[Model {
    name: "marian",
    json: marian_json,
    load: |json, made, dtype, device| {
        let model = marian::MTModel::new(&config(json)?, made.vb(dtype, device))?;
        Ok(Box::new(model))
    },
    quantized: None,
    texts: true,
    size: "decoder_ffn_dim",
}];

/// A given mask replaces causal visibility.
fn masks_that_are_added(device: &Device) -> Result<()> {
    let causal = causal(4, device)?;
    let made = Made::default();
    let text = ids(1, 4, 2, device)?;
    let mut marian = marian::MTModel::new(&config(&marian_json())?, made.vb(DType::F32, device))?;
    let encoded = marian.encoder().forward(&ids(1, 6, 1, device)?, 0)?;
    let run = |marian: &mut marian::MTModel, mask: &Tensor, source: Option<&Tensor>| {
        marian.decoder().forward(&text, source, 0, mask)
    };
    let masked = run(&mut marian, &causal, Some(&encoded))?;
    let by_head = causal.expand((4, 4, 4))?.narrow(0, 0, 2)?.contiguous()?;
    assert_close(
        &run(&mut marian, &by_head, Some(&encoded))?,
        &masked,
        F32_TOLERANCE,
    );
    let open = run(&mut marian, &causal.zeros_like()?, Some(&encoded))?;
    let change = |other: &Tensor| (other - &masked)?.abs()?.max_all()?.to_scalar::<f32>();
    assert!(change(&open)? > 1e-2);
    assert!(change(&run(&mut marian, &causal, None)?)? > 1e-2);
    assert!(run(&mut marian, &causal.narrow(1, 0, 3)?, None).is_err());
    Ok(())
}
test_device!(masks_that_are_added);

/// Two tables of tokens, where a checkpoint has two.
#[test]
fn marian_with_two_tables() -> Result<()> {
    let json = with(
        marian_json(),
        json!({"share_encoder_decoder_embeddings": false, "decoder_vocab_size": 50}),
    );
    let (made, cpu) = (Made::default(), Device::Cpu);
    let mut model = marian::MTModel::new(&config(&json)?, made.vb(DType::F32, &cpu))?;
    let encoded = model.encoder().forward(&ids(1, 5, 1, &cpu)?, 0)?;
    let logits = model.decode(&Tensor::new(&[[49u32]], &cpu)?, &encoded, 0)?;
    assert_eq!(logits.dims(), &[1, 1, 50]);
    Ok(())
}
