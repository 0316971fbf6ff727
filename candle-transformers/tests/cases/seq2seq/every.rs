//! What all of them have to do.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Result, Tensor};
use serde_json::{json, Value};

use super::{
    assert_close, assert_error, blip, ids, in_pieces, marian, t5, trocr, with, Made, Model, Writer,
    F32_TOLERANCE, LIMIT, VOCAB,
};

fn models() -> impl Iterator<Item = &'static Model> {
    let families = [t5::MODELS, marian::MODELS, trocr::MODELS, blip::MODELS];
    families.into_iter().flatten()
}

/// Decoding step by step is decoding at once; after a reset the same comes again, whatever was in between.
fn steps_are_the_whole(device: &Device) -> Result<()> {
    for model in models() {
        let name = model.name;
        let mut writer = model.f32(device)?;
        let encoded = writer.encode(&ids(2, 7, 1, device)?, None)?;
        let text = ids(2, 12, 2, device)?;
        let steps = in_pieces(&mut *writer, &text, &encoded, None, &[1; 12])?;
        writer.reset();
        for (i, step) in steps.iter().enumerate() {
            assert_eq!(step.dims(), &[2, VOCAB], "{name}");
            let whole = in_pieces(&mut *writer, &text, &encoded, None, &[i + 1])?;
            writer.reset();
            println!("{name}: {} tokens", i + 1);
            assert_close(step, &whole[0], F32_TOLERANCE);
        }
        // A text of another batch, about something else.
        let other = writer.encode(&ids(1, 5, 3, device)?, None)?;
        let between = in_pieces(&mut *writer, &ids(1, 3, 4, device)?, &other, None, &[2, 1])?;
        let mut fresh = model.f32(device)?;
        let alone = in_pieces(&mut *fresh, &ids(1, 3, 4, device)?, &other, None, &[2, 1])?;
        assert_close(&between[1], &alone[1], F32_TOLERANCE);
        writer.reset();
        let again = in_pieces(&mut *writer, &text, &encoded, None, &[5, 3, 1, 1, 1, 1])?;
        for (piece, end) in again.iter().zip([5, 8, 9, 10, 11, 12]) {
            assert_close(piece, &steps[end - 1], F32_TOLERANCE);
        }
        // What is written depends on what is read, and on what was written before.
        let change = |a: &Tensor, b: &Tensor| (a - b)?.abs()?.max_all()?.to_scalar::<f32>();
        writer.reset();
        let last = text.narrow(1, 11, 1)?;
        let alone = writer.decode(&last, &encoded, None, 0)?;
        assert!(change(&alone, &steps[11])? > 1e-2, "{name}");
        writer.reset();
        let other = writer.encode(&ids(2, 7, 5, device)?, None)?;
        let about_other = writer.decode(&last, &other, None, 0)?;
        assert!(change(&alone, &about_other)? > 1e-2, "{name}");
    }
    Ok(())
}
test_device!(steps_are_the_whole);

/// A text in a batch with a longer one gives what it gives alone, read and written.
fn padding_changes_nothing(device: &Device) -> Result<()> {
    for model in models().filter(|model| model.texts) {
        let mut writer = model.f32(device)?;
        let (read, written) = (ids(2, 11, 1, device)?, ids(2, 4, 2, device)?);
        let lens = [11usize, 6];
        let seen = |i: usize| u32::from(i % 11 < lens[i / 11]);
        let mask: Vec<u32> = (0..22).map(seen).collect();
        let mask = Tensor::from_vec(mask, (2, 11), device)?;
        let encoded = writer.encode(&read, Some(&mask))?;
        let pieces = [2, 1, 1];
        let batch = in_pieces(&mut *writer, &written, &encoded, Some(&mask), &pieces)?;
        for (row, len) in lens.into_iter().enumerate() {
            writer.reset();
            let text = read.narrow(0, row, 1)?.narrow(1, 0, len)?;
            let alone = writer.encode(&text, None)?;
            println!("{}: text {row}", model.name);
            let part = encoded.narrow(0, row, 1)?.narrow(1, 0, len)?;
            assert_close(&part, &alone, F32_TOLERANCE);
            let text = written.narrow(0, row, 1)?;
            let logits = in_pieces(&mut *writer, &text, &alone, None, &pieces)?;
            for (batch, alone) in batch.iter().zip(&logits) {
                assert_close(&batch.narrow(0, row, 1)?, alone, F32_TOLERANCE);
            }
        }
        // What is hidden matters where it is seen.
        writer.reset();
        let open = in_pieces(&mut *writer, &written, &encoded, None, &pieces)?;
        let change = (open[2].get(1)? - batch[2].get(1)?)?.abs()?.max_all()?;
        assert!(change.to_scalar::<f32>()? > 1e-3, "{}", model.name);
    }
    Ok(())
}
test_device!(padding_changes_nothing);

/// A device agrees with the CPU, which is compared with crates.io's Candle.
fn agrees_with_the_cpu(device: &Device) -> Result<()> {
    for model in models() {
        let run = |device: &Device| {
            let mut writer = model.f32(device)?;
            let encoded = writer.encode(&ids(2, 29, 1, &Device::Cpu)?.to_device(device)?, None)?;
            let text = ids(2, 30, 2, device)?;
            let logits = in_pieces(&mut *writer, &text, &encoded, None, &[28, 1, 1])?;
            Tensor::cat(&logits, 0)?.to_device(&Device::Cpu)
        };
        println!("{}", model.name);
        assert_close(&run(device)?, &run(&Device::Cpu)?, 1e-4);
    }
    Ok(())
}
test_device!(agrees_with_the_cpu);

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers. A text of padding alone gives numbers.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    let plain = models().map(|model| (model, None));
    // Feed-forward blocks whose outputs f16 cannot hold.
    let large = models().filter(|model| model.name == "t5");
    let large = large.map(|model| (model, Some(("DenseReluDense.wo", 20_000.))));
    for (model, large) in plain.chain(large) {
        let made = Made {
            large,
            ..Made::default()
        };
        let (read, written) = (ids(2, 9, 1, device)?, ids(2, 6, 2, device)?);
        let mask = read.zeros_like()?;
        let run = |dtype| {
            let mut writer = (model.load)(&(model.json)(), &made, dtype, device)?;
            let hidden = writer.encode(&read, Some(&mask))?;
            let logits = in_pieces(&mut *writer, &written, &hidden, Some(&mask), &[6])?;
            let sum = logits[0].to_dtype(DType::F32)?.abs()?.sum_all()?;
            assert!(sum.to_scalar::<f32>()?.is_finite(), "{}", model.name);
            writer.reset();
            let encoded = writer.encode(&read, None)?;
            assert_eq!(encoded.dtype(), dtype);
            let logits = in_pieces(&mut *writer, &written, &encoded, None, &[4, 1, 1])?;
            assert_eq!(logits[2].dtype(), dtype);
            Tensor::cat(&logits, 0)?.to_dtype(DType::F32)
        };
        println!("{} {large:?}", model.name);
        assert_close(&run(DType::F16)?, &run(DType::F32)?, 3e-2);
    }
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

/// A file that holds numbers gives what these give; one of blocks gives nearly that.
fn quantized_files(device: &Device) -> Result<()> {
    let (read, written) = (ids(2, 9, 1, device)?, ids(2, 6, 2, device)?);
    let run = |writer: &mut dyn Writer| {
        let encoded = writer.encode(&read, None)?;
        let logits = in_pieces(writer, &written, &encoded, None, &[4, 1, 1])?;
        Tensor::cat(&logits, 0)
    };
    for model in models() {
        let Some(quantized) = model.quantized else {
            continue;
        };
        let (json, made) = ((model.json)(), Made::default());
        let mut plain = (model.load)(&json, &made, DType::F32, device)?;
        let load = |format| quantized(&json, made.gguf(format, device)?);
        let expected = run(&mut *plain)?;
        println!("{}", model.name);
        assert_close(&run(&mut *load(GgmlDType::F32)?)?, &expected, F32_TOLERANCE);
        assert_close(&run(&mut *load(GgmlDType::Q8_0)?)?, &expected, 5e-2);
    }
    Ok(())
}
test_device!(quantized_files);

fn bad_input_is_an_error(device: &Device) -> Result<()> {
    for model in models() {
        let (name, json) = (model.name, (model.json)());
        let mut writer = model.f32(device)?;
        let encoded = writer.encode(&ids(2, 5, 1, device)?, None)?;
        let text = ids(2, 3, 2, device)?;
        let nothing = Tensor::zeros((2, 0), DType::U32, device)?;
        assert_error(
            writer.decode(&nothing, &encoded, None, 0),
            &[name, "no tokens"],
        );
        let flat = text.flatten_all()?;
        assert_error(
            writer.decode(&flat, &encoded, None, 0),
            &[name, "(batch, seq)"],
        );
        let one = encoded.narrow(0, 0, 1)?;
        assert_error(writer.decode(&text, &one, None, 0), &[name, "2 texts"]);
        let narrow = encoded.narrow(2, 0, 8)?;
        assert_error(
            writer.decode(&text, &narrow, None, 0),
            &[name, "encoder's output"],
        );
        if name != "t5" {
            let long = ids(2, LIMIT + 1, 2, device)?;
            let limit = format!("limit of {LIMIT}");
            assert_error(writer.decode(&long, &encoded, None, 0), &[name, &limit]);
            writer.reset();
            writer.decode(&long.narrow(1, 0, LIMIT)?, &encoded, None, 0)?;
            let more = long.narrow(1, LIMIT, 1)?;
            assert_error(writer.decode(&more, &encoded, None, LIMIT), &[name, &limit]);
        }
        if model.texts {
            let mask = text.ones_like()?;
            assert_error(
                writer.decode(&text, &encoded, Some(&mask), 0),
                &[name, "mask"],
            );
            assert_error(
                writer.encode(&ids(2, 5, 1, device)?, Some(&mask)),
                &[name, "mask"],
            );
            assert_error(writer.encode(&nothing, None), &[name, "no tokens"]);
        }
        // None of this is remembered.
        writer.reset();
        let logits = writer.decode(&text, &encoded, None, 0)?;
        let expected = model.f32(device)?.decode(&text, &encoded, None, 0)?;
        assert_close(&logits, &expected, 0.);

        let (made, field) = (Made::default(), model.size);
        let bad = with(json, json!({field: 0}));
        let result = (model.load)(&bad, &made, DType::F32, device);
        assert_error(result, &[name, field]);
    }
    Ok(())
}
test_device!(bad_input_is_an_error);

#[test]
fn bad_configurations_are_errors() {
    let load = |name: &str, fields: Value| {
        let model = models().find(|model| model.name == name);
        let model = model.expect("a model of that name");
        let json = with((model.json)(), fields);
        (model.load)(&json, &Made::default(), DType::F32, &Device::Cpu)
    };
    let cases = [
        ("t5", json!({"is_encoder_decoder": false}), "T5EncoderModel"),
        ("t5", json!({"num_layers": 0}), "no layers"),
        (
            "t5",
            json!({"relative_attention_num_buckets": 3}),
            "relative_attention_num_buckets 3",
        ),
        (
            "t5",
            json!({"relative_attention_max_distance": 2}),
            "relative_attention_max_distance 2",
        ),
        ("t5", json!({"feed_forward_proj": "gated-mish"}), "Mish"),
        ("t5", json!({"feed_forward_proj": "sharp"}), "sharp"),
        ("marian", json!({"d_model": 31}), "d_model is 31"),
        (
            "marian",
            json!({"decoder_attention_heads": 5}),
            "decoder_attention_heads 5",
        ),
        (
            "marian",
            json!({"decoder_vocab_size": 7}),
            "decoder_vocab_size is 7",
        ),
        (
            "trocr",
            json!({"decoder_attention_heads": 0}),
            "decoder_attention_heads 0",
        ),
        (
            "trocr",
            json!({"d_model": 31, "decoder_attention_heads": 1, "use_learned_position_embeddings": false}),
            "d_model is 31",
        ),
        ("blip_text", json!({"is_decoder": false}), "is_decoder"),
        (
            "blip_text",
            json!({"num_attention_heads": 5}),
            "num_attention_heads 5",
        ),
    ];
    for (name, fields, said) in cases {
        assert_error(load(name, fields), &[said]);
    }
}
