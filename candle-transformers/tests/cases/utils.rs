use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::utils::{
    apply_repeat_penalty, build_additive_causal_mask, build_causal_mask, repeat_kv,
};

fn repeat_penalty(device: &Device) -> Result<()> {
    let inf = f32::NEG_INFINITY;
    let logits = Tensor::new(&[2f32, -2., 0., 4., inf, -1.], device)?;
    let run = |penalty, context: &[u32]| {
        apply_repeat_penalty(&logits, penalty, context)?.to_vec1::<f32>()
    };
    // Once per token, however often it occurred; ids beyond the vocabulary are ignored.
    let lowered = run(2., &[1, 3, 3, 4, 3, 2, 99])?;
    assert_eq!(lowered, [2., -4., 0., 2., inf, -1.]);
    let unchanged = [2., -2., 0., 4., inf, -1.];
    assert_eq!(run(1., &[0, 1])?, unchanged);
    assert_eq!(run(1.5, &[])?, unchanged);
    assert_eq!(run(1.5, &[6])?, unchanged);
    assert_eq!(logits.to_vec1::<f32>()?, unchanged, "the input stays");
    for dtype in [DType::F16, DType::BF16] {
        let lowered = apply_repeat_penalty(&logits.to_dtype(dtype)?, 2., &[0])?;
        assert_eq!(lowered.dtype(), DType::F32);
        assert_eq!(lowered.to_vec1::<f32>()?, [1., -2., 0., 4., inf, -1.]);
    }
    for penalty in [0., -1., f32::NAN, f32::INFINITY] {
        let error = run(penalty, &[0]).unwrap_err().to_string();
        assert!(error.contains("repeat penalty"), "{error}");
    }
    assert!(apply_repeat_penalty(&logits.unsqueeze(0)?, 2., &[0]).is_err());
    Ok(())
}
test_device!(repeat_penalty);

fn causal_masks(device: &Device) -> Result<()> {
    let mask = build_causal_mask(3, 0, device)?;
    assert_eq!(mask.to_vec2::<u8>()?, [[0, 1, 1], [0, 0, 1], [0, 0, 0]]);
    let mask = build_causal_mask(2, 2, device)?;
    assert_eq!(mask.to_vec2::<u8>()?, [[0, 0, 0, 1], [0, 0, 0, 0]]);
    assert_eq!(build_causal_mask(0, 2, device)?.dims(), &[0, 2]);

    let inf = f32::NEG_INFINITY;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let additive = |offset, window| {
            let mask = build_additive_causal_mask(2, offset, window, device, dtype)?;
            assert_eq!(mask.dims(), &[1, 1, 2, 2 + offset]);
            assert_eq!(mask.dtype(), dtype);
            mask.squeeze(0)?
                .squeeze(0)?
                .to_dtype(DType::F32)?
                .to_vec2::<f32>()
        };
        assert_eq!(additive(0, None)?, [[0., inf], [0., 0.]]);
        assert_eq!(additive(2, None)?, [[0., 0., 0., inf], [0., 0., 0., 0.]]);
        assert_eq!(
            additive(2, Some(1))?,
            [[inf, 0., 0., inf], [inf, inf, 0., 0.]]
        );
    }
    assert!(build_additive_causal_mask(2, 0, None, device, DType::U32).is_err());
    Ok(())
}
test_device!(causal_masks);

fn repeated_heads(device: &Device) -> Result<()> {
    let xs = Tensor::arange(0f32, 12., device)?.reshape((1, 2, 3, 2))?;
    let twice = repeat_kv(xs.clone(), 2)?;
    let heads = [0, 0, 1, 1].map(|head| xs.narrow(1, head, 1));
    let expected = Tensor::cat(&heads.into_iter().collect::<Result<Vec<_>>>()?, 1)?;
    assert_eq!(twice.dims(), &[1, 4, 3, 2]);
    let flat = |tensor: Tensor| tensor.flatten_all()?.to_vec1::<f32>();
    assert_eq!(flat(twice)?, flat(expected)?);
    assert_eq!(flat(repeat_kv(xs.clone(), 1)?)?, flat(xs.clone())?);
    assert!(repeat_kv(xs, 0).is_err());
    Ok(())
}
test_device!(repeated_heads);
