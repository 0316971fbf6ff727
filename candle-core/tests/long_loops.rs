//! Sizes above 65,535 and above a million, which some GPUs' loops do not reach in one invocation: a loop that ends early gives a wrong
//! result without an error. The expected values follow from the inputs.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{test_device, DType, Device, Module, Result, Tensor};

const LONG: usize = 70_000;
const LONGER: usize = 1_100_000;

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// Returns the ids `0, 1, …, size - 1, 0, …`.
fn cycle(len: usize, size: usize, device: &Device) -> Result<Tensor> {
    let ids: Vec<u32> = (0..len).map(|i| (i % size) as u32).collect();
    Tensor::from_vec(ids, len, device)
}

/// Every update is applied.
fn index_add(device: &Device) -> Result<()> {
    for (len, dtype) in [(LONG, DType::F32), (LONG, DType::U32), (LONGER, DType::F32)] {
        let ids = Tensor::zeros(len, DType::U32, device)?;
        let got = Tensor::zeros((1, 4), dtype, device)?.index_add(
            &ids,
            &Tensor::ones((len, 4), dtype, device)?,
            0,
        )?;
        assert_eq!(values(&got)?, [len as f64; 4], "{len} {dtype:?}");
    }
    // A packed dtype: every invocation reads all ids. Bytes wrap.
    let ids = cycle(LONG, 100, device)?;
    let src = Tensor::ones((LONG, 2), DType::U8, device)?;
    let got = Tensor::zeros((100, 2), DType::U8, device)?.index_add(&ids, &src, 0)?;
    assert_eq!(values(&got)?, [f64::from(700 % 256); 200]);
    Ok(())
}

fn scatter(device: &Device) -> Result<()> {
    for (dtype, width) in [(DType::F32, 1), (DType::F16, 2)] {
        let ids = cycle(LONG, LONG, device)?.reshape((LONG, 1))?;
        let ids = ids.broadcast_as((LONG, width))?.contiguous()?;
        let ones = Tensor::ones((LONG, width), dtype, device)?;
        let size = if dtype == DType::F32 { LONG } else { 64 };
        let ids = if size == LONG {
            ids
        } else {
            (ids.to_dtype(DType::F32)? * 0.)?.to_dtype(DType::U32)?
        };
        let got = Tensor::zeros((size, width), dtype, device)?.scatter(&ids, &ones, 0)?;
        let expected = if size == LONG { LONG * width } else { width };
        let sum = got.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        assert_eq!(sum, expected as f32, "{dtype:?}");
    }
    let ids = Tensor::zeros((1, LONG), DType::U32, device)?;
    let dst = Tensor::zeros((1, 2), DType::F32, device)?;
    dst.scatter_add_set(&ids, &Tensor::ones((1, LONG), DType::F32, device)?, 1)?;
    assert_eq!(values(&dst)?, [LONG as f64, 0.]);
    // The last of many updates remains.
    let updates = Tensor::arange(0f32, LONG as f32, device)?.reshape((1, LONG))?;
    dst.scatter_set(&ids, &updates, 1)?;
    assert_eq!(values(&dst)?, [LONG as f64 - 1., 0.]);
    Ok(())
}

/// The gradient of an embedding sums all tokens of a row.
fn index_select_gradient(device: &Device) -> Result<()> {
    let table = candle_core::Var::zeros((50, 2), DType::F32, device)?;
    let ids = cycle(LONG, 50, device)?;
    let grads = table.index_select(&ids, 0)?.sum_all()?.backward()?;
    let grad = grads.get(&table).expect("a gradient");
    assert_eq!(values(grad)?, [1400.; 100]);
    Ok(())
}

/// Products in the dtypes for which one invocation computes the whole sum.
fn plain_products(device: &Device) -> Result<()> {
    for (dtype, k) in [
        (DType::I64, LONG),
        (DType::U32, LONG),
        (DType::F64, LONG),
        (DType::U32, LONGER),
        (DType::U8, LONG),
    ] {
        let ones = |shape| Tensor::ones(shape, dtype, device);
        let got = ones((1, k))?.matmul(&ones((k, 2))?)?;
        let expected = if dtype == DType::U8 {
            (k % 256) as f64
        } else {
            k as f64
        };
        assert_eq!(values(&got)?, [expected; 2], "{dtype:?} {k}");
    }
    Ok(())
}

fn products(device: &Device) -> Result<()> {
    for (m, k) in [(1, LONGER), (9, LONG), (2, 300_000)] {
        let ones = |shape| Tensor::ones(shape, DType::F32, device);
        let got = ones((m, k))?.matmul(&ones((k, 2))?)?;
        assert_eq!(values(&got)?, vec![k as f64; 2 * m], "{m} rows, {k}");
    }
    Ok(())
}

fn quantized_products(device: &Device) -> Result<()> {
    for (m, k) in [(1, 65_536), (2, 70_016), (12, 70_016), (1, 1_100_032)] {
        let weight = Tensor::ones((4, k), DType::F32, &Device::Cpu)?;
        // One format covers all sizes, the other those of the block kernels.
        let dtypes = [GgmlDType::Q8_0, GgmlDType::Q4_0];
        for dtype in dtypes.into_iter().take(if k == 65_536 { 2 } else { 1 }) {
            let weight = QTensor::quantize_onto(&weight, dtype, device)?;
            let exact = weight.dequantize(device)?.sum(1)?;
            let product = QMatMul::from_qtensor(weight)?;
            let got = product.forward(&Tensor::ones((m, k), DType::F32, device)?)?;
            let (got, want) = (values(&got)?, values(&exact)?);
            for (i, got) in got.iter().enumerate() {
                let want = want[i % 4];
                assert!(
                    (got / want - 1.).abs() < 1e-3,
                    "{dtype:?} {m} {k}: {got} for {want}"
                );
            }
        }
    }
    Ok(())
}

fn pooling(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let ones = Tensor::ones((1, 2, 301, 300), dtype, device)?;
        let mean = ones.avg_pool2d_with_stride((300, 300), (1, 1))?;
        assert_eq!(mean.dims(), [1, 2, 2, 1]);
        assert_eq!(values(&mean)?, [1.; 4], "{dtype:?}");
    }
    // The largest element is the last of its window, and of a window that is a row.
    for (h, w, kernel) in [(300, 301, (300, 300)), (1, LONG + 1, (1, LONG))] {
        let x = Tensor::arange(0f32, (h * w) as f32, device)?.reshape((1, 1, h, w))?;
        let greatest = x.max_pool2d_with_stride(kernel, (1, 1))?;
        let last = (h * w - 1) as f64;
        assert_eq!(values(&greatest)?, [last - 1., last], "{h} by {w}");
    }
    Ok(())
}

/// Kernels with many elements, all of which contribute.
fn convolutions(device: &Device) -> Result<()> {
    for (dtype, len, size) in [
        (DType::F32, LONG + 3, LONG),
        (DType::F32, 3 * LONG, LONG),
        (DType::F64, LONG + 3, LONG),
    ] {
        let ones = |shape| Tensor::ones(shape, dtype, device);
        let got = ones((1, 1, len))?.conv1d(&ones((1, 1, size))?, 0, 8192, 1, 1)?;
        let got = values(&got)?;
        assert_eq!(got, vec![size as f64; got.len()], "{dtype:?} {len} {size}");
    }
    // An output element has at most 3 input elements.
    for channels in [1, 16] {
        let ones = |shape| Tensor::ones(shape, DType::F32, device);
        let kernel = ones((channels, 1, LONG))?;
        let middle = LONG / 2 - 8;
        let got = ones((1, channels, 3))?.conv_transpose1d(&kernel, middle, 0, 1, 1, 1)?;
        assert_eq!(values(&got)?, [3. * channels as f64; 18]);
    }
    Ok(())
}

/// Sums of long columns.
fn columns(device: &Device) -> Result<()> {
    let ones = Tensor::ones((LONG, 3), DType::F32, device)?;
    assert_eq!(values(&ones.sum(0)?)?, [LONG as f64; 3]);
    Ok(())
}

/// A product with a triangle of ones would take 20 GB.
fn cumsum(device: &Device) -> Result<()> {
    for len in [LONG + 1, LONGER] {
        let ones = Tensor::ones((1, len), DType::F32, device)?;
        let sums = ones.cumsum(1)?.flatten_all()?.to_vec1::<f32>()?;
        let wrong = sums.iter().enumerate().find(|(i, v)| **v != (i + 1) as f32);
        assert_eq!(wrong, None, "{len}");
    }
    Ok(())
}

test_device!(index_add);
test_device!(scatter);
test_device!(index_select_gradient);
test_device!(plain_products);
test_device!(products);
test_device!(quantized_products);
test_device!(pooling);
test_device!(convolutions);
test_device!(columns);
test_device!(cumsum);
