//! A product whose inner dimension is split into parts; a second kernel adds their results.

use super::super::{bind, index, WORKGROUP};
use super::extras::Epilogue;
use super::plan::MOST_TILE_K;
use super::{Extras, Problem, Run};
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::{DType, Error, Result};

params!(JoinParams {
    len: u32,
    m: u32,
    n: u32,
    splits: u32,
    dst_row: u32,
    dst_first: u32,
    bias_offset: u32,
    residual_offset: u32,
    residual_row: u32,
    channels: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulJoin {
    out: Elem,
    epilogue: Epilogue,
}

impl Kernel for MatmulJoin {
    type Params = JoinParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input_words("parts", "f32")
            .output("dst", self.out)
            .finish(self.epilogue)
            .constant("WG", WORKGROUP)
            .body::<JoinParams>(include_str!("../../shaders/matmul_join.wgsl"))
    }
}

/// A multiple of the kernels' depths over `k`: a part ends where a tile does.
const CHUNK_UNIT: usize = 64;

/// The length of each part.
pub(super) fn chunk(k: usize, splits: usize) -> usize {
    match splits {
        1 => k,
        _ => k.div_ceil(splits).next_multiple_of(CHUNK_UNIT),
    }
}

impl Run<'_> {
    /// Runs `kernel` over `splits` parts of `k`, and joins the results.
    pub(super) fn split(
        &self,
        splits: usize,
        kernel: impl FnOnce(&Run<'_>) -> Result<()>,
    ) -> Result<()> {
        let k = self.problem.k;
        let device = self.device;
        let len = self.problem.batch * self.problem.m * self.problem.n;
        // The parts are one binding.
        let splits = splits.min(device.max_binding() as usize / (4 * len)).max(1);
        // With the parts' length rounded up, the last parts may be empty.
        let splits = k.div_ceil(chunk(k, splits));
        if chunk(k, splits) > MOST_TILE_K {
            // `product` has split longer dimensions before; convolutions and quantised weights have no other form.
            return Err(Error::WebGpu(format!(
                "matmul: an inner dimension of {k} in {splits} parts for {len} results, which is what {} binds at once; parts of at most \
                 {MOST_TILE_K} are needed: use fewer rows or columns at a time",
                device.name()
            ))
            .bt());
        }
        if splits == 1 {
            return kernel(self);
        }
        let parts = device.alloc(splits * len, DType::F32, "matmul")?;
        let (dst, operands) = match self.bindings {
            [operands @ .., dst] => (*dst, operands),
            [] => return Ok(()),
        };
        let problem = Problem {
            dst_row: self.problem.n,
            dst_first: 0,
            ..self.problem.clone()
        };
        kernel(&Run {
            bindings: &[operands, &[bind(&parts)]].concat(),
            problem: &problem,
            out: Elem::F32,
            extras: Extras::default(),
            channels: 0,
            splits,
            ..*self
        })?;
        let params = self.params()?;
        let mut bindings = vec![bind(&parts), dst];
        bindings.extend(self.extras.bindings());
        device.run(
            &MatmulJoin {
                out: self.out,
                epilogue: self.epilogue(),
            },
            &bindings,
            &JoinParams {
                len: index(len)?,
                m: index(self.problem.m)?,
                n: index(self.problem.n)?,
                splits: index(splits)?,
                dst_row: params.dst_row,
                dst_first: params.dst_first,
                bias_offset: params.bias_offset,
                residual_offset: params.residual_offset,
                residual_row: params.residual_row,
                channels: params.channels,
            },
            device.grid(len / self.out.lanes() as usize, WORKGROUP),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::chunk;

    #[test]
    fn parts_cover_the_inner_dimension() {
        for (k, splits, expected) in [
            (2048, 4, 512),
            (2048, 3, 704),
            (1030, 2, 576),
            (100, 1, 100),
        ] {
            assert_eq!(chunk(k, splits), expected, "{k} in {splits}");
            assert!(expected * splits >= k);
        }
    }
}
