//! The host as a device: loops over words. Faults are returned at once.

mod forest;
mod math;
mod split;
mod words;

#[cfg(any(feature = "webgpu", feature = "cuda"))]
pub(crate) use math::matrices;
#[cfg(feature = "webgpu")]
pub(crate) use math::row_parts;

use crate::runtime::{Description, Forest, Operand, Pending, Runtime, SplitInputs, Stop};
use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    GpuError, MatmulParams, ReduceParams, Result,
};
pub(crate) use words::Words;

#[derive(Default)]
pub(crate) struct Cpu {
    stop: Stop,
}

/// An offset in a buffer; the checks have ensured that it is inside.
fn place(bytes: u64) -> usize {
    bytes as usize
}

impl Pending for Vec<u8> {
    fn wait(self) -> Result<Vec<u8>> {
        Ok(self)
    }

    async fn arrive(self) -> Result<Vec<u8>> {
        Ok(self)
    }
}

impl Runtime for Cpu {
    type Buffer = Words;
    type Pending = Vec<u8>;

    fn describe(&self) -> Description {
        Description {
            name: format!("{} processor", std::env::consts::ARCH),
            backend: "cpu".into(),
            is_hardware: false,
            compute_capability: String::new(),
        }
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn max_buffer(&self) -> u64 {
        isize::MAX as u64 / 2
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn create(&self, bytes: u64) -> Result<Words> {
        Words::zeros(place(bytes.div_ceil(4)))
    }

    fn write(&self, dst: &mut Words, offset: u64, data: &[u8]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(dst);
        bytes[place(offset)..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn begin_read(&self, src: &Words, offset: u64, size: u32) -> Result<Vec<u8>> {
        let bytes: &[u8] = &bytemuck::cast_slice(src)[place(offset)..][..size as usize];
        let mut copy = Vec::new();
        let reserved = copy.try_reserve_exact(bytes.len());
        reserved.map_err(|_| GpuError::OutOfMemory)?;
        copy.extend_from_slice(bytes);
        Ok(copy)
    }

    fn copy(
        &self,
        src: &Words,
        src_offset: u64,
        dst: &mut Words,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(src);
        self.write(dst, dst_offset, &bytes[place(src_offset)..][..place(size)])
    }

    fn copy_within(
        &self,
        buffer: &mut Words,
        src_offset: u64,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(buffer);
        let src = place(src_offset);
        bytes.copy_within(src..src + place(size), place(dst_offset));
        Ok(())
    }

    fn sync(&self) {}

    fn bootstrap_sample(&self, params: BootstrapParams, output: &mut Words) -> Result<()> {
        forest::bootstrap_sample(params, &mut output[..params.n_samples as usize]);
        Ok(())
    }

    fn find_split(
        &self,
        params: FindSplitParams,
        inputs: SplitInputs<'_, Words>,
        output: &mut Words,
    ) -> Result<()> {
        split::find_split(params, inputs, output)
    }

    fn average(
        &self,
        params: AverageParams,
        predictions: &Words,
        output: &mut Words,
    ) -> Result<()> {
        let (rows, trees) = (params.n_samples as usize, params.n_trees as usize);
        let predictions = bytemuck::cast_slice(predictions);
        let output = &mut bytemuck::cast_slice_mut(output)[..rows];
        math::average(predictions, trees, output);
        Ok(())
    }

    fn matmul(&self, params: MatmulParams, a: &Words, b: &Words, c: &mut Words) -> Result<()> {
        math::matmul(params, a, b, c, &self.stop)
    }

    fn elementwise(
        &self,
        params: ElementwiseParams,
        a: Operand<'_, Words>,
        b: Option<Operand<'_, Words>>,
        output: &mut Words,
    ) -> Result<()> {
        fn floats<'a>(operand: Operand<'a, Words>, count: usize) -> Option<&'a [f32]> {
            match operand {
                Operand::Output => None,
                Operand::Other(buffer) => Some(&bytemuck::cast_slice(buffer)[..count]),
            }
        }
        let count = params.n_elements as usize;
        let output = &mut bytemuck::cast_slice_mut(output)[..count];
        let (a, b) = (floats(a, count), b.and_then(|b| floats(b, count)));
        math::elementwise(params.op, a, b, output);
        Ok(())
    }

    fn reduce(&self, params: ReduceParams, input: &Words, output: &mut Words) -> Result<()> {
        let input = &bytemuck::cast_slice(input)[..params.n_elements as usize];
        output[0] = math::reduce(params.op, input).to_bits();
        Ok(())
    }

    fn batch_predict(
        &self,
        params: BatchPredictParams,
        forest: Forest<'_, Words>,
        output: &mut Words,
    ) -> Result<()> {
        let output = &mut bytemuck::cast_slice_mut(output)[..params.batch_size as usize];
        forest::batch_predict(params, forest, output, &self.stop)
    }
}
