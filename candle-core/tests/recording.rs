//! Work that a CUDA device records, to be launched with one call.

use candle_core::{Device, Result, Tensor};

/// Limits of `clamp` and the other numbers of ops are part of the kernels' arguments; what comes from the host's memory is refused, since it
/// would be read when the recording runs.
mod numbers_and_copies {
    use super::*;

    #[test]
    fn cuda() -> Result<()> {
        let device = Device::new_cuda(0)?;
        let Device::Cuda(card) = &device else {
            panic!("{device:?} is not a CUDA device")
        };
        let xs = Tensor::new(&[-3f32, 0.5, 2., 0.], &device)?;
        let results = Tensor::zeros((4, 4), xs.dtype(), &device)?;
        let work = || {
            let parts = [
                xs.clamp(-1., 1.)?,
                xs.maximum(0.25)?,
                xs.minimum(&xs.affine(0., 1.5)?)?,
                xs.ge(0.5)?.to_dtype(xs.dtype())?,
            ];
            for (i, part) in parts.iter().enumerate() {
                results.slice_set(&part.unsqueeze(0)?, 0, i)?;
            }
            Ok(())
        };
        // Kernels are compiled before.
        work()?;
        let mut recording = card.record(work)?;
        for numbers in [[-3f32, 0.5, 2., 0.], [0.75, -0.5, 0.5, 9.]] {
            xs.slice_set(&Tensor::new(&numbers, &device)?, 0, 0)?;
            recording.launch()?;
            let expected = [
                numbers.map(|x| x.clamp(-1., 1.)),
                numbers.map(|x| x.max(0.25)),
                numbers.map(|x| x.min(1.5)),
                numbers.map(|x| f32::from(u8::from(x >= 0.5))),
            ];
            assert_eq!(results.to_vec2::<f32>()?, expected);
        }
        let error = card.record(|| Tensor::new(&[1f32, 2.], &device).map(drop));
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("cannot record"), "{error}");
        Ok(())
    }
}
