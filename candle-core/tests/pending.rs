//! Asynchronous reads.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::numbers;

fn reads_run_beside_what_follows(device: &Device) -> Result<()> {
    // Each result is read while later ones, in the same buffers, are already pending.
    let mut x = numbers(&[1000], DType::F32)?.to_device(device)?;
    let (mut pending, mut expected) = (vec![], vec![]);
    for step in 0..20 {
        pending.push(x.begin_to_vec1::<f32>()?);
        expected.push(x.to_vec1::<f32>()?);
        x = (x + f64::from(step))?;
    }
    for (step, (pending, expected)) in pending.into_iter().zip(expected).enumerate() {
        assert_eq!(pending.wait()?, expected, "step {step}");
    }
    // A view is read in its own order.
    let column = x.reshape((10, 100))?.t()?.get(7)?;
    assert_eq!(
        column.begin_to_vec1::<f32>()?.wait()?,
        column.to_vec1::<f32>()?
    );
    let error = x.begin_to_vec1::<u32>().map(drop).unwrap_err().to_string();
    assert!(error.contains("F32") && error.contains("U32"), "{error}");
    assert!(x.reshape((10, 100))?.begin_to_vec1::<f32>().is_err());
    Ok(())
}
test_device!(reads_run_beside_what_follows);

/// More dispatches than fit in a submission, while the GPU still computes the values to read.
fn much_work_behind_a_read(device: &Device) -> Result<()> {
    let busy = Tensor::ones((300, 300), DType::F32, device)?;
    let read = busy.matmul(&busy)?.flatten_all()?.begin_to_vec1::<f32>()?;
    let mut count = Tensor::zeros(3, DType::F32, device)?;
    for _ in 0..700 {
        count = (count + 1.)?;
    }
    assert_eq!(read.wait()?, vec![300f32; 300 * 300]);
    assert_eq!(count.to_vec1::<f32>()?, [700.; 3]);
    Ok(())
}
test_device!(much_work_behind_a_read);

/// An empty read, a single byte, and more than one staging buffer.
fn lengths(device: &Device) -> Result<()> {
    for len in [0usize, 1, 3, (1 << 20) - 1, 1 << 20, (1 << 20) + 1] {
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let t = Tensor::new(data.as_slice(), device)?;
        let (first, second) = (t.begin_to_vec1::<u8>()?, t.begin_to_vec1::<u8>()?);
        assert_eq!(first.wait()?, data, "{len}");
        drop(second);
        assert_eq!(t.begin_to_vec1::<u8>()?.wait()?, data, "{len} again");
    }
    Ok(())
}
test_device!(lengths);

/// An error before a read is reported with it, once.
fn faults(device: &Device) -> Result<()> {
    let t = Tensor::new(&[1f32, 2., 3.], device)?;
    let ids = Tensor::new(&[0u32, 7], device)?;
    let read = || t.index_select(&ids, 0)?.begin_to_vec1::<f32>()?.wait();
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("index-select") && error.contains('7') && error.contains('3'),
        "{error}"
    );
    assert_eq!(t.begin_to_vec1::<f32>()?.wait()?, [1., 2., 3.]);
    Ok(())
}
test_device!(faults);
