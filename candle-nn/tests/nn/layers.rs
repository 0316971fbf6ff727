use super::common::{assert_close, assert_fails, assert_values, data, dtypes, layouts, reference};
use candle_core::{test_device, DType, Device, IndexOp, Module, Result, Tensor, D};
use candle_nn::{func, linear, seq, Activation, Embedding, Init, Linear, VarBuilder, VarMap};

fn linear_over_batches(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        let weight = data(&[5, 7], dtype, dev)?;
        let bias = data(&[5], dtype, dev)?;
        let layer = Linear::new(weight.clone(), Some(bias.clone()));
        let [rw, rb] = [reference(&weight)?, reference(&bias)?];
        for dims in [
            vec![3, 7],
            vec![1, 7],
            vec![2, 3, 7],
            vec![1, 1, 7],
            vec![2, 2, 3, 7],
            vec![2, 1, 2, 3, 7],
        ] {
            for (layout, xs) in layouts(&dims, dtype, dev)? {
                let case = format!("{dtype:?} {dims:?} {layout}");
                let expected = reference(&xs)?
                    .flatten_to(D::Minus2)?
                    .matmul(&rw.t()?)?
                    .broadcast_add(&rb)?;
                let got = layer.forward(&xs)?;
                assert_eq!(
                    got.dims()[..dims.len() - 1],
                    dims[..dims.len() - 1],
                    "{case}"
                );
                // Two roundings, of the product and of the sum with the bias.
                let got = got.flatten_to(D::Minus2)?;
                assert_close(&case, &got, &expected, 2. * tolerance);
            }
        }
    }
    Ok(())
}

fn linear_of_nothing(dev: &Device) -> Result<()> {
    let layer = Linear::new(data(&[5, 7], DType::F32, dev)?, None);
    for (dims, expected) in [(vec![0, 7], vec![0, 5]), (vec![2, 0, 7], vec![2, 0, 5])] {
        let xs = data(&dims, DType::F32, dev)?;
        assert_eq!(layer.forward(&xs)?.dims(), expected);
    }
    assert_fails(
        layer.forward(&data(&[2, 6], DType::F32, dev)?),
        &["matmul", "[2, 6]"],
    );
    assert_fails(
        layer.forward(&data(&[1, 2, 6], DType::F32, dev)?),
        &["matmul", "[2, 6]"],
    );
    Ok(())
}

fn embedding_rows(dev: &Device) -> Result<()> {
    for (dtype, _) in dtypes(dev) {
        let table = data(&[6, 5], dtype, dev)?;
        let layer = Embedding::new(table.clone(), 5);
        let ids = Tensor::new(&[[0u32, 5, 2], [2, 1, 4]], dev)?;
        let got = layer.forward(&ids)?;
        assert_eq!(got.dims(), &[2, 3, 5]);
        assert_close("row", &got.i((1, 2))?, &table.i(4)?, 0.);
        // A view of indexes, and i64 ones.
        let got = layer.forward(&ids.t()?.to_dtype(DType::I64)?)?;
        assert_eq!(got.dims(), &[3, 2, 5]);
        assert_close("transposed", &got.i((1, 0))?, &table.i(5)?, 0.);
        let none = Tensor::zeros((2, 0), DType::U32, dev)?;
        assert_eq!(layer.forward(&none)?.dims(), &[2, 0, 5]);
    }
    Ok(())
}

fn chains_of_layers(dev: &Device) -> Result<()> {
    let xs = Tensor::new(&[-1f32, 2.], dev)?;
    let chain = seq()
        .add(Activation::Relu)
        .add_fn(|xs| xs + 1.)
        .add(func(|xs| xs * 2.));
    assert_eq!((chain.len(), chain.is_empty()), (3, false));
    assert_values("all", &chain.forward(&xs)?, &[2., 6.], 0.);
    let steps = chain.forward_all(&xs)?;
    assert_values("first", &steps[0], &[0., 2.], 0.);
    assert_values("second", &steps[1], &[1., 3.], 0.);
    assert_values("empty", &seq().forward(&xs)?, &[-1., 2.], 0.);
    Ok(())
}

fn new_variables(dev: &Device) -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, dev);
    linear(400, 300, vb.pp("proj"))?;
    let norm = candle_nn::layer_norm(7, 1e-6, vb.pp("norm"))?;
    assert_eq!(norm.eps(), 1e-6);
    assert_values("ones", norm.weight(), &[1.; 7], 0.);
    assert_values("zeros", norm.bias().unwrap(), &[0.; 7], 0.);
    assert_eq!(vars.all_vars().len(), 4);

    // Kaiming normal over 400 inputs before a ReLU: deviation sqrt(2 / 400) = 0.0707, known from 120,000 draws to about 0.2%.
    let weight = vb.get((300, 400), "proj.weight")?;
    let deviation = weight.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
    assert!((deviation - 0.0707).abs() < 0.002, "{deviation}");
    // Uniform within 1 / sqrt(400) = 0.05.
    let bias = vb.get(300, "proj.bias")?.abs()?;
    let largest = bias.max(0)?.to_scalar::<f32>()?;
    assert!(largest <= 0.05 && largest > 0.045, "{largest}");
    Ok(())
}

fn fans_and_gains(_dev: &Device) -> Result<()> {
    use candle_nn::init::{FanInOut, NonLinearity};
    let shape = (8, 4, 3, 2).into();
    assert_eq!(FanInOut::FanIn.for_shape(&shape), 24);
    assert_eq!(FanInOut::FanOut.for_shape(&shape), 48);
    assert_eq!(FanInOut::FanIn.for_shape(&5.into()), 1);
    assert_eq!(FanInOut::FanOut.for_shape(&().into()), 1);
    assert_eq!(NonLinearity::Tanh.gain(), 5. / 3.);
    let var = Init::Const(2.5).var(3, DType::F32, &Device::Cpu)?;
    assert_values("constant", var.as_tensor(), &[2.5; 3], 0.);
    Ok(())
}

test_device!(linear_over_batches);
test_device!(linear_of_nothing);
test_device!(embedding_rows);
test_device!(chains_of_layers);
test_device!(new_variables);
test_device!(fans_and_gains);
