//! The fused op on WebGPU.

use super::{plain, Dims, Rules, NAME};
use candle_core::webgpu_backend::ops::fused;
use candle_core::{
    bail, CpuStorage, CustomOp3, DType, Error, Layout, Result, Shape, Storage, Tensor,
    WebGpuStorage,
};

/// One kernel, or two where keys are cut into parts; tensor ops for the few calls that none takes.
pub(super) fn fused(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rules: &Rules<'_>,
    dims: &Dims,
) -> Result<Tensor> {
    let op = Sdpa::new(rules, dims)?;
    let has_kernel = op.with(|params| {
        let storages = [q, k, v].map(Tensor::storage_and_layout);
        let [q, k, v] = &storages;
        fused::has_sdpa(
            (storage(&q.0)?, q.1),
            (storage(&k.0)?, k.1),
            (storage(&v.0)?, v.1),
            params,
        )
    })?;
    if !has_kernel {
        return plain(q, k, v, rules, dims);
    }
    q.apply_op3_no_bwd(k, v, &op)
}

/// The rules' tensors as the kernels take them.
struct Sdpa<'a> {
    rules: &'a Rules<'a>,
    dims: &'a Dims,
    bias: Option<Tensor>,
    slopes: Option<Tensor>,
    sinks: Option<Tensor>,
    starts: Option<Tensor>,
    lens: Option<Tensor>,
}

impl<'a> Sdpa<'a> {
    fn new(rules: &'a Rules<'a>, dims: &'a Dims) -> Result<Self> {
        let bias = match rules.bias {
            None => None,
            Some(bias) => {
                let bias = match bias.dtype() {
                    DType::F32 | DType::F16 | DType::BF16 => bias.clone(),
                    _ => bias.to_dtype(DType::F32)?,
                };
                Some(bias.broadcast_as((dims.batch, dims.heads, dims.queries, dims.keys))?)
            }
        };
        let contiguous = |t: Option<&Tensor>| t.map(Tensor::contiguous).transpose();
        let (slopes, sinks) = match (rules.slopes, rules.sinks) {
            // Kernels have a binding for both.
            (Some(slopes), Some(sinks)) => {
                let both = Tensor::cat(&[slopes, sinks], 0)?;
                let half = |first| both.narrow(0, first, dims.heads).map(Some);
                (half(0)?, half(dims.heads)?)
            }
            (slopes, sinks) => (contiguous(slopes)?, contiguous(sinks)?),
        };
        Ok(Self {
            rules,
            dims,
            bias,
            slopes,
            sinks,
            starts: contiguous(rules.starts)?,
            lens: contiguous(rules.lens)?,
        })
    }

    /// Calls `f` with the kernels' parameters, in which storages are locked.
    fn with<R>(&self, f: impl FnOnce(fused::SdpaParams<'_>) -> Result<R>) -> Result<R> {
        let tensors = [
            &self.bias,
            &self.slopes,
            &self.sinks,
            &self.starts,
            &self.lens,
        ];
        let locked = tensors.map(|t| t.as_ref().map(Tensor::storage_and_layout));
        let mut inputs = [None; 5];
        for (input, locked) in inputs.iter_mut().zip(&locked) {
            if let Some((guard, layout)) = locked {
                *input = Some((storage(guard)?, *layout));
            }
        }
        let [bias, slopes, sinks, starts, lens] = inputs;
        f(fused::SdpaParams {
            scale: self.rules.scale,
            softcap: self.rules.softcap,
            left: self.rules.left,
            right: self.rules.right,
            bias,
            slopes,
            sinks,
            starts,
            lens,
        })
    }
}

fn storage(storage: &Storage) -> Result<&WebGpuStorage> {
    match storage {
        Storage::WebGpu(storage) => Ok(storage),
        _ => bail!("sdpa: an option is not on the device of the queries"),
    }
}

impl CustomOp3 for Sdpa<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Err(Error::Msg("sdpa: the op for WebGPU was called on the CPU".into()).bt())
    }

    fn webgpu_fwd(
        &self,
        q: &WebGpuStorage,
        q_l: &Layout,
        k: &WebGpuStorage,
        k_l: &Layout,
        v: &WebGpuStorage,
        v_l: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        let dst = self.with(|params| fused::sdpa((q, q_l), (k, k_l), (v, v_l), params))?;
        Ok((dst, Shape::from(self.dims.output())))
    }
}
