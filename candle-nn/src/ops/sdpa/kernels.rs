//! The fused op on the devices that have kernels for it.

use super::{plain, Dims, Rules, NAME};
use crate::ops::{on_devices, same_backend};
use candle_core::fused::{Fused, Operand, SdpaPages, SdpaParams};
use candle_core::{CpuStorage, CustomOp3, DType, Error, Layout, Result, Shape, Tensor};

/// One kernel, or two where keys are cut into parts; tensor ops for the few calls that none takes. `S` is the storages' type.
pub(super) fn fused<S: Fused>(
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
        let inputs = [
            (same_backend::<S>(&q.0, NAME, "queries")?, q.1),
            (same_backend::<S>(&k.0, NAME, "keys")?, k.1),
            (same_backend::<S>(&v.0, NAME, "values")?, v.1),
        ];
        S::has_sdpa(inputs, params)
    })?;
    if !has_kernel {
        return match rules.paged {
            None => plain(q, k, v, rules, dims),
            Some(paged) => {
                let [k, v] = paged.gathered()?;
                let rules = Rules {
                    paged: None,
                    ..*rules
                };
                plain(q, &k, &v, &rules, dims)
            }
        };
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
    table: Option<Tensor>,
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
            table: contiguous(rules.paged.map(|paged| paged.pages.table))?,
        })
    }

    /// Calls `f` with the kernels' parameters, in which storages are locked.
    fn with<S: Fused, R>(&self, f: impl FnOnce(SdpaParams<'_, S>) -> Result<R>) -> Result<R> {
        let tensors = [
            &self.bias,
            &self.slopes,
            &self.sinks,
            &self.starts,
            &self.lens,
            &self.table,
        ];
        let locked = tensors.map(|t| t.as_ref().map(Tensor::storage_and_layout));
        let mut inputs = [None; 6];
        for (input, locked) in inputs.iter_mut().zip(&locked) {
            if let Some((guard, layout)) = locked {
                *input = Some((same_backend::<S>(guard, NAME, "option")?, *layout));
            }
        }
        let [bias, slopes, sinks, starts, lens, table] = inputs;
        let pages = match (self.rules.paged, table) {
            (Some(paged), Some(table)) => Some(SdpaPages {
                table,
                page: paged.pages.page,
                count: paged.count()?,
            }),
            _ => None,
        };
        f(SdpaParams {
            scale: self.rules.scale,
            softcap: self.rules.softcap,
            left: self.rules.left,
            right: self.rules.right,
            bias,
            slopes,
            sinks,
            starts,
            lens,
            pages,
        })
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
        Err(Error::Msg("sdpa: the op for other devices was called on the CPU".into()).bt())
    }

    on_devices!(q q_l, k k_l, v v_l);
}

impl Sdpa<'_> {
    fn on_device<S: Fused>(&self, inputs: [Operand<'_, S>; 3]) -> Result<(S, Shape)> {
        let dst = self.with(|params| S::sdpa(inputs, params))?;
        Ok((dst, Shape::from(self.dims.output())))
    }
}
