//! The host as a device: loops over words. Faults are returned at once.

mod forest;
mod math;
mod split;

#[cfg(any(feature = "webgpu", feature = "cuda"))]
pub(crate) use math::matrices;
#[cfg(feature = "webgpu")]
pub(crate) use math::row_parts;

use crate::runtime::{Description, Forest, Operand, Pending, Runtime, SplitInputs, Stop};
use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    GpuError, MatmulParams, ReduceParams, Result,
};

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
    type Buffer = Vec<u32>;
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

    fn create(&self, bytes: u64) -> Result<Vec<u32>> {
        let words = place(bytes.div_ceil(4));
        let mut buffer = Vec::new();
        // An allocation that fails otherwise ends the process.
        let reserved = buffer.try_reserve_exact(words);
        reserved.map_err(|_| GpuError::OutOfMemory)?;
        buffer.resize(words, 0);
        Ok(buffer)
    }

    fn write(&self, dst: &mut Vec<u32>, offset: u64, data: &[u8]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(dst);
        bytes[place(offset)..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn begin_read(&self, src: &Vec<u32>, offset: u64, size: u32) -> Result<Vec<u8>> {
        let bytes: &[u8] = &bytemuck::cast_slice(src)[place(offset)..][..size as usize];
        let mut copy = Vec::new();
        let reserved = copy.try_reserve_exact(bytes.len());
        reserved.map_err(|_| GpuError::OutOfMemory)?;
        copy.extend_from_slice(bytes);
        Ok(copy)
    }

    fn copy(
        &self,
        src: &Vec<u32>,
        src_offset: u64,
        dst: &mut Vec<u32>,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(src);
        self.write(dst, dst_offset, &bytes[place(src_offset)..][..place(size)])
    }

    fn copy_within(
        &self,
        buffer: &mut Vec<u32>,
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

    fn bootstrap_sample(&self, params: BootstrapParams, output: &mut Vec<u32>) -> Result<()> {
        forest::bootstrap_sample(params, &mut output[..params.n_samples as usize]);
        Ok(())
    }

    fn find_split(
        &self,
        params: FindSplitParams,
        inputs: SplitInputs<'_, Vec<u32>>,
        output: &mut Vec<u32>,
    ) -> Result<()> {
        split::find_split(params, inputs, output)
    }

    fn average(
        &self,
        params: AverageParams,
        predictions: &Vec<u32>,
        output: &mut Vec<u32>,
    ) -> Result<()> {
        let (rows, trees) = (params.n_samples as usize, params.n_trees as usize);
        let predictions = bytemuck::cast_slice(predictions);
        let output = &mut bytemuck::cast_slice_mut(output)[..rows];
        math::average(predictions, trees, output);
        Ok(())
    }

    fn matmul(
        &self,
        params: MatmulParams,
        a: &Vec<u32>,
        b: &Vec<u32>,
        c: &mut Vec<u32>,
    ) -> Result<()> {
        let (a, b) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
        math::matmul(params, a, b, bytemuck::cast_slice_mut(c), &self.stop)
    }

    fn elementwise(
        &self,
        params: ElementwiseParams,
        a: Operand<'_, Vec<u32>>,
        b: Option<Operand<'_, Vec<u32>>>,
        output: &mut Vec<u32>,
    ) -> Result<()> {
        fn floats<'a>(operand: Operand<'a, Vec<u32>>, count: usize) -> Option<&'a [f32]> {
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

    fn reduce(&self, params: ReduceParams, input: &Vec<u32>, output: &mut Vec<u32>) -> Result<()> {
        let input = &bytemuck::cast_slice(input)[..params.n_elements as usize];
        output[0] = math::reduce(params.op, input).to_bits();
        Ok(())
    }

    fn batch_predict(
        &self,
        params: BatchPredictParams,
        forest: Forest<'_, Vec<u32>>,
        output: &mut Vec<u32>,
    ) -> Result<()> {
        let output = &mut bytemuck::cast_slice_mut(output)[..params.batch_size as usize];
        forest::batch_predict(params, forest, output, &self.stop)
    }
}
