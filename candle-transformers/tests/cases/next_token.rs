//! Tokens that the device chooses, step after step without the host, are those that the host chooses from the same logits.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::sampling::draw_row;
use candle_nn::VarBuilder;
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::Decoder;
use candle_transformers::generation::Draw;

use super::encoders::lacking;

fn decoder(device: &Device) -> Result<Decoder> {
    let json = r#"{"model_type": "mistral", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 900, "sliding_window": null}"#;
    let weights: VarBuilder = lacking(&[], DType::F32, device);
    Decoder::from_vb(config_spec(json)?, weights)
}

fn steps_are_drawn_as_by_the_host(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    let warm = Draw {
        temperature: 1.2,
        seed: 7,
        ..Draw::GREEDY
    };
    let filtered = Draw {
        top_k: Some(20),
        top_p: Some(0.9),
        min_p: Some(0.01),
        ..warm
    };
    // Steps of each kind in a row, so that a device which records steps launches some, and changes between them.
    let kinds = [
        (Draw::GREEDY, 4),
        (warm, 5),
        (filtered, 4),
        (Draw::GREEDY, 3),
        (warm, 3),
    ];
    let kinds = kinds.iter().flat_map(|(kind, count)| vec![*kind; *count]);
    let mut text = vec![3u32];
    let mut state = decoder.new_state();
    let mut ids = Tensor::new(&[[3u32]], device)?;
    let mut chosen = Vec::new();
    for (offset, with) in kinds.enumerate() {
        let token = decoder.next_token(&ids, offset, &mut state, &with)?;
        ids = token.ids().clone();
        chosen.push((token, with));
    }
    for (token, with) in chosen {
        let whole = Tensor::new(&text[..], device)?.unsqueeze(0)?;
        let logits = decoder.next_logits(&whole, 0, &mut decoder.new_state())?;
        let logits = logits.squeeze(0)?.to_dtype(DType::F32)?.to_vec1()?;
        let position = text.len() as u32;
        let expected = draw_row(&logits, &Draw { position, ..with })?;
        assert_eq!(token.wait()?, expected, "{with:?} at {position}");
        text.push(expected);
    }
    let nonsense = Draw {
        temperature: -1.,
        ..Draw::GREEDY
    };
    let offset = text.len() - 1;
    let error = decoder.next_token(&ids, offset, &mut state, &nonsense);
    assert!(error
        .err()
        .is_some_and(|err| err.to_string().contains("temperature -1")));
    Ok(())
}
test_device!(steps_are_drawn_as_by_the_host);
